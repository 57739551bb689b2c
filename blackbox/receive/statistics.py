"""Counters of a running subscriber, and the immutable snapshots for users."""

from __future__ import annotations

import time
from collections.abc import Sequence
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.block.form.validate import Fault
from blackbox.native.memory.arrays import shared_array
from blackbox.native.tables.histogram import BUCKETS, percentiles_ns
from blackbox.notebook import Cell, Rows, moment, view
from blackbox.numbers import counted, duration
from blackbox.receive.state import SliceCounters, WorkerCounters
from blackbox.receive.trace.rings import TraceRings
from blackbox.transport.udp.assembler import DatagramCounts


class Counters:
    """All counters of one slice: of its thread, workers and multicast lines; histograms of lag and age; traces."""

    def __init__(self, workers: int, multicast_lines: int = 0) -> None:
        self.slice = SliceCounters()
        self.datagrams = [DatagramCounts() for _ in range(multicast_lines)]
        self._workers: NDArray[numpy.void] = shared_array((workers,), WorkerCounters.dtype)
        self.workers = [WorkerCounters(self._workers[number : number + 1]) for number in range(workers)]
        self.workers_address = self._workers.ctypes.data
        self.lags: NDArray[numpy.int64] = shared_array((workers, BUCKETS), numpy.int64)
        self.ages: NDArray[numpy.int64] = shared_array((workers, BUCKETS), numpy.int64)
        self.traces = TraceRings(workers)

    def busy_ns(self, worker: int) -> int:
        """Return how long a callback of a worker, or IN_SLICE, has been running, in ns; 0: none."""
        since_ns = self.workers[worker].busy_since_ns
        return max(0, time.monotonic_ns() - since_ns) if since_ns > 0 else 0

    def settle(self) -> None:
        """Reset counts of waiting blocks after the slice and its workers have ended."""
        self.slice.held = 0
        for worker in self.workers:
            worker.sent = worker.blocks
            worker.has_more = worker.untold = 0


class Counted(NamedTuple):
    """Sources of one slice's statistics."""

    slice_id: int
    counters: Counters
    subscriptions: int
    topics: int
    transport: str = ""
    is_catching_up: bool = False


class DatagramStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Datagrams of multicast lines, on all lines together.

    `datagrams` is the sum of `parts`, `malformed`, `unauthentic`, `foreign`, `stale` and `repeated`.
    """

    datagrams: int
    """Datagrams received."""
    parts: int
    """Datagrams with a new part of a block."""
    malformed: int
    """Datagrams of another format, or with sizes that contradict each other."""
    unauthentic: int
    """Datagrams with a wrong checksum; with a group key, with a wrong tag."""
    foreign: int
    """Datagrams of another slice."""
    stale: int
    """Datagrams of an earlier run of the publisher."""
    repeated: int
    """Datagrams that came before, as a replay does, or too late."""
    blocks: int
    """Complete blocks, including heartbeats."""
    incomplete: int
    """Blocks dropped because parts were missing."""
    unwanted: int
    """Complete blocks of keys that no callback needs."""
    dropped: int
    """Datagrams that the system dropped because the receive buffer was full."""


class ReceivedStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Received from publishers, in messages unless stated otherwise."""

    messages: int
    """Messages in valid blocks, including duplicates."""
    blocks: int
    """Blocks, without control blocks."""
    body_bytes: int
    """Bytes of the bodies of these blocks."""
    control_blocks: int
    """Heartbeats and confirmations."""
    ended_connections: int
    """Connections to publishers that were closed because they carried bytes without end but no block."""
    malformed: int
    """Invalid blocks, which were dropped."""
    faults: dict[str, int]
    """`malformed` by fault: lower-case name of `blackbox.block.form.validate.Fault`, and number of blocks."""
    gaps: int
    """Missing messages."""
    repaired: int
    """Messages delivered from archives; not in `messages`."""
    let_go: int
    """Part of `messages` not delivered live, since archives delivered them to a slice that was catching up."""
    catching_up: int
    """Slices not yet live."""
    duplicates: int
    """Messages received again, from the other line."""
    stale: int
    """Messages of an earlier epoch, after a later one had begun."""
    implausible: int
    """Messages in implausible blocks, not delivered: a block of another epoch between two of the present one, or with a
    sequence far ahead."""
    untracked: int
    """Messages delivered without a gap check because the key table was full."""
    epochs: int
    """Epochs of the publisher seen; a released slice that starts again counts its epoch again."""
    held: int
    """Blocks held now for the other line."""
    subscriptions: int
    """ZeroMQ filters."""
    transport: str
    """Transport of blocks: `shm`, `udp`, `tcp`, `ipc` or `inproc`; joined by `+` if slices differ. Empty in a
    replay."""
    last_ns: int
    """Time of the last block or heartbeat, ns since the epoch; 0: none yet."""
    datagrams: DatagramStatistics
    """Datagrams of multicast lines."""


class DeliveryStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Delivered to callbacks, in deliveries unless stated otherwise: a message for three callbacks counts three.

    Once a subscriber has ended, `due == delivered + failed + dropped + conflated + discarded`; until then the rest of
    `due` is on its way. With one callback for everything, one line and one epoch, `due` is the number of messages
    received.
    """

    matched: int
    """Messages for at least one callback."""
    due: int
    """Each matched message once for each of its callbacks, except those removed meanwhile."""
    delivered: int
    """Deliveries made: callbacks returned."""
    failed: int
    """Deliveries for which a callback raised; the whole batch for batch callbacks."""
    misfits: int
    """Part of `failed` for which callbacks with `fields` were not called: records that do not match the schema."""
    dropped: int
    """Deliveries dropped by the slow-subscriber policy: of late blocks, or to a worker with a full queue."""
    conflated: int
    """Deliveries replaced by a newer message of the same topic (policy "conflate")."""
    discarded: int
    """Deliveries still queued when `terminate` or an error ended the subscriber. 0 until then."""
    callback_errors: int
    """Callbacks that raised."""
    queue_blocks: int
    """Blocks waiting for workers now; after `terminate`, those that never reached them."""
    waits: int
    """Times that a worker's queue was full."""
    topics: int
    """Distinct topics seen."""
    unnumbered: int
    """Blocks with a topic without a number, because the table of `max_topics` was full: matched more slowly, and
    dropped under "conflate"."""


class LagStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Lag and age of messages at delivery, in ns unless stated otherwise.

    Lag is now - `ts_out`. Age is now - `ts_in`: it includes the time in the publisher, and is that of a block's oldest
    message. The slow-subscriber policy uses lag, and age if `max_age` is set.
    """

    last_ns: int
    """Lag of the last block received; of several slices, the largest."""
    last_age_ns: int
    """Age of the last block received; of several slices, the largest. 0: unknown."""
    p50_ns: int
    """Median lag."""
    p99_ns: int
    max_ns: int
    age_p50_ns: int
    """Median age."""
    age_p99_ns: int
    age_max_ns: int
    slow_blocks: int
    """Blocks with a lag or age above its limit."""
    negative: int
    """Blocks with a send time in the future: the clocks of the two hosts differ."""
    clock_offset_ns: int
    """Lower bound in the last minute of how far the publisher's clock is ahead, added to every lag. Negative: how far
    this host's clock was set forward. Of several slices, the largest."""
    clock_steps: int
    """Steps of the publisher's or this host's clock."""


class SliceStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of one slice of a subscriber."""

    slice_id: int
    received: ReceivedStatistics
    delivery: DeliveryStatistics
    lag: LagStatistics


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a subscriber, over all its slices and slice by slice."""

    received: ReceivedStatistics
    delivery: DeliveryStatistics
    lag: LagStatistics
    slices: tuple[SliceStatistics, ...]

    def __repr__(self) -> str:
        received, delivery = self.received, self.delivery
        return (
            f"Statistics({counted(received.messages, 'message')}, lost {received.gaps:,}, "
            f"delivered {delivery.delivered:,}, failed {delivery.failed:,}, dropped {delivery.dropped:,}, "
            f"lag p50 {duration(self.lag.p50_ns)}, p99 {duration(self.lag.p99_ns)}, "
            f"{counted(len(self.slices), 'slice')})"
        )

    def _repr_html_(self) -> str:
        facts: dict[str, Cell] = {
            "transport": self.received.transport or None,
            "last block": f"{moment(self.received.last_ns, 'UTC')} UTC" if self.received.last_ns else None,
            **_further_counts(self),
        }
        parts: dict[str, Statistics | SliceStatistics] = {"all": self}
        parts |= {str(each.slice_id): each for each in self.slices}
        rows = [[name, *_main_counts(part)] for name, part in parts.items()]
        return view("Statistics", facts, Rows(("slice", *_MAIN), rows, len(rows), "rows"))


_MAIN: Final = {
    "messages": "received.messages",
    "lost": "received.gaps",
    "repaired": "received.repaired",
    "delivered": "delivery.delivered",
    "failed": "delivery.failed",
    "dropped": "delivery.dropped",
    "conflated": "delivery.conflated",
    "waiting blocks": "delivery.queue_blocks",
    "lag p50": "lag.p50_ns",
    "lag p99": "lag.p99_ns",
    "lag max": "lag.max_ns",
}
"""Columns for each slice, and the counters in them."""
_ALWAYS: Final = ("blocks", "body_bytes", "control_blocks", "epochs", "subscriptions", "matched", "due", "topics")
"""Further counters that are seldom 0, which the view leaves out."""


def _main_counts(part: Statistics | SliceStatistics) -> list[Cell]:
    values = {name: attrgetter(path)(part) for name, path in _MAIN.items()}
    return [duration(value) if name.startswith("lag ") else value for name, value in values.items()]


def _further_counts(whole: Statistics) -> dict[str, Cell]:
    """Return the other counters that are not 0, such as malformed blocks."""
    found: dict[str, Cell] = {}
    for part in (whole.received, whole.delivery):
        for name, value in msgspec.structs.asdict(part).items():
            path = f"{'received' if part is whole.received else 'delivery'}.{name}"
            if isinstance(value, int) and value and name not in (*_ALWAYS, "last_ns") and path not in _MAIN.values():
                found[path] = value
    return found


def statistics_of(counted: Sequence[Counted], has_ended: bool) -> Statistics:
    """Return a snapshot of the counters of several slices; lag percentiles are over all messages."""
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
            datagrams=_datagrams([line for each in counters for line in each.datagrams]),
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
            last_age_ns=max((each.slice.last_age_ns for each in counters), default=0),
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


def _datagrams(lines: list[DatagramCounts]) -> DatagramStatistics:
    total = DatagramCounts.sum_of(lines or [DatagramCounts()])
    return DatagramStatistics(**{name: getattr(total, name) for name in DatagramStatistics.__struct_fields__})


def _percentiles(histograms: list[NDArray[numpy.int64]]) -> list[int]:
    """Return the 50th and 99th percentile and the maximum over all workers' histograms."""
    none = numpy.zeros((1, BUCKETS), numpy.int64)
    return percentiles_ns(numpy.concatenate([none, *histograms]).sum(axis=0), 50, 99, 100)
