"""Missing messages, by their sequences."""

from __future__ import annotations

import msgspec


class Gap(msgspec.Struct, frozen=True, order=True):
    """Messages of one key that were published but not received, not recorded, or damaged."""

    slice_id: int
    epoch: int
    key: bytes
    sequence: int
    """First missing sequence; -1: unknown, since the slow-subscriber policy dropped messages of any key."""
    count: int
    """Number of missing messages, see `is_upper_bound`."""
    ts_out: int
    """Send time of the block after the gap, or of the heartbeat that showed it. Unit: ns since 1970."""
    is_upper_bound: bool = False
    """True if `count` may include messages of unsubscribed keys: the start of the key in this epoch is unknown."""


def shares_of(count: int, parts: int) -> list[int]:
    """Split `count` missing messages over `parts`: evenly, at least 1 each."""
    each, more = divmod(max(count, parts), parts)
    return [each + (number < more) for number in range(parts)]
