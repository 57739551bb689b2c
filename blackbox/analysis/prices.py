"""The trades and the quotes of recorded days, whatever feed they are of: as their schema declares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from pyspark.sql import functions
from pyspark.sql.types import NullType, StructType

from blackbox.analysis.inputs import DAY
from blackbox.analysis.quotes import with_both_sides
from blackbox.archive.export.ticks import INTEGER, NUMBER
from blackbox.archive.recording import Recording
from blackbox.archive.recordings import check_one_schema
from blackbox.feed.schema import QuoteFields, Schema, TradeFields
from blackbox.feed.schema_document import SchemaDocument
from blackbox.spark.days import days_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Paths = str | Path | Sequence[str | Path]
"""Days, feeds with their days, roots with feeds, or patterns for such, as `load` of the data source takes them."""

_PLACE: Final = ("ts_event", "epoch", "slice", "sequence")
_BASE: Final = (*DAY, "symbol", *_PLACE)
_SIDES: Final = ("bid", "ask")


def recorded_trades(
    spark: SparkSession, paths: Paths, on_damage: str = "error", broken: bool = False
) -> DataFrame | None:
    """Return the trades of recorded days; None when their schema declares none.

    Each day is read as if it was alone. Left out are:

    - messages that are no trades (`TradeFields.only`), and trades without a size;
    - trades that the venue took back (`Schema.breaks`), unless `broken`;
    - repetitions: trades of the same symbol, id, price and size as an earlier one of the day, by time, then `epoch`,
      `slice` and `sequence`;
    - of each symbol, types that repeat those of the first type that it has (`TradeFields.rank`).

    `recording.trades` of the frames has the same trades, and counts what is left out.

    Columns: `feed`, `date`, `symbol`, `ts_event`, `epoch`, `slice`, `sequence`, `price`, `size`, `trade_id`. Price and
    size are of the fields' types, doubles where they stand in text. `trade_id` is the venue's, null where it has none.
    A trade that tells only which order it filled has that order's price; null if the order was entered before the
    recording began.

    Args:
        spark: the session.
        paths: days, feeds or roots, as of `load` of the data source.
        on_damage: the data source's `onDamage`.
        broken: True: also the trades that the venue took back.

    Raises JournalError when there is no such day, ConfigError when the days have several schemas.
    """
    found = typed_trades(spark, paths, on_damage, broken)
    return None if found is None else found.drop("type", "rank")


def recorded_quotes(spark: SparkSession, paths: Paths, on_damage: str = "error") -> DataFrame | None:
    """Return the quotes of recorded days, as `recorded_trades`.

    Columns: those of `recorded_trades` up to `sequence`, then `bid_price`, `bid_size`, `ask_price`, `ask_size`. Price
    and size of an absent side are null. Where the feed sends one side at a time, each quote has both: each side is the
    last one known that day, in the order of the recording (`with_both_sides`).
    """
    found = typed_quotes(spark, paths, on_damage)
    return None if found is None else found.drop("type", "rank")


def typed_trades(spark: SparkSession, paths: Paths, on_damage: str, broken: bool = False) -> DataFrame | None:
    """Return `recorded_trades` with two more columns: their `type`, and its `rank`."""
    return _together([_trades(days, broken) for days in _days(spark, paths, on_damage) if days.schema.trades])


def typed_quotes(spark: SparkSession, paths: Paths, on_damage: str) -> DataFrame | None:
    """Return `recorded_quotes` with the two more columns of `typed_trades`."""
    return _together([_quotes(days) for days in _days(spark, paths, on_damage) if days.schema.quotes])


class _Days(NamedTuple):
    """Days that declare the same."""

    spark: SparkSession
    paths: list[str]
    schema: Schema
    on_damage: str

    def fields(self, kind: str, names: Mapping[str, str]) -> DataFrame:
        """Return what every message has, and the fields of a message type by their new names."""
        reader = self.spark.read.format("blackbox").option("onDamage", self.on_damage)
        if self.schema.json is not None:
            columns = "feed string, date date, symbol string, ts_event bigint, epoch bigint, slice int, sequence bigint"
            texts = reader.schema(f"{columns}, topic string, type string, payload binary").load(self.paths)
            return _of_json(texts.where(functions.col("type") == kind), self.schema.json, names)
        reader = reader.option("records", self.schema.character(kind))
        wanted = {*_BASE, "topic", *names.values()}
        chosen = [field for field in reader.load(self.paths).schema if field.name in wanted]
        frame = reader.schema(StructType(chosen)).load(self.paths)
        return frame.select(*_BASE, "topic", *(functions.col(name).alias(alias) for alias, name in names.items()))


def _days(spark: SparkSession, paths: Paths, on_damage: str) -> list[_Days]:
    found = days_of([str(path) for path in ([paths] if isinstance(paths, str | Path) else paths)])
    recordings = [Recording.open(day) for day in found]
    check_one_schema(recordings)
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
        frame = days.fields(each.type, names)
        if each.id is None:
            frame = frame.withColumn("trade_id", functions.lit(None))
        if each.order is not None:
            frame = frame.join(_orders(days), [*DAY, "symbol", "_number"], "left")
        if each.only is not None:
            value = functions.lit(each.only[1] if schema.json is None else _json_text(each.only[1]))
            # A JSON document without the member counts.
            counts = functions.col("_only") == value
            frame = frame.where(counts if schema.json is None else counts | functions.col("_only").isNull())
        frame = _told(frame.where("size > 0").select(*_BASE, "topic", "price", "size", "trade_id"), each)
        frames.append(frame)
    rows = _once(_first_of_each(frames, schema.trades))
    return rows if broken else _without_broken(rows, days)


def _orders(days: _Days) -> DataFrame:
    """Return the orders that were entered, each number of a symbol and day once: `_number`, `price`."""
    frames = [days.fields(each.type, {"_number": each.number, "price": each.price}) for each in days.schema.orders]
    rows = reduce(lambda one, other: one.unionByName(other), frames)
    first = functions.min_by("price", functions.struct(*_PLACE)).alias("price")
    return rows.groupBy(*DAY, "symbol", "_number").agg(first)


def _once(rows: DataFrame) -> DataFrame:
    """Leave out repetitions of trades with an id. All of their columns are in the group, or tell their place."""
    kind = rows.schema["trade_id"].dataType
    if isinstance(kind, NullType):
        return rows.withColumn("trade_id", functions.lit(None).cast("bigint")).drop("topic")
    alone = functions.when(functions.col("trade_id").isNull(), functions.struct("epoch", "slice", "topic", "sequence"))
    own = "price", "size", "trade_id"
    first = functions.min(functions.struct(*_PLACE, "type")).alias("_first")
    found = rows.groupBy(*DAY, "symbol", *own, "rank", alone.alias("_alone")).agg(first)
    return found.select(*DAY, "symbol", *(f"_first.{name}" for name in _PLACE), *own, "_first.type", "rank")


def _without_broken(rows: DataFrame, days: _Days) -> DataFrame:
    """Leave out the trades that the venue took back, whenever it did."""
    for each in days.schema.breaks:
        parts = {"trade_id": each.id, "price": each.price, "size": each.size}
        named = {f"_{part}": name for part, name in parts.items() if name is not None}
        same = [*DAY, "symbol", *(part.removeprefix("_") for part in named)]
        taken_back = days.fields(each.type, named).select(
            *(functions.col(f"_{name}" if f"_{name}" in named else name).alias(f"_broken_{name}") for name in same)
        )
        equal = [functions.col(name).eqNullSafe(functions.col(f"_broken_{name}")) for name in same]
        equal.append(functions.col("trade_id").isNotNull())
        # They are few.
        rows = rows.join(functions.broadcast(taken_back), reduce(lambda one, other: one & other, equal), "left_anti")
    return rows


def _quotes(days: _Days) -> DataFrame:
    frames = []
    for each in days.schema.quotes:
        names = {f"{side}_{part}": getattr(each, f"{side}_{part}") for side in _SIDES for part in ("price", "size")}
        frame = days.fields(each.type, names)
        sides = {}
        for side in _SIDES:
            price, size = functions.col(f"{side}_price"), functions.col(f"{side}_size")
            price = price if each.absent is None else functions.nullif(price, functions.lit(each.absent))
            sides[f"{side}_price"] = price
            sides[f"{side}_size"] = functions.when(price.isNotNull(), size)
        frame = frame.select(*_BASE, *(column.alias(name) for name, column in sides.items()))
        if each.one_sided:
            frame = with_both_sides(frame, time=None, ties=("slice", "epoch", "sequence"))
        frames.append(_told(frame, each))
    return _first_of_each(frames, days.schema.quotes)


def _first_of_each(frames: list[DataFrame], fields: Sequence[TradeFields | QuoteFields]) -> DataFrame:
    """Return of each symbol and day the rows of the lowest rank that it has."""
    rows = reduce(lambda one, other: one.unionByName(other), frames)
    if len({each.rank for each in fields}) == 1:
        return rows
    lowest = rows.groupBy(*DAY, "symbol").agg(functions.min("rank").alias("rank"))
    return rows.join(lowest, [*DAY, "symbol", "rank"], "left_semi")


def _told(frame: DataFrame, fields: TradeFields | QuoteFields) -> DataFrame:
    return frame.withColumns({"type": functions.lit(fields.type), "rank": functions.lit(fields.rank)})


def _together(frames: list[DataFrame]) -> DataFrame | None:
    return reduce(lambda one, other: one.unionByName(other), frames) if frames else None


def _of_json(texts: DataFrame, within: str, names: Mapping[str, str]) -> DataFrame:
    """Return fields of the JSON document with which each payload ends: numbers as doubles, ids as integers."""
    text = functions.regexp_extract(functions.col("payload").cast("string"), r"(?s)\{.*", 0)
    parsed = texts.select(*_BASE, "topic", functions.try_parse_json(text).alias("_document"))

    def member(alias: str, name: str) -> Column:
        # By paths, since they tell `b` from `B`, as columns do not.
        paths = f"$.{within}.{name}", f"$.{name}"
        value = functions.coalesce(*(functions.try_variant_get("_document", path, "string") for path in paths))
        if alias == "_only":
            return value
        is_id = alias.endswith("trade_id")
        pattern, kind = (INTEGER, "bigint") if is_id else (NUMBER, "double")
        number = functions.when(value.rlike(rf"\A(?:{pattern})\z"), value.try_cast(kind))
        return number if is_id else functions.when(functions.abs(number) < functions.lit(float("inf")), number)

    return parsed.select(*_BASE, "topic", *(member(alias, name).alias(alias) for alias, name in names.items()))


def _json_text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
