"""Days of the consolidated tape as frames with the data source's columns, read from the zips by polars."""

from __future__ import annotations

import datetime
import io
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import polars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NEW_YORK = ZoneInfo("America/New_York")
TRADE = ["ms", "price", "size", "exchange", "condition", "suspicious"]
QUOTE = ["ms", "bid_price", "bid_size", "ask_price", "ask_size", "exchange", "condition", "suspicious"]


def midnight(date: str) -> int:
    """Return midnight in New York, ns since the epoch."""
    return int(datetime.datetime.fromisoformat(date).replace(tzinfo=NEW_YORK).timestamp()) * 10**9


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
                (polars.col("ms").cast(polars.Int64) * 1_000_000 + midnight(date)).alias("ts_event"),
                polars.lit(0, polars.Int32).alias("slice"),
                (polars.int_range(polars.len(), dtype=polars.Int64) + number * 10**9).alias("sequence"),
                *(polars.col(name).cast(polars.Int64) for name in names if name.endswith(("price", "size"))),
            )
        )
    return polars.concat(days)


def first_rows(shared_data: Path, directory: Path) -> Path:
    """Write IBM's first 1,000 trades and 5,000 quotes of 2013-10-07 as files of the tape; return their directory."""
    directory.mkdir()
    for kind, count in (("trade", 1_000), ("quote", 5_000)):
        name = f"ibm_20131007_{kind}.zip"
        with zipfile.ZipFile(shared_data / "lean" / name) as whole, zipfile.ZipFile(directory / name, "w") as part:
            (member,) = whole.namelist()
            part.writestr(member, b"".join(whole.read(member).splitlines(keepends=True)[:count]))
    return directory


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
