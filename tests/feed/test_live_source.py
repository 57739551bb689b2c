"""The base of live sources: counts, delays, and the end by `stop` from another thread or a signal handler."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Generator, Sequence

import numpy
import pytest
from blackbox_feeds.live.retries import FIRST_S, LONGEST_S, STEADY_S, Retries

from blackbox.cli.live.live_publishing import live_rows, live_text
from blackbox.errors import SourceError
from blackbox.feed import live_source
from blackbox.feed.live_source import LiveSource
from blackbox.feed.schema.schema import RAW
from blackbox.feed.source import Chunk
from blackbox.native.tables.histogram import BUCKETS, record_one
from blackbox.timestamps import DAY_NS
from blackbox.transport.wakeup import readable


def chunk_of(times: Sequence[int], gaps: tuple[tuple[int, int], ...] = ()) -> Chunk:
    n = len(times)
    nothing = numpy.zeros(n, numpy.int32)
    starts = numpy.zeros(n, numpy.int64)
    return Chunk((b"a",), nothing, numpy.array(times, numpy.int64), numpy.zeros(0, numpy.uint8), starts, nothing, gaps)


class Given(LiveSource):
    """Yields the given chunks, then waits for `stop`."""

    schema = RAW

    def __init__(self, *given: Chunk) -> None:
        super().__init__()
        self.given = given
        self.closed = 0

    def _receive(self) -> Generator[Chunk, None, None]:
        try:
            self.counts.connected = True
            yield from self.given
            while not self.is_stopping:
                readable(self.stop_fd, timeout=200)
        finally:
            self.closed += 1


def test_chunks_are_counted_with_their_gaps_and_delays() -> None:
    now = time.time_ns()
    source = Given(chunk_of([now - 3_000_000_000] * 99, ((0, 5), (99, 2))), chunk_of([0]), chunk_of([], ((0, 1),)))
    chunks = source.chunks()
    assert [next(chunks) for _ in source.given] == list(source.given)
    found = source.statistics()
    assert (found.messages, found.gaps, found.missing, found.connected) == (100, 3, 8, True)
    latest = (time.time_ns() - now + 3_000_000_000) * 1.04  # of a bucket of the histogram
    assert 3_000_000_000 <= found.delay_p50_ns == found.delay_p99_ns <= latest
    source.stop()
    assert list(chunks) == []
    assert not source.statistics().connected
    assert source.notes == ("gaps that the venue did not fill: 3", "messages missing in them: 8")


def test_delays_are_in_the_buckets_of_the_histogram() -> None:
    chance = random.Random(2)
    delays = [chance.randrange(1 << chance.randrange(1, 46)) for _ in range(2_000)] + [5, 5, 63, 64, 65, 4_096, 0, -9]
    delays += [DAY_NS, -DAY_NS]
    now = time.time_ns()
    unknown = [now, now + 1, DAY_NS + 1, -DAY_NS - 1]
    times = numpy.array([now - delay for delay in sorted(delays) + unknown + delays], numpy.int64)
    found, expected = numpy.zeros(BUCKETS, numpy.int64), numpy.zeros(BUCKETS, numpy.int64)
    live_source._record_delays(found.ctypes.data, times, now)
    for delay in delays * 2:
        record_one(expected.ctypes.data, delay)
    assert found.tolist() == expected.tolist()


def test_a_replayed_day_has_no_delay() -> None:
    source = Given(chunk_of([time.time_ns() - DAY_NS - 1] * 9))
    chunks = source.chunks()
    next(chunks)
    found = source.statistics()
    assert (found.messages, found.delay_p50_ns, found.delay_p99_ns) == (9, 0, 0)
    assert live_text(source) == "gaps 0, connected"
    assert "delay" not in [row[0] for row in live_rows(source)]
    source.counts.connected = False
    source._delays[:] = 0
    record_one(source._delays.ctypes.data, 31)
    assert live_text(source) == "gaps 0, delay 31 ns (p99), not connected"
    assert live_rows(source)[-1] == ("delay", "31 ns", "median since the venue's time; p99 31 ns")
    chunks.close()  # type: ignore[attr-defined]  # a generator


def test_a_signal_handler_stops_it_while_it_waits() -> None:
    source = Given(chunk_of([1]))
    before = signal.signal(signal.SIGUSR1, lambda *_: source.stop())
    try:
        chunks = source.chunks()
        next(chunks)
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        assert list(chunks) == []
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert source.closed == 1


def test_stopped_before_it_began() -> None:
    source = Given(chunk_of([1]))
    source.stop()
    source.stop()
    assert list(source.chunks()) == []


def test_a_closed_iteration_closes_its_connection_and_cannot_be_repeated() -> None:
    source = Given(chunk_of([1]))
    chunks = source.chunks()
    next(chunks)
    chunks.close()  # type: ignore[attr-defined]  # a generator
    assert source.closed == 1
    with pytest.raises(SourceError, match="iterated before: make a new source"):
        next(source.chunks())


def test_retries_are_bounded_jittered_and_short_again_after_a_good_connection() -> None:
    retries, other = Retries(seed=1), Retries(seed=2)
    delays = [retries.delay_s() for _ in range(100)]
    assert delays != [other.delay_s() for _ in range(100)]
    full = [min(LONGEST_S, FIRST_S * 2**number) for number in range(100)]
    assert all(each / 2 <= delay <= each for delay, each in zip(delays, full, strict=True))
    retries.ended(STEADY_S - 1)
    assert retries.delay_s() >= LONGEST_S / 2
    retries.ended(STEADY_S)
    assert retries.delay_s() <= FIRST_S
