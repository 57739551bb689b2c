"""Counters of a running subscriber, and the frozen snapshots that users see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.block.validate import Fault
from blackbox.native.histogram import BUCKETS, percentiles_ns
from blackbox.native.memory import shared_array
from blackbox.subscribe.state import SliceCounters, WorkerCounters


class Counters:
    """All counters of one slice: of its slice thread, of each worker, and each worker's histograms of lag and age."""

    def __init__(self, workers: int) -> None:
        self.slice = SliceCounters()
        self._workers: NDArray[numpy.void] = shared_array((workers,), WorkerCounters.dtype)
        self.workers = [WorkerCounters(self._workers[number : number + 1]) for number in range(workers)]
        self.workers_address = self._workers.ctypes.data
        self.lags: NDArray[numpy.int64] = shared_array((workers, BUCKETS), numpy.int64)
        self.ages: NDArray[numpy.int64] = shared_array((workers, BUCKETS), numpy.int64)

    def settle(self) -> None:
        """Forget what waited: the slice has ended, and its workers."""
        self.slice.held = 0
        for worker in self.workers:
            worker.sent = worker.blocks
            worker.has_more = worker.untold = 0


class Counted(NamedTuple):
    """What the statistics of one slice are made from."""

    slice_id: int
    counters: Counters
    subscriptions: int
    topics: int
    transport: str = ""
    is_catching_up: bool = False


class ReceivedStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What came from the publishers. Units: messages, unless said otherwise."""

    messages: int
    """In valid blocks, duplicates included."""
    blocks: int
    """Blocks, control blocks not counted."""
    body_bytes: int
    """Bytes of the bodies of these blocks."""
    control_blocks: int
    """Heartbeats and confirmations."""
    ended_connections: int
    """Connections to publishers that were ended because bytes came without end, but no block."""
    malformed: int
    """Blocks dropped because they were not valid."""
    faults: dict[str, int]
    """`malformed` by what was wrong: name of `blackbox.block.validate.Fault` in small letters, to numbers of blocks."""
    gaps: int
    """Sequence numbers that never came."""
    repaired: int
    """Messages that archives have brought; they are not in `messages`."""
    let_go: int
    """Of `messages`: those that were not delivered, as archives brought them to a slice that was catching up."""
    catching_up: int
    """Slices that have not yet gone over to what comes live."""
    duplicates: int
    """Received again, from the other line."""
    stale: int
    """Of an earlier run of the publisher, after a later one had begun."""
    implausible: int
    """In blocks that were not believed, and not delivered: one of another epoch between two of the present one, or one
    whose numbers are far ahead of all that is known."""
    untracked: int
    """Delivered without a gap check: the key table was full."""
    epochs: int
    """Runs of the publisher seen; one is seen again by a slice that was released and comes back."""
    held: int
    """Blocks that wait for the other line now."""
    subscriptions: int
    """Filters asked of ZeroMQ."""
    transport: str
    """What blocks come by: `shm`, `tcp`, `ipc` or `inproc`; several, joined by `+`, where slices differ. Empty in
    a replay."""
    last_ns: int
    """When the last block or heartbeat came, ns since the epoch; 0: none yet."""


class DeliveryStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What callbacks got. Units: deliveries, unless said otherwise: a message that three callbacks want is three.

    Once a subscriber has ended, `due == delivered + failed + dropped + conflated + discarded`; until then the rest of
    `due` is on its way. With one callback that wants everything, one line and one run of the publisher, `due` is the
    number of messages received.
    """

    matched: int
    """Messages wanted by at least one callback."""
    due: int
    """Each matched message once for each callback that wants it, and was not removed since."""
    delivered: int
    """Deliveries made: callbacks returned."""
    failed: int
    """Deliveries on which a callback raised; all of the batch, where it gets batches."""
    misfits: int
    """The part of `failed` that callbacks with `fields` were not called for: no records of the schema."""
    dropped: int
    """Deliveries given up by the slow-subscriber policy: of late blocks, or to a worker whose queue was full."""
    conflated: int
    """Deliveries replaced by that of a newer message of the same topic (policy "conflate")."""
    discarded: int
    """Deliveries still queued when `terminate` or an error ended the subscriber. 0 until it has ended."""
    callback_errors: int
    """Callbacks that raised."""
    queue_blocks: int
    """Blocks that wait for workers now; after `terminate`, those that never got to them."""
    waits: int
    """Times a worker's queue was full."""
    topics: int
    """Distinct topics seen."""
    unnumbered: int
    """Blocks with a topic that has no number, as the table of `max_topics` was full: matched more slowly, and dropped
    where "conflate" would keep the newest."""


class LagStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """How late messages were at delivery. Units: ns, unless said otherwise.

    Lag is now - `ts_out`. Age is now - `ts_in`: it holds the time in the publisher too, and is that of a block's oldest
    message. The slow-subscriber policy looks at lag, and at age where `max_age_ns` is set.
    """

    last_ns: int
    """Lag of the last block received; of several slices: the largest."""
    p50_ns: int
    """Lag that half of the messages did not exceed."""
    p99_ns: int
    max_ns: int
    age_p50_ns: int
    """Age that half of the messages did not exceed."""
    age_p99_ns: int
    age_max_ns: int
    slow_blocks: int
    """Blocks whose lag or age was above its limit."""
    negative: int
    """Blocks that seemed to come from the future: the clocks of the two hosts differ."""
    clock_offset_ns: int
    """How far the publisher's clock is ahead, at least, as blocks of the last minute show: added to every lag. Below 0:
    how far this host's clock was set forward meanwhile. Of several slices: the furthest."""
    clock_steps: int
    """Times a clock was stepped, the publisher's or this host's."""


class SliceStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What one slice of a subscriber has done so far."""

    slice_id: int
    received: ReceivedStatistics
    delivery: DeliveryStatistics
    lag: LagStatistics


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a subscriber has done so far, over all its slices, and slice by slice."""

    received: ReceivedStatistics
    delivery: DeliveryStatistics
    lag: LagStatistics
    slices: tuple[SliceStatistics, ...]


def statistics_of(counted: Sequence[Counted], has_ended: bool) -> Statistics:
    """Return a snapshot of the counters of several slices; lag percentiles are of all messages together."""
    slices = tuple(_slice_statistics([each], each.slice_id, has_ended) for each in counted)
    whole = slices[0] if len(slices) == 1 else _slice_statistics(counted, -1, has_ended)
    return Statistics(received=whole.received, delivery=whole.delivery, lag=whole.lag, slices=slices)


def _slice_statistics(counted: Sequence[Counted], slice_id: int, has_ended: bool) -> SliceStatistics:
    counters = [each.counters for each in counted]
    count = SliceCounters.sum_of([each.slice for each in counters])
    done = WorkerCounters.sum_of([worker for each in counters for worker in each.workers])
    due = count.due - done.unwanted
    settled = count.dropped + count.conflated + done.delivered + done.failed
    p50_ns, p99_ns, max_ns = _percentiles([each.lags for each in counters])
    age_p50_ns, age_p99_ns, age_max_ns = _percentiles([each.ages for each in counters])
    return SliceStatistics(
        slice_id=slice_id,
        received=ReceivedStatistics(
            messages=count.received,
            blocks=count.blocks,
            body_bytes=count.body_bytes,
            control_blocks=count.control,
            ended_connections=count.ended_connections,
            malformed=count.malformed,
            faults={fault.name.lower(): count.faults[fault] for fault in Fault if count.faults[fault]},
            gaps=count.gaps,
            repaired=count.repaired,
            let_go=count.let_go,
            catching_up=sum(each.is_catching_up for each in counted),
            duplicates=count.duplicates,
            stale=count.stale,
            implausible=count.implausible,
            untracked=count.untracked,
            epochs=count.epochs,
            held=count.held,
            subscriptions=sum(each.subscriptions for each in counted),
            transport="+".join(sorted({each.transport for each in counted})),
            last_ns=max((each.slice.last_received_ns for each in counters), default=0),
        ),
        delivery=DeliveryStatistics(
            matched=count.matched,
            due=due,
            delivered=done.delivered,
            failed=done.failed,
            misfits=done.misfits,
            dropped=count.dropped,
            conflated=count.conflated,
            discarded=due - settled if has_ended else 0,
            callback_errors=done.errors,
            queue_blocks=max(0, done.sent - done.blocks),
            waits=count.waits,
            topics=sum(each.topics for each in counted),
            unnumbered=count.unnumbered,
        ),
        lag=LagStatistics(
            last_ns=max((each.slice.last_lag_ns for each in counters), default=0),
            p50_ns=p50_ns,
            p99_ns=p99_ns,
            max_ns=max_ns,
            age_p50_ns=age_p50_ns,
            age_p99_ns=age_p99_ns,
            age_max_ns=age_max_ns,
            slow_blocks=count.slow,
            negative=count.negative_lag,
            clock_offset_ns=max((-each.slice.clock_offset_ns for each in counters), key=abs, default=0),
            clock_steps=count.clock_steps,
        ),
    )


def _percentiles(histograms: list[NDArray[numpy.int64]]) -> list[int]:
    """The 50th and 99th percentile and the maximum of all workers' histograms together."""
    none = numpy.zeros((1, BUCKETS), numpy.int64)
    return percentiles_ns(numpy.concatenate([none, *histograms]).sum(axis=0), 50, 99, 100)
