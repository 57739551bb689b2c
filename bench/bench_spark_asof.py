"""As-of join of each trade with its last quote, for 500 symbols, recorded and in Parquet.

recording ==one compiled pass a slice==> rows of Spark        rivals: union + last(ignorenulls) over a window in Spark,
2 slices, local[2]; every column of the result is computed     Spark's own operator; polars and DuckDB on Parquet

BLACKBOX_BENCH_ROWS are a third trades and two thirds quotes: 20000000 for the figures of a large day.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy
import pyarrow
import pyarrow.compute
import pytest
from blackbox_feeds.iex import TOPS16
from pyspark.sql import Window, functions
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, expect
from bench.measure.results import Kind
from bench.spark.queries import INSTALLED
from bench.spark.trades import ROWS
from blackbox import Feed, Publisher, Recorder, analysis

if TYPE_CHECKING:
    import polars
    from pyspark.sql import DataFrame, SparkSession

TRADES = ROWS // 3
QUOTES_PER_TRADE = 2
SYMBOLS = 500
PART = 300_000
START = 1_499_693_400 * 10**9
QUOTE = ("bid_size", "bid_price", "ask_price", "ask_size")
OURS = ("asof_recorded", "asof_join, Parquet")
COLUMNS = ("symbol", "ts_event", "price", "size", *QUOTE)


def _publish(publisher: Publisher) -> None:
    """Publish two quotes and a trade in turn, with symbols by 1/rank and rising times."""
    random = numpy.random.default_rng(7)
    weights = 1 / numpy.arange(1, SYMBOLS + 1)
    topics = tuple(b"S%03d.%c" % (i, kind) for kind in b"QT" for i in range(SYMBOLS))
    sizes = {kind: TOPS16.dtype(kind).itemsize for kind in "QT"}
    for first in range(0, TRADES * (QUOTES_PER_TRADE + 1), PART):
        count = min(PART, TRADES * (QUOTES_PER_TRADE + 1) - first)
        symbols = random.choice(SYMBOLS, count, p=weights / weights.sum()).astype(numpy.int32)
        is_trade = numpy.arange(first, first + count) % (QUOTES_PER_TRADE + 1) == QUOTES_PER_TRADE
        times = START + (first + numpy.arange(count)) * 1_000
        prices = 100_000 + random.integers(0, 2_000, count)
        records = {}
        for kind, rows in (("Q", ~is_trade), ("T", is_trade)):
            made: Any = numpy.zeros(int(rows.sum()), TOPS16.dtype(kind))
            made["message_type"], made["timestamp"] = kind, times[rows]
            for name in ("price", "bid_price", "ask_price"):
                if name in made.dtype.names:
                    made[name] = prices[rows] + (name == "ask_price") * 100
            for name in ("size", "bid_size", "ask_size"):
                if name in made.dtype.names:
                    made[name] = random.integers(1, 500, len(made))
            records[kind] = made
        lengths = numpy.where(is_trade, sizes["T"], sizes["Q"])
        offsets = numpy.concatenate(([0], numpy.cumsum(lengths)))
        payloads = numpy.empty(int(offsets[-1]), numpy.uint8)
        for kind, rows in (("Q", ~is_trade), ("T", is_trade)):
            places = offsets[:-1][rows][:, None] + numpy.arange(sizes[kind])
            payloads[places] = records[kind].view(numpy.uint8).reshape(-1, sizes[kind])
        publisher.publish_many(topics, symbols + SYMBOLS * is_trade.astype(numpy.int32), payloads, times, offsets)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record trades and quotes in two slices by symbol."""
    feed = msgspec.structs.replace(Feed.local("asof", slices=2), schema="iex_tops16")
    recorder = Recorder(feed, tmp_path_factory.mktemp("asof"), fsync="never")
    with Publisher(feed, when_full="wait") as publisher:
        recorder.start()
        _publish(publisher)
        publisher.flush()
    recorder.run(until_end=True, timeout=120.0)
    return Path(recorder.directory)


def union_and_window(trades: DataFrame, quotes: DataFrame) -> DataFrame:
    """Join by a union and a window, as usually written in Spark."""
    window = Window.partitionBy("symbol").orderBy("ts_event", "sequence")
    both = trades.unionByName(quotes, allowMissingColumns=True)
    before = window.rowsBetween(Window.unboundedPreceding, 0)
    for name in QUOTE:
        both = both.withColumn(name, functions.last(name, ignorenulls=True).over(before))
    return both.where("price is not null").select(*COLUMNS)


def by_spark(trades: DataFrame, quotes: DataFrame) -> DataFrame:
    """Join by Spark's own operator, which has no public method in Python yet."""
    quotes = quotes.drop("sequence").withColumnsRenamed({"ts_event": "quoted", "symbol": "of"})
    return trades._joinAsOf(quotes, "ts_event", "quoted", on=trades.symbol == quotes.of, how="left").select(*COLUMNS)


def seconds(make: Callable[[], DataFrame]) -> float:
    """Return million trades a second, computing all columns."""
    started = time.perf_counter()
    make().write.format("noop").mode("overwrite").save()
    return TRADES / 1e6 / (time.perf_counter() - started)


def by_polars(path: Path) -> polars.DataFrame:
    """Join the Parquet files with polars."""
    import polars

    trades, quotes = (polars.read_parquet(path / kind / "*.parquet").sort("ts_event") for kind in "TQ")
    return trades.join_asof(quotes.drop("sequence"), on="ts_event", by="symbol", check_sortedness=False)


def by_duckdb(path: Path) -> pyarrow.Table:
    """Join the Parquet files with DuckDB."""
    import duckdb

    trades, quotes = (f"read_parquet('{path / kind}/*.parquet')" for kind in "TQ")
    with duckdb.connect() as connection:
        query = f"SELECT t.*, {', '.join(QUOTE)} FROM {trades} t ASOF LEFT JOIN {quotes} q USING (symbol, ts_event)"
        return connection.sql(query).to_arrow_table()


def table_rate(join: Callable[[Path], Any], path: Path, answer: tuple[int, ...]) -> float:
    """Return million trades a second into a table in memory; check its rows and sums."""
    started = time.perf_counter()
    table = join(path)
    seconds = time.perf_counter() - started
    found = table if isinstance(table, pyarrow.Table) else table.to_arrow()
    sums = (pyarrow.compute.sum(found[name]).as_py() for name in COLUMNS[2:])
    expect("rows and sums", (len(found), *sums), answer)
    return TRADES / 1e6 / seconds


@pytest.mark.timeout(1_800)
def test_asof(benchmark: BenchmarkFixture, spark: SparkSession, recording: Path, tmp_path: Path) -> None:
    """Each contender finds the same quotes."""

    def recorded(kind: str) -> DataFrame:
        names = ["symbol", "ts_event", "sequence", *(("price", "size") if kind == "T" else QUOTE)]
        read = spark.read.format("blackbox").option("messageType", kind).option("prices", "integer")
        return read.load(str(recording)).select(names)

    def parquet(kind: str) -> DataFrame:
        return spark.read.parquet(str(tmp_path / kind))

    for kind in "TQ":
        recorded(kind).write.parquet(str(tmp_path / kind))
    contenders: dict[str, Any] = {
        "asof_recorded": lambda: analysis.asof_recorded(spark, recording, "T", "Q", COLUMNS, prices="integer"),
        "union + window, recording": lambda: union_and_window(recorded("T"), recorded("Q")),
        "union + window, Parquet": lambda: union_and_window(parquet("T"), parquet("Q")),
        "asof_join, Parquet": lambda: analysis.asof_join(
            parquet("T").drop("sequence"), parquet("Q"), ties=["sequence"]
        ).select(*COLUMNS),
        "Spark's own operator, Parquet": lambda: by_spark(parquet("T"), parquet("Q")),
    }
    sums = [functions.sum(functions.coalesce(name, functions.lit(0))) for name in COLUMNS[2:]]
    answers = {name: make().agg(functions.count("*"), *sums).first() for name, make in contenders.items()}
    assert len(set(answers.values())) == 1, answers
    contest = Contest(
        f"as-of join, {TRADES:,} trades x {TRADES * QUOTES_PER_TRADE:,} quotes", "M trades/s", topology=__doc__
    )
    for name, make in contenders.items():
        role: Kind = "ours" if name.startswith("asof") else "rival"
        contest.add(name, partial(seconds, make), role, versus=OURS if role == "rival" else ())
    (answer, *_) = map(tuple, answers.values())
    for engine, join in (("polars", by_polars), ("DuckDB", by_duckdb)):
        name = f"{engine}, Parquet"
        if INSTALLED[engine]:
            contest.add(name, partial(table_rate, join, tmp_path, answer), "rival", versus=OURS)
        else:
            contest.skip(name, f"{engine} is not installed")
    contest.run(benchmark)
    for ours in OURS:
        for row in contest.told().rows:
            if row.kind == "rival":
                contest.show(f"{ours} / {row.name}", f"{contest.ratio(ours, row.name):10.2f}")
