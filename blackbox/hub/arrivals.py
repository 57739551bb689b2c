"""Arrivals in several subscriptions, for a reader that waits for the first one."""

from __future__ import annotations

import threading
import time

from blackbox.native.waits import step_of


class Arrivals:
    """Count of messages, starts and ends of a client's subscriptions. Any thread may add to it and wait for it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.count = 0
        """Arrivals so far. Read it before you look at the subscriptions."""

    def add(self) -> None:
        """Add one, and wake readers."""
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    def wait(self, seen: int, timeout: float) -> None:
        """Wait until there are more than `seen`, or for `timeout` seconds."""
        until = time.monotonic() + timeout
        with self._changed:
            while self.count == seen and (left := until - time.monotonic()) > 0:
                self._changed.wait(step_of(left))
