"""Estimate the blocks dropped for a peer, and the age of its data, from the kernel's counters. Does no I/O.

libzmq drops blocks for a full queue without saying so. But the bytes of all frames sent on a line are known, and so are
the bytes that libzmq has handed to the kernel for a connection. For a peer that subscribes to all keys the difference
is what libzmq has dropped, and what waits in its queue.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum
from typing import Final, NamedTuple

from blackbox.block.form.format import HEADER_BYTES
from blackbox.transport.libzmq import MOST_SHORT_BYTES

_LOOKS: Final = 4
"""Number of looks whose least difference counts: blocks on their way from libzmq to the kernel are not dropped."""
_SHORT_BYTES, _LONG_BYTES = 6, 13
"""Framing of a block on a connection, by the size of its body."""
_MOST_KEPT: Final = 4_096
"""Looks kept for the age of data: 17 minutes."""


class Certainty(StrEnum):
    """How sure the number of blocks dropped for a peer is."""

    UNKNOWN = "unknown"
    """There is no number: the peer is not on TCP without encryption, or does not subscribe to all keys."""
    BEHIND = "behind"
    """Data waits for the peer. The number assumes that its queue is full, so it is a lower bound."""
    SETTLED = "settled"
    """The peer had taken everything. The number is right up to blocks that were just being sent."""


class LineTotals(NamedTuple):
    """Totals of the frames sent on a line so far."""

    wire_bytes: int
    """Bytes of all frames."""
    blocks: int
    """Data blocks."""
    body_bytes: int
    """Bytes of their bodies."""

    @property
    def block_bytes(self) -> float:
        """Mean bytes of a block on a connection."""
        body = self.body_bytes / max(1, self.blocks)
        return body + HEADER_BYTES + (_SHORT_BYTES if body <= MOST_SHORT_BYTES else _LONG_BYTES)


class Drops:
    """Blocks dropped for one peer since it first had taken everything. `certainty` is that of `blocks`."""

    def __init__(self) -> None:
        self.blocks = 0
        self.certainty = Certainty.UNKNOWN
        self._missing_at_first: int | None = None
        self._recent = deque[int](maxlen=_LOOKS)

    def look(self, sent: LineTotals, handed: int, unsent: int, hwm_blocks: int) -> None:
        """Take the totals of the line, read before the kernel's: bytes handed over, and bytes without room."""
        missing = sent.wire_bytes - handed
        if self._missing_at_first is None:
            if unsent:
                return
            self._missing_at_first = missing
        missing = max(0, missing - self._missing_at_first)
        if unsent:
            self._recent.clear()
            self.certainty = Certainty.BEHIND
            self.blocks = max(self.blocks, int(missing / sent.block_bytes) - hwm_blocks)
            return
        self._recent.append(missing)
        if len(self._recent) == _LOOKS:
            self.certainty = Certainty.SETTLED
            self.blocks = round(min(self._recent) / sent.block_bytes)


class DataAge:
    """The time since the oldest data that a peer has not acknowledged was handed to the kernel."""

    def __init__(self) -> None:
        self._handed = deque[tuple[float, int]](maxlen=_MOST_KEPT)

    def look(self, now: float, handed: int, taken: int) -> float:
        """Take the kernel's counters; return the age in seconds, right to the time between two looks."""
        if not self._handed or handed > self._handed[-1][1]:
            self._handed.append((now, handed))
        while self._handed and self._handed[0][1] <= taken:
            self._handed.popleft()
        return now - self._handed[0][0] if self._handed else 0.0
