"""The site of the docs has every page, and needs nothing but its own files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote
from zipfile import ZipFile

import pytest
from pygments.lexers import get_lexer_by_name

from tests.chromium import browser
from tests.project.scripts import ROOT
from tests.write_site import NAVIGATION, RAW, all_pages

DOCS = ROOT / "docs"


def test_every_page_of_the_docs_is_in_the_navigation_once() -> None:
    named = [name for names in NAVIGATION.values() for name in names if "*" not in name]
    assert len(set(named)) == len(named)
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert pages - set(named) == set(), "add a line to docs/site/navigation.toml"
    written, sections = all_pages()
    listed = [name for names in sections.values() for name in names]
    lists = {name for name in written if "{toctree}" in written[name].text}
    assert sorted(listed) == sorted(set(written) - (lists - set(listed)))
    assert [name for name in listed if not written[name].title] == []
    for page in written.values():
        for language in re.findall(r"^ *`{3,}(\w+)$", page.text, re.MULTILINE):
            get_lexer_by_name(language)  # else the page cannot be built


def test_the_site_has_the_files_that_readers_copy_and_no_link_to_a_repository() -> None:
    written, _ = all_pages()
    assert [name for name, page in written.items() if "://example.org" in page.text] == []
    links = {
        os.path.normpath(Path(name).parent / path)
        for name, page in written.items()
        for path in re.findall(r"\]\(raw:([^)]*)\)", page.text)
    }
    folders = {f"{folder}.zip" for folder in (*RAW, "configs/production", "configs/systemd", "configs/monitoring")}
    shown = {
        each.relative_to(ROOT) for top in ("configs", "examples", "notebooks") for each in (ROOT / top).rglob("*.*")
    }
    assert links == {f"raw/{each}" for each in folders | set(map(str, shown))}


@pytest.mark.long
def test_the_site_is_built_without_warnings_and_searched_without_a_server(tmp_path: Path) -> None:
    out = tmp_path / "site"
    subprocess.run([sys.executable, "-m", "tests.write_site", out], cwd=ROOT, check=True, timeout=600)
    for page in out.rglob("*.html"):
        text = unescape(page.read_text())
        assert re.findall(r'(?:src=|<link[^>]*href=)"(?:https?:)?//[^"]*', text) == [], page
        assert "://example.org" not in text, page
        links = re.findall(r'<a [^>]*href="([^":#]+)["#]', text)
        assert [link for link in links if not (page.parent / unquote(link)).is_file()] == [], page
    names = ZipFile(out / "raw" / "configs" / "production.zip").namelist()
    copied = {f"production/{path.name}" for path in (ROOT / "configs" / "production").iterdir()}
    assert {name for name in names if not name.endswith("/")} == copied
    assert (out / "raw" / "tests" / "relay" / "clients" / "client.c").is_file()
    assert "[Subscriber](api/subscriber.html): Receive a feed" in (out / "llms.txt").read_text()
    assert "## `Subscriber.replay`" in (out / "llms-full.txt").read_text()
    with browser(tmp_path / "profile") as tab:
        tab.open((out / "search.html").as_uri() + "?q=multicast", width=1_400, height=900, dark=False)
        tab.wait("document.querySelectorAll('ul.search a[href*=\"multicast.html\"]').length > 0")
        assert tab.errors == []
