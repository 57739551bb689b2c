"""Days of real consolidated tape, recorded and aggregated in Spark, compared with pandas on the source files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas
import pytest
from blackbox_feeds.tape import Tape
from pyspark.sql import functions as f

from tests.recorded import record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRADES = ["ms", "price", "size", "exchange", "condition", "suspicious"]
QUOTES = ["ms", "bid_price", "bid_size", "ask_price", "ask_size", "exchange", "condition", "suspicious"]
FILES = "ibm_*_{}.zip"


@pytest.fixture(scope="module")
def tape(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> Path:
    source, out = tmp_path_factory.mktemp("lean"), tmp_path_factory.mktemp("tape")
    for path in (shared_data / "lean").glob(FILES.format("*")):
        (source / path.name).symlink_to(path)
    return record(out, "tape", lambda: Tape(source))


def by_file(shared_data: Path, kind: str, columns: list[str]) -> dict[tuple[str, int], pandas.DataFrame]:
    """The rows of each file of a kind, by symbol and day."""
    found = {}
    for path in sorted((shared_data / "lean").glob(FILES.format(kind))):
        symbol, day, _ = path.stem.split("_")
        found[symbol.upper(), int(day)] = pandas.read_csv(
            path, names=columns, dtype={"exchange": str, "condition": str}
        )
    return found


def sums(spark: SparkSession, tape: Path, kind: str, **columns: Any) -> dict[tuple[str, int], dict[str, int]]:
    frame = spark.read.format("blackbox").option("messageType", kind).option("prices", "integer").load(str(tape))
    day = f.date_format(f.from_utc_timestamp("event_time", "America/New_York"), "yyyyMMdd").cast("int")
    table = frame.groupBy("symbol", day.alias("day")).agg(*(value.alias(name) for name, value in columns.items()))
    return {(row["symbol"], row["day"]): {name: row[name] for name in columns} for row in table.collect()}


def test_trades_equal_those_of_the_files(spark: SparkSession, tape: Path, shared_data: Path) -> None:
    wanted = {
        place: {
            "rows": len(rows),
            "shares": int(rows["size"].sum()),
            "turnover": int((rows["price"] * rows["size"]).sum()),
            "ms": int(rows["ms"].sum()),
            "suspicious": int(rows["suspicious"].sum()),
            "exchanges": int(rows["exchange"].nunique()),
        }
        for place, rows in by_file(shared_data, "trade", TRADES).items()
    }
    found = sums(
        spark,
        tape,
        "T",
        rows=f.count("*"),
        shares=f.sum("size"),
        turnover=f.sum(f.col("price") * f.col("size")),
        ms=f.sum("time_ms"),
        suspicious=f.sum("suspicious"),
        exchanges=f.countDistinct("exchange"),
    )
    assert found == wanted


def test_quotes_equal_those_of_the_files(spark: SparkSession, tape: Path, shared_data: Path) -> None:
    names = ["bid_price", "bid_size", "ask_price", "ask_size"]
    wanted = {
        place: {
            "rows": len(rows),
            **{name: int(rows[name].fillna(0).sum()) for name in names},
            "no_bid": int((rows["bid_price"] == 0).sum()),
        }
        for place, rows in by_file(shared_data, "quote", QUOTES).items()
    }
    found = sums(
        spark,
        tape,
        "Q",
        rows=f.count("*"),
        **{name: f.sum(name) for name in names},
        no_bid=f.count_if(f.col("bid_price").isNull()),
    )
    assert found == wanted
