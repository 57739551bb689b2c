"""A real browser as a client of the WebSocket bridge: headless Chromium from the distribution."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from blackbox import Feed, Hub, Publisher
from blackbox.feed.endpoint import free_endpoints
from blackbox.testing import wait_until
from tests.cli.commands import Command, write_feed
from tests.hub.hubs import hub_feed, published

ROOT: Final = Path(__file__).resolve().parents[2]
SERVERS: Final = ROOT / ".servers" / "usr" / "lib"
DOCUMENTED: Final = ROOT / "docs" / "bridges.md"
PATIENCE_S: Final = 60.0

BINARY_PAGE: Final = """<script>
const feed = new WebSocket("%s");
const say = (answer) => console.log(JSON.stringify(answer));
feed.binaryType = "arraybuffer";
feed.onopen = () => feed.send(JSON.stringify({do: "subscribe", prefix: "AAPL.", binary: true}));
feed.onmessage = (event) => {
  if (typeof event.data === "string") return say(JSON.parse(event.data));
  for (const each of messagesOf(event.data)) say([
    each.prefix, each.topic, each.payload && Array.from(each.payload),
    String(each.ts_event), String(each.epoch), String(each.sequence), each.slice]);
};
%s
</script>"""

PUT_PAGE: Final = """<script>
const hub = new WebSocket("%s");
const say = (answer) => console.log(JSON.stringify(answer));
const order = {do: "put", topic: "orders.new", text: "buy 100 \u20ac", id: "o", number: 1};
hub.onopen = () => hub.send(JSON.stringify(order));
hub.onerror = () => say("refused");
hub.onmessage = (event) => {
  const answer = JSON.parse(event.data);
  say([answer.number, answer.slice, answer.sequence]);
};
</script>"""


@pytest.fixture(scope="module")
def program() -> Path:
    found = shutil.which("chromium-headless-shell")
    for place in (SERVERS / "chromium" / "chromium-headless-shell", Path(found or "/none")):
        if place.exists():
            return place
    pytest.skip("no browser found: `make servers` (Debian), or apt install chromium-headless-shell")


class Browser:
    """An open page; `said` is its console output."""

    def __init__(self, program: Path, page: Path, data: Path) -> None:
        self.said: list[Any] = []
        libraries = SERVERS / "x86_64-linux-gnu"
        self._process = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL", program, "--no-sandbox", "--disable-gpu"),
                *("--enable-logging=stderr", f"--user-data-dir={data}"),
                *("--remote-debugging-port=0", page.as_uri()),  # the port keeps it running
            ],
            env=os.environ | {"LD_LIBRARY_PATH": f"{libraries}:{libraries}/pulseaudio"},
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if found := re.search(r'CONSOLE.*?\] "(.*)", source:', line):
                self.said.append(json.loads(found[1]))

    def wait(self, told: Any) -> None:
        wait_until(lambda: told in self.said, PATIENCE_S, f"{told} in what the page said")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()


@contextmanager
def browsing(program: Path, text: str, directory: Path) -> Iterator[Browser]:
    page = directory / "page.html"
    page.write_text(text)
    browser = Browser(program, page, directory / "data")
    try:
        yield browser
    finally:
        browser.close()


def test_a_browser_reads_the_binary_form_as_documented(program: Path, tmp_path: Path) -> None:
    """With the documented function: 64-bit numbers are exact, payloads are bytes."""
    feed = Feed.local("bridged", slices=1)
    url = free_endpoints("tcp", "bridged", 1, 1)[0][0].replace("tcp", "ws")
    found = re.search(r"```js\n(function\* messagesOf.*?)```", DOCUMENTED.read_text(), re.DOTALL)
    assert found is not None
    with (
        Publisher(feed) as publisher,
        Command("bridge", url, "--feed", write_feed(feed, tmp_path / "feed.toml")) as bridge,
    ):
        bridge.read_error("is served at")
        with browsing(program, BINARY_PAGE % (url, found[1]), tmp_path) as browser:
            browser.wait({"subscribed": "AAPL."})
            publisher.publish(b"AAPL.trade", bytes((0, 127, 255)), (1 << 62) + 1)
            publisher.publish("AAPL.€".encode(), None, -(1 << 62) - 1)
            publisher.publish(b"AAPL.empty", b"", 0)
            epoch = str(publisher.epoch)
            browser.wait(["AAPL.", "AAPL.trade", [0, 127, 255], str((1 << 62) + 1), epoch, "0", 0])
            browser.wait(["AAPL.", "AAPL.€", None, str(-(1 << 62) - 1), epoch, "1", 0])
            browser.wait(["AAPL.", "AAPL.empty", [], "0", epoch, "2", 0])


def test_a_browser_puts_to_a_hub_if_its_page_is_allowed(program: Path, tmp_path: Path) -> None:
    feed = hub_feed("orders", slices=1)
    url = free_endpoints("tcp", "bridged", 1, 1)[0][0].replace("tcp", "ws")
    words = ("bridge", url, "--in", "--feed", write_feed(feed, tmp_path / "feed.toml"))
    with Hub(feed, tmp_path / "hub"):
        with Command(*words) as bridge:
            bridge.read_error("is carried into feed 'orders'")
            with browsing(program, PUT_PAGE % url, tmp_path) as browser:
                browser.wait("refused")
            ended = bridge.interrupt(signal.SIGTERM)
            assert "0 messages put" in ended.errors
        with Command(*words, "-o", "origins=null") as bridge:
            bridge.read_error("is carried into feed 'orders'")
            with browsing(program, PUT_PAGE % url, tmp_path) as browser:
                browser.wait([1, 0, 0])
            ended = bridge.interrupt(signal.SIGTERM)
            assert (ended.status, "Traceback" in ended.errors) == (143, False), ended.errors
            assert "1 messages put, 0 requests failed, 0 clients refused" in ended.errors
    assert [payload for *_, payload in published(tmp_path / "hub", feed)] == ["buy 100 €".encode()]
