"""What a slice knows of its keys: epoch, next sequence number, how far each line has come, and what is missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy

from blackbox.block.position import KeyPosition, Position, Undone
from blackbox.errors import SubscriberError
from blackbox.native.intrinsics import inner, int64s_at, saturated
from blackbox.native.jit import njit
from blackbox.native.name_table import FULL, Numbering, NumberingAt, number_of
from blackbox.native.records import Field, Fields, SharedRecord, record_at
from blackbox.subscribe.epochs import EpochState, epoch_state_at
from blackbox.subscribe.held_blocks import (
    HELD_BLOCKS,
    HeldBlock,
    HeldState,
    KeyQueue,
    held_at,
)
from blackbox.subscribe.join_state import MOST_ENDED, JoinPhase, JoinState, join_state_at
from blackbox.subscribe.state import SliceCounters, slice_counters_at

ARCHIVE: Final = 2
"""In place of a line: blocks that archives have brought."""
UNKNOWN: Final = -1
MOST_LEFT: Final = 8


class KeyState(KeyQueue):
    """What a slice knows of one key, and which of its blocks wait."""

    epoch = Field()
    expected = Field()
    """The next sequence number to deliver, or UNKNOWN."""
    began = Field()
    """The first number that was expected in its epoch: what was sent before it is no gap, and never comes."""
    line_next = Fields(3)
    """The sequence number after the last one that each line has brought or passed; the third one is of archives."""
    asked_to = Field()
    """Archives were asked for what is missing before this number."""
    doubted = Fields(2)
    """A number too far ahead that each line has told once; 0: none."""
    doubted_end = Fields(2)
    """The number after the last one of the block that told it."""
    doubted_place = Fields(2)
    """Where that block is kept; NONE: a heartbeat told it, or there was no room."""
    lost = Field()
    """How many messages are missing that nobody has been told of yet."""
    lost_from = Field()
    """The number of the first of them."""
    next_lost = Field()
    """The number, plus 1, of the next key of which messages are missing; 0: there is none."""
    live_next = Field()
    """While archives bring what was before: the number that follows all that the publisher's present run has sent."""
    is_behind = Field()
    """1: archives have not brought all of that; counted in `JoinState.behind`."""
    ended_next = Fields(MOST_ENDED)
    """The same of runs that have ended meanwhile, in the places of `JoinState.ended_epoch`."""


class LeftRuns(SharedRecord):
    """Runs that a key has left for a later one; apart from the rest, so that it is touched where there are any."""

    count = Field()
    epoch = Fields(MOST_LEFT)
    """The last of them, used in a circle, for readers of streams that are still there."""
    following = Fields(MOST_LEFT)
    """The number that was expected then."""


class Losses(SharedRecord):
    """The keys of which messages are missing that nobody has been told of."""

    first_key = Field()
    """The number of the first of them, plus 1; 0: there is none. They are linked by `next_lost`."""


_KEY_BYTES: Final = KeyState.dtype.itemsize
_LEFT_BYTES: Final = LeftRuns.dtype.itemsize
_left_runs_at = record_at(LeftRuns)
_losses_at = record_at(Losses)
held_state_at = record_at(HeldState)
_key_state_at = record_at(KeyState)


class SequencesAt(NamedTuple):
    """Where a `Sequences` lies, for compiled code."""

    keys: NumberingAt
    key_states: int
    held: int
    held_state: int
    state: int
    losses: int
    counters: int
    lines: int
    line_wait_ns: int
    line_dead_ns: int
    held_limit: int
    """Bytes of the blocks that may wait."""
    repair: int
    """Address of a `RepairQueue`."""
    asks: int
    """1: archives are asked for what is missing."""
    join: int
    """Address of a `JoinState`."""
    left: int
    """Address of the `LeftRuns` of all keys."""


class Behind(NamedTuple):
    """A key that archives have not brought all of."""

    key: bytes
    epoch: int
    first: int
    """The first number that is missing; UNKNOWN: archives have brought nothing of it, and it may begin anywhere."""
    stop: int
    """The number behind all that its publisher has sent."""


class Sequences:
    """What one slice knows of its keys: epoch, the next sequence number, and how far each line has come.

    Used by one thread. `at` is what compiled code takes; the object must outlive its use.
    """

    def __init__(
        self,
        max_keys: int,
        lines: int,
        line_wait_ns: int,
        line_dead_ns: int,
        held_limit: int,
        counters: SliceCounters,
        repair: int = 0,
        asks: bool = False,
        join: JoinState | None = None,
    ) -> None:
        self.keys = Numbering(max_keys, 8)
        self._key_states = numpy.zeros(max_keys, KeyState.dtype)
        self._key_states["expected"][:1] = UNKNOWN  # others when they get their number: all take 200 MB
        self._left = numpy.zeros(max_keys, LeftRuns.dtype)
        self._held = numpy.zeros(HELD_BLOCKS + 1, HeldBlock.dtype)
        self._held_state = HeldState()
        self._state = EpochState()
        self._losses = Losses()
        self._join = join or JoinState()
        self._waits_for_told = False
        self.line_dead_ns = line_dead_ns
        self.at = SequencesAt(
            self.keys.at,
            self._key_states.ctypes.data,
            self._held.ctypes.data,
            self._held_state.address,
            self._state.address,
            self._losses.address,
            counters.address,
            lines,
            line_wait_ns,
            line_dead_ns,
            held_limit,
            repair,
            int(asks),
            self._join.address,
            self._left.ctypes.data,
        )

    def behind(self) -> list[Behind]:
        """Return which keys archives have not brought all of. Any thread may ask; empty while another run begins."""
        epoch, many = self._state.epoch, len(self.keys)
        states = self._key_states[:many].copy()
        if self._state.epoch != epoch or self._join.at_epoch not in (0, epoch):
            return []
        found = []
        for number in numpy.flatnonzero(states["is_behind"]).tolist():
            state = states[number]
            first = int(state["expected"])
            if first == UNKNOWN or state["epoch"] != epoch:
                is_open = first == UNKNOWN and self._join.opens and self._join.open_epoch in (0, epoch)
                first = UNKNOWN if is_open else 0
            found.append(Behind(self.keys.name(number), epoch, first, int(state["live_next"])))
        return found

    @property
    def places_used(self) -> int:
        """The highest place at which a block has ever waited."""
        return self._held_state.used

    def is_dead(self, line: int, now_ns: int) -> bool:
        """Whether a line has been silent for so long that nothing is expected of it."""
        return now_ns - self._state.heard_ns[line] >= self.line_dead_ns

    def heard_ns(self, line: int) -> int:
        """When a line was last heard, by the monotonic clock."""
        return self._state.heard_ns[line]

    def begin_at(self, epoch: int, following: Mapping[bytes, int], done_ns: int, *, has_image: bool) -> None:
        """Expect these numbers of keys, in this epoch; of others 0. `done_ns`: what was sent before is done.

        `has_image`: an image stands for what was sent before these numbers.
        """
        self._join.at_epoch = self._state.done_epoch = epoch
        self._state.done_ns = done_ns
        for key, sequence in following.items():
            text = numpy.frombuffer(key or b"\0", numpy.uint8)
            number = number_key(self.at, text.ctypes.data, len(key))
            if number != FULL:
                state = KeyState(self._key_states[number : number + 1])
                state.epoch, state.expected = epoch, sequence
                state.began = 0 if has_image else sequence

    def position(self) -> Position | None:
        """Return what comes next of the one key of a slice whose feed has no keys; None: it is not known."""
        state = KeyState(self._key_states[:1])
        if state.expected != UNKNOWN:
            return Position(state.epoch, state.expected)
        return Position(self._state.epoch, 0) if self._state.epoch and self._state.all_told else None

    def key_position(self, prefixes: Iterable[bytes], since_ns: int, margin_ns: int) -> KeyPosition | None:
        """Return what comes next of all keys; None: no publisher has told it. Epoch 0: archives have brought nothing.

        It is not told either once there are new filters, until a publisher has confirmed them.
        `since_ns`: where keys begin of which archives have brought nothing yet, if they are at the run that began so.
        `margin_ns`: taken off the time before which all is done.
        """
        is_live = self._join.phase == JoinPhase.LIVE
        epoch = self._state.epoch if is_live else self._join.at_epoch
        if is_live and (epoch == 0 or (self._waits_for_told and not self._state.all_told)):
            return None
        states = self._key_states[: len(self.keys)]
        known = numpy.flatnonzero((states["expected"] != UNKNOWN) & (states["epoch"] == epoch))
        names, expected = self.keys.names(), states["expected"][known].tolist()
        following = {names[number]: sequence for number, sequence in zip(known.tolist(), expected, strict=True)}
        is_open = not is_live and self._join.opens and epoch == self._join.open_epoch
        done_ns = max(0, self._state.done_ns - margin_ns) if self._state.done_epoch == epoch else 0
        return KeyPosition(epoch, following, sorted(prefixes), done_ns, since_ns if is_open else 0)

    def back_to(self, position: KeyPosition, undone: Undone, since_ns: int) -> KeyPosition:
        """Return a position of all keys, or the one of which all before is done where a reader is behind.

        Raises SubscriberError when it is so many runs behind that this is not known any more.
        """
        epoch, _, sent_ns = undone
        if epoch == position.epoch:
            following, done_ns = position.next_sequences | undone.next_sequences, min(position.done_ns, sent_ns)
            return position._replace(next_sequences=following, done_ns=done_ns)
        following = self._following_in(epoch) | undone.next_sequences
        is_open = self._join.opens and epoch == self._join.open_epoch
        return KeyPosition(epoch, following, position.prefixes, sent_ns, since_ns if is_open else 0)

    def _following_in(self, epoch: int) -> dict[bytes, int]:
        """Return what came next of keys in a run that others have followed, or that some are still in."""
        states, names, following = self._key_states[: len(self.keys)], self.keys.names(), dict[bytes, int]()
        for number in numpy.flatnonzero((states["expected"] != UNKNOWN) & (states["epoch"] == epoch)).tolist():
            following[names[number]] = int(states["expected"][number])
        left = self._left[: len(states)]
        for number, place in zip(*(each.tolist() for each in numpy.nonzero(left["epoch"] == epoch)), strict=True):
            following[names[number]] = int(left["following"][number, place])
        if bool(((left["count"] > MOST_LEFT) & (left["epoch"].min(axis=1) > epoch)).any()):
            raise SubscriberError(
                f"the reader of a stream was in the run {epoch}, which some key has left more than {MOST_LEFT} "
                "runs ago: it is not known any more how far that key was"
            )
        return following

    def fell_back_at(self) -> tuple[int, dict[bytes, int], int, int]:
        """Return where archives are to begin, as a `Since`, when the slice has fallen back.

        Any thread may ask, until they do. What goes on live meanwhile, without keys, does so without a gap.
        """
        epoch, state = self._join.from_epoch, self._state
        margin_ns = self.line_dead_ns * (self.at.lines - 1)
        done_ns = max(0, state.done_ns - margin_ns) if state.done_epoch == epoch else 0
        return epoch, self._following_in(epoch), 0, done_ns

    def set_all_told(self, told: bool) -> None:
        """Note whether the publisher has told the sequences of all its keys since the present filters are in force."""
        self._state.all_told = told
        self._waits_for_told = not told  # a run that begins meanwhile is told from its beginning on


@inner
def key_state(at: SequencesAt, key: int) -> KeyState:
    """Return the state of a key, by its number."""
    return _key_state_at(at.key_states + _KEY_BYTES * key)


@njit(nogil=True, cache=True)
def number_key(at: SequencesAt, text: int, size: int) -> int:
    """Return the number of a key; one that is new gets the next one, and nothing is known of it. FULL: no room."""
    known = int64s_at(at.keys.used, 1)[0]
    number: int = number_of(at.keys, text, size)
    if number == known:
        key_state(at, number).expected = numpy.int64(UNKNOWN)
    return number


@inner
def leave_run(at: SequencesAt, key: int, epoch: int) -> None:
    """Keep how far a key was in the run before, where it begins another one."""
    state, left = key_state(at, key), _left_runs_at(at.left + _LEFT_BYTES * key)
    if state.expected != UNKNOWN and state.epoch != epoch:
        place = left.count % MOST_LEFT
        left.epoch[place] = state.epoch
        left.following[place] = state.expected
        left.count += 1


@inner
def held_block(at: SequencesAt, place: int) -> HeldBlock:
    """Return the block that waits at a place."""
    return held_at(at.held, place)


@inner
def is_alive(at: SequencesAt, line: int, now_ns: int) -> bool:
    """Whether a line was heard of late."""
    return now_ns - epoch_state_at(at.state).heard_ns[line] < at.line_dead_ns


@inner
def is_current(at: SequencesAt, epoch: int) -> bool:
    """Whether this is the epoch that goes on."""
    return epoch_state_at(at.state).epoch == epoch


@inner
def is_known(at: SequencesAt, key: int, epoch: int) -> bool:
    """Return whether the next number of a key is known, in this epoch."""
    state = key_state(at, key)
    return state.expected != UNKNOWN and state.epoch == epoch


@inner
def is_wanted(at: SequencesAt, key: int, epoch: int) -> bool:
    """Whether this is the epoch that goes on, and the next number of a key is known in it."""
    return is_current(at, epoch) and is_known(at, key, epoch)


@inner
def note_behind(at: SequencesAt, key: int) -> None:
    """Note whether archives have brought all of a key, after it or its publisher went on."""
    state, join, epoch = key_state(at, key), join_state_at(at.join), epoch_state_at(at.state).epoch
    is_short = (
        state.expected == UNKNOWN or state.epoch < epoch or (state.epoch == epoch and state.expected < state.live_next)
    )
    is_behind = numpy.int64(state.live_next > 0 and is_short)
    join.behind += is_behind - state.is_behind
    state.is_behind = is_behind


@inner
def note_live(at: SequencesAt, key: int, following: int) -> None:
    """Take note of the number that follows what the publisher's present run has sent of a key."""
    state = key_state(at, key)
    state.live_next = max(state.live_next, following)
    note_behind(at, key)


@inner
def forget_live(at: SequencesAt) -> None:
    """Know nothing any more of what the publisher has sent."""
    join = join_state_at(at.join)
    for key in range(int64s_at(at.keys.used, 1)[0]):
        state = key_state(at, key)
        state.live_next = 0
        state.is_behind = 0
    join.behind = 0
    join.is_told = 0


@inner
def end_run(at: SequencesAt, epoch: int) -> None:
    """Take note that a run of the publisher has ended, and how far it is known to have come."""
    join = join_state_at(at.join)
    place = join.ended % MOST_ENDED
    for key in range(int64s_at(at.keys.used, 1)[0]):
        state = key_state(at, key)
        state.ended_next[place] = state.live_next
    join.ended_epoch[place] = epoch
    join.ended += 1


@inner
def lose(at: SequencesAt, key: int, count: int) -> None:
    """Count messages that are missing from the expected one on; `next_loss` tells of them."""
    state = key_state(at, key)
    counters = slice_counters_at(at.counters)
    counters.gaps = saturated(counters.gaps, count)
    if state.lost == 0:
        losses = _losses_at(at.losses)
        state.next_lost = losses.first_key
        losses.first_key = key + 1
        state.lost_from = state.expected
    state.lost += count


@inner
def has_losses(at: SequencesAt) -> bool:
    """Whether messages are missing that nobody has been told of."""
    return _losses_at(at.losses).first_key != 0


class Loss(NamedTuple):
    """Messages of one key that are missing."""

    number: int
    """Of the key."""
    epoch: int
    sequence: int
    """The first of them."""
    count: int
    key: int
    """Address of the key."""
    key_bytes: int


@inner
def next_loss(at: SequencesAt) -> Loss:
    """Return what is missing of one key; from then on it counts as told. Only when `has_losses`."""
    losses = _losses_at(at.losses)
    key = losses.first_key - 1
    state = key_state(at, key)
    losses.first_key = state.next_lost
    count = state.lost
    state.lost = 0
    starts = int64s_at(at.keys.starts, key + 2)
    return Loss(key, state.epoch, state.lost_from, count, at.keys.text + starts[key], starts[key + 1] - starts[key])
