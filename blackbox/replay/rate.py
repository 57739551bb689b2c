"""How many messages a second went by in the last second, at next to no cost to the thread that counts them."""

from __future__ import annotations

from typing import Final

_TICK_NS: Final = 100_000_000
_TICKS: Final = 10
_SLOTS: Final = 16


class Rate:
    """Counts by tenths of a second. One thread counts; any may read."""

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
