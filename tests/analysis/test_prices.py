"""Trades and quotes of every feed by its schema, compared with the source files; and reports of such days."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import databento_dbn
import pytest
import zstandard
from blackbox_feeds.dbn import Dbn
from blackbox_feeds.itch50 import Itch50
from pyspark.sql import functions as f

from blackbox.analysis import recorded_quotes, recorded_trades, with_spread
from blackbox.analysis.measure_day import measure_day
from blackbox.analysis.measures.prices import typed_trades
from tests.feeds.build import messages_of
from tests.journals import Day, Put, Row, feed_of
from tests.recorded import record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def day_of(feed: Path) -> Path:
    (day,) = feed.glob("*-*-*")
    return day


def first(frame: DataFrame | None, *columns: Any) -> tuple[Any, ...]:
    assert frame is not None
    return tuple(frame.agg(*columns).first() or ())


def records_of(path: Path) -> list[Any]:
    """Read by Databento's own decoder, without the metadata."""
    decoder = databento_dbn.DBNDecoder()
    decoder.write(zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read())
    return list(decoder.decode())[1:]


def test_dbn_counts_the_trades_of_one_type_whatever_the_topics(
    spark: SparkSession, tmp_path: Path, shared_data: Path
) -> None:
    path = shared_data / "dbn" / "futures_mbp-1_2024-07-01T23-58.dbn.zst"
    day = day_of(record(tmp_path, "cme", lambda: Dbn(path, topic="{symbol}")))
    records = records_of(path)
    trades = [each for each in records if each.action == "T"]
    value = sum(each.price * each.size for each in trades)
    assert first(recorded_trades(spark, day), f.count("*"), f.sum(f.expr("price * size")).cast("decimal(38,9)")) == (
        len(trades),
        pytest.approx(value / 10**9),
    )
    quotes = recorded_quotes(spark, day)
    assert quotes is not None
    spreads = [each.levels[0].ask_px - each.levels[0].bid_px for each in records]
    expected = len(records), pytest.approx(sum(spreads) / 10**9)
    assert first(with_spread(quotes), f.count("*"), f.sum("spread")) == expected


@pytest.mark.long
def test_each_symbol_has_the_trades_of_its_own_first_type(spark: SparkSession, tmp_path: Path) -> None:
    def frame(symbol: str, kind: str, price: str, time: int) -> Row:
        data = f'1 {{"stream":"{symbol}@{kind}","data":{{"p":"{price}","q":"2"}}}}'
        return Row(f"{symbol}.{kind}".encode(), data.encode(), time)

    day = Day(tmp_path / "day", feed_of(schema="binance"))
    told = ("btc", "trade", "1"), ("btc", "aggTrade", "2"), ("eth", "aggTrade", "3"), ("eth", "aggTrade", "4")
    day.put(0, Put(tuple(frame(*each, 10**18 + k) for k, each in enumerate(told))))
    found = recorded_trades(spark, day.path)
    assert found is not None
    assert sorted((row["symbol"], row["price"]) for row in found.collect()) == [("btc", 1), ("eth", 3), ("eth", 4)]
    report = measure_day(spark, day.path)
    assert [(each.symbol, sum(bar.trades for bar in each.bars)) for each in report.instruments] == [
        ("eth", 2),
        ("btc", 1),
    ]
    assert report.prices == "Bars are of the trades of type trade and aggTrade."


def test_a_schema_without_trades_and_quotes_has_none(spark: SparkSession, tmp_path: Path) -> None:
    day = Day(tmp_path / "day", feed_of())
    assert recorded_trades(spark, day.path) is None
    assert recorded_quotes(spark, day.path) is None


def test_executions_of_itch_have_the_price_of_their_order(
    spark: SparkSession, captured: Callable[[str], Path], shared_data: Path
) -> None:
    path = shared_data / "itch50" / "runk_locate-13-10k.bin"
    day = day_of(captured("itch"))
    prices: dict[int, int] = {}
    executed: list[tuple[int, int]] = []
    messages = [payload for _, _, payload in messages_of(Itch50(path, date="2020-01-30"))]
    for message in messages:
        kind, body = message[:1], message[11:]
        if kind in b"AF":
            number, price = struct.unpack_from(">Q13xI", body)
            prices[number] = price
        elif kind == b"U":
            number, price = struct.unpack_from(">8xQ4xI", body)
            prices[number] = price
        elif kind == b"E":
            number, shares = struct.unpack_from(">QI", body)
            executed.append((prices[number], shares))
    found = typed_trades(spark, day, "error")
    assert found is not None
    of_orders = found.where("type = 'E'")
    value = sum(price * shares for price, shares in executed)
    assert len(executed) > 100
    assert first(of_orders, f.count("price"), f.sum("size"), (f.sum(f.expr("price * size")) * 10_000).cast("long")) == (
        len(executed),
        sum(shares for _, shares in executed),
        value,
    )


def test_execution_of_an_order_from_before_the_recording_has_no_price(spark: SparkSession, tmp_path: Path) -> None:
    day = Day(tmp_path / "day", feed_of(schema="itch50"))
    day.put(0, Put((Row(b"A.E", b"E" + bytes(10) + struct.pack(">QIQ", 7, 100, 1)),)))
    found = recorded_trades(spark, day.path)
    assert found is not None
    assert [(row.symbol, row.price, row.size) for row in found.collect()] == [("A", None, 100)]
