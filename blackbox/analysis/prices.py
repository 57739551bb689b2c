"""The trades and the quotes of a recorded day, whatever feed it is of: as its schema declares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions
from pyspark.sql.types import StructType

from blackbox.analysis.quotes import with_both_sides
from blackbox.archive.recording import Recording
from blackbox.feed.schema import QuoteFields, Schema, TradeFields

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_BASE: Final = ("symbol", "ts_event", "slice", "sequence")


def recorded_trades(spark: SparkSession, day: str | Path, on_damage: str = "error") -> DataFrame | None:
    """The trades of a recorded day; None when its schema declares none.

    Columns: `symbol`, `ts_event`, `slice`, `sequence`, `price`, `size`. Price and size are of the fields' types,
    doubles where they stand in text. Trades of no size are left out. Where several types tell the same trades
    (`TradeFields.rank`), they are of each symbol those of the first one that has any. A trade that tells only which
    order it filled has that order's price; null if the order was entered before the recording began.

    `on_damage` is the data source's `onDamage`. Raises JournalError when there is no such day.
    """
    found = typed_trades(spark, day, Recording.open(day).schema, on_damage)
    return None if found is None else found.drop("type", "rank")


def recorded_quotes(spark: SparkSession, day: str | Path, on_damage: str = "error") -> DataFrame | None:
    """The quotes of a recorded day, as `recorded_trades`; columns `bid_price`, `bid_size`, `ask_price`, `ask_size`.

    An absent side has a price of 0 or null. Where the feed tells a side at a time, each quote has both, as far as they
    are known (`with_both_sides`).
    """
    found = typed_quotes(spark, day, Recording.open(day).schema, on_damage)
    return None if found is None else found.drop("type", "rank")


def typed_trades(spark: SparkSession, day: str | Path, schema: Schema, on_damage: str) -> DataFrame | None:
    """`recorded_trades`, and beside them of which `type` they are, and its `rank`."""
    frames = []
    for each in schema.trades:
        names = {"size": each.size, **({"_only": each.only[0]} if each.only else {})}
        names |= {"price": each.price} if each.price is not None else {"_order": str(each.order)}
        frame = _columns(spark, day, schema, each.type, names, on_damage)
        if each.order is not None:
            entered = _orders(spark, day, schema, on_damage)
            frame = frame.join(
                entered,
                frame["symbol"].eqNullSafe(entered["_symbol"]) & (frame["_order"] == entered["_number"]),
                "left",
            )
        if each.only is not None:
            frame = frame.where(functions.col("_only") == functions.lit(each.only[1]))
        frames.append(_told(frame.where("size > 0").select(*_BASE, "price", "size"), each))
    return _first_of_each(frames, schema.trades)


def _orders(spark: SparkSession, day: str | Path, schema: Schema, on_damage: str) -> DataFrame:
    """The orders that were entered: `_symbol`, `_number`, `price`."""
    frames = []
    for each in schema.orders:
        names = {"_number": each.number, "price": each.price}
        frame = _columns(spark, day, schema, each.type, names, on_damage)
        frames.append(frame.select(functions.col("symbol").alias("_symbol"), "_number", "price"))
    return _together(frames)


def typed_quotes(spark: SparkSession, day: str | Path, schema: Schema, on_damage: str) -> DataFrame | None:
    """`recorded_quotes`, and what `typed_trades` has besides."""
    frames = []
    for each in schema.quotes:
        names = {name: getattr(each, name) for name in ("bid_price", "bid_size", "ask_price", "ask_size")}
        frame = _columns(spark, day, schema, each.type, names, on_damage)
        frames.append(_told(with_both_sides(frame) if each.one_sided else frame, each))
    return _first_of_each(frames, schema.quotes)


def _first_of_each(frames: list[DataFrame], fields: Sequence[TradeFields | QuoteFields]) -> DataFrame | None:
    """Of each symbol the rows of the lowest rank that it has; None without any frame."""
    if not frames:
        return None
    rows = _together(frames)
    if len({each.rank for each in fields}) == 1:
        return rows
    lowest = rows.groupBy(functions.col("symbol").alias("_symbol")).agg(functions.min("rank").alias("_rank"))
    same = functions.col("symbol").eqNullSafe(functions.col("_symbol")) & (
        functions.col("rank") == functions.col("_rank")
    )
    return rows.join(lowest, same, "left_semi")


def _told(frame: DataFrame, fields: TradeFields | QuoteFields) -> DataFrame:
    return frame.withColumns({"type": functions.lit(fields.type), "rank": functions.lit(fields.rank)})


def _together(frames: list[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.unionByName(other), frames)


def _columns(
    spark: SparkSession, day: str | Path, schema: Schema, kind: str, names: Mapping[str, str], on_damage: str
) -> DataFrame:
    """What every message has, and the fields of a message type by their new names."""
    reader = spark.read.format("blackbox").option("onDamage", on_damage)
    if schema.json is not None:
        texts = reader.schema("symbol string, ts_event bigint, slice int, sequence bigint, type string, payload binary")
        return _of_json(texts.load(str(day)).where(functions.col("type") == kind), schema.json, names)
    reader = reader.option("records", schema.character(kind))
    wanted = {*_BASE, *names.values()}
    chosen = [field for field in reader.load(str(day)).schema if field.name in wanted]
    frame = reader.schema(StructType(chosen)).load(str(day))
    return frame.select(*_BASE, *(functions.col(name).alias(alias) for alias, name in names.items()))


def _of_json(texts: DataFrame, within: str, names: Mapping[str, str]) -> DataFrame:
    """Fields of the JSON document with which each payload ends, as doubles."""
    text = functions.regexp_extract(functions.col("payload").cast("string"), r"(?s)\{.*", 0)
    parsed = texts.select(*_BASE, functions.try_parse_json(text).alias("_document"))

    def member(name: str) -> Column:
        # By paths, since they tell `b` from `B`, as columns do not.
        paths = f"$.{within}.{name}", f"$.{name}"
        return functions.coalesce(*(functions.try_variant_get("_document", path, "double") for path in paths))

    return parsed.select(*_BASE, *(member(name).alias(alias) for alias, name in names.items()))
