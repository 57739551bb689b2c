"""Headless browser in its own process: `python browser.py < job.json`.

It is Chromium from QtWebEngine, installed by pip (PySide6-WebEngine). The job is `{"page", "width", "dark", "picture",
"ask"}`: an HTML file, the window width, the colour scheme, the path of the screenshot, and a JavaScript function.
Prints the function's result and the page's console messages as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from PySide6.QtCore import QTimer, QUrl
from PySide6.QtGui import QImage
from PySide6.QtWebEngineCore import QWebEnginePage
from PySide6.QtWebEngineWidgets import QWebEngineView
from PySide6.QtWidgets import QApplication

_MOST_S = 60
_FIRST_HEIGHT = 900
_POLL_MS = 30
_STILL_MS = 400
_HEIGHT = "document.documentElement.scrollHeight"
_DARK = "matchMedia('(prefers-color-scheme: dark)').matches"


class Page(QWebEnginePage):  # type: ignore[misc]  # PySide6 is optional
    """A page that keeps its console messages."""

    def __init__(self) -> None:
        super().__init__()
        self.console: list[str] = []

    def javaScriptConsoleMessage(self, level: Any, message: str, line: int, source: str) -> None:  # noqa: N802
        self.console.append(f"{level.name} {source}:{line}: {message}")


class Visit:
    """Loads the page, resizes to its full height, calls the function, saves a stable screenshot and exits."""

    def __init__(self, job: dict[str, Any], app: QApplication) -> None:
        self._job, self._app = job, app
        self._page = Page()
        self._view = QWebEngineView()
        self._view.setPage(self._page)
        self._view.resize(job["width"], _FIRST_HEIGHT)
        self._before = QImage()
        self._told: dict[str, Any] = {}
        self._page.loadFinished.connect(self._loaded)
        self._view.show()
        self._page.load(QUrl.fromLocalFile(job["page"]))

    def _loaded(self, good: bool) -> None:
        if not good:
            print(f"{self._job['page']} was not loaded", file=sys.stderr)
            self._app.exit(1)
        self._page.runJavaScript(_HEIGHT, self._grow)

    def _grow(self, height: float) -> None:
        self._view.resize(self._job["width"], int(height))
        self._wait(height)

    def _wait(self, height: float, inner: float = 0) -> None:
        if inner != height:
            later = lambda: self._page.runJavaScript("window.innerHeight", lambda now: self._wait(height, now))  # noqa: E731
            QTimer.singleShot(_POLL_MS, later)
            return
        self._page.runJavaScript(f"JSON.stringify([({self._job['ask']})(), {_DARK}])", self._answered)

    def _answered(self, text: str) -> None:
        told, dark = json.loads(text)
        self._told = {"told": told, "dark": dark}
        self._take()

    def _take(self) -> None:
        picture = self._view.grab().toImage()
        if picture != self._before:
            self._before = picture
            QTimer.singleShot(_STILL_MS, self._take)
            return
        picture.save(self._job["picture"])
        print(json.dumps({**self._told, "console": self._page.console}))
        self._app.exit(0)


def main() -> int:
    job = json.load(sys.stdin)
    flags = [
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        f"--blink-settings=preferredColorScheme={int(not job['dark'])}",
    ]
    os.environ["QTWEBENGINE_CHROMIUM_FLAGS"] = " ".join(flags)
    os.environ["QT_QPA_PLATFORM"] = "offscreen"
    app = QApplication([Path(__file__).name])
    visit = Visit(job, app)
    QTimer.singleShot(1_000 * _MOST_S, lambda: app.exit(2))
    code: int = app.exec()
    del visit
    return code


if __name__ == "__main__":
    sys.exit(main())
