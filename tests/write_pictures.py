"""Write `docs/pictures`: the page and `top` show a feed whose relay loses messages. `make pictures` runs it."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from blackbox.cli.watch.screen import Top
from blackbox.services.monitor.watch.watch import Watch
from blackbox.services.monitor.watch.watcher import Watcher
from tests.chromium import Page, browser
from tests.monitor.pages import page
from tests.monitor.situations import Situation, situation

PLACE = Path(__file__).resolve().parents[1] / "docs" / "pictures"
_FONT = re.compile(r"@font-face \{.*?\}", re.DOTALL)


def write_top(place: Situation, path: Path, tab: Page, tab_key: str = "2") -> None:
    """Write a picture of `top` at 80 by 24."""

    async def play() -> str:
        with Watcher([place.feed], place.urls) as watcher:
            watch = Watch(watcher)

            def look(_: bool) -> object:
                watch.look()
                return watch.view()

            app = Top(look, every_s=0.5)  # type: ignore[arg-type]
            async with app.run_test(size=(80, 24)) as pilot:
                await pilot.pause(8)
                await pilot.press(tab_key)
                await pilot.pause(1)
                return app.export_screenshot(title="blackbox top")

    drawing = path.with_suffix(".svg")
    drawing.write_text(_FONT.sub("", asyncio.run(play())))  # without fonts from the network
    tab.open(drawing.as_uri(), width=1_000, height=640, dark=False)
    time.sleep(0.5)
    tab.picture(path)
    drawing.unlink()


def write_page(place: Situation, path: Path, tab: Page, symbols: tuple[str, ...], seconds: float) -> None:
    """Write a picture of the page after some seconds."""
    with page(place.feed, urls=place.urls) as served:
        tab.open(served.url, width=1_120, height=800, dark=False)
        tab.wait("document.querySelectorAll('#slices td').length > 0")
        for symbol in symbols:
            tab.ask(
                f"document.querySelector('#choose-symbol').value = '{symbol}';"
                "document.querySelector('#choose').requestSubmit()"
            )
        time.sleep(seconds)
        tab.picture(path)


def main() -> None:
    """Write the pictures."""
    PLACE.mkdir(exist_ok=True)
    with (
        TemporaryDirectory() as directory,
        browser(Path(directory) / "profile") as tab,
        situation("loss above relay", Path(directory) / "feed") as place,
    ):
        write_page(place, PLACE / "dashboard.png", tab, ("AAPL", "MSFT"), 25)
        write_top(place, PLACE / "top.png", tab)


if __name__ == "__main__":
    main()
