"""Status of a replay, reported here or over a socket."""

from __future__ import annotations

from enum import StrEnum

import msgspec


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
