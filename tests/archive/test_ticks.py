"""Trades and quotes of recordings as frames, against the source files read message by message."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import databento_dbn
import polars
import pytest
import zstandard
from blackbox_feeds.binance import Binance
from blackbox_feeds.dbn import Dbn
from blackbox_feeds.itch50 import Itch50
from blackbox_feeds.tape import Tape
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blackbox import ConfigError, Recording
from tests.analysis.tape import tape
from tests.examples import examples
from tests.feeds.build import messages_of
from tests.journals import Day, Put, Row, feed_of
from tests.recorded import AS_SENT, recorded

QUOTED = ("bid_price", "bid_size", "ask_price", "ask_size")
SYMBOLS = st.sampled_from([b"A", b"A.B", b"C"])
few = settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def itch_trades(messages: list[tuple[bytes, int, bytes]]) -> list[tuple[bytes, int | None, int]]:
    """Return (symbol, price, shares) of each ITCH trade, in order; price None for an unknown order."""
    prices: dict[tuple[bytes, int], int] = {}
    found: list[tuple[bytes, int | None, int]] = []
    for topic, _, message in messages:
        kind, body, symbol = message[:1], message[11:], topic.rpartition(b".")[0]
        if kind in b"AF":
            number, price = struct.unpack_from(">Q13xI", body)
            prices[symbol, number] = price
        elif kind == b"U":
            number, price = struct.unpack_from(">8xQ4xI", body)
            prices[symbol, number] = price
        elif kind == b"E":
            number, shares = struct.unpack_from(">QI", body)
            found.append((symbol, prices.get((symbol, number)), shares))
        elif kind == b"C" and body[20:21] == b"Y":
            shares, price = struct.unpack_from(">8xI9xI", body)
            found.append((symbol, price, shares))
        elif kind == b"P":
            shares, price = struct.unpack_from(">9xI8xI", body)
            found.append((symbol, price, shares))
        elif kind == b"Q":
            shares, price = struct.unpack_from(">Q8xI", body)
            found.append((symbol, price, shares))
    return [each for each in found if each[2] > 0]


def columns(frame: polars.DataFrame, *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(frame[name].to_list() for name in names), strict=True))


def test_trades_of_itch_have_the_price_of_their_order(tmp_path: Path, shared_data: Path) -> None:
    def make() -> Itch50:
        return Itch50(shared_data / "itch50/runk_locate-13-10k.bin", date="2020-01-30")

    recording = recorded(tmp_path, make, slices=1)
    told = itch_trades(list(messages_of(make())))
    assert len(told) > 4
    found = recording.trades.to_polars(**AS_SENT)
    assert columns(found, "symbol", "price", "size") == [(symbol.decode(), *rest) for symbol, *rest in told]
    exact = recording.trades.to_polars()
    assert exact["price"].to_list() == [None if price is None else price / 10_000 for _, price, _ in told]
    assert exact.columns[-3:] == ["price", "size", "trade_id"]
    executed = recording.trades.to_polars(b"AAPL.E", **AS_SENT)
    assert executed["price"].null_count() == 0
    start = executed["ts_event"][len(executed) // 2]
    later = executed.filter(polars.col("ts_event") >= start)
    assert recording.trades.to_polars(b"AAPL.E", start=start, **AS_SENT).equals(later)
    chunks = list(recording.trades.polars_chunks(b"AAPL.E", rows=100, start=start, **AS_SENT))
    assert [row for chunk in chunks for row in chunk["sequence"]] == later["sequence"].to_list()
    assert len(chunks) > 1


@few
@given(*(st.lists(st.tuples(SYMBOLS, st.integers(1, 8), st.integers(low, 3)), max_size=12) for low in (1, 0)))
def test_orders_of_symbols_are_separate(
    tmp_path_factory: pytest.TempPathFactory,
    entered: list[tuple[bytes, int, int]],
    executed: list[tuple[bytes, int, int]],
) -> None:
    entered = list({(symbol, number): (symbol, number, price) for symbol, number, price in entered}.values())
    rows = [Row(s + b".A", b"A" + bytes(10) + struct.pack(">QcI8sI", n, b"B", 1, b"", p), 1) for s, n, p in entered]
    rows += [
        Row(s + b".E", b"E" + bytes(10) + struct.pack(">QIQ", n, shares, match), 2)
        for match, (s, n, shares) in enumerate(executed)
    ]
    day = Day(tmp_path_factory.mktemp("day") / "day", feed_of(schema="itch50"))
    if rows:
        day.put(0, Put(tuple(rows)))
    prices = {(symbol, number): price for symbol, number, price in entered}
    told = [(s.decode(), prices.get((s, number)), shares) for s, number, shares in executed if shares]
    recording = Recording.open(day.path)
    assert columns(recording.trades.to_polars(**AS_SENT), "symbol", "price", "size") == told
    for prefix in (b"A.E", b"A.B.E", b"C"):
        found = columns(recording.trades.to_polars(prefix, **AS_SENT), "symbol", "price", "size")
        assert found == [each for each in told if (each[0] + ".E").encode().startswith(prefix)]


def records_of(path: Path) -> list[Any]:
    """Return the records from Databento's own decoder, without the metadata."""
    decoder = databento_dbn.DBNDecoder()
    decoder.write(zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read())
    return list(decoder.decode())[1:]


def test_trades_and_quotes_of_dbn(tmp_path: Path, shared_data: Path) -> None:
    path = shared_data / "dbn/futures_mbp-1_2024-07-01T23-58.dbn.zst"
    recording = recorded(tmp_path, lambda: Dbn(path), slices=1)
    records = records_of(path)
    trades = [(each.ts_event, each.price, each.size) for each in records if each.action == "T"]
    assert columns(recording.trades.to_polars(**AS_SENT), "ts_event", "price", "size") == trades
    levels = [each.levels[0] for each in records]
    quotes = [(each.bid_px / 10**9, each.bid_sz, each.ask_px / 10**9, each.ask_sz) for each in levels]
    assert columns(recording.quotes.to_polars(), *QUOTED) == quotes
    assert len(quotes) == 2_288


def both_sides(rows: Iterable[dict[str, Any]]) -> list[tuple[int | None, ...]]:
    """Return price and size of bid and ask of each quote; a missing side is the last known one."""
    told, sides = [], dict.fromkeys(QUOTED)
    for row in rows:
        for side in ("bid", "ask"):
            if row[f"{side}_price"]:
                sides |= {f"{side}_{part}": row[f"{side}_{part}"] for part in ("price", "size")}
        told.append(tuple(sides.values()))
    return told


def test_quotes_of_the_tape_have_both_sides(tmp_path: Path, shared_data: Path) -> None:
    for kind in ("trade", "quote"):
        (tmp_path / f"ibm_20131007_{kind}.zip").symlink_to(shared_data / "lean" / f"ibm_20131007_{kind}.zip")
    recording = recorded(tmp_path / "out", lambda: Tape(tmp_path), time_zone="America/New_York")
    rows = tape(shared_data, "IBM", "quote", "2013-10-07")
    found = recording.quotes.to_polars(**AS_SENT)
    assert columns(found, *QUOTED) == both_sides(rows.iter_rows(named=True))
    assert len(found) > 100_000
    start = found["ts_event"][50_000]
    later = recording.quotes.to_polars(start=start, **AS_SENT)
    assert later.equals(found.filter(polars.col("ts_event") >= start))
    assert later["bid_price"].null_count() == later["ask_price"].null_count() == 0
    frame = recording.trades.to_pandas()
    trades = tape(shared_data, "IBM", "trade", "2013-10-07")
    assert len(frame) == len(trades)
    assert (frame["price"] * 10_000).round().astype("int64").tolist() == trades["price"].to_list()
    assert frame["size"].tolist() == trades["size"].to_list()
    assert str(frame["ts_event"].dtype) == "datetime64[ns, America/New_York]"
    assert frame["ts_event"].astype("int64").tolist() == trades["ts_event"].to_list()


def test_frames_of_binance_are_trades_and_quotes(tmp_path: Path, shared_data: Path) -> None:
    path = shared_data / "binance/spot_btcusdt_20240808.gz"
    recording = recorded(tmp_path, lambda: Binance(path), slices=1)
    frames = [json.loads(line.split(b" ", 1)[1]) for line in gzip.decompress(path.read_bytes()).splitlines()]
    of = {
        kind: [each["data"] for each in frames if each.get("stream", "").endswith(f"@{kind}")]
        for kind in ("trade", "bookTicker")
    }
    trades = [(float(each["p"]), float(each["q"])) for each in of["trade"] if float(each["q"]) > 0]
    assert columns(recording.trades.to_polars(), "price", "size") == trades
    quotes = [tuple(float(each[member]) for member in "bBaA") for each in of["bookTicker"]]
    assert columns(recording.quotes.to_polars(), *QUOTED) == quotes
    assert min(len(trades), len(quotes)) > 1_000


def test_each_symbol_has_the_trades_of_its_own_first_type(tmp_path: Path) -> None:
    def frame(symbol: str, kind: str, document: str) -> Row:
        return Row(f"{symbol}.{kind}".encode(), f"1 {document}".encode(), 10**18)

    inner = '{"stream":"x","data":{"p":"%d","q":"2"}}'
    told = (
        frame("btc", "aggTrade", inner % 2),
        frame("btc", "trade", '{"p":1.5,"q":"2"}'),
        frame("eth", "aggTrade", inner % 3),
        frame("eth", "trade", inner.replace('"2"', '"0"') % 9),  # no size: not a trade
        frame("eth", "aggTrade", inner % 4),
        frame("xrp", "trade", "no document"),
        frame("xrp", "trade", '{"p":"many","q":"2"}'),  # no price: not a trade
        Row(b"xrp.trade", None, 10**18),
    )
    day = Day(tmp_path, feed_of(schema="binance"))
    day.put(0, Put(told[:3]), Put(told[3:], 3))
    found = Recording.open(day.path).trades.to_polars()
    assert columns(found, "symbol", "price") == [("btc", 1.5), ("eth", 3.0), ("eth", 4.0)]


def test_a_schema_without_trades_or_quotes_is_named(tmp_path: Path) -> None:
    recording = Recording.open(Day(tmp_path / "day", feed_of()).path)
    with pytest.raises(ConfigError, match=r"schema 'raw' declares no trades, expected some in Schema\.trades"):
        _ = recording.trades
    deep = Recording.open(Day(tmp_path / "deep", feed_of(schema="iex_deep10")).path)
    with pytest.raises(ConfigError, match="schema 'iex_deep10' declares no quotes"):
        _ = deep.quotes
    with pytest.raises(ConfigError, match="message_type was given for trades, the schema defines their types"):
        deep.trades.to_arrow(message_type="T")
    assert deep.trades.to_arrow().shape == (0, 12)
