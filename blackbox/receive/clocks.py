"""Estimate the difference between the clocks of a publisher and this host from the times in blocks; compiled.

A negative lag proves that the publisher's clock is ahead; that amount is added to every lag. An estimate not confirmed
by a block for a minute is dropped. A step of this host's clock is detected with the monotonic clock, a backward step of
the publisher's by `ts_out`, which otherwise never decreases on a line.
"""

from __future__ import annotations

from typing import Final

from blackbox.native.memory.intrinsics import inner
from blackbox.native.memory.records import Field, Fields, SharedRecord, record_at
from blackbox.receive.state import SliceCounters

STEP_NS: Final = 100_000_000
"""A sudden change of the difference by more than this is a step: slewing would take minutes."""
WINDOW_NS: Final = 30_000_000_000
"""An estimate is dropped after one to two windows unless a block confirms it."""
_FAR: Final = 1 << 62


class ClockState(SharedRecord):
    """A slice thread's data about the last block and the smallest lags."""

    epoch = Field()
    wall_ns = Field()
    """Receive time of the last block by the wall clock."""
    tick_ns = Field()
    """Receive time of the last block by the monotonic clock."""
    sent_ns = Fields(2)
    """`ts_out` of the last block of each line."""
    least_ns = Field()
    """Smallest lag since `window_ns`."""
    least_before_ns = Field()
    """Smallest lag in the previous window."""
    window_ns = Field()


clock_state_at = record_at(ClockState)


@inner
def _forget(clock: ClockState, counters: SliceCounters) -> None:
    """Drop the estimate of the publisher's clock; a step of our own clock, which is positive, remains valid."""
    counters.clock_offset_ns = max(0, counters.clock_offset_ns)
    clock.least_ns = _FAR
    clock.least_before_ns = _FAR
    clock.window_ns = clock.tick_ns


@inner
def note_clocks(clock: ClockState, counters: SliceCounters, epoch: int, line: int, ts_out: int, now: int) -> None:
    """Process the send time and the wall-clock receive time of a block. `clock.tick_ns` is already the current time.

    Update `counters.clock_offset_ns`, which `corrected` subtracts from a lag, and count steps.
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
    """Detect a step of this host's clock, and shift earlier estimates by it."""
    step = (now - clock.wall_ns) - (tick - clock.tick_ns)
    if clock.wall_ns != 0 and abs(step) > STEP_NS:
        counters.clock_steps += 1
        counters.clock_offset_ns += step
        clock.least_ns += step
        clock.least_before_ns += step
    clock.wall_ns = now
    clock.tick_ns = tick
