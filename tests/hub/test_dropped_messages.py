"""Messages that a hub drops from past days: beyond the bound of a topic, or of topics that no durable client wants."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import numpy
import pytest

from blackbox import Feed, Hub, HubClient, Message, Recording, Subscriber
from blackbox.archive.consumer_positions import PositionFile
from blackbox.archive.files.day import exchange_directories
from blackbox.archive.files.dropped import Dropped
from blackbox.archive.maintain import deleter
from blackbox.archive.maintain.drop import Dropper
from blackbox.archive.maintain.retention import Retention
from blackbox.block.position import Position
from blackbox.services.hub.client.durable_subscription import Subscription
from blackbox.services.hub.pair.entries import Entries, TooFarBehindError
from blackbox.testing import wait_until
from tests.archive.test_retention import move_today
from tests.hub.hubs import hub_feed, leave
from tests.hub.test_retention import held

COUNT = 10


def put_old(feed: Feed, place: Path, topics: tuple[bytes, ...], ago: int) -> tuple[Path, int]:
    """Put messages of each topic in turn on a past day; return the day and its epoch."""
    with Hub(feed, place / "hub") as hub, HubClient(feed) as client:
        for number in range(COUNT):
            for topic in topics:
                client.put(topic, b"%d" % number)
        epoch = hub.epoch
    return move_today(place / "hub", feed, ago), epoch


def kept(day: Path) -> dict[bytes, list[int]]:
    """Return the messages of each topic in a day that has gaps but no damage."""
    found: dict[bytes, list[int]] = {}
    recording = Recording.open(day)
    assert recording.examine().damage == []
    for batch in recording.batches():
        for message in batch:
            found.setdefault(message.topic, []).append(int(message.payload))
    return found


@contextmanager
def dropping(feed: Feed, place: Path, last: Path, **bounds: object) -> Iterator[Hub]:
    """Run a hub that has already dropped messages from all past days up to `last`."""
    with Hub(feed, place / "hub", retention=Retention(**bounds)) as hub:  # type: ignore[arg-type]
        wait_until(lambda: Dropped.read(place / "hub" / feed.name).through == last.name)
        yield hub


def begin_at(place: Path, feed: Feed, prefix: bytes, position: Position) -> None:
    """Make a durable client's subscription begin at a position."""
    (place / "reader").mkdir()
    PositionFile(place / "reader", Subscription("prefix", prefix).consumer("reader")).keep(feed.name, {0: position})


def read(feed: Feed, place: Path, prefix: bytes, epoch: int) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the messages since the beginning of an epoch, up to -1, and the gaps as sequence and count."""
    got, gaps, done = list[int](), list[tuple[int, int]](), threading.Event()
    subscriber = Subscriber(feed, on_gap="repair", repair_wait=60)
    subscriber.on_gap(prefix)(lambda gap: gaps.append((gap.sequence, gap.count)))

    @subscriber.on(prefix)
    def note(message: Message) -> None:
        got.append(int(message.payload or b""))
        if got[-1] < 0:
            done.set()

    subscriber.start(since={0: Position(epoch, 0)})
    assert done.wait(200)
    subscriber.stop()
    return got[:-1], gaps


def test_only_the_newest_messages_of_each_topic_stay(tmp_path: Path) -> None:
    feed = hub_feed(slices=1, key_bytes=1)
    older, epoch = put_old(feed, tmp_path, (b"A", b"B"), 6)
    newer, _ = put_old(feed, tmp_path, (b"A", b"C"), 5)
    with dropping(feed, tmp_path, newer, messages_per_topic=COUNT + 3), HubClient(feed) as client:
        client.put(b"A", b"-1")
        client.put(b"B", b"-1")
        assert read(feed, tmp_path, b"B", epoch) == (list(range(COUNT)), [])
        got, gaps = read(feed, tmp_path, b"A", epoch)
        assert got == [*range(COUNT - 3, COUNT), *range(COUNT)]
        assert sum(count for _, count in gaps) == COUNT - 3
    assert kept(newer) == {b"A": list(range(COUNT)), b"C": list(range(COUNT))}
    assert kept(older) == {b"A": list(range(COUNT - 3, COUNT)), b"B": list(range(COUNT))}


def test_topics_that_no_durable_client_wants_are_dropped(tmp_path: Path, feed: Feed) -> None:
    """The last message of a file is kept, because it marks the end of the file."""
    with (
        Hub(feed, tmp_path / "hub", retention=Retention(only_wanted=True)),
        HubClient(feed, "reader", tmp_path / "reader") as client,
    ):
        client.subscribe([b"A", b"S."])
        client.subscribe(symbols=["T"])
        client.put(b"A", b"0")
        wait_until(lambda: len(held(feed, tmp_path)) == 3)
    move_today(tmp_path / "hub", feed, 7)
    day, epoch = put_old(feed, tmp_path, (b"A", b"B", b"S.x", b"T.x", b"U.x", b"C"), 5)
    with dropping(feed, tmp_path, day, only_wanted=True), HubClient(feed, "reader", tmp_path / "reader") as client:
        client.put(b"A", b"-1")
        client.put(b"B", b"-1")
        assert read(feed, tmp_path, b"A", epoch) == (list(range(COUNT)), [])
        got, gaps = read(feed, tmp_path, b"B", epoch)
        assert got == []
        assert sum(count for _, count in gaps) == COUNT * 3 - 2, "messages dropped up to the last one of B"
        assert [int(client.get(b"A", 60).payload) for _ in range(COUNT + 2)] == [0, *range(COUNT), -1]
    numbers = list(range(COUNT))
    assert kept(day) == {b"A": numbers, b"S.x": numbers, b"T.x": numbers, b"C": numbers[-1:]}


def test_a_durable_client_is_notified_of_dropped_messages(
    tmp_path: Path, feed: Feed, caplog: pytest.LogCaptureFixture
) -> None:
    day, epoch = put_old(feed, tmp_path, (b"A",), 5)
    begin_at(tmp_path, feed, b"A", Position(epoch, 2))
    with (
        dropping(feed, tmp_path, day, messages_per_topic=3),
        HubClient(feed, "reader", tmp_path / "reader") as client,
    ):
        assert [int(client.get(b"A", 60).payload) for _ in range(3)] == [7, 8, 9]
        client.commit()
    assert "subscription of prefix b'A' has lost 5 messages of slice 0" in caplog.text


def test_a_day_stays_unchanged_until_its_replacement_is_complete(
    tmp_path: Path, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    day, epoch = put_old(feed, tmp_path, (b"A",), 5)
    tries = []

    def fails(one: Path, other: Path) -> None:
        tries.append(other)
        raise OSError("simulated kill")

    monkeypatch.setattr(deleter, "exchange_directories", fails)
    monkeypatch.setattr(deleter, "_LOOK_S", 0.01)
    with Hub(feed, tmp_path / "hub", retention=Retention(messages_per_topic=3)), HubClient(feed) as client:
        client.put(b"A", b"-1")
        wait_until(lambda: len(tries) > 1)
        assert read(feed, tmp_path, b"A", epoch) == (list(range(COUNT)), [])
        assert kept(day) == {b"A": list(range(COUNT))}
        monkeypatch.setattr(deleter, "exchange_directories", exchange_directories)
        wait_until(lambda: kept(day) == {b"A": [8, 9]})


def test_a_killed_hub_knows_the_puts_whose_messages_were_dropped(tmp_path: Path, feed: Feed) -> None:
    with Hub(feed, tmp_path / "killed"), HubClient(feed, "desk") as client:
        places = [client.put(b"A", b"%d" % number, id=b"%d" % number) for number in range(COUNT)]
        leave(tmp_path / "killed", tmp_path / "hub", {})
    day = move_today(tmp_path / "hub", feed, 5)
    with dropping(feed, tmp_path, day, only_wanted=True):
        assert kept(day) == {b"A": [COUNT - 1]}
    with Hub(feed, tmp_path / "hub"), HubClient(feed, "desk") as client:
        assert client.published_count() == COUNT
        assert [client.put(b"A", b"", id=b"%d" % number) for number in range(COUNT)] == places
        assert client.put(b"A", b"next") > places[-1]


def test_the_last_put_of_a_run_is_known_after_its_message_was_dropped(tmp_path: Path, feed: Feed) -> None:
    with Hub(feed, tmp_path / "hub"), HubClient(feed, "desk") as client:
        first, *_ = client.put_many((b"A",), [0, 0], b"12", None, [0, 1, 2], [b"1", b"2"]).tolist()
    with Hub(feed, tmp_path / "hub"), HubClient(feed, "desk") as client:
        for number in range(COUNT):
            client.put(b"A", b"%d" % number)
    day = move_today(tmp_path / "hub", feed, 5)
    with dropping(feed, tmp_path, day, messages_per_topic=1), HubClient(feed, "desk") as client:
        client.put(b"B", b"")
    assert kept(day) == {b"A": [2, COUNT - 1]}, "the last message of each file stays"
    with Hub(feed, tmp_path / "hub"), HubClient(feed, "desk") as client:
        assert client.published_count() == 2 + COUNT + 1
        known = client.put(b"A", b"1", id=b"1")
        assert (known.epoch, known.sequence) == first[-2:]


def test_the_peer_hub_receives_no_turn_without_its_messages(tmp_path: Path, feed: Feed) -> None:
    day, _ = put_old(feed, tmp_path, (b"A",), 5)
    with dropping(feed, tmp_path, day, messages_per_topic=3), HubClient(feed) as client:
        client.put(b"A", b"10")
    days = tmp_path / "hub" / feed.name
    with pytest.raises(TooFarBehindError, match="turn 1 is of a day from which messages were dropped"):
        Entries(days, feed, 1).take(1 << 20)
    entries = Entries(days, feed, COUNT + 2)
    (last,) = entries.take(0)
    assert last.number == COUNT + 2, "the turns before are the client's begin, a snapshot and other puts"
    blocks = [len(part.blocks) for each in entries.take(1 << 20) for part in each.parts]
    assert blocks == [0, 0, 1], "a begin, a snapshot and a put"


@pytest.mark.parametrize("seed", range(6))
def test_dropped_messages_match_a_plain_list(tmp_path: Path, seed: int) -> None:
    """Drop from blocks of several sizes, some messages without a value, in two slices and many files."""
    random = Random(seed)
    feed = hub_feed(slices=2, key_bytes=int(seed % 3 == 1), channels=4 if seed % 3 == 2 else 1)
    names = [b"A.x", b"A.y", b"B.x", b"C.x", b"D.x"]
    days = list[Path]()
    for ago in (3, 2):
        for _ in range(2):
            with Hub(feed, tmp_path / "hub"), HubClient(feed) as client:
                for _ in range(4):
                    index = [random.randrange(len(names)) for _ in range(random.choice([1, 30]))]
                    sizes = [random.choice([0, 3, 8]) for _ in index]
                    offsets = numpy.concatenate([[0], numpy.cumsum(sizes)])
                    client.put_many(names, index, random.randbytes(sum(sizes)), offsets=offsets)
                client.put(random.choice(names), None)
        days.append(move_today(tmp_path / "hub", feed, ago))

    def messages(day: Path) -> list[tuple[Any, ...]]:
        found = [message for batch in Recording.open(day).batches() for message in batch]
        return sorted((m.slice_id, m.epoch, m.sequence, m.topic, m.payload, m.ts_event) for m in found)

    per_topic, wanted = random.choice([None, 1, 7, 30]), random.choice([(b"",), (b"A.", b"C"), ()])
    dropper, left = Dropper(per_topic, wanted), dict.fromkeys(names, 1 << 30 if per_topic is None else per_topic)
    for day in reversed(days):
        before, expected, lost = messages(day), list[tuple[Any, ...]](), dict[Any, tuple[int, int]]()
        stays = set({(m[0], m[1], feed.key_of(m[3])): m[:3] for m in before}.values())  # each run is a file
        for message in reversed(before):
            topic = message[3]
            left[topic] -= 1
            if (left[topic] >= 0 and topic.startswith(wanted)) or message[:3] in stays:
                expected.append(message)
            else:
                lost.setdefault((message[0], topic), message[1:3])
        fresh = tmp_path / "fresh" / day.name
        found = dropper.rewrite(day, fresh, "none")
        assert messages(fresh if found else day) == expected[::-1]
        assert {(n, topic): at for n, (_, last) in found.items() for topic, at in last.items()} == lost
        if found:
            assert Recording.open(fresh).examine().damage == []
            for slice_id, (had, _) in found.items():
                mine = [each[1:3] for each in before if each[0] == slice_id]
                assert [(e, s) for e, first, stop in had for s in range(first, stop)] == mine
