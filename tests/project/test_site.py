"""The site of the docs has every page, command, setting and public member, and needs nothing but its own files."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import blackbox
from blackbox.feed.feed import Feed
from blackbox.feed.monitor import Monitor
from blackbox.feed.security import Security
from blackbox.feed.slice import Slice
from tests.chromium import browser
from tests.project.scripts import ROOT
from tests.project.test_api_page import CLASSES, MODULE_OF, members_of
from tests.project.test_page_snippets import PROGRAM
from tests.write_site import NAVIGATION, Navigation, Page, all_pages

DOCS = ROOT / "docs"
Site = tuple[dict[str, Page], Navigation]


def test_every_page_of_the_docs_is_in_the_navigation_once() -> None:
    named = [name for names in NAVIGATION.values() for name in names if "*" not in name]
    assert len(set(named)) == len(named)
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert pages - set(named) == set(), "add a line to docs/site/navigation.toml"


@pytest.fixture(scope="module")
def site() -> Site:
    return all_pages()


def headings(page: Page) -> list[str]:
    return [each.strip("`") for each in re.findall(r"^#+ (.*)$", page.text, re.MULTILINE)]


def test_each_page_is_listed_once_and_says_what_it_is_about(site: Site) -> None:
    pages, navigation = site
    listed = [name for names in navigation.values() for name in names]
    lists = {name for name in pages if "{toctree}" in pages[name].text}
    assert sorted(listed) == sorted(set(pages) - (lists - set(listed)))
    assert [name for name in listed if not pages[name].title] == []
    assert [name for name in listed if not pages[name].summary and not name.startswith("configs/")] == []


def test_links_between_pages_exist(site: Site) -> None:
    pages, _ = site
    for name, page in pages.items():
        text = re.sub(r"^(`{3,})\w*\n.*?^\1$", "", page.text, flags=re.MULTILINE | re.DOTALL)
        for link in re.findall(r"\]\(([^)#\s]+\.md)", text):
            path = (Path("/") / name).parent / link
            assert str(path.resolve()).lstrip("/") in pages, f"{link} in {name}"


def test_the_command_line_page_has_every_command_and_option(site: Site) -> None:
    text = site[0]["cli.md"].text

    def commands(group: object, name: str) -> Iterator[tuple[str, object]]:
        for word, command in getattr(group, "commands", {}).items():
            yield from list(commands(command, f"{name} {word}")) or [(f"{name} {word}", command)]

    found = dict(commands(PROGRAM, "blackbox"))
    assert len(found) > 30
    assert [each for each in headings(site[0]["cli.md"]) if each.startswith("blackbox ")] != []
    for name, command in found.items():
        part = text.partition(f"\n### `{name}`\n")[2].partition("\n### ")[0]
        options = {option for each in command.params for option in each.opts if option.startswith("--")}  # type: ignore[attr-defined]
        assert options - set(re.findall(r"--[a-z-]+", part)) <= {"--log-level", "--log-format"}, name


def test_the_settings_page_has_every_setting(site: Site) -> None:
    settings = [name for struct in (Feed, Slice, Security, Monitor) for name in struct.__struct_fields__]
    assert sorted(settings) == sorted(each for each in headings(site[0]["settings.md"]) if each in settings)


@pytest.mark.parametrize("name", CLASSES)
def test_the_page_of_a_class_has_every_public_member(site: Site, name: str) -> None:
    found = {each.partition(".")[2] for each in headings(site[0][f"api/{name.lower()}.md"])} - {""}
    assert members_of(name) - found == set()


def test_the_other_public_names_have_a_heading(site: Site) -> None:
    found = {each for name, page in site[0].items() if name.startswith("names/") for each in headings(page)}
    errors = {name for name in vars(blackbox.errors) if name.endswith("Error")}
    assert (set(MODULE_OF) | errors) - found == set()


@pytest.mark.long
def test_the_site_is_built_without_warnings_and_searched_without_a_server(tmp_path: Path) -> None:
    out = tmp_path / "site"
    subprocess.run([sys.executable, "-m", "tests.write_site", out], cwd=ROOT, check=True, timeout=600)
    for page in out.rglob("*.html"):
        assert re.findall(r'(?:src=|<link[^>]*href=)"(?:https?:)?//[^"]*', page.read_text()) == [], page
    assert "[Subscriber](api/subscriber.html): Receive a feed" in (out / "llms.txt").read_text()
    assert "## `Subscriber.replay`" in (out / "llms-full.txt").read_text()
    with browser(tmp_path / "profile") as tab:
        tab.open((out / "search.html").as_uri() + "?q=multicast", width=1_400, height=900, dark=False)
        tab.wait("document.querySelectorAll('ul.search a[href*=\"multicast.html\"]').length > 0")
        assert tab.errors == []
