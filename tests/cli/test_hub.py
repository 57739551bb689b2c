"""`blackbox hub`, `put`, `get`, `subscribe --durable`, `unsubscribe` and `client`."""

from __future__ import annotations

import json
import signal
from base64 import b64decode
from pathlib import Path

import pytest
import zmq

from blackbox import Feed
from blackbox.feed.endpoint import free_endpoints
from tests.cli.commands import Command, invoke
from tests.examples import first_of
from tests.hub.hubs import published

FEED = """
name = "orders"
hub = "{hub}"
archives = ["{archive}"]

[[slices]]
endpoints = ["{line}"]
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a feed file and a hub file."""
    (line,), (archive,), (hub,) = free_endpoints("tcp", "orders", 3, 1)
    (tmp_path / "feed.toml").write_text(FEED.format(line=line, archive=archive, hub=hub))
    (tmp_path / "hub.toml").write_text('feed = "feed.toml"\ndirectory = "kept"\n')
    return tmp_path


def test_put_and_get_while_the_hub_is_killed_and_restarted(place: Path) -> None:
    feed = ["--feed", place / "feed.toml"]
    durable = [*feed, "--positions", place / "positions"]
    with Command("hub", place / "hub.toml") as hub:
        hub.read_error("takes puts at")
        assert invoke("subscribe", "--prefix", "orders.", "--durable", "--name", "desk", *durable).status == 0
        first = invoke("put", "orders.new", "one", "--id", "1", *feed)
        assert first.status == 0, first.errors
        assert first.out.split(":")[0::2] == ["0", "0\n"]
        hub.process.kill()
        hub.process.wait()
    away = invoke("put", "orders.new", "two", "--timeout", "0.2", *feed)
    assert away.status == 1
    assert "did not answer in time" in away.errors
    with Command("hub", place / "hub.toml") as hub:
        hub.read_error("takes puts at")
        assert invoke("put", "orders.new", "one", "--id", "1", "--timeout", "60", *feed).out == first.out
        assert invoke("put", "orders.new", "two", "--synced", "--timeout", "60", *feed).status == 0
        got = invoke(
            "get", "--prefix", "orders.", "--name", "desk", "--count", "2", "--timeout", "60", "--json", *durable
        )
        assert got.status == 0, got.errors
        lines = [json.loads(line) for line in got.out.splitlines()]
        assert [(b64decode(line["payload"]), line["sequence"]) for line in lines] == [(b"one", 0), (b"two", 1)]
        assert first.out == "{slice}:{epoch}:{sequence}\n".format(**lines[0])
        more = invoke("get", "--prefix", "orders.", "--name", "desk", "--timeout", "0.2", *durable)
        assert more.status == 1
        assert "0 messages arrived, expected 1" in more.errors
        assert invoke("unsubscribe", "--prefix", "orders.", "--name", "desk", *durable).status == 0
        assert (
            "had no subscription of prefix" in invoke("get", "--prefix", "orders.", "--name", "desk", *durable).errors
        )
        hub.process.send_signal(signal.SIGTERM)
        assert hub.process.wait(60) == 143
    said = published(place / "kept", Feed.load(place / "feed.toml"))
    assert [each[-1] for each in said] == [b"one", b"two"]


@pytest.mark.long
def test_lines_already_stored_are_skipped(place: Path) -> None:
    with Command("hub", place / "hub.toml") as hub:
        hub.read_error("takes puts at")
        for lines in (range(3), range(10)):
            words = ("put", "orders.new", "-", "--name", "desk", "--feed", place / "feed.toml", "--timeout", "60")
            assert invoke(*words, stdin="".join(f"{number}\n" for number in lines)).status == 0
        hub.process.send_signal(signal.SIGINT)
        assert hub.process.wait(60) == 130
    said = published(place / "kept", Feed.load(place / "feed.toml"))
    assert [each[-1] for each in said] == [b"%d" % number for number in range(10)]


def test_refused_lines_are_reported_and_all_others_stored(place: Path) -> None:
    text = (place / "feed.toml").read_text()
    (place / "feed.toml").write_text(text.replace("[[slices]]", "max_topics = 1\n\n[[slices]]"))
    with Command("hub", place / "hub.toml") as hub:
        hub.read_error("takes puts at")
        told = [
            invoke("put", topic, "-", "--feed", place / "feed.toml", "--timeout", "60", stdin="one\ntwo\n")
            for topic in ("A", "B")
        ]
        hub.process.send_signal(signal.SIGINT)
        assert hub.process.wait(60) == 130
    assert [each.status for each in told] == [0, 1]
    assert "2 messages are stored" in told[0].errors
    assert "0 messages are stored" in told[1].errors
    assert "2 lines are not stored, the first is line 1: topic b'B' was refused: slice 0 had 1 topics" in told[1].errors
    said = published(place / "kept", Feed.load(place / "feed.toml"))
    assert [each[-2:] for each in said] == [(b"A", b"one"), (b"A", b"two")]


@pytest.mark.parametrize(
    ("ends", "status"),
    first_of([(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]),
)
def test_a_client_answers_json_until_it_is_ended(place: Path, ends: signal.Signals, status: int) -> None:
    endpoint = f"ipc://{place / 'desk'}"
    words = ("--name", "desk", "--feed", place / "feed.toml", "--positions", place / "positions")
    with Command("hub", place / "hub.toml") as hub, Command("client", endpoint, *words) as client:
        hub.read_error("takes puts at")
        client.read_error(f"desk answers at {endpoint}")
        with zmq.Context() as context, context.socket(zmq.REQ) as driver:
            driver.linger = 0
            driver.connect(endpoint)
            driver.send(b'{"do": "put", "topic": "orders.new", "payload": "YnV5", "timeout_s": 60}')
            assert driver.poll(60_000)
            assert json.loads(driver.recv())["sequence"] == 0
        ended = client.interrupt(ends)
    assert (ended.status, "Traceback" in ended.errors) == (status, False), ended.errors


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ('feed = "feed.toml"\n', "key 'directory' was missing"),
        ('feed = "feed.toml"\ndirectory = "kept"\nfsink = "block"\n', "unknown key 'fsink', did you mean 'fsync'?"),
        ('feed = "none.toml"\ndirectory = "kept"\n', "none.toml' was not found"),
        ('feed = "feed.toml"\ndirectory = "kept"\nremember_ids = 0\n', "remember_ids was 0"),
        ("feed = ", "is not TOML"),
    ],
)
def test_a_wrong_hub_file_is_one_clear_error(place: Path, file: str, why: str) -> None:
    (place / "hub.toml").write_text(file)
    ended = invoke("hub", place / "hub.toml")
    assert ended.status == 1
    assert why in ended.errors
