"""When the messages of a replay are due.

    due = wall time + (message's time - market time) / speed

One pair of times, (market, wall), is kept. A change of speed, or a pause, moves the pair to now and then changes what
it is multiplied by, so market time never jumps.
"""

from __future__ import annotations

import math
from typing import Final

NO_LIMIT: Final = (1 << 63) - 1
"""Without a limit: of messages, of their times, of silence."""
_FAR_NS: Final = 1 << 62
_ROUNDING_NS: Final = 1


class Schedule:
    """Turns market time into wall time. Has no lock of its own: `Controls` holds one around each call.

    A late player catches up: the schedule is fixed. A control command forgives the delay so far.
    """

    def __init__(self, speed: float | None, max_silence_ns: int) -> None:
        self.speed = speed
        """Seconds of market time in a second; None: everything is due at once."""
        self.is_paused = False
        """Whether market time stands still. Call `settle` before a change of this, or of `speed`."""
        self.position_ns = 0
        """The highest market time that was played."""
        self._max_silence_ns = max_silence_ns
        self._market_ns = 0
        self._wall_ns: int | None = None  # None: it starts at the next `expect`; opening a file, or a seek, takes time
        self._silent_since_ns = 0
        self._forgiving = False

    def go_to(self, market_ns: int) -> None:
        """Go on from a market time, as soon as the next message is known."""
        self._market_ns, self._wall_ns = market_ns, None
        self.position_ns = self._silent_since_ns = market_ns

    def settle(self, now_ns: int) -> None:
        """Go on from where it is now: what is changed next does not change the past."""
        if self._wall_ns is not None:
            self._market_ns, self._wall_ns = self.market_ns(now_ns), now_ns
            self._forgiving = True

    def expect(self, next_ns: int, now_ns: int) -> None:
        """Take into account the market time of the next message."""
        reached_ns = max(self._silent_since_ns, self.position_ns)
        ahead_ns = max(next_ns, reached_ns)
        market_ns = self.market_ns(now_ns)
        if self._wall_ns is None or market_ns + _ROUNDING_NS < self.position_ns:
            # It starts here, or came here by steps or without a speed.
            self._market_ns, self._wall_ns = max(self._market_ns, self.position_ns), now_ns
        elif self._forgiving and self._market_ns > ahead_ns:
            # The player was behind when a command came: it would go through all of that at once.
            self._market_ns, self._wall_ns = ahead_ns, now_ns
        self._forgiving = False
        self._market_ns += max(0, next_ns - reached_ns - self._max_silence_ns)
        self._silent_since_ns = ahead_ns

    def due_ns(self) -> int:
        """Return the wall time at which the expected message is due. There must be a speed."""
        assert self._wall_ns is not None
        assert self.speed is not None
        market_ns = self._silent_since_ns - self._market_ns
        return self._wall_ns + math.ceil(min(market_ns / self.speed, _FAR_NS))

    def until_ns(self, next_ns: int, now_ns: int) -> int:
        """Return up to which market time messages are due: not beyond a silence to cut, which `expect` sees first."""
        return max(next_ns, min(self.market_ns(now_ns), self._silent_since_ns + self._max_silence_ns))

    def market_ns(self, now_ns: int) -> int:
        """Return the market time now."""
        if self.is_paused or self._wall_ns is None:
            return self._market_ns
        if self.speed is None:
            return max(self._market_ns, self.position_ns)
        return self._market_ns + int(min((now_ns - self._wall_ns) * self.speed, _FAR_NS))
