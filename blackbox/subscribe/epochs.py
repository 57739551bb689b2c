"""Which run of the publisher goes on, compiled: another one is believed once a line has brought two blocks of it.

A line carries the blocks of a run in order, and none of them once the next run has begun. So one block of another epoch
between two of the present one is a forgery or an error: it is counted, and changes nothing. Two lines say nothing of
each other: one may be far behind. The first block of a run waits for the second on its line, or for the answer to our
own nonce, which is believed at once and mostly comes first.
"""

from __future__ import annotations

from typing import Final

from blackbox.native.intrinsics import inner
from blackbox.native.records import Field, Fields, SharedRecord, record_at
from blackbox.subscribe.state import SliceCounters

STALE: Final = -3
DOUBTED: Final = -5
"""It is not believed yet: keep the block for the next one of its epoch."""
SAME: Final = 0
NEW: Final = 1
REFUTED: Final = 2
"""As SAME; and the block that was kept was not true."""
_RETIRED: Final = 8
AHEAD_NS: Final = 24 * 3_600 * 1_000_000_000
"""An epoch is the time at which a run began. Further ahead than this, beyond any error of a clock, it is refused."""


class EpochState(SharedRecord):
    """What a slice knows of its publisher's runs and of its lines."""

    epoch = Field()
    """Of the run that goes on; 0: none is known."""
    spoke = Field()
    """A bit for each line that has brought something of this epoch."""
    doubted = Fields(2)
    """For each line, an epoch of which it has brought one block; 0: none."""
    doubted_key = Fields(2)
    """For each line, the number of the key of that block, plus 1; 0: the block is not kept."""
    doubted_ns = Fields(2)
    """For each line, when that block came, ns since the epoch."""
    retired = Fields(_RETIRED)
    """Epochs that another has followed."""
    retired_count = Field()
    heard_ns = Fields(2)
    """When each line was last heard, by the monotonic clock."""


epoch_state_at = record_at(EpochState)


@inner
def epoch_before(state: EpochState) -> int:
    """Return the run that was before the present one."""
    before: int = state.retired[(state.retired_count - 1) % _RETIRED]
    return before


@inner
def _is_over(state: EpochState, epoch: int, proven: int) -> bool:
    """Whether an epoch came before the present one. A clock that was stepped back may have made a later one smaller."""
    over = epoch < state.epoch and proven == 0
    for i in range(min(state.retired_count, _RETIRED)):
        over |= state.retired[i] == epoch
    return over


@inner
def _refute(state: EpochState, counters: SliceCounters, line: int) -> bool:
    """Take what a line has brought of another epoch for untrue; return whether there was something."""
    if state.doubted[line] == 0:
        return False
    counters.implausible_control += state.doubted_key[line] == 0
    state.doubted[line] = 0
    return True


@inner
def judge_epoch(state: EpochState, counters: SliceCounters, epoch: int, line: int, proven: int, tick: int) -> int:
    """Note that a block of `epoch` came on `line`: SAME as before, REFUTED, NEW, STALE or DOUBTED.

    `proven`: it answers our own nonce. At NEW, whatever is held is of an old epoch and must be released before the
    block is judged, then the doubted blocks delivered. At REFUTED, STALE and DOUBTED the line's kept block is untrue.
    """
    state.heard_ns[line] = tick
    bit = 1 << line
    if state.epoch == epoch:
        state.spoke |= bit
        return REFUTED if _refute(state, counters, line) else SAME
    if state.epoch != 0:
        # Of two lines one may be far behind, and still bring the run before. A line itself never goes back.
        if state.spoke & bit == 0 and _is_over(state, epoch, proven):
            _refute(state, counters, line)
            return STALE
        if proven == 0 and state.doubted[line] != epoch:
            _refute(state, counters, line)
            state.doubted[line] = epoch
            return DOUBTED
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
    return NEW
