"""What the controls of a replay report, here or over a socket."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

_TICK_NS: Final = 100_000_000
_TICKS: Final = 10
_SLOTS: Final = 16


class ReplayState(StrEnum):
    """What a replay is doing. Once it has begun, the last command decides: see `blackbox.replay.controls`."""

    READY = "ready"
    """It has not begun. Then it does what was asked for: PLAYING, PAUSED, STEPPING or STOPPING."""
    PLAYING = "playing"
    """PAUSED, STEPPING or STOPPING by a command, ENDED when all was played."""
    PAUSED = "paused"
    """PLAYING, STEPPING or STOPPING by a command."""
    STEPPING = "stepping"
    """Paused, except for the messages that `step` asked for. Then PAUSED; the others by a command, or ENDED."""
    STOPPING = "stopping"
    """It ends after what is being delivered, and does not begin again. ENDED follows."""
    ENDED = "ended"
    """As READY, for another replay with the same controls."""


class ReplayStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A replay at one moment."""

    state: ReplayState
    speed: float | None
    """Seconds of market time in a second; None: as fast as the consumer takes it."""
    position_ns: int
    """Market time reached, or the time to seek, ns since 1970; 0: not begun."""
    messages: int
    """Delivered since it began, including those delivered again after a seek."""
    start_ns: int
    """Market time at which it began."""
    stop_ns: int
    """Market time at which it ends."""
    messages_per_second: float
    """Over the last second."""
    seconds_left: float | None
    """Seconds to `stop_ns` at this speed, silences included; None: not known."""


class Lateness(msgspec.Struct, frozen=True, kw_only=True):
    """How late paced deliveries began: now - due, each time a message was waited for."""

    count: int
    """Waits that ended with a delivery. Steps and unpaced messages have no due time and are not counted."""
    p50_ns: int
    p99_ns: int
    max_ns: int


class MessageRate:
    """Messages a second over the last second, counted by tenths. One thread counts; any may read.

    Counting is cheap, so the thread that plays can do it.
    """

    def __init__(self, now_ns: int) -> None:
        self._start_ns = now_ns
        self._ticks = [-1] * _SLOTS
        self._counts = [0] * _SLOTS

    def add(self, now_ns: int, count: int) -> None:
        """Count messages that went by now."""
        tick = now_ns // _TICK_NS
        slot = tick % _SLOTS
        if self._ticks[slot] == tick:
            self._counts[slot] += count
        else:
            self._counts[slot] = count
            self._ticks[slot] = tick

    def per_second(self, now_ns: int) -> float:
        """Messages a second over the last second, or since the beginning if that is less."""
        tick = now_ns // _TICK_NS
        first = tick - _TICKS
        count = sum(c for t, c in zip(self._ticks, self._counts, strict=True) if first <= t <= tick)
        span_ns = now_ns - max(self._start_ns, first * _TICK_NS)
        return count * 1e9 / span_ns if span_ns > 0 else 0.0
