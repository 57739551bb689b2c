"""Live sources: a venue's connection, read in chunks until it is stopped or its session ends.

A subclass implements `_receive`, which yields arrived messages; `chunks` counts them. A subclass may receive in the
caller's thread, waiting on its sockets and on `stop_fd`; or in its own thread, with a bounded queue to `_receive`.
"""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Final

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.errors import SourceError
from blackbox.feed.source import Chunk, Source
from blackbox.native.compile.jit import njit
from blackbox.native.system.limits import open_pipe, require_linux
from blackbox.native.tables.histogram import BUCKETS, percentiles_ns, record
from blackbox.timestamps import DAY_NS

_BITS: Final = 6
"""Leading bits of a delay that choose its bucket in the histogram."""


class LiveStatistics(msgspec.Struct, kw_only=True):
    """Counts of a live source since it was made."""

    messages: int = 0
    """Messages yielded."""
    packets: int = 0
    """Datagrams or frames received."""
    bytes: int = 0
    """Bytes received."""
    gaps: int = 0
    """Places at which messages are missing."""
    missing: int = 0
    """Messages missing at these places, those before a late start included."""
    recovered: int = 0
    """Messages that arrived after a gap was noticed, and filled it."""
    duplicates: int = 0
    """Messages received again, e.g. on the other line."""
    reconnects: int = 0
    """Connections after the first one."""
    kernel_drops: int = 0
    """Datagrams that the kernel dropped because its buffer was full."""
    malformed: int = 0
    """Datagrams, frames or messages skipped: they are invalid."""
    foreign: int = 0
    """Datagrams skipped: of another session, or of another protocol."""
    stale: int = 0
    """Times of silence: nothing arrived for too long, not even a heartbeat."""
    connected: bool = False
    """True while data or heartbeats arrive."""
    delay_p50_ns: int = 0
    """Median delay from the venue's time to the yielded chunk, by this machine's clock.

    0: none is known, or the venue's clock is ahead. A difference of more than a day is not counted: the venue replays
    an earlier day.
    """
    delay_p99_ns: int = 0
    """99th percentile of this delay."""


@njit(nogil=True, cache=True)
def _record_delays(histogram: int, times: NDArray[numpy.int64], now: int) -> None:
    """Count the delay of each message until now; times of 0, or more than a day away, are unknown.

    Delays in a row that differ by less than a bucket of the histogram are counted together: finding a bucket is slow.
    """
    low = high = numpy.int64(-1)
    count = 0
    for at in times:
        if at <= 0 or abs(now - at) > DAY_NS:
            continue
        delay = max(now - at, 0)
        if not low <= delay <= high:
            if count > 0:
                record(histogram, low, count)
            count = 0
            power = numpy.int64(0)
            while delay >> (power + _BITS):
                power += 1
            low = (delay >> power) << power
            high = low + (1 << power) - 1
        count += 1
    if count > 0:
        record(histogram, low, count)


class LiveSource(Source):
    """A source that runs until `stop`, or until the venue ends the session.

    `chunks` can be iterated once, in one thread. Other threads and signal handlers may call `stop` and `statistics`.
    """

    is_stopping: bool = False
    """True from `stop` on."""

    def __init__(self) -> None:
        require_linux("live sources")
        self.counts = LiveStatistics()
        """Counts that the subclass adds to: all but `messages`, `gaps`, `missing` and the delays."""
        self._delays = numpy.zeros(BUCKETS, numpy.int64)
        self._has_begun = False
        self.stop_fd, self._stop_writer = open_pipe()
        """A descriptor that is readable from `stop` on, to wait on together with sockets."""

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            os.close(self.stop_fd)
            os.close(self._stop_writer)

    def stop(self) -> None:
        """End the running iteration. If none runs, the next one ends at once. A source cannot be started again."""
        if not self.is_stopping:
            self.is_stopping = True
            os.write(self._stop_writer, b"\0")

    def statistics(self) -> LiveStatistics:
        """Return the counts so far."""
        p50, p99 = percentiles_ns(self._delays, 50, 99)
        return msgspec.structs.replace(self.counts, delay_p50_ns=p50, delay_p99_ns=p99)

    def chunks(self) -> Iterator[Chunk]:
        """Yield the messages as they arrive, and the gaps that the venue could not fill.

        Ends after `stop`, or at the end of the venue's session.

        Raises:
            SourceError: the source was iterated before, or the venue rejects it.
            EndpointError: an address cannot be used.
        """
        if self._has_begun:
            raise SourceError(f"{self!r} was iterated before: make a new source to connect again")
        self._has_begun = True
        if self.is_stopping:
            return
        counts, histogram = self.counts, self._delays.ctypes.data
        self.compile()
        received = self._receive()
        try:
            for chunk in received:
                counts.messages += len(chunk.ts_event)
                counts.gaps += len(chunk.gaps)
                counts.missing += sum(count for _, count in chunk.gaps)
                _record_delays(histogram, chunk.ts_event, time.time_ns())
                yield chunk
        finally:
            received.close()
            counts.connected = False
            self.notes = self._notes()

    def compile(self) -> None:
        """Compile everything before messages wait, without a connection. A subclass adds its own."""
        _record_delays(self._delays.ctypes.data, numpy.zeros(0, numpy.int64), 0)

    @abstractmethod
    def _receive(self) -> Generator[Chunk, None, None]:
        """Connect, and yield chunks as they arrive, until `is_stopping`. At the end, also if closed, disconnect."""

    def _notes(self) -> tuple[str, ...]:
        """Return a line for each cause of possible loss."""
        now = self.counts
        causes = (
            ("gaps that the venue did not fill", now.gaps),
            ("messages missing in them", now.missing),
            ("datagrams that the kernel dropped", now.kernel_drops),
            ("invalid datagrams, frames or messages, which were skipped", now.malformed),
            ("datagrams of another session or protocol, which were skipped", now.foreign),
            ("reconnects", now.reconnects),
            ("times that nothing arrived for too long", now.stale),
        )
        return tuple(f"{words}: {count:,}" for words, count in causes if count)
