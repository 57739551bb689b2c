"""Arguments of callbacks: a batch is the rows of one block for a callback, a message is one row of a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.arguments import duration_ns
from blackbox.block.batch.batch_parts import by_interval_ns, cut, feed_numbers, parts_by
from blackbox.block.batch.batch_records import read_record, read_records
from blackbox.block.batch.batch_rows import each_payload, find_type, pick_payloads, read_payloads
from blackbox.block.batch.first_rows import batch_view
from blackbox.block.batch.received_block import NO_FEED, NO_NUMBERS, BatchFeed, ReceivedBlock
from blackbox.block.form.block import Block

if TYPE_CHECKING:
    import pyarrow

    from blackbox.feed.schema.schema import Schema


_NO_SCHEMA: Final = "this batch has no schema: give the feed one, or read payload(i)"


class Batch:
    """Messages of one block for one callback, as columns in publish order. All are of one feed.

    Columns are views of the received block if the callback gets all of it, else copies of its rows; they may be kept
    after the callback returns. Columns are made on first use, so an unused one costs nothing.
    """

    block: Block
    """The received block."""

    rows: NDArray[numpy.int32] | None
    """Rows of the block that the batch has, int32[n], or None for all."""

    end_of_batch: bool
    """True if nothing more was queued for this callback. Handlers can group their I/O by it."""

    __slots__ = (
        "_message_records",
        "_message_times",
        "_message_topics",
        "_payload_list",
        "_received",
        "block",
        "end_of_batch",
        "rows",
    )

    def __init__(
        self,
        block: Block,
        rows: NDArray[numpy.int32] | None = None,
        received: ReceivedBlock | None = None,
        end_of_batch: bool = True,
    ) -> None:
        self.block = block
        self.rows = rows
        self.end_of_batch = end_of_batch
        self._received = received
        self._payload_list: list[bytes | Any] | None = None
        self._message_topics: list[bytes] | None = None
        self._message_times: list[int] | None = None
        self._message_records: Sequence[Any] | None = None

    def __len__(self) -> int:
        return len(self.block) if self.rows is None else len(self.rows)

    def __repr__(self) -> str:
        return f"Batch({len(self)} of {self.block!r})"

    def _repr_html_(self) -> str:
        return batch_view(self)

    def __iter__(self) -> Iterator[Message]:
        return map(Message, self.payload_list(), repeat(self), range(len(self)))

    def by_interval(self, interval: float | timedelta) -> list[Batch]:
        """Split the batch wherever `ts_event` passes a multiple of an interval since 1970, keeping the order.

        `interval` is in seconds, or a `timedelta`. A message without a time stays with the previous one.
        """
        return by_interval_ns(self, duration_ns("interval", interval, 1e-9))

    def by_feed(self) -> list[Batch]:
        """Split a batch of several feeds wherever the feed changes, keeping the order. Callbacks get the parts."""
        feeds = feed_numbers(self)
        return [self] if feeds is None else cut(self, numpy.flatnonzero(feeds[1:] != feeds[:-1]) + 1)

    def messages(self, places: Iterator[int]) -> Iterator[Message]:
        """Yield the messages and consume `places`: 0, 1, 2 ....

        With several feeds, each message is in its own batch.
        """
        feeds = feed_numbers(self)
        if feeds is None:
            return map(Message, each_payload(self), repeat(self), places)
        parts = parts_by(self, feeds)
        own_places, part_of = numpy.empty(len(self), numpy.int64), numpy.empty(len(self), numpy.int64)
        for number, (mine, _) in enumerate(parts):
            own_places[mine], part_of[mine] = numpy.arange(len(mine)), number
        batch_of = map([part for _, part in parts].__getitem__, part_of.tolist())
        return map(Message, each_payload(self), batch_of, map(own_places.tolist().__getitem__, places))

    def split_by_feed(self) -> list[tuple[NDArray[numpy.int64], Batch]]:
        """Return a batch per feed, and the indices of its messages in this batch; itself if there is one feed."""
        feeds = feed_numbers(self)
        return [(numpy.arange(len(self)), self)] if feeds is None else parts_by(self, feeds)

    def of_type(self, message_type: str | Iterable[str]) -> Batch:
        """Return the messages of one or several message types, given by schema name or character.

        Messages without a value, or too short to have a type, are left out.
        """
        rows, wanted = self._all_rows(), [message_type] if isinstance(message_type, str) else list(message_type)
        found = [rows[:0]]
        for places, part in self.split_by_feed():
            if (schema := part.schema) is not None:
                kinds = {schema.character(each) for each in schema._types_in(wanted)}  # a type may have two names
                found += [rows[places[part.indices(kind)]] for kind in kinds]
        return self._of_rows(numpy.sort(numpy.concatenate(found)))

    def _of_rows(self, rows: NDArray[numpy.int32], is_end: bool = True) -> Batch:
        """Return a batch of some rows of the block. `is_end`: it has the last of this batch."""
        return Batch(self.block, rows, self._received, self.end_of_batch and is_end)

    def _feed(self) -> BatchFeed:
        if self._received is None:
            return NO_FEED
        return self._received.feed_of(int(self.rows[0]) if self.rows is not None and len(self.rows) else 0)

    @property
    def feed(self) -> str:
        """Name of the feed of these messages."""
        return self._feed().name

    @property
    def schema(self) -> Schema | None:
        """Schema of the feed; None if payloads are plain bytes."""
        return self._feed().schema

    @property
    def conflated(self) -> bool:
        """True if the slow-subscriber policy kept only the newest message of each topic."""
        return self._received is not None and self._received.conflated

    @property
    def is_recorded(self) -> bool:
        """True if the block was missed live and comes from an archive."""
        return self._received is not None and self._received.is_recorded

    @property
    def is_image(self) -> bool:
        """True if it is part of an image: the newest message of each topic before the start."""
        return self._received is not None and self._received.is_image

    @property
    def _received_block(self) -> ReceivedBlock:
        """The block with its envelope."""
        return ReceivedBlock.of_block(self.block, NO_FEED, 0) if self._received is None else self._received

    @property
    def origins(self) -> NDArray[numpy.int64] | None:
        """int64[ORIGINS, m]: `ts_out`, `ts_in`, `ts_recv`, slice, epoch of each row of a block merged by a replay.

        A replay merges messages of several recorded blocks in market order. None for other blocks.
        """
        return None if self._received is None else self._received.origins

    @property
    def slice_ids(self) -> NDArray[numpy.int64]:
        """int64[n]: slice of each message; a replay of several feeds numbers slices consecutively over all feeds."""
        if self.origins is None:
            return numpy.full(len(self), self.block.slice_id, numpy.int64)
        return self._column(self.origins[3])

    @property
    def epochs(self) -> NDArray[numpy.int64]:
        """int64[n]: epoch of each message."""
        if self.origins is None:
            return numpy.full(len(self), self.block.epoch, numpy.int64)
        return self._column(self.origins[4])

    @property
    def ts_recv(self) -> int:
        """Receive time of the block in ns since the epoch, 0 if it was not received; the latest of several blocks."""
        return 0 if self._received is None else self._received.ts_recv

    @property
    def ts_out(self) -> int:
        """Send time of the block in ns since the epoch; the latest of several blocks."""
        return int(self.block.ts_out)

    @property
    def ts_in(self) -> int:
        """Time when the block's oldest message was published, ns since the epoch; the earliest of several blocks."""
        return int(self.block.ts_in)

    @property
    def valid(self) -> NDArray[numpy.bool_]:
        """bool[n]: True if the message has a value; a message without a value deletes its topic."""
        return self._column(self.block.valid)

    @property
    def topics(self) -> list[bytes]:
        """Distinct topics of the block; `topic_index` indexes them."""
        return self.block.topics if self._received is None else self._received.topics()

    @property
    def topic_index(self) -> NDArray[numpy.int32]:
        """int32[n]: index of each message's topic in `topics`."""
        return self._column(self.block.topic_index)

    @property
    def topic_numbers(self) -> NDArray[numpy.int32]:
        """int32[len(topics)]: number of each topic, the same in all batches of a slice (see `Subscriber.topics`)."""
        if self._received is None:
            raise ValueError(NO_NUMBERS)
        return self._received.numbers()

    @property
    def ts_event(self) -> NDArray[numpy.int64]:
        """int64[n]: venue time in ns since the epoch; 0 if the venue gave none."""
        return self._column(self.block.ts_event)

    @property
    def sequence(self) -> NDArray[numpy.int64]:
        """int64[n]: sequence of each message in its epoch and slice."""
        return self._column(self.block.sequences)

    def topics_per_message(self) -> list[bytes]:
        """Topic of each message."""
        if self._message_topics is None:
            self._message_topics = list(map(self.topics.__getitem__, self.topic_index.tolist()))
        return self._message_topics

    def symbols_per_message(self) -> list[bytes]:
        """Symbol of each message, by the symbol rule of its feed. For a batch of one feed, as callbacks get them."""
        symbols = list(map(self._feed().symbol_rule.symbol_of, self.topics))
        return list(map(symbols.__getitem__, self.topic_index.tolist()))

    def payload(self, i: int) -> bytes | Any:
        """Payload of message `i` of the batch; None if it has no value."""
        return self.payload_list()[i]

    def payload_list(self) -> list[bytes | Any]:
        """Payload of each message; None for a message without a value."""
        if self._payload_list is None:
            self._payload_list = read_payloads(self)
            if self.block.validity is not None:
                for i in numpy.flatnonzero(~self.valid).tolist():
                    self._payload_list[i] = None
        return self._payload_list

    def payloads(self) -> NDArray[numpy.uint8]:
        """uint8[n, size] if all payloads of the block have the same size, else all their bytes in one array."""
        block = self.block
        data = block.payloads
        if block.is_fixed:
            table = data.reshape(block.count, block.stride)
            return table if self.rows is None else table[self.rows]
        return data if self.rows is None else pick_payloads(self.block, self.rows)

    def payload_offsets(self) -> NDArray[numpy.int64]:
        """int64[n + 1]: start of each message's payload in the flat bytes of `payloads()`."""
        offsets = self.block.payload_offsets.astype(numpy.int64)
        if self.rows is None:
            return offsets
        out = numpy.zeros(len(self.rows) + 1, numpy.int64)
        numpy.cumsum(offsets[self.rows + 1] - offsets[self.rows], out=out[1:])
        return out

    def records(self, message_type: str) -> NDArray[Any]:
        """Return the messages of one type of the feed's schema, as a structured array with the venue's field names.

        Integers that mean "no value" are as sent by the venue. A view if every message of the batch is of that type,
        else a copy. Raises ConfigError for a type that the schema lacks, ValueError for a message of that type with
        another length than the schema's.
        """
        if self.schema is None:
            raise ValueError(_NO_SCHEMA)
        dtype = self.schema.dtype(message_type)
        rows = self._all_rows()[self.indices(message_type)]
        block = self.block
        if block.is_fixed and block.stride == dtype.itemsize:
            table = block.payloads.reshape(block.count, block.stride)
            chosen = table if len(rows) == block.count else table[rows]
            return chosen.view(dtype).reshape(-1)
        offsets = block.payload_offsets
        if len(rows) and (wrong := offsets[rows + 1] - offsets[rows] != dtype.itemsize).any():
            row = int(rows[wrong][0])
            size = offsets[row + 1] - offsets[row]
            raise ValueError(
                f"message {row} of {block!r} is of type {message_type!r} but has {size} bytes, "
                f"expected {dtype.itemsize}"
            )
        return pick_payloads(self.block, rows).view(dtype)

    def indices(self, message_type: str) -> NDArray[numpy.int64]:
        """int64[m]: indices in the batch of the messages of `records(message_type)`. Raises the same errors."""
        schema: Any = self.schema
        if schema is None:
            raise ValueError(_NO_SCHEMA)
        return find_type(self.block, self._all_rows(), schema.type_offset, ord(schema.character(message_type)))

    def to_arrow(self) -> pyarrow.RecordBatch:
        """Return this callback's messages as `Block.to_arrow` does."""
        arrow = self.block.to_arrow()
        return arrow if self.rows is None else arrow.take(self.rows)

    def _all_rows(self) -> NDArray[numpy.int32]:
        return numpy.arange(self.block.count, dtype=numpy.int32) if self.rows is None else self.rows

    def _column(self, column: NDArray[Any]) -> NDArray[Any]:
        return column if self.rows is None else column[self.rows]


class SmallBatch(Batch):
    """A batch of all messages of a small block, which is unpacked on first use."""

    __slots__ = ("_found", "_how")

    def __init__(
        self, how: tuple[object, int, int, int, int, Sequence[BatchFeed]], times: list[int], end_of_batch: bool
    ) -> None:
        """`how`: arguments of `ReceivedBlock`. `times`: `ts_event` of each message."""
        self._how = how
        self._found: ReceivedBlock | None = None
        self.rows, self.end_of_batch = None, end_of_batch
        self._payload_list = self._message_topics = self._message_records = None
        self._message_times = times

    @property
    def _received(self) -> ReceivedBlock:  # type: ignore[override]  # replaces an attribute
        if self._found is None:
            self._found = ReceivedBlock(*self._how)
        return self._found

    @property
    def block(self) -> Block:  # type: ignore[override]
        """The block."""
        return self._received.block


class Message(msgspec.Struct, gc=False):
    """One message of a batch. Fields other than the payload are looked up on use."""

    payload: bytes | Any
    """Payload bytes; None: no value, which deletes the topic."""
    batch: Batch
    index: int
    """Index in the batch."""

    @property
    def topic(self) -> bytes:
        """Topic that it was published to."""
        topics = self.batch._message_topics
        return (self.batch.topics_per_message() if topics is None else topics)[self.index]

    @property
    def symbol(self) -> bytes:
        """Symbol in its topic, by the feed's symbol rule."""
        return self.batch._feed().symbol_rule.symbol_of(self.topic)

    @property
    def ts_event(self) -> int:
        """Venue time in ns since the epoch; 0: unknown."""
        times = self.batch._message_times
        if times is None:
            times = self.batch._message_times = self.batch.ts_event.tolist()
        return times[self.index]

    @property
    def ts_out(self) -> int:
        """Send time of its block in ns since the epoch."""
        origins = self.batch.origins
        return int(self.batch.block.ts_out) if origins is None else int(origins[0, self._row])

    @property
    def ts_in(self) -> int:
        """Time when the oldest message of its block was published, ns since the epoch."""
        origins = self.batch.origins
        return int(self.batch.block.ts_in) if origins is None else int(origins[1, self._row])

    @property
    def ts_recv(self) -> int:
        """Receive time of its block in ns since the epoch."""
        origins = self.batch.origins
        return self.batch.ts_recv if origins is None else int(origins[2, self._row])

    @property
    def slice_id(self) -> int:
        """Slice that it was sent in."""
        origins = self.batch.origins
        return self.batch.block.slice_id if origins is None else int(origins[3, self._row])

    @property
    def epoch(self) -> int:
        """Epoch of its publisher."""
        origins = self.batch.origins
        return self.batch.block.epoch if origins is None else int(origins[4, self._row])

    @property
    def sequence(self) -> int:
        """Sequence in its epoch and slice."""
        block, row = self.batch.block, self._row
        return int(block.sequences[row]) if block.has_sequences else int(block.sequence) + row

    @property
    def _row(self) -> int:
        rows = self.batch.rows
        return self.index if rows is None else int(rows[self.index])

    @property
    def end_of_batch(self) -> bool:
        """True if nothing more was queued for this callback."""
        return self.batch.end_of_batch and self.index == len(self.batch) - 1

    @property
    def record(self) -> Any:
        """Its payload as a record of the feed's schema, by its type: fields are attributes, e.g. `record.price`.

        A record may be kept, and then keeps the payloads of its whole batch; `copy.copy(record)` keeps only its own
        bytes. A price `p` is the venue's scaled integer, and `p_float` is the price as a float. A field is None if it
        holds the integer that the schema declares as absent; `Batch.records` returns that integer. An integer of six
        bytes is `bytes`, for `int.from_bytes`.

        Raises:
            ValueError: there is no schema, or the payload has another length than its type.
            ConfigError: the schema has no such type.
        """
        records = self.batch._message_records
        if records is None:
            records = self.batch._message_records = read_records(self.batch)
        return records[self.index] if records else read_record(self)
