"""Keep how far the records of a journal reach for each key: a heartbeat that says more is worth a mark."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.block.format import FLAG_FIXED, BodyLayout, body_layout, layout_of, read_header, sequence_of
from blackbox.native.intrinsics import copy_bytes, inner, int32s_at, int64s_at
from blackbox.native.jit import njit
from blackbox.native.name_table import FULL, Numbering, NumberingAt, number_of

if TYPE_CHECKING:
    from blackbox.archive.reader import RecordRun

MOST_KEYS: Final = 65_536
_MEAN_KEY_BYTES: Final = 8
_UNKNOWN: Final = -1
NO_KEY: Final = -2


class KeysAt(NamedTuple):
    """Where the next sequence number of each recorded key is kept: addresses, as `NumberingAt`, and of the numbers."""

    slots: int
    starts: int
    text: int
    used: int
    capacity: int
    text_bytes: int
    following: int
    """int64[capacity]: the next number; -1: not known in this epoch."""
    unheard: int
    """int64[1]: messages that are numbered before the first ones known, over all keys and epochs."""
    whole: int
    """int64[capacity]: the number up to which nothing is missing in this epoch, from 0 or from `begin_whole` on."""


class Keys:
    """The next sequence number of each key that was recorded in the current epoch; `at` is for compiled code."""

    def __init__(self, most: int = MOST_KEYS) -> None:
        """Know nothing yet. There is room for `most` keys; later ones are not compared with heartbeats."""
        self._names = Numbering(most, _MEAN_KEY_BYTES)
        self._following = numpy.zeros(most, numpy.int64)
        self._unheard = numpy.zeros(1, numpy.int64)
        self._whole = numpy.zeros(most, numpy.int64)
        numbers = self._following, self._unheard, self._whole
        self.at = KeysAt(*self._names.at, *(column.ctypes.data for column in numbers))

    @property
    def unheard(self) -> int:
        """Messages that were published before anything was known of their key, over all epochs."""
        return int(self._unheard[0])

    def name(self, number: int) -> bytes:
        """Return the key of a number."""
        return self._names.name(number)

    def next_sequences(self) -> dict[bytes, int]:
        """Return the next number of each key, as far as it is known."""
        names = self._names.names()
        return {key: number for key, number in zip(names, self._following.tolist(), strict=False) if number >= 0}


@inner
def _numbering(keys: KeysAt) -> NumberingAt:
    return NumberingAt(keys.slots, keys.starts, keys.text, keys.used, keys.capacity, keys.text_bytes)


@inner
def _number(keys: KeysAt, key: int, size: int) -> int:
    """Return the number of a key; a new one is unknown; FULL: there is no room for it."""
    known = int64s_at(keys.used, 1)[0]
    number = number_of(_numbering(keys), key, size)
    if number == known:
        int64s_at(keys.following, keys.capacity)[number] = _UNKNOWN
        int64s_at(keys.whole, keys.capacity)[number] = 0
    return number


@inner
def forget_keys(keys: KeysAt) -> None:
    """Begin another epoch: nothing is known of any key."""
    known = int64s_at(keys.used, 1)[0]
    int64s_at(keys.following, known)[:] = _UNKNOWN
    int64s_at(keys.whole, known)[:] = 0


@inner
def note_key(keys: KeysAt, header: int, body: int, first_row: int, key_bytes: int) -> None:
    """Note how far a recorded block, from its first row on, brings its key."""
    block = read_header(header)
    layout = layout_of(block)
    size = min(key_bytes, numpy.int64(int32s_at(body + layout.topic_offsets, 2)[1]))
    number = _number(keys, body + layout.topics, size)
    if number != FULL:
        following, whole = int64s_at(keys.following, keys.capacity), int64s_at(keys.whole, keys.capacity)
        first, end = sequence_of(block, layout, body, first_row), sequence_of(block, layout, body, block.count - 1) + 1
        if following[number] == _UNKNOWN:
            int64s_at(keys.unheard, 1)[0] += first
        following[number] = max(following[number], end)
        if first <= whole[number]:
            whole[number] = max(whole[number], end)


@inner
def _number_of_topic(keys: KeysAt, layout: BodyLayout, body: int, topic: int) -> int:
    """The number of a key that a control block names."""
    offsets = int32s_at(body + layout.topic_offsets + 4 * topic, 2)
    start = numpy.int64(offsets[0])
    return _number(keys, body + layout.topics + start, numpy.int64(offsets[1]) - start)


@inner
def total_of(keys: KeysAt, header: int, body: int) -> tuple[int, int]:
    """Return the messages that a control block counts over all keys, and the number of a key that lacks some.

    In place of that number, NO_KEY: none lacks any; FULL: there is no room to know, and they are not all counted.
    """
    block = read_header(header)
    layout = layout_of(block)
    numbers = int64s_at(body + layout.payloads, block.topics)
    total, lacking = numpy.int64(0), numpy.int64(NO_KEY)
    for topic in range(block.topics):
        number = _number_of_topic(keys, layout, body, topic)
        if number == FULL:
            return total, number
        total += numbers[topic]
        if int64s_at(keys.whole, keys.capacity)[number] < numbers[topic]:
            lacking = number
    return total, lacking


@inner
def begin_whole(keys: KeysAt, header: int, body: int) -> bool:
    """Take all that a control block counts for there. False: more is recorded already, and nothing was changed."""
    block = read_header(header)
    layout = layout_of(block)
    numbers = int64s_at(body + layout.payloads, block.topics)
    following = int64s_at(keys.following, keys.capacity)
    known = int64s_at(keys.used, 1)[0]
    recorded = covered = numpy.int64(0)
    for number in range(known):
        recorded += max(0, following[number])
    for topic in range(block.topics):
        number = _number_of_topic(keys, layout, body, topic)
        covered += max(0, min(following[number], numbers[topic]))
    if covered != recorded:
        return False
    for topic in range(block.topics):
        number = _number_of_topic(keys, layout, body, topic)
        int64s_at(keys.whole, keys.capacity)[number] = numbers[topic]
    return True


@inner
def _differs(keys: KeysAt, key: int, size: int, told: int) -> bool:
    number = _number(keys, key, size)
    return number != FULL and int64s_at(keys.following, keys.capacity)[number] < told


@inner
def keys_that_differ(keys: KeysAt, header: int, body: int) -> tuple[int, int]:
    """Return how many keys of a control block the records do not reach, and the bytes of their names."""
    block = read_header(header)
    layout = layout_of(block)
    offsets = int32s_at(body + layout.topic_offsets, block.topics + 1)
    numbers = int64s_at(body + layout.payloads, block.topics)
    names = topic_bytes = numpy.int64(0)
    for topic in range(block.topics):
        start = numpy.int64(offsets[topic])
        size = numpy.int64(offsets[topic + 1]) - start
        if _differs(keys, body + layout.topics + start, size, numbers[topic]):
            names += 1
            topic_bytes += size
    return names, topic_bytes


@inner
def write_keys(keys: KeysAt, header: int, body: int, names: int, topic_bytes: int, target: int) -> int:
    """Write those keys, as the body of a control block, over the zeros at `target`, and take their numbers as known.

    Returns the bytes of that body; a `target` of 0 asks for no more.
    """
    made = body_layout(names, names, topic_bytes, 8 * names, FLAG_FIXED)
    if target == 0:
        return int(made.end)
    block = read_header(header)
    layout = layout_of(block)
    offsets = int32s_at(body + layout.topic_offsets, block.topics + 1)
    numbers = int64s_at(body + layout.payloads, block.topics)
    following = int64s_at(keys.following, keys.capacity)
    to_index = int32s_at(target + made.topic_index, names)
    to_offsets = int32s_at(target + made.topic_offsets, names + 1)
    to_numbers = int64s_at(target + made.payloads, names)
    place = end = 0
    for topic in range(block.topics):
        start = numpy.int64(offsets[topic])
        size = numpy.int64(offsets[topic + 1]) - start
        if place < names and _differs(keys, body + layout.topics + start, size, numbers[topic]):
            copy_bytes(target + made.topics + end, body + layout.topics + start, size)
            end += size
            to_index[place] = place
            to_numbers[place] = numbers[topic]
            place += 1
            to_offsets[place] = end
            number = _number(keys, body + layout.topics + start, size)
            if following[number] == _UNKNOWN:
                int64s_at(keys.unheard, 1)[0] += numbers[topic]
            following[number] = numbers[topic]
    return int(made.end)


def next_numbers(runs: Iterable[RecordRun], key_bytes: int, most_keys: int) -> dict[bytes, int]:
    """Return the number that follows the last one of each key in checked runs of one epoch."""
    keys = Keys(most_keys)
    for run in runs:
        first_rows = run.heads["first_row"].astype(numpy.int64)
        _note_keys(keys.at, run.headers, run.bodies, first_rows, key_bytes)
    return keys.next_sequences()


@njit(nogil=True, cache=True)
def _note_keys(
    keys: KeysAt,
    headers: NDArray[numpy.int64],
    bodies: NDArray[numpy.int64],
    first_rows: NDArray[numpy.int64],
    key_bytes: int,
) -> None:
    for place in range(len(headers)):
        note_key(keys, headers[place], bodies[place], first_rows[place], key_bytes)
