"""Bursts of blocks, and how their messages get to callbacks: what a worker and a replay share."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy
from numpy.typing import NDArray

from blackbox.block.batch import Batch, Message, Opened
from blackbox.block.format import LEAST_ROW_BYTES, MAX_BODY_BYTES
from blackbox.errors import CallbackError
from blackbox.native.memory import foreign_array
from blackbox.subscribe import worker_loop as collect
from blackbox.subscribe.callbacks import Callback, CompiledCallback
from blackbox.subscribe.match_table import WorkerTable
from blackbox.subscribe.state import SliceCounters, SliceState, WorkerCounters
from blackbox.transport.libzmq import close_messages

if TYPE_CHECKING:
    from blackbox.feed.schema import Schema

_FIRST_ROWS = 1 << 16
_LEAST_ENTRIES = 256

_identity: NDArray[numpy.int32] = numpy.empty(0, numpy.int32)
_identity_lock = threading.Lock()


def _identity_rows() -> NDArray[numpy.int32]:
    """0, 1, 2 … as row numbers for callbacks that get all of a block. Shared; read only."""
    global _identity  # noqa: PLW0603 - made once, when the first worker starts
    with _identity_lock:
        if not len(_identity):
            _identity = numpy.arange(MAX_BODY_BYTES // LEAST_ROW_BYTES, dtype=numpy.int32)
            _identity.flags.writeable = False
    return _identity


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failed:  # noqa: BLE001 - it is the user's own class
        return f"(its text could not be made: {type(failed).__name__})"


class BlockBurst:
    """Blocks taken off the queue together; every view on one of them keeps it.

    While `blocks` is 0 it is there to be filled again. Kept by a callback, it frees them with the last view; `alive` is
    what must live as long, where bodies lie in memory of others.
    """

    __slots__ = ("_memory", "address", "alive", "blocks")

    def __init__(self) -> None:
        self._memory = numpy.zeros(collect.BURST_BLOCKS * collect.SLOT_BYTES // 8, numpy.int64)
        self.address = self._memory.ctypes.data
        self.alive: object = None
        self.blocks = 0

    def __del__(self) -> None:
        if self.blocks and not sys.is_finalizing():  # an interpreter that ends can no longer call compiled code
            close_messages(self.address, 2 * self.blocks)


class Delivery:
    """Give the blocks of a burst to callbacks: compiled code fills it and lists batches, this calls Python ones.

    What a callback raised goes to `on_error`, which says whether to go on; `quit` is True once it said no. `is_over`:
    then, and when the owner says so.
    """

    def __init__(
        self,
        schema: Schema,
        counters: WorkerCounters,
        on_error: Callable[[CallbackError], bool],
        is_terminated: Callable[[], bool],
    ) -> None:
        self.state = collect.WorkerState()
        self.scratch = numpy.zeros(collect.SCRATCH_WORDS, numpy.int64)
        self.burst = BlockBurst()
        self.quit = False
        self._schema = schema if schema.schema_id else None
        self._counters = counters
        self._on_error = on_error
        self._is_terminated = is_terminated
        self._call = collect.CallbackCall()
        self._rows = numpy.zeros(_FIRST_ROWS, numpy.int32)
        self._block_places = numpy.zeros(collect.BURST_BLOCKS, collect.BlockPlace.dtype)

    def grow(self) -> None:
        """Make room for the rows that the block at hand needs. `addresses` anew after this."""
        self._rows = numpy.zeros(2 * self.state.rows_needed, numpy.int32)

    def addresses(
        self,
        table: WorkerTable,
        dealer: int,
        slice_state: SliceState,
        slice_counters: SliceCounters,
        lags: NDArray[numpy.int64],
        ages: NDArray[numpy.int64],
    ) -> collect.WorkerAt:
        """All of this for compiled code, with scratch for a table's callbacks."""
        self._table = table
        callbacks = len(table.callbacks) + 1
        self._entries = numpy.zeros(max(_LEAST_ENTRIES, 2 * table.at.total), collect.BatchEntry.dtype)
        self._counts = numpy.zeros(callbacks, numpy.int64)
        self._places = numpy.zeros(callbacks, numpy.int64)
        self._touched = numpy.zeros(callbacks, numpy.int32)
        self._callbacks_raised = numpy.zeros(callbacks, numpy.int32)
        self._raises = numpy.zeros(callbacks, numpy.int64)
        self.state.burst = self.burst.address
        return collect.WorkerAt(
            dealer,
            slice_state.address,
            self._counters.address,
            lags.ctypes.data,
            ages.ctypes.data,
            self.state.address,
            self.scratch.ctypes.data,
            self._entries.ctypes.data,
            len(self._entries),
            self._rows.ctypes.data,
            len(self._rows),
            _identity_rows().ctypes.data,
            self._counts.ctypes.data,
            self._places.ctypes.data,
            self._touched.ctypes.data,
            self._callbacks_raised.ctypes.data,
            self._raises.ctypes.data,
            self._call.address,
            self._block_places.ctypes.data,
            slice_counters.address,
        )

    def close(self) -> None:
        """Free what the burst still holds. For when no compiled code uses it any more."""
        close_messages(self.burst.address, 2 * self.state.blocks)
        self.state.blocks = 0

    def deliver(self) -> None:
        """Give the burst's batches to their callbacks."""
        burst = self.burst
        unshared = sys.getrefcount(burst)  # how many that is depends on the interpreter
        try:
            self._run_callbacks(burst)
        finally:
            if sys.getrefcount(burst) > unshared:
                burst.blocks = self.state.blocks
                self.state.blocks = 0
                alive = burst.alive
                self.burst = BlockBurst()
                self.burst.alive = alive
                self.state.burst = self.burst.address

    def _run_callbacks(self, burst: BlockBurst) -> None:
        counters = self._counters
        entries = self._entries[: self.state.entries].tolist()
        places = self._block_places[: self.state.blocks].tolist()
        last = {callback: number for number, (_, callback, _, _) in enumerate(entries)}
        opened: dict[int, Opened] = {}
        for number, (slot, callback_number, rows, count) in enumerate(entries):
            if self.is_over():
                return
            callback = self._table.callbacks[callback_number]
            if not callback.active:
                counters.unwanted += count
                continue
            if slot not in opened:
                envelope, body, body_bytes = places[slot]
                opened[slot] = Opened(burst, envelope, body, body_bytes, self._schema)
            at = opened[slot]
            rows_of_batch = self._rows_of(burst, rows, count, at.block.count)
            batch = Batch(at.block, rows_of_batch, at, last[callback_number] == number)
            counters.busy_since_ns = time.monotonic_ns()
            counters.delivered += callback.give(batch, self._raised, self.is_over)
            counters.batches += 1
            counters.busy_since_ns = 0

    def is_over(self) -> bool:
        """Whether the rest of what is at hand is not to be delivered."""
        return self.quit or self._is_terminated()

    def _rows_of(self, burst: BlockBurst, address: int, rows: int, count: int) -> NDArray[numpy.int32] | None:
        """A batch's rows: None for all; on the burst's own memory, or copied out of this worker's scratch."""
        if address == collect.ALL_ROWS:
            return None if rows == count else numpy.arange(count - rows, count, dtype=numpy.int32)
        view = foreign_array(burst, address, rows, "<i4")
        start = self._rows.ctypes.data
        return view.copy() if start <= address < start + self._rows.nbytes else view

    def _raised(self, callback: Callback, error: BaseException, batch: Batch, place: int) -> bool:
        self._counters.errors += 1
        self._counters.failed += len(batch) if place < 0 else 1
        first = Message(b"", batch, max(place, 0))
        which = f"slice {batch.block.slice_id}, topic {first.topic!r}, sequence {first.sequence}"
        if place < 0 and len(batch) > 1:
            which = f"{which} and {len(batch) - 1} messages more"
        what = f"{type(error).__name__}: {_text_of(error)}"
        failure = CallbackError(f"callback {callback.name} for {callback.prefix!r} raised {what} ({which})")
        failure.__cause__ = error
        self.quit = not self._on_error(failure)
        return not self.quit

    def compiled_raised(self) -> None:
        """Report each compiled callback that raised in the burst, in the order in which they did."""
        raised = self._callbacks_raised[: self.state.raised].tolist()
        self.state.raised = 0
        for number in raised:
            times = int(self._raises[number])
            self._raises[number] = 0
            callback = self._table.callbacks[number]
            assert isinstance(callback, CompiledCallback)
            if not self.quit:
                self.quit = not self._on_error(
                    CallbackError(
                        f"compiled callback {callback.name} for {callback.prefix!r} raised an exception"
                        f"{f' {times} times' if times > 1 else ''} "
                        "(compiled code cannot say which; an index out of range is the usual one)"
                    )
                )
