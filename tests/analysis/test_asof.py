"""As-of joins against polars and a plain loop: real trades and quotes, ties, nulls, tolerance, order of capture."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blackbox_feeds.iex import Iex
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars import col
from polars.testing import assert_frame_equal
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, functions

from blackbox import ConfigError
from blackbox.analysis import asof_join, asof_recorded
from blackbox.errors import JournalError
from tests.analysis.tape import from_spark
from tests.damaged import damage_body
from tests.examples import examples
from tests.journals import Day, Put, Row, feed_of
from tests.recorded import record

TOPS = "iex/goiex_TOPS16.pcapng.gz"
Pair = tuple[Any, Any, Any]


def plain_join(trades: list[Pair], quotes: list[Pair], tolerance: int | None, exact: bool) -> list[tuple[Any, ...]]:
    found = []
    for symbol, time, number in trades:
        good = [
            (then, place)
            for its, then, place in quotes
            if its is not None and its == symbol and then is not None and time is not None
            and (then <= time if exact else then < time)
        ]  # fmt: skip
        best = max(good, default=(None, None))
        if best[0] is not None and tolerance is not None and time - best[0] > tolerance:
            best = (None, None)
        found.append((symbol, time, number, *best))
    return sorted(found, key=repr)


symbols = st.sampled_from(["A", "B", None])
clocks = st.one_of(st.integers(-5, 5), st.none())


@settings(max_examples=examples(32), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(symbols, clocks), max_size=25),
    st.lists(st.tuples(symbols, clocks), max_size=25),
    st.sampled_from([None, 0, 2]),
    st.booleans(),
)
def test_any_rows(spark: SparkSession, left: list[Any], right: list[Any], tolerance: int | None, exact: bool) -> None:
    trades = [(*row, place) for place, row in enumerate(left)]
    quotes = [(*row, place) for place, row in enumerate(right)]
    schema = "symbol string, ts_event bigint, n bigint"
    joined = asof_join(
        spark.createDataFrame(trades, schema).repartition(2),
        spark.createDataFrame(quotes, schema).repartition(3),
        ties=["n"],
        tolerance=tolerance,
        exact=exact,
    )
    found = sorted((tuple(row) for row in joined.collect()), key=repr)
    assert found == plain_join(trades, quotes, tolerance, exact)


def test_quotes_of_one_time_are_ordered_by_slice_and_sequence_if_there_are_such_columns(spark: SparkSession) -> None:
    trades = spark.createDataFrame([("A", 5, 1.0)], "symbol string, ts_event bigint, price double")
    rows = [("A", 4, 0, 9, 1), ("A", 5, 0, 7, 2), ("A", 5, 1, 6, 3), ("A", 5, 0, 8, 4), ("A", 6, 2, 9, 5)]
    quotes = spark.createDataFrame(rows, "symbol string, ts_event bigint, slice int, sequence bigint, bid int")
    joined = asof_join(trades, quotes)
    assert joined.columns == ["symbol", "ts_event", "price", "ts_event_quote", "slice", "sequence", "bid"]
    assert [tuple(row) for row in joined.collect()] == [("A", 5, 1.0, 5, 1, 6, 3)]
    assert [row.bid for row in asof_join(trades, quotes.drop("slice")).collect()] == [4]


def test_time_may_be_a_timestamp(spark: SparkSession) -> None:
    rows = spark.sql("select timestamp'2026-01-05 10:00:00' as at, 1 as price")
    quotes = spark.sql("select explode(array(0, 10)) as s").selectExpr(
        "timestamp'2026-01-05 09:59:45' + make_dt_interval(0, 0, 0, s) as at", "s"
    )
    kept = asof_join(rows, quotes, by=(), on="at", ties=(), tolerance=5_000_000).collect()
    assert [row.s for row in kept] == [10]
    assert [row.s for row in asof_join(rows, quotes, by=(), on="at", ties=(), tolerance=4_999_999).collect()] == [None]


@pytest.fixture(scope="module")
def tops(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> Path:
    return record(tmp_path_factory.mktemp("asof"), "tops", lambda: Iex(shared_data / TOPS))


@pytest.mark.long
def test_recorded_join_equals_the_join_of_frames(spark: SparkSession, tops: Path) -> None:
    """All columns, including decimals. The file's times never go back, and quotes follow trades of the same time."""
    read = spark.read.format("blackbox")
    trades, quotes = (read.option("messageType", kind).load(str(tops)) for kind in "TQ")
    sides = [f"{side}_{part}" for side in ("bid", "ask") for part in ("price", "size")]
    quotes = quotes.withColumns({name: functions.nullif(functions.col(name), functions.lit(0)) for name in sides})
    told = ["ts_event", "ts_recv", "sequence", *quotes.columns[14:]]
    slow = asof_join(
        trades, quotes.select("symbol", "slice", *told), by=("symbol", "slice"), ties=("sequence",), exact=False
    )
    fast = asof_recorded(spark, [tops], "T", "Q")
    assert fast.columns == slow.columns
    assert [field.dataType for field in fast.schema] == [field.dataType for field in slow.schema]
    keys = ["slice", "topic", "sequence"]
    expected = from_spark(slow, *keys)
    assert_frame_equal(from_spark(fast, *keys), expected)
    assert len(expected) == 6_390
    near = asof_recorded(spark, tops, "T", "Q", columns=["bid_price"], tolerance=30.0).collect()
    known = expected.filter(col("ts_event") - col("ts_event_quote") <= 30 * 10**9)["bid_price"].is_not_null().sum()
    assert sum(row.bid_price is not None for row in near) == known
    assert 0 < known < len(expected)


def quote(size: int) -> bytes:
    return b"Q\0" + struct.pack("<q8sIqqI", 1, b"A       ", size, 1, 2, 3)


TRADE = b"T\0" + struct.pack("<q8sIqq", 1, b"A       ", 1, 1, 1)


def written(path: Path, *payloads: bytes, **settings: Any) -> Day:
    day = Day(path, feed_of(1, schema="iex_tops16", **settings))
    day.put(0, *(Put((Row(b"A.x", payload, 5),)) for payload in payloads))
    return day


def test_order_of_capture_decides_between_equal_times(spark: SparkSession, tmp_path: Path) -> None:
    written(tmp_path, TRADE, quote(1), quote(2), TRADE, quote(3), b"", b"X")
    found = asof_recorded(spark, tmp_path, "T", "Q", columns=["bid_size", "ts_event_quote"]).collect()
    assert [tuple(row) for row in found] == [(None, None), (2, 5)]


def test_a_damaged_recording_and_a_wrong_message_are_reported(spark: SparkSession, tmp_path: Path) -> None:
    written(tmp_path / "long", TRADE, quote(1) + b"!")
    with pytest.raises(PySparkException, match=r"long: a message of type 'Q' had 43 bytes, expected 42"):
        asof_recorded(spark, tmp_path / "long", "T", "Q").collect()
    day = written(tmp_path / "damaged", *[TRADE] * 3)
    damage_body(day.segments[0], 1)
    with pytest.raises(PySparkException, match=r"000000\.journal"):
        asof_recorded(spark, tmp_path / "damaged", "T", "Q").collect()


@pytest.mark.long
def test_trades_and_quotes_of_a_symbol_may_have_several_keys(spark: SparkSession, tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of(1, schema="iex_tops16", key_bytes=8))
    for sequence, (topic, payload) in enumerate([(b"A.Q", quote(1)), (b"A.T", TRADE), (b"A.Q", quote(2))]):
        day.put(0, Put((Row(topic, payload, 5),), sequence, previous=max(0, sequence - 1)))
    (found,) = asof_recorded(spark, tmp_path, "T", "Q", columns=["bid_size"]).collect()
    assert tuple(found) == (1,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"quotes": "T"}, "trades and quotes were 'T' and 'T', expected two message types"),
        ({"quotes": "9"}, "schema 'iex_tops16': message type was '9', expected one of: S D H"),
        ({"tolerance": -5}, "tolerance was -5, expected 0 to"),
        ({"columns": ["bid"]}, "columns had 'bid', expected some of: feed, date, slice"),
    ],
)
def test_wrong_arguments_of_the_recorded_join_are_reported(
    spark: SparkSession, captured: Callable[[str], Path], arguments: Any, message: str
) -> None:
    tops = captured("tops")
    with pytest.raises(ConfigError, match=message):
        asof_recorded(spark, tops, **{"trades": "T", "quotes": "Q", **arguments})
    with pytest.raises(JournalError, match="was not found"):
        asof_recorded(spark, tops / "nowhere", "T", "Q")


def test_a_name_and_its_character_mean_the_same_message_type(spark: SparkSession, tmp_path: Path) -> None:
    day = Day(tmp_path / "2026-11-20", feed_of(schema="dbn"))
    with pytest.raises(ConfigError, match=r"were 'mbo' and '\\xa0', expected two message types"):
        asof_recorded(spark, day.path, "mbo", "\xa0")
