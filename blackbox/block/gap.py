"""Messages that are missing, by the numbers that their publisher gave them."""

from __future__ import annotations

import msgspec


class Gap(msgspec.Struct, frozen=True, order=True):
    """Messages of one key that were published, but not received, or not recorded, or are damaged."""

    slice_id: int
    epoch: int
    key: bytes
    sequence: int
    """The first number that is missing; -1: not known, as the slow-subscriber policy dropped messages of any key."""
    count: int
    """Number of missing messages, see `is_upper_bound`."""
    ts_out: int
    """Of the block after the gap, or of the heartbeat that showed it. Unit: ns since 1970."""
    is_upper_bound: bool = False
    """True if `count` may include messages of unwanted keys: the start of the key in this epoch is not known."""


def shares_of(count: int, parts: int) -> list[int]:
    """Return how many of `count` missing messages each of some parts is said to lack: all alike, at least 1 each."""
    each, more = divmod(max(count, parts), parts)
    return [each + (number < more) for number in range(parts)]
