"""The package of `docs/own-format.md` is built and installed as on the page, and its commands run."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import hatchling.build
import pytest

from blackbox import Feed, Recording, Subscriber
from blackbox.cli.ui.status import Status
from blackbox.feed.endpoint import free_endpoints
from blackbox.feed.schema.schema import load_schema, schema_of
from tests.cli.commands import beside, invoke, succeed
from tests.patience import MAX_LAG_NS, PATIENCE_S
from tests.project.scripts import ROOT
from tests.project.test_page_snippets import PAGES, run, snippets


@pytest.fixture
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the page's package; make its feed file, on a free port."""
    module, _publish, _bars, source = snippets("own-format.md")
    feed, project = snippets("own-format.md", "toml")
    (tmp_path / "ticks.py").write_text(module + source)
    (tmp_path / "pyproject.toml").write_text(project)
    (tmp_path / "ticks.toml").write_text(feed)
    monkeypatch.chdir(tmp_path)
    wheel = hatchling.build.build_wheel(str(tmp_path))
    ZipFile(wheel).extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    ((endpoint,),) = free_endpoints("tcp", "ticks", 1, 1)
    monkeypatch.setenv("BLACKBOX_FEED_SLICES_0_ENDPOINTS", endpoint)
    monkeypatch.setenv("BLACKBOX_FEED_MAX_LAG_NS", str(MAX_LAG_NS))
    schema_of.cache_clear()
    yield
    schema_of.cache_clear()
    sys.modules.pop("ticks", None)


def command_of(page: str, beginning: str) -> list[str]:
    (line,) = re.findall(rf"^ {{4}}blackbox ({beginning}.*)$", (ROOT / "docs" / page).read_text(), re.MULTILINE)
    return shlex.split(line)


@pytest.mark.usefixtures("_installed")
def test_the_source_of_the_page_publishes_a_file_once_it_is_installed() -> None:
    Path("trades.csv").write_text("ts_event,symbol,price,size\n2026-01-05T14:30:00Z,AAPL,189.98,100\n")
    subscriber = Subscriber(Feed.load("ticks.toml"))
    received: list[tuple[bytes, float]] = []
    subscriber.on(b"", fields=("topic", "price"), prices="float")(lambda topic, price: received.append((topic, price)))
    with beside(lambda: subscriber.run(until_end=True, timeout=PATIENCE_S)):
        succeed(*command_of("own-format.md", "publish "), "--timeout", PATIENCE_S)
    assert received == [(b"AAPL.trade", 189.98)]


@pytest.mark.usefixtures("_installed")
def test_a_file_is_imported_by_the_command_of_the_other_page(capsys: pytest.CaptureFixture[str]) -> None:
    first, *_ = snippets("data-in-and-out.md")
    run(first, {})  # writes ticks.csv
    rejected = capsys.readouterr().out.partition("row 3: ")[2].strip()
    ended = invoke(*command_of("data-in-and-out.md", "import csv:"))
    assert ended.status == Status.LOST
    assert rejected in " ".join(ended.errors.split())
    trades = Recording.open("recordings/ticks/2026-01-05").trades.to_arrow(prices="float")
    assert trades.select(["symbol", "price"]).to_pylist() == [
        {"symbol": "AAPL", "price": 189.98},
        {"symbol": "MSFT", "price": 421.0},
        {"symbol": "AAPL", "price": 190.02},
    ]


@pytest.mark.usefixtures("_installed")
def test_schemas_of_pages_and_examples_can_be_used_together() -> None:
    texts = [path.read_text() for path in [*PAGES, *(ROOT / "examples").glob("*.py")]]
    pattern = r'\bSchema\(\s*"(\w+)",\s*(?:schema_id=)?([\d_]+)'
    schemas = {found for text in texts for found in re.findall(pattern, text)}
    assert len(schemas) > 4
    names, numbers = zip(*schemas, strict=True)
    assert len(set(names)) == len(set(numbers)) == len(schemas)
    assert (load_schema("ticks").schema_id, schema_of(1_000).name) == (1_000, "ticks")
