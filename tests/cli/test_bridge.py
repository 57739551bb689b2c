"""`blackbox bridge`."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
from websockets.sync.client import connect

from blackbox import Feed, Publisher
from blackbox.feed.endpoint import free_endpoints
from tests.cli.commands import Command, assert_one_line, invoke, write_feed


def test_a_feed_is_served_until_sigterm(tmp_path: Path) -> None:
    feed = Feed.local("bridged", slices=1)
    url = free_endpoints("tcp", "bridged", 1, 1)[0][0].replace("tcp", "ws")
    words = ("bridge", url, "--feed", write_feed(feed, tmp_path / "feed.toml"))
    with Publisher(feed) as publisher, Command(*words) as bridge:
        bridge.read_error(f"is served at {url}")
        with connect(url) as client:
            client.send('{"do": "subscribe", "prefix": "A"}')
            assert json.loads(client.recv(60)) == {"subscribed": "A"}
            publisher.publish(b"A", b"x")
            assert json.loads(client.recv(60))["messages"][0]["payload"] == "eA=="
        ended = bridge.interrupt(signal.SIGTERM)
    assert (ended.status, "Traceback" in ended.errors) == (143, False), ended.errors
    assert "1 messages sent, 0 passed over, 0 clients refused" in ended.errors


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080", "ws://127.0.0.1", "127.0.0.1:8080", "ws://127.0.0.1:99999"])
def test_a_wrong_url_is_one_clear_error(tmp_path: Path, url: str) -> None:
    file = write_feed(Feed.local("bridged", slices=1), tmp_path / "feed.toml")
    assert_one_line(invoke("bridge", url, "--feed", file), re.escape(f"URL was {url!r}, expected ws://HOST:PORT"))
