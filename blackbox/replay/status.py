"""How a replay does, as its controls tell it to whoever asks, here or over a socket."""

from __future__ import annotations

from typing import Literal

import msgspec


class ReplayStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A replay at one moment."""

    state: Literal["running", "paused", "ended"]
    speed: float | None
    """Seconds of market time in a second; None: as fast as the consumer takes it."""
    position_ns: int
    """Market time it has come to, or was told to seek, ns since the epoch; 0: not begun."""
    messages: int
    """Delivered since it began, those delivered again after a seek included."""
    start_ns: int
    """Market time at which it began."""
    stop_ns: int
    """Market time at which it ends."""
    messages_per_second: float
    """Over the last second."""
    seconds_left: float | None
    """Until `stop_ns` once it runs, silences not cut; None: not known yet."""


class Lateness(msgspec.Struct, frozen=True, kw_only=True):
    """How late paced deliveries began: now - due, each time a message was waited for."""

    count: int
    """Waits that ended with a delivery. What a step or an unpaced replay delivers has no due time."""
    p50_ns: int
    p99_ns: int
    max_ns: int
