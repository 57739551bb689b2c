"""A feed with channels over real sockets: each subscriber receives its messages and few others."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from blackbox import Feed, Gap, Hub, HubClient, Publisher, Recorder, Recording, Replay, Subscriber
from blackbox.testing import Collector, wait_until
from tests.archive.archives import archived_feed
from tests.archive.recorders import wait_recorded
from tests.hub.hubs import hub_feed
from tests.lossy_proxy import LossyProxy
from tests.receive import subscribers
from tests.receive.subscribers import PATIENT, one_slice, publishing
from tests.relay.relays import chain, relayed

CHANNELS: Final = 8
SYMBOLS: Final = [b"S%02d" % number for number in range(40)]
ONE, OTHER = b"S00", b"S01"
"""Symbols of different channels."""
Sent = list[tuple[bytes, bytes]]


def publish(publisher: Publisher, first: int, count: int) -> Sent:
    """Publish messages of all symbols, with and without a type; return each topic with its number."""
    sent = []
    for number in range(first, first + count):
        topic = SYMBOLS[number % len(SYMBOLS)] + (b".trade", b".quote", b"")[number % 3]
        publisher.publish(topic, b"%d" % number)
        sent.append((topic, b"%d" % number))
    publisher.flush()
    return sent


def of(symbol: bytes, sent: Sent) -> Sent:
    return [(topic, payload) for topic, payload in sent if topic.partition(b".")[0] == symbol]


def subscribed(feed: Feed, *symbols: bytes, **options: Any) -> tuple[Subscriber, Collector]:
    subscriber, got = Subscriber(feed, slow=PATIENT, **options), Collector()
    for symbol in symbols:
        subscriber.on(b"", symbols=[symbol])(got.message)
    return subscriber, got


def came(got: Collector) -> Sent:
    return [(message.topic, message.payload) for message in got.messages]


def test_a_subscriber_of_one_symbol_receives_one_channel_also_through_relays() -> None:
    feeds = chain(2, channels=CHANNELS)
    feed, below = feeds[0], feeds[-1]
    with relayed(feeds), Publisher(feed, when_full="wait") as publisher:
        wanted = [(subscribed(below, ONE), [ONE + b".", ONE])]
        wanted += [(subscribers.subscribed(below, prefix), [prefix]) for prefix in (b"S0", ONE + b".", b"")]
        for (subscriber, _), _ in wanted:
            subscriber.start()
        sent = publish(publisher, 0, 600)
        publisher.close()
        for (subscriber, _), _ in wanted:
            subscriber.run(until_end=True)
    for (_, got), prefixes in wanted:
        assert sorted(came(got)) == sorted(each for each in sent if each[0].startswith(tuple(prefixes)))
    assert came(wanted[0][0][1]) == of(ONE, sent)
    in_channel = sum(feed.key_of(topic) == feed.key_of(ONE) for topic, _ in sent)
    assert in_channel < len(sent) / 4
    received = [subscriber.statistics().received for (subscriber, _), _ in wanted]
    assert [each.messages for each in received] == [in_channel, len(sent), in_channel, len(sent)]
    assert [each.gaps for each in received] == [0, 0, 0, 0]


def test_a_gap_of_a_channel_is_reported_to_its_callbacks_alone() -> None:
    feed = one_slice(channels=CHANNELS)
    subscriber, _ = subscribed(feed, ONE, OTHER)
    found: dict[bytes, list[Gap]] = {ONE: [], OTHER: []}
    for symbol, gaps in found.items():
        subscriber.on_gap(symbol + b".")(gaps.append)
        subscriber.on_gap(b"", symbols=[symbol])(gaps.append)
    with publishing(feed, subscriber) as publisher:
        for number in range(6):
            block = publisher.encode([((ONE, OTHER)[number % 2] + b".trade", b"%d" % number)])
            if number != 2:
                publisher.send(block)
    gap = Gap(0, publisher.epoch, feed.key_of(ONE), 1, 1, found[ONE][0].ts_out)
    assert found == {ONE: [gap, gap], OTHER: []}


def test_lost_blocks_of_a_channel_are_repaired(tmp_path: Path) -> None:
    feed = archived_feed(channels=CHANNELS, block_bytes=4_096)
    with (
        Publisher(feed, when_full="wait") as publisher,
        Recorder(feed, tmp_path, serve=True) as recorder,
        LossyProxy(feed, 0.2) as proxy,
    ):
        one, of_one = subscribed(proxy.feed, ONE, on_gap="repair", repair_wait=60)
        everything, of_all = subscribed(proxy.feed, *SYMBOLS, on_gap="repair", repair_wait=60)
        one.start()
        everything.start()
        sent = []
        for first in range(0, 2_000, 100):
            sent += publish(publisher, first, 100)
        wait_recorded(recorder, len(sent))
        publisher.close()
        one.run(until_end=True)
        everything.run(until_end=True)
    assert came(of_one) == of(ONE, sent)
    assert sorted(came(of_all)) == sorted(sent)
    assert proxy.lost > 0
    assert one.statistics().received.gaps == everything.statistics().received.gaps == 0


def test_a_named_subscriber_that_starts_late_and_adds_a_symbol_continues_at_its_position(tmp_path: Path) -> None:
    feed = archived_feed(channels=CHANNELS)
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path / "days", serve=True) as recorder:
        first = publish(publisher, 0, 400)
        wait_recorded(recorder, 400)
        named: dict[str, Any] = {"name": "desk", "positions": tmp_path / "positions"}
        subscriber, got = subscribed(feed, ONE, **named)
        subscriber.start(since=0)

        def is_past_first() -> bool:
            with subscriber.checkpoint() as positions:
                return bool(positions[0].sequence == 400)

        wait_until(is_past_first)  # only a heartbeat shows that later messages are of other channels
        assert came(got) == of(ONE, first)
        subscriber.stop()
        second = publish(publisher, 400, 400)
        wait_recorded(recorder, 800)
        subscriber, got = subscribed(feed, ONE, OTHER, **named)
        subscriber.start()
        third = publish(publisher, 800, 400)
        publisher.close()
        subscriber.run(until_end=True)
    for symbol in (ONE, OTHER):
        assert of(symbol, came(got)) == of(symbol, second + third)
    assert subscriber.statistics().received.gaps == 0


def test_a_recorded_day_is_read_and_replayed(tmp_path: Path) -> None:
    feed = one_slice(channels=CHANNELS)
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path) as recorder:
        sent = publish(publisher, 0, 600)
        wait_recorded(recorder, len(sent))
        publisher.close()
        recorder.run(until_end=True)
    day = Recording.open(next(tmp_path.glob("*/*/manifest.json")).parent)
    assert day.verify() == []
    for name, wanted in (("symbols", {"symbols": [ONE]}), ("prefix", {"prefix": ONE + b"."})):
        found = [(message.topic, message.payload) for batch in day.batches(**wanted) for message in batch]
        assert found == [each for each in of(ONE, sent) if name == "symbols" or b"." in each[0]]
    subscriber, got = subscribed(feed, ONE)
    subscriber.replay(day)
    assert came(got) == of(ONE, sent)
    for target in (one_slice(channels=CHANNELS), one_slice(channels=3), one_slice(key_bytes=3)):
        subscriber, got = subscribed(target, ONE, OTHER)
        with Publisher(target, when_full="wait") as publisher:
            subscriber.start()
            Replay(day).publish(publisher)
        subscriber.run(until_end=True)
        assert [of(symbol, came(got)) for symbol in (ONE, OTHER)] == [of(symbol, sent) for symbol in (ONE, OTHER)]
        assert subscriber.statistics().received.gaps == 0


def test_a_client_of_a_hub_gets_the_messages_of_one_symbol(tmp_path: Path) -> None:
    feed = hub_feed(slices=1, channels=CHANNELS)
    with Hub(feed, tmp_path), HubClient(feed, "desk", tmp_path / "desk") as client:
        topics = [symbol + b".trade" for symbol in SYMBOLS]
        client.subscribe(ONE + b".")
        client.put_many(topics * 3, range(3 * len(topics)), b"x" * 3 * len(topics), offsets=range(3 * len(topics) + 1))
        assert [client.get(ONE + b".", 60).topic for _ in range(3)] == [ONE + b".trade"] * 3
        with pytest.raises(TimeoutError):
            client.get(ONE + b".", 0)
