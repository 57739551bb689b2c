"""A clock for deadlines that stops while this process is paused."""

from __future__ import annotations

import time
from random import Random
from typing import Final

_MOST_STEP_S: Final = 0.5
_chance: Final = Random()
"""Separate from the module's generator, which a user may seed."""


def spread(most_s: float) -> float:
    """Return a random time of half to all of `most_s`, so that waiting processes do not continue together."""
    return _chance.uniform(0.5, 1) * most_s


class _AwakeClock:
    """Seconds that this process was running: a pause (SIGSTOP, a closed laptop) counts as at most half a second."""

    def __init__(self) -> None:
        self._seen, self._passed = time.monotonic(), 1.0

    def __call__(self) -> float:
        """Return the seconds. Call it more often than twice a second."""
        now = time.monotonic()
        self._passed += min(max(0.0, now - self._seen), _MOST_STEP_S)
        self._seen = now
        return self._passed


awake_s: Final = _AwakeClock()
"""Clock of all waits for archives."""
