"""Deadlines at which topics expire."""

from __future__ import annotations

import heapq
from typing import Final

_SPARE: Final = 1_024
"""Void deadlines allowed in the queue, in addition to one for each valid deadline."""


class Deadlines:
    """Deadlines by topic, ns since 1970. At most one for each topic, of some 400 bytes in memory."""

    def __init__(self) -> None:
        self._at: dict[bytes, int] = {}
        self._queue: list[tuple[int, bytes]] = []

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, topic: bytes) -> bool:
        return topic in self._at

    def items(self) -> list[tuple[bytes, int]]:
        """Return the topics that have deadlines, and these."""
        return list(self._at.items())

    def set(self, topic: bytes, at: int) -> None:
        """Set or replace the deadline of a topic; 0 removes it."""
        if at == 0:
            self._at.pop(topic, None)
            return
        self._at[topic] = at
        heapq.heappush(self._queue, (at, topic))
        if len(self._queue) > 2 * len(self._at) + _SPARE:
            self._queue = sorted((at, topic) for topic, at in self._at.items())

    def next(self) -> int | None:
        """Return the next deadline; None if no topic has one."""
        while self._queue and self._at.get(self._queue[0][1]) != self._queue[0][0]:
            heapq.heappop(self._queue)
        return self._queue[0][0] if self._queue else None

    def due(self, now: int, most: int) -> list[bytes]:
        """Return up to `most` expired topics, the earliest first. The caller must `set` them to 0."""
        found: dict[bytes, None] = {}  # a deadline that was set twice is in the queue twice
        while len(found) < most and (at := self.next()) is not None and at <= now:
            found[heapq.heappop(self._queue)[1]] = None
        return list(found)
