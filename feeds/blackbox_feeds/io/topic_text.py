"""Compiled: write topics from a template, for many new keys in one call."""

from __future__ import annotations

from typing import Final, NamedTuple, Self

import numpy
from numpy.typing import NDArray

from blackbox.feed.routing.symbol import MARKET_SYMBOL
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import int64s_at
from blackbox.native.tables.name_table import NumberingAt, number_of
from blackbox_feeds.io.template import TopicForm

SYSTEM_SYMBOL: Final = 1
"""The key's symbol of a message about the whole market; `MARKET_SYMBOL` in its topic."""
_FIELDS: Final = ("symbol", "type", "locate")
_NO_FIELD, _SYMBOL, _TYPE, _LOCATE = -1, 0, 1, 2
_FIELD_BYTES: Final = 32
"""More bytes than any field has."""
_MARKET: Final = numpy.frombuffer(MARKET_SYMBOL, numpy.uint8)
_HASH, _ZERO, _SPACE, _LAST = ord("#"), ord("0"), ord(" "), ord("~")
_HIGH_BITS: Final = numpy.uint64(0x8080808080808080)
_SPACES: Final = numpy.uint64(0x2020202020202020)
_ONES: Final = numpy.uint64(0x0101010101010101)


class CompiledForm(NamedTuple):
    """A `TopicForm` for compiled code: fixed texts, each with the field after it."""

    text: NDArray[numpy.uint8]
    ends: NDArray[numpy.int64]
    """int64[n + 1]: fixed text i is `text[ends[i]:ends[i + 1]]`."""
    fields: NDArray[numpy.int32]
    """int32[n]: the field after each text; _NO_FIELD: none."""
    scratch: NDArray[numpy.uint8]
    """Buffer for a topic, of the longest size."""

    @classmethod
    def of(cls, form: TopicForm) -> Self:
        """Return the compiled form of a template."""
        texts = [text for text, _ in form.pieces]
        fields = [_NO_FIELD if name is None else _FIELDS.index(name) for _, name in form.pieces]
        ends = numpy.cumsum([0, *map(len, texts)], dtype=numpy.int64)
        room = int(ends[-1]) + _FIELD_BYTES * len(fields)
        text = numpy.frombuffer(b"".join(texts) + b"\0", numpy.uint8)
        return cls(text, ends, numpy.array(fields, numpy.int32), numpy.zeros(room, numpy.uint8))


@njit(nogil=True, cache=True)
def is_symbol(symbol: int) -> bool:
    """Return True if eight bytes are a valid symbol: printable ASCII, padded with blanks or zeros, perhaps empty.

    A symbol must not begin with `#`, which marks topics of messages without one.
    """
    word = numpy.uint64(symbol)
    first = numpy.int64(symbol) & 0xFF
    above = (word | (word + _ONES)) & _HIGH_BITS
    if above == 0 and ((word | _HIGH_BITS) - _SPACES) & _HIGH_BITS == _HIGH_BITS:
        return bool(first != _HASH)
    is_padding = True
    for place in range(7, -1, -1):
        byte = (numpy.int64(symbol) >> (8 * place)) & 0xFF
        is_padding = is_padding and byte in (0, _SPACE)
        if not is_padding and not _SPACE <= byte <= _LAST:
            return False
    return bool(first != _HASH)


@njit(nogil=True, cache=True)
def _put_decimal(target: NDArray[numpy.uint8], at: int, value: int) -> int:
    """Write a number of 0 or more; return the end."""
    end = at + 1
    rest = value // 10
    while rest > 0:
        end += 1
        rest //= 10
    for place in range(end - 1, at - 1, -1):
        target[place] = _ZERO + value % 10
        value //= 10
    return end


@njit(nogil=True, cache=True)
def _put_symbol(target: NDArray[numpy.uint8], at: int, symbol: int, locate: int) -> int:
    """Write a symbol, padded with blanks or zeros; if it is empty, `#` and the locate. Return the end."""
    if symbol == SYSTEM_SYMBOL:
        for place in range(len(_MARKET)):
            target[at + place] = _MARKET[place]
        return at + len(_MARKET)
    end = at
    for place in range(8):
        byte = (symbol >> (8 * place)) & 0xFF
        target[at + place] = byte
        if byte not in (_SPACE, 0):
            end = at + place + 1
    if end > at:
        return end
    target[at] = _HASH
    return int(_put_decimal(target, at + 1, locate))


@njit(nogil=True, cache=True)
def write_topics(keys: int, form: CompiledForm, topics: NumberingAt, places: NDArray[numpy.int32]) -> None:
    """Write and number the topics of keys, int64[n, 2] at an address: symbol, and type | locate << 8.

    `places` gets the number of each key's topic.
    """
    words = int64s_at(keys, 2 * len(places))
    for number in range(len(places)):
        symbol, tag = words[2 * number], words[2 * number + 1]
        locate = tag >> 8
        end = numpy.int64(0)
        for piece in range(len(form.fields)):
            for place in range(form.ends[piece], form.ends[piece + 1]):
                form.scratch[end] = form.text[place]
                end += 1
            field = form.fields[piece]
            if field == _SYMBOL:
                end = _put_symbol(form.scratch, end, symbol, locate)
            elif field == _TYPE:
                form.scratch[end] = tag & 0xFF
                end += 1
            elif field == _LOCATE:
                end = _put_decimal(form.scratch, end, locate)
        places[number] = number_of(topics, form.scratch.ctypes.data, end)
