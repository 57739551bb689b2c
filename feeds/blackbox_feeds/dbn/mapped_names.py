"""Names of instruments from symbol-mapping records, which a live session sends among the others, in compiled code.

A mapping holds from its place in the stream until the next one of its instrument. As in Databento's clients, the name
is the output symbol; it is the requested symbol where the output is the instrument's number.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.native.intrinsics import int32s_at, int64s_at
from blackbox.native.jit import njit
from blackbox.native.name_table import FULL, Numbering, NumberingAt, number_of
from blackbox_feeds.dbn.records import SCHEMA
from blackbox_feeds.io.topics import MAX_TOPICS

UNNAMED: Final = 0
"""The number of an instrument's name if no mapping is in force."""

_SYMBOL_BYTES_V1: Final = 22
_SYMBOL_BYTES: Final = SCHEMA.dtype("symbol-mapping")["stype_in_symbol"].itemsize
_BYTES_V1: Final = 80
_IN_V1: Final = 16
_OUT_V1: Final = _IN_V1 + _SYMBOL_BYTES_V1
_IN: Final = SCHEMA.offset("symbol-mapping", "stype_in_symbol")
_OUT: Final = SCHEMA.offset("symbol-mapping", "stype_out_symbol")
_ZERO, _NINE = ord("0"), ord("9")


class MappedAt(NamedTuple):
    """A `MappedNames` as compiled code takes it."""

    texts: NumberingAt
    instruments: NumberingAt
    names: int
    """Address of the number of each instrument's name, int32[MAX_TOPICS]."""
    key: int
    """Address of an int64 for the instrument that is looked up."""


class MappedNames:
    """The names in force. `at` is what compiled code takes; the object must outlive its use."""

    def __init__(self) -> None:
        self._texts = Numbering(MAX_TOPICS, _SYMBOL_BYTES)
        self._instruments = Numbering(MAX_TOPICS, 8)
        self._names = numpy.zeros(MAX_TOPICS, numpy.int32)
        self._key = numpy.zeros(1, numpy.int64)
        self.at = MappedAt(self._texts.at, self._instruments.at, self._names.ctypes.data, self._key.ctypes.data)

    def name(self, number: int) -> bytes:
        """Return the text of a name."""
        return self._texts.name(number - 1)


@njit(nogil=True, cache=True)
def _text_bytes(data: NDArray[numpy.uint8], start: int, most: int) -> int:
    for size in range(most):
        if data[start + size] == 0:
            return size
    return most


@njit(nogil=True, cache=True)
def _is_number(data: NDArray[numpy.uint8], start: int, size: int, number: int) -> bool:
    value = 0
    for place in range(start, start + min(size, 11)):
        if not _ZERO <= data[place] <= _NINE:
            return False
        value = 10 * value + data[place] - _ZERO
    return size > 0 and value == number


@njit(nogil=True, cache=True)
def note_mapping(mapped: MappedAt, data: NDArray[numpy.uint8], start: int, size: int, instrument: int) -> bool:
    """Use the mapping in the record at `start`, of `size` bytes, from here on. Return False if there is no room."""
    is_old = size == _BYTES_V1
    most = _SYMBOL_BYTES_V1 if is_old else _SYMBOL_BYTES
    requested, text = (start + _IN_V1, start + _OUT_V1) if is_old else (start + _IN, start + _OUT)
    length = _text_bytes(data, text, most)
    if length == 0 or _is_number(data, text, length, instrument):
        text, length = requested, _text_bytes(data, requested, most)
        if _is_number(data, text, length, instrument):
            length = 0
    name = numpy.int64(UNNAMED)
    if length > 0:
        name = number_of(mapped.texts, data.ctypes.data + text, length) + 1
    int64s_at(mapped.key, 1)[0] = instrument
    place = number_of(mapped.instruments, mapped.key, 8)
    if place == FULL or (name == FULL + 1 and length > 0):
        return False
    int32s_at(mapped.names, place + 1)[place] = name
    return True


@njit(nogil=True, cache=True)
def has_mappings(mapped: MappedAt) -> bool:
    """Return whether there was a mapping in the stream."""
    return bool(int64s_at(mapped.instruments.used, 1)[0] != 0)


@njit(nogil=True, cache=True)
def mapped_name(mapped: MappedAt, instrument: int) -> int:
    """Return the number of an instrument's name, UNNAMED, or FULL if there is no room for the instrument."""
    int64s_at(mapped.key, 1)[0] = instrument
    place = number_of(mapped.instruments, mapped.key, 8)
    return FULL if place == FULL else int(int32s_at(mapped.names, place + 1)[place])
