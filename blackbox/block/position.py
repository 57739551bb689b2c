"""How far a reader is in one slice: what comes next."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

import msgspec

Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Key = Annotated[bytes, msgspec.Meta(max_length=8)]


class Position(NamedTuple):
    """How far a slice is with a key: what comes next. Stored and sent as [epoch, sequence]."""

    epoch: Number
    """The run of its publisher."""
    sequence: Number
    """The number of the next message."""


class Place(NamedTuple):
    """Where a message is in its feed: its own `slice_id`, `epoch` and `sequence`."""

    slice_id: int
    epoch: int
    sequence: int


NOWHERE: Final = Place(0, 0, -1)
"""Where the newest message of a topic is that has no value."""


class KeyPosition(NamedTuple):
    """How far a slice of a feed with keys is. Stored and sent as an array of these, in this order."""

    epoch: Number
    """The run of its publisher; 0: archives have brought nothing yet."""
    next_sequences: dict[_Key, Number]
    """By key the number of the next message; other keys begin with 0."""
    prefixes: list[_Key]
    """What keys begin with that are wanted; nothing is said of others."""
    done_ns: Number = 0
    """What was sent before, in this run, by the publisher's clock, is done: nobody need look for more there."""
    since_ns: Number = 0
    """Not 0: other keys begin with what archives received from then on."""


class Undone(NamedTuple):
    """Where a reader is behind what has been delivered of a slice."""

    epoch: int
    """The run of the first message with which it is not done."""
    next_sequences: dict[bytes, int]
    """By key the number of the first one in that run."""
    sent_ns: int
    """What was sent before, in that run, by the publisher's clock, is none of these."""


SlicePosition = Position | KeyPosition


def is_restart(before: int, epoch: int) -> bool:
    """Return whether a publisher was started again between two epochs of a slice: it may have sent only later messages.

    After `Publisher.new_epoch`, which begins the next epoch, it sends everything again. `before` 0: there was none.
    """
    return before > 0 and epoch not in (before, before + 1)


def is_before(position: SlicePosition, other: SlicePosition) -> bool:
    """Whether a position is before another one of the slice, with some key."""
    if position.epoch != other.epoch:
        return position.epoch < other.epoch
    if isinstance(position, KeyPosition) and isinstance(other, KeyPosition):
        return any(position.next_sequences.get(key, 0) < sequence for key, sequence in other.next_sequences.items())
    return isinstance(position, Position) and isinstance(other, Position) and position < other


def merged(one: Undone, other: Undone) -> Undone:
    """Return where the one of two readers of a slice is that is further behind; of each key, in the same run.

    `one` may be changed.
    """
    if one.epoch != other.epoch:
        return min(one, other, key=lambda each: each.epoch)
    for key, first in other.next_sequences.items():
        one.next_sequences[key] = min(first, one.next_sequences.get(key, first))
    return one._replace(sent_ns=min(one.sent_ns, other.sent_ns))


def split(positions: dict[int, SlicePosition]) -> tuple[dict[int, Position], dict[int, KeyPosition]]:
    """Return the positions, by slice, of a feed without keys, and of one with keys."""
    plain = {slice_id: each for slice_id, each in positions.items() if isinstance(each, Position)}
    return plain, {slice_id: each for slice_id, each in positions.items() if isinstance(each, KeyPosition)}
