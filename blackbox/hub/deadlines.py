"""When topics end by themselves: kept in the put log's file, so that a killed hub forgets none."""

from __future__ import annotations

import heapq
import sqlite3
from typing import Final

_SPARE: Final = 1_024
"""Deadlines in the queue that are void, beside as many as there are good ones."""


class Deadlines:
    """By topic, when its value ends, ns since 1970. All is done within the transaction of the put that it comes with.

    One for each topic that has one; some 400 bytes in memory.
    """

    def __init__(self, sql: sqlite3.Connection) -> None:
        """Read those that are there."""
        self._sql = sql
        sql.execute("CREATE TABLE IF NOT EXISTS deadlines(topic BLOB PRIMARY KEY, at INTEGER) WITHOUT ROWID")
        self._at: dict[bytes, int] = {}
        self._queue: list[tuple[int, bytes]] = []
        self.reload()

    def reload(self) -> None:
        """Read them again, as after a transaction that was given up."""
        self._at = dict(self._sql.execute("SELECT topic, at FROM deadlines"))
        self._sort()

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, topic: bytes) -> bool:
        return topic in self._at

    def topics(self) -> list[bytes]:
        """Return the topics that end."""
        return list(self._at)

    def set(self, topic: bytes, at: int) -> None:
        """Have a topic end at a time, and not before."""
        self._sql.execute("INSERT OR REPLACE INTO deadlines VALUES (?, ?)", (topic, at))
        self._at[topic] = at
        heapq.heappush(self._queue, (at, topic))
        if len(self._queue) > 2 * len(self._at) + _SPARE:
            self._sort()

    def forget(self, topic: bytes) -> None:
        """Have a topic not end."""
        self._sql.execute("DELETE FROM deadlines WHERE topic = ?", (topic,))
        del self._at[topic]

    def next(self) -> int | None:
        """Return when the next topic ends; None: none does."""
        while self._queue and self._at.get(self._queue[0][1]) != self._queue[0][0]:
            heapq.heappop(self._queue)
        return self._queue[0][0] if self._queue else None

    def due(self, now: int, most: int) -> list[bytes]:
        """Return topics that have ended, at most so many, the earliest first; `forget` them."""
        found: list[bytes] = []
        while len(found) < most and (at := self.next()) is not None and at <= now:
            found.append(heapq.heappop(self._queue)[1])
        return found

    def _sort(self) -> None:
        self._queue = sorted((at, topic) for topic, at in self._at.items())
