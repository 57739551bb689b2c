"""`blackbox replay`: its messages, its controls, and its end."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import msgspec
import pytest

from blackbox import Feed, Recording, Subscriber
from blackbox.replay.control_socket import GetStatus, Stop, ask
from blackbox.testing import Collector
from tests.cli.commands import Command, Screen, assert_one_line, beside, invoke, succeed, write_feed
from tests.journals import Day, Put, Row
from tests.keyring import Keyring

S = 1_000_000_000
START = 1_763_650_800 * S  # 2025-11-20 15:00 UTC


@pytest.fixture
def feed() -> Feed:
    return Feed.local("cli", slices=2)


def write_days(path: Path, feed: Feed, days: int = 1, seconds: int = 10) -> list[Day]:
    written = []
    topics = [
        next(b"%c.x" % letter for letter in range(65, 91) if feed.slice_of(b"%c.x" % letter) == n) for n in (0, 1)
    ]
    for number in range(days):
        day = Day(path / f"2025-11-{20 + number}", feed, date=f"2025-11-{20 + number}")
        for slice_id, topic in enumerate(topics):
            begin = START + 86_400 * S * number
            times = [begin + i * S for i in range(seconds)]
            day.put(
                slice_id,
                *(Put((Row(topic, b"%d" % i, at),), i, ts_out=at, epoch=number + 1) for i, at in enumerate(times)),
            )
        written.append(day)
    return written


def collected(feed: Feed) -> tuple[Subscriber, Collector]:
    collector = Collector()
    subscriber = Subscriber(feed)
    subscriber.on(b"")(collector.message)
    return subscriber, collector


def replay(feed: Feed, *words: object) -> tuple[str, Collector]:
    """Replay to a subscriber; return the output and the messages."""
    subscriber, collector = collected(feed)
    with beside(lambda: subscriber.run(until_end=True, timeout=200)):
        ended = succeed("replay", *words, "--timeout", 200)
    return ended.out, collector


def test_a_feeds_directory_is_replayed_with_all_its_days(tmp_path: Path, feed: Feed) -> None:
    write_days(tmp_path, feed, days=2)
    out, collector = replay(feed, tmp_path)
    assert len(collector) == 40
    assert re.search(r"replayed 40 messages in .*s: .*/s, [\d,]+ times the market's pace", out), out


def test_on_another_feed_cut_paced_and_looped(tmp_path: Path, feed: Feed) -> None:
    write_days(tmp_path, msgspec.structs.replace(feed, name="recorded"))
    other = write_feed(feed, tmp_path / "feed.toml")
    options = ("--feed", other, "--start", "15:00:02", "--stop", "15:00:06", "--speed", "100", "--loop", "2")
    out, collector = replay(feed, tmp_path / "2025-11-20", *options)
    assert sorted(m.payload for m in collector.messages) == sorted([b"2", b"3", b"4", b"5"] * 4)
    assert "replayed 16 messages" in out


def test_exactly_the_symbols_are_replayed(tmp_path: Path, feed: Feed) -> None:
    day = Day(tmp_path / "2025-11-20", feed, date="2025-11-20")
    topics = [b"AAPL.x", b"AAPLW.x", b"BRK.B.x", b"BRK.x", b"AAPL.y.x", b"AAPL"]
    for slice_id in range(2):
        mine = [topic for topic in topics if feed.slice_of(topic) == slice_id]
        day.put(slice_id, *(Put((Row(topic, topic, START + i),), i, ts_out=START + i) for i, topic in enumerate(mine)))
    _, collector = replay(feed, tmp_path, "--symbol", "AAPL", "--symbol", "BRK.B")
    assert sorted(message.topic for message in collector.messages) == [b"AAPL", b"AAPL.x", b"BRK.B.x"]


def test_it_is_stopped_by_the_control_socket(tmp_path: Path, feed: Feed) -> None:
    write_days(tmp_path, feed)
    endpoint = f"ipc://{tmp_path / 'control'}"
    subscriber, collector = collected(feed)

    def stop() -> None:
        with subscriber.start(200):
            collector.wait(2)
            assert ask(endpoint, GetStatus()).state == "playing"
            ask(endpoint, Stop())

    with beside(stop):
        ended = succeed("replay", tmp_path, "--speed", "0.001", "--control", endpoint, "--timeout", 200)
    assert "replayed 2 messages" in ended.out


def test_keys_control_it_in_a_terminal_until_sigterm(tmp_path: Path, feed: Feed, screen: Screen) -> None:
    write_days(tmp_path, feed)
    subscriber, collector = collected(feed)
    with Command("replay", tmp_path, "--speed", "0.001", stdin=screen.program) as command, subscriber.start(200):
        collector.wait(2, 200)
        screen.type(b"s")
        collector.wait(3)
        ended = command.interrupt(signal.SIGTERM)
    assert ended.status == 143, ended.errors
    assert "replayed 3 messages" in ended.out


def test_it_waits_for_subscribers_unless_for_0(tmp_path: Path, feed: Feed) -> None:
    write_days(tmp_path, feed)
    ended = invoke("replay", tmp_path, "--timeout", "0.1")
    assert_one_line(ended, "too few subscribers")
    succeed("replay", tmp_path, "--wait-for", "0", "--when-full", "drop")


def test_a_day_of_an_encrypted_feed_is_published_in_the_clear_only_on_request(tmp_path: Path, feed: Feed) -> None:
    secured = Keyring(tmp_path, "publisher").feed(feed, "publisher")
    columns = {"topic": [b"A.x"], "ts_event": [START], "payload": [b"1"]}
    day = Recording.create(tmp_path / "days", secured, columns)
    assert day.encrypted
    ended = invoke("replay", day.path)
    assert_one_line(ended, r"is of a feed with \[security\], and recordings do not keep keys: give its feed file")
    clear = write_feed(feed, tmp_path / "feed.toml")
    succeed("replay", day.path, "--feed", clear, "--wait-for", "0", "--when-full", "drop")
