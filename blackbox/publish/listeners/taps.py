"""Disconnect taps that do not keep up, before anything waits for them."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from typing import Final

from blackbox.publish.listeners.peers import Identity, Peer
from blackbox.publish.listeners.subscriptions import Subscriptions
from blackbox.transport.send_queue import end_connection, unsent_bytes
from blackbox.transport.wakeup import Pipe

TAPPED_WAIT_MS: Final = 5
"""Longest time that a send waits while taps are connected. After that, taps with data waiting are disconnected."""
_MOST_BEHIND_S: Final = 1.0
"""Longest time that data waits for a tap while no send waits."""


class TapGuard:
    """Looks at the taps of a slice, in the thread of its guard. The sender rings `bell` after each send that waited."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        self.bell = Pipe()
        self._subscriptions = subscriptions
        self._behind_since: dict[Identity, float] = {}

    def answer(self) -> Iterator[Peer]:
        """Disconnect and yield all taps that have data waiting: the sender may be waiting for them."""
        os.read(self.bell.reader, 4096)
        return self._end(0.0)

    def look(self) -> Iterator[Peer]:
        """Disconnect and yield the taps whose data has waited for too long."""
        return self._end(_MOST_BEHIND_S)

    def _end(self, patience_s: float) -> Iterator[Peer]:
        now, before, self._behind_since = time.monotonic(), self._behind_since, {}
        for peer in self._subscriptions.taps():
            who = peer.identity
            if unsent_bytes(who.fd, who.cookie):
                since = self._behind_since[who] = before.get(who, now)
                if now - since >= patience_s and end_connection(who.fd, who.cookie):
                    self._behind_since[who] = math.inf  # ended once
                    yield peer
