"""Puts of one message under several topics: all of its rows are stored, or none; readers get it once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import msgspec
import numpy
import pytest

from blackbox import ConfigError, Feed, Hub, HubClient, Recording, Subscriber
from blackbox.archive.maintain.retention import Retention
from blackbox.block.form.layout import VERSION
from blackbox.block.position import NOWHERE
from blackbox.errors import ConflictError, RefusedError
from blackbox.publish.send.ring import MAX_NOTE_BYTES
from blackbox.services.hub.pair.protocol import LEADS, Entry, Lead, Part, Standing
from blackbox.services.hub.protocol import (
    ENCODER,
    MOST_BYTES,
    MOST_COPIES_BYTES,
    Hello,
    Put,
    offsets_of_one,
    unpack_places,
)
from blackbox.services.hub.server.frontend import Frontend
from blackbox.services.hub.server.judge import Judge, Request
from blackbox.services.hub.sites.sites import Sites
from blackbox.testing import wait_until
from tests.archive.test_retention import move_today
from tests.hub.hubs import hub_feed, leave, published, reboot, sizes
from tests.hub.pairs import PATIENCE_S, hub_of, pair_feed, wait_in_step
from tests.hub.peer import Peer
from tests.hub.test_dropped_messages import dropping
from tests.hub.test_put_rights import client, grant
from tests.hub.test_retention import held
from tests.hub.test_tables import kept
from tests.keyring import Keyring

WAIT_S = 60.0


def rows(directory: Path, feed: Feed) -> list[tuple[bytes, bytes | None]]:
    """Return topic and payload of all rows of an ended hub."""
    return [each[-2:] for each in published(directory, feed)]


def messages(directory: Path, feed: Feed) -> list[tuple[bytes, ...]]:
    """Return the topics of each message of an ended hub, by slice."""
    found: list[tuple[bytes, ...]] = []
    for manifest in sorted((directory / feed.name).glob("*/manifest.json")):
        for batch in Recording.open(manifest.parent).batches():
            block = batch.block
            same = [0] * block.count if block.same is None else block.same.tolist()
            for topic, back in zip(batch.topics_per_message(), same, strict=True):
                found.append((*found.pop(), topic) if back else (topic,))
    return found


def test_a_message_is_stored_under_all_topics_and_delivered_once(tmp_path: Path, feed: Feed) -> None:
    got: list[tuple[bytes, bytes]] = []
    with Hub(feed, tmp_path) as hub, HubClient(feed, "desk", tmp_path / "desk") as client, kept(feed) as table:
        client.subscribe(b"A")
        client.subscribe(b"B")
        subscriber = Subscriber(feed, on_gap="repair", repair_wait=60)
        subscriber.on(b"")(lambda message: got.append((message.topic, message.payload)))
        subscriber.start(WAIT_S)
        first = client.put((b"B.1", b"A.1", b"B.2"), b"one")
        second = client.put_soon(["A.2", "A.3"], b"two", ts_event=7).result(WAIT_S)
        third = client.put(("A.4",), b"three")
        assert [place.sequence for place in (first, second, third)] == [0, 3, 5]
        assert table.wait(third, WAIT_S)
        assert dict(table) == {
            b"B.1": b"one",
            b"A.1": b"one",
            b"B.2": b"one",
            b"A.2": b"two",
            b"A.3": b"two",
            b"A.4": b"three",
        }
        found = [(each.topic, each.payload) for each in (client.get(b"A", WAIT_S) for _ in range(3))]
        assert found == [(b"A.1", b"one"), (b"A.2", b"two"), (b"A.4", b"three")]
        message = client.get(b"B", WAIT_S)
        assert (message.topic, message.payload) == (b"B.1", b"one")
        for prefix in (b"A", b"B"):
            with pytest.raises(TimeoutError):
                client.get(prefix, 0)
        assert client.published_count() == 6
        wait_until(lambda: len(got) == 3)
        subscriber.stop()
        assert hub.statistics().stored == 6
    assert got == [(b"B.1", b"one"), (b"A.2", b"two"), (b"A.4", b"three")]
    assert messages(tmp_path, feed) == [(b"B.1", b"A.1", b"B.2"), (b"A.2", b"A.3"), (b"A.4",)]


def test_a_reader_that_stopped_between_the_topics_of_a_message_does_not_get_it_again(
    tmp_path: Path, feed: Feed
) -> None:
    with Hub(feed, tmp_path / "hub"):
        with HubClient(feed, "reader", tmp_path / "reader") as reader, HubClient(feed) as writer:
            reader.subscribe(b"A")
            for number in range(5):
                writer.put((b"B", b"A.1", b"A.2", b"A.3"), b"%d" % number)
            assert [reader.get(b"A", WAIT_S).payload for _ in range(2)] == [b"0", b"1"]
            reader.commit()
        with HubClient(feed, "reader", tmp_path / "reader") as reader:
            assert [reader.get(b"A", WAIT_S).payload for _ in range(3)] == [b"2", b"3", b"4"]
            with pytest.raises(TimeoutError):
                reader.get(b"A", 0)


@pytest.mark.parametrize("key_bytes", [0, 1])
def test_topics_of_several_slices_and_keys_are_one_message_each(tmp_path: Path, key_bytes: int) -> None:
    feed = hub_feed(slices=2, key_bytes=key_bytes)
    topics = tuple(b"%c.%d" % (65 + number % 5, number) for number in range(255))
    with Hub(feed, tmp_path), HubClient(feed) as client:
        client.put(topics, b"x" * 1_000)
        client.put(topics[:2], None)
    found = messages(tmp_path, feed)
    groups = {(feed.slice_of(topic), feed.key_of(topic)) for topic in topics}
    assert sorted(topic for each in found for topic in each) == sorted(topics + topics[:2])
    assert len(found) == len(groups) + len({(feed.slice_of(topic), feed.key_of(topic)) for topic in topics[:2]})


def test_a_large_message_is_in_one_block(tmp_path: Path, feed: Feed) -> None:
    topics = tuple(b"A.%d" % number for number in range(16))
    with Hub(feed, tmp_path), HubClient(feed) as client:
        client.put_soon((b"A", b"B"), b"small")
        client.put(topics, bytes(1 << 20), timeout=WAIT_S)
        with pytest.raises(ConfigError, match=f"17 topics and a payload of 1048576 .* up to {MOST_COPIES_BYTES}"):
            client.put((*topics, b"B"), bytes(1 << 20))
    assert messages(tmp_path, feed) == [(b"A", b"B"), topics]


def test_a_client_without_a_right_to_one_topic_stores_none(tmp_path: Path) -> None:
    keys = Keyring(tmp_path, "hub", "desk")
    keys.allow("hub", "desk")
    grant(keys, 'desk = ["orders.", "notes."]\n')
    feed = hub_feed(slices=1)
    with Hub(keys.feed(feed, "hub"), tmp_path / "kept") as hub, client(keys, feed, "desk") as desk:
        with pytest.raises(RefusedError, match="no right to it"):
            desk.put((b"orders.a", b"other.a", b"notes.a"), b"1")
        assert desk.put((b"orders.a", b"notes.a"), b"2").sequence == 0
        assert hub.statistics().refused == 3
        place = desk.put(b"orders.b", b"3", b"id")
        with pytest.raises(RefusedError, match="b'other.a' was refused: the key has no right to it"):
            desk.put((b"orders.b", b"other.a"), b"4", b"id")
        assert desk.put(b"orders.b", b"5", b"id") == place
    assert rows(tmp_path / "kept", feed) == [(b"orders.a", b"2"), (b"notes.a", b"2"), (b"orders.b", b"3")]


def test_a_message_without_room_for_a_topic_is_refused_as_a_whole(tmp_path: Path) -> None:
    feed = msgspec.structs.replace(hub_feed(slices=1), max_topics=3)
    with Hub(feed, tmp_path), HubClient(feed) as client:
        client.put((b"A", b"B"), b"1")
        with pytest.raises(RefusedError, match="had 3 topics, its max_topics"):
            client.put((b"A", b"C", b"D"), b"2")
        client.put((b"A", b"C"), b"3")
    assert rows(tmp_path, feed) == [(b"A", b"1"), (b"B", b"1"), (b"A", b"3"), (b"C", b"3")]


def test_a_condition_must_hold_for_each_topic(tmp_path: Path) -> None:
    feed = hub_feed(slices=2)
    with Hub(feed, tmp_path), HubClient(feed) as client:
        client.put((b"A", b"B"), b"1", if_at=NOWHERE)
        other = client.put(b"C", b"1")
        with pytest.raises(ConflictError) as refused:
            client.put((b"D", b"C", b"E"), b"2", if_at=NOWHERE)
        assert (refused.value.topic, refused.value.found) == (b"C", other)
        client.put((b"D", b"E"), b"3", if_at=NOWHERE)
    assert sorted(rows(tmp_path, feed)) == [(b"A", b"1"), (b"B", b"1"), (b"C", b"1"), (b"D", b"3"), (b"E", b"3")]


def test_a_forgotten_id_is_forgotten_for_all_topics(tmp_path: Path) -> None:
    feed, topics = hub_feed(slices=1), (b"A", b"B", b"C")
    with Hub(feed, tmp_path, remember_ids=3), HubClient(feed) as client:
        first = client.put(topics, b"1", b"first")
        assert client.put(topics, b"1", b"first") == first
        client.put(b"D", b"2", b"second")
        with pytest.raises(ConflictError):
            client.put(topics, b"1", b"first", if_at=NOWHERE)
        client.put(topics, b"1", b"first")
    assert rows(tmp_path, feed) == [
        *((topic, b"1") for topic in topics),
        (b"D", b"2"),
        *((topic, b"1") for topic in topics),
    ]


def test_each_topic_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed, ahead_ns = hub_feed(slices=2), [0]
    monkeypatch.setattr(Frontend, "now_ns", lambda _: time.time_ns() + ahead_ns[0])
    with Hub(feed, tmp_path) as hub, HubClient(feed) as client:
        client.put((b"A", b"B", b"C"), b"1", ttl=3_600)
        client.put(b"B", b"2")
        ahead_ns[0] = 3_600 * 10**9
        wait_until(lambda: hub.statistics().ended == 2)
    assert {topic for topic, payload in rows(tmp_path, feed) if payload is None} == {b"A", b"C"}


def test_a_repeated_put_is_answered_once_for_all_topics(tmp_path: Path) -> None:
    feed = hub_feed(slices=2)
    topics = (b"A", b"B", b"C", b"D")
    with Hub(feed, tmp_path), HubClient(feed) as client:
        place = client.put(topics, b"1", b"first")
        assert client.put(topics, b"2", b"first") == place
        with HubClient(feed) as other:
            assert other.put(topics, b"3", b"first") == place
    with Hub(feed, tmp_path), HubClient(feed) as client:
        assert client.put(topics, b"4", b"first") == place
    assert sorted(rows(tmp_path, feed)) == [(topic, b"1") for topic in topics]


@pytest.mark.parametrize("fsync", ["interval", "block"])
def test_a_killed_hub_that_has_stored_some_rows_stores_the_others(
    tmp_path: Path, fsync: Literal["interval", "block"]
) -> None:
    """The topics are in two slices. The journal of one has lost its part: at a kill, or if "block" at a power cut."""
    feed = hub_feed(slices=2)
    topics = tuple(b"%c" % (65 + number) for number in range(8))
    mine = {slice_id: [each for each in topics if feed.slice_of(each) == slice_id] for slice_id in (0, 1)}
    assert all(mine.values())
    with Hub(feed, tmp_path / "hub", fsync=fsync) as hub, Peer(feed) as peer:
        index = numpy.arange(len(topics), dtype=numpy.int32).tobytes()
        put = msgspec.structs.replace(
            peer.puts(2, b"x"), count=len(topics), topics=list(topics), index=index, is_one=True
        )
        peer.ask(peer.puts(1, b"before"))
        had = sizes(tmp_path / "hub")
        first = unpack_places(peer.ask(put).places)
        leave(tmp_path / "hub", tmp_path / "left", had, 1)
        epoch = hub.epoch
    if fsync == "block":
        reboot(tmp_path / "left")
    with Hub(feed, tmp_path / "left", fsync=fsync), Peer(feed) as peer:
        again = unpack_places(peer.ask(put).places)
        assert again["is_new"].tolist() == [feed.slice_of(topic) for topic in topics]
        stays = again["slice"] == 0
        assert again[stays]["sequence"].tolist() == first[stays]["sequence"].tolist()
        assert set(again[stays]["epoch"].tolist()) == {epoch}
    found = messages(tmp_path / "left", feed)
    assert sorted(found) == sorted([(b"A.x",), *map(tuple, mine.values())])


def test_large_messages_with_several_topics_are_several_turns(feed: Feed) -> None:
    """The other hub of a pair gets a turn in one answer, which its socket limits to 64 MiB."""
    judge = Judge(feed, (100, 100, 100), Frontend(feed, Sites(feed, [], None)))
    judge.begin(1, [0])
    list(judge.turns([Request(b"", "", b"", Hello("desk", 1, feed.name, 7, VERSION))]))
    topics, index = [b"A.%d" % number for number in range(16)], numpy.arange(16, dtype=numpy.int32).tobytes()
    one = offsets_of_one(MOST_BYTES), bytes(MOST_BYTES), b"", b""
    puts = [Put("desk", 1, 1 + 16 * number, 16, False, topics, index, *one, [], is_one=True) for number in range(8)]
    turns = list(judge.turns([Request(b"", "", b"", put) for put in puts]))
    assert [len(turn.fresh) for turn in turns] == [1] * 8


def test_an_answer_of_a_pair_may_be_as_large_as_its_socket_allows() -> None:
    standing = Standing("pair", "primary", 7, 1, 1, True, False, VERSION)
    parts = [Part(slice_id, 0, bytes(MAX_NOTE_BYTES), 0, []) for slice_id in range(70)]
    lead = Lead(1, standing, 1, 1, False, True, [Entry(1, 0, parts)], "")
    assert LEADS.decode(ENCODER.encode(lead)) == lead


def test_both_hubs_of_a_pair_have_all_rows_in_one_block(tmp_path: Path, links: tuple[str, ...]) -> None:
    feed = pair_feed(slices=1)
    topics = tuple(b"A.%d" % number for number in range(20))
    with hub_of(feed, tmp_path, links) as primary, hub_of(feed, tmp_path, links, "backup") as backup:
        wait_in_step(primary, backup)
        with HubClient(feed) as client:
            place = client.put(topics, bytes(100_000), b"id", timeout=PATIENCE_S)
            client.put((b"B", b"C"), None, timeout=PATIENCE_S)
            assert client.put(topics, b"again", b"id", timeout=PATIENCE_S) == place
    expected = [topics, (b"B", b"C")]
    assert messages(tmp_path / "primary", feed) == messages(tmp_path / "backup", feed) == expected


def test_dropped_topics_do_not_split_a_message(tmp_path: Path, feed: Feed) -> None:
    retention = Retention(only_wanted=True)
    with Hub(feed, tmp_path / "hub", retention=retention), HubClient(feed, "reader", tmp_path / "reader") as reader:
        reader.subscribe(b"A")
        wait_until(lambda: len(held(feed, tmp_path)) == 1)
        for number in range(10):
            reader.put((b"A.1", b"X", b"A.2", b"Y"), b"%d" % number)
    day = move_today(tmp_path / "hub", feed, 5)
    with dropping(feed, tmp_path, day, only_wanted=True), HubClient(feed, "reader", tmp_path / "reader") as reader:
        assert [int(reader.get(b"A", WAIT_S).payload) for _ in range(10)] == list(range(10))
        with pytest.raises(TimeoutError):
            reader.get(b"A", 0.1)
    *others, last = messages(tmp_path / "hub", feed)
    assert others == [(b"A.1", b"A.2")] * 9
    assert last == (b"A.1", b"A.2", b"Y"), "the last row of a file is kept"


def test_a_recorded_message_is_replayed_once(tmp_path: Path) -> None:
    feed = hub_feed(slices=2)
    with Hub(feed, tmp_path), HubClient(feed) as client:
        for number in range(100):
            client.put_soon((b"A.1", b"B.1", b"A.2", b"B.2", b"C.1"), b"%d" % number, ts_event=number + 1)
            client.put_soon(b"A.1", b"single", ts_event=number + 1)
        client.flush()
    (day,) = (tmp_path / feed.name).glob("*/manifest.json")
    orders: list[Literal["event", "sent"]] = ["event", "sent"]
    for order in orders:
        got: dict[bytes, list[bytes]] = {b"": [], b"A": [], b"B.2": []}
        subscriber = Subscriber(feed)
        for prefix, each in got.items():
            subscriber.on(prefix, fields=["payload"])(each.append)
        subscriber.replay(Recording.open(day.parent), order=order)
        numbers = [b"%d" % number for number in range(100)]
        slices = {feed.slice_of(topic) for topic in (b"A.1", b"B.1", b"C.1")}
        assert [each for each in got[b"A"] if each != b"single"] == numbers
        assert got[b"B.2"] == numbers
        assert sorted(each for each in got[b""] if each != b"single") == sorted(numbers * len(slices))
