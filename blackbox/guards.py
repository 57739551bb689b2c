"""Sequence numbers, compiled: duplicates of two lines, gaps per (epoch, slice, key), and blocks that wait their turn.

With one line a gap is final at once: the transport keeps order. With two, the block after a gap is held until the other
line has brought what is missing or has itself passed it; for at most `line_wait_ns`, and not at all for a line that has
been silent for `line_dead_ns`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy
from numba import njit
from numpy.typing import NDArray

from blackbox.atoms import inner, int32s_at, int64s_at
from blackbox.check import read_header
from blackbox.counters import Count
from blackbox.layout import MAX_KEY_BYTES, MAX_SEQUENCE, body_layout
from blackbox.memory import shared_array
from blackbox.topics import FULL, Numbering, NumberingAt, Trie, longest_prefix, number_of

DUPLICATE: Final = -1
HOLD: Final = -2
STALE: Final = -3
SAME: Final = 0
NEW: Final = 1
MAKE_ROOM: Final = -4
"""Every place to hold a block is taken: release those of this key, gaps and all, and judge again."""

HELD_BLOCKS: Final = 512
"""Blocks of one slice that may wait for the other line."""
_RETIRED: Final = 8
_UNKNOWN: Final = -1

_GAPS = int(Count.GAPS)
_DUPLICATES = int(Count.DUPLICATES)
_STALE = int(Count.STALE)
_EPOCHS = int(Count.EPOCHS)
_HELD = int(Count.HELD)
_SMALLEST_LAG = int(Count.SMALLEST_LAG)
_NO_LAG = (1 << 63) - 1


Counters = NDArray[numpy.int64]


class SequencesAt(NamedTuple):
    """Where a `Sequences` lies, for compiled code."""

    keys: NumberingAt
    epochs: int
    expected: int
    line_next: int
    held: int
    state: int
    counters: int
    lines: int
    line_wait_ns: int
    line_dead_ns: int


class Sequences:
    """What one slice knows of its keys: epoch, the next sequence number, and how far each line has come.

    Used by one thread. `at` is what compiled code takes; the object must outlive its use.
    """

    def __init__(self, max_keys: int, lines: int, line_wait_ns: int, line_dead_ns: int, counters: Counters) -> None:
        self.keys = Numbering(max_keys, 8)
        self._epochs = numpy.zeros(max_keys, numpy.int64)
        self._expected = numpy.full(max_keys, _UNKNOWN, numpy.int64)
        self._line_next = numpy.zeros((max_keys, 2), numpy.int64)
        self._held = numpy.full((HELD_BLOCKS, 4), _UNKNOWN, numpy.int64)
        self._state: Counters = shared_array((_STATE_WORDS,), numpy.int64)
        self._counters = counters
        self.line_dead_ns = line_dead_ns
        self.at = SequencesAt(
            self.keys.at,
            self._epochs.ctypes.data,
            self._expected.ctypes.data,
            self._line_next.ctypes.data,
            self._held.ctypes.data,
            self._state.ctypes.data,
            counters.ctypes.data,
            lines,
            line_wait_ns,
            line_dead_ns,
        )

    def is_dead(self, line: int, now_ns: int) -> bool:
        """Whether a line has been silent for so long that nothing is expected of it."""
        return bool(now_ns - self._state[_HEARD + line] >= self.line_dead_ns)

    def set_told(self, told: bool) -> None:
        """Whether the publisher has told the sequences of all its keys since the present filters are in force."""
        self._state[_TOLD] = told


# Words of the state: the current epoch, the retired ones, when each line was last heard.
_EPOCH: Final = 0
_EPOCH_KNOWN: Final = 1
_RETIRED_AT: Final = 2
_RETIRED_COUNT: Final = _RETIRED_AT + _RETIRED
_HEARD: Final = _RETIRED_COUNT + 1
_TOLD: Final = _HEARD + 2
_STATE_WORDS: Final = _TOLD + 1

# Words of a held block.
_KEY: Final = 0
_SEQUENCE: Final = 1
_COUNT: Final = 2
_SINCE: Final = 3


@njit(nogil=True, cache=True)
def enter_epoch(at: SequencesAt, epoch: int, line: int, now_ns: int) -> int:
    """Note that a block of `epoch` came on `line`: SAME epoch as before, NEW, or STALE: its time is over.

    At NEW, whatever is held is of an old epoch and must be released before the block is judged.
    """
    state = int64s_at(at.state, _STATE_WORDS)
    state[_HEARD + line] = now_ns
    if state[_EPOCH_KNOWN] and state[_EPOCH] == epoch:
        return SAME
    retired = state[_RETIRED_COUNT]
    for i in range(min(retired, _RETIRED)):
        if state[_RETIRED_AT + i] == epoch:
            return STALE
    if state[_EPOCH_KNOWN]:
        state[_RETIRED_AT + retired % _RETIRED] = state[_EPOCH]
        state[_RETIRED_COUNT] = retired + 1
    state[_EPOCH] = epoch
    state[_EPOCH_KNOWN] = 1
    state[_TOLD] = 0
    int64s_at(at.counters, Count.SIZE)[_SMALLEST_LAG] = _NO_LAG  # another run, perhaps another clock
    int64s_at(at.counters, Count.SIZE)[_EPOCHS] += 1
    return NEW


@inner
def _passed(at: SequencesAt, key: int, sequence: int, now_ns: int) -> bool:
    """Whether no line that is alive can still bring `sequence`, or anything before it."""
    line_next = int64s_at(at.line_next + 16 * key, 2)
    heard = int64s_at(at.state, _STATE_WORDS)
    for line in range(at.lines):
        alive = now_ns - heard[_HEARD + line] < at.line_dead_ns
        if alive and line_next[line] <= sequence:
            return False
    return True


@inner
def judge(
    at: SequencesAt,
    key: int,
    line: int,
    epoch: int,
    sequence: int,
    count: int,
    now_ns: int,
    force: int,
) -> int:
    """What to do with a block that `enter_epoch` let in. `force`: do not wait for another line.

    The first row to deliver (0 unless it overlaps what was delivered), or DUPLICATE, HOLD or MAKE_ROOM. Counts gaps and
    duplicates and moves the expected sequence on, except for HOLD and MAKE_ROOM.
    """
    epochs = int64s_at(at.epochs + 8 * key, 1)
    expected = int64s_at(at.expected + 8 * key, 1)
    line_next = int64s_at(at.line_next + 16 * key, 2)
    counters = int64s_at(at.counters, Count.SIZE)
    end = sequence + count
    if expected[0] == _UNKNOWN or epochs[0] != epoch:
        # A publisher that has told all its keys since we subscribed cannot have sent this one before: it begins at 0.
        told = int64s_at(at.state, _STATE_WORDS)[_TOLD] != 0
        epochs[0] = epoch
        expected[0] = 0 if told else sequence
        line_next[0] = 0
        line_next[1] = 0
    line_next[line] = max(line_next[line], end)
    if end <= expected[0]:
        counters[_DUPLICATES] += count
        return DUPLICATE
    if sequence <= expected[0]:
        first = expected[0] - sequence
        counters[_DUPLICATES] += first
        expected[0] = end
        return first
    # A gap. The other line may still bring what is missing.
    if force == 0 and not _passed(at, key, sequence - 1, now_ns):
        return HOLD if counters[_HELD] < HELD_BLOCKS else MAKE_ROOM
    place = _first_held(at, key)
    if place >= 0 and int64s_at(at.held + 32 * place, 4)[_SEQUENCE] < sequence:
        return MAKE_ROOM  # what is held before it goes first
    counters[_GAPS] += sequence - expected[0]
    expected[0] = end
    return 0


@inner
def hold(at: SequencesAt, key: int, sequence: int, count: int, now_ns: int) -> int:
    """Reserve the place of a block that `judge` said to HOLD; returns its number."""
    held = int64s_at(at.held, HELD_BLOCKS * 4)
    for place in range(HELD_BLOCKS):
        if held[place * 4 + _KEY] == _UNKNOWN:
            held[place * 4 + _KEY] = key
            held[place * 4 + _SEQUENCE] = sequence
            held[place * 4 + _COUNT] = count
            held[place * 4 + _SINCE] = now_ns
            int64s_at(at.counters, Count.SIZE)[_HELD] += 1
            return place
    return -1


@inner
def _first_held(at: SequencesAt, key: int) -> int:
    """The held block of `key` with the lowest sequence, or -1."""
    best = -1
    if int64s_at(at.counters, Count.SIZE)[_HELD] == 0:
        return best
    held = int64s_at(at.held, HELD_BLOCKS * 4)
    for place in range(HELD_BLOCKS):
        if held[place * 4 + _KEY] == key and (best < 0 or held[place * 4 + _SEQUENCE] < held[best * 4 + _SEQUENCE]):
            best = place
    return best


@inner
def next_ready(at: SequencesAt, key: int, now_ns: int, force: int, until: int) -> int:
    """The next held block of `key`, before sequence number `until`, whose turn has come, or -1. `force`: gap or no gap.

    Its place is free again; `release` then says from which row to deliver it.
    """
    place = _first_held(at, key)
    if place < 0:
        return -1
    held = int64s_at(at.held + 32 * place, 4)
    expected = int64s_at(at.expected + 8 * key, 1)
    waited = now_ns - held[_SINCE] >= at.line_wait_ns
    if held[_SEQUENCE] >= until:
        return -1
    if held[_SEQUENCE] > expected[0] and not (force != 0 or waited or _passed(at, key, held[_SEQUENCE] - 1, now_ns)):
        return -1
    return place


@inner
def release(at: SequencesAt, place: int) -> int:
    """Free a place that `next_ready` gave and count what is missing before it; returns the first row, or DUPLICATE."""
    held = int64s_at(at.held + 32 * place, 4)
    counters = int64s_at(at.counters, Count.SIZE)
    expected = int64s_at(at.expected + 8 * held[_KEY], 1)
    held[_KEY] = _UNKNOWN
    counters[_HELD] -= 1
    end = held[_SEQUENCE] + held[_COUNT]
    if expected[0] == _UNKNOWN:
        return DUPLICATE  # forgotten meanwhile: nobody wants it
    if end <= expected[0]:
        counters[_DUPLICATES] += held[_COUNT]
        return DUPLICATE
    first = max(0, expected[0] - held[_SEQUENCE])
    counters[_DUPLICATES] += first
    counters[_GAPS] += max(0, held[_SEQUENCE] - expected[0])
    expected[0] = end
    return first


@inner
def held_key(at: SequencesAt, start: int) -> int:
    """The key of the first held block at place `start` or behind it, as `place << 32 | key`; -1 when there is none."""
    held = int64s_at(at.held, HELD_BLOCKS * 4)
    for place in range(start, HELD_BLOCKS):
        if held[place * 4 + _KEY] != _UNKNOWN:
            return (place << 32) | held[place * 4 + _KEY]
    return -1


@inner
def _note_next(at: SequencesAt, key: int, line: int, epoch: int, following: int, baseline: int, now_ns: int) -> None:
    epochs = int64s_at(at.epochs + 8 * key, 1)
    expected = int64s_at(at.expected + 8 * key, 1)
    line_next = int64s_at(at.line_next + 16 * key, 2)
    if expected[0] == _UNKNOWN or epochs[0] != epoch:
        told = int64s_at(at.state, _STATE_WORDS)[_TOLD] != 0
        if not told and baseline == 0:
            return
        epochs[0] = epoch
        expected[0] = 0 if told else following
        line_next[0] = 0
        line_next[1] = 0
    line_next[line] = max(line_next[line], following)
    settle(at, key, now_ns)


@inner
def is_current(at: SequencesAt, epoch: int) -> bool:
    """Whether this is the epoch that goes on."""
    state = int64s_at(at.state, _STATE_WORDS)
    return state[_EPOCH_KNOWN] != 0 and state[_EPOCH] == epoch


@njit(nogil=True, cache=True)
def note_sequences(
    at: SequencesAt, filters: Trie, header_at: int, body: int, line: int, epoch: int, baseline: int, now_ns: int
) -> None:
    """A heartbeat or confirmation told the next sequence number of every key on `line`; only ours (`filters`) count.

    Missing messages are counted when no line can bring them and nothing is held. `baseline`: the filters are in force
    from here on, so that keys become known which were not.
    """
    header = read_header(header_at)
    layout = body_layout(header.count, header.topics, header.topic_bytes, 0, True)
    offsets = int32s_at(body + layout.topic_offsets, header.topics + 1)
    following = int64s_at(body + layout.payloads, header.count)
    for row in range(header.count):
        start = numpy.int64(offsets[row])
        size = numpy.int64(offsets[row + 1]) - start
        name = body + layout.topics + start
        sane = size <= MAX_KEY_BYTES and 0 <= following[row] <= MAX_SEQUENCE
        if sane and longest_prefix(filters, name, size) != 0:
            key = number_of(at.keys, name, size)
            if key != FULL:
                _note_next(at, key, line, epoch, following[row], baseline, now_ns)


@njit(nogil=True, cache=True)
def forget_uncovered(at: SequencesAt, filters: Trie) -> None:
    """Drop what is known of keys that `filters` no longer let through: subscribed to again, they begin anew."""
    known = int64s_at(at.keys.used, 1)[0]
    starts = int64s_at(at.keys.starts, known + 1)
    for key in range(known):
        if longest_prefix(filters, at.keys.text + starts[key], starts[key + 1] - starts[key]) == 0:
            int64s_at(at.expected + 8 * key, 1)[0] = _UNKNOWN


@inner
def settle(at: SequencesAt, key: int, now_ns: int) -> None:
    """Count as lost what every live line has passed, as far as nothing is held."""
    expected = int64s_at(at.expected + 8 * key, 1)
    if expected[0] == _UNKNOWN or _first_held(at, key) >= 0 or not _passed(at, key, expected[0], now_ns):
        return
    line_next = int64s_at(at.line_next + 16 * key, 2)
    heard = int64s_at(at.state, _STATE_WORDS)
    reached = max(line_next[0], line_next[1])
    for line in range(at.lines):
        if now_ns - heard[_HEARD + line] < at.line_dead_ns:
            reached = min(reached, line_next[line])
    if reached > expected[0]:
        int64s_at(at.counters, Count.SIZE)[_GAPS] += reached - expected[0]
        expected[0] = reached
