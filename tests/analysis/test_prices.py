"""Trades and quotes of every feed by its schema, compared with the source files; and reports of such days."""

from __future__ import annotations

import gzip
import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import databento_dbn
import pytest
import zstandard
from blackbox_feeds.binance import Binance
from blackbox_feeds.dbn import Dbn
from blackbox_feeds.itch50 import Itch50
from blackbox_feeds.tape import Tape
from pyspark.sql import functions as f

from blackbox.analysis import recorded_quotes, recorded_trades, time_bars, with_spread
from blackbox.analysis.measure_day import measure_day
from blackbox.analysis.prices import typed_trades
from tests.analysis.tape import first_rows, tape
from tests.feeds.build import messages_of
from tests.journals import Day, Put, Row, feed_of
from tests.recorded import record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LEAN = "2013-10-07"


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


def test_tape_has_both_sides_and_nothing_suspicious(spark: SparkSession, tmp_path: Path, shared_data: Path) -> None:
    source = first_rows(shared_data, tmp_path / "lean")
    day = day_of(record(tmp_path, "tape", lambda: Tape(source), time_zone="America/New_York"))
    quotes = tape(shared_data, "IBM", "quote", LEAN)[:5_000]
    trades = tape(shared_data, "IBM", "trade", LEAN)[:1_000]
    value = int((trades["price"] * trades["size"]).sum())
    assert first(recorded_trades(spark, day), f.count("*"), (f.sum(f.expr("price * size")) * 10_000).cast("long")) == (
        len(trades),
        value,
    )
    found = recorded_quotes(spark, day)
    assert found is not None
    spreads = [ask - bid for bid, ask in whole(quotes.rows(named=True)) if bid and ask]
    assert first(with_spread(found), f.count("spread"), (f.sum("spread") * 10_000).cast("long")) == (
        len(spreads),
        sum(spreads),
    )
    report = measure_day(spark, day)
    (ibm,) = report.instruments
    assert 0 < sum(bar.volume for bar in ibm.bars) <= trades["size"].sum()
    assert ibm.spreads
    assert report.prices == "Bars are of the trades of type T. Spreads are of the quotes of type Q."


def whole(quotes: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Return both prices of each quote, with the last values for absent sides."""
    told, sides = [], {"bid_price": 0, "ask_price": 0}
    for quote in quotes:
        sides.update({name: quote[name] for name in sides if quote[name] > 0})
        told.append((sides["bid_price"], sides["ask_price"]))
    return told


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param("esh4-glbx-mdp3-20231225.mbo", "mbo", marks=pytest.mark.long),
        ("futures_mbp-1_2024-07-01T23-58", "mbp-1"),
    ],
)
def test_dbn_counts_the_trades_of_one_type_whatever_the_topics(
    spark: SparkSession, tmp_path: Path, shared_data: Path, name: str, kind: str
) -> None:
    path = shared_data / "dbn" / f"{name}.dbn.zst"
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
    if kind == "mbp-1":
        spreads = [each.levels[0].ask_px - each.levels[0].bid_px for each in records]
        expected = len(records), pytest.approx(sum(spreads) / 10**9)
        assert first(with_spread(quotes), f.count("*"), f.sum("spread")) == expected
    else:
        assert quotes.count() == 0


@pytest.mark.long
def test_binance_frames_are_trades_and_quotes(spark: SparkSession, tmp_path: Path, shared_data: Path) -> None:
    path = shared_data / "binance" / "spot_btcusdt_20240808.gz"
    day = day_of(record(tmp_path, "btc", lambda: Binance(path)))
    frames = [json.loads(line.split(b" ", 1)[1]) for line in gzip.decompress(path.read_bytes()).splitlines()]
    of = {
        kind: [each["data"] for each in frames if each.get("stream", "").endswith(f"@{kind}")]
        for kind in ("trade", "bookTicker")
    }
    trades = [(float(each["p"]), float(each["q"])) for each in of["trade"] if float(each["q"]) > 0]
    quotes = [[float(each[member]) for member in "bBaA"] for each in of["bookTicker"]]
    found = recorded_trades(spark, day)
    assert first(found, f.count("*"), f.sum("size"), f.max("price")) == (
        len(trades),
        pytest.approx(sum(size for _, size in trades)),
        max(price for price, _ in trades),
    )
    sides = ("bid_price", "bid_size", "ask_price", "ask_size")
    sums = [pytest.approx(sum(column)) for column in zip(*quotes, strict=True)]
    assert first(recorded_quotes(spark, day), *map(f.sum, sides)) == tuple(sums)
    assert found is not None
    assert first(time_bars(found, "1m"), f.sum("volume")) == (pytest.approx(sum(size for _, size in trades)),)
    (bitcoin,) = measure_day(spark, day).instruments
    assert (bitcoin.symbol, len(bitcoin.bars) > 50, len(bitcoin.spreads) > 50) == ("btcusdt", True, True)


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
    spark: SparkSession, tmp_path: Path, shared_data: Path
) -> None:
    path = shared_data / "itch50" / "runk_locate-13-10k.bin"
    day = day_of(record(tmp_path, "itch", lambda: Itch50(path, date="2020-01-30")))
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
