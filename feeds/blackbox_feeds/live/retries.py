"""When to connect again: bounded, jittered delays that double. Without I/O: the caller waits."""

from __future__ import annotations

from random import Random
from typing import Final

FIRST_S: Final = 0.25
LONGEST_S: Final = 30.0
STEADY_S: Final = 60.0
"""A connection that lasted for this time counts as good: the next delay is short again."""


class Retries:
    """Delays before the attempts of one client to connect."""

    def __init__(self, first_s: float = FIRST_S, longest_s: float = LONGEST_S, seed: int | None = None) -> None:
        """`seed`: of the jitter, so that a test knows the delays."""
        self._first_s, self._longest_s = first_s, longest_s
        self._random = Random(seed)
        self.failed = 0
        """Attempts since the last good connection."""

    def delay_s(self) -> float:
        """Return the delay before the next attempt in seconds: half of the doubled delay, plus as much by chance."""
        full = min(self._longest_s, self._first_s * 2.0 ** min(self.failed, 32))
        self.failed += 1
        return full / 2 + self._random.random() * full / 2

    def ended(self, lasted_s: float) -> None:
        """Process the end of a connection that lasted `lasted_s` seconds."""
        if lasted_s >= STEADY_S:
            self.failed = 0
