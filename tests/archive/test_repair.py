"""A repairing subscriber receives missed messages from archives, once and in order, or reports them as lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blackbox import Batch, ConfigError, Feed, Gap, Publisher, Recorder, SlowPolicy, Subscriber
from blackbox.archive.serve.server import ArchiveServer
from blackbox.testing import RawPublisher, wait_until
from tests.archive.archives import archived_feed, free_endpoint
from tests.archive.recorders import feed_of, publish_numbered, wait_recorded
from tests.examples import examples
from tests.lossy_proxy import LossyProxy
from tests.subscribe.subscribers import nothing

KEYS = (b"A", b"B")
Events = list[tuple[int, int]]
"""Delivered sequences as (sequence, 0), and reported gaps as (first, count)."""


class Sent(NamedTuple):
    """A block of one key, and whether it is archived or lost."""

    key: bytes
    messages: int
    is_lost: bool
    is_archived: bool


def expected(blocks: list[Sent]) -> Events:
    """Return the expected calls of a callback, from a plain loop."""
    seen: Events = []
    following = 0
    for block in blocks:
        first = following
        following += block.messages
        if block.is_lost and not block.is_archived:
            add_gap(seen, first, block.messages)
        else:
            seen += [(number, 0) for number in range(first, following)]
    return seen


def add_gap(events: Events, first: int, count: int) -> None:
    """Add a gap, joined with a directly preceding one."""
    if events and events[-1][1] and sum(events[-1]) == first:
        first, count = events[-1][0], events[-1][1] + count
        del events[-1]
    events.append((first, count))


def send_all(publisher: RawPublisher, blocks: list[Sent], which: list[bool]) -> None:
    for block, wanted in zip(blocks, which, strict=True):
        encoded = publisher.encode([(block.key + b".x", b"payload")] * block.messages)
        if wanted:
            publisher.send(encoded)


@contextmanager
def archive_of(feed: Feed, blocks: list[Sent]) -> Iterator[ArchiveServer]:
    """Yield an archive with the archived blocks."""
    with TemporaryDirectory() as directory:
        elsewhere = feed_of(key_bytes=feed.key_bytes)
        with RawPublisher(elsewhere) as publisher, Recorder(elsewhere, directory) as recorder:
            send_all(publisher, blocks, [block.is_archived for block in blocks])
            wait_recorded(recorder, sum(block.messages for block in blocks if block.is_archived))
            publisher.heartbeat(end=True)
            wait_until(lambda: recorder.is_finished, 60, "the archive has everything")
        with ArchiveServer(Path(directory) / feed.name, feed.archives) as archive:
            yield archive


def listen(subscriber: Subscriber) -> Events:
    """Collect messages and gaps, with one worker."""
    seen: Events = []

    @subscriber.on_batch(b"")
    def _(batch: Batch) -> None:
        seen.extend((number, 0) for number in batch.sequence.tolist())

    @subscriber.on_gap(b"")
    def _(gap: Gap) -> None:
        add_gap(seen, gap.sequence, gap.count)

    return seen


blocks_strategy = st.lists(
    st.builds(Sent, st.sampled_from(KEYS), st.integers(1, 4), st.booleans(), st.sampled_from([True, True, False])),
    min_size=1,
    max_size=20,
)


@settings(deadline=None, max_examples=examples(64), suppress_health_check=[HealthCheck.too_slow])
@given(blocks_strategy, st.sampled_from([0, 1]))
def test_missed_messages_are_delivered_in_order_or_reported(blocks: list[Sent], key_bytes: int) -> None:
    feed = archived_feed(key_bytes=key_bytes)
    subscriber = Subscriber(feed, on_gap="repair", repair_wait=60)
    seen = listen(subscriber)
    with archive_of(feed, blocks), RawPublisher(feed) as publisher:
        subscriber.start()
        send_all(publisher, blocks, [not block.is_lost for block in blocks])
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert seen == expected(blocks)
    received = subscriber.statistics().received
    assert received.repaired == sum(block.messages for block in blocks if block.is_lost and block.is_archived)
    assert received.gaps == sum(block.messages for block in blocks if block.is_lost and not block.is_archived)


def test_repair_without_archives_is_rejected() -> None:
    with pytest.raises(ConfigError, match="feed 'tape' had no archives"):
        Subscriber(feed_of(), on_gap="repair")


def test_gaps_are_reported_if_no_archive_answers(caplog: pytest.LogCaptureFixture) -> None:
    feed = archived_feed()
    subscriber = Subscriber(feed, on_gap="repair", repair_wait=0.3)
    seen = listen(subscriber)
    blocks = [Sent(b"A", 2, lost, False) for lost in (False, True, False, True, False, True)]
    with RawPublisher(feed) as publisher:
        subscriber.start()
        send_all(publisher, blocks, [not block.is_lost for block in blocks])
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert seen == expected(blocks)
    assert "slice 0: missing messages could not be fetched: no archive of feed 'tape' answered" in caplog.text


def test_the_next_archive_is_asked_when_the_first_does_not_answer() -> None:
    feed = archived_feed()
    two = msgspec.structs.replace(feed, archives=(free_endpoint(), *feed.archives))
    subscriber = Subscriber(two, on_gap="repair", repair_wait=6)
    seen = listen(subscriber)
    blocks = [Sent(b"A", 2, lost, True) for lost in (False, True, False)]
    with archive_of(feed, blocks), RawPublisher(two) as publisher:
        subscriber.start()
        send_all(publisher, blocks, [not block.is_lost for block in blocks])
        publisher.heartbeat()
        wait_until(lambda: len(seen) == 6)
        subscriber.stop()
    assert seen == expected(blocks)


def test_many_gaps_are_requested_at_once() -> None:
    """One heartbeat shows them all: each key has lost all its messages."""
    feed = archived_feed(key_bytes=3, block_bytes=8_192)
    subscriber = Subscriber(feed, on_gap="repair", repair_wait=60)
    seen = listen(subscriber)
    blocks = [Sent(b"%03d" % number, 2, True, True) for number in range(500)]
    with archive_of(feed, blocks) as archive, RawPublisher(feed) as publisher:
        subscriber.start()
        before = archive.statistics().answered
        send_all(publisher, blocks, [False] * len(blocks))
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
        asked = archive.statistics().answered - before
    assert seen == expected(blocks)
    assert asked < 10


def test_messages_that_one_archive_lacks_are_read_from_the_next() -> None:
    feed, other = archived_feed(), archived_feed()
    two = msgspec.structs.replace(feed, archives=(*feed.archives, *other.archives))
    subscriber = Subscriber(two, on_gap="repair", repair_wait=60)
    seen = listen(subscriber)
    blocks = [Sent(b"A", 2, number % 2 == 1, number < 5) for number in range(9)]
    rest = [block._replace(is_archived=block.is_archived is False) for block in blocks]
    with archive_of(feed, blocks), archive_of(other, rest), RawPublisher(two) as publisher:
        subscriber.start()
        send_all(publisher, blocks, [not block.is_lost for block in blocks])
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert seen == [(number, 0) for number in range(18)]


def test_waiting_for_archives_is_not_lag() -> None:
    """The archive answers after more than `max_lag_ns`, at which the policy would end the subscriber."""
    limit_ns = 1_000_000_000
    feed = archived_feed(max_lag_ns=limit_ns)
    subscriber = Subscriber(feed, on_gap="repair", repair_wait=20, slow=SlowPolicy("raise", start_grace=0))
    seen = listen(subscriber)
    blocks = [Sent(b"A", 2, lost, True) for lost in (False, True, *[False] * 40)]
    with RawPublisher(feed) as publisher:
        subscriber.start()
        send_all(publisher, blocks, [not block.is_lost for block in blocks])
        wait_until(lambda: subscriber.statistics().received.held == 40)
        late_ns = time.monotonic_ns() + limit_ns
        wait_until(lambda: time.monotonic_ns() > late_ns)
        with archive_of(feed, blocks):
            wait_until(lambda: len(seen) == 84, timeout=60)
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert seen == expected(blocks)
    statistics = subscriber.statistics()
    assert statistics.lag.slow_blocks == 0
    assert statistics.lag.max_ns > limit_ns, "the statistics still have the lag"


def test_messages_beyond_the_waiting_limit_are_a_gap() -> None:
    feed = archived_feed(block_bytes=4_096)
    subscriber = Subscriber(feed, on_gap="repair", repair_wait=30, hwm_blocks=1)
    seen = listen(subscriber)
    blocks = [Sent(b"A", 4, lost, False) for lost in (False, True, *[False] * 60)]
    with RawPublisher(feed) as publisher:  # no archive answers
        subscriber.start()
        for part in (blocks[:2], blocks[2:]):
            send_all(publisher, part, [not block.is_lost for block in part])
        wait_until(lambda: (4, 4) in seen)
        subscriber.terminate()
    assert subscriber.statistics().received.gaps == 4


def test_a_subscriber_stopped_during_a_fetch_ends() -> None:
    feed = archived_feed()
    subscriber = Subscriber(feed, on_gap="repair", repair_wait=1)
    subscriber.on(b"")(nothing)
    blocks = [Sent(b"A", 2, lost, False) for lost in (False, True, False)]
    with RawPublisher(feed) as publisher:  # no archive answers
        subscriber.start()
        send_all(publisher, blocks, [not block.is_lost for block in blocks])
        wait_until(lambda: subscriber.statistics().received.held == 1)
        subscriber.stop()
    received = subscriber.statistics().received
    assert (received.messages, received.gaps) == (4, 2)
    assert subscriber.statistics().delivery.delivered == 4


@pytest.mark.parametrize("share", [0, 0.3, 0.8])
@pytest.mark.parametrize("key_bytes", [0, 1])
def test_a_line_that_loses_blocks_loses_no_messages(tmp_path: Path, share: float, key_bytes: int) -> None:
    feed = archived_feed(key_bytes=key_bytes)
    with (
        Publisher(feed, when_full="wait") as publisher,
        Recorder(feed, tmp_path, serve=True),
        LossyProxy(feed, share) as proxy,
    ):
        subscriber = Subscriber(proxy.feed, on_gap="repair", repair_wait=30)
        seen = listen(subscriber)
        subscriber.start()
        for number in range(600):
            publisher.publish(KEYS[number % 2] + b".x", b"%d" % number)
            if number % 3 == 0:
                publisher.flush()
        publisher.close()
        subscriber.run(until_end=True)
    assert seen == [(number, 0) for number in range(600)]
    assert (subscriber.statistics().received.repaired > 0) == (proxy.lost > 0) == (share > 0)


@pytest.mark.parametrize("lines_lost", [(0,), (0, 1)])
def test_messages_lost_on_both_lines_are_read_from_archives(lines_lost: tuple[int, ...]) -> None:
    feed = msgspec.structs.replace(archived_feed(), slices=Feed.local("tape", slices=1, lines=2).slices)
    subscriber = Subscriber(feed, on_gap="repair", repair_wait=60, line_wait=60)
    seen = listen(subscriber)
    blocks = [Sent(b"A", 2, False, True)] * 9
    with archive_of(feed, blocks), RawPublisher(feed) as publisher:
        subscriber.start()
        for number in range(9):
            lines = [0, 1] if number % 4 else [line for line in (0, 1) if line not in lines_lost]
            publisher.send(publisher.encode([(b"A.x", b"payload")] * 2), lines)
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert seen == expected(blocks)
    assert subscriber.statistics().received.repaired == (6 if lines_lost == (0, 1) else 0)


def test_a_gap_between_blocks_of_different_lines_is_repaired() -> None:
    feed = msgspec.structs.replace(archived_feed(), slices=Feed.local("tape", slices=1, lines=2).slices)
    subscriber = Subscriber(feed, on_gap="repair", repair_wait=30)
    seen = listen(subscriber)
    blocks = [Sent(b"A", 2, False, True)] * 6
    lines: tuple[list[int], ...] = ([0, 1], [], [0, 1], [], [0], [1])
    held = (0, 0, 2, 2, 3, 4)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        for on, waiting in zip(lines, held, strict=True):
            publisher.send(publisher.encode([(b"A.x", b"payload")] * 2), on)
            wait_until(lambda waiting=waiting: subscriber.statistics().received.held == waiting)  # type: ignore[misc]
        with archive_of(feed, blocks):
            publisher.heartbeat(end=True)
            subscriber.run(until_end=True)
    assert seen == expected(blocks)


def test_messages_missing_within_one_archive_are_read_in_order_from_the_next() -> None:
    feed, other = archived_feed(), archived_feed()
    two = msgspec.structs.replace(feed, archives=(*feed.archives, *other.archives))
    subscriber = Subscriber(two, on_gap="repair", repair_wait=60)
    seen = listen(subscriber)
    blocks = [Sent(b"A", 2, number not in (0, 9), number % 2 == 0) for number in range(10)]
    rest = [block._replace(is_archived=not block.is_archived) for block in blocks]
    with archive_of(feed, blocks), archive_of(other, rest), RawPublisher(two) as publisher:
        subscriber.start()
        send_all(publisher, blocks, [not block.is_lost for block in blocks])
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert seen == [(number, 0) for number in range(20)]


def test_messages_beyond_the_waiting_limit_are_read_from_the_archive(tmp_path: Path) -> None:
    """All waiting messages are dropped and read from the archive, without duplicates or gaps."""
    feed = archived_feed(block_bytes=4_096)
    with (
        Publisher(feed, when_full="wait") as publisher,
        Recorder(feed, tmp_path, serve=True),
        LossyProxy(feed, 0.3) as proxy,
    ):
        subscriber = Subscriber(proxy.feed, on_gap="repair", repair_wait=60, hwm_blocks=2)
        numbers: list[int] = []
        subscriber.on_batch(b"")(lambda batch: numbers.extend(batch.sequence.tolist()))
        subscriber.start()
        for start in range(0, 20_000, 20):
            publish_numbered(publisher, start, 20)
            publisher.flush()
        publisher.close()
        subscriber.run(until_end=True)
    assert numbers == list(range(20_000))
    received = subscriber.statistics().received
    assert (received.gaps, received.catching_up) == (0, 0)
    assert received.let_go > 0


def test_lost_messages_of_an_epoch_are_delivered_before_the_next_epoch(tmp_path: Path) -> None:
    feed = archived_feed()
    recorder = Recorder(feed, tmp_path, serve=True)
    heard: list[tuple[int, int]] = []
    begun: list[tuple[int, int]] = []
    sent: list[tuple[int, int]] = []
    with LossyProxy(feed, 0.8) as proxy:
        subscriber = Subscriber(proxy.feed, on_gap="repair", repair_wait=20)
        subscriber.on_batch(b"")(lambda batch: heard.extend((batch.block.epoch, n) for n in batch.sequence.tolist()))
        subscriber.on_epoch(lambda _slice_id, epoch: begun.append((epoch, len(heard))))
        for run in range(4):
            with Publisher(feed, when_full="wait") as publisher:
                if run == 0:
                    recorder.start()
                    subscriber.start()
                publisher.wait_for_subscribers(count=2)
                for start in range(0, 600, 20):
                    publish_numbered(publisher, start, 20)
                    publisher.flush()
                sent += [(publisher.epoch, number) for number in range(600)]
                wait_recorded(recorder, len(sent))
        subscriber.run(until_end=True)
    recorder.stop()
    assert heard == sent
    assert begun == [(epoch, 600 * run) for run, epoch in enumerate(dict.fromkeys(epoch for epoch, _ in sent))]
    assert subscriber.statistics().received.gaps == 0


@pytest.mark.parametrize("has_other", [False, True])
def test_an_archive_that_is_down_is_asked_again_until_it_is_back(has_other: bool) -> None:
    """Another archive answers that it lacks the messages, which is not yet a gap."""
    feed, other = archived_feed(), archived_feed()
    archives = (*other.archives, *feed.archives) if has_other else feed.archives
    several = msgspec.structs.replace(feed, archives=archives)
    subscriber = Subscriber(several, on_gap="repair", repair_wait=60)
    seen = listen(subscriber)
    blocks = [Sent(b"A", 2, number in (1, 3), number != 5) for number in range(8)]
    poor = [block._replace(is_archived=number not in (1, 5)) for number, block in enumerate(blocks)]
    with ExitStack() as stack:
        if has_other:
            stack.enter_context(archive_of(other, poor))
        publisher = stack.enter_context(RawPublisher(several))
        subscriber.start()
        send_all(publisher, blocks, [not block.is_lost for block in blocks])
        wait_until(lambda: subscriber.statistics().received.held > 0)
        late = time.monotonic() + 2.5  # longer than the timeout of one answer
        wait_until(lambda: time.monotonic() > late)
        with archive_of(feed, blocks):
            wait_until(lambda: len(seen) == 16, timeout=60)
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert seen == [(number, 0) for number in range(16)]


def test_a_subscriber_waits_once_for_an_archive_that_stays_down() -> None:
    """Messages that the other archive lacks are reported after the wait; later gaps do not wait."""
    feed = archived_feed()
    two = msgspec.structs.replace(feed, archives=(*feed.archives, free_endpoint()))
    subscriber = Subscriber(two, on_gap="repair", repair_wait=0.6)
    seen = listen(subscriber)
    blocks = [Sent(b"A", 2, number % 2 == 1, number == 3) for number in range(20)]
    with archive_of(feed, blocks), RawPublisher(two) as publisher:
        subscriber.start()
        for number in range(0, 20, 2):
            pair = blocks[number : number + 2]
            send_all(publisher, pair, [not block.is_lost for block in pair])
            publisher.heartbeat()
            wait_until(lambda number=number: sum(c or 1 for _, c in seen) == 2 * number + 4)  # type: ignore[misc]
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert seen == expected(blocks)


def test_gaps_are_repaired_once_archives_answer_again(caplog: pytest.LogCaptureFixture) -> None:
    feed = archived_feed()
    subscriber = Subscriber(feed, on_gap="repair", repair_wait=0.3)
    seen = listen(subscriber)
    blocks = [Sent(b"A", 2, number % 2 == 1, True) for number in range(10_000)]
    with RawPublisher(feed) as publisher:
        subscriber.start()
        send_all(publisher, blocks[:3], [not block.is_lost for block in blocks[:3]])
        wait_until(lambda: (2, 2) in seen)
        wait_until(lambda: "missing messages could not be fetched" in caplog.text)
        with archive_of(feed, blocks) as archive:
            wait_until(lambda: archive.statistics().answered > 0)  # a subscriber has checked that it is back
            rest = iter(blocks[3:])

            def was_repaired() -> bool:
                pair = [next(rest), next(rest)]
                send_all(publisher, pair, [not block.is_lost for block in pair])
                wait_until(lambda: seen[-1] == (publisher.sequences[0] - 1, 0))
                return subscriber.statistics().received.repaired > 0

            wait_until(was_repaired, 60)
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
