"""A block from a worker's queue or a recording, with the fields of its envelope."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy
from numpy.typing import NDArray

from blackbox.block.batch.worker_envelope import TOPICS_AT, Envelope
from blackbox.block.form.block import Block
from blackbox.block.form.format import HEADER_BYTES
from blackbox.feed.routing.symbol import SymbolRule
from blackbox.native.memory.arrays import foreign_array

if TYPE_CHECKING:
    from blackbox.feed.schema.schema import Schema

ORIGINS: Final = 5
"""Values kept per message of a block merged by a replay: `ts_out`, `ts_in`, `ts_recv`, slice, epoch."""
_ENVELOPE: Final = struct.Struct(f"<{Envelope.dtype.itemsize // 8}q")
_TS_RECV: Final = Envelope.ts_recv.start
_CONFLATED: Final = Envelope.conflated.start
_RECORDED: Final = Envelope.recorded.start
_IMAGE: Final = Envelope.image.start
_LATE: Final = Envelope.late.start
NO_NUMBERS: Final = "this batch did not come from a subscriber: topics have no numbers"


class BatchFeed(NamedTuple):
    """Feed of messages."""

    name: str
    schema: Schema | None
    """None if payloads are plain bytes."""
    symbol_rule: SymbolRule = SymbolRule()


NO_FEED: Final = BatchFeed("", None)


class ReceivedBlock:
    """A block taken from a worker's queue, and its envelope. Columns are made on first use."""

    __slots__ = (
        "_envelope",
        "_numbers",
        "_owner",
        "_topics",
        "addresses",
        "block",
        "conflated",
        "feeds",
        "is_image",
        "is_late",
        "is_recorded",
        "origins",
        "ts_recv",
    )

    def __init__(
        self, owner: object, envelope: int, body: int, body_bytes: int, origins: int, feeds: Sequence[BatchFeed]
    ) -> None:
        """Wrap checked memory at two addresses; every array made of it keeps `owner` alive.

        `origins`: address of int64[ORIGINS, n] if a replay merged several blocks; else 0. `feeds`: the feed; with
        several, that of each slice.
        """
        head = ctypes.string_at(envelope, TOPICS_AT)
        words = _ENVELOPE.unpack_from(head, HEADER_BYTES)
        self.block = Block(b"", head[:HEADER_BYTES], foreign_array(owner, body, body_bytes))
        self.addresses = envelope, body, origins
        self.feeds = feeds
        self.ts_recv: int = words[_TS_RECV]
        self.conflated = bool(words[_CONFLATED])
        self.is_recorded = bool(words[_RECORDED])
        self.is_image = bool(words[_IMAGE])
        self.is_late = bool(words[_LATE])
        self.origins: NDArray[numpy.int64] | None = None
        if origins:
            self.origins = foreign_array(owner, origins, ORIGINS * self.block.count, "<i8").reshape(ORIGINS, -1)
        self._owner = owner
        self._envelope = envelope
        self._topics: list[bytes] | None = None
        self._numbers: NDArray[numpy.int32] | None = None

    @classmethod
    def of_block(cls, block: Block, feed: BatchFeed, ts_recv: int, *, is_image: bool = False) -> Self:
        """Wrap a block that is not from a worker's queue, such as a recorded one: its topics have no numbers."""
        received = cls.__new__(cls)
        received.block, received.feeds, received.ts_recv = block, (feed,), ts_recv
        received.addresses = numpy.frombuffer(block.header, numpy.uint8).ctypes.data, block.body.ctypes.data, 0
        received.conflated, received.is_recorded, received.origins = False, is_image, None
        received.is_image, received.is_late = is_image, False
        received._owner, received._envelope = None, 0
        received._topics = received._numbers = None
        return received

    @property
    def is_delivered(self) -> bool:
        """True if a subscriber or a replay delivers it and reports missing messages."""
        return self._envelope != 0

    def feed_of(self, row: int) -> BatchFeed:
        """Feed of a row."""
        if len(self.feeds) == 1:
            return self.feeds[0]
        return self.feeds[self.block.slice_id if self.origins is None else int(self.origins[3, row])]

    def topics(self) -> list[bytes]:
        """Distinct topics."""
        if self._topics is None:
            self._topics = self.block.topics
        return self._topics

    def numbers(self) -> NDArray[numpy.int32]:
        """Numbers of the topics in their slice."""
        if not self._envelope:
            raise ValueError(NO_NUMBERS)
        if self._numbers is None:
            self._numbers = foreign_array(self._owner, self._envelope + TOPICS_AT, self.block.topic_count, "<i4")
        return self._numbers
