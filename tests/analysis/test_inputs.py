"""Columns of time of every Spark type, and arguments that are refused with an error that names them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession, functions

from blackbox import ConfigError
from blackbox.analysis import (
    asof_join,
    count_bars,
    lag_percentiles,
    order_book,
    time_bars,
    twap,
    volume_bars,
    vwap,
    with_spread,
)
from tests.journals import Day

WRONG = {
    "timestamp_ntz": "timestamp_ntz'2020-01-02 09:30:00'",
    "string": "'2020-01-02T09:30:00Z'",
    "double": "1577957400.5D",
    "int": "1577957400",
}
SECOND_NS = 1_577_957_400 * 10**9


def trades(spark: SparkSession, *times: str) -> DataFrame:
    """Trades of one symbol, 5 at 10.0, then 7 at 12.0, ..."""
    rows = [f"select 'A' symbol, {time} at, {10.0 + 2 * n}D price, {5 + 2 * n}L size, 0 slice, {n}L sequence"
            for n, time in enumerate(times)]  # fmt: skip
    return spark.sql(" union all ".join(rows))


@pytest.mark.parametrize("kind", WRONG)
def test_a_time_of_another_type_is_one_error_that_names_the_column(spark: SparkSession, kind: str) -> None:
    """Otherwise a double of seconds would give one bar at 1970 with the volume of two trades an hour apart."""
    wrong, right = trades(spark, WRONG[kind]), trades(spark, f"{SECOND_NS}L")
    expected = f"column 'at' was {kind}, expected bigint (ns since 1970, 0: not known) or timestamp: "
    makes: tuple[Callable[[], object], ...] = (
        lambda: time_bars(wrong, "1m", time="at"),
        lambda: count_bars(wrong, 1, time="at"),
        lambda: vwap(wrong, time="at"),
        lambda: twap(wrong, "1m", time="at"),
        lambda: asof_join(wrong, right, on="at"),
        lambda: asof_join(right, wrong, on="at"),
        lambda: asof_join(wrong, wrong, on="at"),
    )
    for make in makes:
        with pytest.raises(ConfigError) as caught:
            make()
        assert str(caught.value).startswith(expected)
        assert "\n" not in str(caught.value)


def test_bigints_and_timestamps_give_the_same_bars(spark: SparkSession) -> None:
    hour = 3_600 * 10**9
    of_bigint = trades(spark, f"{SECOND_NS}L", f"{SECOND_NS + hour}L", "0L")
    of_time = trades(
        spark, "timestamp'2020-01-02 09:30:00Z'", "timestamp'2020-01-02 10:30:00Z'", "cast(null as timestamp)"
    )
    found = [time_bars(each, "1m", time="at").orderBy("start").collect() for each in (of_bigint, of_time)]
    assert found[0] == found[1]
    assert [(row["start"], row["volume"]) for row in found[0]] == [(SECOND_NS, 5), (SECOND_NS + hour, 7)]


def test_bars_group_nan_and_null_keys_separately(spark: SparkSession) -> None:
    nan, null = "cast('NaN' as double)", "cast(null as double)"
    rows = [(nan, 1), (nan, 2), (null, 4), ("1.0D", 8), (null, 16)]
    frame = spark.sql(
        " union all ".join(
            f"select {key} desk, {SECOND_NS + n}L ts_event, 10.0D price, {size}L size, 0 slice, {n}L sequence"
            for n, (key, size) in enumerate(rows)
        )
    )
    found = {str(row["desk"]): row["volume"] for row in time_bars(frame, "1m", by=["desk"]).collect()}
    assert found == {"nan": 3, "None": 20, "1.0": 8}


def test_two_asof_joins_in_a_row(spark: SparkSession) -> None:
    left = trades(spark, "10L", "20L", "30L")
    first = spark.sql("select 'A' symbol, 15L at, 1 first, 0 slice, 0L sequence")
    second = spark.sql("select 'A' symbol, 25L at, 2 second, 0 slice, 0L sequence")
    joined = asof_join(asof_join(left, first, on="at", suffix="_1"), second, on="at", suffix="_2")
    rows = joined.orderBy("at").collect()
    assert [(row["at"], row["first"], row["second"]) for row in rows] == [(10, None, None), (20, 1, None), (30, 1, 2)]


REFUSED: list[tuple[Callable[[DataFrame], object], str]] = [
    (
        lambda rows: asof_join(rows, rows, by=["sym"]),
        "trades had no column 'sym', expected it among: feed, date, slice",
    ),
    (lambda rows: asof_join(rows, rows, ties=["n"]), "quotes had no column 'n', expected it among: feed, date, slice"),
    (lambda rows: asof_join(rows, rows, tolerance=-1), "tolerance was -1, expected 0 or more"),
    (
        lambda rows: asof_join(rows, rows.withColumn("price_quote", functions.lit(1))),
        "suffix was '_quote', which makes duplicate column names: .*price_quote.*price_quote",
    ),
    (lambda rows: time_bars(rows, "1 fortnight"), "every was '1 fortnight', expected a positive duration such as"),
    (lambda rows: time_bars(rows, 0), "every was 0, expected a positive duration"),
    (lambda rows: time_bars(rows, "1m", fill="zero"), "fill was 'zero', expected one of: none, null, previous"),  # type: ignore[arg-type]
    (lambda rows: time_bars(rows, "1m", price="px"), "trades had no column 'px', expected it among: feed, date"),
    (
        lambda rows: time_bars(rows.withColumnRenamed("symbol", "bar"), "1m", by=["bar"]),
        "by had 'bar', the name of a result column: rename",
    ),
    (lambda rows: count_bars(rows, 0), "count was 0, expected 1 or more"),
    (lambda rows: volume_bars(rows, 0), "volume was 0, expected more than 0"),
    (lambda rows: order_book(rows, 0), "depth was 0, expected 1 or more"),
    (lambda rows: order_book(rows, schema="iex_tops16"), "schema of books was 'iex_tops16', expected one of: dbn"),
    (lambda rows: order_book(rows, order=["place"]), "messages had no column 'place', expected it among"),
    (lambda rows: order_book(rows, by=["bid_price"]), "messages had no column 'bid_price'"),
    (lambda rows: lag_percentiles(rows, percentiles=[]), r"percentiles were \[\], expected numbers from 0 to 1"),
    (lambda rows: lag_percentiles(rows, percentiles=[99]), r"percentiles were \[99\], expected numbers from 0 to 1"),
    (lambda rows: lag_percentiles(rows, accuracy=0), "accuracy was 0, expected 1 or more"),
    (lambda rows: lag_percentiles(rows, end="ts_rcv"), "messages had no column 'ts_rcv', expected it among"),
    (with_spread, "quotes had no column 'bid_price', expected it among: feed, date"),
]


def test_wrong_arguments_are_named(spark: SparkSession, written: Day) -> None:
    messages = spark.read.format("blackbox").load(str(written.path))
    rows = messages.withColumns({"price": functions.lit(1.0), "size": functions.lit(1)})
    for call, text in REFUSED:
        with pytest.raises(ConfigError, match=text):
            call(rows)
