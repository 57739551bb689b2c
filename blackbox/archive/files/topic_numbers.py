"""Number the topics of a day in order of appearance, in compiled code, with the slice and key of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.arguments import all_as_bytes
from blackbox.block.form.encode import TopicTable
from blackbox.errors import ConfigError
from blackbox.feed.feed import Feed
from blackbox.feed.routing.compiled_routing import NO_SLICE, Routes, find_key, route, routes_of
from blackbox.feed.routing.key_rule import key_size
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import copy_bytes, int64s_at, uint16s_at
from blackbox.native.tables.name_table import Numbering, NumberingAt, number_of

_FIRST_ROOM: Final = 1_024
_SLICE_BYTES: Final = 2
_FIRST_TOPIC_BYTES: Final = 32 << 10


class _Known(NamedTuple):
    """Numbers of topics and groups, for compiled code."""

    names: NumberingAt
    groups: NumberingAt
    sizes: NDArray[numpy.int32]
    group_of: NDArray[numpy.int32]
    slice_of: NDArray[numpy.int32]
    """Slice by group."""
    name: NDArray[numpy.uint8]
    """Scratch for the name of a group: its slice, 2 bytes, and its key."""


class TopicNumbers:
    """The topics of a day by number, and their *groups*: topics of one slice and key, numbered in order of appearance.

    Attributes: `group_of`, int32 by topic, and `slice_of`, int32 by group, are replaced when they grow. `differ` is
    True if the numbers of the last topics differ from their indexes.
    """

    def __init__(self, feed: Feed) -> None:
        """Start without topics."""
        self._feed = feed
        self._routes = routes_of(feed.routing)
        self._given: Sequence[str | bytes] = ()
        self._of_given = numpy.zeros(0, numpy.int32)
        self.differ = False
        self._names, self._groups = Numbering(1, 1), Numbering(1, 1)
        self._sizes, self.group_of, self.slice_of = (numpy.zeros(0, numpy.int32) for _ in range(3))
        self._make_room(_FIRST_ROOM, _FIRST_TOPIC_BYTES)

    def __len__(self) -> int:
        """Return the number of topics."""
        return len(self._names)

    @property
    def room(self) -> int:
        """Size of the arrays by topic."""
        return len(self.group_of)

    @property
    def groups(self) -> int:
        """Number of groups."""
        return len(self._groups)

    @property
    def table(self) -> TopicTable:
        """The names of the topics."""
        return TopicTable(self._names.text, self._names.starts, self._sizes)

    def numbers_of(self, topics: Sequence[str | bytes]) -> NDArray[numpy.int32]:
        """Return the numbers of a source's topics. Raises ConfigError if one cannot be published."""
        if topics is not self._given:
            # The list grows at its end. Earlier topics are the same objects, so comparing them is fast.
            known = len(self._given) if tuple(topics[: len(self._given)]) == self._given else 0
            numbers = self._number(topics[known:])
            self._of_given = numpy.concatenate([self._of_given[:known], numbers])
            self.differ = bool((self._of_given != numpy.arange(len(topics))).any())
            self._given = tuple(topics)
        return self._of_given

    def _number(self, given: Sequence[str | bytes]) -> NDArray[numpy.int32]:
        topics = all_as_bytes("topics", given)
        count = len(topics)
        ends = numpy.zeros(count + 1, numpy.int64)
        numpy.cumsum(numpy.fromiter(map(len, topics), numpy.int64, count), out=ends[1:])
        text = numpy.frombuffer(b"".join(topics) + b"\0", numpy.uint8)
        self._make_room(len(self) + count, int(self._names.starts[len(self)] + ends[-1]))
        name = numpy.zeros(_SLICE_BYTES + key_size(self._feed.key_rule), numpy.uint8)
        known = _Known(self._names.at, self._groups.at, self._sizes, self.group_of, self.slice_of, name)
        numbers = numpy.empty(count, numpy.int32)
        done = _number_topics(text.ctypes.data, ends, known, self._routes, self._feed.key_rule, numbers)
        if done < count:
            self._feed.slice_of(topics[done])  # raises
        most = self._feed.max_topics * len(self._feed.slices)
        if len(self) > most:
            raise ConfigError(
                f"topics were {len(self)} or more, expected at most {self._feed.max_topics} (max_topics) a slice"
            )
        return numbers

    def _make_room(self, topics: int, text_bytes: int) -> None:
        """Grow to `topics` topics and `text_bytes` bytes of names, at least to twice the current size."""
        if topics <= self.room and text_bytes <= len(self._names.text) - 8:
            return
        room = max(topics, 2 * self.room)
        self._names = refilled(self._names, room, -(-max(text_bytes, 2 * len(self._names.text)) // room))
        self._groups = refilled(self._groups, room, _SLICE_BYTES + key_size(self._feed.key_rule))
        self._sizes, self.group_of, self.slice_of = (
            _grown(each, room) for each in (self._sizes, self.group_of, self.slice_of)
        )


def refilled(numbering: Numbering, room: int, mean_bytes: int) -> Numbering:
    """Return a larger numbering with the same names and numbers."""
    larger = Numbering(room, mean_bytes)
    _refill(larger.at, numbering.at)
    return larger


@njit(nogil=True, cache=True)
def _refill(larger: NumberingAt, numbering: NumberingAt) -> None:
    known = int64s_at(numbering.used, 1)[0]
    starts = int64s_at(numbering.starts, known + 1)
    for number in range(known):
        number_of(larger, numbering.text + starts[number], starts[number + 1] - starts[number])


@njit(nogil=True, cache=True)
def _number_topics(
    text: int, ends: NDArray[numpy.int64], known: _Known, routes: Routes, key_rule: int, numbers: NDArray[numpy.int32]
) -> int:
    """Number the topics with names at an address. Return how many, fewer if one cannot be published."""
    group_name = known.name.ctypes.data
    for topic in range(len(numbers)):
        start = text + ends[topic]
        size = ends[topic + 1] - ends[topic]
        slice_id = route(routes, start, size)
        if slice_id == NO_SLICE:
            return topic
        number = number_of(known.names, start, size)
        numbers[topic] = number
        known.sizes[number] = size
        uint16s_at(group_name, 1)[0] = slice_id
        key, many = find_key(key_rule, start, size)
        copy_bytes(group_name + _SLICE_BYTES, key, many)
        group = number_of(known.groups, group_name, _SLICE_BYTES + many)
        known.group_of[number] = group
        known.slice_of[group] = slice_id
    return len(numbers)


def _grown(array: NDArray[Any], size: int) -> NDArray[Any]:
    """Return an array of this size that begins with the given values."""
    more = numpy.zeros(size, array.dtype)
    more[: len(array)] = array
    return more
