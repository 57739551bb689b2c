"""State of a slice's message order, shared by compiled code and Python; used by the decisions in this folder."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

import numpy

from blackbox.block.position import Position
from blackbox.native.memory.intrinsics import inner
from blackbox.native.memory.records import Field, Fields, SharedRecord, load_shared, record_at
from blackbox.native.tables.name_table import Numbering, NumberingAt
from blackbox.receive.order.epochs import EpochState, epoch_state_at
from blackbox.receive.state import SliceCounters

NONE: Final = 0
"""No place."""
HELD_BLOCKS: Final = 1 << 16
"""Largest number of held blocks of a slice. Their places are 1 to HELD_BLOCKS."""
UNKNOWN: Final = -1
MOST_ENDED: Final = 8


class Verdict(IntEnum):
    """Judgement of a block that is not delivered now; else it is the offset of the block's first new sequence."""

    DUPLICATE = -1
    """Everything in it was delivered or is lost."""
    HOLD = -2
    """The caller must `hold` it."""
    MAKE_ROOM = -3
    """No room to hold it: go on, release the held blocks before it with their gaps, and judge again."""
    LET_GO = -4
    """Drop it and all held blocks. They are read from archives later."""
    IMPLAUSIBLE = -5
    """Its sequence is too far ahead: keep it with `keep_doubted`."""


class Phase(IntEnum):
    """Source of the messages that a slice delivers: its live lines, or archives."""

    LIVE = 0
    CATCHING_UP = 1


class Answers(IntEnum):
    """State of a slice's archives."""

    NONE = 0
    """No archive has answered in time. None is asked for missing messages until one answers."""
    EXPECTED = 1
    """No archive was asked yet."""
    SOME = 2
    """An archive has answered."""


class KeyState(SharedRecord):
    """Progress of one key in the delivered epoch."""

    end = Field()
    """End of its last delivered message. Everything before `OrderState.proven` counts as delivered, too."""
    count = Field()
    """Number of its messages before `end`, or UNKNOWN."""
    began = Field()
    """Number of its messages before the first delivered one, if that arrived before filters were confirmed.

    UNKNOWN: the newest filters accept the key, earlier ones did not.
    """
    is_late = Field()
    """1: earlier messages of this epoch were not received. They are not a gap and will not arrive."""
    heard_epoch = Field()
    heard_end = Field()
    heard_count = Field()
    """Largest end that control blocks of epoch `heard_epoch` report, with its count."""
    is_out = Field()
    """1: the newest filters exclude the key."""
    told_before = Field()
    told_end = Field()
    told_count = Field()
    """End and count in the last heartbeat, whose slice sequence is `told_before`."""
    lost = Field()
    """Number of lost messages that are not reported yet."""
    lost_from = Field()
    """Sequence of the first of them."""
    lost_to = Field()
    """Sequence after the last of them."""
    lost_is_upper_bound = Field()
    """1: `lost` is an upper bound."""
    next_lost = Field()
    """Next key with lost messages, plus 1; 0: the last one."""


class HeldBlock(SharedRecord):
    """A held block, by place."""

    key = Field()
    sequence = Field()
    count = Field()
    """Number of sequences that it covers."""
    previous = Field()
    key_sequence = Field()
    messages = Field()
    held_bytes = Field()
    since_ns = Field()
    came_ns = Field()
    """Time of receipt in ns since 1970 if the holding time is not lag; else 0."""
    before = Field()
    behind = Field()
    """Neighbours by sequence. Free places are linked by `behind`."""


class OrderState(SharedRecord):
    """Progress of a slice."""

    phase = Field(own_line=True)
    """A `Phase`, written by the slice thread only."""
    request = Field()
    """Number of the request to archives. Answers to earlier requests are void."""
    answering = Field()
    """Request to which the current blocks from archives belong."""
    cursor = Field()
    """While CATCHING_UP: everything in `epoch` before it has arrived or is lost."""
    first = Field()
    """First value of `cursor` in this request."""
    epoch = Field()
    """Epoch of the delivered messages; 0: none yet."""
    end = Field()
    """End of the last delivered message."""
    proven = Field()
    """All wanted messages before it were delivered or reported as lost."""
    lives = Field()
    """Number of times it was or became LIVE."""
    images = Field()
    """Number of image blocks still to arrive. No other message is delivered before them."""
    is_full = Field()
    """1: all keys are wanted, so each missing sequence is a gap."""
    is_begun = Field()
    """1: the start of the slice is known."""
    is_strict = Field()
    """1: the newest filters are confirmed. Until then new keys begin with their first block."""
    is_counted = Field()
    """1: keys without delivered messages had no earlier messages."""
    opens = Field()
    """1: the slice begins at a time; archives report its position."""
    is_from_proven = Field()
    """1: all messages before `first` were delivered or reported as lost."""
    gone_before = Field()
    """Archives have no further messages of `epoch` before it."""
    holds = Field()
    """1: live blocks are held while CATCHING_UP; 0: they are dropped and read from archives later."""
    holds_from = Field()
    """First held sequence of a line with confirmed filters, or UNKNOWN."""
    line_next = Fields(2)
    """End of each line in the live epoch."""
    heard_next = Field()
    """Largest end of any line in the live epoch."""
    heard_told = Field()
    """Largest slice sequence of a heartbeat in the live epoch."""
    told_next = Field()
    """Slice sequence of the newest heartbeat in the live epoch: that of `KeyState.told_end`."""
    told_epoch = Field()
    """Epoch of the ends in `KeyState.heard_end`."""
    ended = Field()
    """Number of live epochs that ended while CATCHING_UP."""
    ended_epoch = Fields(MOST_ENDED)
    ended_next = Fields(MOST_ENDED)
    ended_told = Fields(MOST_ENDED)
    """The last of them, a ring, with `heard_next` and `heard_told` of each."""
    doubted = Fields(2)
    """Implausible sequence that each line sent once; 0: none."""
    doubted_end = Fields(2)
    doubted_place = Fields(2)
    """Place of its block, or NONE."""
    first_held = Field()
    last_held = Field()
    free = Field()
    """First free place."""
    used = Field()
    """Highest place ever used."""
    places = Field()
    """Number of used places."""
    held_bytes = Field()
    first_lost = Field()
    """First key with unreported lost messages, plus 1; 0: none."""
    lost = Field()
    """Number of unreported lost messages of a range, of any keys."""
    lost_from = Field()
    lost_epoch = Field()
    lost_to = Field()
    """End of the last lost range of any keys in `epoch`. Counts of keys that end before it are not exact."""
    left = Field()
    """Number of epochs that archives left before the live line did."""
    left_epoch = Fields(MOST_ENDED)
    left_next = Fields(MOST_ENDED)
    """The last of them, a ring. All messages of each before `left_next` were delivered or reported as lost."""
    begun_epoch = Field()
    """Epoch of the start in the past; 0: none."""
    wants_full = Field()
    """1: the newest filters accept all keys."""
    taken = Field()
    """Number of frames from archives that the slice thread has received."""
    wake_fd = Field()
    """File descriptor that wakes the thread that reads archives."""
    answers = Field(own_line=True)
    """An `Answers`, written by the thread that reads archives, like `sent`."""
    sent = Field()
    """Number of blocks and notes sent to the slice thread."""


KEY_BYTES: Final = KeyState.dtype.itemsize
HELD_BYTES: Final = HeldBlock.dtype.itemsize
_key_state_at = record_at(KeyState)
_held_block_at = record_at(HeldBlock)
order_state_at = record_at(OrderState)


class OrderAt(NamedTuple):
    """Addresses and settings of an `Order`, for compiled code."""

    state: int
    keys: NumberingAt
    key_states: int
    held: int
    epochs: int
    counters: int
    lines: int
    line_wait_ns: int
    line_dead_ns: int
    held_limit: int
    """Largest total body size of held blocks. Unit: bytes."""
    repairs: int
    """1: missing messages are read from archives."""
    data_lines: int
    """A bit for each line that carries data. A tcp line next to multicast has only control blocks."""


@inner
def key_state(at: OrderAt, key: int) -> KeyState:
    """Return the state of a key by its number."""
    return _key_state_at(at.key_states + KEY_BYTES * key)


@inner
def held_block(at: OrderAt, place: int) -> HeldBlock:
    """Return the held block at a place."""
    return _held_block_at(at.held + HELD_BYTES * place)


def _is_clean(state: OrderState) -> bool:
    """Return True if no message after `proven` was delivered, so that the position is exact."""
    return state.end <= state.proven


def _is_unsettled(state: OrderState) -> bool:
    """Return True if messages before the newest heartbeat may be missing."""
    return state.phase == Phase.LIVE and state.is_strict != 0 and state.told_next > state.proven


is_clean, is_unsettled = inner(_is_clean), inner(_is_unsettled)


@inner
def is_alive(at: OrderAt, line: int, now_ns: int) -> bool:
    """Return True if a line is in the live epoch and was heard within `line_dead_ns`."""
    epochs = epoch_state_at(at.epochs)
    return now_ns - epochs.heard_ns[line] < at.line_dead_ns and (epochs.spoke >> line) & 1 != 0


@inner
def any_alive(at: OrderAt, now_ns: int) -> bool:
    """Return True if any line `is_alive`."""
    alive = False
    for line in range(at.lines):
        alive |= is_alive(at, line, now_ns)
    return alive


@inner
def is_catching_up(at: OrderAt) -> bool:
    """Return True while archives deliver."""
    catching_up: bool = load_shared(order_state_at(at.state), "phase") != Phase.LIVE
    return catching_up


class Order:
    """Order of one slice's messages. Used by the slice thread. `at` is for compiled code."""

    def __init__(
        self,
        max_keys: int,
        lines: int,
        line_wait_ns: int,
        line_dead_ns: int,
        held_limit: int,
        counters: SliceCounters,
        *,
        repairs: bool = False,
    ) -> None:
        self.keys = Numbering(2 * max_keys, 8)  # of this epoch and the next one: see `forget_keys`
        self.state, self.epochs = OrderState(), EpochState()
        self._key_states = numpy.zeros(len(self.keys.starts) - 1, KeyState.dtype)
        self._key_states["count"][:1] = UNKNOWN  # other keys when they get a number: setting all would touch 270 MB
        self._held = numpy.zeros(HELD_BLOCKS + 1, HeldBlock.dtype)
        self.state.holds_from, self.state.lives = UNKNOWN, 1
        self.at = OrderAt(
            state=self.state.address,
            keys=self.keys.at,
            key_states=self._key_states.ctypes.data,
            held=self._held.ctypes.data,
            epochs=self.epochs.address,
            counters=counters.address,
            lines=lines,
            line_wait_ns=line_wait_ns,
            line_dead_ns=line_dead_ns,
            held_limit=held_limit,
            repairs=int(repairs),
            data_lines=(1 << lines) - 1,
        )

    def carry_no_data(self, line: int) -> None:
        """Do not wait for messages of a line. Call it before `at` is used."""
        self.at = self.at._replace(data_lines=self.at.data_lines & ~(1 << line))

    def begin(self, position: Position | None, *, images: int = 0, is_full: bool) -> None:
        """Begin at a position in the past, or at a time (None). Call it before the slice thread starts."""
        state = self.state
        state.opens = int(position is None)
        state.epoch, state.proven = position or (0, 0)
        state.end = state.cursor = state.first = state.proven
        state.begun_epoch = state.epoch
        state.is_begun = state.is_strict = state.is_from_proven = state.holds = 1
        state.is_counted = int(state.proven == 0)
        state.lives = 0
        state.is_full = state.wants_full = int(is_full)
        state.images, state.phase, state.request = images, Phase.CATCHING_UP, 1

    @property
    def position(self) -> Position:
        """Position of the next message. All wanted messages before it were delivered or reported as lost."""
        return Position(self.state.epoch, self.state.proven)

    @property
    def is_clean(self) -> bool:
        """True if no message after `position` was delivered."""
        return _is_clean(self.state)

    @property
    def is_unsettled(self) -> bool:
        """True if messages before the newest heartbeat may be missing."""
        return _is_unsettled(self.state)

    def is_dead(self, line: int, now_ns: int) -> bool:
        """Return True if a line has been silent for `line_dead_ns`."""
        return now_ns - self.epochs.heard_ns[line] >= self.at.line_dead_ns
