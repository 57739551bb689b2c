"""Callbacks that take turns: each message of a block reaches all its callbacks before the next message reaches any.

A single callback gets its messages of a block at once. With several, none may see a message before the others have seen
the previous one. So each gets a run of messages in turn, in the order of the block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from operator import length_hint
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.block.batch.batch import Batch
from blackbox.block.batch.batch_rows import warm_up_batches
from blackbox.block.batch.received_block import ReceivedBlock
from blackbox.native.compile.jit import njit, warm_up
from blackbox.native.memory.intrinsics import inner, int32s_at
from blackbox.receive.callbacks.callbacks import STRIDE, Callback, run_calls
from blackbox.receive.deliver.call_compiled import call_compiled
from blackbox.receive.deliver.select_rows import entry_at
from blackbox.receive.deliver.worker_state import (
    ALL_ROWS,
    ENTRY_BYTES,
    PLACE_BYTES,
    batch_entry_at,
    block_place_at,
    worker_with_table_at,
)

OnError = Callable[[Callback, BaseException, Batch, int], bool]
"""Error handler, see `Callback.give`."""


@inner
def _sift_down(heap: NDArray[numpy.int64], size: int) -> None:
    """Sift the first element of the heap down."""
    moved = heap[0]
    place = 0
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if moved <= heap[child]:
            break
        heap[place] = heap[child]
        place = child
    heap[place] = moved


@njit(nogil=True, cache=True)
def list_turns(
    entries: int,
    chosen: NDArray[numpy.int64],
    block_rows: int,
    to_part: NDArray[numpy.int64],
    to_count: NDArray[numpy.int64],
) -> int:
    """List the runs of messages in order; return the number of turns.

    `chosen`: batches of one block at address `entries`, in the order of their callbacks; `to_part` gets indices into
    it, with room for one turn per message.
    """
    heap = numpy.empty(len(chosen), numpy.int64)
    following = numpy.zeros(len(chosen), numpy.int64)
    parts = len(chosen)
    for part in range(parts):
        heap[part] = (_row(entries, chosen[part], block_rows, 0) << 32) | part
    heap.sort()
    turns = 0
    last = -1
    while parts > 0:
        part = heap[0] & 0xFFFFFFFF
        if part != last:
            to_part[turns], to_count[turns] = part, 0
            turns += 1
            last = part
        to_count[turns - 1] += 1
        following[part] += 1
        if following[part] == batch_entry_at(entries + ENTRY_BYTES * chosen[part]).count:
            parts -= 1
            heap[0] = heap[parts]
        else:
            heap[0] = (_row(entries, chosen[part], block_rows, following[part]) << 32) | part
        _sift_down(heap, parts)
    return turns


@inner
def _row(entries: int, number: int, block_rows: int, place: int) -> Any:
    """Return the row of a message of a batch."""
    entry = batch_entry_at(entries + ENTRY_BYTES * number)
    if entry.rows == ALL_ROWS:
        return block_rows - entry.count + place
    return numpy.int64(int32s_at(entry.rows, entry.count)[place])


@njit(nogil=True, cache=True)
def call_entry(kept: int, number: int, start: int, count: int) -> None:
    """Run a compiled callback on some messages of its batch. `kept`: address of a `WorkerWithTable`."""
    at, table = worker_with_table_at(kept)
    entry = entry_at(at, number)
    origins = block_place_at(at.places_of_blocks + PLACE_BYTES * entry.slot).origins
    call_compiled(at, table, entry, start, count, origins)


class Part(NamedTuple):
    """One callback's messages of a block."""

    entry: int
    """Index of its batch in the burst."""
    callback: Callback
    batch: Batch


class Taker:
    """Gives one callback its messages, some at a time, in order.

    `taken`: messages handled without an error. `unwanted`: messages after its removal.
    """

    def __init__(
        self, part: Part, received: ReceivedBlock, on_error: OnError, call: Callable[[int, int, int], None]
    ) -> None:
        """`call(entry, start, count)` runs a compiled callback and counts its messages."""
        self._part, self._received, self._on_error, self._call = part, received, on_error, call
        self._left: Iterator[object] = iter(range(len(part.batch)))
        self._at = 0
        self.taken = self.unwanted = 0
        self.calls: Iterator[object] = iter(())
        if part.callback.kind == "message":
            self.calls, self._left = part.callback.calls(part.batch)
        elif part.callback.kind == "book":
            self.calls = map(part.callback.function, repeat(part.batch), self._left, repeat(1))

    def take(self, count: int) -> bool:
        """Give it the next messages; return False to stop."""
        kind = self._part.callback.kind
        if kind == "message":
            return self._take_messages(count)
        start, self._at = self._at, self._at + count
        if not self._part.callback.active:
            self.unwanted += count
            return True
        if kind == "compiled":
            self._call(self._part.entry, start, count)
            return True
        batch = self._part.batch
        if kind == "book":
            self.taken += count
            try:
                self._part.callback.function(batch, start, count)
            except BaseException as error:  # noqa: BLE001
                self.taken -= count
                return self._on_error(self._part.callback, error, batch, start)
            return True
        rows = numpy.arange(start, self._at, dtype=numpy.int32) if batch.rows is None else batch.rows[start : self._at]
        is_last = self._at == len(batch)
        piece = Batch(batch.block, rows, self._received, batch.end_of_batch and is_last)
        self.taken += self._part.callback.give(piece, self._on_error, lambda: False)  # the caller checks for the end
        return True

    def failed(self, error: BaseException) -> bool:
        """Report that the last message raised; return False to stop."""
        self.taken -= 1
        batch = self._part.batch
        return self._on_error(self._part.callback, error, batch, len(batch) - length_hint(self._left) - 1)

    def _take_messages(self, count: int) -> bool:
        end = length_hint(self._left) - count
        while (left := length_hint(self._left)) > end:
            error = run_calls(self.calls, self._left, left - end)
            self.taken += left - length_hint(self._left)
            if error is not None and not self.failed(error):
                return False
        return True


def give_in_turn(
    takers: Sequence[Taker], turns: Sequence[int], counts: Sequence[int], is_over: Callable[[], bool]
) -> None:
    """Give `counts[i]` messages to `takers[turns[i]]` in turn, until the end."""
    for turn, count in zip(turns, counts, strict=True):
        if is_over() or not takers[turn].take(count):
            return


def give_message_by_message(takers: Sequence[Taker], turns: NDArray[numpy.int64], is_over: Callable[[], bool]) -> None:
    """Give one message to each of `takers[turns[i]]`, in a C loop that continues after an error."""
    each = iter(turns.tolist())
    calls: list[Any] = [taker.calls for taker in takers]
    run = map(next, map(calls.__getitem__, each))
    while length_hint(each) and not is_over():
        error = run_calls(run, each, STRIDE)
        if error is not None and not takers[int(turns[len(turns) - length_hint(each) - 1])].failed(error):
            break
    done = turns[: len(turns) - length_hint(each)]
    for taker, taken in zip(takers, numpy.bincount(done, minlength=len(takers)).tolist(), strict=True):
        taker.taken += taken


def warm_up_python_callbacks() -> None:
    """Compile the code behind Python callbacks before the first delivery."""
    nothing = numpy.empty(0, numpy.int64)
    warm_up(list_turns, 0, nothing, 0, nothing, nothing)
    warm_up_batches()


def warm_up_turns() -> None:
    """Do the same, and compile the calls of compiled callbacks that take turns."""
    warm_up_python_callbacks()
    warm_up(call_entry, 0, 0, 0, 0)
