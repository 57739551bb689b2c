"""Take blocks out of chunks: unpacked, and checked before anything in them is used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.block import Block
from blackbox.check import FAULT_TEXT, Fault
from blackbox.errors import JournalError
from blackbox.journal.chunks import Chunk, Query
from blackbox.journal.codec import decompress
from blackbox.journal.layout import CODEC_NONE, OFFSET_BLOCK_HEADER, RECORD_HEAD_BYTES, record_bytes
from blackbox.journal.record import is_whole
from blackbox.journal.rows import check_recorded, select_rows
from blackbox.journal.segment import Damage

_EARLIEST: Final = -(1 << 63)
_LATEST: Final = (1 << 63) - 1
_COLUMNS: Final = ["ts_recv", "stored_bytes", "first_row", "codec", "slice", "body_bytes", "count"]


class Recorded(NamedTuple):
    """A block as it was recorded."""

    block: Block
    """Its body is a view on the mapped segment, or new memory when it was stored packed."""
    ts_recv: int
    """When it was received, ns since the epoch."""
    first_row: int
    """Rows before this one were recorded before."""
    header: int
    """The address of its header, in a segment of the chunk."""
    body: int
    """The address of its body."""


def read_blocks(chunks: Iterable[Chunk], key_bytes: int, tell: Callable[[Damage], None]) -> Iterator[Recorded]:
    """The blocks of chunks, but those that are damaged: these are told.

    Raises JournalError when the library that unpacks them is not installed.
    """
    for chunk in chunks:
        headers = chunk.heads.view(numpy.uint8).reshape(-1, RECORD_HEAD_BYTES)[:, OFFSET_BLOCK_HEADER:].tobytes()
        rows = zip(
            chunk.addresses.tolist(),
            chunk.segment_of.tolist(),
            *(chunk.heads[name].tolist() for name in _COLUMNS),
            strict=True,
        )
        place = 0
        for address, number, ts_recv, stored_bytes, first_row, codec, slice_id, body_bytes, count in rows:
            header = headers[place : place + 64]
            place += 64
            segment = chunk.segments[number]
            start = address - segment.address + RECORD_HEAD_BYTES
            body = segment.memory[start : start + stored_bytes]
            body_at = address + RECORD_HEAD_BYTES
            what = "" if slice_id == segment.slice_id else FAULT_TEXT[Fault.SLICE]
            if codec != CODEC_NONE and not what:
                body, what = _unpacked(address, codec, body, body_bytes)
                body_at = body.ctypes.data
            if not what and (fault := check_recorded(address, body_at, len(body), key_bytes)):
                what = FAULT_TEXT[Fault(fault)]
            if what:
                size = record_bytes(stored_bytes)
                tell(Damage(segment.path, start - RECORD_HEAD_BYTES, size, what, count - first_row))
                continue
            block = Block(b"", header, body)
            if key_bytes:
                block.key = block.topic_text[: min(key_bytes, int(block.topic_offsets[1]))].tobytes()
            yield Recorded(block, ts_recv, first_row, address + OFFSET_BLOCK_HEADER, body_at)


class RowFilter:
    """Choose rows of blocks, as a query wants them."""

    def __init__(self, query: Query) -> None:
        self._prefix = numpy.frombuffer(query.prefix or b"\0", numpy.uint8)
        self._prefix_bytes = len(query.prefix)
        self._first_sequence = query.first_sequence
        by_row = query.by == "ts_event"
        self._first_time = query.start if by_row and query.start is not None else _EARLIEST
        self._last_time = query.stop - 1 if by_row and query.stop is not None else _LATEST
        self._takes_all = not query.prefix and (self._first_time, self._last_time) == (_EARLIEST, _LATEST)
        self._scratch = numpy.empty(1_024, numpy.int32)

    def rows(self, recorded: Recorded) -> NDArray[numpy.int32] | None:
        """int32[m]: the wanted rows; None: all of them."""
        block, first_row = recorded.block, recorded.first_row
        if self._first_sequence is not None:
            first_row = max(first_row, min(self._first_sequence - block.sequence, block.count))
        if self._takes_all:
            return numpy.arange(first_row, block.count, dtype=numpy.int32) if first_row else None
        if len(self._scratch) < block.count:
            self._scratch = numpy.empty(block.count, numpy.int32)
        many = select_rows(
            recorded.header,
            recorded.body,
            first_row,
            self._prefix.ctypes.data,
            self._prefix_bytes,
            self._first_time,
            self._last_time,
            self._scratch.ctypes.data,
        )
        return None if many == block.count else self._scratch[:many].copy()


def unpack(address: int, codec: int, stored: NDArray[numpy.uint8], body_bytes: int) -> NDArray[numpy.uint8]:
    """The body of the record at `address`, whose checksum is looked at first. Raises JournalError as `decompress`."""
    if not is_whole(address):
        raise JournalError(FAULT_TEXT[Fault.BODY_CHECKSUM])
    return decompress(codec, stored, body_bytes)


def _unpacked(
    address: int, codec: int, stored: NDArray[numpy.uint8], body_bytes: int
) -> tuple[NDArray[numpy.uint8], str]:
    """An unpacked body; or the stored one, and why it does not unpack."""
    try:
        return unpack(address, codec, stored, body_bytes), ""
    except JournalError as error:
        if isinstance(error.__cause__, ImportError):
            raise
        return stored, str(error)
