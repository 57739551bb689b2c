"""The README and the pages it links to: their code runs and type-checks unchanged, commands and links exist."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from blackbox import Batch, Feed, Message
from tests.project.scripts import ROOT, in_turn, together
from tests.project.test_page_snippets import PAGES
from tests.write_file_list import PAGE, page

README = (ROOT / "README.md").read_text()
STARTED = (ROOT / "docs" / "getting-started.md").read_text()
REPLAYED = (ROOT / "docs" / "record-and-replay.md").read_text()
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
RELAYS = (ROOT / "docs" / "relay.md").read_text()
SCRIPTS = {
    README: ("twelve_lines",),
    STARTED: ("publisher", "subscriber"),
    REPLAYED: ("recorder", "own", "read", "frames", "back_test", "replay"),
    TUTORIAL: ("bars", "reversion", "made_up"),
    RELAYS: ("relay",),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the files of the pages."""
    path = tmp_path_factory.mktemp("pages")
    for text, names in SCRIPTS.items():
        for name, code in zip(names, re.findall(r"```python\n(.*?)```", text, re.DOTALL), strict=True):
            (path / f"{name}.py").write_text(code)
    (text,) = re.findall(r"```toml\n(.*?)```", STARTED, re.DOTALL)
    (endpoint,) = Feed.local("readme", slices=1).slices[0].endpoints
    (path / "feed.toml").write_text(text.replace("tcp://127.0.0.1:17201", endpoint))
    return path


def test_the_twelve_lines_print_the_output_on_the_page(place: Path) -> None:
    snippet = place / "twelve_lines.py"
    assert len([line for line in snippet.read_text().splitlines() if line.strip()]) == 12
    (out,) = together(snippet)
    assert out == "b'AAPL.trade' b'189.98'\nlost: 0\n"
    assert [line for line in out.splitlines() if f"`{line}`" not in README] == []


def test_recording_and_replays_print_the_output_on_the_page(place: Path) -> None:
    scripts = {name: place / f"{name}.py" for name in ("publisher", "subscriber", *SCRIPTS[REPLAYED])}
    said = [
        *together(scripts["recorder"], scripts["publisher"]),
        *together(scripts["own"]),
        *in_turn(scripts["read"], scripts["frames"], scripts["back_test"]).values(),
        *together(scripts["subscriber"], scripts["replay"]),
    ]
    lines = [line for out in said for line in out.splitlines()]
    assert lines == [
        "recorded: 1000 lost: 0",
        "sent: 1000",
        "wrote: 3 messages of 2026-01-05",
        "AAPL: 500 gaps: 0 damage: 0",
        "AAPL 189.98 at 09:30",
        "replayed: 500 last: b'998'",
        "received: 500 lost: 0",
        "last: {b'AAPL.trade': b'998'}",
        "sent again: 1000",
    ]
    pages = " ".join((STARTED + REPLAYED).split())
    assert [line for line in lines if f"`{line}`" not in pages] == []


OURS = {"messages", "received"}
"""Attributes of a batch that only the library uses."""


@pytest.mark.parametrize(("kind", "column"), [(Message, 2), (Batch, 3)])
def test_the_table_has_every_attribute(kind: type, column: int) -> None:
    table = (ROOT / "docs" / "callbacks.md").read_text().partition("| what it gets |")[2].partition("\n\n")[0]
    cells = " ".join(line.split("|")[column] for line in table.splitlines()[2:])
    names = {name for name in re.findall(r"`(\w+)[`(]", cells) if name != "Message"}
    assert names - {"arrow"} == {name for name in dir(kind) if not name.startswith("_")} - OURS


def test_the_scripts_type_check(place: Path) -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", *sorted(place.glob("*.py"))],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=350,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_quick_start_has_exactly_two_commands_and_both_exist() -> None:
    section = README.partition("## Quick start\n")[2].partition("\n## ")[0]
    commands = re.findall(r"^ {4}(\S.*?)(?: {2,}#.*)?$", section, re.MULTILINE)
    assert commands == ["make demo", "make test"]
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"demo", "test"} | set(re.findall(r"`make (\w+)", README)) <= targets


def test_what_needs_a_clone_says_so() -> None:
    sentences = [each for each in re.split(r"\.\s", README) if "make " in each]
    assert [each for each in sentences if "clone" not in each] == []


def test_the_readme_names_each_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    section = README.partition("## Install\n")[2].partition("\n## ")[0]
    installed = re.findall(r"\w+", section.partition("clone[")[2].partition("]")[0])
    assert extras.keys() - {"docs", "bench", "rivals", "dev", "release"} == {
        *installed,
        *re.findall(r"`(\w+)`", section.partition("Further extras:")[2]),
    } - {"top", "dashboard"}


MEASURED = {
    "compiled callbacks that count, digest and sum": ("Delivery to working", "compiled callbacks", "pyzmq"),
    "a Python call per message": ("One Python call per message", "on(prefix)", "pyzmq"),
    "a recorder, fed with columns": ("Recording a stream", "publish_many(), Recorder"),
    "replay in process to compiled callbacks": ("Replay in process, callbacks that work", "compiled callback"),
    "blackbox, steady": ("Mean 100,000", "publish(), on(prefix): steady"),
    "pyzmq, queue of 40,000, steady": ("Mean 100,000", "pyzmq send(), recv(), queue of 40,000: steady"),
    "blackbox, bursts": ("Mean 100,000", "publish(), on(prefix): bursts"),
    "pyzmq, queue of 40,000, bursts": ("Mean 100,000", "pyzmq send(), recv(), queue of 40,000: bursts"),
    "pyzmq, its default queue of 1,000, bursts": ("Mean 100,000", "pyzmq send(), recv(), queue of 1,000: bursts"),
}
"""Rows of the README's figures: heading in performance/tables.md and prefixes of row names."""


def test_the_figures_match_the_performance_page() -> None:
    section = README.partition("## Figures\n")[2].partition("\n## ")[0]
    tables = (ROOT / "docs" / "performance" / "tables.md").read_text()
    (date,) = re.findall(r"\d{4}-\d\d-\d\d", section)
    for text in ((ROOT / "docs" / "performance.md").read_text(), tables):
        assert f"Run of {date} " in text
    rows = {name: cells for name, *cells in table_rows(section) if name and any(map(figures, cells))}
    assert rows.keys() == MEASURED.keys()
    for name, cells in rows.items():
        heading, *contenders = MEASURED[name]
        part = tables.partition(f"\n### {heading}")[2].partition("\n### ")[0]
        measured = [
            cell for row, *cells in table_rows(part) if row.strip("*").startswith(tuple(contenders)) for cell in cells
        ]
        assert {figure for cell in cells for figure in figures(cell)} <= {
            figure for cell in measured for figure in figures(cell)
        }, name


def table_rows(text: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]


def figures(cell: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?", cell.replace(",", ""))


def test_every_page_is_linked_from_the_readme() -> None:
    linked = {link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", README)}
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} - linked == set()


def headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as generated by GitHub."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_and_headings_exist(page: Path) -> None:
    links = [link.partition("#") for link in re.findall(r"\]\(([^)]+)\)", page.read_text())]
    assert [path for path, _, _ in links if not (page.parent / path).exists()] == []
    places = [(page.parent / path if path else page, anchor) for path, _, anchor in links if anchor and ":" not in path]
    assert [place for place in places if place[1] not in headings(place[0])] == []


def test_architecture_names_files_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`([a-z_/]+(?:\.py|/))`", text)
    assert len(named) > 40
    assert [name for name in named if not any((ROOT / place / name).exists() for place in ("blackbox", "."))] == []
    rooms = {path.name for path in (ROOT / "blackbox").iterdir() if (path / "__init__.py").exists()}
    assert rooms == {name[:-1] for name in named if name.count("/") == 1 and name.endswith("/")} & rooms


def test_the_list_of_files_is_current() -> None:
    assert PAGE.read_text() == page(), "run `make files`"
