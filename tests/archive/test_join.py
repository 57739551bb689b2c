"""A subscriber that starts in the past reads archives, then continues live without a gap."""

from __future__ import annotations

import datetime
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest
import zmq

from blackbox import Batch, CallbackError, Feed, Publisher, Recorder, Subscriber
from blackbox.archive.serve import block_reader, piece_reading
from blackbox.archive.serve.client import ArchiveClient
from blackbox.archive.serve.pieces import Pieces
from blackbox.archive.serve.server import ArchiveServer
from blackbox.block.gap import Gap
from blackbox.block.position import End, Position
from blackbox.errors import SubscriberError
from blackbox.receive.slices import catching_up
from blackbox.receive.slices.catching_up import Since
from blackbox.subscriber.start_position import Beginning, beginning_of
from blackbox.testing import RawPublisher, wait_until
from tests.archive.archives import Sent, archive_of, archived_feed, keep_silent
from tests.archive.recorders import MIB, days, feed_of, wait_recorded
from tests.examples import first_of
from tests.journals import Day, Put, Row
from tests.lossy_proxy import LossyProxy
from tests.receive.subscribers import nothing

Run = tuple[int, bytes]
"""An epoch and a key."""


class Heard:
    """Received messages by epoch and key: sequences, counts in payloads, and gaps as (first, count)."""

    def __init__(self, subscriber: Subscriber, prefix: bytes = b"") -> None:
        self.came: dict[Run, list[int]] = defaultdict(list)
        self.counts: dict[Run, list[int]] = defaultdict(list)
        self.gaps: dict[Run, list[tuple[int, int]]] = defaultdict(list)
        self.epochs: list[int] = []
        self.resets: list[int] = []
        """Messages received before each reset."""
        self.untrue: list[str] = []
        self.count = 0
        self._size = subscriber.feed.key_bytes
        self._reached = (0, -1)
        subscriber.on_batch(prefix)(self._batch)
        subscriber.on_epoch(lambda _, epoch: self.epochs.append(epoch))
        subscriber.on_gap(prefix)(self._gap)
        subscriber.on_reset(lambda: self.resets.append(self.count))

    def _batch(self, batch: Batch) -> None:
        key, numbers = batch.topics[0][: self._size], batch.sequence.tolist()
        self._take(key, batch.block.epoch, numbers)
        self.came[batch.block.epoch, key] += numbers
        self.counts[batch.block.epoch, key] += [int(payload or 0) for payload in batch.payload_list()]
        self.count += len(numbers)

    def _gap(self, gap: Gap) -> None:
        self._take(gap.key, gap.epoch, range(gap.sequence, gap.sequence + gap.count))
        self.gaps[gap.epoch, gap.key].append((gap.sequence, gap.count))

    def _take(self, key: bytes, epoch: int, numbers: list[int] | range) -> None:
        for number in numbers:
            if (epoch, number) <= self._reached:
                self.untrue.append(f"{number} of {key!r} in {epoch} arrived after {self._reached}")
            self._reached = (epoch, number)


def check(heard: Heard, expected: dict[Run, list[int]]) -> None:
    """Check the counts in payloads by epoch and key, and that nothing was reported lost or out of order."""
    assert (heard.gaps, heard.untrue) == ({}, [])
    assert heard.counts == expected


def check_all(heard: Heard, expected: dict[Run, list[int]]) -> None:
    """Check also that the sequences of each epoch are contiguous, for a subscriber of all keys."""
    check(heard, expected)
    for epoch in {epoch for epoch, _ in expected}:
        numbers = sorted(number for run, of_run in heard.came.items() if run[0] == epoch for number in of_run)
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


class Market:
    """Publishes varying numbers of messages of many two-byte keys until it is stopped."""

    def __init__(self, publisher: Publisher, seed: int = 1) -> None:
        self.published: dict[bytes, list[int]] = defaultdict(list)
        """Counts in the payloads by key: the number of messages of all keys published before."""
        self.count = 0
        self.publisher, self._random = publisher, random.Random(seed)
        self._ending, self.slowly = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def runs(self, first: int = 0, prefix: bytes = b"") -> dict[Run, list[int]]:
        """Return by epoch and key the counts from `first` on, of keys with a prefix."""
        wanted = {
            (self.publisher.epoch, key): [count for count in counts if count >= first]
            for key, counts in self.published.items()
            if key.startswith(prefix)
        }
        return {run: counts for run, counts in wanted.items() if counts}

    def publish(self, keys: range, count: int) -> None:
        for _ in range(count):
            key = b"%02d" % self._random.choice(keys)
            self.publisher.publish(key + b".x", b"%d" % self.count)
            self.published[key].append(self.count)
            self.count += 1
        self.publisher.flush()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ending.wait(0.05 if self.slowly.is_set() else 0.001):
            low = self._random.randrange(90)
            self.publish(range(low, low + 1 + self._random.randrange(10)), 50)


@pytest.mark.parametrize(("share", "hwm_blocks"), [(0, 16), (0.3, 2_000)])
def test_joining_while_the_feed_runs(
    tmp_path: Path, share: float, hwm_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive answers after live blocks were dropped for lack of room (16 blocks), or during losses (30 %)."""
    feed = archived_feed(key_bytes=2, block_bytes=8_192)
    answers, real = threading.Event(), Pieces.read

    def read(pieces: Pieces, *arguments: Any) -> Any:
        assert answers.wait(200)
        return real(pieces, *arguments)

    monkeypatch.setattr(Pieces, "read", read)
    with (
        Publisher(feed, when_full="wait") as publisher,
        Recorder(feed, tmp_path, serve=True, segment_bytes=MIB),
        LossyProxy(feed, share) as proxy,
    ):
        with Market(publisher) as market:
            wait_until(lambda: market.count > 5_000)
            subscriber = Subscriber(proxy.feed, on_gap="repair", hwm_blocks=hwm_blocks, repair_wait=600)
            heard = Heard(subscriber)
            subscriber.start(since=0, timeout=200)
            wait_until(lambda: subscriber.statistics().received.let_go > 0 or proxy.lost > 10)
            answers.set()
            market.slowly.set()
            subscriber.wait_live(60)
        publisher.close()
        subscriber.run(until_end=True)
    check_all(heard, market.runs())


@pytest.mark.parametrize(("on_gap", "prefixes"), [("tell", [b""]), ("repair", [b"1", b"42.x"])])
def test_from_a_time_on_while_some_keys_are_quiet(tmp_path: Path, on_gap: Any, prefixes: list[bytes]) -> None:
    """Keys quiet since then begin live, others begin at that time, and no wait for an archive is useless."""
    feed = archived_feed(key_bytes=2)
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        market = Market(publisher)
        market.publish(range(60), 2_000)
        wait_recorded(recorder, 2_000)
        since = time.time_ns()
        market.publish(range(30, 90), 500)
        subscriber = Subscriber(feed, on_gap=on_gap, repair_wait=60)
        heard = [Heard(subscriber, prefix) for prefix in prefixes]
        subscriber.start(since=since)
        subscriber.wait_live(60)
        market.publish(range(100), 1_000)
        publisher.close()
        subscriber.run(until_end=True)
    for each, prefix in zip(heard, prefixes, strict=True):
        check(each, market.runs(2_000, prefix[:2]))
    received = subscriber.statistics().received
    assert (received.gaps, received.catching_up) == (0, 0)


def test_joining_waits_while_archives_return_only_unwanted_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This takes longer than `repair_wait`. Messages recorded later are delivered, not reported lost."""
    feed, elsewhere = archived_feed(key_bytes=2), feed_of(key_bytes=2)
    has_no_more, real, passed_s = threading.Event(), Pieces.read, [0.0]

    def read(pieces: Pieces, *arguments: Any) -> Any:
        found = real(pieces, *arguments)
        passed_s[0] += 100.0 * (found.piece.state == "more")
        if found.piece.state == "later" and not found.blocks:
            has_no_more.set()
        return found

    monkeypatch.setattr(Pieces, "read", read)
    monkeypatch.setattr(block_reader, "awake_s", lambda: time.monotonic() + passed_s[0])
    monkeypatch.setattr(piece_reading, "PIECE_BLOCKS", 1)
    recording = msgspec.structs.replace(elsewhere, archives=feed.archives)
    with (
        RawPublisher(elsewhere, 5) as recorded,
        Recorder(recording, tmp_path, serve=True) as recorder,
        RawPublisher(feed, 5) as live,
    ):
        for key in (b"AA", *[b"BB"] * 50):
            recorded.send(recorded.encode([(key, b"")] * 5))
        wait_recorded(recorder, 255)
        live.sequences, live.ends = [260], [{b"AA": End(260, 10)}]
        subscriber = Subscriber(feed, repair_wait=60)
        heard, _ = Heard(subscriber, b"AA"), Heard(subscriber, b"C")
        subscriber.start(since=0)
        live.heartbeat()
        assert has_no_more.wait(200)
        recorded.send(recorded.encode([(b"AA", b"")] * 5))
        subscriber.wait_live(60)
        live.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert (heard.came, heard.gaps, heard.untrue) == ({(5, b"AA"): [*range(5), *range(255, 260)]}, {}, [])


@pytest.mark.parametrize("back", [300, 700, 9_000])
def test_a_number_of_messages_back_over_days_and_epochs(tmp_path: Path, back: int) -> None:
    """The last `back` messages and all later ones are delivered, so each key has its last messages."""
    feed = archived_feed(key_bytes=2)
    sent: dict[Run, list[int]] = {}
    with Publisher(feed) as publisher, Recorder(feed, tmp_path) as recorder:
        market = Market(publisher)
        for _ in range(10):
            market.publish(range(90), 50)
        wait_recorded(recorder, 500)
        sent |= market.runs()
    days(tmp_path, feed)[0].rename(tmp_path / feed.name / "2020-01-01")
    with Publisher(feed) as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        market = Market(publisher)
        for _ in range(10):
            market.publish(range(40, 90), 50)
        wait_recorded(recorder, 500)
        subscriber = Subscriber(feed, repair_wait=60)
        heard = Heard(subscriber)
        subscriber.start(back=back)
        subscriber.wait_live(60)
        wait_until(lambda: heard.count >= min(back, 1_000))
        assert heard.count == min(back, 1_000)
        market.publish(range(90), 500)
        publisher.close()
        subscriber.run(until_end=True)
        sent |= market.runs()
    check_all(heard, {run: sent[run][-len(counts) :] for run, counts in heard.counts.items()})
    assert heard.count == min(back, 1_000) + 500
    assert heard.epochs == sorted({epoch for epoch, _ in heard.counts})


@pytest.mark.parametrize(
    ("ranges", "back", "expected"),
    [
        ([(0, 10), (0, 100)], 10, 90),  # the first archive stopped earlier
        ([(0, 98), (97, 100)], 10, 90),  # the second began later
        ([(0, 98), (97, 100)], 200, 0),
        ([(50, 60), None], 4, 56),  # the second does not answer
    ],
)
def test_messages_back_are_counted_from_the_last_that_any_archive_has(
    tmp_path: Path, ranges: list[tuple[int, int] | None], back: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = archived_feed(2)
    with ExitStack() as stack:
        for endpoint, held in zip(feed.archives, ranges, strict=True):
            if held is None:
                keep_silent(monkeypatch, {endpoint})
                continue
            directory = tmp_path / endpoint[-5:] / feed.name
            day = Day(directory / "2026-11-20", feed)
            day.put(0, *(Put((Row(b"T", b""),), sequence, epoch=5) for sequence in range(*held)))
            stack.enter_context(ArchiveServer(directory, (endpoint,)))
        begin = beginning_of(feed, ArchiveClient(feed, timeout=200), Beginning(back=back), 60)
        assert begin is not None
        assert begin(0) == Since(Position(5, expected))


def test_messages_back_are_counted_over_days_with_more_slices(tmp_path: Path) -> None:
    feed = archived_feed()
    directory = tmp_path / feed.name
    for date, slices, first in (("2026-11-20", 2, 0), ("2026-11-21", 1, 3)):
        day = Day(directory / date, feed_of(slices), date=date)
        for slice_id in range(slices):
            day.put(slice_id, *(Put((Row(b"T", b""),), sequence, epoch=5) for sequence in range(first, first + 3)))
    with ArchiveServer(directory, feed.archives):
        begin = beginning_of(feed, ArchiveClient(feed, timeout=200), Beginning(back=5), 60)
        assert begin is not None
        assert begin(0) == Since(Position(5, 1))


def test_a_callback_for_other_keys_is_rejected_during_catch_up() -> None:
    feed = archived_feed(key_bytes=2)
    with RawPublisher(feed):
        subscriber = Subscriber(feed, repair_wait=60)
        Heard(subscriber, b"1")
        subscriber.start(since=0)
        Heard(subscriber, b"12")
        with pytest.raises(SubscriberError, match="for other keys was added while slice 0 catches up: add it"):
            Heard(subscriber, b"2")
        subscriber.terminate()


def test_a_loss_is_reported_after_a_new_callback_before_the_first_confirmation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscriber that started at a position knows the next sequences of its keys."""
    monkeypatch.setattr(catching_up, "awake_s", partial(next, count(step=1_000)))  # no wait for a confirmation
    feed = archived_feed(key_bytes=1)
    archived = [Sent(b"A", 5), Sent(b"A", 1, archives=0), Sent(b"A", 1)]
    with archive_of(feed, archived), RawPublisher(feed) as publisher:
        publisher.confirms = False
        subscriber = Subscriber(feed, repair_wait=1)
        heard = Heard(subscriber, b"A")
        thread = threading.Thread(target=partial(subscriber.start, since={0: (1, 0)}))
        thread.start()
        wait_until(lambda: b"A" in publisher.subscriptions(), what="a filter")
        publisher.sequences, publisher.ends = [5], [{b"A": End(5, 5)}]
        publisher.send(publisher.encode([(b"A.x", b"")]))
        wait_until(lambda: heard.count == 6, what="the first live message")
        publisher.sequences, publisher.ends = [8], [{b"A": End(8, 8)}]
        subscriber.on(b"B")(print)
        wait_until(lambda: b"B" in publisher.subscriptions(), what="a filter")
        publisher.confirms = True

        def is_started() -> bool:
            publisher.heartbeat()  # after several it asks again
            return not thread.is_alive()

        wait_until(is_started, what="a confirmation")
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert (heard.came, heard.gaps) == ({(1, b"A"): [*range(6)]}, {(1, b"A"): [(6, 2)]})


def record(tmp_path: Path, feed: Feed, count: int) -> None:
    """Record messages of one key."""
    with Publisher(feed) as publisher, Recorder(feed, tmp_path) as recorder:
        Market(publisher).publish(range(1), count)
        wait_recorded(recorder, count)


@contextmanager
def recorded_now(tmp_path: Path, parts: int, **settings: Any) -> Iterator[tuple[Market, Subscriber]]:
    """Yield a publisher of this many times 500 recorded messages, and a subscriber, which is run to its end."""
    feed = archived_feed(key_bytes=2)
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        market = Market(publisher)
        for _ in range(parts):
            market.publish(range(1), 500)
        wait_recorded(recorder, market.count)
        subscriber = Subscriber(feed, **settings)
        yield market, subscriber
        publisher.close()
        subscriber.run(until_end=True)


@pytest.mark.parametrize(
    "since",
    first_of(
        [
            lambda epoch: {0: (epoch, 777)},
            lambda epoch: 0,
            lambda epoch: "session",
            lambda epoch: "00:00Z",
            lambda epoch: datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1),
        ]
    ),
)
def test_from_a_start_in_the_past_then_live(tmp_path: Path, since: Callable[[int], Any]) -> None:
    with recorded_now(tmp_path, 10, on_gap="repair") as (market, subscriber):
        heard, start = Heard(subscriber), since(market.publisher.epoch)
        subscriber.start(since=start)
        subscriber.wait_live()
        assert heard.count <= 5_000
        market.publish(range(1), 500)
    check_all(heard, market.runs(777 if isinstance(start, dict) else 0))
    assert heard.resets == []
    received = subscriber.statistics().received
    assert (received.repaired, received.gaps, received.catching_up) == (heard.count - 500, 0, 0)


@pytest.mark.parametrize("workers", [0, 3])
def test_the_live_hook_is_called_between_messages(tmp_path: Path, workers: int) -> None:
    live: list[tuple[int, int]] = []
    running = 0
    with recorded_now(tmp_path, 10, workers=workers) as (market, subscriber):
        heard = [0] * 6

        def count(number: int) -> Callable[[Batch], None]:
            def take(batch: Batch) -> None:
                nonlocal running
                running += 1
                heard[number] += len(batch)
                running -= 1

            return take

        for number in range(len(heard)):
            subscriber.on_batch(b"")(count(number))

        @subscriber.on_live
        def _(slice_id: int) -> None:
            live.append((slice_id, running))
            assert heard == [5_000] * len(heard)

        subscriber.start(back=5_000)
        subscriber.wait_live()
        market.publish(range(1), 500)
    assert heard == [5_500] * len(heard)
    assert live == [(0, 0)]


def test_an_error_in_the_live_hook_ends_the_subscriber(tmp_path: Path) -> None:
    failure = "slice 0: on_live raised ValueError: not slice 0"
    with pytest.raises(CallbackError, match=failure), recorded_now(tmp_path, 1) as (_, subscriber):
        subscriber.on_batch(b"")(nothing)

        @subscriber.on_live
        def _(slice_id: int) -> None:
            raise ValueError(f"not slice {slice_id}")

        subscriber.start(since=0)


@pytest.mark.parametrize("before", [0, 100])
def test_messages_that_archives_lack_before_live_are_a_gap(tmp_path: Path, before: int) -> None:
    """The archives have an earlier epoch or nothing, and no recorder is running."""
    feed = archived_feed(heartbeat_ns=60_000_000_000)  # a longer silence would cause a reconnect
    record(tmp_path, feed, before)
    subscriber = Subscriber(feed, repair_wait=2)
    heard = Heard(subscriber)
    with ArchiveServer(tmp_path / feed.name, feed.archives), RawPublisher(feed, epoch=time.time_ns()) as publisher:
        publisher.send(publisher.encode([(b"A", b"")] * 3))
        subscriber.start(since=0)
        publisher.heartbeat()
        subscriber.wait_live()
        publisher.send(publisher.encode([(b"A", b"")] * 2))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert [number for of_run in heard.came.values() for number in of_run] == [*range(before), 3, 4]
    assert (list(heard.gaps.values()), heard.untrue) == ([[(0, 3)]], [])


def test_a_subscriber_that_needs_an_absent_archive_ends() -> None:
    subscriber = Subscriber(feed := archived_feed(), repair_wait=0.1)
    subscriber.on(b"")(nothing)
    with (
        RawPublisher(feed),
        pytest.raises(SubscriberError, match="slice 0 could not catch up: no archive of feed 'tape' answered"),
    ):
        subscriber.start(since=0).wait_live()


def test_an_archive_that_does_not_answer_at_first_is_asked_again(tmp_path: Path) -> None:
    feed = archived_feed()
    record(tmp_path, feed, 1_000)
    subscriber = Subscriber(feed)
    heard = Heard(subscriber)
    starting = threading.Thread(target=subscriber.start, kwargs={"timeout": 60, "back": 300})
    with Publisher(feed):
        with zmq.Context() as context, context.socket(zmq.ROUTER) as deaf:
            deaf.bind(feed.archives[0])
            starting.start()
            assert deaf.poll(60_000)
        with ArchiveServer(tmp_path / feed.name, feed.archives):
            starting.join()
            subscriber.wait_live()
    subscriber.run(until_end=True)
    assert list(heard.came.values()) == [list(range(700, 1_000))]
