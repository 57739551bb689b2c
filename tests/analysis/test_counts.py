"""Rates and the mix of messages, lags, and gaps, for a real recording and for made-up rows."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import polars
import pytest
from blackbox_feeds.iex import Iex
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars import col
from polars.testing import assert_frame_equal
from pyspark.sql import DataFrame, SparkSession

from blackbox.analysis import lag_percentiles, message_mix, message_rates, sequence_gaps
from tests.analysis.tape import from_spark
from tests.examples import examples
from tests.feeds.build import messages_of

SECOND = 10**9
MINUTE = 60 * SECOND


@pytest.fixture(scope="module")
def source(shared_data: Path) -> polars.DataFrame:
    """Return every message of a real file, by a plain loop: type and time."""
    found = [
        (topic.rpartition(b".")[2].decode(), ts)
        for topic, ts, _ in messages_of(Iex(shared_data / "iex" / "goiex_TOPS16.pcapng.gz"))
    ]
    return polars.DataFrame(found, schema=["type", "ts_event"], orient="row")


@pytest.fixture(scope="module")
def messages(spark: SparkSession, captured: Callable[[str], Path]) -> Iterator[DataFrame]:
    frame = spark.read.format("blackbox").load(str(captured("tops"))).drop("payload").cache()
    yield frame
    frame.unpersist()


def test_rates_and_mix_of_a_real_recording_without_gaps(messages: DataFrame, source: polars.DataFrame) -> None:
    rates = from_spark(message_rates(messages, "10s"), "start")
    start = (col("ts_event") - col("ts_event") % (10 * SECOND)).alias("start")
    expected = source.group_by(start).agg(polars.len().cast(polars.Int64).alias("messages")).sort("start")
    assert_frame_equal(rates.select("start", "messages"), expected)
    assert rates["per_second"].to_list() == pytest.approx([many / 10 for many in expected["messages"]])
    assert rates["messages"].sum() == 57_674
    mix = from_spark(message_mix(messages), "start", "type")
    start = (col("ts_event") - col("ts_event") % MINUTE).alias("start")
    expected = source.group_by(start, "type").agg(polars.len().cast(polars.Int64).alias("messages"))
    share = (col("messages") / col("messages").sum().over("start")).alias("share")
    assert_frame_equal(
        mix.select("start", "type", "messages", "share"), expected.with_columns(share).sort("start", "type")
    )
    assert sequence_gaps(messages).count() == 0


def test_unknown_times_have_their_own_row(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(0, "T"), (None, "T"), (5, None), (-1, "Q")], "ts_event bigint, type string")
    assert from_spark(message_rates(rows, "1s"), "start")["messages"].to_list() == [2, 1, 1]
    found = from_spark(message_mix(rows, "1s"), "start")
    assert found["start"].to_list() == [None, -SECOND, 0]
    assert found["type"].to_list() == ["T", "Q", None]
    assert found["share"].to_list() == [1.0, 1.0, 1.0]


def test_lags_of_a_real_recording_are_within_the_documented_error(messages: DataFrame) -> None:
    accuracy = 100
    wanted = (0.0, 0.5, 0.99, 1.0)
    rows = from_spark(messages.select("slice", "ts_out", "ts_recv"), "slice")
    found = from_spark(lag_percentiles(messages, by=["slice"], percentiles=wanted, accuracy=accuracy), "slice")
    for number, row in enumerate(found.iter_rows(named=True)):
        lags = numpy.sort((rows.filter(slice=number)["ts_recv"] - rows.filter(slice=number)["ts_out"]).to_numpy())
        assert (row["messages"], row["min_ns"], row["max_ns"]) == (len(lags), lags[0], lags[-1])
        assert row["negative"] == (lags < 0).sum()
        for p, name in zip(wanted, ("p0_ns", "p50_ns", "p99_ns", "p100_ns"), strict=True):
            low, high = (numpy.searchsorted(lags, row[name], side) for side in ("left", "right"))
            error = len(lags) / accuracy
            assert low - error <= p * len(lags) <= high + error, name


def test_lags_of_intervals_and_of_clocks_that_differ(spark: SparkSession) -> None:
    rows = [(SECOND + i, SECOND + 10 * i) for i in range(1, 101)] + [(2 * SECOND + 50, 2 * SECOND), (0, 5), (7, None)]
    frame = spark.createDataFrame(rows, "ts_out bigint, ts_recv bigint")
    found = from_spark(lag_percentiles(frame, every="1s", percentiles=[0.5, 0.999]), "start")
    assert found.drop("start_time").to_dicts() == [
        {"start": SECOND, "messages": 100, "negative": 0, "min_ns": 9, "max_ns": 900, "p50_ns": 450, "p99_9_ns": 900},
        {"start": 2 * SECOND, "messages": 1, "negative": 1, "min_ns": -50, "max_ns": -50, "p50_ns": -50,
         "p99_9_ns": -50},
    ]  # fmt: skip


rows_of_epochs = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 30)), max_size=60)


@settings(max_examples=examples(32), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows_of_epochs, st.integers(1, 3))
def test_any_numbers_in_any_order(spark: SparkSession, rows: list[tuple[int, int]], parts: int) -> None:
    day = datetime.date(2026, 11, 20)
    schema = "feed string, date date, epoch bigint, slice int, sequence bigint, ts_recv bigint"
    full = [("f", day, epoch, 0, number, number) for epoch, number in rows]
    frame = spark.createDataFrame(full, schema).repartition(parts)
    found = sequence_gaps(frame).collect()
    expected = set()
    for epoch in (0, 1):
        there = {number for e, number in rows if e == epoch}
        if there:
            expected |= {(epoch, n) for n in range(min(there), max(there)) if n not in there}
    assert {(row.epoch, n) for row in found for n in range(row["first"], row["last"] + 1)} == expected
    for row in found:
        assert (row.recv_before, row.recv_after) == (row["first"] - 1, row["last"] + 1)
