"""Checkpoints with streams of a feed with keys: the reader's own is exact, key by key, in whatever run it is."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from blackbox import Feed, Message, Publisher, Recorder, Subscriber
from blackbox.block.position import KeyPosition
from blackbox.errors import SubscriberError
from blackbox.subscribe.sequences import MOST_LEFT
from blackbox.testing import RawPublisher, wait_until
from tests.archive.archives import archived_feed
from tests.archive.recorders import wait_recorded
from tests.archive.test_join_keys import Market, Run
from tests.examples import first_of
from tests.recovery.test_stream_checkpoints import ENOUGH_S, elsewhere_of

PATIENCE_NS = 30_000_000_000


class Done:
    """By epoch and key the numbers that a reader has done, over several lives of a consumer."""

    def __init__(self, feed: Feed) -> None:
        self.numbers: dict[Run, list[int]] = defaultdict(list)
        self._size = feed.key_bytes

    def add(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.numbers[message.batch.block.epoch, message.topic[: self._size]].append(message.sequence)

    def next_sequences(self, epoch: int) -> dict[bytes, int]:
        return {key: numbers[-1] + 1 for (of, key), numbers in self.numbers.items() if of == epoch}


def kept(subscriber: Subscriber) -> dict[int, KeyPosition]:
    """Make a checkpoint where the stream is read, and keep it as a user would."""
    with subscriber.checkpoint(60) as positions:
        return msgspec.json.decode(msgspec.json.encode(positions), type=dict[int, KeyPosition])


def behind(told: dict[int, KeyPosition], done: dict[int, KeyPosition]) -> bool:
    """Whether positions are not ahead of others in any key."""
    return all(
        (each.epoch < done[slice_id].epoch)
        or all(done[slice_id].next_sequences.get(key, 0) >= number for key, number in each.next_sequences.items())
        for slice_id, each in told.items()
    )


@pytest.mark.parametrize("seed", first_of(range(6), keep=3))
def test_a_reader_behind_by_runs_goes_on_exactly_once(tmp_path: Path, seed: int) -> None:
    """Its messages wait while runs of the publisher come and go; it makes a checkpoint anywhere, and is gone."""
    chance = random.Random(seed)
    feed = archived_feed(key_bytes=2, block_bytes=4_096, heartbeat_ns=200_000_000)
    positions: Any
    done, sent, positions, count = Done(feed), dict[Run, list[int]](), None, 0
    recorder = Recorder(feed, tmp_path, serve=True)
    with ExitStack() as last, ExitStack() as stack:
        for round_ in range(5):
            subscriber = Subscriber(feed, on_gap="repair", repair_wait=PATIENCE_NS / 1e9)
            stream = subscriber.stream(b"", limit=1 << 20)
            for number in range(chance.randint(1, 3)):
                stack.close()
                publisher = stack.enter_context(Publisher(feed, when_full="wait"))
                if (round_, number) == (0, 0):
                    last.enter_context(recorder)
                publisher.wait_for_subscribers(count=1 + (number > 0))
                market = Market(publisher, 10 * round_ + number)
                market.publish(range(chance.randint(0, 30), 60), chance.choice((20, 300)))
                # The first one begins live, in the midst of a run; what came before is none of its.
                before = dict(market.published) if (round_, number) == (0, 0) else {}
                if number == 0:
                    subscriber.start(timeout=60, since=positions)
                market.publish(range(90), chance.choice((30, 500)))
                count += market.count
                wait_recorded(recorder, count)
                sent |= {
                    (publisher.epoch, key): list(range(before.get(key, 0), stop))
                    for key, stop in market.published.items()
                    if stop > before.get(key, 0)
                }
            subscriber.wait_live(60)
            left = sum(map(len, sent.values())) - sum(map(len, done.numbers.values()))
            done.add(stream.get(ENOUGH_S) for _ in range(chance.randint(0, left - 1)))
            told = elsewhere_of(kept, subscriber)
            positions = kept(subscriber)
            assert behind(told, positions)
            subscriber.terminate()
        subscriber = Subscriber(feed, on_gap="repair", repair_wait=PATIENCE_NS / 1e9)
        stream = subscriber.stream(b"", limit=1 << 20)
        subscriber.start(timeout=60, since=positions)
        subscriber.wait_live(60)
        stack.close()
        subscriber.run(until_end=True)
        done.add(stream)
    assert subscriber.statistics().received.gaps == 0
    assert dict(done.numbers) == sent


def test_of_each_key_the_stream_furthest_behind_counts() -> None:
    feed = Feed.local("cut", slices=1, key_bytes=2)
    chance = random.Random(1)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber = Subscriber(feed)
        streams = [subscriber.stream(prefix) for prefix in (b"", b"1", b"12")]
        done = [Done(feed) for _ in streams]
        with subscriber:
            market = Market(publisher)
            market.publish(range(30), 600)
            sizes = [sum(n for key, n in market.published.items() if key.startswith(each.prefix)) for each in streams]
            wait_until(lambda: subscriber.statistics().delivery.delivered == sum(sizes), ENOUGH_S)
            while any(sizes):
                which = chance.choice([number for number, size in enumerate(sizes) if size])
                many = min(chance.randint(1, 90), sizes[which])
                done[which].add(streams[which].get(ENOUGH_S) for _ in range(many))
                sizes[which] -= many
                expected = {}
                for key, stop in market.published.items():
                    wanted = [each for each, stream in zip(done, streams, strict=True) if key.startswith(stream.prefix)]
                    least = min(each.next_sequences(publisher.epoch).get(key, 0) for each in wanted)
                    expected[key] = min(stop, least)
                assert kept(subscriber)[0].next_sequences == expected


def test_what_a_stream_does_not_want_is_done_and_a_named_consumer_goes_on_behind_it(tmp_path: Path) -> None:
    feed = archived_feed(key_bytes=2, heartbeat_ns=50_000_000)
    settings: Any = {"name": "strategy-1", "positions": tmp_path / "positions", "repair_wait": PATIENCE_NS / 1e9}
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path / "days", serve=True) as recorder:
        market = Market(publisher)
        market.publish(range(30), 500)
        wait_recorded(recorder, 500)
        done = Done(feed)
        for number in range(3):
            subscriber = Subscriber(feed, **settings)
            stream = subscriber.stream(b"1", limit=1 << 20)
            subscriber.start(since=0 if number == 0 else None)
            market.publish(range(30), 100)
            wanted = sum(stop for key, stop in market.published.items() if key.startswith(b"1"))
            left = wanted - sum(map(len, done.numbers.values()))
            done.add(stream.get(ENOUGH_S) for _ in range(left if number == 2 else left // 2))
            with subscriber.checkpoint():
                pass
            subscriber.terminate()
            wait_recorded(recorder, market.count)
    assert dict(done.numbers) == {
        (publisher.epoch, key): list(range(stop)) for key, stop in market.published.items() if key.startswith(b"1")
    }


def test_a_reader_that_is_too_many_runs_behind_is_told(tmp_path: Path) -> None:
    feed = Feed.local("cut", slices=1, key_bytes=1)
    with RawPublisher(feed, 1) as publisher:
        subscriber = Subscriber(feed)
        stream = subscriber.stream(b"")
        with subscriber:
            for epoch in range(1, MOST_LEFT + 3):
                publisher.epoch, publisher.sequences = epoch, [{}]
                for key in (b"A", b"B") if epoch == 1 else (b"B",):
                    publisher.send(publisher.encode([(key, b"")] * 2))
                publisher.heartbeat()
                publisher.heartbeat()
                many = 4 if epoch == 1 else 2 * epoch + 2
                wait_until(lambda n=many: subscriber.statistics().delivery.delivered == n)  # type: ignore[misc]
                first = stream._undone(by_reader=True)[0].sent_ns
                if epoch == MOST_LEFT + 1:
                    assert kept(subscriber) == {0: KeyPosition(1, {b"A": 0, b"B": 0}, [b""], first, 0)}
            with pytest.raises(SubscriberError, match="left more than 8 runs ago"):
                kept(subscriber)
            for _ in range(5):
                stream.get(ENOUGH_S)
            assert kept(subscriber)[0][:2] == (2, {b"B": 1})
