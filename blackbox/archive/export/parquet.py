"""A day's messages as Parquet files that polars, duckdb, pandas and Spark read with the same columns.

    OUT/date=2026-11-20/slice=0/part-00000.parquet

The columns are those of the Spark data source. Date and slice are in the names of the directories.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Final, Literal, NamedTuple

import msgspec
import numpy
import pyarrow
from numpy.typing import NDArray
from pyarrow.parquet import ParquetWriter

from blackbox.archive.export.table import PART_ROWS, TEXT, Part, Pick, parts_of, texts
from blackbox.archive.files.day import as_journal_error, make_directory, sync_directory
from blackbox.block.batch.batch import Batch
from blackbox.block.columns.arrow import PRICE_DIGITS, float_column, micros_column, price_column, record_column
from blackbox.errors import ConfigError, JournalError
from blackbox.feed.feed import Feed
from blackbox.feed.schema.prices import Prices, check_prices
from blackbox.feed.schema.schema import DECIMALS, Schema
from blackbox.native.system.waits import result_of

Order = Literal["capture", "topic"]
"""Order of messages in a file: as captured, or by topic within each million messages."""

_ORDERS: Final = ("capture", "topic")
_GROUPS: Final = 8
"""Row groups of a part ordered by topic: each group has few topics."""
_ZSTD_LEVEL: Final = 3
_MICROS: Final = pyarrow.timestamp("us", "UTC")
_BASE: Final = (
    pyarrow.field("feed", TEXT, nullable=False),
    pyarrow.field("topic", TEXT, nullable=False),
    pyarrow.field("symbol", TEXT, nullable=False),
    pyarrow.field("type", TEXT),
    pyarrow.field("ts_event", pyarrow.int64(), nullable=False),
    pyarrow.field("ts_out", pyarrow.int64(), nullable=False),
    pyarrow.field("ts_recv", pyarrow.int64(), nullable=False),
    pyarrow.field("event_time", _MICROS),
    pyarrow.field("out_time", _MICROS, nullable=False),
    pyarrow.field("recv_time", _MICROS, nullable=False),
    pyarrow.field("epoch", pyarrow.int64(), nullable=False),
    pyarrow.field("sequence", pyarrow.int64(), nullable=False),
)
_PAYLOAD: Final = pyarrow.field("payload", pyarrow.binary())
_TAKEN: Final = {"date", "slice", *(field.name for field in _BASE)}
_RISING: Final = ("ts_event", "event_time", "sequence")
"""Columns whose values grow slowly: they are delta-encoded."""


class ParquetDay(msgspec.Struct, frozen=True, kw_only=True):
    """Result of writing a day."""

    path: Path
    """The day's directory."""
    messages: int
    files: int
    row_groups: int
    file_bytes: int


class Content(NamedTuple):
    """Content of a day's files."""

    feed: Feed
    date: str
    schema: Schema
    message_type: str | None = None
    """Message type to write as fields instead of payloads."""
    prices: Prices = "decimal"
    order: Order = "capture"

    def check(self) -> None:
        """Raise ConfigError for invalid prices or order, or a message type that the schema lacks."""
        check_prices(self.prices)
        if self.order not in _ORDERS:
            raise ConfigError(f"order was {self.order!r}, expected one of: {', '.join(_ORDERS)}")
        if self.message_type is not None:
            self.schema.dtype(self.message_type)


def write_day(
    out: Path, content: Content, slices: Mapping[int, Iterable[Batch]], progress: Callable[[int], object] | None = None
) -> ParquetDay:
    """Write a day: see `Recording.to_parquet`. `slices` has the messages of each slice, in order."""
    content.check()
    out = out.absolute()
    day = out / f"date={content.date}"
    if day.exists():
        raise JournalError(f"{day} exists, expected a day that is not there yet")
    writer = _Writer(content, progress)
    try:
        make_directory(out)
        # Next to OUT: readers of OUT look into every directory in it.
        with TemporaryDirectory(".new", f".{out.name}.{content.date}.", out.parent, ignore_cleanup_errors=True) as own:
            draft = Path(own) / day.name
            draft.mkdir()
            for slice_id, batches in slices.items():
                writer.write(draft / f"slice={slice_id}", batches)
            draft.rename(day)
            sync_directory(out)
    except OSError as error:
        raise as_journal_error(error, f"{day} cannot be written") from error
    return ParquetDay(
        path=day,
        messages=writer.messages,
        files=writer.files,
        row_groups=writer.row_groups,
        file_bytes=writer.file_bytes,
    )


class _Writer:
    """Writes the files of one day and counts them."""

    def __init__(self, content: Content, progress: Callable[[int], object] | None) -> None:
        self._columns = ParquetColumns(content)
        self._content, self._progress = content, progress
        self.messages = self.files = self.row_groups = self.file_bytes = 0

    def write(self, directory: Path, batches: Iterable[Batch]) -> None:
        """Write a file of these messages, durably. Without messages the file has no rows."""
        directory.mkdir()
        group_rows = PART_ROWS // (_GROUPS if self._content.order == "topic" else 1)
        with (directory / "part-00000.parquet").open("xb") as file:
            with self._columns.writer(file) as writer:
                writer.add_key_value_metadata(self._columns.metadata())
                self._write_parts(writer, batches, group_rows)
            file.flush()
            os.fsync(file.fileno())
            self.files, self.file_bytes = self.files + 1, self.file_bytes + file.tell()

    def _write_parts(self, writer: ParquetWriter, batches: Iterable[Batch], group_rows: int) -> None:
        """Write each part in a thread, without the GIL, while the next one is read."""
        with ThreadPoolExecutor(1) as thread:
            packed = None
            for part, topics in self._parts(batches):
                batch = self._columns.batch(part, topics)
                if packed is not None:
                    result_of(packed)
                packed = thread.submit(writer.write_batch, batch, row_group_size=group_rows)
                self.messages += len(batch)
                self.row_groups += -(-len(batch) // group_rows)
                if self._progress is not None:
                    self._progress(self.messages)
            if packed is not None:
                result_of(packed)

    def _parts(self, batches: Iterable[Batch]) -> Iterator[tuple[Part, dict[bytes, int]]]:
        try:
            yield from parts_of(batches, self._columns.picks, PART_ROWS)
        except ValueError as error:  # a message's length differs from its type's
            raise JournalError(f"{self._content.feed.name} of {self._content.date}: {error}") from error


class ParquetColumns:
    """Makes the columns of a day's files, part by part."""

    def __init__(self, content: Content) -> None:
        self._content = content
        self.picks = None if content.message_type is None else (Pick.of_type(content.schema, content.message_type),)
        self._fields = [] if content.message_type is None else list(content.schema.arrow(content.message_type))
        own = [_own_field(field, content.prices) for field in self._fields]
        self.schema = pyarrow.schema([*_BASE, *(own or [_PAYLOAD])])

    def metadata(self) -> dict[str, str]:
        """Return what columns cannot say: the recording, and the decimals of integer prices."""
        content = self._content
        told = {"feed": content.feed.name, "date": content.date, "schema": content.schema.name}
        if content.message_type is not None:
            decimals = {field.name: _decimals(field) for field in self._fields if _decimals(field) is not None}
            told |= {"message_type": content.message_type, "decimals": json.dumps(decimals)}
        return {f"blackbox.{name}": text for name, text in told.items()}

    def writer(self, file: IO[bytes]) -> ParquetWriter:
        """Return a writer for one file."""
        return ParquetWriter(
            file,
            self.schema,
            compression="zstd",
            compression_level=_ZSTD_LEVEL,
            use_dictionary=[name for name in self.schema.names if name not in (*_RISING, _PAYLOAD.name)],
            column_encoding=dict.fromkeys(_RISING, "DELTA_BINARY_PACKED"),
            write_statistics=[name for name in self.schema.names if name != _PAYLOAD.name],
            store_schema=False,  # else some readers make categories of strings, different in each file
            store_decimal_as_integer=True,
            write_page_index=True,
        )

    def batch(self, part: Part, topics: dict[bytes, int]) -> pyarrow.RecordBatch:
        """Return the rows of a file's next part, in order."""
        _, topic, ts_event, ts_out, ts_recv, epoch, sequence = part.base()
        if self._content.message_type is None:
            rest = [part.payloads()]
        else:
            records = part.records(0)
            rest = [_own_column(records[field.name], field, kind) for field, kind in self._own()]
        parts = [self._content.feed.symbol_rule.split(name) for name in topics]
        columns = [
            texts(numpy.zeros_like(topic), [self._content.feed.name.encode()]),
            texts(topic, topics),
            texts(topic, [symbol for symbol, _ in parts]),
            texts(topic, [kind for _, kind in parts]),
            pyarrow.array(ts_event),
            pyarrow.array(ts_out),
            pyarrow.array(ts_recv),
            _event_time(ts_event),
            _micros(ts_out),
            _micros(ts_recv),
            pyarrow.array(epoch),
            pyarrow.array(sequence),
            *rest,
        ]
        batch = pyarrow.RecordBatch.from_arrays(columns, schema=self.schema)
        if self._content.order == "topic":
            names = list(topics)
            rank = numpy.empty(len(names), numpy.int64)
            rank[sorted(range(len(names)), key=names.__getitem__)] = numpy.arange(len(names))
            batch = batch.take(pyarrow.array(numpy.argsort(rank[topic], kind="stable")))
        return batch

    def _own(self) -> Iterator[tuple[pyarrow.Field, pyarrow.DataType]]:
        for field, own in zip(self._fields, list(self.schema)[len(_BASE) :], strict=True):
            yield field, own.type


def _decimals(field: pyarrow.Field) -> int | None:
    told = (field.metadata or {}).get(DECIMALS.encode())
    return None if told is None else int(told)


def _own_field(field: pyarrow.Field, prices: Prices) -> pyarrow.Field:
    """Return the column of a field. Spark reads neither ns timestamps nor unsigned 64-bit integers as longs."""
    name = f"record_{field.name}" if field.name in _TAKEN else field.name
    decimals = _decimals(field)
    if decimals is not None and prices != "integer":
        return pyarrow.field(
            name, pyarrow.float64() if prices == "float" else pyarrow.decimal128(PRICE_DIGITS, decimals)
        )
    kind = field.type
    if kind in (pyarrow.uint64(), pyarrow.timestamp("ns", "UTC")):
        kind = pyarrow.int64()
    elif pyarrow.types.is_timestamp(kind):
        kind = _MICROS
    elif pyarrow.types.is_fixed_size_binary(kind):
        kind = pyarrow.binary()
    return pyarrow.field(name, kind, nullable=field.nullable or kind == _MICROS)


def _own_column(values: NDArray[Any], field: pyarrow.Field, kind: pyarrow.DataType) -> pyarrow.Array:
    if pyarrow.types.is_decimal(kind):
        return price_column(values, field)
    if kind == pyarrow.float64() and pyarrow.types.is_integer(field.type):
        return float_column(values, field)
    if kind == _MICROS:
        return micros_column(values, field)
    column = record_column(values, field)
    return column.view(kind) if field.type == pyarrow.uint64() else column.cast(kind)


def _micros(ns: NDArray[numpy.int64]) -> pyarrow.Array:
    return pyarrow.array(ns // 1_000).cast(_MICROS)


def _event_time(ns: NDArray[numpy.int64]) -> pyarrow.Array:
    """Return `_micros`, null if the venue sent no time."""
    missing = ns == 0
    return pyarrow.array(ns // 1_000, mask=missing if missing.any() else None).cast(_MICROS)
