"""Arrivals in several subscriptions, for a reader that waits for the first one."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress

from blackbox.native.system.waits import step_of


class Arrivals:
    """Count of messages, starts and ends of a client's subscriptions. Any thread may add to it and wait for it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.count = 0
        """Arrivals so far. Read it before checking the subscriptions."""
        self._sleepers = set[asyncio.Future[None]]()
        """Futures of the tasks that wait."""

    def add(self) -> None:
        """Add an arrival, and wake the readers."""
        with self._changed:
            self.count += 1
            self._changed.notify_all()
            for sleeper in self._sleepers:
                with suppress(RuntimeError):  # its loop is closed
                    sleeper.get_loop().call_soon_threadsafe(_wake, sleeper)
            self._sleepers.clear()

    def wait(self, seen: int, timeout: float) -> None:
        """Wait until there are more than `seen` arrivals, at most `timeout` seconds."""
        until = time.monotonic() + timeout
        with self._changed:
            while self.count == seen and (left := until - time.monotonic()) > 0:
                self._changed.wait(step_of(left))

    async def changed(self, seen: int) -> None:
        """Wait until there are more than `seen` arrivals."""
        sleeper = asyncio.get_running_loop().create_future()
        with self._changed:
            if self.count != seen:
                return
            self._sleepers.add(sleeper)
        try:
            await sleeper
        finally:
            with self._changed:
                self._sleepers.discard(sleeper)


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
