"""A real browser as a client of the WebSocket bridge: headless Chromium from the distribution."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from blackbox import Feed, Publisher
from blackbox.feed.endpoint import free_endpoints
from blackbox.testing import wait_until
from tests.chromium import PATIENCE_S, ROOT, browser
from tests.cli.commands import Command, write_feed

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
