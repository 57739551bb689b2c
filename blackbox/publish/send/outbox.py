"""The interface of a publisher's outbox: a journal to which each block is written before it is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import numpy
from numpy.typing import NDArray

from blackbox.block.batch.block_handler import NO_HANDLER, BlockHandlerAt
from blackbox.block.form.block import Block
from blackbox.block.form.format import HEADER_BYTES
from blackbox.block.position import End
from blackbox.feed.feed import Feed
from blackbox.publish.send.batcher import Stored


class OutboxSlice(NamedTuple):
    """One slice of an outbox."""

    handler: BlockHandlerAt
    """Handler for its blocks."""
    failure: Callable[[], str]
    """Return the reason why it refuses blocks."""
    sequence: int
    """Next sequence, after all written messages of the continued epoch."""
    ends: dict[bytes, End]
    """End of each key at that sequence."""
    again: list[Block]
    """Last blocks that no archive has acknowledged. They are sent again unchanged."""

    def begin(self) -> tuple[int, dict[bytes, End]]:
        """Return the first sequence to send (again or for the first time), and the end of each key there."""
        sequence = self.again[0].sequence if self.again else self.sequence
        ends = {block.key: End(block.previous, block.key_sequence) for block in reversed(self.again)}
        return sequence, self.ends | ends


class Again(NamedTuple):
    """Blocks of one slice to send again."""

    keys: list[bytes]
    """Key of each row of `stored`."""
    stored: Stored
    columns: tuple[NDArray[numpy.uint8 | numpy.int64], ...]
    """Memory of `stored`."""

    @classmethod
    def of(cls, box: OutboxSlice) -> Again:
        """Return the blocks in columns."""
        headers = numpy.frombuffer(b"".join(bytes(block.header) for block in box.again), numpy.uint8)
        heads = headers.ctypes.data + HEADER_BYTES * numpy.arange(len(box.again), dtype=numpy.int64)
        bodies = numpy.array([block.body.ctypes.data for block in box.again], numpy.int64)
        absent = numpy.zeros(len(box.again), numpy.int64)
        stored = Stored(heads.ctypes.data, bodies.ctypes.data, 0, absent.ctypes.data, len(box.again))
        return cls([block.key for block in box.again], stored, (headers, heads, bodies, absent))


class OpenOutbox(NamedTuple):
    """State of an outbox when it is opened."""

    epoch: int
    """Epoch that continues or begins."""
    slices: list[OutboxSlice]


NO_OUTBOX: Final = OutboxSlice(NO_HANDLER, str, 0, {}, [])


class PublisherOutbox(Protocol):
    """A publisher's outbox."""

    again_wait_s: float
    """Time to wait for subscribers to blocks that are sent again."""

    def open(self, feed: Feed) -> OpenOutbox:
        """Open and lock the files. Raises BlackBoxError if they cannot be opened or another publisher has them."""

    def close(self) -> None:
        """Close the files after the senders have ended. Raises JournalError if a block it took was not written."""
