"""Topics from a template, made once per distinct topic and looked up in compiled code per message.

A message's key is its symbol (eight bytes as an integer; 0 when unknown) and a tag (type and
locate). An open-addressing hash table gives the number of the key's topic. A key seen for the first
time gets the next number at once, and Python writes its topic when the chunk is done.
"""

from __future__ import annotations

import numpy
from numba import njit
from numpy.typing import NDArray

from blackbox.errors import SourceError
from feeds.template import TopicForm

FULL = -1
"""`topic_number` found no room; see `TopicTable.grow`."""
SYSTEM_SYMBOL = 1
"""The key's symbol of a message about the whole market; its topic has `#system` for a symbol."""
SYSTEM_NAME = b"#system"
MAX_TOPICS = 1 << 20
"""More distinct topics than this are taken for corrupt input."""

_FIRST_CAPACITY = 1 << 17
_KEYS = 0
_NUMBERS = 1
_MIX_TAG = 0x1E3779B97F4A7C15
_MIX_KEY = 0x2545F4914F6CDD1D
_PRINTABLE = bytes(byte if 0x21 <= byte <= 0x7E else ord("?") for byte in range(256))
_TYPES = [bytes([byte]) for byte in _PRINTABLE]


@njit(nogil=True, cache=True)
def has_room(table: NDArray[numpy.int64], counts: NDArray[numpy.int64], keys: int) -> bool:
    """Whether that many new keys fit: at most half of the table's rows are used."""
    return 2 * (counts[_KEYS] + keys) <= len(table)


@njit(nogil=True, cache=True)
def topic_number(
    table: NDArray[numpy.int64],
    fresh: NDArray[numpy.int64],
    counts: NDArray[numpy.int64],
    symbol: int,
    tag: int,
) -> int:
    """The number of a key's topic, or `FULL`. Table rows: symbol, tag << 32 | number + 1."""
    mask = len(table) - 1
    slot = (((symbol ^ (tag * _MIX_TAG)) * _MIX_KEY) >> 40) & mask
    while table[slot, 1] != 0:
        if table[slot, 0] == symbol and table[slot, 1] >> 32 == tag:
            return (table[slot, 1] & 0xFFFFFFFF) - 1
        slot = (slot + 1) & mask
    if not has_room(table, counts, 1):
        return FULL
    number = counts[_NUMBERS]
    table[slot, 0] = symbol
    table[slot, 1] = tag << 32 | (number + 1)
    fresh[number, 0] = symbol
    fresh[number, 1] = tag
    counts[_KEYS] += 1
    counts[_NUMBERS] += 1
    return number


@njit(nogil=True, cache=True)
def _rehash(old: NDArray[numpy.int64], new: NDArray[numpy.int64]) -> None:
    mask = len(new) - 1
    for row in range(len(old)):
        if old[row, 1] != 0:
            symbol = old[row, 0]
            tag = old[row, 1] >> 32
            slot = (((symbol ^ (tag * _MIX_TAG)) * _MIX_KEY) >> 40) & mask
            while new[slot, 1] != 0:
                slot = (slot + 1) & mask
            new[slot, 0] = symbol
            new[slot, 1] = old[row, 1]


class TopicTable:
    """The topics of one iteration of a source, and the compiled lookup's memory.

    `table`, `fresh` and `counts` are the first three arguments of `topic_number`. A key is the
    symbol & `symbol_mask`, and as tag (type | locate << 8) & `known_mask`, or & `unknown_mask` when
    the masked symbol is 0.
    """

    def __init__(self, form: TopicForm) -> None:
        names = form.names
        self.topics: tuple[bytes, ...] = ()
        self.symbol_mask = -1 if "symbol" in names else 0
        type_mask = 0xFF if "type" in names else 0
        locate_mask = 0xFFFF00
        self.known_mask = type_mask | (locate_mask if "locate" in names else 0)
        # An unknown symbol is written as its locate, so that tells such topics apart.
        self.unknown_mask = self.known_mask | (locate_mask if self.symbol_mask else 0)
        self._form = form
        self._number_of: dict[bytes, int] = {}
        self._names = _Names({SYSTEM_SYMBOL: SYSTEM_NAME})
        self.counts = numpy.zeros(2, numpy.int64)
        self.table = numpy.zeros((_FIRST_CAPACITY, 2), numpy.int64)
        self.fresh = numpy.zeros((_FIRST_CAPACITY // 2, 2), numpy.int64)

    def grow(self) -> None:
        """Double the table. The topics so far must have been settled.

        Raises:
            SourceError: there are more than `MAX_TOPICS` topics.
        """
        capacity = 2 * len(self.table)
        if capacity > 2 * MAX_TOPICS:
            raise SourceError(
                f"the input has more than {MAX_TOPICS} distinct topics by template "
                f"{self._form.template!r}: it is corrupt, or the template is too fine"
            )
        table = numpy.zeros((capacity, 2), numpy.int64)
        _rehash(self.table, table)
        self.table = table
        self.fresh = numpy.zeros((capacity // 2, 2), numpy.int64)

    def settle(self, topic_index: NDArray[numpy.int32]) -> bool:
        """Write the topics of the numbers given out since the last call.

        Two keys may have one topic, e.g. when their symbols differ in padding alone: `topic_index`,
        the numbers given out, is corrected for that in place. Returns True if so: then any number
        that `topic_number` has returned so far may have become another.
        """
        first = len(self.topics)
        count = int(self.counts[_NUMBERS])
        if count == first:
            return False
        number_of = self._number_of
        new: list[bytes] = []
        places = []
        for symbol, tag in self.fresh[first:count].tolist():
            topic = self._topic(symbol, tag)
            place = number_of.setdefault(topic, first + len(new))
            places.append(place)
            if place == first + len(new):
                new.append(topic)
        self.topics = (*self.topics, *new)
        if len(self.topics) == count:
            return False
        self._renumber(topic_index, numpy.array([*range(first), *places]))
        return True

    def _renumber(self, topic_index: NDArray[numpy.int32], place: NDArray[numpy.int64]) -> None:
        topic_index[:] = place[topic_index]
        used = self.table[:, 1] != 0
        entry = self.table[used, 1]
        self.table[used, 1] = (entry >> 32 << 32) | (place[(entry & 0xFFFFFFFF) - 1] + 1)
        self.counts[_NUMBERS] = len(self.topics)

    def _topic(self, symbol: int, tag: int) -> bytes:
        locate = tag >> 8
        name = self._names[symbol] or b"#%d" % locate
        return self._form.topic(name, _TYPES[tag & 0xFF], locate)


def printable(text: bytes) -> bytes:
    """A name as it may stand in a topic: whatever is no printable ASCII becomes `?`."""
    return text.translate(_PRINTABLE)


class _Names(dict[int, bytes]):
    """Symbol of a key to its text, made when it is first asked for; empty when there is none."""

    def __missing__(self, symbol: int) -> bytes:
        padded = (symbol & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "little")
        name = printable(padded.rstrip(b" \0"))
        self[symbol] = name
        return name
