"""How far the records of a journal bring each key: what a heartbeat says beyond that is worth a mark."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy

from blackbox.block.format import FLAG_FIXED, body_layout, layout_of, read_header, sequence_of
from blackbox.native.intrinsics import copy_bytes, inner, int32s_at, int64s_at
from blackbox.native.name_table import FULL, Numbering, NumberingAt, number_of

_MOST_KEYS: Final = 65_536
_MEAN_KEY_BYTES: Final = 8
_UNKNOWN: Final = -1


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


class Keys:
    """The next sequence number of each key that was recorded in the current epoch; `at` is for compiled code."""

    def __init__(self) -> None:
        """Nothing is known yet. There is room for 65,536 keys; further ones are not compared with what is told."""
        self._names = Numbering(_MOST_KEYS, _MEAN_KEY_BYTES)
        self._following = numpy.zeros(_MOST_KEYS, numpy.int64)
        self._unheard = numpy.zeros(1, numpy.int64)
        self.at = KeysAt(*self._names.at, self._following.ctypes.data, self._unheard.ctypes.data)

    @property
    def unheard(self) -> int:
        """Messages that were published before anything was known of their key, over all epochs."""
        return int(self._unheard[0])


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
    return number


@inner
def forget_keys(keys: KeysAt) -> None:
    """Begin another epoch: nothing is known of any key."""
    int64s_at(keys.following, int64s_at(keys.used, 1)[0])[:] = _UNKNOWN


@inner
def note_key(keys: KeysAt, header: int, body: int, first_row: int, key_bytes: int) -> None:
    """Note how far a recorded block, from its first row on, brings its key."""
    block = read_header(header)
    layout = layout_of(block)
    size = min(key_bytes, numpy.int64(int32s_at(body + layout.topic_offsets, 2)[1]))
    number = _number(keys, body + layout.topics, size)
    if number != FULL:
        following = int64s_at(keys.following, keys.capacity)
        if following[number] == _UNKNOWN:
            int64s_at(keys.unheard, 1)[0] += sequence_of(block, layout, body, first_row)
        following[number] = max(following[number], sequence_of(block, layout, body, block.count - 1) + 1)


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
