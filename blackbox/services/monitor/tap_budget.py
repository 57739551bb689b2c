"""Decide when a tap pauses, so that it costs the watched slice little. Does no I/O."""

from __future__ import annotations

from typing import Final

MOST_BYTES_PER_S: Final = 4 << 20
"""Bytes that a tap takes on average."""
_LEAST_BLOCK_NS: Final = 100_000
"""Least time that a block is charged: the tap's own work for it."""
_CREDIT_NS: Final = 250_000_000
"""Debt from which the tap pauses until it is paid."""


class Budget:
    """The debt of a tap, in time: each block adds the time that it may take on average."""

    def __init__(self) -> None:
        self.is_paused = False
        self._paid_until_ns = 0

    def charge(self, body_bytes: int, now_ns: int) -> None:
        """Charge a received block."""
        cost_ns = max(_LEAST_BLOCK_NS, body_bytes * 1_000_000_000 // MOST_BYTES_PER_S)
        self._paid_until_ns = max(self._paid_until_ns, now_ns) + cost_ns

    def has_changed(self, now_ns: int) -> bool:
        """Decide again whether to pause; return True if `is_paused` has changed."""
        debt_ns = self._paid_until_ns - now_ns
        was_paused, self.is_paused = self.is_paused, debt_ns > (0 if self.is_paused else _CREDIT_NS)
        return self.is_paused != was_paused
