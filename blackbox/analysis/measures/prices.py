"""Trades and quotes of recorded days of any feed, as declared by their schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import pyarrow
from pyspark.sql import functions
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DoubleType, LongType, NullType, StringType, StructType

from blackbox.analysis.measures.inputs import DAY
from blackbox.analysis.measures.quotes import with_both_sides
from blackbox.analysis.spark.columns import record_fields
from blackbox.analysis.spark.days import days_of
from blackbox.archive.export.members import columns_of, integer, number, reader_of, text
from blackbox.archive.recording import Recording
from blackbox.archive.recordings import check_schemas
from blackbox.errors import ConfigError
from blackbox.feed.schema.document import SchemaDocument
from blackbox.feed.schema.schema import QuoteFields, Schema, TradeFields

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Paths = str | Path | Sequence[str | Path]
"""Days, feeds with their days, roots with feeds, or patterns for them, as in `load` of the data source."""

_PLACE: Final = ("ts_event", "epoch", "slice", "sequence")
_BASE: Final = (*DAY, "symbol", *_PLACE)
_SIDES: Final = ("bid", "ask")


def recorded_trades(
    spark: SparkSession, paths: Paths, on_damage: str = "error", broken: bool = False
) -> DataFrame | None:
    """Return the trades of recorded days; None if their schemas declare none.

    Each day is processed on its own. Feeds may have several schemas: a column then has a type that holds all values,
    and a schema without trades adds none. Left out are:

    - messages that are not trades (`TradeFields.only`), and trades without a size or a price;
    - trades that the venue cancelled (`Schema.breaks`), unless `broken`;
    - duplicates: trades with the symbol, id, price and size of an earlier one of the day, by time, then `epoch`,
      `slice` and `sequence`;
    - for each symbol, types that repeat those of the first type that it has (`TradeFields.rank`).

    `recording.trades` of the frames has the same trades, and counts those left out.

    Columns: `feed`, `date`, `symbol`, `ts_event`, `epoch`, `slice`, `sequence`, `price`, `size`, `trade_id`. Price and
    size have the fields' types, doubles for text. `trade_id` is the venue's, null if there is none. A trade that only
    refers to an order has that order's price; null if the order was entered before the recording began.

    Args:
        spark: the session.
        paths: days, feeds or roots, as in `load` of the data source.
        on_damage: the data source's `onDamage`.
        broken: True to include the trades that the venue cancelled.

    Raises JournalError if a day does not exist, ConfigError if the days of one feed have several schemas, or ids are
    texts in one schema and numbers in another.
    """
    found = typed_trades(spark, paths, on_damage, broken)
    return None if found is None else found.drop("type", "rank")


def recorded_quotes(spark: SparkSession, paths: Paths, on_damage: str = "error") -> DataFrame | None:
    """Return the quotes of recorded days, as `recorded_trades` does.

    Columns: those of `recorded_trades` up to `sequence`, then `bid_price`, `bid_size`, `ask_price`, `ask_size`. Price
    and size of an absent side are null. If the feed sends one side at a time, each quote has both: the last values of
    that day, in the order of the recording (`with_both_sides`).
    """
    found = typed_quotes(spark, paths, on_damage)
    return None if found is None else found.drop("type", "rank")


def typed_trades(spark: SparkSession, paths: Paths, on_damage: str, broken: bool = False) -> DataFrame | None:
    """Return `recorded_trades` with two more columns: `type`, and its `rank`."""
    return _together([_trades(days, broken) for days in _days(spark, paths, on_damage) if days.schema.trades])


def typed_quotes(spark: SparkSession, paths: Paths, on_damage: str) -> DataFrame | None:
    """Return `recorded_quotes` with the two additional columns of `typed_trades`."""
    return _together([_quotes(days) for days in _days(spark, paths, on_damage) if days.schema.quotes])


class _Days(NamedTuple):
    """Days with the same schema."""

    spark: SparkSession
    paths: list[str]
    schema: Schema
    on_damage: str

    def fields(self, kind: str, names: Mapping[str, str]) -> DataFrame:
        """Return the common columns of messages, and the fields of a message type by their new names."""
        reader = self.spark.read.format("blackbox").option("onDamage", self.on_damage)
        if self.schema.json is not None:
            columns = "feed string, date date, symbol string, ts_event bigint, epoch bigint, slice int, sequence bigint"
            texts = reader.schema(f"{columns}, topic string, type string, payload binary").load(self.paths)
            return _of_json(texts.where(functions.col("type") == kind), self.schema.json, names)
        reader = reader.option("messageType", self.schema.character(kind))
        column_of = {field.name: field.column for field in record_fields(self.schema, kind, "decimal")}
        wanted = {*_BASE, "topic", *(column_of[name] for name in names.values())}
        chosen = [field for field in reader.load(self.paths).schema if field.name in wanted]
        frame = reader.schema(StructType(chosen)).load(self.paths)
        fields = (functions.col(column_of[name]).alias(alias) for alias, name in names.items())
        return frame.select(*_BASE, "topic", *fields)


def _days(spark: SparkSession, paths: Paths, on_damage: str) -> list[_Days]:
    found = days_of([str(path) for path in ([paths] if isinstance(paths, str | Path) else paths)])
    recordings = [Recording.open(day) for day in found]
    check_schemas(recordings)
    groups: dict[bytes, _Days] = {}
    for recording in recordings:
        document = msgspec.json.encode(SchemaDocument.of(recording.schema))
        group = groups.setdefault(document, _Days(spark, [], recording.schema, on_damage))
        group.paths.append(str(recording.path))
    return list(groups.values())


def _trades(days: _Days, broken: bool) -> DataFrame:
    schema = days.schema
    frames = []
    for each in schema.trades:
        names = {"size": each.size, **({"_only": each.only[0]} if each.only else {})}
        names |= {"price": each.price} if each.price is not None else {"_number": str(each.order)}
        names |= {"trade_id": each.id} if each.id is not None else {}
        frame = days.fields(each.message_type, names)
        if each.id is None:
            frame = frame.withColumn("trade_id", functions.lit(None))
        if each.order is not None:
            frame = frame.join(_orders(days), [*DAY, "symbol", "_number"], "left")
        if each.only is not None:
            value = functions.lit(each.only[1] if schema.json is None else text(each.only[1]))
            # A JSON document without the member counts.
            counts = functions.col("_only") == value
            frame = frame.where(counts if schema.json is None else counts | functions.col("_only").isNull())
        frame = frame.where("size > 0 and not isnan(size)")
        if each.order is None:
            frame = frame.where("price is not null and not isnan(price)")
        frame = _told(frame.select(*_BASE, "topic", "price", "size", "trade_id"), each)
        frames.append(frame)
    rows = _once(_first_of_each(frames, schema.trades))
    return rows if broken else _without_broken(rows, days)


def _orders(days: _Days) -> DataFrame:
    """Return the entered orders, one per symbol, day and number: `_number`, `price`."""
    frames = [
        days.fields(each.message_type, {"_number": each.number, "price": each.price}) for each in days.schema.orders
    ]
    rows = reduce(lambda one, other: one.unionByName(other), frames)
    first = functions.min_by("price", functions.struct(*_PLACE)).alias("price")
    return rows.groupBy(*DAY, "symbol", "_number").agg(first)


def _once(rows: DataFrame) -> DataFrame:
    """Drop duplicates of trades with an id. All of their columns are grouped by, or tell the position."""
    kind = rows.schema["trade_id"].dataType
    if isinstance(kind, NullType):
        return rows.withColumn("trade_id", functions.lit(None).cast("bigint")).drop("topic")
    alone = functions.when(functions.col("trade_id").isNull(), functions.struct("epoch", "slice", "topic", "sequence"))
    own = "price", "size", "trade_id"
    first = functions.min(functions.struct(*_PLACE, "type")).alias("_first")
    found = rows.groupBy(*DAY, "symbol", *own, "rank", alone.alias("_alone")).agg(first)
    return found.select(*DAY, "symbol", *(f"_first.{name}" for name in _PLACE), *own, "_first.type", "rank")


def _without_broken(rows: DataFrame, days: _Days) -> DataFrame:
    """Drop the trades that the venue cancelled, at any time."""
    for each in days.schema.breaks:
        parts = {"trade_id": each.id, "price": each.price, "size": each.size}
        named = {f"_{part}": name for part, name in parts.items() if name is not None}
        same = [*DAY, "symbol", *(part.removeprefix("_") for part in named)]
        taken_back = days.fields(each.message_type, named).select(
            *(functions.col(f"_{name}" if f"_{name}" in named else name).alias(f"_broken_{name}") for name in same)
        )
        equal = [functions.col(name).eqNullSafe(functions.col(f"_broken_{name}")) for name in same]
        equal.append(functions.col("trade_id").isNotNull())
        # There are few.
        rows = rows.join(functions.broadcast(taken_back), reduce(lambda one, other: one & other, equal), "left_anti")
    return rows


def _quotes(days: _Days) -> DataFrame:
    frames = []
    for each in days.schema.quotes:
        names = {f"{side}_{part}": getattr(each, f"{side}_{part}") for side in _SIDES for part in ("price", "size")}
        frame = days.fields(each.message_type, names)
        sides = {}
        for side in _SIDES:
            price, size = (
                functions.when(~functions.isnan(name), functions.col(name))
                for name in (f"{side}_price", f"{side}_size")
            )
            price = price if each.absent is None else functions.nullif(price, functions.lit(each.absent))
            sides[f"{side}_price"] = price
            sides[f"{side}_size"] = functions.when(price.isNotNull(), size)
        frame = frame.select(*_BASE, *(column.alias(name) for name, column in sides.items()))
        if each.one_sided:
            frame = with_both_sides(frame, time=None, ties=("slice", "epoch", "sequence"))
        frames.append(_told(frame, each))
    return _first_of_each(frames, days.schema.quotes)


def _first_of_each(frames: list[DataFrame], fields: Sequence[TradeFields | QuoteFields]) -> DataFrame:
    """Return for each symbol and day the rows of the lowest rank that it has."""
    rows = reduce(lambda one, other: one.unionByName(other), frames)
    if len({each.rank for each in fields}) == 1:
        return rows
    lowest = rows.groupBy(*DAY, "symbol").agg(functions.min("rank").alias("rank"))
    return rows.join(lowest, [*DAY, "symbol", "rank"], "left_semi")


def _told(frame: DataFrame, fields: TradeFields | QuoteFields) -> DataFrame:
    return frame.withColumns({"type": functions.lit(fields.message_type), "rank": functions.lit(fields.rank)})


def _together(frames: list[DataFrame]) -> DataFrame | None:
    """Union the rows of days of all schemas. Spark widens numbers, but does not mix texts and numbers as ids."""
    ids = {frame.schema["trade_id"].dataType for frame in frames if "trade_id" in frame.columns}
    if StringType() in ids and len(ids) > 1:
        raise ConfigError(
            "trade_id was a text in one schema and a number in another, expected one type: read them apart"
        )
    return reduce(lambda one, other: one.unionByName(other), frames) if frames else None


def _of_json(texts: DataFrame, within: str, names: Mapping[str, str]) -> DataFrame:
    """Return members of the JSON document that ends each payload: numbers as doubles, ids as integers.

    Python workers parse them with the same code as the frames: Spark itself parses some documents differently.
    """
    rows = texts.select(*_BASE, "topic", "payload")
    made = StructType(rows.schema.fields[:-1])
    for alias in names:
        made = made.add(alias, _KINDS.get(alias, DoubleType()))
    return rows.mapInArrow(_Members(within, dict(names), to_arrow_schema(made)).batches, made)


class _Members(NamedTuple):
    """The pass over the payloads, which are the last column."""

    within: str
    names: dict[str, str]
    schema: pyarrow.Schema

    def batches(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        """Replace the payloads by their members."""
        read = reader_of(self.within, list(self.names.values()))
        for batch in batches:
            columns = columns_of(read, batch.column("payload").to_pylist(), len(self.names))
            made = [
                pyarrow.array([_READ.get(alias, number)(value) for value in column], self.schema.field(alias).type)
                for alias, column in zip(self.names, columns, strict=True)
            ]
            yield pyarrow.RecordBatch.from_arrays([*batch.columns[:-1], *made], schema=self.schema)


_KINDS: Final = {"_only": StringType(), "trade_id": LongType(), "_trade_id": LongType()}
_READ: Final = {"_only": text, "trade_id": integer, "_trade_id": integer}
