"""Compiled: apply the rows of a block to the books of their symbols.

One loop finds a row's type, topic, symbol, number and book, and calls the feed's `apply`. It returns to Python if a
book must be created or enlarged.
"""

from __future__ import annotations

from typing import Any, Final

import numpy
from numpy.typing import NDArray

from blackbox.block.form.format import FLAG_FIXED, BodyLayout, Header, has_value, layout_of, read_header
from blackbox.book.book import has_room, note_lack, note_origin, settle
from blackbox.book.feed import COMPLETE
from blackbox.book.levels import head_at, show
from blackbox.feed.routing.compiled_routing import CompiledSymbolRule, separator_at
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import bytes_at, call_for_integer, inner, int32s_at, int64s_at
from blackbox.native.memory.records import Field, Fields, SharedRecord, record_at
from blackbox.native.tables.name_table import NumberingAt, number_of


class BooksState(SharedRecord):
    """State of the loop over rows."""

    apply = Field()
    schema_id = Field()
    chosen = Field()
    """Address of uint8[slices] in a replay of several feeds: 1 for the slices of the books' schema. Else 0."""
    conflated = Field()
    """True if the block stands for several, with unknown messages between its messages."""
    late = Field()
    """1 if a book that begins in the block lacks earlier messages."""
    type_offset = Field()
    types = Field()
    """Address of uint8[256]: 1 for the types that change books."""
    separator = Field()
    is_first = Field()
    """The feed's symbol rule."""
    numbering = Fields(len(NumberingAt._fields))
    books = Field()
    """Address of int64[symbols]: the address of each book; 0: there was no memory for it."""
    made = Field()
    """Number of addresses."""
    left_out = Field()
    """Messages of symbols without a book."""
    places = Field()
    """Address of int32[...], scratch memory for the topics of a block."""
    stuck = Field()
    """Number of the book that must be created or enlarged."""


_state_at = record_at(BooksState)
_UNKNOWN: Final = -2


@inner
def _number(state: Any, topic: int, size: int) -> int:
    rule = CompiledSymbolRule(state.separator, state.is_first != 0)
    end = separator_at(rule, topic, size)
    n = state.numbering
    return number_of(NumberingAt(n[0], n[1], n[2], n[3], n[4], n[5]), topic, size if end < 0 else end)


@inner
def _payload(header: Header, layout: BodyLayout, body: int, row: int) -> tuple[int, int]:
    """Return address and size of a row's payload."""
    if header.flags & FLAG_FIXED:
        return body + layout.payloads + header.stride * row, header.stride
    ends = int32s_at(body + layout.payload_offsets + 4 * row, 2)
    start = numpy.int64(ends[0])
    return body + layout.payloads + start, numpy.int64(ends[1]) - start


@inner
def _is_chosen(chosen: int, header: Header, origins: int, row: int) -> bool:
    """Return True if a row is of the books' schema, in merged blocks of several feeds."""
    if chosen == 0:
        return True
    slice_id = header.slice_id if origins == 0 else int64s_at(origins + 24 * header.count, row + 1)[row]
    return bytes_at(chosen, slice_id + 1)[slice_id] != 0


@inner
def _note_origin(book: int, header: Header, origins: int, row: int) -> None:
    if origins == 0:
        note_origin(book, header.slice_id, header.epoch)
        return
    column = 8 * header.count
    note_origin(book, int64s_at(origins + 3 * column, row + 1)[row], int64s_at(origins + 4 * column, row + 1)[row])


@inner
def _begins_late(state: Any, book: int) -> bool:
    """Return True if the book begins with this message and lacks earlier ones."""
    is_late: bool = state.late != 0 and head_at(book).messages == 0
    return is_late


@njit(nogil=True, cache=True)
def apply_rows(
    at: int, header_at: int, body: int, origins: int, rows: NDArray[numpy.int32], first: int, last: int
) -> int:
    """Apply the messages `first` to `last` - 1 of `rows` (none: of all rows of the block). Return where it stopped."""
    state = _state_at(at)
    header = read_header(header_at)
    if state.chosen == 0 and header.schema_id not in (0, state.schema_id):
        return last
    layout = layout_of(header)
    is_all = len(rows) == 0
    topic_index = int32s_at(body + layout.topic_index, header.count)
    topic_offsets = int32s_at(body + layout.topic_offsets, header.topics + 1)
    types = bytes_at(state.types, 256)
    books = int64s_at(state.books, state.made)
    places = int32s_at(state.places, header.topics)
    is_noted = last - first >= header.topics  # caching each topic's book pays off
    if is_noted:
        places[:] = _UNKNOWN
    for i in range(first, last):
        row = numpy.int64(i if is_all else rows[i])
        payload, size = _payload(header, layout, body, row)
        if size <= state.type_offset or types[bytes_at(payload, size)[state.type_offset]] == 0:
            continue
        if not has_value(header, layout, body, row) or not _is_chosen(state.chosen, header, origins, row):
            continue
        topic = numpy.int64(topic_index[row])
        number = numpy.int64(places[topic]) if is_noted else _UNKNOWN
        if number == _UNKNOWN:
            begin = numpy.int64(topic_offsets[topic])
            number = _number(state, body + layout.topics + begin, numpy.int64(topic_offsets[topic + 1]) - begin)
            if is_noted:
                places[topic] = number
        book = books[number] if 0 <= number < len(books) else 0
        if number >= len(books) or (book != 0 and not has_room(book)):
            state.stuck = number
            return i
        if book == 0:
            state.left_out += 1
            continue
        if _begins_late(state, book) or state.conflated != 0:
            note_lack(book)
        _note_origin(book, header, origins, row)
        if call_for_integer(state.apply, book, payload, size) == COMPLETE:
            settle(book)
    return last


@njit(nogil=True, cache=True)
def show_all(books: NDArray[numpy.int64], depth: int, shown: NDArray[numpy.int64]) -> None:
    """Write the best `depth` levels of each book at these addresses to int64[n, 2, depth, 3]."""
    for number in range(len(books)):
        if books[number] != 0:
            show(books[number], depth, shown[number])
