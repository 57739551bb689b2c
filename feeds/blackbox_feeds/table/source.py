"""CSV and Parquet files as sources of messages, read in bounded memory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final, Required, Self, TypedDict, Unpack

import numpy
import pyarrow
from numpy.typing import NDArray
from pyarrow import csv
from pyarrow.parquet import ParquetFile

from blackbox.arguments import did_you_mean
from blackbox.block.columns.user_columns import columns_of, fields_of, pieces_of
from blackbox.errors import ConfigError, SourceError
from blackbox.feed.schema.pack import type_field
from blackbox.feed.schema.schema import Schema, load_schema
from blackbox.feed.source import Chunk, Source
from blackbox.numbers import counted
from blackbox.timestamps import zone_of
from blackbox_feeds.table.convert import TIME_UNITS, TimeUnit, as_field, as_text, as_times
from blackbox_feeds.table.rejected import Rejected, RejectedRows, convertible, rejected

_TIME: Final = "ts_event"
_TOPIC: Final = "topic"
_ROWS: Final = 65_536
_CSV_BYTES: Final = 8 << 20
_MOST_NOTES: Final = 10
_REQUIRED: Final = ("schema", "message_type")
_MANY_ROWS: Final = 1_000
"""Rows after which a file without a good row is not read further."""


class TableOptions(TypedDict, total=False):
    """How the rows of a file become messages."""

    schema: Required[str | Schema]
    """The schema of the records, or the name of a registered one."""
    message_type: Required[str]
    """The type of all rows."""
    columns: str | Mapping[str, str]
    """Names in the file by our names, which are `ts_event`, the fields, and the names in `topic`. As text
    "price=px,size=qty". Other columns have the same name in both."""
    topic: str
    """Template of the topics; `{type}` is the message type. Default: "{symbol}.{type}"."""
    time_unit: TimeUnit
    """Unit of numbers in the column of times; default: "ns". Texts and timestamps have their own."""
    zone: str
    """Time zone of times that have none. Default: UTC."""
    prices: str
    """"integer" if numbers in texts are the venue's integers. By default they are money, and only columns of an integer
    type are the venue's."""
    delimiter: str
    """Character between the values of a CSV file. Default: a comma."""


class TableFile(Source):
    """Rows of a file as messages of one type.

    Attribute: `rejected`, the rows left out of the last iteration, because a value is missing or does not fit.
    """

    _is_text = False
    """True if the columns are bytes that stand for text."""

    def __init__(self, path: str, **options: Unpack[TableOptions]) -> None:
        """Wrap a file. Raises ConfigError for a missing or invalid option."""
        known = TableOptions.__annotations__
        for name in [*options, *_REQUIRED]:
            if name not in known or name not in options:
                what = f"lacked {name!r}" if name in known else f"had {name!r}{did_you_mean(name, known)}"
                raise ConfigError(f"the options of {type(self).__name__} {what}, expected some of: {', '.join(known)}")
        self._path = path
        self._schema, self._type = load_schema(options["schema"]), options["message_type"]
        self._topic = topic = options.get("topic", "{symbol}.{type}")
        self._unit: TimeUnit = options.get("time_unit", "ns")
        self._zone, prices = options.get("zone", "UTC"), options.get("prices", "")
        self._delimiter = options.get("delimiter", ",")
        columns = options.get("columns", "")
        self._renamed = dict(columns) if isinstance(columns, Mapping) else _names(columns)
        self._is_integer_price = prices == "integer"
        self.rejected = RejectedRows()
        if self._unit not in TIME_UNITS:
            raise ConfigError(f"time_unit was {self._unit!r}, expected one of: {', '.join(TIME_UNITS)}")
        if prices not in ("", "integer"):
            raise ConfigError(f"prices was {prices!r}, expected 'integer', or nothing for money")
        try:
            zone_of(self._zone)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        dtype = self._schema.dtype(self._type)
        self._fields = {name: dtype[field] for name, field in fields_of(self._schema, self._type, ()).items()}
        filled = type_field(dtype, self._schema.type_offset)
        parts = [name for _, name in pieces_of(topic, self._type) if name is not None]
        self._needed = list(dict.fromkeys([_TIME, *parts, *(name for name in self._fields if name != filled)]))
        if unknown := [name for name in self._renamed if name not in self._needed]:
            near = did_you_mean(unknown[0], self._needed)
            raise ConfigError(f"columns had {unknown[0]!r}{near}, expected some of: {', '.join(self._needed)}")

    @classmethod
    def from_spec(cls, argument: str, **options: Any) -> Self:
        """Return a file with options of the command line."""
        texts: Any = {name: str(value) for name, value in options.items()}
        return cls(argument, **texts)

    @property
    def schema(self) -> Schema:
        """The schema of the payloads."""
        return self._schema

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._path!r})"

    @abstractmethod
    def _batches(self, names: list[str]) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows with some columns of the file, in order. Raises OSError, ArrowException."""

    @abstractmethod
    def _names_in_file(self) -> list[str]:
        """Return the columns of the file. Raises OSError, ArrowException."""

    def _row_of(self, index: int) -> int:
        """Return the number in the file of the row at an index of those that `_batches` yields."""
        return index + 1

    def chunks(self) -> Iterator[Chunk]:
        """Yield the messages of the rows that can be converted. Raises SourceError for another kind of file."""
        self.rejected, self.truncated, self.notes = RejectedRows(), None, ()
        topics = _Topics()
        done = good = 0
        try:
            for batch in _first_apart(self._batches(self._file_columns())):
                convert, reject = partial(self._chunk, topics), partial(self._reject, batch, done)
                for chunk in convertible(batch, convert, reject):
                    good += len(chunk.topic_index)
                    yield chunk
                done += len(batch)
                if not good and done >= _MANY_ROWS:
                    break  # probably a wrong option
        except (OSError, pyarrow.ArrowException) as error:
            raise SourceError(f"{self._path} cannot be read, after {done} rows: {error}") from error
        if self.rejected.count and not good:
            count = min(self.rejected.count, _MANY_ROWS)  # rows of the wrong length are found earlier
            raise SourceError(f"{self._path}: the first {count} rows were rejected, {self.rejected.rows[0]}")
        if self.rejected.count:
            self.rejected.rows.sort()
            self.truncated = f"{self._path}: {counted(self.rejected.count, 'row')} rejected"
            self.notes = tuple(f"{self._path}: {row}" for row in self.rejected.rows[:_MOST_NOTES])

    def _file_columns(self) -> list[str]:
        found = self._names_in_file()
        wanted = {self._renamed.get(name, name): name for name in self._needed}
        for column, name in wanted.items():
            if column not in found:
                near = did_you_mean(column, found)
                raise SourceError(
                    f"{self._path} lacked column {column!r} for {name!r}{near}, it has: {', '.join(found)}; "
                    f'name it by columns="{name}=..."'
                )
            if (times := found.count(column)) > 1:
                raise SourceError(f"{self._path} had column {column!r} {times} times, expected once: rename the others")
        return list(wanted)

    def _reject(self, batch: pyarrow.RecordBatch, before: int, index: int, error: str) -> None:
        """Count the row of a batch at an index; `before` rows were in earlier batches."""
        names = {name: self._renamed.get(name, name) for name in self._needed}
        self.rejected.add(lambda: rejected(self._row_of(before + index), batch.slice(index, 1), names, error))

    def _chunk(self, topics: _Topics, batch: pyarrow.RecordBatch) -> Chunk:
        """Return the messages of some rows. Raises ConfigError naming our column if a value does not fit."""
        made = {name: self._column(name, batch.column(self._renamed.get(name, name))) for name in self._needed}
        table = pyarrow.table(made)
        found = columns_of(table, self._schema, self._type, self._topic)
        payloads: NDArray[numpy.uint8] = found.payloads
        rows, width = payloads.shape
        return Chunk(
            topics.add(found.topics),
            topics.places(found.topics)[found.topic_index],
            found.ts_event,
            payloads.reshape(-1),
            numpy.arange(rows, dtype=numpy.int64) * width,
            numpy.full(rows, width, numpy.int32),
        )

    def _column(self, name: str, values: pyarrow.Array) -> pyarrow.Array:
        try:
            values = as_text(values) if self._is_text else values
            if name == _TIME:
                return as_times(values, self._unit, self._zone)
            if name not in self._fields:
                return as_text(values)
            return as_field(values, self._fields[name], is_integer_price=self._is_integer_price, zone=self._zone)
        except (ConfigError, pyarrow.ArrowException) as error:
            raise ConfigError(f"column {name!r}: {error}") from error


class Parquet(TableFile):
    """A Parquet file."""

    def _names_in_file(self) -> list[str]:
        with ParquetFile(self._path) as file:
            return list(file.schema_arrow.names)

    def _batches(self, names: list[str]) -> Iterator[pyarrow.RecordBatch]:
        with ParquetFile(self._path) as file:
            yield from file.iter_batches(_ROWS, columns=names)


class Csv(TableFile):
    """A CSV file with a header, perhaps compressed as its name says (.gz, .bz2, .zst, .lz4).

    A row with another number of columns that is not UTF-8 ends the file.
    """

    _is_text = True

    def __init__(self, path: str, **options: Unpack[TableOptions]) -> None:
        super().__init__(path, **options)
        self._malformed: list[int] = []
        """Row numbers of the rows with another number of columns, ascending."""
        if len(self._delimiter) != 1 or not 0 < ord(self._delimiter) < 0x80:
            raise ConfigError(f"delimiter was {self._delimiter!r}, expected one ASCII character")

    def _names_in_file(self) -> list[str]:
        parse = csv.ParseOptions(delimiter=self._delimiter, invalid_row_handler=lambda _: "skip")
        with csv.open_csv(self._path, csv.ReadOptions(block_size=_CSV_BYTES), parse) as reader:
            return list(reader.schema.names)

    def _batches(self, names: list[str]) -> Iterator[pyarrow.RecordBatch]:
        self._malformed.clear()
        # Bytes, so that a value that is no number or no UTF-8 rejects its row instead of the file.
        kinds = dict.fromkeys(names, pyarrow.binary())
        with csv.open_csv(
            self._path,
            csv.ReadOptions(use_threads=False, block_size=_CSV_BYTES),
            csv.ParseOptions(delimiter=self._delimiter, newlines_in_values=True, invalid_row_handler=self._skip),
            csv.ConvertOptions(column_types=kinds, include_columns=names, null_values=[""], strings_can_be_null=True),
        ) as reader:
            for batch in reader:
                for start in range(0, len(batch), _ROWS):
                    yield batch.slice(start, _ROWS)

    def _skip(self, row: csv.InvalidRow) -> str:
        number = row.number - 1  # the header is row 1
        self._malformed.append(number)
        reason = f"it had {row.actual_columns} columns, expected {row.expected_columns}"
        self.rejected.add(lambda: Rejected(number, "", repr(row.text)[:80], reason))
        return "skip"

    def _row_of(self, index: int) -> int:
        row = index + 1
        # Each malformed row before it, and before those, moves it by one.
        for number in self._malformed:
            if number > row:
                break
            row += 1
        return row


def _first_apart(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Yield batches that are not empty, the first rows by themselves, so that a wrong option is found soon."""
    done = 0
    for batch in batches:
        end = min(len(batch), max(0, _MANY_ROWS - done))
        yield from filter(len, (batch.slice(0, end), batch.slice(end)))
        done += len(batch)


class _Topics:
    """The topics of a file so far, numbered in order of appearance."""

    def __init__(self) -> None:
        self._topics: tuple[bytes, ...] = ()
        self._places: dict[bytes, int] = {}

    def add(self, topics: list[bytes]) -> tuple[bytes, ...]:
        """Add the new ones of some topics, and return all."""
        for topic in topics:
            self._places.setdefault(topic, len(self._places))
        if len(self._places) > len(self._topics):
            self._topics = tuple(self._places)
        return self._topics

    def places(self, topics: list[bytes]) -> NDArray[numpy.int32]:
        """Return the numbers of topics."""
        return numpy.array([*map(self._places.__getitem__, topics)], numpy.int32)


def _names(text: str) -> dict[str, str]:
    """Return the names of "price=px,size=qty". Raises ConfigError for another form."""
    found = {}
    for pair in filter(None, text.split(",")):
        ours, equals, theirs = pair.partition("=")
        if not ours or not theirs or not equals:
            raise ConfigError(f"columns was {text!r}, expected pairs as in price=px,size=qty")
        found[ours.strip()] = theirs.strip()
    return found
