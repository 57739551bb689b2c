"""`blackbox bridge`."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest
import redis
from websockets.sync.client import connect

from bench.rivals.servers import Missing, redis_server
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


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080", "ws://127.0.0.1", "ws://127.0.0.1:99999"])
def test_a_wrong_url_is_one_clear_error(tmp_path: Path, url: str) -> None:
    file = write_feed(Feed.local("bridged", slices=1), tmp_path / "feed.toml")
    assert_one_line(invoke("bridge", url, "--feed", file), re.escape(f"URL was {url!r}, expected ws://HOST:PORT"))


def test_a_setting_of_the_other_kind_is_one_clear_error(tmp_path: Path) -> None:
    file = write_feed(Feed.local("bridged", slices=1), tmp_path / "feed.toml")
    told = invoke("bridge", "ws://127.0.0.1:0", "--keep", "5", "--feed", file)
    assert_one_line(told, "--keep was 5, expected none with ws://127.0.0.1:0")
    told = invoke("bridge", "redis://127.0.0.1:1", "--limit", "5", "--feed", file)
    assert_one_line(told, "--limit was 5, expected none with redis://127.0.0.1:1")


def test_a_feed_is_carried_to_redis_until_ctrl_c(tmp_path: Path) -> None:
    feed = Feed.local("bridged", slices=1)
    try:
        server = redis_server()
    except Missing as why:
        pytest.skip(str(why))
    words = ("A", "--feed", write_feed(feed, tmp_path / "feed.toml"))
    with server, Publisher(feed) as publisher, Command("bridge", server.url, *words) as bridge:
        bridge.read_error(f"is carried to {server.url}")
        publisher.publish(b"A", b"x")
        with redis.Redis(port=server.port, protocol=2) as there:
            assert there.xread({"bridged:0": "0"}, block=60_000)[0][1][0][1][b"payload"] == b"x"
        ended = bridge.interrupt()
    assert (ended.status, "Traceback" in ended.errors) == (130, False), ended.errors
    assert "1 messages added, 0 known before, 0 missing" in ended.errors
