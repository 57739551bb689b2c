"""Positions of messages in a slice."""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

import msgspec

Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class Position(NamedTuple):
    """Position of the next message in a slice. Stored and sent as [epoch, sequence]."""

    epoch: Number
    """Run of the publisher; 0: before the first one."""
    sequence: Number
    """Number of earlier messages of the run, of all keys."""


class End(NamedTuple):
    """End of a key in a run."""

    sequence: int
    """Sequence after its last message."""
    count: int  # type: ignore[assignment]  # hides tuple.count
    """Number of its messages."""


class Place(NamedTuple):
    """Location of a message in its feed."""

    slice_id: int
    epoch: int
    sequence: int


NOWHERE: Final = Place(0, 0, -1)
"""Place of the newest message of a topic without a value."""


def is_restart(before: int, epoch: int) -> bool:
    """Return True if the publisher was restarted between two epochs of a slice; it may send only later messages.

    `Publisher.new_epoch` increments the epoch and is not a restart. `before` 0: there was no earlier epoch.
    """
    return before > 0 and epoch not in (before, before + 1)
