"""Decide when the messages of a replay are due.

    due = wall time + (message's time - market time) / speed

The schedule keeps one pair of times, (market, wall). A change of speed or a pause first moves the pair to the present,
so that market time never jumps.
"""

from __future__ import annotations

import math
from typing import Final

NO_LIMIT: Final = (1 << 63) - 1
"""No limit of messages, times or silence."""
_FAR_NS: Final = 1 << 62
_ROUNDING_NS: Final = 1


class Schedule:
    """Converts market time to wall time. It has no lock: `Controls` holds one around each call.

    A late player catches up: the schedule is fixed. A command resets the delay.
    """

    def __init__(self, speed: float | None, max_silence_ns: int) -> None:
        self.speed = speed
        """Seconds of market time per second; None: everything is due at once."""
        self.is_paused = False
        """True while market time is stopped. Call `settle` before changing this or `speed`."""
        self.position_ns = 0
        """The highest market time played."""
        self._max_silence_ns = max_silence_ns
        self._market_ns = 0
        self._wall_ns: int | None = (
            None  # None: starts at the next `expect`, because opening a file or a seek takes time
        )
        self._silent_since_ns = 0
        self._forgiving = False

    def go_to(self, market_ns: int) -> None:
        """Continue from a market time, once the next message is known."""
        self._market_ns, self._wall_ns = market_ns, None
        self.position_ns = self._silent_since_ns = market_ns

    def settle(self, now_ns: int) -> None:
        """Move the pair of times to the present, so that the next change does not affect the past."""
        if self._wall_ns is not None:
            self._market_ns, self._wall_ns = self.market_ns(now_ns), now_ns
            self._forgiving = True

    def expect(self, next_ns: int, now_ns: int) -> None:
        """Set the market time of the next message."""
        reached_ns = max(self._silent_since_ns, self.position_ns)
        ahead_ns = max(next_ns, reached_ns)
        market_ns = self.market_ns(now_ns)
        if self._wall_ns is None or market_ns + _ROUNDING_NS < self.position_ns:
            # It starts here, or got here by steps or without a speed.
            self._market_ns, self._wall_ns = max(self._market_ns, self.position_ns), now_ns
        elif self._forgiving and self._market_ns > ahead_ns:
            # The player was late when a command came. Without this it would play everything until now at once.
            self._market_ns, self._wall_ns = ahead_ns, now_ns
        self._forgiving = False
        self._market_ns += max(0, next_ns - reached_ns - self._max_silence_ns)
        self._silent_since_ns = ahead_ns

    def due_ns(self) -> int:
        """Return the wall time at which the expected message is due. Requires a speed."""
        assert self._wall_ns is not None
        assert self.speed is not None
        market_ns = self._silent_since_ns - self._market_ns
        return self._wall_ns + math.ceil(min(market_ns / self.speed, _FAR_NS))

    def until_ns(self, next_ns: int, now_ns: int) -> int:
        """Return the market time up to which messages are due. It ends before a silence that `expect` must shorten."""
        return max(next_ns, min(self.market_ns(now_ns), self._silent_since_ns + self._max_silence_ns))

    def market_ns(self, now_ns: int) -> int:
        """Return the current market time."""
        if self.is_paused or self._wall_ns is None:
            return self._market_ns
        if self.speed is None:
            return max(self._market_ns, self.position_ns)
        return self._market_ns + int(min((now_ns - self._wall_ns) * self.speed, _FAR_NS))
