"""Days of the consolidated tape as frames with the data source's columns, read from the zips by polars."""

from __future__ import annotations

import datetime
import io
import zipfile
from pathlib import Path
from zoneinfo import ZoneInfo

import polars
from pyspark.sql import DataFrame, SparkSession

TRADE = ["ms", "price", "size", "exchange", "condition", "suspicious"]
QUOTE = ["ms", "bid_price", "bid_size", "ask_price", "ask_size", "exchange", "condition", "suspicious"]


def wall(text: str, zone: str = "America/New_York") -> int:
    """Return the time of a wall clock, ns since the epoch."""
    return int(datetime.datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp() * 1e6) * 1_000


def tape(shared_data: Path, symbol: str, kind: str, *dates: str) -> polars.DataFrame:
    """Return the rows of these days: prices as long, times as bigint ns."""
    days = []
    for number, date in enumerate(dates):
        path = shared_data / "lean" / f"{symbol.lower()}_{date.replace('-', '')}_{kind}.zip"
        with zipfile.ZipFile(path) as archive:
            data = archive.read(archive.namelist()[0])
        names = TRADE if kind == "trade" else QUOTE
        day = polars.read_csv(io.BytesIO(data), has_header=False, new_columns=names, infer_schema_length=None)
        days.append(
            day.select(
                polars.lit(symbol).alias("symbol"),
                polars.lit(kind).alias("type"),
                (polars.col("ms").cast(polars.Int64) * 1_000_000 + wall(date)).alias("ts_event"),
                polars.lit(0, polars.Int32).alias("slice"),
                (polars.int_range(polars.len(), dtype=polars.Int64) + number * 10**9).alias("sequence"),
                *(polars.col(name).cast(polars.Int64) for name in names if name.endswith(("price", "size"))),
            )
        )
    return polars.concat(days)


def to_spark(spark: SparkSession, frame: polars.DataFrame, path: Path) -> DataFrame:
    """Return the same rows as a Spark frame, through Parquet: in several parts, unordered."""
    path.mkdir()
    shuffled = frame.sample(fraction=1.0, shuffle=True, seed=7)
    half = len(shuffled) // 2
    shuffled[:half].write_parquet(path / "0.parquet")
    shuffled[half:].write_parquet(path / "1.parquet")
    return spark.read.parquet(str(path))


def from_spark(frame: DataFrame, *keys: str) -> polars.DataFrame:
    """Return the rows of a Spark frame, sorted."""
    found = polars.from_arrow(frame.toArrow())
    assert isinstance(found, polars.DataFrame)
    return found.sort(keys)
