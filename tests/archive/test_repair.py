"""A repairing subscriber receives missed messages from archives, once and in order, or reports them as lost.

The simulation checks repair with several lines, epochs and keys.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from blackbox import Batch, Gap, Publisher, Recorder, SlowPolicy, Subscriber
from blackbox.archive.serve.client import ArchiveClient
from blackbox.archive.serve.connection import Connection, ConnectionPool
from blackbox.archive.serve.server import ArchiveServer
from blackbox.archive.serve.turns import Turn
from blackbox.errors import SubscriberError
from blackbox.native.system.awake_clock import awake_s
from blackbox.testing import Collector, RawPublisher, wait_until
from tests.archive.archives import Sent, archive_of, archived_feed, free_endpoint, send_all
from tests.archive.recorders import ROW_BYTES, publish_numbered, wait_recorded
from tests.examples import examples
from tests.journals import Day, Put, Row
from tests.lossy_proxy import LossyProxy
from tests.process_state import linux_only
from tests.receive.subscribers import nothing
from tests.support import Script

KEYS = (b"A", b"B")
Events = list[tuple[int, int]]
"""Delivered sequences as (sequence, 0), and reported gaps as (first, count)."""


def expected(blocks: list[Sent]) -> Events:
    """Return the expected calls of a callback, from a plain loop."""
    seen: Events = []
    following = 0
    for block in blocks:
        first = following
        following += block.messages
        if block.is_lost and not block.archives:
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


@settings(deadline=None, max_examples=examples(64), suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.builds(Sent, st.sampled_from(KEYS), st.integers(1, 4), st.booleans(), st.sampled_from([1, 2, 3, 3, 0])),
        min_size=1,
        max_size=20,
    ),
    st.sampled_from([0, 1]),
    st.sampled_from([1, 2]),
)
@example([Sent(b"A", 2, n % 2 == 1, 1 if n < 5 else 2) for n in range(9)], 0, 2)
@example([Sent(b"A", 2, n not in (0, 9), 1 + n % 2) for n in range(10)], 0, 2)
def test_missed_messages_are_delivered_in_order_or_reported(blocks: list[Sent], key_bytes: int, archives: int) -> None:
    blocks = [block._replace(archives=block.archives & (2**archives - 1)) for block in blocks]
    feed = archived_feed(archives, key_bytes=key_bytes)
    subscriber = Subscriber(feed, on_gap="repair", repair_wait=60)
    seen = listen(subscriber)
    with ExitStack() as stack:
        for place in range(archives):
            stack.enter_context(archive_of(feed, blocks, place))
        publisher = stack.enter_context(RawPublisher(feed))
        subscriber.start()
        send_all(publisher, blocks)
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert seen == expected(blocks)
    received = subscriber.statistics().received
    assert received.repaired == sum(block.messages for block in blocks if block.is_lost and block.archives)
    assert received.gaps == sum(block.messages for block in blocks if block.is_lost and not block.archives)


def test_a_late_archive_is_asked_again_and_the_wait_for_it_is_no_lag() -> None:
    """Another archive answers that it lacks some messages, which is not yet a gap; a third one never answers."""
    limit_ns = 5_000_000_000  # the policy would end the subscriber
    feed = archived_feed(3, max_lag_ns=limit_ns)
    subscriber = Subscriber(feed, on_gap="repair", repair_wait=600, slow=SlowPolicy("raise", start_grace=0))
    seen = listen(subscriber)
    blocks = [Sent(b"A", 2, number in (1, 3), 4 if number in (1, 5) else 6) for number in range(40)]
    with archive_of(feed, blocks, 1), RawPublisher(feed) as publisher:
        subscriber.start()
        send_all(publisher, blocks)
        wait_until(lambda: subscriber.statistics().received.held > 0)
        late = time.monotonic() + 6.0  # longer than the limit, and than the timeout of one answer
        wait_until(lambda: time.monotonic() > late)
        with archive_of(feed, blocks, 2):
            wait_until(lambda: len(seen) == 80, timeout=200)
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert seen == expected(blocks)
    lag = subscriber.statistics().lag
    assert lag.slow_blocks == 0
    assert lag.max_ns > limit_ns, "the statistics still have the lag"


def test_many_gaps_are_requested_at_once() -> None:
    """One heartbeat shows them all: each key has lost all its messages."""
    feed = archived_feed(key_bytes=3, block_bytes=8_192)
    subscriber = Subscriber(feed, on_gap="repair", repair_wait=60)
    seen = listen(subscriber)
    blocks = [Sent(b"%03d" % number, 2, True) for number in range(200)]
    with archive_of(feed, blocks) as archive, RawPublisher(feed) as publisher:
        subscriber.start()
        before = archive.statistics().answered
        send_all(publisher, blocks)
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
        asked = archive.statistics().answered - before
    assert seen == expected(blocks)
    assert asked < 10


def test_a_subscriber_stopped_during_a_fetch_ends() -> None:
    feed = archived_feed()
    subscriber = Subscriber(feed, on_gap="repair", repair_wait=100)
    subscriber.on(b"")(nothing)
    blocks = [Sent(b"A", 2, lost, 0) for lost in (False, True, False)]
    with RawPublisher(feed) as publisher:  # no archive answers
        subscriber.start()
        send_all(publisher, blocks)
        wait_until(lambda: subscriber.statistics().received.held == 1)
        subscriber.stop()
    received = subscriber.statistics().received
    assert (received.messages, received.gaps) == (4, 2)
    assert subscriber.statistics().delivery.delivered == 4


def test_messages_that_one_archive_lacks_are_reported_while_another_stays_down() -> None:
    feed = archived_feed()
    two = msgspec.structs.replace(feed, archives=(*feed.archives, free_endpoint()))
    subscriber = Subscriber(two, on_gap="repair", repair_wait=0.6)
    seen = listen(subscriber)
    blocks = [Sent(b"A", 2, number % 2 == 1, int(number == 3)) for number in range(8)]
    with archive_of(feed, blocks), RawPublisher(two) as publisher:
        subscriber.start()
        for number in range(0, 8, 2):
            pair = blocks[number : number + 2]
            send_all(publisher, pair)
            publisher.heartbeat()
            wait_until(lambda number=number: sum(c or 1 for _, c in seen) == 2 * number + 4)  # type: ignore[misc]
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert seen == expected(blocks)


def test_gaps_are_repaired_once_archives_answer_again(caplog: pytest.LogCaptureFixture) -> None:
    feed = archived_feed()
    subscriber = Subscriber(feed, on_gap="repair")
    seen = listen(subscriber)
    pairs = [Sent(b"A", 2, is_lost) for is_lost in (True, False)]
    with RawPublisher(feed) as publisher:
        subscriber.start()
        send_all(publisher, [pairs[1], *pairs])
        wait_until(lambda: (2, 2) in seen)
        text = "slice 0: missing messages could not be fetched: no archive of feed 'tape' answered"
        wait_until(lambda: text in caplog.text)
        state = subscriber._supervisor.slices.running[0].status.order.state
        assert not state.answers
        with archive_of(feed, [*pairs * 3_000]):
            wait_until(lambda: state.answers, what="the archive is found again")

            def was_repaired() -> bool:
                send_all(publisher, pairs)
                wait_until(lambda: seen[-1] == (publisher.sequences[0] - 1, 0))
                return subscriber.statistics().received.repaired > 0

            wait_until(was_repaired)
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert sum(count or 1 for _, count in seen) == publisher.sequences[0]


NIGHT_S = 36_000


@contextmanager
def hung_archive(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[str], Callable[[], None]]]:
    """Hold back all answers of archives until a call; collect the errors of clients."""
    answers, silences = threading.Event(), list[str]()
    answer, note = ArchiveServer._answer, ConnectionPool._note_silence

    def late(self: ArchiveServer, *arguments: Any) -> int:
        answers.wait()
        return answer(self, *arguments)

    def noted(self: ConnectionPool, asking: Any, error: Any) -> None:
        silences.append(str(error))
        note(self, asking, error)

    monkeypatch.setattr(ArchiveServer, "_answer", late)
    monkeypatch.setattr(ConnectionPool, "_note_silence", noted)
    monkeypatch.setattr(Connection, "is_connected", lambda _: True)  # also if the system is slow to say so
    try:
        yield silences, answers.set
    finally:
        answers.set()


def test_repair_waits_for_a_slow_archive(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    feed = archived_feed(key_bytes=1)
    blocks = [Sent(b"A", 3, number in (2, 5, 6)) for number in range(9)]
    subscriber = Subscriber(feed, on_gap="repair", repair_wait=0.1, slow=SlowPolicy("warn", start_grace=0))
    seen = listen(subscriber)
    with archive_of(feed, blocks), RawPublisher(feed) as publisher, hung_archive(monkeypatch) as (silences, answer):
        subscriber.start()
        send_all(publisher, blocks)
        publisher.heartbeat()
        wait_until(lambda: len(silences) >= 5, what="it asked again, with growing timeouts")
        assert seen == [(number, 0) for number in range(6)]
        answer()
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert seen == [(number, 0) for number in range(27)]
    assert subscriber.statistics().received.gaps == 0
    waits = [float(text.split(" within ")[1].split()[0]) for text in silences if " within " in text]
    assert max(waits) >= 4 * min(waits)
    assert "did not answer within" in caplog.text
    assert "but is connected: it is asked again" in caplog.text


def test_a_fetch_with_progress_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block arrives in time, but all together take several times as long."""
    feed = archived_feed(key_bytes=1)
    blocks = [Sent(b"A", 3, 0 < number < 9) for number in range(10)]
    subscriber = Subscriber(feed, on_gap="repair", repair_wait=0.1, slow=SlowPolicy("warn"))
    seen = listen(subscriber)
    answer, clock, answers = ArchiveServer._answer, [1.0], list[int]()

    def slow(self: ArchiveServer, socket: Any, reader: Any, turn: Turn) -> int:
        clock[0] += 0.06
        answers.append(answer(self, socket, reader, turn._replace(most_bytes=1)))  # one block
        return answers[-1]

    monkeypatch.setattr(ArchiveServer, "_answer", slow)

    def now(_: Any) -> float:
        clock[0] += 0.001  # so that a pause after a late answer ends
        return clock[0]

    monkeypatch.setattr(type(awake_s), "__call__", now)
    with archive_of(feed, blocks), RawPublisher(feed) as publisher:
        subscriber.start()
        send_all(publisher, blocks)
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    assert seen == [(number, 0) for number in range(30)]
    assert len(answers) > 8


def test_more_messages_than_may_wait_come_from_a_slow_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = archived_feed(block_bytes=4_096, key_bytes=1)
    came: dict[bytes, list[bytes]] = {b"A.t": [], b"B.t": []}
    sent: dict[bytes, list[bytes]] = {b"A.t": [], b"B.t": []}
    gaps: list[Gap] = []
    with (
        Publisher(feed, when_full="wait") as publisher,
        Recorder(feed, tmp_path, serve=True) as recorder,
        LossyProxy(feed, 0.3) as proxy,
    ):
        subscriber = Subscriber(
            proxy.feed, on_gap="repair", repair_wait=2, slow=SlowPolicy("warn", start_grace=0), hwm_blocks=2
        )
        subscriber.on(b"")(lambda message: came[message.topic].append(message.payload))
        subscriber.on_gap(b"")(gaps.append)
        subscriber.start()
        with hung_archive(monkeypatch) as (silences, answer):
            for number in range(3_000):
                topic = random.choice([b"A.t", b"B.t"])
                sent[topic].append(number.to_bytes(ROW_BYTES, "little"))
                publisher.publish(topic, sent[topic][-1])
                if number % 20 == 0:
                    publisher.flush()
            publisher.flush()
            wait_recorded(recorder, 3_000)
            wait_until(lambda: subscriber.statistics().received.let_go > 0, what="it has fallen back")
            wait_until(lambda: len(silences) >= 3, what="it asked again")
            answer()
            publisher.close()
            subscriber.run(until_end=True)
    assert gaps == []
    assert came == sent
    assert subscriber.statistics().received.gaps == 0


@pytest.mark.long
@linux_only
def test_repair_after_a_night_of_pause_loses_no_archived_message(tmp_path: Path) -> None:
    """After SIGSTOP its clock jumps by ten hours, so that every timeout has passed."""
    feed = archived_feed(block_bytes=4_096)
    code = f"""
        passed, monotonic = [0.0], time.monotonic
        time.monotonic = lambda: monotonic() + passed[0]
        signal.signal(signal.SIGCONT, lambda *_: passed.__setitem__(0, passed[0] + {NIGHT_S}))
        numbers, gaps = [], []
        policy = SlowPolicy("warn", max_lag=1e9)
        subscriber = Subscriber(feed, on_gap="repair", repair_wait=60, slow=policy, hwm_blocks=4)
        subscriber.on_batch(b"")(lambda batch: numbers.extend(batch.sequence.tolist()))
        subscriber.on_gap(b"")(lambda gap: gaps.append((gap.sequence, gap.count)))
        subscriber.start()
        say("started")
        while True:
            count = int(input())
            wait_until(lambda: len(numbers) + sum(count for _, count in gaps) >= count, 100)
            repaired = subscriber.statistics().received.repaired
            say("came", len(numbers), numbers == list(range(len(numbers))), gaps, repaired > 0)
    """
    with (
        Publisher(feed, when_full="drop") as publisher,
        Recorder(feed, tmp_path, serve=True, hwm_blocks=10_000) as recorder,
        Script(code, feed) as script,
    ):
        script.expect("started")
        count = 0
        for _ in range(2):
            publish_numbered(publisher, count, 500)
            count += 500
            publisher.flush()
            wait_recorded(recorder, count)
            script.suspend()
            for _ in range(60):  # more than the publisher and the connection can queue
                publish_numbered(publisher, count, 5_000)
                count += 5_000
                publisher.flush()
                wait_recorded(recorder, count)
            os.kill(script.process.pid, signal.SIGCONT)
            publish_numbered(publisher, count, 500)
            count += 500
            publisher.flush()
            script.tell(str(count))
            script.expect(f"came {count} True [] True")


def test_a_failure_of_the_thread_that_reads_archives_ends_the_subscriber(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Iterator[Any]:
        raise OSError(errno.EMFILE, "too many open files")

    feed = archived_feed()
    blocks = [Sent(b"A", 2, lost) for lost in (False, True, False)]
    subscriber = Subscriber(feed, on_gap="repair", repair_wait=600)
    subscriber.on(b"")(nothing)
    with archive_of(feed, blocks), RawPublisher(feed) as publisher:
        subscriber.start()
        monkeypatch.setattr(ArchiveClient, "read", fail)
        send_all(publisher, blocks)
        with pytest.raises(SubscriberError, match="archives could not be read: .*too many open files"):
            subscriber.run()


def test_a_start_within_an_archived_block_with_left_out_sequences_counts_no_duplicates(tmp_path: Path) -> None:
    subscriber, got = Subscriber(feed := archived_feed()), Collector()
    subscriber.on(b"")(got.message)
    directory = tmp_path / feed.name
    rows = tuple(Row(b"T", b"%d" % number) for number in range(3))
    Day(directory / "2026-11-20", feed).put(0, Put(rows, ts_out=1, epoch=5, sequences=(0, 10, 20)))
    with ArchiveServer(directory, feed.archives), RawPublisher(feed, 5) as publisher:
        publisher.sequences[0] = 21
        subscriber.start(since={0: (5, 15)})
        got.wait(1)
        subscriber.stop()
    assert got.payloads == [b"2"]
    assert subscriber.statistics().received.duplicates == 0
