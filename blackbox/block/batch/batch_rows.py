"""Rows of batches: their payloads, and those of a message type."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy
from numpy.typing import NDArray

from blackbox.block.form.format import body_layout
from blackbox.native.compile.jit import njit, warm_up
from blackbox.native.memory.intrinsics import copy_bytes

if TYPE_CHECKING:
    from blackbox.block.batch.batch import Batch
    from blackbox.block.form.block import Block

_NO_OFFSETS: Final = numpy.frombuffer(b"", numpy.int32)
_PART: Final = 1_024
"""Payloads created at a time, so that their memory is reused while it is in the cache."""


def pick_payloads(block: Block, rows: NDArray[numpy.int32]) -> NDArray[numpy.uint8]:
    """Return the payloads of `rows`, concatenated."""
    if block.is_fixed:
        size, offsets, stride = len(rows) * block.stride, _NO_OFFSETS, block.stride
    else:
        offsets, stride = block.payload_offsets, -1
        size = int((offsets[rows + 1] - offsets[rows]).sum(dtype=numpy.int64))
    target = numpy.empty(size, numpy.uint8)
    _pick(block.payloads, offsets, stride, read_only(rows), target)
    return target


def each_payload(batch: Batch) -> Iterable[bytes | Any]:
    """Yield what `Batch.payload_list` holds, in parts where possible."""
    block = batch.block
    if batch._payload_list is not None or len(batch) <= _PART or not block.stride or block.validity is not None:
        return batch.payload_list()
    data = _fixed_payloads(batch)
    return chain.from_iterable(data[start : start + _PART].tolist() for start in range(0, len(data), _PART))


def read_payloads(batch: Batch) -> list[bytes | Any]:
    """Return the payload of each message of a batch, empty if it has no value."""
    block = batch.block
    if len(batch) == block.count == 1:
        return [block.body[block.layout.payloads :].tobytes()]
    if block.stride:
        found: list[bytes | Any] = _fixed_payloads(batch).tolist()
        return found
    text, starts = batch.payloads().tobytes(), batch.payload_offsets().tolist()
    return list(map(text.__getitem__, map(slice, starts, starts[1:])))


def _fixed_payloads(batch: Batch) -> NDArray[Any]:
    fixed: NDArray[Any] = batch.payloads().view(f"V{batch.block.stride}").reshape(-1)
    return fixed


def find_type(block: Block, rows: NDArray[numpy.int32], type_offset: int, character: int) -> NDArray[numpy.int64]:
    """Return the indices into `rows` of payloads of a type."""
    offsets, stride = (_NO_OFFSETS, block.stride) if block.is_fixed else (block.payload_offsets, -1)
    found = numpy.empty(len(rows), numpy.int64)
    many = _find_type(block.payloads, offsets, stride, read_only(rows), type_offset, character, found)
    return found[:many]


def read_only(rows: NDArray[numpy.int32]) -> NDArray[numpy.int32]:
    """Return a read-only view, like the block's columns: kernels are compiled per kind of array."""
    view = rows.view()
    view.flags.writeable = False
    return view


@njit(nogil=True, cache=True)
def _pick(
    payloads: NDArray[numpy.uint8],
    offsets: NDArray[numpy.int32],
    stride: int,
    rows: NDArray[numpy.int32],
    target: NDArray[numpy.uint8],
) -> None:
    """Write the payloads of `rows` to `target`, concatenated."""
    place: Any = target.ctypes.data
    source = payloads.ctypes.data
    for row in rows:
        start: Any = row * stride if stride >= 0 else numpy.int64(offsets[row])
        size: Any = stride if stride >= 0 else numpy.int64(offsets[row + 1]) - start
        copy_bytes(place, source + start, size)
        place += size


@njit(nogil=True, cache=True)
def _find_type(
    payloads: NDArray[numpy.uint8],
    offsets: NDArray[numpy.int32],
    stride: int,
    rows: NDArray[numpy.int32],
    type_offset: int,
    kind: int,
    found: NDArray[numpy.int64],
) -> int:
    """Write to `found` the indices of `rows` of type `kind`; return their number."""
    many = 0
    for place in range(len(rows)):
        row = rows[place]
        start: Any = row * stride if stride >= 0 else numpy.int64(offsets[row])
        size: Any = stride if stride >= 0 else numpy.int64(offsets[row + 1]) - start
        if type_offset < size and payloads[start + type_offset] == kind:
            found[many] = place
            many += 1
    return many


def warm_up_batches() -> None:
    """Compile the kernels of batches before the first delivery."""
    payloads, found = numpy.frombuffer(b"", numpy.uint8), numpy.empty(0, numpy.int64)
    warm_up(body_layout, 0, 0, 0, 0, 0)
    warm_up(_pick, payloads, _NO_OFFSETS, 0, _NO_OFFSETS, numpy.empty(0, numpy.uint8))
    warm_up(_find_type, payloads, _NO_OFFSETS, 0, _NO_OFFSETS, 0, 0, found)
