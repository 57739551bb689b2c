"""Compiled callbacks: their arguments, helpers to use inside them, and their compilation to C functions.

::

    @subscriber.on_compiled(b"AAPL.", state=numpy.zeros(2))
    def volume(batch, state):
        for row in batch.rows:
            state[0] += 1
            state[1] += payload(batch, row)[8]
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy
from numba import carray, types
from numba.core.dispatcher import Dispatcher
from numba.core.errors import NumbaError
from numpy.typing import NDArray

from blackbox.block.batch.received_block import ORIGINS
from blackbox.block.form.format import FLAG_NULLS, FLAG_SEQUENCES, body_layout
from blackbox.errors import CallbackError
from blackbox.native.compile.jit import cfunc, check_memory, njit
from blackbox.native.memory.intrinsics import _pointer, bytes_at, int32s_at, int64s_at
from blackbox.receive.deliver.worker_state import CallbackCall, callback_call_at


class CompiledBatch(NamedTuple):
    """Argument of a compiled callback: the whole block in columns, and the rows for the callback.

    All arrays are views, valid until the callback returns.
    """

    rows: NDArray[numpy.int32]
    """The rows to handle, ascending."""
    ts_event: NDArray[numpy.int64]
    """ns since the epoch, by row."""
    topic_index: NDArray[numpy.int32]
    """By row: index of its topic in `topic_numbers`."""
    topic_numbers: NDArray[numpy.int32]
    """Number of each topic of the block, the same in all blocks of a slice, see `Subscriber.topics`; -1: table full."""
    topic_offsets: NDArray[numpy.int32]
    """Start of each topic's text in `topic_text`, and the end of the last one."""
    topic_text: NDArray[numpy.uint8]
    offsets: NDArray[numpy.int32]
    """Start of each row's payload in `payloads`, and the end of the last one; empty if `stride` >= 0."""
    payloads: NDArray[numpy.uint8]
    stride: int
    """Bytes of every payload; -1 if they differ."""
    ts_out: int
    ts_recv: int
    sequence: int
    """Sequence of row 0; see `sequence_of` for others."""
    sequences: NDArray[numpy.int64]
    """Sequence of each row; empty if they are consecutive."""
    validity: NDArray[numpy.uint8]
    """One bit per row, lowest first: 0 if it has no value; empty if all have one. See `has_value`."""
    origins: NDArray[numpy.int64]
    """For a block merged by a replay: `ts_out` of each row, then `ts_in`, `ts_recv`, slice and epoch of each. Otherwise
    empty. See `ts_out_of`."""
    lost: int
    """Messages lost since the callback's last batch that may have matched its prefix."""


@njit(inline="always")
def payload(batch: CompiledBatch, row: int) -> Any:
    """Return the payload of a row, uint8[...]."""
    if batch.stride >= 0:
        return batch.payloads[row * batch.stride : (row + 1) * batch.stride]
    return batch.payloads[batch.offsets[row] : batch.offsets[row + 1]]


@njit(inline="always")
def has_value(batch: CompiledBatch, row: int) -> Any:
    """Return True if a row has a value; without one it deletes its topic, and its payload is empty."""
    return len(batch.validity) == 0 or (batch.validity[row >> 3] >> (row & 7)) & 1 != 0


@njit(inline="always")
def sequence_of(batch: CompiledBatch, row: int) -> Any:
    """Return the sequence of a row."""
    return batch.sequences[row] if len(batch.sequences) else batch.sequence + row


@njit(inline="always")
def ts_out_of(batch: CompiledBatch, row: int) -> Any:
    """Return the send time of a row; of a block merged by a replay, `batch.ts_out` is the latest."""
    return batch.origins[row] if len(batch.origins) else batch.ts_out


@njit(inline="always")
def topic_number(batch: CompiledBatch, row: int) -> int:
    """Return the number of a row's topic."""
    return batch.topic_numbers[batch.topic_index[row]]


@njit(inline="always")
def topic(batch: CompiledBatch, row: int) -> Any:
    """Return the text of a row's topic, uint8[...]."""
    place = batch.topic_index[row]
    return batch.topic_text[batch.topic_offsets[place] : batch.topic_offsets[place + 1]]


@njit(inline="always")
def big_endian(data: Any, start: int, size: int) -> int:
    """Return the unsigned big-endian integer of `size` bytes (1 to 8) at `data[start]`, as int64."""
    value = numpy.int64(0)
    for i in range(size):
        value = (value << 8) | numpy.int64(data[start + i])
    return value


@njit(inline="always")
def little_endian(data: Any, start: int, size: int) -> int:
    """Return the unsigned little-endian integer of `size` bytes (1 to 8) at `data[start]`, as int64."""
    value = numpy.int64(0)
    for i in range(size):
        value |= numpy.int64(data[start + i]) << (8 * i)
    return value


@njit(inline="always")
def _batch(call: CallbackCall) -> CompiledBatch:
    count, body, topics = call.block_count, call.body, call.topic_count
    fixed = call.stride >= 0
    layout = body_layout(count, topics, call.topic_bytes, 0, call.flags)
    return CompiledBatch(
        int32s_at(call.rows, call.row_count),
        int64s_at(body, count),
        int32s_at(body + layout.topic_index, count),
        int32s_at(call.numbers, topics),
        int32s_at(body + layout.topic_offsets, topics + 1),
        bytes_at(body + layout.topics, call.topic_bytes),
        int32s_at(body + layout.payload_offsets, 0 if fixed else count + 1),
        bytes_at(body + layout.payloads, call.payload_bytes),
        call.stride,
        call.ts_out,
        call.ts_recv,
        call.sequence,
        int64s_at(body + layout.sequences, count if call.flags & FLAG_SEQUENCES else 0),
        bytes_at(body + layout.validity, (count + 7) >> 3 if call.flags & FLAG_NULLS else 0),
        int64s_at(call.origins, ORIGINS * count if call.origins != 0 else 0),
        call.lost,
    )


def compile_callback(function: Callable[..., None], state: NDArray[Any]) -> Any:
    """Compile `function(batch, state)` to a C function that workers call with an address; it has `.address`.

    A plain Python function is compiled with bounds checks, so that an index out of range raises instead of corrupting
    memory; an `@njit` function keeps its options. Compiled once per function and type of state. Raises CallbackError
    with numba's explanation if it cannot be compiled.
    """
    name = getattr(function, "__name__", repr(function))
    if not isinstance(state, numpy.ndarray):
        raise TypeError(f"state of compiled callback {name} was {type(state).__name__}, expected a numpy array")
    plain = function.py_func if isinstance(function, Dispatcher) else function
    if len(inspect.signature(plain).parameters) != 2:
        raise TypeError(f"compiled callback {name} takes {inspect.signature(plain)}, expected (batch, state)")
    try:
        return _compile(function, state.shape, state.dtype)
    except NumbaError as error:
        raise CallbackError(f"compiled callback {name} could not be compiled: {error}") from error


@lru_cache(maxsize=1024)
def _compile(function: Callable[..., None], shape: tuple[int, ...], dtype: numpy.dtype[Any]) -> Any:
    user = function if isinstance(function, Dispatcher) else njit(nogil=True, boundscheck=True)(function)

    def entry(address: int) -> None:
        call = callback_call_at(address)
        memory = carray(_pointer(call.state), shape, dtype)
        try:
            user(_batch(call), memory)
        except Exception:  # noqa: BLE001 - all that numba can catch
            call.error = 1

    check_memory()
    return cfunc(types.void(types.int64), nogil=True)(entry)
