"""Decide which epoch is live, compiled: a new one is accepted once a line has sent two blocks of it.

A line sends the blocks of an epoch in order, and none after the next epoch has begun. So a single block of another
epoch between blocks of the present one is forged or an error: it is counted and changes nothing. This holds per line,
since one line may be far behind the other. The first block of an epoch is kept until the second one on its line, or
until the answer to our own nonce, which is accepted at once and usually comes first.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from blackbox.native.memory.intrinsics import inner
from blackbox.native.memory.records import Field, Fields, SharedRecord, record_at
from blackbox.receive.state import SliceCounters


class EpochVerdict(IntEnum):
    """Judgement of a block's epoch."""

    SAME = 0
    NEW = 1
    STALE = 2
    DOUBTED = 3
    """Not yet accepted: keep the block until the next one of its epoch."""
    REFUTED = 4
    """As SAME, and the kept block was false."""


_RETIRED: Final = 8
AHEAD_NS: Final = 24 * 3_600 * 1_000_000_000
"""An epoch is its start time. Further in the future than this, beyond any clock error, it is rejected."""


class EpochState(SharedRecord):
    """State of a slice's epochs and lines."""

    epoch = Field()
    """The live epoch; 0: none yet."""
    spoke = Field()
    """A bit for each line that has sent a block of this epoch."""
    doubted = Fields(2)
    """For each line, another epoch with one block so far; 0: none."""
    doubted_key = Fields(2)
    """For each line, number of that block's key, plus 1; 0: the block is not kept."""
    doubted_ns = Fields(2)
    """For each line, receive time of that block in ns since the epoch."""
    retired = Fields(_RETIRED)
    """Earlier epochs, a ring."""
    retired_count = Field()
    heard_ns = Fields(2)
    """Last receive time of each line by the monotonic clock."""


epoch_state_at = record_at(EpochState)


@inner
def epoch_before(state: EpochState) -> int:
    """Return the epoch before the present one."""
    before: int = state.retired[(state.retired_count - 1) % _RETIRED]
    return before


@inner
def _is_over(state: EpochState, epoch: int, proven: int) -> bool:
    """Return True if an epoch is before the present one. A clock stepped back may make a later epoch smaller."""
    over = epoch < state.epoch and proven == 0
    for i in range(min(state.retired_count, _RETIRED)):
        over |= state.retired[i] == epoch
    return over


@inner
def _refute(state: EpochState, counters: SliceCounters, line: int) -> bool:
    """Reject the other epoch on a line; return True if there was one."""
    if state.doubted[line] == 0:
        return False
    counters.implausible_control += state.doubted_key[line] == 0
    state.doubted[line] = 0
    return True


@inner
def judge_epoch(state: EpochState, counters: SliceCounters, epoch: int, line: int, proven: int, tick: int) -> int:
    """Note a block of `epoch` on `line`: return SAME, REFUTED, NEW, STALE or DOUBTED.

    `proven`: it answers our own nonce. After NEW, release held blocks, which are of the earlier epoch, before judging
    the block; then deliver the kept blocks. After REFUTED, STALE and DOUBTED the line's kept block is false.
    """
    state.heard_ns[line] = tick
    bit = 1 << line
    if state.epoch == epoch:
        state.spoke |= bit
        return EpochVerdict.REFUTED if _refute(state, counters, line) else EpochVerdict.SAME
    if state.epoch != 0:
        # With two lines, a line far behind may still send the earlier epoch. A line never goes back.
        if state.spoke & bit == 0 and _is_over(state, epoch, proven):
            _refute(state, counters, line)
            return EpochVerdict.STALE
        if proven == 0 and state.doubted[line] != epoch:
            _refute(state, counters, line)
            state.doubted[line] = epoch
            return EpochVerdict.DOUBTED
        state.retired[state.retired_count % _RETIRED] = state.epoch
        state.retired_count += 1
    state.spoke = bit
    for other in range(2):
        if state.doubted[other] == epoch:
            state.doubted[other] = 0
            state.spoke |= 1 << other
        _refute(state, counters, other)
    state.epoch = epoch
    counters.epochs += 1
    return EpochVerdict.NEW
