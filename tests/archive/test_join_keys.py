"""A subscriber of a feed with keys that starts in the past, then continues live without a gap."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, Self

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blackbox import Batch, Feed, Publisher, Recorder, Subscriber
from blackbox.archive.serve import piece_reading
from blackbox.archive.serve.pieces import Pieces
from blackbox.archive.serve.server import ArchiveServer
from blackbox.block.gap import Gap
from blackbox.block.position import End
from blackbox.errors import SubscriberError
from blackbox.receive.slices import catching_up
from blackbox.testing import RawPublisher, wait_until
from tests.archive.archives import archived_feed
from tests.archive.recorders import MIB, days, feed_of, wait_recorded
from tests.examples import examples
from tests.lossy_proxy import LossyProxy

Run = tuple[int, bytes]
"""An epoch and a key."""


class Heard:
    """Received messages by epoch and key: sequences, counts in payloads, and gaps as (first, count)."""

    def __init__(self, subscriber: Subscriber, prefix: bytes = b"") -> None:
        self.came: dict[Run, list[int]] = defaultdict(list)
        self.counts: dict[Run, list[int]] = defaultdict(list)
        self.gaps: dict[Run, list[tuple[int, int]]] = defaultdict(list)
        self.bounds: set[Run] = set()
        """Epochs with a gap that has an upper bound as its count."""
        self.epochs: list[int] = []
        self.untrue: list[str] = []
        self.count = 0
        self._size = subscriber.feed.key_bytes
        self._reached = (0, -1)
        subscriber.on_batch(prefix)(self._batch)
        subscriber.on_epoch(lambda _, epoch: self.epochs.append(epoch))
        subscriber.on_gap(prefix)(self._gap)

    def _batch(self, batch: Batch) -> None:
        key, numbers = batch.topics[0][: self._size], batch.sequence.tolist()
        self._take(key, batch.block.epoch, numbers)
        self.came[batch.block.epoch, key] += numbers
        self.counts[batch.block.epoch, key] += [int(payload or 0) for payload in batch.payload_list()]
        self.count += len(numbers)

    def _gap(self, gap: Gap) -> None:
        self._take(gap.key, gap.epoch, range(gap.sequence, gap.sequence + gap.count))
        self.gaps[gap.epoch, gap.key].append((gap.sequence, gap.count))
        if gap.is_upper_bound:
            self.bounds.add((gap.epoch, gap.key))

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
        self._publisher, self._random = publisher, random.Random(seed)
        self._ending, self.slowly = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def runs(self, first: int = 0, prefix: bytes = b"") -> dict[Run, list[int]]:
        """Return by epoch and key the counts from `first` on, of keys with a prefix."""
        wanted = {
            (self._publisher.epoch, key): [count for count in counts if count >= first]
            for key, counts in self.published.items()
            if key.startswith(prefix)
        }
        return {run: counts for run, counts in wanted.items() if counts}

    def publish(self, keys: range, count: int) -> None:
        for _ in range(count):
            key = b"%02d" % self._random.choice(keys)
            self._publisher.publish(key + b".x", b"%d" % self.count)
            self.published[key].append(self.count)
            self.count += 1
        self._publisher.flush()

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
        assert answers.wait(60)
        return real(pieces, *arguments)

    monkeypatch.setattr(Pieces, "read", read)
    with (
        Publisher(feed, when_full="wait") as publisher,
        Recorder(feed, tmp_path, serve=True, segment_bytes=MIB),
        LossyProxy(feed, share) as proxy,
    ):
        with Market(publisher) as market:
            wait_until(lambda: market.count > 5_000, 60)
            subscriber = Subscriber(proxy.feed, on_gap="repair", hwm_blocks=hwm_blocks, repair_wait=600)
            heard = Heard(subscriber)
            subscriber.start(since=0, timeout=60)
            wait_until(lambda: subscriber.statistics().received.let_go > 0 or proxy.lost > 10, 60)
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
    has_no_more, real = threading.Event(), Pieces.read

    def read(pieces: Pieces, *arguments: Any) -> Any:
        time.sleep(0.05)
        found = real(pieces, *arguments)
        if found.piece.state == "later" and not found.blocks:
            has_no_more.set()
        return found

    monkeypatch.setattr(Pieces, "read", read)
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
        subscriber = Subscriber(feed, repair_wait=2)
        heard, _ = Heard(subscriber, b"AA"), Heard(subscriber, b"C")
        subscriber.start(since=0)
        live.heartbeat()
        assert has_no_more.wait(60)
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


class Sent(NamedTuple):
    """A block, and whether it is archived or lost."""

    key: bytes
    messages: int
    archived: tuple[bool, bool]
    """True for each archive that has it. The second archive is optional."""
    is_lost: bool
    begins_run: bool
    """True if a new epoch begins with it."""


SENT = st.lists(
    st.builds(
        Sent,
        st.sampled_from((b"A", b"B", b"C")),
        st.integers(1, 4),
        st.tuples(st.sampled_from((True, True, False)), st.sampled_from((True, True, False))),
        st.sampled_from((False, False, True)),
        st.sampled_from((False,) * 9 + (True,)),
    ),
    min_size=1,
    max_size=24,
)


def send_all(publisher: RawPublisher, blocks: list[Sent], which: list[bool]) -> None:
    for block, is_sent in zip(blocks, which, strict=True):
        if block.begins_run:
            publisher.epoch, publisher.sequences, publisher.ends = publisher.epoch + 1, [0], [{}]
            publisher.heartbeat()
            publisher.heartbeat()  # an epoch is accepted at its second block
        encoded = publisher.encode([(block.key + b".x", b"")] * block.messages)
        if is_sent:
            publisher.send(encoded)


def runs_of(blocks: list[Sent]) -> list[tuple[int, range]]:
    """Return the epoch and the sequences of each block."""
    epoch, following, found = 1, 0, []
    for block in blocks:
        if block.begins_run:
            epoch, following = epoch + 1, 0
        found.append((epoch, range(following, following + block.messages)))
        following += block.messages
    return found


@contextmanager
def archive_of(feed: Feed, number: int, blocks: list[Sent]) -> Iterator[None]:
    which = [block.archived[number] for block in blocks]
    with TemporaryDirectory() as directory:
        elsewhere = feed_of(key_bytes=1)
        with RawPublisher(elsewhere) as publisher, Recorder(elsewhere, directory) as recorder:
            send_all(publisher, blocks, which)
            wait_recorded(
                recorder, sum(block.messages for block, is_there in zip(blocks, which, strict=True) if is_there)
            )
            publisher.heartbeat(end=True)
            wait_until(lambda: recorder.is_finished, 60, "the archive has everything")
        with ArchiveServer(Path(directory) / feed.name, feed.archives[number : number + 1]):
            yield


def test_a_loss_is_reported_after_a_new_callback_before_the_first_confirmation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subscriber that started at a position knows the next sequences of its keys."""
    monkeypatch.setattr(catching_up, "awake_s", partial(next, count(step=1_000)))  # no wait for a confirmation
    feed = archived_feed(key_bytes=1)
    archived = [
        Sent(b"A", many, (has, has), is_lost=True, begins_run=False) for many, has in ((5, True), (1, False), (1, True))
    ]
    with archive_of(feed, 0, archived), RawPublisher(feed) as publisher:
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


@settings(deadline=None, max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(SENT, st.floats(0, 1), st.floats(0, 1), st.booleans(), st.integers(1, 2), st.sampled_from((b"", b"", b"A")))
def test_every_message_is_delivered_or_reported_once(
    blocks: list[Sent], started: float, waited: float, repairs: bool, archives: int, wanted: bytes
) -> None:
    """Messages are sent before the start, during catch-up and live; archives have most of them."""
    many = len(blocks)
    live_from = round(started * many)
    waits_at = live_from + round(waited * (many - live_from))
    # No archive is an epoch ahead of the live messages, because it would report messages that it lacks as lost.
    blocks = [
        block
        if at < waits_at
        else block._replace(begins_run=False, archived=(not block.is_lost or block.archived[0],) * 2)
        for at, block in enumerate(blocks)
    ]
    if archives == 1:
        blocks = [block._replace(archived=(block.archived[0], False)) for block in blocks]
    feed, which = archived_feed(archives, key_bytes=1), [not block.is_lost for block in blocks]
    confirmed = max((at + 1 for at in range(live_from) if which[at]), default=0)
    subscriber = Subscriber(feed, on_gap="repair" if repairs else "tell", repair_wait=0.7)
    heard = Heard(subscriber, wanted)
    with ExitStack() as stack:
        for number in range(archives):
            stack.enter_context(archive_of(feed, number, blocks))
        publisher = stack.enter_context(RawPublisher(feed))
        send_all(publisher, blocks[:live_from], which[:live_from])
        subscriber.start(since=0)
        send_all(publisher, blocks[live_from:waits_at], which[live_from:waits_at])
        publisher.heartbeat()
        publisher.heartbeat()
        subscriber.wait_live(60)
        send_all(publisher, blocks[waits_at:], which[waits_at:])
        publisher.heartbeat()
        publisher.heartbeat()
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert wanted or heard.untrue == []
    runs = runs_of(blocks)
    for epoch in dict.fromkeys(epoch for epoch, _ in runs):
        check_run(epoch, blocks, runs, heard, (confirmed, waits_at), repairs, wanted)


def check_run(
    run: int,
    blocks: list[Sent],
    runs: list[tuple[int, range]],
    heard: Heard,
    begins: tuple[int, int],
    repairs: bool,
    wanted: bytes,
) -> None:
    """Check the messages received of one epoch.

    `begins`: number of blocks that the publisher had sent at the start, and when the slice was live at the latest.
    """
    confirmed, waits_at = begins
    came = [number for (epoch, _), of_run in heard.came.items() if epoch == run for number in of_run]
    ranges = [gap for (epoch, key), of_run in heard.gaps.items() if (epoch, key) == (run, b"") for gap in of_run]
    lost = {number for first, count in ranges for number in range(first, first + count)}
    archived, live, sent, last = set[int](), set[int](), set[int](), runs[-1][0]
    for place, (block, (epoch, numbers)) in enumerate(zip(blocks, runs, strict=True)):
        if epoch == run and block.key.startswith(wanted):
            archived |= {*numbers} if any(block.archived) and (repairs or place < confirmed) else set()
            live |= {*numbers} if place >= waits_at and not block.is_lost else set()
            sent |= {*numbers}
    assert len(came) == len({*came}), "no duplicates"
    told = sorted({*came, *lost})
    if wanted:
        gaps = heard.gaps.get((run, wanted), [])
        start, of_key = min([*told, *(first for first, _ in gaps)], default=0), sum(count for _, count in gaps)
        lacks = {number for number in sent - {*came} if number >= start and (told or gaps)}
        # A gap of any keys is an upper bound and may overlap a gap of the key.
        known = {number for number in lacks - lost if run == last or (told and number < told[-1])}
        assert of_key >= len(known), "no message of a key is skipped"
        assert of_key <= len(lacks) or (run, wanted) in heard.bounds, "no message of another key is counted"
        assert of_key == 0 or lacks, "no false gap"
    else:
        assert told == list(range(told[0], told[-1] + 1) if told else ()), "no message is skipped"
        assert len(told) == len(came) + len(lost), "no duplicates"
        assert not heard.bounds
    assert archived - set(came) == set(), "archived messages are delivered"
    assert live - set(came) == set(), "live messages are delivered"
    if run == last and archived and not wanted:
        assert told[-1] == max(numbers[-1] for epoch, numbers in runs if epoch == run), "its end was reported"
