"""Estimate how far the clocks of a publisher and of this host differ, from the times in blocks; compiled.

A lag below 0 proves that the publisher's clock is ahead; that much is added to every lag. An estimate
that no block confirms for a minute is given up. A step of this host's clock shows against the monotonic one; a step
back of the publisher's shows in `ts_out`, which otherwise never decreases on a line.
"""

from __future__ import annotations

from typing import Final

from blackbox.native.intrinsics import inner
from blackbox.native.records import Field, Fields, SharedRecord, record_at
from blackbox.subscribe.state import SliceCounters

STEP_NS: Final = 100_000_000
"""When the difference changes by more than this at once, a clock was stepped: slewing would take minutes."""
WINDOW_NS: Final = 30_000_000_000
"""An estimate holds for one to two of these unless a block confirms it."""
_FAR: Final = 1 << 62


class ClockState(SharedRecord):
    """What a slice thread remembers of the last block, and of the smallest lags."""

    epoch = Field()
    wall_ns = Field()
    """When the last block came, by the wall clock."""
    tick_ns = Field()
    """The same by the monotonic clock."""
    sent_ns = Fields(2)
    """`ts_out` of the last block of each line."""
    least_ns = Field()
    """The smallest lag since `window_ns`."""
    least_before_ns = Field()
    """The same of the window before."""
    window_ns = Field()


clock_state_at = record_at(ClockState)


@inner
def _forget(clock: ClockState, counters: SliceCounters) -> None:
    """Forget how far the publisher's clock was ahead; a step of our own, which is above 0, stays true."""
    counters.clock_offset_ns = max(0, counters.clock_offset_ns)
    clock.least_ns = _FAR
    clock.least_before_ns = _FAR
    clock.window_ns = clock.tick_ns


@inner
def note_clocks(clock: ClockState, counters: SliceCounters, epoch: int, line: int, ts_out: int, now: int) -> None:
    """Take in when a block was sent and, by the wall clock, when it came; `clock.tick_ns` is now already.

    Keep `counters.clock_offset_ns`, which `corrected` takes off a lag, and count the steps.
    """
    lag = now - ts_out
    if clock.epoch != epoch:
        clock.epoch = epoch
        clock.sent_ns[0] = 0
        clock.sent_ns[1] = 0
        _forget(clock, counters)
    if ts_out < clock.sent_ns[line] - STEP_NS:
        counters.clock_steps += 1
        _forget(clock, counters)
    clock.sent_ns[line] = ts_out
    if lag < counters.clock_offset_ns:
        counters.clock_steps += lag < counters.clock_offset_ns - STEP_NS
        counters.clock_offset_ns = lag
    clock.least_ns = min(clock.least_ns, lag)
    if clock.tick_ns - clock.window_ns >= WINDOW_NS:
        least = min(clock.least_ns, clock.least_before_ns)
        if counters.clock_offset_ns < min(0, least):
            counters.clock_offset_ns = min(0, least)
        clock.least_before_ns = clock.least_ns
        clock.least_ns = _FAR
        clock.window_ns = clock.tick_ns


@inner
def note_own_clock(clock: ClockState, counters: SliceCounters, now: int, tick: int) -> None:
    """Notice a step of this host's clock, and move what was learned from the clock before by it."""
    step = (now - clock.wall_ns) - (tick - clock.tick_ns)
    if clock.wall_ns != 0 and abs(step) > STEP_NS:
        counters.clock_steps += 1
        counters.clock_offset_ns += step
        clock.least_ns += step
        clock.least_before_ns += step
    clock.wall_ns = now
    clock.tick_ns = tick
