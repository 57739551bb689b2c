"""The queue of one WebSocket client: all messages while it keeps up, else the newest of each topic."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple


class Taken(NamedTuple):
    """The next messages for a client."""

    texts: list[bytes]
    passed_over: int
    """Messages dropped because newer ones of their topics arrived."""


class ClientQueue:
    """Used by one event loop. At most `limit` messages wait, in `most_bytes` of text, or the single latest one."""

    def __init__(self, limit: int, most_bytes: int) -> None:
        self._limit, self._most_bytes = limit, most_bytes
        self._all: list[tuple[bytes, bytes]] = []
        self._newest: OrderedDict[bytes, bytes] = OrderedDict()  # popping the first item of a dict gets slow
        """By topic, in order of arrival; used once `_all` is full."""
        self._bytes = self._passed_over = 0

    def add(self, topic: bytes, text: bytes) -> None:
        """Queue a message."""
        self._bytes += len(text)
        if not self._newest and len(self._all) < self._limit and self._bytes <= self._most_bytes:
            self._all.append((topic, text))
            return
        for each in (*self._all, (topic, text)):
            self._replace(*each)
        self._all.clear()
        while len(self._newest) > 1 and (len(self._newest) > self._limit or self._bytes > self._most_bytes):
            self._pass_over(self._newest.popitem(last=False)[1])

    def _replace(self, topic: bytes, text: bytes) -> None:
        if topic in self._newest:
            self._pass_over(self._newest.pop(topic))
        self._newest[topic] = text

    def _pass_over(self, text: bytes) -> None:
        self._bytes -= len(text)
        self._passed_over += 1

    def lose(self, count: int) -> None:
        """Count messages dropped before they arrived here."""
        self._passed_over += count

    def take(self) -> Taken:
        """Return the queued messages, and clear the queue."""
        taken = Taken([text for _, text in self._all] or list(self._newest.values()), self._passed_over)
        self._all.clear()
        self._newest.clear()
        self._bytes = self._passed_over = 0
        return taken
