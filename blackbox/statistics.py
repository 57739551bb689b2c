"""Counters of a running subscriber, and the frozen snapshots that users see."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.check import Fault
from blackbox.counters import Count, WorkerCount
from blackbox.lag_histogram import BUCKETS, percentiles_ns
from blackbox.memory import shared_array


class SliceCounters:
    """All counters of one slice: of its slice thread, of each worker, and each worker's lag histogram."""

    def __init__(self, workers: int) -> None:
        self.counts: NDArray[numpy.int64] = shared_array((Count.SIZE,), numpy.int64)
        self.workers: NDArray[numpy.int64] = shared_array((workers, WorkerCount.SIZE), numpy.int64)
        self.lags: NDArray[numpy.int64] = shared_array((workers, BUCKETS), numpy.int64)
        self.counts[Count.SMALLEST_LAG] = numpy.iinfo(numpy.int64).max


class SliceStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One slice of a subscriber, or the total over all its slices. Units: messages, unless said otherwise.

    Deliveries are messages times callbacks: a message that three callbacks want is three. Once a subscriber has ended,
    `due == delivered + failed + dropped + conflated + discarded`; until then the rest of `due` is on its way. With one
    callback that wants everything, one line and one run of the publisher, `due` is `received`.
    """

    slice_id: int
    """-1 for the total."""
    received: int
    """In valid blocks, duplicates included."""
    blocks: int
    """Blocks received."""
    body_bytes: int
    """Bytes of the bodies received."""
    matched: int
    """Wanted by at least one callback."""
    due: int
    """Deliveries that `matched` means: each message once for each callback that wants it, and was not removed since."""
    delivered: int
    """Deliveries made: callbacks returned."""
    failed: int
    """Deliveries on which a callback raised; all of the batch, where it gets batches."""
    dropped: int
    """Deliveries given up by the slow-subscriber policy: of late blocks, or to a worker whose queue was full."""
    conflated: int
    """Deliveries replaced by that of a newer message of the same topic (`on_slow="conflate"`)."""
    discarded: int
    """Deliveries that the end forestalled: `terminate`, or an error, met them in a queue. 0 until it has ended."""
    malformed: int
    """Blocks dropped because they were not valid."""
    faults: dict[str, int]
    """`malformed` by what was wrong with the block: a name of `blackbox.check.Fault` in small letters to its blocks."""
    gaps: int
    """Sequence numbers that never came."""
    duplicates: int
    """Received again: from the other line."""
    stale: int
    """Of an earlier run of the publisher, after a later one had begun."""
    untracked: int
    """Delivered without a gap check: the key table was full."""
    unnumbered: int
    """Blocks with a topic that has no number, as the table of `max_topics` was full: matched more slowly, and dropped
    where `conflate` would keep the newest."""
    control_blocks: int
    """Heartbeats and confirmations received."""
    epochs: int
    """Runs of the publisher seen."""
    held: int
    """Blocks that wait for the other line now."""
    queue_blocks: int
    """Blocks that wait for workers now; after `terminate`, those that never got to them."""
    waits: int
    """Times a worker's queue was full."""
    slow_blocks: int
    """Blocks whose lag was above the limit."""
    callback_errors: int
    """Callbacks that raised."""
    subscriptions: int
    """Filters asked of ZeroMQ."""
    topics: int
    """Distinct topics seen."""
    last_lag_ns: int
    """Lag of the last block; of the total: where it is largest."""
    lag_p50_ns: int
    """Lag at delivery that half of the messages did not exceed."""
    lag_p99_ns: int
    lag_max_ns: int
    negative_lags: int
    """Blocks that seemed to come from the future: the clocks of the two hosts differ."""
    clock_offset_ns: int
    """How far the publisher's clock is ahead, at least: taken off every lag. 0 unless a lag was negative."""
    last_received_ns: int
    """When the last block or heartbeat came, ns since the epoch; 0: none yet."""


class Statistics(msgspec.Struct, frozen=True):
    """What a subscriber has done so far: the total's fields directly, and each slice."""

    total: SliceStatistics
    slices: tuple[SliceStatistics, ...]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.total, name)


def snapshot(
    slice_id: int, counters: SliceCounters, subscriptions: int, topics: int, has_ended: bool
) -> SliceStatistics:
    """One slice's statistics now."""
    return _statistics(slice_id, counters.counts, counters.workers, counters.lags, subscriptions, topics, has_ended)


def total(parts: list[tuple[SliceCounters, SliceStatistics]], has_ended: bool) -> SliceStatistics:
    """The sum over slices; lag percentiles are of all messages together."""
    if not parts:
        return snapshot(-1, SliceCounters(1), 0, 0, has_ended)
    if len(parts) == 1:
        return msgspec.structs.replace(parts[0][1], slice_id=-1)
    counts = numpy.sum([c.counts for c, _ in parts], axis=0)
    counts[Count.SMALLEST_LAG] = min(c.counts[Count.SMALLEST_LAG] for c, _ in parts)
    counts[Count.LAST_RECEIVED] = max(c.counts[Count.LAST_RECEIVED] for c, _ in parts)
    counts[Count.LAST_LAG] = max(c.counts[Count.LAST_LAG] for c, _ in parts)
    workers = numpy.concatenate([c.workers for c, _ in parts])
    lags = numpy.concatenate([c.lags for c, _ in parts])
    subscriptions = sum(s.subscriptions for _, s in parts)
    return _statistics(-1, counts, workers, lags, subscriptions, sum(s.topics for _, s in parts), has_ended)


def _statistics(
    slice_id: int,
    counts: NDArray[numpy.int64],
    workers: NDArray[numpy.int64],
    lags: NDArray[numpy.int64],
    subscriptions: int,
    topics: int,
    has_ended: bool,
) -> SliceStatistics:
    count = counts.tolist()
    done = workers.sum(axis=0)
    due = count[Count.DUE] - int(done[WorkerCount.UNWANTED])
    settled = count[Count.DROPPED] + count[Count.CONFLATED]
    settled += int(done[WorkerCount.DELIVERED] + done[WorkerCount.FAILED])
    lag_p50_ns, lag_p99_ns, lag_max_ns = percentiles_ns(lags.sum(axis=0), 50, 99, 100)
    return SliceStatistics(
        slice_id=slice_id,
        received=count[Count.RECEIVED],
        blocks=count[Count.BLOCKS],
        body_bytes=count[Count.BODY_BYTES],
        matched=count[Count.MATCHED],
        due=due,
        delivered=int(done[WorkerCount.DELIVERED]),
        failed=int(done[WorkerCount.FAILED]),
        dropped=count[Count.DROPPED],
        conflated=count[Count.CONFLATED],
        discarded=due - settled if has_ended else 0,
        malformed=count[Count.MALFORMED],
        faults={fault.name.lower(): count[Count.FAULTS + fault] for fault in Fault if count[Count.FAULTS + fault]},
        gaps=count[Count.GAPS],
        duplicates=count[Count.DUPLICATES],
        stale=count[Count.STALE],
        untracked=count[Count.UNTRACKED],
        unnumbered=count[Count.UNNUMBERED],
        control_blocks=count[Count.CONTROL],
        epochs=count[Count.EPOCHS],
        held=count[Count.HELD],
        queue_blocks=max(0, int(done[WorkerCount.SENT] - done[WorkerCount.BLOCKS])),
        waits=count[Count.WAITS],
        slow_blocks=count[Count.SLOW],
        callback_errors=int(done[WorkerCount.ERRORS]),
        subscriptions=subscriptions,
        topics=topics,
        last_lag_ns=count[Count.LAST_LAG],
        lag_p50_ns=lag_p50_ns,
        lag_p99_ns=lag_p99_ns,
        lag_max_ns=lag_max_ns,
        negative_lags=count[Count.NEGATIVE_LAG],
        clock_offset_ns=max(0, -count[Count.SMALLEST_LAG]) if count[Count.NEGATIVE_LAG] else 0,
        last_received_ns=count[Count.LAST_RECEIVED],
    )
