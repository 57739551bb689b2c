"""Policies for subscribers that do not keep up: what happens when their queues are full, and when they stay behind."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, NamedTuple

from blackbox.arguments import duration_ns

_HWM_BLOCKS_DROP: Final = 1_000
_HWM_BLOCKS_WAIT: Final = 8
_MAX_PEER_AGE_S: Final = 5.0


class QueuePolicy(NamedTuple):
    """Policy for a subscriber that does not keep up."""

    waits: bool
    """True: blocks wait for room. False: blocks are dropped for full queues."""
    hwm_blocks: int
    """Blocks that a queue holds."""
    max_peer_age_s: float | None = None
    """Longest time that data waits for a TCP peer before it is disconnected; None: no limit."""

    @classmethod
    def of(
        cls,
        when_full: str,
        hwm_blocks: int | None,
        slow_peer: str = "keep",
        max_peer_age: float | timedelta | None = None,
    ) -> QueuePolicy:
        """Return the policy of a publisher or relay with these arguments. Raises ValueError."""
        if when_full not in ("drop", "wait"):
            raise ValueError(f"when_full was {when_full!r}, expected 'drop' or 'wait'")
        waits = when_full == "wait"
        if hwm_blocks is None:
            hwm_blocks = _HWM_BLOCKS_WAIT if waits else _HWM_BLOCKS_DROP
        if hwm_blocks < 1:
            raise ValueError(f"hwm_blocks was {hwm_blocks}, expected at least 1: 0 would mean unbounded")
        if slow_peer not in ("keep", "disconnect"):
            raise ValueError(f"slow_peer was {slow_peer!r}, expected 'keep' or 'disconnect'")
        if slow_peer == "keep":
            if max_peer_age is not None:
                raise ValueError(f"max_peer_age was {max_peer_age!r} with slow_peer='keep', expected 'disconnect'")
            return cls(waits, hwm_blocks)
        age_ns = duration_ns("max_peer_age", _MAX_PEER_AGE_S if max_peer_age is None else max_peer_age, 1e-3)
        return cls(waits, hwm_blocks, age_ns / 1e9)
