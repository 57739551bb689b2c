"""The clock that paces a replay: the machine's, or one that a test or back-test advances."""

from __future__ import annotations

import threading
import time
from typing import Final

from blackbox.native.system.waits import step_of

_COARSE_NS: Final = 300_000
"""Typical delay of a timed wait on a condition."""
_SPIN_NS: Final = 100_000
"""Typical delay of a sleep. The rest of a wait is spun."""


class Clock:
    """The machine's monotonic clock. Any thread may read it; one thread waits for it."""

    def __init__(self) -> None:
        self._spun_at_ns = 0

    def now_ns(self) -> int:
        """Return monotonic time in nanoseconds."""
        return time.monotonic_ns()

    def wait(self, condition: threading.Condition, until_ns: int | None) -> None:
        """Wait on a condition, which the caller holds, until notified or until a time. None: until notified.

        It may return early, so check again in a loop. It ends within a few microseconds of `until_ns`: for the last
        300 us it releases the condition, sleeps, then spins. It spins for at most half of the time, so some waits less
        than 100 us apart only sleep and end about 80 us late.
        """
        if until_ns is None:
            condition.wait(step_of())
            return
        now_ns = time.monotonic_ns()
        left_ns = until_ns - now_ns
        if left_ns > _COARSE_NS:
            condition.wait(step_of((left_ns - _COARSE_NS) / 1e9))
            return
        condition.release()
        try:
            if left_ns > _SPIN_NS:
                time.sleep((left_ns - _SPIN_NS) / 1e9)
            elif now_ns - self._spun_at_ns < _SPIN_NS:
                time.sleep(max(0, left_ns) / 1e9)
            while (now_ns := time.monotonic_ns()) < until_ns:
                self._spun_at_ns = now_ns
        finally:
            condition.acquire()


class ManualClock(Clock):
    """A clock that moves only by `advance` or, if `automatic`, to the end of each wait.

    With an automatic clock a replay runs at full speed, yet each message has its exact time in every run.
    """

    def __init__(self, now_ns: int = 0, *, automatic: bool = False) -> None:
        super().__init__()
        self._now_ns = now_ns
        self._automatic = automatic
        self._lock = threading.Lock()
        self._waiting: list[threading.Condition] = []

    def now_ns(self) -> int:
        """Return the current time of the clock."""
        return self._now_ns

    def advance(self, ns: int) -> None:
        """Advance the clock, and wake threads whose time has come. Raises ValueError if `ns` is negative."""
        if ns < 0:
            raise ValueError(f"ns was {ns}, expected 0 or more: time does not go back")
        with self._lock:
            self._now_ns += ns
            waiting = list(self._waiting)
        for condition in waiting:
            with condition:
                condition.notify_all()

    def wait(self, condition: threading.Condition, until_ns: int | None) -> None:
        """Wait on a condition, which the caller holds, until notified or until `advance` reaches a time."""
        with self._lock:
            if until_ns is not None:
                if self._automatic:
                    self._now_ns = max(self._now_ns, until_ns)
                if self._now_ns >= until_ns:
                    return
            self._waiting.append(condition)
        try:
            condition.wait(step_of())
        finally:
            with self._lock:
                self._waiting.remove(condition)
