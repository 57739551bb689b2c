"""Memory of a worker's compiled loop: its burst of blocks, and scratch for the rows of each callback."""

from __future__ import annotations

import sys
import threading
from typing import Final

import numpy
from numpy.typing import NDArray

from blackbox.block.form.format import LEAST_ROW_BYTES, MAX_BODY_BYTES
from blackbox.native.compile.kept_arguments import Kept
from blackbox.native.memory.arrays import foreign_array
from blackbox.receive.callbacks.match_table import WorkerTable
from blackbox.receive.deliver.select_rows import SLOT_BYTES
from blackbox.receive.deliver.worker_loop import BURST_BLOCKS, FEW_WORDS, MOST_FEW, SCRATCH_WORDS
from blackbox.receive.deliver.worker_state import (
    ALL_ROWS,
    NEVER,
    BatchEntry,
    BlockPlace,
    CallbackCall,
    WorkerAt,
    WorkerState,
    WorkerWithTable,
)
from blackbox.receive.state import SliceState
from blackbox.receive.statistics import Counters
from blackbox.transport.libzmq import close_messages

_FIRST_ROWS: Final = 1 << 16
_LEAST_ENTRIES: Final = 256

_identity: NDArray[numpy.int32] = numpy.empty(0, numpy.int32)
_identity_lock = threading.Lock()


def _identity_rows() -> NDArray[numpy.int32]:
    """0, 1, 2 … as rows of compiled callbacks that get a whole block. Shared and read-only."""
    global _identity  # noqa: PLW0603 - created once, for the first compiled callback: 22 MB
    with _identity_lock:
        if not len(_identity):
            _identity = numpy.arange(MAX_BODY_BYTES // LEAST_ROW_BYTES, dtype=numpy.int32)
            _identity.flags.writeable = False
    return _identity


class BlockBurst:
    """Blocks taken from the queue together; every view of one of them keeps the burst alive.

    With `blocks` 0 it can be refilled. A burst kept by a callback frees its blocks with the last view; `alive` keeps
    foreign memory of bodies.
    """

    __slots__ = ("_memory", "address", "alive", "blocks")

    def __init__(self) -> None:
        self._memory = numpy.zeros(BURST_BLOCKS * SLOT_BYTES // 8, numpy.int64)
        self.address = self._memory.ctypes.data
        self.alive: object = None
        self.blocks = 0

    def __del__(self) -> None:
        if self.blocks and not sys.is_finalizing():  # an interpreter that is ending cannot call compiled code
            close_messages(self.address, 2 * self.blocks)


class _CallbackScratch:
    """Scratch for each callback of a table, which it keeps alive.

    Attributes: `raised`, callbacks that raised in the burst; `raises`, how often each did.
    """

    def __init__(self, table: WorkerTable) -> None:
        self._table = table
        count = len(table.callbacks) + 1
        self.counts, self.places = numpy.zeros((2, count), numpy.int64)
        self.touched, self.raised = numpy.zeros((2, count), numpy.int32)
        self.raises = numpy.zeros(count, numpy.int64)


class WorkerMemory:
    """Memory that compiled code fills and Python reads, of one worker.

    Attributes: `state` of the loop; `scratch` for messages; the `burst`, its batches (`entries`, and as `entry_words`)
    and blocks (`places`, and as `place_bytes`); the messages of a FEW, `few_bytes`; scratch `of_callbacks`; `kept`, the
    addresses and those of the callbacks.
    """

    def __init__(self, slices: int) -> None:
        """`slices`: number of slices that a block's batches may be of."""
        self._slices = slices
        self.state = WorkerState()
        self.state.tick_ns = NEVER
        self.scratch = numpy.zeros(SCRATCH_WORDS, numpy.int64)
        self.burst = BlockBurst()
        self.places = numpy.zeros(BURST_BLOCKS, BlockPlace.dtype)
        self.place_bytes = self.places.view(numpy.uint8).data
        self._call = CallbackCall()
        self._few = numpy.zeros(FEW_WORDS * MOST_FEW, numpy.int64)
        self.few_bytes = self._few.data
        self._set_rows(_FIRST_ROWS)

    def grow(self) -> None:
        """Grow the scratch to the rows that the current block needs."""
        self._set_rows(2 * self.state.rows_needed)

    def _set_rows(self, rows: int) -> None:
        self._rows = numpy.zeros(rows, numpy.int32)
        self.state.rows, self.state.max_rows = self._rows.ctypes.data, rows

    def addresses(
        self, table: WorkerTable, dealer: int, slice_state: SliceState, counters: Counters, number: int
    ) -> WorkerAt:
        """Return the addresses for compiled code of worker `number`, with scratch for a table's callbacks."""
        self.of_callbacks = scratch = _CallbackScratch(table)
        self.entries = numpy.zeros(max(_LEAST_ENTRIES, 2 * self._slices * table.at.total), BatchEntry.dtype)
        self.entry_words = self.entries.view(numpy.int64).data
        self.state.burst = self.burst.address
        at = WorkerAt(
            dealer=dealer,
            slice_state=slice_state.address,
            counters=counters.workers[number].address,
            lags=counters.lags[number].ctypes.data,
            ages=counters.ages[number].ctypes.data,
            state=self.state.address,
            scratch=self.scratch.ctypes.data,
            entries=self.entries.ctypes.data,
            max_entries=len(self.entries),
            identity=_identity_rows().ctypes.data if any(each.kind == "compiled" for each in table.callbacks) else 0,
            counts=scratch.counts.ctypes.data,
            places=scratch.places.ctypes.data,
            touched=scratch.touched.ctypes.data,
            raised=scratch.raised.ctypes.data,
            raises=scratch.raises.ctypes.data,
            call=self._call.address,
            few=self._few.ctypes.data,
            places_of_blocks=self.places.ctypes.data,
            slice_counters=counters.slice.address,
            traces=counters.traces.workers[number].address,
        )
        self.kept = Kept(WorkerWithTable(at, table.at))
        return at

    def rows_of(self, burst: BlockBurst, address: int, rows: int, count: int) -> NDArray[numpy.int32] | None:
        """Return a batch's rows: None for all; a view of the burst's memory, or a copy from this worker's scratch."""
        if address == ALL_ROWS:
            return None if rows == count else numpy.arange(count - rows, count, dtype=numpy.int32)
        view = foreign_array(burst, address, rows, "<i4")
        start = self._rows.ctypes.data
        return view.copy() if start <= address < start + self._rows.nbytes else view

    def leave(self, burst: BlockBurst) -> None:
        """Leave a burst to the callback that keeps views of it, and continue with a new one."""
        burst.blocks = self.state.blocks
        self.state.blocks = 0
        self.burst = BlockBurst()
        self.burst.alive = burst.alive
        self.state.burst = self.burst.address

    def close(self) -> None:
        """Free the rest of the burst. No compiled code may use it any more."""
        close_messages(self.burst.address, 2 * self.state.blocks)
        self.state.blocks = 0
