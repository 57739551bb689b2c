"""The page in a real browser: three staged situations, on a desktop and a phone, light and dark."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chromium import browser
from tests.monitor.pages import page
from tests.monitor.situations import Trouble, situation

pytestmark = pytest.mark.long
SIZES = {"desktop": (1_280, 900), "phone": (390, 844)}


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("slow callback", "wait for callbacks"),
        ("loss above relay", "lost above relay 'london'"),
        ("dead archive", "has not answered for"),
    ],
)
def test_the_page_names_what_is_wrong(trouble: Trouble, said: str, tmp_path: Path) -> None:
    with (
        situation(trouble, tmp_path / "feed") as (feed, urls),
        page(feed, urls=urls) as served,
        browser(tmp_path / "profile") as tab,
    ):
        for name, (width, height) in SIZES.items():
            for dark in (False, True):
                tab.open(served.url, width=width, height=height, dark=dark, is_phone=name == "phone")
                tab.wait(f"document.querySelector('#conditions')?.innerText.includes({said!r})")
                assert trouble in tab.ask("document.querySelector('#conditions').innerText")
                assert tab.ask("document.documentElement.scrollWidth <= innerWidth")
                assert tab.ask("matchMedia('(prefers-color-scheme: dark)').matches") is dark
                tab.ask("document.querySelector('#choose-symbol').value = 'AAPL'")
                tab.picture(tmp_path / f"{name}-{dark}.png")
                assert (tmp_path / f"{name}-{dark}.png").stat().st_size > 20_000
        rows = tab.ask("[...document.querySelectorAll('#processes tr')].map((row) => row.cells[0].innerText.trim())")
        assert [row.split()[0] for row in rows[1:]] == ["publisher", "relay", "archive", "subscriber", "subscriber"]
        assert tab.errors == []


def test_a_symbol_is_shown_and_texts_of_others_are_no_markup(tmp_path: Path) -> None:
    with (
        situation("none", tmp_path / "feed") as (feed, urls),
        page(feed, urls=urls) as served,
        browser(tmp_path / "profile") as tab,
    ):
        tab.open(served.url, width=1_280, height=900, dark=False)
        tab.wait("document.querySelectorAll('#slices td').length > 0")
        symbol = tab.ask("'<img src=x onerror=document.title=\"bad\">'")
        for name in ("AAPL", symbol):
            tab.ask(
                f"document.querySelector('#choose-symbol').value = {name!r};"
                "document.querySelector('#choose').requestSubmit()"
            )
        tab.wait("document.querySelectorAll('.instrument').length === 2")
        assert tab.ask("document.querySelectorAll('.instrument img').length") == 0
        tab.ask("document.querySelector('.instrument .remove').click()")
        tab.wait("document.querySelectorAll('.instrument').length === 1")
        assert tab.ask("document.title") == "blackbox"
        tab.ask(
            "window.sent = []; const send = WebSocket.prototype.send;"
            "WebSocket.prototype.send = function (text) { sent.push([this, JSON.parse(text)]); send.call(this, text); }"
        )
        tab.ask(
            "document.querySelector('#choose-symbol').value = 'MSFT'; document.querySelector('#choose').requestSubmit()"
        )
        tab.wait("document.querySelectorAll('.instrument').length === 2")
        tab.ask("document.querySelector('.instrument .remove').click()")
        tab.wait("document.querySelectorAll('.instrument').length === 1")
        tab.ask("const [[lost]] = sent; sent.length = 0; lost.close()")
        tab.wait("sent.length > 0")  # once connected again, it asks for what was shown, and nothing else
        assert tab.ask("sent.map(([, asked]) => asked.symbol)") == ["MSFT"]
        assert tab.errors == []
