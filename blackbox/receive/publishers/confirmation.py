"""Confirmations of a slice's filters: requested from its publishers, and requested again if necessary.

A publisher confirms by answering a nonce that is subscribed to after the filters: see the wire format.
"""

from __future__ import annotations

import secrets
from typing import Final

import zmq

from blackbox.block.form.format import ACCEPT_KEY, CONFIRM_KEY, NONCE_BYTES
from blackbox.receive.slices.slice_status import SliceStatus

_PATIENT_BEATS: Final = 3
"""Least number of heartbeats before an unanswered confirmation is requested again."""
MOST_PATIENT_S: Final = 60.0
"""Longest time before it is, unless those heartbeats take longer."""


class Confirmation:
    """The current request, and the lines that have answered it. Used by the slice thread, which owns `sub`."""

    def __init__(self, sub: zmq.Socket[bytes], status: SliceStatus) -> None:
        self._sub, self._state = sub, status.state
        self._most_beats = max(_PATIENT_BEATS, int(MOST_PATIENT_S * 1e9) // status.feed.heartbeat_ns)
        self._nonce = b""
        self._accepted: list[bytes] = []
        self.lines = 0
        """A bit for each line that has answered."""
        self._beats_without_answer = 0
        self._patient_beats = _PATIENT_BEATS
        """Heartbeats that may be queued ahead of an answer."""

    @property
    def key(self) -> bytes:
        """Key of the answers."""
        return CONFIRM_KEY + self._nonce

    def has(self, line: int) -> bool:
        """Return True if a line has answered."""
        return bool(self.lines >> line & 1)

    def ask(self, version: int) -> None:
        """Subscribe to a new nonce: a publisher that answers it has applied all earlier filters."""
        if self._nonce:
            self._sub.unsubscribe(self.key)
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._beats_without_answer = 0
        self.lines = self._state.confirmed_lines = 0
        self._state.confirmed_version = version
        self._sub.subscribe(self.key)

    def accept(self, epoch: int, line: int, *, is_counted: bool = True) -> None:
        """Accept a publisher's answer: from now on it counts this subscriber, and waits for it when it closes.

        `is_counted`: False for a line on which a publisher cannot be told.
        """
        self.lines |= 1 << line
        if not is_counted:
            return
        self._patient_beats = max(_PATIENT_BEATS, 2 * self._beats_without_answer)
        accepted = ACCEPT_KEY + self._nonce + _of_line(epoch, line)
        self._sub.subscribe(accepted)
        self._accepted.append(accepted)
        self._withdraw(bytes([line]), accepted)  # also for a publisher that was killed

    def note_heartbeat(self, line: int) -> bool:
        """Note a heartbeat of a line; return True if the confirmation must be requested again."""
        if self.has(line):
            return False
        # If its queue was full, the publisher's libzmq has silently dropped the answer.
        self._beats_without_answer += 1
        if self._beats_without_answer < self._patient_beats:
            return False
        # It may also be queued: wait longer for the next one.
        self._patient_beats = min(2 * self._patient_beats, self._most_beats)
        return True

    def withdraw(self, epoch: int, line: int) -> None:
        """Withdraw the acceptance of a publisher that has ended."""
        self._withdraw(_of_line(epoch, line))

    def _withdraw(self, of_line: bytes, but: bytes = b"") -> None:
        for accepted in [a for a in self._accepted if a.endswith(of_line) and a != but]:
            self._accepted.remove(accepted)
            self._sub.unsubscribe(accepted)


def _of_line(epoch: int, line: int) -> bytes:
    return epoch.to_bytes(8, "little", signed=True) + bytes([line])
