"""Checkpoints with streams of a feed with keys: the reader's own checkpoint is exact in any epoch."""

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
from blackbox.block.position import Position
from blackbox.errors import SubscriberError
from blackbox.testing import RawPublisher, wait_until
from tests.archive.archives import archived_feed
from tests.archive.recorders import feed_of, wait_recorded
from tests.archive.test_join_keys import Heard, Market, Run, check_all
from tests.examples import first_of
from tests.lossy_proxy import LossyProxy
from tests.recovery.test_stream_checkpoints import ENOUGH_S, elsewhere_of

PATIENCE_NS = 30_000_000_000


class Done:
    """Numbers in the payloads that a reader took, by epoch and key, over several lives of a consumer."""

    def __init__(self, feed: Feed) -> None:
        self.counts: dict[Run, list[int]] = defaultdict(list)
        self._size = feed.key_bytes

    def add(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.counts[message.batch.block.epoch, message.topic[: self._size]].append(int(message.payload))


def kept(subscriber: Subscriber) -> dict[int, Position]:
    """Make a checkpoint in the thread that reads, and store it as a user would."""
    with subscriber.checkpoint(60) as positions:
        return msgspec.json.decode(msgspec.json.encode(positions), type=dict[int, Position])


def kept_if_exact(subscriber: Subscriber) -> dict[int, Position]:
    """Do the same; return no positions if the reader took messages that follow one it lacks."""
    try:
        return kept(subscriber)
    except SubscriberError as error:
        if "which came late" not in str(error):
            raise
        return {}


def behind(told: dict[int, Position], done: dict[int, Position]) -> bool:
    """Return True if no position of `told` is ahead of `done`."""
    return all(each <= done[slice_id] for slice_id, each in told.items())


@pytest.mark.parametrize("seed", first_of(range(6), keep=3))
def test_a_reader_epochs_behind_resumes_exactly_once(tmp_path: Path, seed: int) -> None:
    """Its messages wait while epochs of the publisher pass; it makes a checkpoint anywhere, then ends."""
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
                # The first consumer begins live, in the middle of an epoch; earlier messages are not its own.
                before = market.count if (round_, number) == (0, 0) else 0
                if number == 0:
                    subscriber.start(timeout=60, since=positions)
                market.publish(range(90), chance.choice((30, 500)))
                count += market.count
                wait_recorded(recorder, count)
                sent |= market.runs(before)
            subscriber.wait_live(60)
            left = sum(map(len, sent.values())) - sum(map(len, done.counts.values()))
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
    assert dict(done.counts) == sent


def test_the_stream_furthest_behind_decides() -> None:
    feed = Feed.local("cut", slices=1, key_bytes=2)
    chance = random.Random(1)
    with Publisher(feed, when_full="wait") as publisher:
        subscriber = Subscriber(feed)
        heard = Heard(subscriber)
        streams = [subscriber.stream(prefix) for prefix in (b"", b"1", b"12")]
        with subscriber:
            market = Market(publisher)
            market.publish(range(30), 600)
            wait_until(lambda: heard.count == 600, ENOUGH_S)
            left = [
                sorted(n for (_, key), numbers in heard.came.items() if key.startswith(each.prefix) for n in numbers)
                for each in streams
            ]
            wait_until(lambda: subscriber.statistics().delivery.delivered == 600 + sum(map(len, left)), ENOUGH_S)
            while any(left):
                which = chance.choice([number for number, numbers in enumerate(left) if numbers])
                for _ in range(min(chance.randint(1, 90), len(left[which]))):
                    assert streams[which].get(ENOUGH_S).sequence == left[which].pop(0)
                assert kept(subscriber)[0].sequence == min((numbers[0] for numbers in left if numbers), default=600)
            assert kept(subscriber) == {0: (publisher.epoch, 600)}
    check_all(heard, market.runs())


def test_a_reader_that_lacks_an_earlier_message_of_another_key_has_no_exact_position() -> None:
    """One line delivers a block, another line the block before it: a restart would repeat one of them."""
    feed = feed_of(lines=2, key_bytes=2)
    with RawPublisher(feed, 5) as publisher:
        first, second = (publisher.encode([(key, b"")] * 5) for key in (b"AA.x", b"AB.x"))
        subscriber = Subscriber(feed)
        stream = subscriber.stream(b"A")
        subscriber.start()
        publisher.send(second)
        publisher.send(publisher.encode([(b"AC.x", b"")] * 5))
        assert [stream.get(ENOUGH_S).sequence for _ in range(5)] == list(range(5, 10))
        wait_until(lambda: subscriber.statistics().delivery.delivered == 10)
        publisher.send(first, lines=[1])
        wait_until(lambda: subscriber.statistics().delivery.delivered == 15)
        publisher.heartbeat()
        for number in range(10, 15):
            with pytest.raises(SubscriberError, match=r"=5, sequence=\d+\), but not .* sequence=0\), which came late"):
                kept(subscriber)
            assert elsewhere_of(kept, subscriber) == {0: (5, 0)}
            assert stream.get(ENOUGH_S).sequence == number
        for number in range(5):
            assert stream.get(ENOUGH_S).sequence == number
        assert kept(subscriber) == {0: (5, 15)}
        subscriber.terminate()


@pytest.mark.parametrize("seed", first_of(range(6), keep=2))
def test_a_reader_of_some_keys_resumes_exactly_once_over_bad_lines(tmp_path: Path, seed: int) -> None:
    """Each line loses different blocks, and archives repair them, so keys overtake each other."""
    chance = random.Random(seed)
    feed = archived_feed(lines=1 + seed % 2, key_bytes=2, block_bytes=4_096, heartbeat_ns=50_000_000)
    done, positions = Done(feed), dict[int, Position]()
    with (
        Publisher(feed, when_full="wait") as publisher,
        Recorder(feed, tmp_path, serve=True),
        LossyProxy(feed, 0.3, seed, lags=0.2) as proxy,
    ):
        with Market(publisher, seed) as market:
            for _ in range(5):
                subscriber = Subscriber(proxy.feed, on_gap="repair", repair_wait=PATIENCE_NS / 1e9)
                stream = subscriber.stream(b"1", limit=1 << 20)
                subscriber.start(timeout=60, since=positions or 0)
                market.slowly.set()
                for _ in range(3):
                    done.add(stream.get(ENOUGH_S) for _ in range(chance.choice((1, 20, 60))))
                    while not (exact := kept_if_exact(subscriber)):
                        done.add([stream.get(ENOUGH_S)])
                    positions = exact
                subscriber.terminate()
        subscriber = Subscriber(proxy.feed, on_gap="repair", repair_wait=PATIENCE_NS / 1e9)
        stream = subscriber.stream(b"1", limit=1 << 20)
        subscriber.start(timeout=60, since=positions)
        subscriber.wait_live(60)
        publisher.close()
        subscriber.run(until_end=True)
        done.add(stream)
    assert subscriber.statistics().received.gaps == 0
    assert done.counts == market.runs(prefix=b"1")


def test_unsubscribed_messages_are_done_and_a_named_consumer_resumes_after_them(tmp_path: Path) -> None:
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
            wanted = sum(map(len, market.runs(prefix=b"1").values()))
            left = wanted - sum(map(len, done.counts.values()))
            done.add(stream.get(ENOUGH_S) for _ in range(left if number == 2 else left // 2))
            with subscriber.checkpoint():
                pass
            subscriber.terminate()
            wait_recorded(recorder, market.count)
    assert dict(done.counts) == market.runs(prefix=b"1")
