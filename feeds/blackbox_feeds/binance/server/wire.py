"""Compiled: recorded lines as WebSocket frames, whose bytes all clients with the same streams share.

    line      receive time | space | {"stream":"NAME","data":DATA} | line end
    combined  the frame as recorded; DATA alone is wrapped, with the stream's name from the topic
    raw       DATA

A WebSocket frame from a server is `0x81 | size | text`; the size has 1, 3 or 9 bytes.
"""

from __future__ import annotations

from typing import Final

import numpy
from numpy.typing import NDArray

from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import bytes_at, copy_bytes, int64s_at
from blackbox.native.tables.name_table import FULL, NumberingAt, number_of

NO_STREAM: Final = -1
"""Stream of lines that Binance does not send on a stream: order books, and other lines."""
STREAM, FRAME, FRAME_BYTES, DATA, DATA_BYTES = range(5)
"""Columns of a located line: number of the stream; address and size of the frame, or 0 if it has to be wrapped; address
and size of the data."""
COLUMNS: Final = 5

_HEAD: Final = numpy.frombuffer(b'{"stream":"', numpy.uint8)
_MIDDLE: Final = numpy.frombuffer(b'","data":', numpy.uint8)
_BOOK: Final = numpy.frombuffer(b'{"lastUpdateId"', numpy.uint8)
_SNAPSHOT: Final = numpy.frombuffer(b"@snapshot", numpy.uint8)
_SPACE, _QUOTE, _CR, _LF, _CLOSE, _TEXT = b' "\r\n}\x81'
_MOST_TIME_BYTES: Final = 32
_WRAPPER_BYTES: Final = len(_HEAD) + len(_MIDDLE) + 1
_MOST_HEAD: Final = 10


@njit(nogil=True, cache=True)
def _has(data: NDArray[numpy.uint8], at: int, text: NDArray[numpy.uint8]) -> bool:
    if at < 0 or at + len(text) > len(data):
        return False
    same = 0
    while same < len(text) and data[at + same] == text[same]:
        same += 1
    return same == len(text)


@njit(nogil=True, cache=True)
def _locate(line: NDArray[numpy.uint8], names: NumberingAt, fallback: int, row: NDArray[numpy.int64]) -> None:
    """Fill a row of columns for one line. `fallback`: the stream of a frame without a stream's name."""
    address, end = line.ctypes.data, len(line)
    while end > 0 and (line[end - 1] == _LF or line[end - 1] == _CR):
        end -= 1
    at = 0
    while at < min(end, _MOST_TIME_BYTES) and line[at] != _SPACE:
        at += 1
    at += 1
    row[:] = 0
    row[STREAM] = NO_STREAM
    if at >= end or line[end - 1] != _CLOSE or _has(line, at, _BOOK):
        return
    start = at + len(_HEAD)
    stop = start
    if _has(line, at, _HEAD):
        while stop < end and line[stop] != _QUOTE:
            stop += 1
    if stop > start and _has(line, stop, _MIDDLE):
        if not _has(line, stop - len(_SNAPSHOT), _SNAPSHOT):
            row[STREAM] = number_of(names, address + start, stop - start)
            row[FRAME], row[FRAME_BYTES] = address + at, end - at
            row[DATA] = address + stop + len(_MIDDLE)
            row[DATA_BYTES] = end - 1 - stop - len(_MIDDLE)
        return
    row[STREAM] = fallback
    row[DATA], row[DATA_BYTES] = address + at, end - at


@njit(nogil=True, cache=True)
def locate(
    addresses: NDArray[numpy.int64],
    lengths: NDArray[numpy.int32],
    topic_index: NDArray[numpy.int32],
    stream_of_topic: NDArray[numpy.int64],
    names: NumberingAt,
    located: NDArray[numpy.int64],
) -> bool:
    """Fill (n, COLUMNS) for n lines. Returns False if there are more streams than `names` has room for."""
    fits = True
    for row in range(len(addresses)):
        line = bytes_at(addresses[row], numpy.int64(lengths[row]))
        _locate(line, names, stream_of_topic[topic_index[row]], located[row])
        fits = fits and (located[row, STREAM] != FULL or located[row, FRAME] == 0)
    return fits


@njit(nogil=True, cache=True)
def _text_bytes(located: NDArray[numpy.int64], is_combined: bool, name_bytes: int) -> int:
    if not is_combined:
        return located[DATA_BYTES]
    return located[FRAME_BYTES] if located[FRAME] else located[DATA_BYTES] + _WRAPPER_BYTES + name_bytes


@njit(nogil=True, cache=True)
def _put_size(wire: NDArray[numpy.uint8], at: int, size: int) -> int:
    """Write the head of a WebSocket frame; return where its text begins."""
    wire[at] = _TEXT
    if size < 126:
        wire[at + 1] = size
        return at + 2
    many = 2 if size < 1 << 16 else 8
    wire[at + 1] = 126 if many == 2 else 127
    for place in range(many):
        wire[at + 2 + place] = (size >> 8 * (many - 1 - place)) & 0xFF
    return at + 2 + many


@njit(nogil=True, cache=True)
def _put(wire: NDArray[numpy.uint8], at: int, source: int, size: int) -> int:
    copy_bytes(wire.ctypes.data + at, source, size)
    return at + size


@njit(nogil=True, cache=True)
def frames_of(
    located: NDArray[numpy.int64], wanted: NDArray[numpy.bool_], is_combined: bool, names: NumberingAt
) -> tuple[NDArray[numpy.uint8], int]:
    """Return the WebSocket frames of the lines in wanted streams, one after the other, and their number."""
    starts = int64s_at(names.starts, names.capacity + 1)
    room = many = 0
    for row in range(len(located)):
        stream = located[row, STREAM]
        if stream >= 0 and stream < len(wanted) and wanted[stream]:
            room += _MOST_HEAD + _text_bytes(located[row], is_combined, starts[stream + 1] - starts[stream])
            many += 1
    wire = numpy.empty(room, numpy.uint8)
    at = 0
    for row in range(len(located)):
        one = located[row]
        stream = one[STREAM]
        if stream < 0 or stream >= len(wanted) or not wanted[stream]:
            continue
        name_bytes = starts[stream + 1] - starts[stream]
        at = _put_size(wire, at, _text_bytes(one, is_combined, name_bytes))
        if not is_combined:
            at = _put(wire, at, one[DATA], one[DATA_BYTES])
        elif one[FRAME]:
            at = _put(wire, at, one[FRAME], one[FRAME_BYTES])
        else:
            at = _put(wire, at, _HEAD.ctypes.data, len(_HEAD))
            at = _put(wire, at, names.text + starts[stream], name_bytes)
            at = _put(wire, at, _MIDDLE.ctypes.data, len(_MIDDLE))
            at = _put(wire, at, one[DATA], one[DATA_BYTES])
            wire[at] = _CLOSE
            at += 1
    return wire[:at], many
