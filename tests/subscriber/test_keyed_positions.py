"""Positions of feeds with keys: subscribers and readers of streams resume exactly at any checkpoint."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from blackbox import Feed, Message, Publisher, Recorder, Subscriber
from blackbox.archive.consumer_positions import PositionFile
from blackbox.archive.serve.pieces import Pieces
from blackbox.block.position import Position
from blackbox.errors import NotConfirmedError, SubscriberError
from blackbox.testing import RawPublisher, wait_until
from tests.archive.archives import archived_feed
from tests.archive.recorders import feed_of, wait_recorded
from tests.archive.test_join import Heard, Market, Run, check_all
from tests.examples import first_of
from tests.lossy_proxy import LossyProxy
from tests.subscriber.test_checkpoints import ENOUGH_S, elsewhere_of


def begun(feed: Feed, since: Any, prefix: bytes = b"", **settings: Any) -> tuple[Subscriber, Heard]:
    subscriber = Subscriber(feed, repair_wait=600, **settings)
    heard = Heard(subscriber, prefix)
    subscriber.start(timeout=200, since=since)
    return subscriber, heard


@pytest.mark.parametrize(
    ("seed", "share", "lines", "prefix"),
    [
        *((1, 0.0, 1, b""), (5, 0.5, 2, b""), (6, 0.5, 2, b"1")),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in ((2, 0.0, 2, b""), (3, 0.3, 1, b""), (4, 0.3, 1, b""), (7, 0.3, 1, b"1"), (8, 0.3, 2, b"1"))
        ),
    ],
)
def test_checkpoints_at_any_moment_lose_nothing_and_repeat_nothing(
    tmp_path: Path, seed: int, share: float, lines: int, prefix: bytes
) -> None:
    """Checkpoints while archives deliver, at the switch to live, and live; later deliveries are discarded each time.

    Over bad lines a subscriber of some keys may receive later messages of one key before repaired messages of another.
    """
    chance = random.Random(seed)
    feed = archived_feed(lines=lines, key_bytes=2, block_bytes=8_192, heartbeat_ns=50_000_000)
    done: dict[Run, list[int]] = defaultdict(list)
    positions: Any = 0
    with (
        Publisher(feed, when_full="wait") as publisher,
        Recorder(feed, tmp_path, serve=True),
        LossyProxy(feed, share, seed) as proxy,
    ):
        with Market(publisher, seed) as market:
            wait_until(lambda: market.count > 3_000)
            market.slowly.set()
            for _ in range(4):
                subscriber, heard = begun(proxy.feed, positions, prefix, on_gap="repair")
                least = chance.choice((1, 50, 500))
                wait_until(lambda heard=heard, least=least: heard.count >= least, 60)  # type: ignore[misc]
                if chance.random() < 0.5:
                    subscriber.wait_live(60)
                with subscriber.checkpoint(60) as reached:
                    for run, counts in heard.counts.items():
                        done[run] += counts
                    heard.counts.clear()
                    positions = msgspec.json.decode(msgspec.json.encode(reached), type=dict[int, Position])
                subscriber.terminate()
                assert heard.gaps == {}
                assert prefix or heard.untrue == []
        subscriber, heard = begun(proxy.feed, positions, prefix, on_gap="repair")
        subscriber.wait_live(60)
        publisher.close()
        subscriber.run(until_end=True)
    for run, counts in heard.counts.items():
        done[run] += counts
    assert heard.gaps == {}
    assert prefix or heard.untrue == []
    assert done == market.runs(prefix=prefix)


def kept(subscriber: Subscriber) -> dict[int, Position]:
    """Make a checkpoint in the thread that reads, and store it as a user would."""
    with subscriber.checkpoint(60) as positions:
        return msgspec.json.decode(msgspec.json.encode(positions), type=dict[int, Position])


def test_what_was_sent_before_a_checkpoint_is_not_read_again(tmp_path: Path) -> None:
    """One key was quiet for long."""
    feed = archived_feed(key_bytes=2, heartbeat_ns=20_000_000)
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        market = Market(publisher)
        market.publish(range(90), 5_000)
        market.publish(range(1, 90), 5_000)
        wait_recorded(recorder, 10_000)
        subscriber, _ = begun(feed, 0)
        subscriber.wait_live()
        reached = kept(subscriber)
        subscriber.terminate()
        before = market.count
        market.publish(range(90), 1_000)
        subscriber, heard = begun(feed, reached)
        subscriber.wait_live(60)
        publisher.close()
        subscriber.run(until_end=True)
    check_all(heard, market.runs(before))
    received = subscriber.statistics().received
    assert (received.duplicates, received.stale) == (0, 0)


def test_keys_of_new_callbacks_have_no_position_until_the_publisher_confirms() -> None:
    """Messages sent before the callback was added are not missing."""
    feed = feed_of(key_bytes=2)
    with RawPublisher(feed, 5) as publisher:
        publisher.send(publisher.encode([(b"K1.x", b"")] * 60))
        publisher.send(publisher.encode([(b"K2.x", b"")] * 100))
        subscriber = Subscriber(feed)
        subscriber.on(b"K1.")(print)
        subscriber.start()
        publisher.confirms = False
        subscriber.on(b"K2.")(print)
        with pytest.raises(SubscriberError, match="new callbacks are not confirmed"), subscriber.checkpoint():
            pass
        publisher.confirms = True

        def is_confirmed() -> bool:
            publisher.heartbeat()  # after a few heartbeats it asks again
            with suppress(NotConfirmedError):
                subscriber.wait_confirmed(0.02)
                return True
            return False

        wait_until(is_confirmed)
        with subscriber.checkpoint() as positions:
            assert positions == {0: (5, 160)}
        subscriber.terminate()


def test_a_checkpoint_waits_for_the_end_of_a_publisher() -> None:
    """Its last heartbeat shows that nothing is missing. No other heartbeat follows."""
    feed = feed_of(key_bytes=2)
    with RawPublisher(feed, 5) as publisher, ThreadPoolExecutor(1) as pool:
        subscriber = Subscriber(feed)
        heard = Heard(subscriber, b"K1")
        subscriber.start()
        publisher.send(publisher.encode([(b"K1.x", b"")] * 5))
        publisher.send(publisher.encode([(b"K2.x", b"")] * 5))
        wait_until(lambda: heard.count == 5)
        found = pool.submit(kept, subscriber)
        wait_until(lambda: subscriber._supervisor.slices.running[0].status.state.wants_clean)
        publisher.heartbeat(end=True)
        assert found.result() == {0: (5, 10)}
        subscriber.terminate()


def test_a_stop_before_a_heartbeat_has_no_exact_position(tmp_path: Path) -> None:
    """A named consumer keeps its last exact position."""
    feed = archived_feed(key_bytes=2)
    with RawPublisher(feed, 5) as publisher:
        subscriber = Subscriber(feed, name="strategy-1", positions=tmp_path, checkpoint_interval=1_000)
        heard = Heard(subscriber, b"K1")
        subscriber.start()
        for count in (5, 10):
            publisher.send(publisher.encode([(b"K1.x", b"")] * 5))
            wait_until(lambda count=count: heard.count == count)  # type: ignore[misc]
            if count == 5:
                publisher.heartbeat()
                assert kept(subscriber) == {0: (5, 5)}
        subscriber.stop()
        with pytest.raises(SubscriberError, match="ended before a heartbeat had shown"):
            kept(subscriber)
    stored = PositionFile(tmp_path, "strategy-1").read()
    assert stored is not None
    assert stored.slices == {0: (5, 5)}


def test_a_checkpoint_waits_until_archives_find_the_start_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed, go_on, real = archived_feed(key_bytes=2), threading.Event(), Pieces.read

    def read(pieces: Pieces, *arguments: Any) -> Any:
        assert go_on.wait(200)
        return real(pieces, *arguments)

    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        market = Market(publisher)
        market.publish(range(20), 500)
        wait_recorded(recorder, 500)
        since = time.time_ns()
        market.publish(range(20), 500)
        wait_recorded(recorder, 1_000)
        monkeypatch.setattr(Pieces, "read", read)
        subscriber, heard = begun(feed, since)
        threading.Timer(0.2, go_on.set).start()
        positions = kept(subscriber)
        assert positions[0].epoch == publisher.epoch
        assert positions[0].sequence == 500 + heard.count
        subscriber.terminate()


def test_a_position_of_epoch_0_is_the_first_recorded_message(tmp_path: Path) -> None:
    """Messages sent before the recorder started are not a gap."""
    feed = archived_feed(key_bytes=2)
    with Publisher(feed, when_full="wait") as publisher:
        market = Market(publisher)
        market.publish(range(20), 500)
        with Recorder(feed, tmp_path, serve=True) as recorder:
            market.publish(range(20), 500)
            wait_recorded(recorder, 500)
            subscriber, heard = begun(feed, {0: (0, 0)})
            subscriber.wait_live(60)
            publisher.close()
            subscriber.run(until_end=True)
    check_all(heard, market.runs(500))


class Done:
    """Numbers in the payloads that a reader took, by epoch and key, over several lives of a consumer."""

    def __init__(self, feed: Feed) -> None:
        self.counts: dict[Run, list[int]] = defaultdict(list)
        self._size = feed.key_bytes

    def add(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.counts[message.batch.block.epoch, message.topic[: self._size]].append(int(message.payload))


def behind(told: dict[int, Position], done: dict[int, Position]) -> bool:
    """Return True if no position of `told` is ahead of `done`."""
    return all(each <= done[slice_id] for slice_id, each in told.items())


@pytest.mark.parametrize("seed", first_of(range(6), keep=2))
def test_a_reader_epochs_behind_resumes_exactly_once(tmp_path: Path, seed: int) -> None:
    """Its messages wait while epochs of the publisher pass; it makes a checkpoint anywhere, then ends."""
    chance = random.Random(seed)
    feed = archived_feed(key_bytes=2, block_bytes=4_096, heartbeat_ns=200_000_000)
    positions: Any
    done, sent, positions, count = Done(feed), dict[Run, list[int]](), None, 0
    recorder = Recorder(feed, tmp_path, serve=True)
    with ExitStack() as last, ExitStack() as stack:
        for round_ in range(5):
            subscriber = Subscriber(feed, on_gap="repair", repair_wait=600)
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
                    subscriber.start(timeout=200, since=positions)
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
        subscriber = Subscriber(feed, on_gap="repair", repair_wait=600)
        stream = subscriber.stream(b"", limit=1 << 20)
        subscriber.start(timeout=200, since=positions)
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
