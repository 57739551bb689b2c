"""A real browser for tests: headless Chromium of `make servers`, controlled by its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from websockets.sync.client import ClientConnection, connect

from blackbox.testing import wait_until

ROOT: Final = Path(__file__).resolve().parents[1]
SERVERS: Final = ROOT / ".servers" / "usr" / "lib"
PATIENCE_S: Final = 60.0
_MOST_BYTES: Final = 64 << 20


def find_program() -> Path | None:
    """Return the path of the browser, or None."""
    found = shutil.which("chromium-headless-shell")
    places = (SERVERS / "chromium" / "chromium-headless-shell", Path(found or "/none"))
    return next((place for place in places if place.exists()), None)


class Page:
    """One open page."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection, self._number = connection, 0
        self.errors: list[str] = []
        """Errors of the page's scripts and of its requests."""
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol and return its result."""
        self._number += 1
        self._connection.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._connection.recv(PATIENCE_S))
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        if event["method"] == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(event["params"]["exceptionDetails"])[:500])
        if event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.errors.append(event["params"]["entry"]["text"])

    def open(self, url: str, *, width: int, height: int, dark: bool, is_phone: bool = False) -> None:
        """Open a page in a window of a size, light or dark."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_phone
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)

    def ask(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, expression: str) -> None:
        """Wait until a JavaScript expression is true."""
        wait_until(lambda: self.ask(expression), PATIENCE_S, expression)

    def picture(self, path: Path) -> None:
        """Save a PNG of the whole page."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def browser(data: Path) -> Iterator[Page]:
    """Start the browser with an empty page, or skip the test. `data`: directory for its profile."""
    program = find_program()
    if program is None:
        pytest.skip("no browser found: `make servers` (Debian), or apt install chromium-headless-shell")
    libraries = SERVERS / "x86_64-linux-gnu"
    process = subprocess.Popen(
        [
            *("setpriv", "--pdeathsig", "KILL", program, "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *(f"--user-data-dir={data}", "--remote-debugging-port=0", "about:blank"),
        ],
        env=os.environ | {"LD_LIBRARY_PATH": f"{libraries}:{libraries}/pulseaudio"},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        port = next(found[1] for line in process.stderr if (found := re.search(r"ws://127.0.0.1:(\d+)/", line)))
        pages: list[dict[str, str]] = []

        def has_page() -> bool:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=PATIENCE_S) as answer:
                pages[:] = [each for each in json.load(answer) if each["type"] == "page"]
            return bool(pages)

        wait_until(has_page, PATIENCE_S, "the browser's page")
        with connect(pages[0]["webSocketDebuggerUrl"], max_size=_MOST_BYTES, compression=None) as connection:
            yield Page(connection)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
