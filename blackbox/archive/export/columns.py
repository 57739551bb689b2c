"""Messages as readable columns: names as strings, prices in currency units, times in the market's time zone."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute

from blackbox.archive.export.table import TEXT, Part, Pick, Picks, parts_of, texts
from blackbox.block.batch.batch import Batch
from blackbox.block.columns.arrow import PRICE_DIGITS, float_column, price_column, record_column
from blackbox.errors import ConfigError
from blackbox.feed.feed import Feed
from blackbox.feed.schema.prices import Prices, check_prices
from blackbox.feed.schema.schema import ABSENT, DECIMALS
from blackbox.timestamps import zone_of

if TYPE_CHECKING:
    import pandas
    import polars

    from blackbox.archive.data_frames import Times

_TIMES: Final = ("timestamp", "integer")
_MESSAGE_TYPE: Final = "message_type"
_OF_DAY: Final = (pyarrow.field("feed", TEXT, nullable=False), pyarrow.field("date", pyarrow.date32(), nullable=False))


class Columns:
    """Makes record batches of messages. `schema` has their columns."""

    def __init__(
        self,
        feed: Feed,
        picks: Picks | None,
        prices: Prices = "float",
        times: Times = "timestamp",
        zone: str | None = None,
        told_apart: bool = False,
    ) -> None:
        """`picks`: the messages with fields; None for all, with payloads. `told_apart` adds a column of their labels.

        Raises ConfigError for invalid prices, times or zone, or if columns of one name have no common type.
        """
        check_prices(prices)
        if times not in _TIMES:
            raise ConfigError(f"times was {times!r}, expected one of: {', '.join(_TIMES)}")
        zone = feed.time_zone if zone is None else zone
        try:
            zone_of(zone)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        self._rule, self._picks, self._prices = feed.symbol_rule, picks, prices
        self._time = pyarrow.timestamp("ns", zone) if times == "timestamp" else None
        time = self._time or pyarrow.int64()
        base = [
            pyarrow.field("slice", pyarrow.uint16(), nullable=False),
            pyarrow.field("topic", TEXT, nullable=False),
            pyarrow.field("symbol", TEXT, nullable=False),
            pyarrow.field("type", TEXT),
            pyarrow.field("ts_event", time, nullable=self._time is not None),
            pyarrow.field("ts_out", time, nullable=False),
            pyarrow.field("ts_recv", time, nullable=False),
            pyarrow.field("epoch", pyarrow.int64(), nullable=False),
            pyarrow.field("sequence", pyarrow.int64(), nullable=False),
        ]
        if told_apart:
            base.append(pyarrow.field(_MESSAGE_TYPE, TEXT, nullable=False))
        self._base, self._told_apart = len(base), told_apart
        if picks is None:
            self.schema = pyarrow.schema([*base, pyarrow.field("payload", pyarrow.binary())])
            return
        self._taken = {field.name for field in base}
        own = [self._own_field(field) for pick in picks for _, field in pick.columns]
        self.schema = pyarrow.schema([*base, *_unified(own, len(picks))])

    def chunks(self, batches: Iterable[Batch], rows: int) -> Iterator[pyarrow.RecordBatch]:
        """Yield the messages, at most `rows` at a time. Raises ValueError if one has the wrong length for its type."""
        if rows < 1:
            raise ValueError(f"rows were {rows}, expected at least 1")
        for part, topics in parts_of(batches, self._picks, rows):
            whole = self._batch(part, topics)
            for start in range(0, part.rows, rows):
                yield whole.slice(start, rows)

    def _batch(self, part: Part, topics: dict[bytes, int]) -> pyarrow.RecordBatch:
        slices, topic, ts_event, ts_out, ts_recv, epoch, sequence = part.base()
        split = [self._rule.split(name) for name in topics]
        columns = [
            pyarrow.array(slices),
            texts(topic, topics),
            texts(topic, [symbol for symbol, _ in split]),
            texts(topic, [kind for _, kind in split]),
            self._times(ts_event, none=0),
            self._times(ts_out),
            self._times(ts_recv),
            pyarrow.array(epoch),
            pyarrow.array(sequence),
        ]
        if self._told_apart:
            labels = [pick.label.encode() for pick in self._picks or ()]
            columns.append(texts(part.pick_of_row(), labels))
        if self._picks is None:
            columns.append(part.payloads())
        else:
            made = [self._made(pick, part.records(index)) for index, pick in enumerate(self._picks)]
            columns += [
                part.merged([_column(each, field, len(part.records(index))) for index, each in enumerate(made)])
                for field in list(self.schema)[self._base :]
            ]
        return pyarrow.RecordBatch.from_arrays(columns, schema=self.schema)

    def _made(self, pick: Pick, records: NDArray[Any]) -> dict[str, pyarrow.Array]:
        """Return a pick's columns by name."""
        made = {}
        for field, column in pick.columns:
            name = self._name(column)
            made[name] = self._converted(records[field], column, self._own_field(column).type)
            if column.name in pick.valid:
                made[name] = compute.if_else(pyarrow.array(records[pick.valid[column.name]]), made[name], None)
        return made

    def _times(self, ns: NDArray[Any], none: int | None = None) -> pyarrow.Array:
        if self._time is None:
            return pyarrow.array(ns)
        missing = ns == none if none is not None else None
        return pyarrow.array(ns, mask=missing if missing is not None and missing.any() else None).cast(self._time)

    def _name(self, column: pyarrow.Field) -> str:
        return f"record_{column.name}" if column.name in self._taken else str(column.name)

    def _own_field(self, field: pyarrow.Field) -> pyarrow.Field:
        """Return the column of a field, with the requested price and time types."""
        kind, metadata = field.type, field.metadata or {}
        decimals = metadata.get(DECIMALS.encode())
        if decimals is not None and self._prices != "integer":
            price = pyarrow.float64() if self._prices == "float" else pyarrow.decimal128(PRICE_DIGITS, int(decimals))
            return pyarrow.field(self._name(field), price)
        nullable = field.nullable or ABSENT.encode() in metadata
        if pyarrow.types.is_timestamp(kind):
            kind = pyarrow.timestamp(kind.unit, self._time.tz) if self._time is not None else pyarrow.int64()
        return pyarrow.field(self._name(field), kind, nullable=nullable, metadata=metadata)

    def _converted(self, values: NDArray[Any], column: pyarrow.Field, kind: pyarrow.DataType) -> pyarrow.Array:
        if pyarrow.types.is_decimal(kind):
            return price_column(values, column)
        if kind == pyarrow.float64() and pyarrow.types.is_integer(column.type):
            return float_column(values, column)
        made = record_column(values, column)
        return made.cast(kind) if pyarrow.types.is_timestamp(column.type) else made


def _column(made: dict[str, pyarrow.Array], field: pyarrow.Field, rows: int) -> pyarrow.Array:
    """Return one column of a pick; all null if the pick lacks it."""
    found = made.get(field.name)
    return pyarrow.nulls(rows, field.type) if found is None else found.cast(field.type)


def schema_of_days(schemas: Sequence[pyarrow.Schema]) -> pyarrow.Schema:
    """Return `feed`, `date`, and the frames' columns of several days, each of a type that holds all values.

    Raises ConfigError if there is no such type, or integer prices have different units.
    """
    for name in schemas[0].names:
        decimals = {(schema.field(name).metadata or {}).get(DECIMALS.encode()) for schema in schemas}
        if len(decimals) > 1:
            raise ConfigError(f"prices were 'long', but {name!r} has several units: expected 'float' or 'decimal'")
    own = _unified([field for schema in schemas for field in schema], len(schemas))
    return pyarrow.schema([*_OF_DAY, *own])


def of_day(chunk: pyarrow.RecordBatch, feed: str, date: datetime.date, schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    """Return a day's rows with the columns of `schema_of_days`."""
    told = [texts(numpy.zeros(len(chunk), numpy.int32), [feed.encode()]), pyarrow.repeat(date, len(chunk))]
    own = [chunk.column(field.name).cast(field.type) for field in list(schema)[len(_OF_DAY) :]]
    return pyarrow.RecordBatch.from_arrays([*told, *own], schema=schema)


def _unified(fields: Sequence[pyarrow.Field], picks: int) -> Iterator[pyarrow.Field]:
    """Yield each column once, of a type that holds the values of all picks. Nullable if a pick lacks it."""
    by_name: dict[str, list[pyarrow.Field]] = {}
    for field in fields:
        by_name.setdefault(field.name, []).append(field)
    for name, alike in by_name.items():
        kinds = list(dict.fromkeys(field.type for field in alike))
        kind = kinds[0]
        if len(kinds) > 1:
            try:
                plain = [pyarrow.schema([pyarrow.field(name, each)]) for each in kinds]
                kind = pyarrow.unify_schemas(plain, promote_options="permissive").field(0).type
            except (pyarrow.ArrowTypeError, pyarrow.ArrowInvalid):
                told = " and ".join(map(str, kinds))
                raise ConfigError(
                    f"field {name!r} was {told}, with no common type: read the message types separately"
                ) from None
        nullable = len(alike) < picks or any(field.nullable for field in alike)
        yield pyarrow.field(name, kind, nullable=nullable, metadata=alike[0].metadata if len(kinds) == 1 else None)


def table_of(columns: Columns, batches: Iterable[Batch], rows: int) -> pyarrow.Table:
    """Return all messages as one table in memory."""
    found = list(columns.chunks(batches, rows))
    return pyarrow.Table.from_batches(found, schema=columns.schema).unify_dictionaries()


def to_pandas(table: pyarrow.Table | pyarrow.RecordBatch) -> pandas.DataFrame:
    """Return a pandas data frame. Strings stay strings, and nullable integers stay integers.

    A column's dtype depends only on its field, so that frames of several message types can be joined.
    """
    import pandas

    kinds = {
        field.name: pandas.array([], dtype=str(field.type).replace("uint", "UInt").replace("int", "Int")).dtype
        for field in table.schema
        if field.nullable and pyarrow.types.is_integer(field.type)
    }
    frame: pandas.DataFrame = table.drop_columns(list(kinds)).to_pandas()
    for index, field in enumerate(table.schema):
        if pyarrow.types.is_dictionary(field.type):
            frame[field.name] = frame[field.name].astype(object)
        elif field.name in kinds:
            column = table.column(field.name).to_pandas(types_mapper=lambda _, kind=kinds[field.name]: kind)
            frame.insert(index, field.name, column)
    return frame


def to_polars(table: pyarrow.Table | pyarrow.RecordBatch) -> polars.DataFrame:
    """Return a polars data frame."""
    import polars

    return polars.DataFrame(polars.from_arrow(table))
