"""What waits for one client: all messages while it keeps up, the newest of each topic when it does not."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple


class Taken(NamedTuple):
    """What a client is sent next."""

    texts: list[bytes]
    passed_over: int
    """Messages that it is not sent, as newer ones of their topics came."""


class Waiting:
    """Used by one event loop. At most `limit` messages wait, in `most_bytes` of text, or the one that came last."""

    def __init__(self, limit: int, most_bytes: int) -> None:
        self._limit, self._most_bytes = limit, most_bytes
        self._all: list[tuple[bytes, bytes]] = []
        self._newest: OrderedDict[bytes, bytes] = OrderedDict()  # a dict finds its first one the slower the more went
        """By topic, in the order in which they came; in use once there is no room in `_all`."""
        self._bytes = self._passed_over = 0

    def add(self, topic: bytes, text: bytes) -> None:
        """Let a message wait."""
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
        """Count messages that were passed over before they came here."""
        self._passed_over += count

    def take(self) -> Taken:
        """Return what waits, and let nothing wait any more."""
        taken = Taken([text for _, text in self._all] or list(self._newest.values()), self._passed_over)
        self._all.clear()
        self._newest.clear()
        self._bytes = self._passed_over = 0
        return taken
