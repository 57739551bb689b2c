"""As-of joins against polars and a plain loop: real trades and quotes, ties, nulls, tolerance, order of capture."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars
import pytest
from blackbox_feeds.iex import Iex
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from polars import col
from polars.testing import assert_frame_equal
from pyspark.errors import PySparkException
from pyspark.sql import functions

from blackbox import ConfigError
from blackbox.analysis import asof_join, asof_recorded
from blackbox.errors import JournalError
from tests.analysis.tape import from_spark, midnight, tape, to_spark
from tests.damaged import damage_body
from tests.examples import examples, first_of
from tests.feeds.build import messages_of
from tests.journals import Day, Put, Row, feed_of
from tests.recorded import record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPS = "iex/goiex_TOPS16.pcapng.gz"
MS = 1_000_000
QUOTE = ["bid_price", "bid_size", "ask_price", "ask_size"]


@pytest.fixture(scope="module")
def days(shared_data: Path) -> tuple[polars.DataFrame, polars.DataFrame]:
    """IBM's trades and quotes before 9:40 of one day, and BAC's trades without quotes."""
    trades = [tape(shared_data, symbol, "trade", "2013-10-07") for symbol in ("IBM", "BAC")]
    early = col("ts_event") < midnight("2013-10-07") + 580 * 60_000 * MS
    return polars.concat(trades).filter(early), tape(shared_data, "IBM", "quote", "2013-10-07").filter(early)


@pytest.fixture(scope="module")
def frames(
    spark: SparkSession, days: tuple[polars.DataFrame, polars.DataFrame], tmp_path_factory: pytest.TempPathFactory
) -> tuple[DataFrame, DataFrame]:
    path = tmp_path_factory.mktemp("asof")
    return to_spark(spark, days[0], path / "trades"), to_spark(spark, days[1], path / "quotes")


@pytest.mark.parametrize(
    ("tolerance", "exact"),
    first_of([(None, True), (0, False), (200 * MS, True), (None, False), (0, True)]),
)
def test_trades_and_quotes_of_a_real_day(
    days: tuple[polars.DataFrame, polars.DataFrame],
    frames: tuple[DataFrame, DataFrame],
    tolerance: int | None,
    exact: bool,
) -> None:
    """Times are whole milliseconds and often equal: the last quote of each is used."""
    trades, quotes = days
    found = from_spark(asof_join(*frames, tolerance=tolerance, exact=exact), "symbol", "sequence")
    right = quotes.sort("ts_event", "slice", "sequence").select(
        "symbol", "ts_event", col("ts_event").alias("ts_event_quote"), col("sequence").alias("sequence_quote"), *QUOTE
    )
    expected = trades.sort("ts_event").join_asof(
        right, on="ts_event", by="symbol", tolerance=tolerance, allow_exact_matches=exact, check_sortedness=False
    )
    expected = expected.sort("symbol", "sequence")
    assert_frame_equal(found.select(expected.columns), expected)
    assert len(found) == len(trades)
    matched = found["bid_price"].is_not_null().sum()
    assert matched == 0 if tolerance == 0 and not exact else 100 < matched <= len(trades.filter(symbol="IBM"))
    assert found.columns == [
        *trades.columns, "type_quote", "ts_event_quote", "slice_quote", "sequence_quote", *QUOTE
    ]  # fmt: skip


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


def test_quotes_of_one_time_are_ordered_by_ties(frames: tuple[DataFrame, DataFrame]) -> None:
    trades, quotes = frames
    alone = quotes.drop("slice")  # as in an order book's result
    found = from_spark(asof_join(trades, alone), "symbol", "sequence")
    assert_frame_equal(found, from_spark(asof_join(trades, alone, ties=["sequence"]), "symbol", "sequence"))
    assert found["bid_price"].null_count() < len(found)


def test_time_may_be_a_timestamp(spark: SparkSession) -> None:
    rows = spark.sql("select timestamp'2026-01-05 10:00:00' as at, 1 as price")
    quotes = spark.sql("select explode(array(0, 10)) as s").selectExpr(
        "timestamp'2026-01-05 09:59:45' + make_dt_interval(0, 0, 0, s) as at", "s"
    )
    kept = asof_join(rows, quotes, by=(), on="at", ties=(), tolerance=5_000_000).collect()
    assert [row.s for row in kept] == [10]
    assert [row.s for row in asof_join(rows, quotes, by=(), on="at", ties=(), tolerance=4_999_999).collect()] == [None]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"by": ["sym"]}, "trades had no column 'sym', expected it among: symbol, ts_event, n"),
        ({"ties": ["slice"]}, "quotes had no column 'slice', expected it among: symbol, ts_event, n, n_quote"),
        ({"tolerance": -1, "ties": ["n"]}, "tolerance was -1, expected 0 or more"),
        ({"ties": ["n"]}, "suffix was '_quote', which makes duplicate column names: .*n_quote.*n_quote"),
        ({"ties": ["n"], "on": "n"}, "column 'n' was int, expected bigint"),
    ],
)
def test_wrong_arguments_are_reported(spark: SparkSession, arguments: Any, message: str) -> None:
    trades = spark.createDataFrame([("A", 1, 1)], "symbol string, ts_event bigint, n bigint")
    quotes = spark.createDataFrame([("A", 1, 1, 1)], "symbol string, ts_event bigint, n int, n_quote bigint")
    with pytest.raises(ConfigError, match=message):
        asof_join(trades, quotes, **arguments)


@pytest.fixture(scope="module")
def tops(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> Path:
    return record(tmp_path_factory.mktemp("asof"), "tops", lambda: Iex(shared_data / TOPS))


def tops_trades(shared_data: Path) -> Iterator[tuple[Any, ...]]:
    """Return each trade in file order with its symbol's last quote; a side of price 0 is absent."""
    quotes: dict[bytes, tuple[int | None, ...]] = {}
    for topic, ts, payload in messages_of(Iex(shared_data / TOPS)):
        symbol = topic.rpartition(b".")[0]
        if payload[:1] == b"Q":
            quotes[symbol] = (ts, *(value or None for value in struct.unpack_from("<IqqI", payload, 18)))
        elif payload[:1] == b"T":
            size, price, trade_id = struct.unpack_from("<Iqq", payload, 18)
            yield symbol.decode(), ts, size, price, trade_id, *quotes.get(symbol, (None,) * 5)


COLUMNS = ["symbol", "ts_event", "size", "price", "trade_id", "ts_event_quote", "bid_size", "bid_price", "ask_price",
           "ask_size"]  # fmt: skip


@pytest.mark.long
def test_recorded_trades_have_the_quote_before_them(spark: SparkSession, tops: Path, shared_data: Path) -> None:
    found = asof_recorded(spark, tops, "T", "Q", columns=COLUMNS, prices="integer").collect()
    expected = sorted(tops_trades(shared_data), key=repr)
    assert sorted((tuple(row) for row in found), key=repr) == expected
    assert len(found) == 6_390


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
    assert_frame_equal(from_spark(fast, *keys), from_spark(slow, *keys))


@pytest.mark.long
def test_recorded_join_has_a_tolerance(spark: SparkSession, tops: Path, shared_data: Path) -> None:
    tolerance = 30 * 10**9
    found = asof_recorded(spark, tops, "T", "Q", columns=["bid_price", "ts_event"], tolerance=tolerance / 1e9).collect()
    expected = sum(row[7] is not None and row[1] - row[5] <= tolerance for row in tops_trades(shared_data))
    assert sum(row.bid_price is not None for row in found) == expected
    assert 0 < expected < 6_390


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
