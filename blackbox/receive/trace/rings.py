"""Times of traced blocks in memory that slices and their owner share: written by compiled code, read by Python.

Each worker writes a ring of the blocks that its callbacks received, the slice thread a ring of the times that relays
sent. New records replace the oldest. So that records are old enough to be read, see `TraceReader`, a worker leaves out
blocks rather than replace a record of the last two seconds.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.block.batch.worker_envelope import envelope_at
from blackbox.block.form.format import (
    END_BYTES,
    FLAG_LINE_B,
    MOST_RELAY_NAME_BYTES,
    MOST_RELAYS,
    RELAY_ID_BYTES,
    Header,
    layout_of,
    read_header,
)
from blackbox.native.memory.arrays import shared_array
from blackbox.native.memory.intrinsics import copy_bytes, inner, int64s_at
from blackbox.native.memory.records import Field, Fields, SharedRecord, record_at, store_shared
from blackbox.native.system.posix import monotonic_ns, now_ns

KEPT_BLOCKS: Final = 256
"""Blocks of a worker."""
KEPT_NS: Final = 2_000_000_000
"""Time for which each of them is kept at least."""
KEPT_RELAYS: Final = 1_024
"""Newest times of relays in a slice."""
_MOST_NAME_BYTES: Final = RELAY_ID_BYTES + MOST_RELAY_NAME_BYTES


class TracedBlock(SharedRecord):
    """Times of the first message of a block, in ns since 1970."""

    epoch = Field()
    sequence = Field()
    """Sequence of the first message."""
    end = Field()
    """Sequence after the last one."""
    line = Field()
    """Not 0: it came on line B."""
    ts_event = Field()
    """Time at the venue; 0: unknown."""
    ts_in = Field()
    """Time of `publish`; 0: unknown."""
    ts_out = Field()
    ts_recv = Field()
    ts_match = Field()
    """Time when the slice thread had found its callbacks."""
    ts_call = Field()
    """Time when the first callback began."""
    noted_ns = Field()
    """`ts_call` by the monotonic clock."""


class RelayTimes(SharedRecord):
    """Times of a block at a relay, in ns since 1970."""

    epoch = Field()
    end = Field()
    """Sequence after the block's last message."""
    line = Field()
    place = Field()
    """1: the relay nearest to the source."""
    ts_in = Field()
    ts_out = Field()
    ts_recv = Field()
    """Time when this subscriber received them."""
    name_bytes = Field()
    name = Fields(_MOST_NAME_BYTES // 8)
    """Id of the relay's run, and its name."""


class Ring(SharedRecord):
    """A ring of records."""

    written = Field(own_line=True)
    """Records written so far."""
    records = Field()
    """Address of the records."""


traced_block_at = record_at(TracedBlock)
relay_times_at = record_at(RelayTimes)
ring_at = record_at(Ring)
_BLOCK_BYTES: Final = TracedBlock.dtype.itemsize
_RELAY_BYTES: Final = RelayTimes.dtype.itemsize
_NAME_AT: Final = 8 * RelayTimes.name.start


@inner
def begin_trace(ring: int, frame: int, body: int) -> bool:
    """Note the times of the block of an envelope, up to now; `end_trace` makes the record visible.

    It then hides the oldest record. Return False, with nothing noted, if that is of the last two seconds.
    """
    head, header, envelope, now = ring_at(ring), read_header(frame), envelope_at(frame), monotonic_ns()
    oldest = traced_block_at(head.records + _BLOCK_BYTES * ((head.written + 1) % KEPT_BLOCKS))
    if head.written >= KEPT_BLOCKS - 1 and now - oldest.noted_ns < KEPT_NS:
        return False
    block = traced_block_at(head.records + _BLOCK_BYTES * (head.written % KEPT_BLOCKS))
    block.epoch = header.epoch
    block.sequence = header.sequence
    block.end = header.sequence + header.count
    block.line = header.flags & FLAG_LINE_B
    block.ts_event = int64s_at(body, 1)[0]
    block.ts_in = header.ts_in
    block.ts_out = header.ts_out
    block.ts_recv = envelope.ts_recv
    block.ts_match = envelope.ts_match
    block.ts_call = now_ns()
    block.noted_ns = now
    return True


@inner
def end_trace(ring: int) -> None:
    """Make the record of `begin_trace` visible."""
    head = ring_at(ring)
    store_shared(head, "written", head.written + 1)


@inner
def note_relay(ring: int, header: Header, body: int) -> None:
    """Note the times in a relay's control block, already checked, unless it is not one."""
    layout = layout_of(header)
    place = int64s_at(body + layout.payloads, END_BYTES // 8 if header.count == 1 else 0)
    if header.count != 1 or not 1 <= place[0] <= MOST_RELAYS:
        return
    head = ring_at(ring)
    at = head.records + _RELAY_BYTES * (head.written % KEPT_RELAYS)
    times = relay_times_at(at)
    times.epoch = header.epoch
    times.end = header.sequence
    times.line = header.flags & FLAG_LINE_B
    times.place = place[0]
    times.ts_in = header.ts_in
    times.ts_out = header.ts_out
    times.ts_recv = now_ns()
    times.name_bytes = min(header.topic_bytes, _MOST_NAME_BYTES)
    copy_bytes(at + _NAME_AT, body + layout.topics, times.name_bytes)
    store_shared(head, "written", head.written + 1)


class Unread(NamedTuple):
    """Records of a ring, the `first` of all that were written and later ones."""

    first: int
    records: NDArray[numpy.void]


class OneRing:
    """One ring. `address`: of its `Ring`."""

    def __init__(self, head: NDArray[numpy.void], records: NDArray[numpy.void]) -> None:
        self._head, self._records = Ring(head), records
        self._head.records = records.ctypes.data
        self.address = self._head.address

    def unread(self, seen: int) -> Unread:
        """Return the records after the first `seen`, as far as they are kept."""
        written, kept = self._head.written, len(self._records)
        if written == seen:
            return Unread(seen, self._records[:0])
        records = self._records.copy()
        # The oldest record is being replaced, and others may have been while they were copied.
        first = max(seen, self._head.written - kept + 1)
        return Unread(first, records[numpy.arange(first, max(first, written)) % kept])

    def end_trace(self, ts_call: int) -> None:
        """Make the last record visible, with the time of its call. For the thread that writes the ring."""
        written = self._head.written
        self._records["ts_call"][written % len(self._records)] = ts_call
        self._head.written = written + 1


class TraceRings:
    """The rings of one slice.

    Attributes: `workers`, the ring of each worker, the slice thread's last; `relays`.
    """

    def __init__(self, workers: int) -> None:
        heads = shared_array((workers + 1,), Ring.dtype)
        blocks = shared_array((workers, KEPT_BLOCKS), TracedBlock.dtype)
        self.workers = [OneRing(heads[number : number + 1], blocks[number]) for number in range(workers)]
        self.relays = OneRing(heads[workers:], shared_array((KEPT_RELAYS,), RelayTimes.dtype))
