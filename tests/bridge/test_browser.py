"""A real browser as a client of the WebSocket bridge: headless Chromium from the distribution."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from blackbox import Feed, Hub, Publisher
from blackbox.feed.endpoint import free_endpoints
from blackbox.testing import wait_until
from tests.chromium import PATIENCE_S, ROOT, browser
from tests.cli.commands import Command, write_feed
from tests.hub.hubs import hub_feed, published

DOCUMENTED: Final = ROOT / "docs" / "bridges.md"

BINARY_PAGE: Final = """<script>
const feed = new WebSocket("%s");
window.said = [];
const say = (answer) => said.push(answer);
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
window.said = [];
const say = (answer) => said.push(answer);
const order = {do: "put", topic: "orders.new", text: "buy 100 \u20ac", id: "o", number: 1};
hub.onopen = () => hub.send(JSON.stringify(order));
hub.onerror = () => say("refused");
hub.onmessage = (event) => {
  const answer = JSON.parse(event.data);
  say([answer.number, answer.slice, answer.sequence]);
};
</script>"""


@contextmanager
def browsing(text: str, directory: Path) -> Iterator[Callable[[Any], None]]:
    """Open a page in a browser; call the result to wait until the page said this."""
    (directory / "page.html").write_text(text)
    with browser(directory / "data") as tab:
        tab.open((directory / "page.html").as_uri(), width=800, height=600, dark=False)
        said = "JSON.stringify(window.said ?? [])"
        yield lambda told: wait_until(
            lambda: told in json.loads(tab.ask(said)), PATIENCE_S, f"{told} in what the page said"
        )


def test_a_browser_reads_the_binary_form_as_documented(tmp_path: Path) -> None:
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
        with browsing(BINARY_PAGE % (url, found[1]), tmp_path) as wait_for:
            wait_for({"subscribed": "AAPL."})
            publisher.publish(b"AAPL.trade", bytes((0, 127, 255)), (1 << 62) + 1)
            publisher.publish("AAPL.€".encode(), None, -(1 << 62) - 1)
            publisher.publish(b"AAPL.empty", b"", 0)
            epoch = str(publisher.epoch)
            wait_for(["AAPL.", "AAPL.trade", [0, 127, 255], str((1 << 62) + 1), epoch, "0", 0])
            wait_for(["AAPL.", "AAPL.€", None, str(-(1 << 62) - 1), epoch, "1", 0])
            wait_for(["AAPL.", "AAPL.empty", [], "0", epoch, "2", 0])


@pytest.mark.long
def test_a_browser_puts_to_a_hub_if_its_page_is_allowed(tmp_path: Path) -> None:
    feed = hub_feed("orders", slices=1)
    url = free_endpoints("tcp", "bridged", 1, 1)[0][0].replace("tcp", "ws")
    words = ("bridge", url, "--in", "--feed", write_feed(feed, tmp_path / "feed.toml"))
    with Hub(feed, tmp_path / "hub"):
        with Command(*words) as bridge:
            bridge.read_error("is carried into feed 'orders'")
            with browsing(PUT_PAGE % url, tmp_path) as wait_for:
                wait_for("refused")
            ended = bridge.interrupt(signal.SIGTERM)
            assert "0 messages put" in ended.errors
        with Command(*words, "-o", "origins=null") as bridge:
            bridge.read_error("is carried into feed 'orders'")
            with browsing(PUT_PAGE % url, tmp_path) as wait_for:
                wait_for([1, 0, 0])
            ended = bridge.interrupt(signal.SIGTERM)
            assert (ended.status, "Traceback" in ended.errors) == (143, False), ended.errors
            assert "1 messages put, 0 requests failed, 0 clients refused" in ended.errors
    assert [payload for *_, payload in published(tmp_path / "hub", feed)] == ["buy 100 €".encode()]
