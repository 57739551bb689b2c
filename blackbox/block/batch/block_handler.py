"""A block handler receives every block of a slice once and in order: a C function and its record.

A subscriber's slice thread calls it instead of callbacks, a publisher's sender before it sends: with the address of the
record, without the GIL. The thread continues when the function returns. The handler also gets control blocks:
heartbeats, the end of a publisher and confirmations, which report the progress of a line.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from blackbox.native.memory.records import Field, SharedRecord, record_at

BLOCK: Final = 0
CONTROL: Final = 1
"""A control block (header flag CONTROL) of the current or a new epoch.

Its body holds the end and the count of messages of each key, on the line given in its header.
"""
IDLE: Final = 2
"""No more blocks are available now."""
NOTE: Final = 3
"""The publisher's note about the blocks that follow; only for a publisher's outbox."""

AGAIN_MS: Final = 1


class HandedBlock(SharedRecord):
    """Argument of a block handler. A handler may derive from it to append fields."""

    kind = Field()
    """BLOCK, CONTROL, IDLE or NOTE; the fields below are valid for the first two.

    A NOTE has `body`, `body_bytes`, `ts_recv`, the next sequence in `first_row`, and 1 in `in_force` if no block is to
    be written with it.
    """
    head = Field()
    """Address of the block's header."""
    body = Field()
    """Address of the block's body."""
    body_bytes = Field()
    first_row = Field()
    """Rows before this one were handed over earlier."""
    ts_recv = Field()
    """Receive time of the block in ns since the epoch."""
    held = Field()
    """Blocks waiting for the other line, and one more while archives are read. For CONTROL: if not 0, blocks that it
    covers may still be on their way."""
    in_force = Field()
    """For CONTROL: 1 if the publisher has confirmed the subscription on this line, so that all later blocks arrive."""
    refused = Field()
    """Set by a handler: 1 if it rejected the block and accepts no more."""
    again = Field()
    """Set by a handler called with IDLE: 1 to be called again within `AGAIN_MS`, even if no block arrives."""


handed_block_at = record_at(HandedBlock)


class BlockHandlerAt(NamedTuple):
    """A block handler: address of its C function `void f(int64_t record)`, 0 for none, and of its record."""

    function: int
    record: int


NO_HANDLER: Final = BlockHandlerAt(0, 0)
