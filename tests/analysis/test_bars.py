"""Bars and average prices against polars and plain Python: real days, session edges, empty minutes, clock changes."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars
import pytest
from polars import col
from pyspark.sql import DataFrame, SparkSession

from blackbox.analysis import Hours, count_bars, time_bars, twap, volume_bars, vwap
from tests.analysis.tape import from_spark, tape, to_spark, wall
from tests.examples import first_of

MINUTE = 60 * 10**9
DATES = ("2013-10-07", "2013-10-08", "2013-10-09")
BAR = [
    col("price").first().alias("open"),
    col("price").max().alias("high"),
    col("price").min().alias("low"),
    col("price").last().alias("close"),
    col("size").sum().alias("volume"),
    polars.len().cast(polars.Int64).alias("trades"),
    ((col("price") * col("size")).sum() / col("size").sum()).alias("vwap"),
]


@pytest.fixture(scope="module")
def days(shared_data: Path) -> polars.DataFrame:
    both = [tape(shared_data, "IBM", "trade", *DATES), tape(shared_data, "BAC", "trade", "2013-10-07")]
    return polars.concat(both).gather_every(20).sort("symbol", "ts_event", "slice", "sequence")


@pytest.fixture(scope="module")
def trades(spark: SparkSession, days: polars.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    return to_spark(spark, days, tmp_path_factory.mktemp("bars") / "trades").cache()


def same(found: polars.DataFrame, expected: polars.DataFrame) -> None:
    from polars.testing import assert_frame_equal

    assert len(found) > 0
    assert_frame_equal(found, expected.select(found.columns), rel_tol=1e-9, abs_tol=0.0)


def rows_of(spark: SparkSession, *rows: tuple[str, int, Any, Any]) -> DataFrame:
    """Return trades in the order of their rows: symbol, time in ns, price, size."""
    full = [(*row, 0, place) for place, row in enumerate(rows)]
    return spark.createDataFrame(
        full, "symbol string, ts_event bigint, price double, size bigint, slice int, sequence bigint"
    )


def test_sessions_of_real_days_with_empty_minutes(trades: DataFrame, days: polars.DataFrame) -> None:
    """Every session has 390 minutes, from its own trades alone; those without a trade repeat the previous close."""
    found = from_spark(time_bars(trades, "1m", hours=Hours(), fill="previous"), "symbol", "start").drop("start_time")
    opens = [(date, wall(date) + 570 * MINUTE) for date in DATES]
    minutes = polars.concat(
        [
            polars.DataFrame({"symbol": symbol, "session": date, "start": [opened + i * MINUTE for i in range(390)]})
            for symbol, sessions in (("IBM", opens), ("BAC", opens[:1]))
            for date, opened in sessions
        ]
    ).with_columns(col("session").str.to_date())
    start = (col("ts_event") - col("ts_event") % MINUTE).alias("start")
    bars = days.group_by("symbol", start, maintain_order=True).agg(BAR)
    expected = minutes.join(bars, on=["symbol", "start"], how="left").sort("symbol", "start")
    close = col("close").forward_fill().over("symbol", "session")
    expected = expected.with_columns(close).with_columns(
        *(polars.coalesce(name, "close").alias(name) for name in ("open", "high", "low")),
        col("volume").fill_null(0),
        col("trades").fill_null(0),
    )
    same(found, expected)
    assert len(found) == 4 * 390
    assert found["trades"].sum() < len(days)  # the tape has trades before the open and after the close


def test_bars_by_count_and_by_volume_and_vwap_of_real_days(trades: DataFrame, days: polars.DataFrame) -> None:
    place = polars.int_range(polars.len()).over("symbol")
    before = (col("size").cum_sum() - col("size")).over("symbol")
    times = [col("ts_event").first().alias("start"), col("ts_event").last().alias("end")]
    for bars, number in (
        (count_bars(trades, 50), place // 50),
        (volume_bars(trades, Decimal(25_000)), before // 25_000),
        (volume_bars(trades, 25_000.0), before // 25_000),
    ):
        expected = days.with_columns(number.alias("bar")).group_by("symbol", "bar", maintain_order=True)
        same(from_spark(bars, "symbol", "bar"), expected.agg(*times, *BAR).sort("symbol", "bar"))
    same(from_spark(vwap(trades), "symbol"), days.group_by("symbol").agg(BAR).sort("symbol"))


def test_trades_are_not_split(spark: SparkSession) -> None:
    rows = rows_of(spark, ("A", 1, 1.0, 60), ("A", 2, 2.0, 60), ("A", 3, 3.0, 10), ("A", 4, 4.0, 500), ("A", 5, 5.0, 1))
    found = from_spark(volume_bars(rows, 100), "bar")
    assert found["bar"].to_list() == [0, 1, 6]
    assert found["volume"].to_list() == [120, 510, 1]
    assert found["start"].to_list() == [1, 3, 5]


def plain_twap(days: polars.DataFrame, carry: bool) -> list[tuple[str, int, int, float]]:
    """Computed by the definition, trade by trade."""
    found = []
    for (symbol,), group in days.group_by("symbol", maintain_order=True):
        last = None
        intervals: dict[int, list[tuple[int, int]]] = {}
        for ts, price in group.select("ts_event", "price").iter_rows():
            intervals.setdefault(ts - ts % MINUTE, []).append((ts, price))
        for start, steps in intervals.items():
            path = [(start, last), *steps] if carry and last is not None else steps
            ends = [*(ts for ts, _ in path[1:]), start + MINUTE]
            area = sum(price * (end - ts) for (ts, price), end in zip(path, ends, strict=True))
            found.append((str(symbol), start, start + MINUTE - path[0][0], area / (start + MINUTE - path[0][0])))
            last = steps[-1][1]
    return found


@pytest.mark.parametrize("start_with", ["previous", "first"])
def test_twap_of_real_days(trades: DataFrame, days: polars.DataFrame, start_with: Any) -> None:
    found = from_spark(twap(trades, "1m", start_with=start_with), "symbol", "start").drop("start_time")
    plain = plain_twap(days, start_with == "previous")
    same(found, polars.DataFrame(plain, schema=["symbol", "start", "covered_ns", "twap"], orient="row"))


def test_twap_ends_with_the_session(spark: SparkSession) -> None:
    """The last half hour has 20 minutes before the close, and no price of the previous day."""
    hours = Hours("09:30", "15:50")
    day, after = wall("2026-03-05T15:30:00"), wall("2026-03-06T09:30:00")
    rows = rows_of(
        spark,
        ("A", day - 600 * 10**9, 10.0, 1),
        ("A", day + 300 * 10**9, 20.0, 1),
        ("A", day + 1200 * 10**9, 99.0, 1),  # exactly at the close
        ("A", after + 60 * 10**9, 5.0, 1),
    )
    found = from_spark(twap(rows, "30m", hours=hours), "start")
    assert found["twap"].to_list() == [10.0, (10.0 * 300 + 20.0 * 900) / 1200, 5.0]
    assert found["covered_ns"].to_list() == [600 * 10**9, 1200 * 10**9, 1740 * 10**9]
    assert found["session"].to_list() == [datetime.date(2026, 3, 5)] * 2 + [datetime.date(2026, 3, 6)]


@pytest.mark.parametrize(("date", "hours_of_day", "utc_open"), first_of([("2026-11-01", 25, 4), ("2026-03-08", 23, 5)]))
def test_day_on_which_the_clocks_change(spark: SparkSession, date: str, hours_of_day: int, utc_open: int) -> None:
    """A session of a whole day has as many hours as the day; its end and the next one's start are one instant."""
    start = wall(f"{date}T00:00:00")
    hour = 3600 * 10**9
    rows = rows_of(spark, *(("A", start + i * hour, float(i), 1) for i in range(-1, hours_of_day + 1)))
    found = from_spark(time_bars(rows, "1h", hours=Hours("00:00", "00:00")), "start")
    own = found.filter(col("session") == datetime.date.fromisoformat(date))
    assert own["open"].to_list() == [float(i) for i in range(hours_of_day)]
    assert own["start_time"][0].hour == utc_open
    assert found["session"].n_unique() == 3
    filled = from_spark(time_bars(rows, "1h", hours=Hours("00:00", "00:00"), fill="null"), "start")
    assert filled["session"].value_counts().filter(session=own["session"][0])["count"].to_list() == [hours_of_day]


@pytest.mark.parametrize(
    ("hours", "opens", "closes"),
    [
        (("02:30", "02:30"), "2026-03-08T07:30", "2026-03-09T06:30"),  # half past two is skipped
        (("00:00", "01:30"), "2026-11-01T04:00", "2026-11-01T05:30"),  # half past one occurs twice
        (("01:30", "01:30"), "2026-11-01T05:30", "2026-11-02T06:30"),
    ],
)
def test_session_bound_that_the_clocks_skip_or_repeat(
    spark: SparkSession, hours: tuple[str, str], opens: str, closes: str
) -> None:
    first, last = wall(opens, "UTC"), wall(closes, "UTC")
    times = sorted({first - 1, first, last - 1, last, *range(first - 10**13, last + 10**13, 900 * 10**9)})
    rows = rows_of(spark, *(("A", ts, 1.0, 1) for ts in times))
    found = from_spark(time_bars(rows, "1ns", hours=Hours(*hours)), "start")
    own = found.filter(session=datetime.date.fromisoformat(opens[:10]))
    assert own["start"].to_list() == [ts for ts in times if first <= ts < last]
    if hours[0] == hours[1]:  # sessions without a break: every trade is in one
        assert found["start"].to_list() == times


@pytest.mark.long
def test_session_over_midnight_of_two_recorded_days_is_one_group(spark: SparkSession) -> None:
    """Sell 1 at 10 before midnight and 3 at 20 after it: one VWAP of 17.5, and one bar for each of 23 hours."""
    times = wall("2024-03-11T20:00:00"), wall("2024-03-12T10:00:00")
    rows = [("f", f"2024-03-{11 + day}", "A", at, 10.0 + 10 * day, 1 + 2 * day) for day, at in enumerate(times)]
    names = "feed string, date string, symbol string, ts_event bigint, price double, size bigint"
    trades, hours = spark.createDataFrame(rows, names), Hours("18:00", "17:00")
    (average,) = vwap(trades, hours=hours).collect()
    assert (average["session"], average["vwap"]) == (datetime.date(2024, 3, 11), 17.5)
    assert "date" not in average
    bars = time_bars(trades, "1h", hours=hours, fill="previous").orderBy("start").collect()
    assert [bar["close"] for bar in bars] == [None] * 2 + [10.0] * 14 + [20.0] * 7
    assert vwap(trades, by=["date"], hours=hours).count() == 2


def test_empty_minutes(spark: SparkSession) -> None:
    rows = rows_of(spark, ("A", MINUTE, 1.0, 1), ("A", 4 * MINUTE, 2.0, 2), ("B", 2 * MINUTE, 5.0, 1))
    for fill, closes in (("none", [1.0, 2.0, 5.0]), ("null", [1.0, None, None, 2.0, 5.0]),
                         ("previous", [1.0, 1.0, 1.0, 2.0, 5.0])):  # fmt: skip
        found = from_spark(time_bars(rows, "1m", fill=fill), "symbol", "start")  # type: ignore[arg-type]
        assert found["close"].to_list() == closes
        assert found["volume"].sum() == 4
        if fill != "none":
            assert found["trades"].to_list() == [1, 0, 0, 1, 1]
            assert found["vwap"].null_count() == 2


def test_unknown_times_and_nulls_are_left_out(spark: SparkSession) -> None:
    rows = rows_of(spark, ("A", 0, 1.0, 1), ("A", 5, None, 1), ("A", 6, 2.0, None), ("A", 7, 3.0, 0), (None, 8, 4.0, 1))  # type: ignore[arg-type]
    found = from_spark(time_bars(rows, "1s"), "symbol")
    assert found["symbol"].to_list() == [None, "A"]
    assert found["trades"].to_list() == [1, 1]
    assert found["vwap"].to_list() == [4.0, None]  # the volume of A is 0
    assert from_spark(time_bars(rows, "1s", fill="previous"), "symbol")["close"].to_list() == [4.0, 3.0]


def test_ties_are_ordered_by_slice_and_sequence(spark: SparkSession) -> None:
    rows = [("A", 5, float(10 * part + number), 1, part, number) for part in (1, 0) for number in (2, 0, 1)]
    schema = "symbol string, ts_event bigint, price double, size bigint, slice int, sequence bigint"
    found = from_spark(time_bars(spark.createDataFrame(rows, schema), "1s"), "symbol")
    assert (found["open"][0], found["close"][0]) == (0.0, 12.0)


@pytest.mark.parametrize("volume", [1, Decimal(1), 1.0])
def test_volume_bars_of_fractional_sizes(spark: SparkSession, volume: Any) -> None:
    rows = rows_of(spark, *(("A", 1 + place, 1.0, 1) for place in range(4))).selectExpr(
        "* except (size)", "0.5D as size"
    )
    found = from_spark(volume_bars(rows, volume), "bar")
    assert (found["bar"].to_list(), found["volume"].to_list()) == ([0, 1], [1.0, 1.0])


def test_prices_stay_decimals_and_times_may_be_timestamps(spark: SparkSession) -> None:
    rows = spark.sql("select 'A' as symbol, timestamp'1969-12-31 23:59:59.5 UTC' as at, 1.25BD as price, 3 as size")
    (row,) = time_bars(rows, "1s", time="at", ties=()).collect()
    assert (row.open, row.start, row.volume) == (Decimal("1.25"), -(10**9), 3)
    assert row.start_time.isoformat() == "1969-12-31T23:59:59"
