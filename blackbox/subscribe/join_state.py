"""How a slice that begins in the past goes over to what comes live, compiled.

REPLAYING: archives bring what was recorded, and what comes live is let go, as archives bring that too. Once they have
brought all there is, SWITCHING: what comes live waits. LIVE when archives have brought all up to what waits. When more
would wait than may, it is let go, and archives go on. The numbers decide, never the time.

A slice that repairs goes back from LIVE when more would wait for archives than may, and when another run of its
publisher begins: they have the rest of the one before. It has FALLEN_BACK until what they had been asked for before has
come.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from blackbox.native.intrinsics import inner
from blackbox.native.records import Field, Fields, SharedRecord, load_shared, record_at


class JoinPhase(IntEnum):
    """Where a slice is on its way from the past to what comes live. Compiled code goes from one to the next."""

    LIVE = 0
    """FALLEN_BACK by `fall_back`, in a slice that repairs."""
    REPLAYING = 1
    """SWITCHING when archives have brought all there is; LIVE when nothing can be missing, or is waited for."""
    SWITCHING = 2
    """LIVE when archives have brought all up to what waits; REPLAYING when more would wait than may."""
    FALLEN_BACK = 3
    """REPLAYING when what archives bring begins where the slice fell back; LIVE if all before has come meanwhile."""


MOST_ENDED: Final = 8
LIVE: Final = int(JoinPhase.LIVE)
REPLAYING: Final = int(JoinPhase.REPLAYING)
SWITCHING: Final = int(JoinPhase.SWITCHING)
FALLEN_BACK: Final = int(JoinPhase.FALLEN_BACK)
# What a note says that comes between what archives have brought: three int64, this first, then an epoch and a number.
PASSED: Final = 0
"""They have nothing more of a key before that number."""
GONE: Final = 1
"""The same, while they bring what was before."""
BEGIN: Final = 2
"""What follows begins where the slice fell back, for the time of that number."""
REACHED: Final = 3
"""This was all, for now. Their recorder has heard of that epoch, 0: of none."""
GIVE_UP: Final = 4
"""They lack some of what was before, so go over all the same."""


class JoinState(SharedRecord):
    """What the slice thread knows of what comes live while archives bring what was before. Written by it alone."""

    phase = Field(own_line=True)
    """A `JoinPhase`."""
    live_next = Field()
    """The number that follows all that the publisher's present run has sent, as far as it is known."""
    is_told = Field()
    """1 once the publisher has told it, or a block has shown it."""
    from_epoch = Field()
    """Where archives are to begin, when a slice that was live has fallen behind."""
    from_sequence = Field()
    falls = Field()
    """How often it has fallen back."""
    lives = Field()
    """How often it has gone over to what comes live."""
    ended = Field()
    """Runs of the publisher that have ended while archives brought what was before."""
    ended_epoch = Fields(MOST_ENDED)
    """The last of them, used in a circle."""
    ended_next = Fields(MOST_ENDED)
    """The numbers that follow what they are known to have sent."""


join_state_at = record_at(JoinState)


@inner
def is_joining(join: int) -> bool:
    """Whether archives still bring what was before."""
    joining: bool = load_shared(join_state_at(join), "phase") != LIVE
    return joining


@inner
def note_live(join: int, following: int) -> None:
    """Take note of the number that follows what the publisher has sent."""
    state = join_state_at(join)
    state.live_next = max(state.live_next, following)
    state.is_told = 1


@inner
def end_run(join: int, epoch: int, following: int) -> None:
    """Take note that a run of the publisher has ended, and how far it is known to have come."""
    state = join_state_at(join)
    state.ended_epoch[state.ended % MOST_ENDED] = epoch
    state.ended_next[state.ended % MOST_ENDED] = following
    state.ended += 1


@inner
def forget_live(join: int) -> None:
    """Begin anew with another run of the publisher."""
    state = join_state_at(join)
    state.live_next = 0
    state.is_told = 0
