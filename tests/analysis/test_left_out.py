"""Trades and quotes in Spark: rows left out, absent sides, and independence of days."""

from __future__ import annotations

import datetime
import itertools
import struct
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as f

from blackbox import ConfigError, Recording, Schema
from blackbox.analysis import (
    asof_join,
    asof_recorded,
    count_bars,
    recorded_quotes,
    recorded_trades,
    time_bars,
    twap,
    vwap,
)
from blackbox.analysis.measure_day import measure_day
from blackbox.analysis.report.day_report import PRICE
from blackbox.analysis.report.page import page
from blackbox.feed.schema.schema import QuoteFields, TradeFields, price
from tests.archive.test_left_out import JSON_ROWS, JSON_TRADES, nan_day
from tests.archive.test_recordings import several_schemas
from tests.deals import Counted, Deal, Sides, carried, counted, days_of_deals, days_of_sides, write_deals
from tests.examples import examples, first_of
from tests.journals import Day, Put, Row, feed_of
from tests.odd_json import odd_day, odd_quotes, odd_trades

QUOTED = ("bid_price", "bid_size", "ask_price", "ask_size")
PLACE = ("ts_event", "epoch", "slice", "sequence")
BASE = ["feed", "date", "symbol", *PLACE]
some = settings(max_examples=examples(16), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def rows_of(frame: DataFrame | None, *columns: str) -> list[tuple[Any, ...]]:
    assert frame is not None
    return sorted((tuple(row) for row in frame.select(*columns).collect()), key=repr)


def same_as_frames(spark: SparkSession, recording: Recording, broken: bool = False) -> None:
    """Trades and quotes are the same in Spark and in the frames."""
    names = "symbol", "ts_event", "slice", "epoch", "sequence"
    form: Any = {"prices": "decimal", "times": "integer"}
    for found, ticks, own in (
        (recorded_trades(spark, recording.path, broken=broken), "trades", ("price", "size", "trade_id")),
        (recorded_quotes(spark, recording.path), "quotes", QUOTED),
    ):
        if found is None:
            with pytest.raises(ConfigError):
                getattr(recording, ticks)
            continue
        more = {"broken": True} if broken and ticks == "trades" else {}
        frame = getattr(recording, ticks).to_polars(**form, **more).select(*names, *own)
        assert rows_of(found, *names, *own) == sorted(frame.rows(), key=repr), ticks


@some
@given(st.lists(days_of_deals(), min_size=1, max_size=3))
def test_trades_of_several_days_equal_those_of_a_plain_loop(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, days: list[list[Deal]]
) -> None:
    feed = tmp_path_factory.mktemp("feed")
    expected = []
    for number, rows in enumerate(days):
        date = datetime.date(2026, 11, 18 + number)
        write_deals(feed / str(date), rows, str(date))
        expected += [(date, *each._replace(price=Decimal(each.price) / 100)) for each in counted(rows)[0]]  # type: ignore[arg-type]
    found = recorded_trades(spark, feed)
    assert rows_of(found, "date", *Counted._fields) == sorted(expected, key=repr)
    same_as_frames(spark, Recording.open(feed / "2026-11-18"))


@some
@given(days_of_sides())
def test_sides_of_quotes_equal_those_of_a_plain_loop(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, rows: list[Sides]
) -> None:
    recording = write_deals(tmp_path_factory.mktemp("day"), rows)
    found = recorded_quotes(spark, recording.path)
    assert found is not None
    told = [
        tuple(value if place % 2 == 0 or value is None else int(value * 100) for place, value in enumerate(row))
        for row in found.orderBy("sequence").select("symbol", *QUOTED).collect()
    ]
    assert told == carried(rows)
    same_as_frames(spark, recording)


@some
@given(st.lists(st.one_of(days_of_sides(1), days_of_deals(1)), max_size=20).map(lambda each: [*itertools.chain(*each)]))
def test_asof_recorded_has_both_sides_as_by_a_plain_loop(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, drawn: list[Any]
) -> None:
    rows = [each._replace(time=1 + place) for place, each in enumerate(drawn)]
    rows = [each._replace(epoch=1) if isinstance(each, Deal) else each for each in rows]
    path = write_deals(tmp_path_factory.mktemp("day"), rows).path
    expected = []
    for place, each in enumerate(rows):
        if isinstance(each, Deal) and each.kind == "T":
            own = [quote for quote in rows[:place] if isinstance(quote, Sides) and quote.symbol == each.symbol]
            expected.append((place, *(carried(own)[-1][1:] if own else (None,) * 4)))
    found = asof_recorded(spark, path, "T", "Q", prices="integer")
    assert rows_of(found, "sequence", "bid", "bid_size", "ask", "ask_size") == sorted(expected, key=repr)
    some_columns = asof_recorded(spark, path, "T", "Q", ["sequence", "ask_size"])
    assert rows_of(some_columns, "sequence", "ask_size") == sorted(((row[0], row[4]) for row in expected), key=repr)


@pytest.mark.parametrize("name", first_of(["itch", "tops", "binance", "tape", "dbn"]))
def test_trades_and_quotes_of_captures_are_those_of_the_frames(
    spark: SparkSession, captured: Callable[[str], Path], name: str
) -> None:
    (day,) = captured(name).glob("*-*-*")
    same_as_frames(spark, Recording.open(day))


def test_a_schema_without_trades_and_quotes_has_none(spark: SparkSession, tmp_path: Path) -> None:
    same_as_frames(spark, Recording.open(Day(tmp_path, feed_of()).path))


@pytest.mark.long
def test_the_report_counts_broken_trades_and_has_spreads_of_prices_at_or_below_zero(
    spark: SparkSession, tmp_path: Path
) -> None:
    deals = [Deal("A", "T", number, price=100 * (number - 1)) for number in range(3)]
    day = write_deals(tmp_path / "deals", [Sides("A", -10, 0), *deals, Deal("A", "C", 1)]).path
    report = measure_day(spark, day)
    assert report.left_out == ((1, "cancelled by the venue"),)
    told = "Trade messages of all symbols and times in no bar: 1 cancelled by the venue."
    assert told in page(report)
    (instrument,) = report.instruments
    assert "Spread, price: mean" in page(report)
    assert instrument.spread_unit == PRICE
    assert [point.mean for point in instrument.spreads] == [pytest.approx(0.1)]
    assert measure_day(spark, day, broken=True).left_out == ()
    of_json = Day(tmp_path / "json", feed_of(schema="binance"))
    of_json.put(0, Put(JSON_ROWS))
    assert measure_day(spark, of_json.path).prices == "Bars are of the trades of type trade."


def test_json_trades_without_a_price_or_size_are_left_out(spark: SparkSession, tmp_path: Path) -> None:
    """Trades without an id are not repetitions of each other."""
    day = Day(tmp_path, feed_of(schema="binance"))
    day.put(0, Put(JSON_ROWS))
    assert rows_of(recorded_trades(spark, day.path), "price", "size", "trade_id") == sorted(JSON_TRADES, key=repr)


def test_odd_json_documents_have_the_values_of_the_table(
    spark: SparkSession, tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = DataFrameReader.load
    monkeypatch.setattr(DataFrameReader, "load", lambda self, path: load(self.option("engine", engine), path))
    day = odd_day(tmp_path)
    trades = rows_of(recorded_trades(spark, day.path), "sequence", "price", "size", "trade_id")
    assert sorted(trades) == odd_trades()
    assert sorted(rows_of(recorded_quotes(spark, day.path), "sequence", *QUOTED)) == odd_quotes()
    same_as_frames(spark, day)


def test_trades_with_nan_are_left_out(spark: SparkSession, tmp_path: Path) -> None:
    day = nan_day(tmp_path)
    assert rows_of(recorded_trades(spark, day.path), "price", "size") == [(-3.5, 4), (1.5, 2)]
    same_as_frames(spark, day)


@pytest.mark.parametrize("one_sided", [False, True])
def test_sides_with_nan_are_absent(spark: SparkSession, tmp_path: Path, one_sided: bool) -> None:
    quote = numpy.dtype([("type", "S1"), ("bid", "<f8"), ("bid_size", "<f4"), ("ask", ">f4"), ("ask_size", "<u4")])
    fields = QuoteFields("Q", "bid", "bid_size", "ask", "ask_size", one_sided=one_sided)
    deal = numpy.dtype([("type", "S1")])
    day = Day(tmp_path, feed_of(schema=Schema("sides", 1_794, {"Q": quote, "T": deal}, quotes=(fields,))))
    nan = numpy.nan
    values = (nan, 1, 2.5, 3), (1.5, 2, -nan, 4), (nan, nan, 2.25, 5), (1.25, nan, nan, 6), (1.0, 7, 1.75, 8)
    quotes = [numpy.array([(b"Q", *each)], quote).tobytes() for each in values]
    rows = [row for place, each in enumerate(quotes) for row in (Row(b"A.Q", each, place + 1), Row(b"A.T", b"T", 9))]
    day.put(0, Put(tuple(rows)))
    found = recorded_quotes(spark, day.path)
    assert found is not None
    expected: list[tuple[Any, ...]] = [(None, None, 2.5, 3)]
    if one_sided:
        expected += [(1.5, 2, 2.5, 3), (1.5, 2, 2.25, 5), (1.25, None, 2.25, 5)]
    else:
        expected += [(1.5, 2, None, None), (None, None, 2.25, 5), (1.25, None, None, None)]
    in_order = [tuple(row)[1:] for row in found.orderBy("sequence").select("sequence", *QUOTED).collect()]
    assert in_order == [*expected, (1.0, 7, 1.75, 8)]
    joined = asof_recorded(spark, day.path, "T", "Q", ["sequence", "bid", "bid_size", "ask", "ask_size"])
    assert [tuple(row)[1:] for row in joined.orderBy("sequence").collect()] == in_order
    same_as_frames(spark, Recording.open(day.path))
    (instrument,) = measure_day(spark, day.path).instruments
    assert instrument.spreads


def test_fields_may_have_the_names_of_columns(spark: SparkSession, tmp_path: Path) -> None:
    deal = numpy.dtype([("type", "S1"), ("Sequence", "<i8"), ("price", price("<i8", 2)), ("topic", "<u4")])
    fields = TradeFields("T", "price", "topic", only=("type", "T"), id="Sequence")
    day = Day(tmp_path, feed_of(schema=Schema("columns", 1_795, {"T": deal}, trades=(fields,))))
    rows = [numpy.array([(b"T", *each)], deal).tobytes() for each in ((71, 100, 3), (72, 200, 4))]
    day.put(0, Put(tuple(Row(b"A.T", row, 1) for row in rows)))
    assert rows_of(recorded_trades(spark, day.path), "price", "size", "trade_id") == [(1, 3, 71), (2, 4, 72)]
    same_as_frames(spark, Recording.open(day.path))


def test_bars_of_prices_at_or_below_zero(spark: SparkSession, tmp_path: Path) -> None:
    rows = [Deal("A", "T", place, price=price) for place, price in enumerate((0, -300, 200, -100))]
    trades = recorded_trades(spark, write_deals(tmp_path, rows).path)
    assert trades is not None
    (bar,) = time_bars(trades, "1m").collect()
    assert [bar[name] for name in ("open", "high", "low", "close", "vwap")] == [0, 2, -3, -1, -0.5]


def test_executions_have_the_price_of_their_order(spark: SparkSession, tmp_path: Path) -> None:
    """An order is entered twice, as if a day was published twice, and another one before the recording began."""
    entered = Row(b"A.A", b"A" + bytes(10) + struct.pack(">QcI8sI", 7, b"B", 100, b"", 15_000), 1)
    executed, other = (Row(b"A.E", b"E" + bytes(10) + struct.pack(">QIQ", n, 100, n), 2) for n in (7, 8))
    day = Day(tmp_path, feed_of(schema="itch50"))
    day.put(0, Put((entered, entered, executed, other)))
    assert rows_of(recorded_trades(spark, day.path), "price", "size") == [(Decimal("1.5"), 100), (None, 100)]
    same_as_frames(spark, Recording.open(day.path))


@pytest.mark.long
def test_results_of_several_days_equal_those_of_each_day(spark: SparkSession, tmp_path: Path) -> None:
    """No bar, average, side or match carries over to the next day."""
    for number in (18, 19):
        rows: list[Any] = [
            Sides("A", 1, 3) if number == 18 else Sides("A", None, 5, time=2),
            *(Deal("A", "T", place, price=100 * number + place, time=1 + place) for place in range(3)),
        ]
        write_deals(tmp_path / f"2026-11-{number}", rows, f"2026-11-{number}")
    trades, quotes = recorded_trades(spark, tmp_path), recorded_quotes(spark, [tmp_path])
    assert trades is not None
    assert quotes is not None
    assert trades.columns == [*BASE, "price", "size", "trade_id"]
    assert quotes.columns == [*BASE, *QUOTED]
    functions: list[Callable[[DataFrame], DataFrame]] = [
        lambda frame: time_bars(frame, "2s", fill="previous"),
        lambda frame: count_bars(frame, 2),
        vwap,
        lambda frame: twap(frame, "2s"),
        lambda frame: asof_join(frame, quotes),
    ]
    for function in functions:
        alone = []
        for day in sorted(tmp_path.glob("2026*")):
            own = recorded_trades(spark, day)
            assert own is not None
            alone += function(own).collect()
        assert sorted(map(repr, function(trades).collect())) == sorted(map(repr, alone))
    sides = rows_of(quotes, "date", "bid_price", "ask_price")
    assert [row[1:] for row in sides] == [(Decimal("0.01"), Decimal("0.03")), (None, Decimal("0.05"))]


@pytest.mark.long
def test_trades_of_feeds_of_several_schemas_have_columns_for_all(spark: SparkSession, tmp_path: Path) -> None:
    several = several_schemas(tmp_path)
    found = recorded_trades(spark, several.paths)
    assert found is not None
    names = "feed", "date", "symbol", "ts_event", "price", "size", "trade_id"
    frame = several.trades.to_polars(times="integer").select(names)
    assert rows_of(found, *names) == sorted(frame.rows(), key=repr)
    assert len(frame) == 3
    bars = time_bars(found, "1m")
    assert rows_of(bars, "feed", "volume") == [("crypto", 0.5), ("futures", 8.0), ("stocks", 7.0)]
    exact = recorded_trades(spark, [tmp_path / "stocks", tmp_path / "futures"])
    assert rows_of(exact, "feed", "price") == [("futures", Decimal("-0.000000001")), ("stocks", Decimal("1.5"))]
    assert recorded_quotes(spark, several.paths) is not None
    assert recorded_quotes(spark, tmp_path / "stocks") is None
    with pytest.raises(ConfigError, match="trade_id was a text in one schema and a number in another"):
        recorded_trades(spark, [tmp_path / "stocks", tmp_path / "named"])


def test_order_of_equal_times_is_that_of_the_recording(spark: SparkSession, tmp_path: Path) -> None:
    """Regardless of the order of partitions: a later epoch of the publisher is after an earlier one."""
    rows = [
        Deal("A", "T", place, price=price, epoch=epoch) for place, (price, epoch) in enumerate(((1, 1), (2, 1), (3, 2)))
    ]
    trades = recorded_trades(spark, write_deals(tmp_path, rows).path)
    assert trades is not None
    for shuffled in (trades.repartition(3), trades.orderBy(f.desc("sequence"))):
        (bar,) = time_bars(shuffled, "1m").collect()
        assert (bar["open"], bar["close"]) == (Decimal("0.01"), Decimal("0.03"))
        joined = asof_join(shuffled.select("symbol", "ts_event"), shuffled).first()
        assert joined is not None
        assert joined["price"] == Decimal("0.03")
