"""What a publisher needs of its outbox: a journal of its own, in which each block is written before it is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import numpy
from numpy.typing import NDArray

from blackbox.block.block import Block
from blackbox.block.block_handler import NO_HANDLER, BlockHandlerAt
from blackbox.feed.feed import Feed
from blackbox.publish.batcher import Stored


class OutboxSlice(NamedTuple):
    """One slice of an outbox."""

    handler: BlockHandlerAt
    """What takes its blocks."""
    failure: Callable[[], str]
    """Says why it takes no more."""
    next_sequences: dict[bytes, int]
    """The next number of each key, after all that was written of the epoch that goes on."""
    again: list[Block]
    """Those of its last blocks that no archive has, as far as is known: they are sent again, as they are."""

    def begins(self) -> dict[bytes, int]:
        """Return the number of each key from which sending begins, again or for the first time."""
        return self.next_sequences | {block.key: block.sequence for block in reversed(self.again)}


class Again(NamedTuple):
    """What is sent again of one slice."""

    keys: list[bytes]
    """Of each row of `stored`."""
    stored: Stored
    columns: tuple[NDArray[numpy.uint8 | numpy.int64], ...]
    """Where that lies."""

    @classmethod
    def of(cls, box: OutboxSlice) -> Again:
        """Return it in columns; numbers of which nothing was written are skipped."""
        following, keys, rows = box.begins(), list[bytes](), list[tuple[int, int, int]]()
        headers = numpy.frombuffer(b"".join(bytes(block.header) for block in box.again), numpy.uint8)
        header_bytes = len(headers) // max(1, len(box.again))
        for number, block in enumerate(box.again):
            absent = block.sequence - following[block.key]
            rows.append((headers.ctypes.data + header_bytes * number, block.body.ctypes.data, absent))
            keys.append(block.key)
            following[block.key] = block.sequence + block.count
        for key, end in box.next_sequences.items():
            if following[key] < end:
                rows.append((0, 0, end - following[key]))
                keys.append(key)
        columns = tuple(numpy.array(column, numpy.int64) for column in zip(*rows, strict=True))
        heads, bodies, absents = (column.ctypes.data for column in columns)
        return cls(keys, Stored(heads, bodies, 0, absents, len(keys)), (headers, *columns))


class OpenOutbox(NamedTuple):
    """What an outbox has when it is opened."""

    epoch: int
    """The one that goes on, or that begins."""
    slices: list[OutboxSlice]


NO_OUTBOX: Final = OutboxSlice(NO_HANDLER, str, {}, [])


class PublisherOutbox(Protocol):
    """A publisher's outbox."""

    again_wait_s: float
    """How long to wait for subscribers to what is sent again."""

    def open(self, feed: Feed) -> OpenOutbox:
        """Take hold of the files. Raises BlackBoxError when they cannot be opened, or another publisher has them."""

    def close(self) -> None:
        """Close the files, once senders have ended. Raises JournalError when some of what it took was not written."""
