"""A block handler takes every block of a slice, in order and once: a C function and its record.

A subscriber's slice thread calls it in place of callbacks, a publisher's sender before it sends: with the address of
the record, without the GIL. It goes on when the function returns. The handler also gets
control blocks: heartbeats, the end of a publisher and confirmations, which say how far a line has come.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from blackbox.native.records import Field, SharedRecord, record_at

BLOCK: Final = 0
CONTROL: Final = 1
"""A control block (header flag CONTROL) of the current epoch, or of one that begins with it. Its body holds the end
and the count of messages of each key, on the line that its header names."""
IDLE: Final = 2
"""Nothing more is there now."""
NOTE: Final = 3
"""The publisher's note about the blocks that follow. Only a publisher's outbox gets notes."""

AGAIN_MS: Final = 1


class HandedBlock(SharedRecord):
    """What a block handler is called with. A handler may append fields of its own, by deriving from this."""

    kind = Field()
    """BLOCK, CONTROL, IDLE or NOTE; what follows is valid for the first two.

    A NOTE has `body`, `body_bytes`, `ts_recv`, the next sequence in `first_row`, and 1 in `in_force` if no block is to
    be written with it."""
    head = Field()
    """Address of the block's header."""
    body = Field()
    """Address of its body."""
    body_bytes = Field()
    first_row = Field()
    """Rows before this one were given before."""
    ts_recv = Field()
    """When the block came, ns since the epoch."""
    held = Field()
    """Blocks that wait for the other line. Of CONTROL: unless 0, what it tells of may still be on its way here."""
    in_force = Field()
    """Of CONTROL: 1 when its line's publisher has confirmed that what follows is sent here, all of it."""
    refused = Field()
    """Set by a handler: 1, it did not take the block, and takes none any more."""
    again = Field()
    """Set by a handler that was called with IDLE: 1, call it again within `AGAIN_MS`, if nothing comes."""


handed_block_at = record_at(HandedBlock)


class BlockHandlerAt(NamedTuple):
    """Where a block handler is: its C function `void f(int64_t record)`, 0 for none, and its record's address."""

    function: int
    record: int


NO_HANDLER: Final = BlockHandlerAt(0, 0)
