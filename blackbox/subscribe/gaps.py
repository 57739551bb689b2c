"""Sequence numbers, compiled: duplicates of two lines, gaps per (epoch, slice, key), and blocks that wait their turn.

With one line a gap is final at once: the transport keeps order. With two, the block after a gap is held until the other
line has brought what is missing or has itself passed it; for at most `line_wait_ns`, and not at all for a line that has
been silent for `line_dead_ns`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy

from blackbox.block.format import MAX_KEY_BYTES, MAX_SEQUENCE, layout_of, read_header
from blackbox.native.intrinsics import inner, int32s_at, int64s_at
from blackbox.native.jit import njit
from blackbox.native.name_table import FULL, Numbering, NumberingAt, number_of
from blackbox.native.prefix_trie import Trie, longest_prefix
from blackbox.native.records import Field, Fields, SharedRecord, record_at
from blackbox.subscribe.state import SliceCounters, slice_counters_at

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
_NO_LIMIT: Final = (1 << 63) - 1


class SequenceState(SharedRecord):
    """What a slice knows of its publisher's runs and of its lines."""

    epoch = Field()
    epoch_known = Field()
    retired = Fields(_RETIRED)
    """Epochs that another has followed."""
    retired_count = Field()
    heard_ns = Fields(2)
    """When each line was last heard."""
    all_told = Field()
    """1 once the publisher has told the sequences of all its keys since the present filters are in force."""


class KeyState(SharedRecord):
    """What a slice knows of one key."""

    epoch = Field()
    expected = Field()
    """The next sequence number to deliver, or _UNKNOWN."""
    line_next = Fields(2)
    """The sequence number after the last one that each line has brought or passed."""


class HeldBlock(SharedRecord):
    """A block that waits for the other line."""

    key = Field()
    """_UNKNOWN: the place is free."""
    sequence = Field()
    count = Field()
    since_ns = Field()


_KEY_BYTES: Final = KeyState.dtype.itemsize
_HELD_BYTES: Final = HeldBlock.dtype.itemsize
_sequence_state_at = record_at(SequenceState)
_key_state_at = record_at(KeyState)
_held_block_at = record_at(HeldBlock)


class SequencesAt(NamedTuple):
    """Where a `Sequences` lies, for compiled code."""

    keys: NumberingAt
    key_states: int
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

    def __init__(
        self, max_keys: int, lines: int, line_wait_ns: int, line_dead_ns: int, counters: SliceCounters
    ) -> None:
        self.keys = Numbering(max_keys, 8)
        self._key_states = numpy.zeros(max_keys, KeyState.dtype)
        self._key_states["expected"] = _UNKNOWN
        self._held = numpy.zeros(HELD_BLOCKS, HeldBlock.dtype)
        self._held["key"] = _UNKNOWN
        self._state = SequenceState()
        self._counters = counters
        self.line_dead_ns = line_dead_ns
        self.at = SequencesAt(
            self.keys.at,
            self._key_states.ctypes.data,
            self._held.ctypes.data,
            self._state.address,
            counters.address,
            lines,
            line_wait_ns,
            line_dead_ns,
        )

    def is_dead(self, line: int, now_ns: int) -> bool:
        """Whether a line has been silent for so long that nothing is expected of it."""
        return now_ns - self._state.heard_ns[line] >= self.line_dead_ns

    def set_all_told(self, told: bool) -> None:
        """Note whether the publisher has told the sequences of all its keys since the present filters are in force."""
        self._state.all_told = told


@inner
def _key(at: SequencesAt, key: int) -> KeyState:
    return _key_state_at(at.key_states + _KEY_BYTES * key)


@inner
def _held(at: SequencesAt, place: int) -> HeldBlock:
    return _held_block_at(at.held + _HELD_BYTES * place)


@inner
def _is_alive(at: SequencesAt, line: int, now_ns: int) -> bool:
    return now_ns - _sequence_state_at(at.state).heard_ns[line] < at.line_dead_ns


@inner
def _is_known(at: SequencesAt, key: int, epoch: int) -> bool:
    state = _key(at, key)
    return state.expected != _UNKNOWN and state.epoch == epoch


@inner
def _begin_key(at: SequencesAt, key: int, epoch: int, sequence: int) -> None:
    """Expect `sequence` of a key that was not known in this epoch.

    A publisher that has told all its keys since we subscribed cannot have sent this one before: it begins at 0.
    """
    state = _key(at, key)
    state.epoch = epoch
    state.expected = 0 if _sequence_state_at(at.state).all_told else sequence
    state.line_next[0] = 0
    state.line_next[1] = 0


@njit(nogil=True, cache=True)
def enter_epoch(at: SequencesAt, epoch: int, line: int, now_ns: int) -> int:
    """Note that a block of `epoch` came on `line`: SAME epoch as before, NEW, or STALE: its time is over.

    At NEW, whatever is held is of an old epoch and must be released before the block is judged.
    """
    state = _sequence_state_at(at.state)
    state.heard_ns[line] = now_ns
    if state.epoch_known and state.epoch == epoch:
        return SAME
    for i in range(min(state.retired_count, _RETIRED)):
        if state.retired[i] == epoch:
            return STALE
    if state.epoch_known:
        state.retired[state.retired_count % _RETIRED] = state.epoch
        state.retired_count += 1
    state.epoch = epoch
    state.epoch_known = 1
    state.all_told = 0
    counters = slice_counters_at(at.counters)
    counters.smallest_lag_ns = _NO_LIMIT  # another run, perhaps another clock
    counters.epochs += 1
    return NEW


@inner
def is_current(at: SequencesAt, epoch: int) -> bool:
    """Whether this is the epoch that goes on."""
    state = _sequence_state_at(at.state)
    return state.epoch_known != 0 and state.epoch == epoch


@inner
def _passed(at: SequencesAt, key: int, sequence: int, now_ns: int) -> bool:
    """Whether no line that is alive can still bring `sequence`, or anything before it."""
    state = _key(at, key)
    for line in range(at.lines):
        can_bring = _is_alive(at, line, now_ns) and state.line_next[line] <= sequence
        if can_bring:
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
    """What to do with a block of `count` numbers that `enter_epoch` let in. `force`: do not wait for another line.

    Return the first number to deliver, from the block's first one on (0 unless it overlaps what was delivered), or
    DUPLICATE, HOLD or MAKE_ROOM. Count gaps and duplicates and move the expected sequence on, except for HOLD and
    MAKE_ROOM.
    """
    if not _is_known(at, key, epoch):
        _begin_key(at, key, epoch, sequence)
    state = _key(at, key)
    counters = slice_counters_at(at.counters)
    end = sequence + count
    state.line_next[line] = max(state.line_next[line], end)
    if end <= state.expected:
        counters.duplicates += count
        return DUPLICATE
    if sequence <= state.expected:
        first = state.expected - sequence
        counters.duplicates += first
        state.expected = end
        return first
    # A gap. The other line may still bring what is missing.
    if force == 0 and not _passed(at, key, sequence - 1, now_ns):
        return HOLD if counters.held < HELD_BLOCKS else MAKE_ROOM
    place = _first_held(at, key)
    if place >= 0 and _held(at, place).sequence < sequence:
        return MAKE_ROOM  # what is held before it goes first
    counters.gaps += sequence - state.expected
    state.expected = end
    return 0


@inner
def hold(at: SequencesAt, key: int, sequence: int, count: int, now_ns: int) -> int:
    """Reserve the place of a block that `judge` said to HOLD; return its number."""
    for place in range(HELD_BLOCKS):
        held = _held(at, place)
        if held.key == _UNKNOWN:
            held.key = key
            held.sequence = sequence
            held.count = count
            held.since_ns = now_ns
            slice_counters_at(at.counters).held += 1
            return place
    return -1


@inner
def _first_held(at: SequencesAt, key: int) -> int:
    """The held block of `key` with the lowest sequence, or -1."""
    best = -1
    if slice_counters_at(at.counters).held == 0:
        return best
    for place in range(HELD_BLOCKS):
        held = _held(at, place)
        if held.key == key and (best < 0 or held.sequence < _held(at, best).sequence):
            best = place
    return best


@inner
def next_ready(at: SequencesAt, key: int, now_ns: int, force: int, until: int) -> int:
    """Return the place of the next held block of `key` whose turn has come, or -1; `release` then frees it.

    Only blocks before sequence number `until` count. `force`: its turn has come, gap or no gap.
    """
    place = _first_held(at, key)
    if place < 0:
        return -1
    held = _held(at, place)
    if held.sequence >= until:
        return -1
    waited = now_ns - held.since_ns >= at.line_wait_ns
    is_next = held.sequence <= _key(at, key).expected
    return place if is_next or force != 0 or waited or _passed(at, key, held.sequence - 1, now_ns) else -1


@inner
def release(at: SequencesAt, place: int) -> int:
    """Free a place that `next_ready` gave and count what is missing before it; return as `judge`."""
    held = _held(at, place)
    state = _key(at, held.key)
    counters = slice_counters_at(at.counters)
    held.key = _UNKNOWN
    counters.held -= 1
    end = held.sequence + held.count
    if state.expected == _UNKNOWN:
        return DUPLICATE  # forgotten meanwhile: nobody wants it
    if end <= state.expected:
        counters.duplicates += held.count
        return DUPLICATE
    first = max(0, state.expected - held.sequence)
    counters.duplicates += first
    counters.gaps += max(0, held.sequence - state.expected)
    state.expected = end
    return first


@inner
def held_place(at: SequencesAt, start: int) -> int:
    """Return the first place at `start` or behind it that holds a block, or -1."""
    for place in range(start, HELD_BLOCKS):
        if _held(at, place).key != _UNKNOWN:
            return place
    return -1


@inner
def key_at(at: SequencesAt, place: int) -> int:
    """Return the key of the held block at a place."""
    return _held(at, place).key


@inner
def settle(at: SequencesAt, key: int, now_ns: int, until: int) -> None:
    """Count as lost what every live line has passed before sequence number `until`, as far as nothing is held."""
    state = _key(at, key)
    if state.expected == _UNKNOWN or _first_held(at, key) >= 0 or not _passed(at, key, state.expected, now_ns):
        return
    reached = max(state.line_next[0], state.line_next[1])
    for line in range(at.lines):
        if _is_alive(at, line, now_ns):
            reached = min(reached, state.line_next[line])
    reached = min(reached, until)
    if reached > state.expected:
        slice_counters_at(at.counters).gaps += reached - state.expected
        state.expected = reached


@inner
def _note_next(at: SequencesAt, key: int, line: int, epoch: int, following: int, baseline: int, now_ns: int) -> None:
    if not _is_known(at, key, epoch):
        if not _sequence_state_at(at.state).all_told and baseline == 0:
            return
        _begin_key(at, key, epoch, following)
    state = _key(at, key)
    state.line_next[line] = max(state.line_next[line], following)
    settle(at, key, now_ns, numpy.int64(_NO_LIMIT))


@njit(nogil=True, cache=True)
def note_sequences(
    at: SequencesAt, filters: Trie, header_at: int, body: int, line: int, epoch: int, baseline: int, now_ns: int
) -> None:
    """Take in the next sequence number of every key on `line`, from a heartbeat or confirmation.

    Only keys that `filters` let through count. Missing messages are counted when no line can bring them and nothing is
    held. `baseline`: the filters are in force from here on, so that keys become known which were not.
    """
    header = read_header(header_at)
    layout = layout_of(header)
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
    """Forget keys that `filters` no longer let through: subscribed to again, they begin anew."""
    known = int64s_at(at.keys.used, 1)[0]
    starts = int64s_at(at.keys.starts, known + 1)
    for key in range(known):
        if longest_prefix(filters, at.keys.text + starts[key], starts[key + 1] - starts[key]) == 0:
            _key(at, key).expected = _UNKNOWN
