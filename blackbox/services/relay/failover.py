"""Decide when a relay's line switches to another address of its source. Without sockets, threads or clocks."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from blackbox.repeated_log import RepeatedLog
from blackbox.transport.inproc import is_inproc

log = logging.getLogger("blackbox")

DEAD_BEATS: Final = 3
"""Heartbeat times of silence before a relay switches to a spare, and the least wait for an answer to a nonce."""
_UNREACHED_S: Final = 3.0
"""Seconds before a relay with spares gives up an unreachable source; at least those heartbeat times."""
_ALONE_S: Final = 30.0
"""The same without spares: libzmq reconnects, except to a peer that it considers hostile. Also how long a silent
connection is kept if the kernel does not know whether the host answers."""


class Failover:
    """Addresses of a source, and the state of the connection to the current one, which comes first.

    Attributes: `addresses`; `is_connected`; `reconnects`, -1 before the first connection; `has_ended`, True after the
    last block of an epoch, when the source may be silent; `ignores`, True if it sends what was withdrawn repeatedly;
    `local_address`, this end of the TCP connection, empty if unknown.
    """

    def __init__(self, addresses: Iterable[str], dead_s: float, what: str) -> None:
        """`dead_s`: time of silence after which a source is suspect. `what` names the slice in the log."""
        self.addresses = list(addresses)
        self.reconnects, self.local_address = -1, ""
        self.is_connected = self.has_ended = self.ignores = False
        self._repeated = RepeatedLog(log)
        self._dead_s, self._changed_at, self._what = dead_s, 0.0, what

    @property
    def address(self) -> str:
        """Address in use."""
        return self.addresses[0]

    def change(self, is_connected: bool, now: float) -> None:
        """Note a connection that was opened or closed."""
        if is_connected and not self.is_connected:
            self.reconnects += 1
            if self.reconnects:
                self._warn("%s: the connection to %s is restored", self.address)
        elif self.is_connected and not is_connected:
            self._warn("%s: the connection to %s is gone", self.address)
        self.is_connected, self._changed_at = is_connected, now
        self.local_address = self.local_address if is_connected else ""
        self.has_ended = self.ignores = False

    def switch(self, why: str) -> None:
        """Switch to the next address."""
        before = self.address
        self.addresses = [*self.addresses[1:], before]  # at once: other threads read it
        if self.address != before:
            self._warn("%s: %s %s: switches to %s", before, why, self.address)

    def _warn(self, text: str, address: str, *values: str) -> None:
        self._repeated.warning(address, text, self._what, address, *values)

    def is_suspect(self, silent_since: float, now: float) -> bool:
        """Return True if the source was silent for too long or sent unwanted data; then call `why_switch`."""
        return self.ignores or now - max(silent_since, self._changed_at) >= self._dead_s

    def why_switch(self, silent_since: float, now: float, has_unread: bool, is_answered: bool | None) -> str:
        """Return why to switch from a suspect source; empty: keep the connection.

        `has_unread`: messages wait in the socket. `is_answered`: the source's host answers; None: unknown.
        """
        silent_s, is_alone = now - max(silent_since, self._changed_at), len(self.addresses) == 1
        if self.ignores:
            return "sends withdrawn keys"
        if not self.is_connected:
            return "cannot be reached" if silent_s >= (_ALONE_S if is_alone else _UNREACHED_S) else ""
        may_speak = is_inproc(self.address) or not self.has_ended
        is_there = silent_s < _ALONE_S if is_answered is None else is_answered
        # A source that waits for a slow subscriber is silent too, and a reconnect would lose what it sends meanwhile.
        return "is silent" if may_speak and not has_unread and not (is_alone and is_there) else ""
