"""Status of a replay, reported here or over a socket."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

_TICK_NS: Final = 100_000_000
_TICKS: Final = 10
_SLOTS: Final = 16


class ReplayState(StrEnum):
    """State of a replay. Once it has begun, the last command decides: see `blackbox.replay.controls`."""

    READY = "ready"
    """Not begun. Then it is PLAYING, PAUSED, STEPPING or STOPPING, as commanded."""
    PLAYING = "playing"
    """PAUSED, STEPPING or STOPPING by a command, ENDED after the last message."""
    PAUSED = "paused"
    """PLAYING, STEPPING or STOPPING by a command."""
    STEPPING = "stepping"
    """Paused, except for the messages requested by `step`. Then PAUSED; the others by a command, or ENDED."""
    STOPPING = "stopping"
    """It ends after the current delivery, and does not begin again. ENDED follows."""
    ENDED = "ended"
    """Like READY, for another replay with the same controls."""


class ReplayStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A replay at one moment."""

    state: ReplayState
    speed: float | None
    """Seconds of market time per second; None: unlimited."""
    position_ns: int
    """Market time reached, or the target of a seek, ns since 1970; 0: not begun."""
    messages: int
    """Messages delivered since it began, including repeated ones after a seek."""
    start_ns: int
    """Market time at which it began."""
    stop_ns: int
    """Market time at which it ends."""
    messages_per_second: float
    """Messages per second over the last second."""
    seconds_left: float | None
    """Seconds to `stop_ns` at this speed, with silences; None: unknown."""


class Lateness(msgspec.Struct, frozen=True, kw_only=True):
    """Delay of paced deliveries: now - due, for each wait."""

    count: int
    """Waits that ended with a delivery. Steps and unpaced messages have no due time and are not counted."""
    p50_ns: int
    p99_ns: int
    max_ns: int


class MessageRate:
    """Messages per second over the last second, counted in tenths. One thread counts; any may read.

    Counting is cheap, so the playing thread can do it.
    """

    def __init__(self, now_ns: int) -> None:
        self._start_ns = now_ns
        self._ticks = [-1] * _SLOTS
        self._counts = [0] * _SLOTS

    def add(self, now_ns: int, count: int) -> None:
        """Count messages delivered now."""
        tick = now_ns // _TICK_NS
        slot = tick % _SLOTS
        if self._ticks[slot] == tick:
            self._counts[slot] += count
        else:
            self._counts[slot] = count
            self._ticks[slot] = tick

    def per_second(self, now_ns: int) -> float:
        """Return messages per second over the last second, or since the beginning if that is shorter."""
        tick = now_ns // _TICK_NS
        first = tick - _TICKS
        count = sum(c for t, c in zip(self._ticks, self._counts, strict=True) if first <= t <= tick)
        span_ns = now_ns - max(self._start_ns, first * _TICK_NS)
        return count * 1e9 / span_ns if span_ns > 0 else 0.0
