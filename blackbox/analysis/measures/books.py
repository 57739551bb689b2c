"""Order books from recorded messages: the best levels after each change, by a compiled pass over each symbol's day.

rows ==shuffle by symbol, sort==> partitions ==compiled, batch by batch, keeping the book==> changes
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy
import pyarrow
from numpy.typing import NDArray
from pyspark.sql import functions
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BooleanType, DecimalType, LongType, StructType

from blackbox.analysis.measures.inputs import check_free, groups_of, require
from blackbox.block.columns.arrow import PRICE_DIGITS
from blackbox.book.book import COUNTERS, counters, lose_sync, new_book, roomier
from blackbox.book.feed import BookFeed, load_book_feed, run
from blackbox.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PLACE: Final = ("ts_event", "ts_recv", "sequence")
SYNCED: Final = "synced"
_PART_ROWS: Final = 16_384
"""Rows applied at a time; their changes must fit in memory."""
_SIDES: Final = ("bid", "ask")
_PARTS: Final = ("price", "size", "count")


def order_book(
    messages: DataFrame,
    depth: int = 1,
    schema: str = "itch50",
    by: Sequence[str] | None = None,
    order: Sequence[str] = PLACE,
    payload: str = "payload",
) -> DataFrame:
    """Return a row for each change of the best `depth` levels; with depth 1, a table of best bids and offers.

    A change is a different price or size after an event of the venue: one message or, for `iex_deep10` and `dbn`,
    several. A book begins empty for each `by`. Crossed books are left as they are, and trading sessions are ignored.
    Columns of an absent side or level are null. `order_book_counts` reports messages that could not be applied.

    `synced` is False from the first message that does not fit the book, until the venue clears it or sends a snapshot;
    books of `dbn` begin with one. Messages that a recording lacks are not detected here: see `gaps`.

    Args:
        messages: rows with these columns, all messages of the symbols wanted. Types that change no book are ignored.
        depth: number of levels of each side to report.
        schema: schema of the messages, as registered in the entry-point group `blackbox.books`.
        by: columns that identify a book. Default: `symbol`, and those of `feed` and `date` that exist.
        order: columns that order the messages of one book: by the venue's times, which never go back, then as captured.
            If a feed's keys (`key_bytes`) are longer than a symbol and its dot, a recording does not have the order of
            messages of one symbol and one nanosecond.
        payload: the column of the venue's bytes.

    Columns: `by`, `ts_event` and those of `order` of the message, `bid_price`, `bid_size`, `bid_count` (orders),
    `ask_price`, `ask_size`, `ask_count`, `synced`; with more depth also `bid_prices`, `bid_sizes`, ... , arrays of the
    existing levels, best first. Prices are decimals.

    Raises ConfigError if a column is missing, `depth` is below 1, or the schema is unknown.
    """
    if depth < 1:
        raise ConfigError(f"depth was {depth}, expected 1 or more")
    feed, by = load_book_feed(schema), groups_of(by, messages)
    places = list(dict.fromkeys(["ts_event", *order]))
    rows = _in_order(messages, feed, by, places, order, payload)
    made = StructType([field for field in rows.schema if field.name != payload])
    price = DecimalType(PRICE_DIGITS, feed.decimals)
    kinds = dict(zip(_PARTS, (price, LongType(), LongType()), strict=True))
    for side in _SIDES:
        for part in _PARTS:
            made = made.add(f"{side}_{part}", kinds[part])
    made = made.add(SYNCED, BooleanType())
    for side in _SIDES if depth > 1 else ():
        for part in _PARTS:
            made = made.add(f"{side}_{part}s", ArrayType(kinds[part], containsNull=False))
    return rows.mapInArrow(_Changes(schema, tuple(by), payload, depth, to_arrow_schema(made)).batches, made)


def order_book_counts(
    messages: DataFrame,
    schema: str = "itch50",
    by: Sequence[str] | None = None,
    order: Sequence[str] = PLACE,
    payload: str = "payload",
) -> DataFrame:
    """Return statistics of the books of `order_book`, a row for each `by`. Same arguments.

    Columns: `by`; `messages`, of types that change books; `orders` resting at the end; `added`, `taken` (executed or
    cancelled), `removed`, `replaced`; `unknown`: messages about an order or level that does not exist; `duplicate`:
    orders added under an existing reference; `too_many`: more shares taken than resting; `forgotten`: always 0 here;
    `locked` and `crossed`: events after which bid and ask were equal, or the bid was higher; `refused`: messages that
    do not match the form of their type; `unsynced`: number of times that missing messages were detected.
    """
    feed, by = load_book_feed(schema), groups_of(by, messages)
    rows = _in_order(messages, feed, by, order, order, payload)
    made = StructType([field for field in rows.schema if field.name in by])
    for name in ("messages", *COUNTERS):
        made = made.add(name, LongType())
    return rows.mapInArrow(_Counts(schema, tuple(by), payload, to_arrow_schema(made)).batches, made)


def _in_order(
    messages: DataFrame, feed: BookFeed, by: Sequence[str], places: Sequence[str], order: Sequence[str], payload: str
) -> DataFrame:
    require(messages, [*by, *places, payload], "messages")
    check_free(by, (*(f"{side}_{part}" for side in _SIDES for part in _PARTS), SYNCED, "messages", *COUNTERS))
    kinds = [functions.lit(kind.encode("latin-1")) for kind in feed.message_types]
    wanted = functions.substring(payload, feed.type_offset + 1, 1).isin(kinds)
    rows = messages.where(wanted).select(*dict.fromkeys([*by, *places, payload]))
    return rows.repartition(*by).sortWithinPartitions(*by, *order)


class _Part(NamedTuple):
    """Consecutive rows of one book in a batch."""

    first: int
    last: int
    is_new: bool
    """True if the book begins with them."""


class _Books:
    """Processes the rows of one partition, book by book."""

    def __init__(self, schema: str, by: tuple[str, ...], payload: str, depth: int) -> None:
        self._feed = load_book_feed(schema)
        self._apply = self._feed.address
        self._by, self._payload, self._depth = by, payload, depth
        self._before: pyarrow.RecordBatch | None = None
        self.book = self._new_book()
        self._shown = numpy.zeros((2, depth, 3), numpy.int64)

    def parts(self, batch: pyarrow.RecordBatch) -> Iterator[_Part]:
        """Split a batch where the book changes. A new book is empty."""
        keys = batch.select(list(self._by))
        changes = numpy.zeros(batch.num_rows, numpy.bool_)
        for column in keys.columns:
            codes = column.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
            changes[1:] |= codes[1:] != codes[:-1]
        changes[0] = self._before is None or keys.slice(0, 1).to_pylist() != self._before.to_pylist()
        self._before = keys.slice(batch.num_rows - 1, 1)
        starts = numpy.flatnonzero(changes)
        starts = starts if changes[0] else numpy.concatenate(([0], starts))
        for first, last in zip(starts.tolist(), [*starts[1:].tolist(), batch.num_rows], strict=True):
            if changes[first]:
                self.book = self._new_book()
                self._shown[:] = 0
            yield _Part(first, last, bool(changes[first]))

    def _new_book(self) -> NDArray[numpy.int64]:
        book = new_book()
        if not self._feed.begins_empty:
            lose_sync(book.ctypes.data)
        return book

    def changes(
        self, data: NDArray[Any], offsets: NDArray[Any], part: _Part
    ) -> Iterator[tuple[NDArray[numpy.int64], NDArray[numpy.int64], NDArray[numpy.bool_]]]:
        """Apply the rows of a part. Yield the rows that changed the best levels, the levels, and `synced`."""
        at = part.first
        while at < part.last:
            end = min(part.last, at + _PART_ROWS)
            rows = numpy.empty(end - at, numpy.int64)
            tops = numpy.empty((end - at, 2, self._depth, 3), numpy.int64)
            synced, shown = numpy.empty(end - at, numpy.bool_), self._shown
            at, many = run(self._apply, self.book, data, offsets, at, end, self._depth, shown, rows, tops, synced)
            if at < end:
                self.book = roomier(self.book)
            if many:
                yield rows[:many], tops[:many], synced[:many]


class _Changes(NamedTuple):
    """The pass of `order_book` over one partition."""

    feed: str
    by: tuple[str, ...]
    payload: str
    depth: int
    schema: pyarrow.Schema

    def batches(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        books = _Books(self.feed, self.by, self.payload, self.depth)
        for batch in batches:
            if not batch.num_rows:
                continue
            data, offsets = payloads_of(batch.column(self.payload))
            found = [each for part in books.parts(batch) for each in books.changes(data, offsets, part)]
            if found:
                rows, tops, synced = (numpy.concatenate(each) for each in zip(*found, strict=True))
                yield self._batch(batch, rows, tops, synced)

    def _batch(
        self,
        batch: pyarrow.RecordBatch,
        rows: NDArray[numpy.int64],
        tops: NDArray[numpy.int64],
        synced: NDArray[numpy.bool_],
    ) -> pyarrow.RecordBatch:
        columns = batch.drop_columns([self.payload]).take(pyarrow.array(rows)).columns
        there = tops[:, :, :, 1] > 0
        for side in range(2):
            for part in range(3):
                kind = self.schema.field(len(columns)).type
                columns.append(_typed(tops[:, side, 0, part], ~there[:, side, 0], kind))
        columns.append(pyarrow.array(synced))
        for side in range(2) if self.depth > 1 else ():
            ends = numpy.concatenate(([0], numpy.cumsum(there[:, side].sum(axis=1)))).astype(numpy.int32)
            for part in range(3):
                kind = self.schema.field(len(columns)).type
                values = _typed(tops[:, side, :, part][there[:, side]], None, kind.value_type)
                columns.append(pyarrow.ListArray.from_arrays(pyarrow.array(ends), values, type=kind))
        return pyarrow.RecordBatch.from_arrays(columns, schema=self.schema)


class _Counts(NamedTuple):
    """The pass of `order_book_counts` over one partition."""

    feed: str
    by: tuple[str, ...]
    payload: str
    schema: pyarrow.Schema

    def batches(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        books = _Books(self.feed, self.by, self.payload, 1)
        rows: list[dict[str, Any]] = []
        for batch in batches:
            if not batch.num_rows:
                continue
            data, offsets = payloads_of(batch.column(self.payload))
            for part in books.parts(batch):
                if part.is_new:
                    rows.append({**batch.select(list(self.by)).slice(part.first, 1).to_pylist()[0], "messages": 0})
                for _ in books.changes(data, offsets, part):
                    pass
                rows[-1]["messages"] += part.last - part.first
                rows[-1] |= counters(books.book)
        if rows:
            yield pyarrow.RecordBatch.from_pylist(rows, schema=self.schema)


def payloads_of(column: pyarrow.Array) -> tuple[NDArray[numpy.uint8], NDArray[numpy.int64]]:
    """Return the bytes of a binary column, and the offsets of its values."""
    column = column.cast(pyarrow.binary())  # Spark may use large_binary
    _, offsets, data = column.buffers()
    places = numpy.frombuffer(offsets, numpy.int32)[column.offset : column.offset + len(column) + 1]
    return numpy.frombuffer(data, numpy.uint8), places.astype(numpy.int64)


def _typed(values: NDArray[numpy.int64], absent: NDArray[numpy.bool_] | None, kind: pyarrow.DataType) -> pyarrow.Array:
    if not pyarrow.types.is_decimal(kind):
        return pyarrow.array(values, kind, mask=absent)
    wide = numpy.zeros((len(values), 2), numpy.int64)
    wide[:, 0] = values
    wide[:, 1] = values >> 63
    valid = None if absent is None else pyarrow.py_buffer(numpy.packbits(~absent, bitorder="little"))
    return pyarrow.Array.from_buffers(kind, len(values), [valid, pyarrow.py_buffer(wide)])
