"""One pass of the session through the machine: how much came through, and how fast."""

from __future__ import annotations

from typing import Final, NamedTuple

CLASSIC_MESSAGES: Final = 2_880_000_000
"""The day of the classic problem: 100,000 messages a second, eight hours long."""
_CLASSIC_S: Final = 28_800.0


class Pass(NamedTuple):
    """How the session, or the part of it that was played, came through."""

    name: str
    messages: int
    lost: int
    """Sent, but not delivered or recorded, wherever they went."""
    duplicated: int
    seconds: float
    market_seconds: float
    """How long it was at the venue; 0: not known."""
    is_paced: bool = False
    """Whether it went as fast as it was told to, not as it could."""

    @property
    def times_faster(self) -> float | None:
        """Than the market was; None: not known."""
        return self.market_seconds / self.seconds if self.seconds > 0 and self.market_seconds > 0 else None

    @property
    def classic_day_s(self) -> float | None:
        """How long the classic day would take: at this rate, or, paced, at so many times the market's pace."""
        if self.is_paced:
            return _CLASSIC_S / self.times_faster if self.times_faster else None
        return CLASSIC_MESSAGES * self.seconds / self.messages if self.messages and self.seconds > 0 else None


def lost_of(sent: int, gaps: int, arrived: int, dropped: int = 0) -> int:
    """How many of the messages that were sent are missing, wherever they went."""
    return max(gaps, sent - arrived) + dropped
