"""Log what repeats: the first of a kind and subject at once, then at most one per interval, with their number."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Hashable
from typing import Final

EVERY_S: Final = 10.0
HOUR_S: Final = 3_600.0
MOST_SUBJECTS: Final = 1_000
_OTHERS: Final = object()
"""Subject of those beyond `MOST_SUBJECTS`."""


class _Entry:
    __slots__ = ("next_at", "waiting")

    def __init__(self) -> None:
        self.next_at, self.waiting = 0.0, 0


class RepeatedLog:
    """Limits messages to one logger, by kind and subject. Any thread may use it. Each owner makes one.

    A kind is a text to format, a subject what it is about. Above 1,000 of them, further ones share one limit.
    Messages held back last are counted only if a further one of their kind and subject follows.
    """

    def __init__(self, log: logging.Logger, every_s: float = EVERY_S) -> None:
        self._log, self._every_s = log, every_s
        self._lock = threading.Lock()
        self._entries: dict[Hashable, _Entry] = {}
        self.waiting = 0
        """Occurrences that no message has counted yet."""

    def warning(self, subject: Hashable, text: str, *values: object) -> None:
        """Log a warning, or count it for the next one of this text and subject."""
        self._put(logging.WARNING, subject, text, values)

    def log(self, level: int, subject: Hashable, text: str, *values: object, exc_info: bool = False) -> None:
        """Log a message of a level, or count it for the next one of this text and subject."""
        self._put(level, subject, text, values, exc_info=exc_info)

    def _put(
        self, level: int, subject: Hashable, text: str, values: tuple[object, ...], *, exc_info: bool = False
    ) -> None:
        times = self.due((text, subject))
        if times > 1:
            text, values = f"{text} (and %d times since the last such message)", (*values, times - 1)
        if times:
            self._log.log(level, text, *values, exc_info=exc_info, stacklevel=3)

    def due(self, subject: Hashable, count: int = 1) -> int:
        """Count `count` more of a subject. Return how many there were since it was last due, or 0 if it is not yet."""
        now = time.monotonic()
        with self._lock:
            if subject not in self._entries:
                if not count:
                    return 0
                if len(self._entries) >= MOST_SUBJECTS:
                    self._forget(now)
                    subject = subject if len(self._entries) < MOST_SUBJECTS else _OTHERS
            entry = self._entries.setdefault(subject, _Entry())
            entry.waiting += count
            self.waiting += count
            if entry.waiting == 0 or now < entry.next_at:
                return 0
            times, entry.waiting, entry.next_at = entry.waiting, 0, now + self._every_s
            self.waiting -= times
            return times

    def _forget(self, now: float) -> None:
        """Remove subjects after their interval."""
        for subject, entry in list(self._entries.items()):
            if entry.next_at <= now:
                self.waiting -= entry.waiting
                del self._entries[subject]
