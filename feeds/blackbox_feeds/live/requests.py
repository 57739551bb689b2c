"""Which lost messages to request, and when. Without I/O: the caller sends.

A gap is requested in parts, several at a time. If the server answers with one datagram that has less than a part, later
parts of the gap are as large as that datagram. Without progress the first part is requested again, after delays that
double and are jittered; how long, the gap holder decides, which gives up.
"""

from __future__ import annotations

from random import Random
from typing import Final

PARTS: Final = 16
"""Parts requested at a time."""
MOST_PART: Final = 256
"""Messages of the largest part."""
FIRST_DELAY_NS: Final = 10_000_000
LONGEST_DELAY_NS: Final = 200_000_000


class GapRequests:
    """Requests of one client."""

    def __init__(self, patience_ns: int = 0) -> None:
        """`patience_ns`: wait for this time before the first request, as the other line may fill the gap."""
        self._patience_ns = patience_ns
        self._random = Random()
        self._part = MOST_PART
        self._asked: dict[int, int] = {}
        """Messages requested from each first sequence."""
        self._expected = self._end = -1
        self._next = 0
        self._since_ns = 0
        self._delay_ns = FIRST_DELAY_NS

    def answered(self, first: int, messages: int) -> None:
        """Process a datagram of an answer: its first sequence, and its number of messages."""
        asked = self._asked.get(first, 0)
        if 0 < messages < asked:
            self._part = messages
        elif messages > 0 and not asked and first > self._expected:  # the server splits its answers itself
            self._part = MOST_PART

    def due(self, gap: tuple[int, int, int] | None, now_ns: int) -> list[tuple[int, int]]:
        """Return the parts to request now: (first sequence, messages).

        `gap`: its first sequence, the one after it, and since when it is known, as in `GapHolder.gap`.
        """
        if gap is None or now_ns < gap[2] + self._patience_ns:
            return []
        expected, end, _ = gap
        if end != self._end:
            self._end = end
            if end - expected > PARTS * self._part:  # an answer may have been short by chance
                self._part = MOST_PART
        if expected != self._expected:
            self._expected, self._since_ns, self._delay_ns = expected, now_ns, FIRST_DELAY_NS
            self._next = max(self._next, expected) if self._next <= end else expected
            self._asked = {first: count for first, count in self._asked.items() if first >= expected}
        elif now_ns >= self._since_ns + self._delay_ns:
            self._next, self._since_ns = expected, now_ns
            self._delay_ns = min(2 * self._delay_ns, LONGEST_DELAY_NS)
            self._delay_ns -= round(self._random.random() * self._delay_ns / 4)
        parts = []
        while self._next < min(end, expected + PARTS * self._part):
            count = min(self._part, end - self._next)
            parts.append((self._next, count))
            self._asked[self._next] = count
            self._next += count
        return parts
