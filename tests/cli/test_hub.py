"""`blackbox hub`, `put`, `get`, `subscribe --durable`, `unsubscribe` and `client`."""

from __future__ import annotations

import json
import re
import signal
import time
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
import zmq

from blackbox import Feed, Hub
from blackbox.cli.hub.get import _next, print_message
from blackbox.feed.endpoint import free_endpoints
from tests.cli.commands import Command, invoke, succeed
from tests.hub.hubs import published

FEED = """
name = "orders"
hub = "{hub}"
archives = ["{archive}"]
max_topics = 4

[[slices]]
endpoints = ["{line}"]
"""


def write_files(directory: Path) -> tuple[str, str]:
    """Write a feed file and a hub file; return the endpoints of the slice and of the hub."""
    (line,), (archive,), (hub,) = free_endpoints("tcp", "orders", 3, 1)
    (directory / "feed.toml").write_text(FEED.format(line=line, archive=archive, hub=hub))
    (directory / "hub.toml").write_text('feed = "feed.toml"\ndirectory = "kept"\n')
    return line, hub


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_files(tmp_path)
    return tmp_path


@pytest.mark.long
def test_put_and_get_while_the_hub_is_killed_and_restarted(place: Path) -> None:
    feed = ["--feed", place / "feed.toml"]
    durable = [*feed, "--positions", place / "positions"]
    with Command("hub", place / "hub.toml") as hub:
        hub.read_error("takes puts at")
        succeed("subscribe", "--prefix", "orders.", "--durable", "--name", "desk", *durable)
        first = succeed("put", "orders.new", "one", "--id", "1", "--timeout", "60", *feed)
        assert first.out.split(":")[0::2] == ["0", "0\n"]
        hub.process.kill()
        hub.process.wait()
    away = invoke("put", "orders.new", "two", "--timeout", "0.2", *feed)
    assert away.status == 1
    assert "did not answer in time" in away.errors
    endpoint = f"ipc://{place / 'driven'}"
    with (
        Command("hub", place / "hub.toml") as hub,
        Command("client", endpoint, "--name", "driven", *durable) as client,
    ):
        hub.read_error("takes puts at")
        assert invoke("put", "orders.new", "one", "--id", "1", "--timeout", "60", *feed).out == first.out
        succeed("put", "orders.new", "two", "--synced", "--timeout", "60", *feed)
        names = ("--prefix", "orders.", "--name", "desk")
        got = succeed("get", *names, "--count", "2", "--timeout", "60", "--json", *durable)
        lines = [json.loads(line) for line in got.out.splitlines()]
        assert [(b64decode(line["payload"]), line["sequence"]) for line in lines] == [(b"one", 0), (b"two", 1)]
        assert first.out == "{slice}:{epoch}:{sequence}\n".format(**lines[0])
        more = invoke("get", *names, "--timeout", "0.2", *durable)
        assert more.status == 1
        assert "0 messages arrived, expected 1" in more.errors
        succeed("unsubscribe", *names, *durable)
        assert "had no subscription of prefix" in invoke("get", *names, *durable).errors

        client.read_error(f"driven answers at {endpoint}")
        with zmq.Context() as context, context.socket(zmq.REQ) as driver:
            driver.linger = 0
            driver.connect(endpoint)
            driver.send(b'{"do": "put", "topic": "orders.new", "payload": "YnV5", "timeout_s": 60}')
            assert driver.poll(60_000)
            assert json.loads(driver.recv())["sequence"] == 2
        ended = client.interrupt(signal.SIGTERM)
        assert ended.status == 143, ended.errors
        ended = hub.interrupt(signal.SIGTERM)
        assert ended.status == 143, ended.errors
    stored = published(place / "kept", Feed.load(place / "feed.toml"))
    assert [each[-1] for each in stored] == [b"one", b"two", b"buy"]


def test_a_signal_before_a_message_is_printed_does_not_lose_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = ["--feed", place / "feed.toml"]
    durable = ["--prefix", "A", "--name", "desk", "--positions", place / "positions", *feed]
    signals = [signal.SIGINT]

    def print_after_signal(message: Any, schema: Any) -> None:
        if signals:
            signal.raise_signal(signals.pop())
        print_message(message, schema)

    with Hub(Feed.load(place / "feed.toml"), place / "kept"):
        succeed("subscribe", "--durable", *durable)
        for text in ("one", "two"):
            succeed("put", "A", text, "--timeout", "60", *feed)
        monkeypatch.setattr("blackbox.cli.hub.get.print_message", print_after_signal)
        ended = [invoke("get", *durable, "--count", count, "--timeout", 60) for count in (2, 1)]
    assert [each.status for each in ended] == [130, 0], ended
    assert [re.findall("one|two", each.out) for each in ended] == [["one"], ["two"]]


def test_the_timeout_of_get_is_named_as_a_whole() -> None:
    def take(timeout: float) -> Any:
        time.sleep(timeout)
        raise TimeoutError(f"no message arrived in {timeout} s")

    with pytest.raises(TimeoutError, match=r"^no message arrived in 0\.5 s$"):
        _next(take, 0.5, ())


def test_a_hub_prints_its_totals_and_stores_lines_except_refused_ones(place: Path) -> None:
    client = ["--feed", place / "feed.toml", "--timeout", "60"]
    durable = ["--name", "desk", "--positions", place / "positions"]
    prefixes, symbols = ["--prefix", "A", "--prefix", "B"], ["--symbol", "A", "--symbol", "B"]
    with Command("hub", place / "hub.toml", "--json") as running:
        running.read_error("takes puts at")
        succeed("subscribe", *prefixes, "--durable", *durable, *client)
        puts = [invoke("put", topic, "x", "--json", *client) for topic in ("A.x", "B.x", "C.x")]
        assert [json.loads(put.out)["sequence"] for put in puts] == [0, 1, 2]
        got = invoke("get", *prefixes, "--count", 2, "--json", *durable, *client)
        assert sorted(json.loads(line)["topic"] for line in got.out.splitlines()) == ["A.x", "B.x"]
        succeed("subscribe", *symbols, "--durable", *durable, *client)
        succeed("put", "B.x", "y", *client)
        got = invoke("get", *symbols, "--json", *durable, *client)
        assert json.loads(got.out)["topic"] == "B.x"
        succeed("unsubscribe", *symbols, *durable, "--feed", place / "feed.toml")

        words = ("put", "A", "-", "--name", "lines", "--json", *client)
        for stdin, counts in (("one\n", (1, 0, 0)), ("one\ntwo\nthree\n", (2, 1, 0))):
            ended = succeed(*words, stdin=stdin)
            assert json.loads(ended.out) == dict(zip(("stored", "skipped", "refused"), counts, strict=True))
        refused = invoke("put", "D", "-", *client, stdin="one\ntwo\n")
        assert refused.status == 1
        assert "0 messages are stored" in refused.errors
        why = "2 lines are not stored, the first is line 1: topic b'D' was refused: slice 0 had 4 topics"
        assert why in refused.errors
        ended = running.interrupt()
    assert (ended.status, json.loads(ended.out)["stored"]) == (130, 7), ended.errors
    stored = published(place / "kept", Feed.load(place / "feed.toml"))
    assert [each[-2:] for each in stored][-3:] == [(b"A", b"one"), (b"A", b"two"), (b"A", b"three")]
