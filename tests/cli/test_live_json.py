"""`--json` of commands that run until a signal or the end of a feed: one document at the end, on stdout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from blackbox import Feed, Publisher
from blackbox.cli.ui.status import Status
from blackbox.feed.endpoint import free_endpoints
from tests.cli.commands import Command, Ended, Place, invoke, write_feed
from tests.cli.test_hub import FEED
from tests.examples import first_of


def document(ended: Ended, status: int = Status.INTERRUPTED) -> dict[str, Any]:
    """Return the one document that a command printed."""
    assert (ended.status, "Traceback" in ended.errors) == (status, False), ended.errors
    (line,) = ended.out.splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


@pytest.mark.parametrize("command", first_of(["record", "subscribe"]))
def test_totals_of_a_feed(command: str, place: Place, tmp_path: Path) -> None:
    more = ["--out", tmp_path / "out"] if command == "record" else ["--show", 2]
    words = (command, "--feed", place.path, "--until-end", "--json", *more)
    with Publisher(place.feed) as publisher, Command(*words) as running:
        publisher.wait_for_subscribers(b"", 60)
        for number in range(10):
            publisher.publish(b"A.%d" % number, b"x")
        publisher.close()
        found = document(running.end(), Status.OK)
    assert found["statistics"]["received"]["messages"] == 10


def test_totals_of_a_relay(tmp_path: Path) -> None:
    above = msgspec.structs.replace(Feed.local("passed"), heartbeat_ns=50_000_000)
    below = Feed.local("passed")
    up, down = write_feed(above, tmp_path / "up.toml"), write_feed(below, tmp_path / "down.toml")
    with Command("relay", up, down, "--json") as relay:
        relay.read_error("relays feed 'passed'")
        assert len(document(relay.interrupt())["lines"]) == len(above.slices)


def test_totals_of_an_archive(tmp_path: Path) -> None:
    feed = Feed.local("served")
    (tmp_path / "served").mkdir()
    ((endpoint,),) = free_endpoints("tcp", "served", 1, 1)
    words = (tmp_path, "--feed", write_feed(feed, tmp_path / "feed.toml"), "--endpoint", endpoint, "--json")
    with Command("serve", *words) as served:
        served.read_error("serving")
        assert document(served.interrupt())["answered"] == 0


def test_positions_messages_and_totals_of_a_hub(tmp_path: Path) -> None:
    (line,), (archive,), (hub,) = free_endpoints("tcp", "orders", 3, 1)
    (tmp_path / "feed.toml").write_text(FEED.format(line=line, archive=archive, hub=hub))
    (tmp_path / "hub.toml").write_text('feed = "feed.toml"\ndirectory = "kept"\n')
    client = ["--feed", tmp_path / "feed.toml", "--timeout", "60"]
    durable = ["--name", "desk", "--positions", tmp_path / "positions"]
    prefixes = ["--prefix", "A", "--prefix", "B"]
    with Command("hub", tmp_path / "hub.toml", "--json") as running:
        running.read_error("takes puts at")
        assert invoke("subscribe", *prefixes, "--durable", *durable, *client).status == 0
        places = [document(invoke("put", topic, "x", "--json", *client), Status.OK) for topic in ("A.x", "B.x", "C.x")]
        assert [each["sequence"] for each in places] == [0, 1, 2]
        got = invoke("get", *prefixes, "--count", 2, "--json", *durable, *client)
        assert sorted(json.loads(line)["topic"] for line in got.out.splitlines()) == ["A.x", "B.x"]
        symbols = ["--symbol", "A", "--symbol", "B"]
        assert invoke("subscribe", *symbols, "--durable", *durable, *client).status == 0
        document(invoke("put", "B.x", "y", "--json", *client), Status.OK)
        got = invoke("get", *symbols, "--json", *durable, *client)
        assert json.loads(got.out)["topic"] == "B.x"
        assert invoke("unsubscribe", *symbols, *durable, "--feed", tmp_path / "feed.toml").status == 0
        lines = invoke("put", "A", "-", "--json", *client, stdin="one\ntwo\n")
        assert document(lines, Status.OK) == {"stored": 2, "skipped": 0, "refused": 0}
        assert document(running.interrupt())["stored"] == 6
