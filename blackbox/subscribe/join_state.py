"""How a slice that begins in the past goes over to what comes live, compiled.

REPLAYING: archives bring what was recorded, and what comes live is let go, as archives bring that too. Once they have
brought all there is, SWITCHING: what comes live waits, of each key until archives have brought all before it; from then
on that key goes on live. LIVE when no key is behind. When more would wait than may, it is let go, and archives go on.
The numbers decide, never the time.

A slice that repairs goes back from LIVE when more would wait for archives than may, and when another run of its
publisher begins: they have the rest of the one before, and runs between that nobody heard. It has FALLEN_BACK until
what they had been asked for before has come; then it is SWITCHING, as what comes live waits from the beginning on.
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
    """LIVE when archives have brought all up to what waits, of all keys; REPLAYING when more would wait than may."""
    FALLEN_BACK = 3
    """SWITCHING when what archives bring begins where the slice fell back; LIVE if all before has come meanwhile."""


MOST_ENDED: Final = 8
LIVE: Final = int(JoinPhase.LIVE)
REPLAYING: Final = int(JoinPhase.REPLAYING)
SWITCHING: Final = int(JoinPhase.SWITCHING)
FALLEN_BACK: Final = int(JoinPhase.FALLEN_BACK)
# What a note says that comes between what archives have brought: three int64, this first, then an epoch and a number.
PASSED: Final = 0
"""They have nothing more of a key before that number, which was asked for."""
GONE: Final = 1
"""The same, while they bring what was before."""
BEGIN: Final = 2
"""What follows begins where the slice fell back, for the time of that number."""
REACHED: Final = 3
"""This was all, for now. Their recorder has heard of that epoch, 0: of none."""
GIVE_UP: Final = 4
"""They lack some of what was before, so go over all the same."""
LACKED: Final = 5
"""As GONE, in the run that goes on: archives bring nothing more of a key before that number."""
QUIET: Final = 6
"""Nothing of a key came since the time at which the slice begins, before that number of the run that goes on."""
ANSWERS: Final = 7
"""What follows answers requests of who fell back so many times; what came before was to bring it to what is live."""


class JoinState(SharedRecord):
    """What the slice thread knows of what comes live while archives bring what was before. Written by it alone."""

    phase = Field(own_line=True)
    """A `JoinPhase`."""
    is_told = Field()
    """1 once the publisher has told how far all keys are in its present run; without keys, or a block has shown it."""
    behind = Field()
    """Keys of which archives have not brought all that this run has sent, as far as it is known."""
    at_epoch = Field()
    """The run of what archives bring now; 0: they have brought nothing."""
    opens = Field()
    """1: the slice begins at a time, where nobody knows the numbers; set before it starts."""
    open_epoch = Field()
    """The run in which it does: its keys begin where archives bring them. In others they begin at 0."""
    from_epoch = Field()
    """Where archives are to begin, when a slice that was live has fallen behind."""
    falls = Field()
    """How often it has fallen back."""
    lives = Field()
    """How often it has gone over to what comes live."""
    ended = Field()
    """Runs of the publisher that have ended while archives brought what was before."""
    ended_epoch = Fields(MOST_ENDED)
    """The last of them, used in a circle; a key's `ended_next` says how far each is known to have come."""
    settled = Field()
    """How many of them are settled: what they are known to have sent has come, or is told to be lost."""

    images = Field()
    """Blocks of the slice's image that have not come yet: nothing is delivered before them. Set before it starts."""
    has_left_over = Field()
    """1 since it went over to what comes live, until ANSWERS: what archives bring is of the time before that."""


join_state_at = record_at(JoinState)


@inner
def is_joining(join: int) -> bool:
    """Whether archives still bring what was before."""
    joining: bool = load_shared(join_state_at(join), "phase") != LIVE
    return joining
