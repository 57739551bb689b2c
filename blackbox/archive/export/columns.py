"""Messages as readable columns: names as strings, prices in currency units, times in the market's time zone."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Final

import numpy
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute

from blackbox.archive.export.table import TEXT, Pick, Picks, Records, Rows, TopicTexts, parts_of, texts
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
_TIME_COLUMNS: Final = ("ts_event", "ts_out", "ts_recv")
_BASE: Final = ("slice", "topic", "symbol", "type", *_TIME_COLUMNS, "epoch", "sequence")
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
        """`picks`: the message types whose fields become columns. None: all messages, each with its payload.

        `told_apart`: add the column `message_type`, with the label of each message's pick.

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
        self.rule, self.picks, self._prices = feed.symbol_rule, picks, prices
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
        self._told_apart = told_apart
        if picks is None:
            self.schema = pyarrow.schema([*base, pyarrow.field("payload", pyarrow.binary())])
            return
        self._taken = {field.name for field in base}
        own = [self._own_field(field) for pick in picks for _, field in pick.columns]
        self.schema = pyarrow.schema([*base, *_unified(own, len(picks))])

    def narrowed(self, names: Sequence[str]) -> Columns:
        """Return a copy that makes only the columns `names`, in that order."""
        found = copy(self)
        found.schema = pyarrow.schema([self.schema.field(name) for name in names])
        return found

    def chunks(self, batches: Iterable[Batch], rows: int) -> Iterator[pyarrow.RecordBatch]:
        """Yield the messages, at most `rows` at a time. Raises ValueError if one has the wrong length for its type."""
        if rows < 1:
            raise ValueError(f"rows were {rows}, expected at least 1")
        for part, topics in parts_of(batches, self.picks, rows):
            texts_of = TopicTexts(self.rule)
            texts_of.add(topics)
            whole = self.batch(part, texts_of)
            for start in range(0, part.rows, rows):
                yield whole.slice(start, rows)

    def batch(self, part: Rows, topics: TopicTexts) -> pyarrow.RecordBatch:
        """Return the columns of some rows."""
        own = [name for name in self.schema.names if not self._is_common(name)]
        made: list[tuple[dict[str, pyarrow.Array], int]] = []
        if own and self.picks is not None:
            records = [part.records(index) for index in range(len(self.picks))]
            made = [(self._made(pick, each, own), len(each)) for pick, each in zip(self.picks, records, strict=True)]
        columns = []
        for field in self.schema:
            if field.name in ("topic", "symbol", "type"):
                columns.append(topics.column(field.name, part.column("topic")))
            elif field.name in _TIME_COLUMNS:
                columns.append(self._times(part.column(field.name), none=0 if field.name == "ts_event" else None))
            elif field.name in _BASE:
                columns.append(pyarrow.array(part.column(field.name)))
            elif self._is_common(field.name):
                columns.append(texts(part.pick_of_row(), [pick.label.encode() for pick in self.picks or ()]))
            elif self.picks is None:
                columns.append(part.payloads())
            else:
                columns.append(part.merged([_column(each, field, rows) for each, rows in made]))
        return pyarrow.RecordBatch.from_arrays(columns, schema=self.schema)

    def _is_common(self, name: str) -> bool:
        """Return True unless a column is the payload or a field."""
        return name in _BASE or (name == _MESSAGE_TYPE and self._told_apart)

    def _made(self, pick: Pick, records: Records, names: Sequence[str]) -> dict[str, pyarrow.Array]:
        """Return those of a pick's columns that have one of the names."""
        made = {}
        for field, column in pick.columns:
            name = self._name(column)
            if name not in names:
                continue
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
    """Return the schema of a table of several days: `feed`, `date`, then all columns, of types that hold all values.

    Raises ConfigError if there is no such type, or integer prices have different units.
    """
    for name in schemas[0].names:
        decimals = {(schema.field(name).metadata or {}).get(DECIMALS.encode()) for schema in schemas}
        if len(decimals) > 1:
            raise ConfigError(f"prices were 'integer', but {name!r} has several units: expected 'float' or 'decimal'")
    own = _unified([field for schema in schemas for field in schema], len(schemas))
    return pyarrow.schema([*_OF_DAY, *own])


def schema_of_unlike_days(days: Sequence[tuple[str, pyarrow.Schema]], *, has_units: bool = False) -> pyarrow.Schema:
    """Return the common schema of named days whose columns or types differ, without `feed` and `date`.

    With `has_units`, timestamps must have one unit on all days. Raises ConfigError naming the day, the field and its
    types if there is no such type.
    """
    found: dict[str, tuple[str, pyarrow.Field]] = {}
    lacking = {field.name for _, schema in days for field in schema if not all(field.name in s.names for _, s in days)}
    for day, schema in days:
        for field in schema:
            before, known = found.setdefault(field.name, (day, field))
            try:
                units = {getattr(each.type, "unit", "") for each in (known, field)}
                if _decimals(known) != _decimals(field) or (has_units and len(units) > 1):
                    raise pyarrow.ArrowTypeError
                plain = [pyarrow.schema([pyarrow.field(field.name, each.type)]) for each in (known, field)]
                kind = pyarrow.unify_schemas(plain, promote_options="permissive").field(0).type
            except pyarrow.ArrowTypeError:
                raise ConfigError(
                    f"field {field.name!r} was {_typed(field)} on {day} and {_typed(known)} on {before}, which have no "
                    "common type: read these days separately"
                ) from None
            nullable = field.nullable or known.nullable or field.name in lacking
            found[field.name] = before, pyarrow.field(field.name, kind, nullable=nullable, metadata=known.metadata)
    return pyarrow.schema([field for _, field in found.values()])


def _decimals(field: pyarrow.Field) -> bytes | None:
    """Return the decimals of a column of integer prices."""
    decimals: bytes | None = (field.metadata or {}).get(DECIMALS.encode())
    return decimals


def _typed(field: pyarrow.Field) -> str:
    decimals = _decimals(field)
    return str(field.type) if decimals is None else f"{field.type} of {decimals.decode()} decimals"


def conformed(chunk: pyarrow.RecordBatch, schema: pyarrow.Schema, day: str) -> pyarrow.RecordBatch:
    """Return rows with the columns of `schema_of_unlike_days`. Raises ConfigError for a value that does not fit."""
    columns = []
    for field in schema:
        if field.name not in chunk.schema.names:
            columns.append(pyarrow.nulls(len(chunk), field.type))
            continue
        try:
            columns.append(chunk.column(field.name).cast(field.type))
        except pyarrow.ArrowInvalid as error:
            raise ConfigError(f"field {field.name!r} on {day} did not fit {field.type}: {error}") from error
    return pyarrow.RecordBatch.from_arrays(columns, schema=schema)


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
