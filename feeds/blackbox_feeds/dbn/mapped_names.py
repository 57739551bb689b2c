"""Names of instruments from symbol-mapping records, which a live session sends among the others, in compiled code.

A mapping is in force from its place in the stream on, for records with a time in its interval `[start_ts, end_ts)`. As
in Databento's clients, an undefined start or end is no limit. The name is the output symbol, or the requested symbol
where the output is the instrument's number.

    same name and instrument again    the interval gets the new end
    same name, another instrument     the name moves there: the old mapping ends where the new one begins
    another output symbol             the venue has renamed the instrument: the old one ends where the new one begins
    another requested symbol          both are in force: the instrument has two names
    no symbol                         all names of the instrument end
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.native.compile.jit import njit
from blackbox.native.memory.arrays import fresh_array
from blackbox.native.memory.intrinsics import int32s_at, int64s_at
from blackbox.native.memory.records import Field, SharedRecord, record_at
from blackbox.native.tables.name_table import FULL, Numbering, NumberingAt, number_of
from blackbox_feeds.dbn.records import SCHEMA
from blackbox_feeds.io.integers import little_64
from blackbox_feeds.io.topics import MAX_TOPICS

UNNAMED: Final = 0
"""The number of an instrument's name if no mapping is in force."""

_SYMBOL_BYTES_V1: Final = 22
_SYMBOL_BYTES: Final = SCHEMA.dtype("symbol-mapping")["stype_in_symbol"].itemsize
_BYTES_V1: Final = 80
_IN_V1: Final = 16
_OUT_V1: Final = _IN_V1 + _SYMBOL_BYTES_V1
_START_V1: Final = _BYTES_V1 - 16
_IN: Final = SCHEMA.offset("symbol-mapping", "stype_in_symbol")
_OUT: Final = SCHEMA.offset("symbol-mapping", "stype_out_symbol")
_START: Final = SCHEMA.offset("symbol-mapping", "start_ts")
_ZERO, _NINE = ord("0"), ord("9")
_ALWAYS, _NEVER = -(1 << 63), (1 << 63) - 1


class _Mapping(SharedRecord):
    name = Field()
    start = Field()
    """Start and end of its validity. Unit: ns since 1970-01-01 UTC."""
    end = Field()
    instrument = Field()
    """The number of the instrument among the mapped ones."""
    is_requested = Field()
    next_of_instrument = Field()
    """The number of the next mapping of this instrument, and of this name; 0 at the end."""
    next_of_name = Field()


_mapping_at = record_at(_Mapping)
_MAPPING_BYTES: Final = _Mapping.dtype.itemsize


class MappedAt(NamedTuple):
    """A `MappedNames` for compiled code."""

    texts: NumberingAt
    instruments: NumberingAt
    mappings: int
    """Address of all mappings. They are numbered from 1."""
    used: int
    """Address of an int64: the number of mappings."""
    of_instrument: int
    """Address of the first mapping of each instrument, int32[MAX_TOPICS]."""
    of_name: int
    """Address of the first mapping of each name, int32[MAX_TOPICS + 1]."""
    key: int
    """Address of int64[3]: the instrument to look up, and the numbers of two of its names."""


class MappedNames:
    """The names in force. `at` is for compiled code; the object must outlive its use."""

    def __init__(self) -> None:
        self._texts = Numbering(MAX_TOPICS, _SYMBOL_BYTES, fresh_array)
        self._instruments = Numbering(MAX_TOPICS, 8, fresh_array)
        self._mappings = fresh_array(((MAX_TOPICS + 1) * _MAPPING_BYTES,), numpy.uint8)
        self._firsts = fresh_array((2, MAX_TOPICS + 1), numpy.int32)
        self._used, self._key = numpy.zeros(1, numpy.int64), numpy.zeros(3, numpy.int64)
        self.at = MappedAt(
            self._texts.at,
            self._instruments.at,
            self._mappings.ctypes.data,
            self._used.ctypes.data,
            self._firsts[0].ctypes.data,
            self._firsts[1].ctypes.data,
            self._key.ctypes.data,
        )

    def names(self, number: int) -> tuple[int, list[bytes]]:
        """Return the meaning of a number: an instrument and its two names, or 0 and one name."""
        text = self._texts.name(number - 1)
        if b"\0" not in text:
            return 0, [text]
        instrument, *pair = struct.unpack("<3q", text)
        return instrument, sorted(self._texts.name(each - 1) for each in pair)


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


@njit(inline="always")
def _number(mapped: MappedAt, number: int):  # type: ignore[no-untyped-def]
    return _mapping_at(mapped.mappings + _MAPPING_BYTES * number)


@njit(inline="always")
def _cut(old, start, end) -> None:  # type: ignore[no-untyped-def]
    """Suspend a mapping from `start` to `end`, and end it there if it began before."""
    if old.start < end and start < old.end:
        if old.start <= start:
            old.end = start
        else:
            old.start = end


@njit(nogil=True, cache=True)
def note_mapping(mapped: MappedAt, data: NDArray[numpy.uint8], start: int, size: int, instrument: int) -> int:
    """Apply the mapping in the record at `start`, of `size` bytes, from here on.

    Returns the number of its name, UNNAMED, or FULL if there is no room.
    """
    is_old = size == _BYTES_V1
    most = _SYMBOL_BYTES_V1 if is_old else _SYMBOL_BYTES
    requested, text = (start + _IN_V1, start + _OUT_V1) if is_old else (start + _IN, start + _OUT)
    times = start + (_START_V1 if is_old else _START)
    length, is_requested = _text_bytes(data, text, most), False
    if length == 0 or _is_number(data, text, length, instrument):
        text, length, is_requested = requested, _text_bytes(data, requested, most), True
        if _is_number(data, text, length, instrument):
            length = 0
    begin, end = little_64(data, times), little_64(data, times + 8)
    begin = begin if begin >= 0 else _ALWAYS
    end = end if end > max(begin, 0) else _NEVER
    int64s_at(mapped.key, 1)[0] = instrument
    place = number_of(mapped.instruments, mapped.key, 8)
    name = numpy.int64(UNNAMED)
    if length > 0:
        name = number_of(mapped.texts, data.ctypes.data + text, length) + 1
    if place == FULL or (name == FULL + 1 and length > 0):
        return FULL
    return int(name) if _put(mapped, place, name, begin, end, is_requested) else FULL


@njit(nogil=True, cache=True)
def _put(mapped: MappedAt, place: int, name: int, start: int, end: int, is_requested: bool) -> bool:
    """Put a mapping into force. Return False if there is no room."""
    of_instrument, of_name = int32s_at(mapped.of_instrument, place + 1), int32s_at(mapped.of_name, name + 1)
    found, begin = 0, start
    number = of_instrument[place]
    while number != 0:
        old = _number(mapped, number)
        if old.name == name:
            if start <= old.end and old.start <= end:
                found, begin = number, min(begin, old.start)
                old.end = old.start
        elif name == UNNAMED or not (is_requested or old.is_requested):
            _cut(old, start, end)
        number = old.next_of_instrument
    if name == UNNAMED:
        return True
    number = of_name[name]
    while number != 0:
        old = _number(mapped, number)
        if old.instrument != place:
            _cut(old, start, end)
        number = old.next_of_name
    if found != 0:
        same = _number(mapped, found)
        same.start, same.end, same.is_requested = begin, end, is_requested
        return True
    used = int64s_at(mapped.used, 1)
    if used[0] == MAX_TOPICS:
        return False
    used[0] += 1
    new = _number(mapped, used[0])
    new.name, new.start, new.end, new.instrument, new.is_requested = name, begin, end, place, is_requested
    new.next_of_instrument, new.next_of_name = of_instrument[place], of_name[name]
    of_instrument[place] = of_name[name] = used[0]
    return True


@njit(nogil=True, cache=True)
def has_mappings(mapped: MappedAt) -> bool:
    """Return True if the stream had a mapping."""
    return bool(int64s_at(mapped.instruments.used, 1)[0] != 0)


@njit(nogil=True, cache=True)
def mapped_name(mapped: MappedAt, instrument: int, time: int) -> int:
    """Return the number of an instrument's name at a time, UNNAMED, or FULL if there is no room for the instrument.

    If it has several names, the number stands for two of them: see `MappedNames.names`.
    """
    key = int64s_at(mapped.key, 3)
    key[0] = instrument
    place = number_of(mapped.instruments, mapped.key, 8)
    if place == FULL:
        return FULL
    name = numpy.int64(UNNAMED)
    number = int32s_at(mapped.of_instrument, place + 1)[place]
    while number != 0:
        each = _number(mapped, number)
        if each.start <= time < each.end and each.name != name:
            if name != UNNAMED:
                key[1], key[2] = name, each.name
                pair = number_of(mapped.texts, mapped.key, 24)
                return FULL if pair == FULL else pair + 1
            name = each.name
        number = each.next_of_instrument
    return int(name)
