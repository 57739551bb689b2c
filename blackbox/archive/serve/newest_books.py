"""Keep the order books of a slice as its records are read. Their image is the resting orders, sent as new orders."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.archive.read.reader import blocks_of
from blackbox.archive.serve.newest import Entry, NewestBlocks, NewestRows
from blackbox.archive.serve.newest_of_slice import Newest
from blackbox.block.batch.batch import Batch
from blackbox.block.batch.received_block import BatchFeed, ReceivedBlock
from blackbox.block.form.block import Block, HeaderFields
from blackbox.block.form.rows import PayloadColumns
from blackbox.block.position import Position, is_restart
from blackbox.book.books import Books
from blackbox.book.feed import BookFeed, Resting, load_book_feed
from blackbox.errors import ConfigError, JournalError
from blackbox.feed.feed import Feed
from blackbox.feed.routing.key_rule import key_of
from blackbox.feed.schema.schema import load_schema

if TYPE_CHECKING:
    from blackbox.archive.read.reader import RecordRun

_MOST_ROWS: Final = 4_096
"""Maximum number of messages in a block, and of one symbol at once."""


class NewestBooks:
    """The books of one slice in its last epoch, and the newest message of every topic that changes no book.

    Attributes: as in `Newest`.
    """

    def __init__(self, slice_id: int, feed: Feed) -> None:
        """Start empty. Raises ConfigError if the feed's schema has no books, or no images of them."""
        self.slice_id, self._key_rule = slice_id, feed.key_rule
        self._book_feed, self._schema = load_book_feed(feed.schema_name), load_schema(feed.schema)
        if self._book_feed.rest is None:
            raise ConfigError(f"books of schema {feed.schema_name!r} had no `rest`, which images require")
        self._feed = BatchFeed(feed.name, self._schema, feed.symbol_rule)
        self._newest = Newest(slice_id, feed.key_rule, feed.max_topics)
        self._last = NewestRows(f"slice {slice_id}", feed.key_rule, feed.max_topics)
        """For each topic, the last message of this epoch that changes a book. Other messages may follow it."""
        self._sizes = numpy.full(256, -1)
        """Their size in bytes, by type."""
        for kind in self._book_feed.message_types:
            self._sizes[ord(kind)] = self._schema.records[kind].itemsize
        self._books = Books(feed.schema_name, symbol_rule=feed.symbol_rule, max_symbols=feed.max_topics)
        self._epoch = self._epoch_of_day = 0
        self._lacks_messages = False
        self._taken = 0
        """Sequence after the last message of this epoch in the books."""

    @property
    def position(self) -> Position:
        """Position after the last message of the last epoch read. Epoch 0: nothing was read."""
        return self._newest.position

    @property
    def epoch(self) -> int:
        """The last epoch read; 0 for none."""
        return self._newest.epoch

    @property
    def ts_out(self) -> int:
        """The largest `ts_out` of that epoch."""
        return self._newest.ts_out

    def begin_day(self) -> None:
        """Begin a day: its first epoch begins with empty books."""
        self._epoch_of_day = 0

    def take(self, run: RecordRun) -> None:
        """Add checked records, as `Newest.take`."""
        self._newest.take(run)
        for block, ts_recv, fresh_row, _, _ in blocks_of(run, self._key_rule):
            if block.epoch > self._epoch:
                self._books.clear()  # as in a subscriber
                self._last.clear()
                self._taken = 0
                self._lacks_messages = is_restart(self._epoch_of_day, block.epoch)
                self._epoch = block.epoch
            self._epoch_of_day = self._epoch
            first_row = max(fresh_row, block.row_from(self._taken))
            if block.epoch < self._epoch or first_row == block.count:
                continue
            if block.number_of(first_row) > self._taken:
                self._lacks_messages = True
            rows = numpy.arange(first_row, block.count, dtype=numpy.int32)
            received = ReceivedBlock.of_block(block, self._feed, ts_recv)
            self._books.apply(Batch(block, rows, received))
            if len(changing := rows[self._change_books(block, first_row)]):
                self._last.take_batch(Batch(block, changing, received))
            self._taken = block.number_of(-1) + 1

    def _change_books(self, block: Block, first_row: int) -> NDArray[numpy.bool_]:
        """Return bool[rows], from the first row on: True for each valid message of a type that changes books."""
        offsets = block.payload_offsets[first_row:]
        sizes, places = numpy.diff(offsets), offsets[:-1] + self._book_feed.type_offset
        found = sizes > self._book_feed.type_offset
        found[found] = sizes[found] == self._sizes[block.payloads[places[found]]]
        return found

    def blocks(self, prefixes: Collection[bytes], keys: tuple[bytes, ...] = (b"",)) -> BooksBlocks:
        """Return the resting orders of topics that begin with a prefix, and the newest messages that change no book."""
        type_offset, types = self._book_feed.type_offset, self._book_feed.message_types.encode("latin-1")
        found = dict[bytes, dict[int, Entry]]()
        for message in self._last.messages(prefixes, keys):
            of_type = found.setdefault(self._feed.symbol_rule.symbol_of(message.topic), {})
            kind = message.payload[type_offset]
            if kind not in of_type or of_type[kind].sequence < message.sequence:
                of_type[kind] = message
        parts, is_unsure = list[_Part](), self._lacks_something()
        for symbol, of_type in found.items():
            orders, is_snapshot = self._books.resting(symbol)
            if self._book_feed.begins_empty and not len(orders) and not is_snapshot:
                continue
            last = max(of_type.values(), key=lambda message: message.sequence)
            for key, mine in self._by_key(Resting(symbol, last.payload, orders, is_snapshot), last, of_type):
                for first in range(0, max(1, len(mine)), _MOST_ROWS):
                    resting = Resting(symbol, last.payload, mine[first : first + _MOST_ROWS], is_snapshot)
                    parts.append(_Part(key, resting, last, of_type))
        others = self._newest.blocks(prefixes, keys, ~self._newest.have_byte(type_offset, types))
        return BooksBlocks(self, self._key_rule, self._book_feed, self._schema.schema_id, others, parts, is_unsure)

    def _by_key(self, resting: Resting, last: Entry, of_type: dict[int, Entry]) -> Iterator[tuple[bytes, NDArray[Any]]]:
        """Yield each key of a symbol's messages in an image, with the orders sent under it."""
        keys = {kind: key_of(self._key_rule, message.topic) for kind, message in of_type.items()}
        of_last = key_of(self._key_rule, last.topic)
        if {of_last, *keys.values()} == {of_last}:
            yield of_last, resting.orders
            return
        assert self._book_feed.rest is not None
        kinds = self._book_feed.rest(resting)[:, self._book_feed.type_offset].tolist()
        of_row = [keys.get(kind, of_last) for kind in kinds]
        for key in dict.fromkeys(of_row):
            rows = [each == key for each in of_row]
            yield key, resting.orders[rows] if len(resting.orders) else resting.orders

    def _lacks_something(self) -> bool:
        """Return True if messages are missing that a book may need, or if a book is known to lack some."""
        return self._lacks_messages or self._books.lacks_messages


class _Part(NamedTuple):
    """Orders of a symbol that are sent under one key, its last message, and the last one of each type."""

    key: bytes
    resting: Resting
    last: Entry
    of_type: dict[int, Entry]

    @property
    def rows(self) -> int:
        """Number of messages that it becomes."""
        return max(1, len(self.resting.orders))


class _Planned(NamedTuple):
    """A block that is made on demand."""

    key: bytes
    first: int
    parts: list[_Part]


class BooksBlocks:
    """The image of books as of its creation, like `NewestBlocks`. Resting orders come last.

    Its messages are numbered up to the position of the image, in place of those that the publisher sent.
    """

    def __init__(
        self,
        books: NewestBooks,
        key_rule: int,
        feed: BookFeed,
        schema_id: int,
        others: NewestBlocks,
        parts: list[_Part],
        is_unsure: bool,
    ) -> None:
        """Use `NewestBooks.blocks` instead."""
        assert feed.rest is not None
        self.is_unsure, self._others = is_unsure, others
        self._rest, self._type_offset, self._schema_id = feed.rest, feed.type_offset, schema_id
        self._slice_id, self._key_rule = books.slice_id, key_rule
        self._epoch, self._ts_out = books.epoch, books.ts_out
        self._planned: list[_Planned] = []
        of_key = dict[bytes, list[_Part]]()
        for part in parts:
            of_key.setdefault(part.key, []).append(part)
        following = books.position.sequence
        first = following - sum(part.rows for part in parts)
        if first < 0:
            raise JournalError(
                f"slice {books.slice_id} had {following - first} orders after {following} messages, "
                "expected at most one for each message"
            )
        for key, mine in of_key.items():
            first = self._plan(key, mine, first)
        self.count = others.count + len(self._planned)
        self.size = others.size + sum(part.resting.orders.nbytes + len(part.last.payload) * part.rows for part in parts)

    def _plan(self, key: bytes, parts: list[_Part], first: int) -> int:
        """Plan the blocks of a key with sequences from `first` on. Return the next sequence."""
        rows = _MOST_ROWS
        for part in parts:
            if rows >= _MOST_ROWS:
                self._planned.append(_Planned(key, first, []))
                rows = 0
            self._planned[-1].parts.append(part)
            rows += part.rows
            first += part.rows
        return first

    def __iter__(self) -> Iterator[Block]:
        yield from self._others
        for planned in self._planned:
            yield self._block(planned)

    def _block(self, planned: _Planned) -> Block:
        topics: dict[bytes, int] = {}
        index, payloads, sizes, times = list[int](), list[bytes](), [0], list[int]()
        for part in planned.parts:
            made = self._rest(part.resting)
            kinds = made[:, self._type_offset].tolist()
            index += [topics.setdefault(part.of_type.get(kind, part.last).topic, len(topics)) for kind in kinds]
            payloads.append(made.tobytes())
            sizes += [made.shape[1]] * len(made)
            times += [part.last.ts_event] * len(made)
        return Block.encode(
            [*topics],
            index,
            PayloadColumns(b"".join(payloads), ts_event=times, offsets=numpy.cumsum(sizes)),
            HeaderFields(
                key_rule=self._key_rule,
                slice_id=self._slice_id,
                schema_id=self._schema_id,
                epoch=self._epoch,
                sequence=planned.first,
                ts_out=self._ts_out,
            ),
            key=planned.key,
        )
