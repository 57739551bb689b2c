"""Messages left out of trades, and both sides of quotes, in frames, against a plain loop."""

from __future__ import annotations

import dataclasses
import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pandas
import polars
import pytest
from blackbox_feeds.binance import Binance
from blackbox_feeds.dbn import Dbn
from blackbox_feeds.iex import Iex
from hypothesis import given, settings

from blackbox import ConfigError, Recording, Recordings, Schema
from blackbox.feed.schema.schema import BreakFields, TradeFields
from tests.deals import (
    DEALS,
    SECOND,
    Counted,
    Deal,
    Sides,
    carried,
    counted,
    days_of_deals,
    days_of_sides,
    frame_of_binance,
    write_deals,
)
from tests.examples import examples
from tests.feeds.build import messages_of
from tests.journals import Day, Put, Row, feed_of
from tests.odd_json import ODD, odd_day, odd_quotes, odd_trades
from tests.recorded import AS_SENT, recorded

few = settings(max_examples=examples(60), deadline=None)
QUOTED = ("bid_price", "bid_size", "ask_price", "ask_size")


@pytest.fixture(scope="session")
def shared_cases(shared_data: Path) -> Path:
    return shared_data.parent / "cases"


def told(frame: polars.DataFrame) -> list[Counted]:
    return [Counted(*row) for row in frame.select(*Counted._fields).iter_rows()]


@few
@given(days_of_deals())
def test_trades_match_a_plain_loop(tmp_path_factory: pytest.TempPathFactory, rows: list[Deal]) -> None:
    recording = write_deals(tmp_path_factory.mktemp("day"), rows)
    found, left_out = counted(rows)
    assert told(recording.trades.to_polars(**AS_SENT)) == found
    assert msgspec.structs.asdict(recording.trades.left_out()) == left_out
    assert told(recording.trades.to_polars(broken=True, **AS_SENT)) == counted(rows, broken=True)[0]
    # A selection has the trades of the whole day, even if repetitions or breaks are outside it.
    for start, stop in ((2, None), (None, 3), (2, 4)):
        chosen: Any = {"start": start and start * SECOND, "stop": stop and stop * SECOND}
        inside = [each for each in found if (start or 0) * SECOND <= each.ts_event < (stop or 9) * SECOND]
        assert told(recording.trades.to_polars(**AS_SENT, **chosen)) == inside
    assert told(recording.trades.to_polars(b"A.U", **AS_SENT)) == [
        each for each in found if each.symbol == "A" and "T" not in {row.kind for row in rows if counts(row)}
    ]


def counts(row: Deal) -> bool:
    return row.symbol == "A" and row.size > 0 and (row.kind == "U" or (row.kind == "T" and row.only == "Y"))


def test_equal_sequences_of_several_keys_are_distinct(tmp_path: Path) -> None:
    """Messages of two keys have the same sequences; one of them is a repetition."""
    rows = [Deal("A", "T", 1), Deal("B", "T", 1), Deal("A", "T", 1, time=2), Deal("B", "T", 2, time=2)]
    found = write_deals(tmp_path, rows, key_bytes=1).trades.to_polars()
    assert list(zip(found["symbol"], found["trade_id"], strict=True)) == [("A", 1), ("B", 1), ("B", 2)]


def test_days_are_independent(tmp_path: Path) -> None:
    """Ids, breaks and sides of one day do not affect another."""
    first: list[Any] = [Deal("A", "T", 1), Sides("A", 1, None)]
    second: list[Any] = [Deal("A", "T", 1), Deal("A", "U", 2), Deal("A", "C", 7), Sides("A", None, 2)]
    third = [Deal("A", "U", 7), Deal("A", "U", 7)]
    for date, rows in (("2026-11-18", first), ("2026-11-19", second), ("2026-11-20", third)):
        write_deals(tmp_path / date, rows, date)
    days = Recordings.open(tmp_path)
    assert days.trades.to_polars()["trade_id"].to_list() == [1, 1, 7]
    assert msgspec.structs.asdict(days.trades.left_out()) == {
        "misfit": 0, "not_trades": 0, "no_size": 0, "no_price": 0, "other_type": 1, "repeated": 1, "broken": 0,
    }  # fmt: skip
    assert days.quotes.to_polars().select(*QUOTED).rows() == [(0.01, 1, None, None), (None, None, 0.02, 2)]


@few
@given(days_of_sides())
def test_carried_sides_of_quotes_match_a_plain_loop(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Sides]
) -> None:
    recording = write_deals(tmp_path_factory.mktemp("day"), rows)
    found = recording.quotes.to_polars(**AS_SENT)
    assert found.select("symbol", *QUOTED).rows() == carried(rows)
    # A selection has the sides of the whole day.
    time, places = polars.col("ts_event"), polars.col("sequence")
    parts: tuple[tuple[Any, polars.Expr], ...] = (
        ({"start": 3 * SECOND}, time >= 3 * SECOND),
        ({"stop": 3 * SECOND}, time < 3 * SECOND),
        ({"start": 2 * SECOND, "stop": 5 * SECOND, "slices": [0]}, time.is_between(2 * SECOND, 5 * SECOND - 1)),
        ({"first_sequence": 4}, places >= 4),
        ({"first_sequence": 4, "epoch": 1, "start": 3 * SECOND}, (places >= 4) & (time >= 3 * SECOND)),
    )
    for options, inside in parts:
        assert recording.quotes.to_polars(**AS_SENT, **options).equals(found.filter(inside))
    assert recording.quotes.to_polars(b"A.Q", **AS_SENT).equals(found.filter(polars.col("symbol") == "A"))


def test_a_selection_of_rows_of_a_block_has_the_sides_of_the_day(tmp_path: Path) -> None:
    """Bid 5 at t=5, ask 7 at t=3, bid 6 at t=4, ask 9 at t=6, in one block of several symbols."""
    sides = ((5, None, 5), (None, 7, 3), (6, None, 4), (None, 9, 6))
    rows = [each.row for bid, ask, time in sides for each in (Sides("C", 1, 1, time), Sides("A", bid, ask, time))]
    day = Day(tmp_path, feed_of(schema=DEALS))
    day.put(0, Put(tuple(rows)))
    quotes = Recording.open(tmp_path).quotes
    expected = [(5, None), (5, 7), (6, 7), (6, 9)]
    assert quotes.to_polars(b"A.", prices="integer").select("bid_price", "ask_price").rows() == expected
    found = quotes.to_polars(b"A.", prices="integer", start=4 * SECOND, stop=6 * SECOND)
    assert found.select("bid_price", "ask_price").rows() == [expected[0], expected[2]]
    assert quotes.to_polars(b"A.", prices="integer", first_sequence=7)["bid_price"].to_list() == [6]


def test_broken_trades_of_iex_are_left_out(tmp_path: Path, shared_data: Path) -> None:
    path = shared_data / "iex/goiex_TOPS16.pcapng.gz"
    trades = recorded(tmp_path, lambda: Iex(path)).trades
    assert trades.to_polars()["size"].sum() == 1_419_337
    assert trades.to_polars(broken=True)["size"].sum() == 1_419_337 + 8_570
    assert trades.left_out().broken == 3
    payloads = [payload for _, _, payload in messages_of(Iex(path))]
    ids = [struct.unpack_from("<q", payload, 30)[0] for payload in payloads if payload[:1] == b"T"]
    assert sorted(trades.to_polars(broken=True)["trade_id"].to_list()) == sorted(ids)


def test_repeated_trades_and_fills_of_binance_are_left_out(tmp_path: Path, shared_cases: Path) -> None:
    twice, fills = (
        recorded(tmp_path / name, lambda name=name: Binance(shared_cases / "binance" / name), slices=1).trades  # type: ignore[misc]
        for name in ("four_trades_twice_after_a_reconnect.txt", "fills_that_are_no_trades.txt")
    )
    trades = twice.to_pandas()
    assert (trades["size"].sum(), trades["trade_id"].tolist()) == (10, list(range(1, 11)))
    assert str(trades["trade_id"].dtype) == "Int64"
    assert twice.left_out().repeated == 4
    trades = fills.to_pandas()
    assert (trades["price"].max(), trades["size"].sum()) == (100.2, 4)
    assert fills.left_out().not_trades == 2


JSON_ROWS = (
    frame_of_binance(0, "trade", p="100.5", q="2", t=1),  # spot has no X
    frame_of_binance(1, "trade", p="100.5", q="2", t=2, X=None),
    frame_of_binance(2, "trade", p="0", q="5", t=3, X="NA"),
    frame_of_binance(3, "trade", p="-3.25", q="1e0", t="4", X="MARKET"),
    frame_of_binance(4, "trade", p="many", q="2", t=5),
    frame_of_binance(5, "trade", p="100", q="many", t=6),
    frame_of_binance(6, "trade", p="100", t=7),
    frame_of_binance(7, "trade", p="100", q=None, t=8),
    frame_of_binance(8, "trade", p="1_0", q="0x1", t=9),
    frame_of_binance(9, "trade", p=True, q=3, t=2**63),
    frame_of_binance(10, "trade", p="1", q=3, t="x"),
    frame_of_binance(11, "trade", p="1", q=3, t="x"),  # without a numeric id it is not a repetition
    frame_of_binance(12, "trade", p="Infinity", q="4", t=2**53 + 1),
    frame_of_binance(13, "trade", p="1e999", q="NaN", t=10),
    frame_of_binance(14, "trade", p={"a": 1}, q="5", t=11),
)
JSON_TRADES = [(100.5, 2.0, 1), (100.5, 2.0, 2), (-3.25, 1.0, 4), (1.0, 3.0, None), (1.0, 3.0, None)]


def test_json_trades_without_a_price_or_size_are_left_out(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of(schema="binance"))
    day.put(0, Put(JSON_ROWS))
    recording = Recording.open(day.path)
    assert recording.trades.to_polars().select("price", "size", "trade_id").rows() == JSON_TRADES
    assert msgspec.structs.asdict(recording.trades.left_out()) == {
        "misfit": 0, "not_trades": 1, "no_size": 5, "no_price": 4, "other_type": 0, "repeated": 0, "broken": 0,
    }  # fmt: skip


def test_unusual_json_documents_have_the_expected_values(tmp_path: Path) -> None:
    recording = odd_day(tmp_path)
    trades = recording.trades.to_polars().select("sequence", "price", "size", "trade_id")
    assert trades.rows() == odd_trades()
    left_out = recording.trades.left_out()
    assert left_out.no_size + left_out.no_price == len(ODD) - len(trades)
    quotes = recording.quotes.to_polars().select("sequence", *QUOTED)
    assert quotes.rows() == odd_quotes()


def nan_day(path: Path) -> Recording:
    """Write trades of doubles, one without a price and one without a size."""
    deal = numpy.dtype([("type", "S1"), ("price", "<f8"), ("size", "<f4")])
    schema = Schema("doubles", 1_792, {"T": deal}, trades=(TradeFields("T", "price", "size"),))
    day = Day(path, feed_of(schema=schema))
    values = ((1.5, 2), (numpy.nan, 3), (-2.5, numpy.nan), (-3.5, 4))
    rows = [numpy.array([(b"T", *each)], deal).tobytes() for each in values]
    day.put(0, Put(tuple(Row(b"A.T", row, 1) for row in rows)))
    return Recording.open(path)


def test_trades_with_nan_are_left_out(tmp_path: Path) -> None:
    trades = nan_day(tmp_path).trades
    assert trades.to_polars().select("price", "size").rows() == [(1.5, 2), (-3.5, 4)]
    assert (trades.left_out().no_price, trades.left_out().no_size) == (1, 1)


def test_ids_may_be_strings_of_several_lengths(tmp_path: Path) -> None:
    """The field of a break is wider than that of a trade."""
    deal = numpy.dtype([("type", "S1"), ("id", "S12"), ("price", "<f8"), ("size", "<u4")])
    cancel = numpy.dtype([("type", "S1"), ("id", "S20")])
    trades, breaks = (TradeFields("T", "price", "size", id="id"),), (BreakFields("C", "id"),)
    schema = Schema("texts", 1_791, {"T": deal, "C": cancel}, trades=trades, breaks=breaks)
    day = Day(tmp_path, feed_of(schema=schema))
    told_of = ((b"x-1", 1.5), (b"x-2", 1.5), (b"x-1", 1.5), (b"x-1", -0.0), (b"x-3", 1.5))
    rows = [Row(b"A.T", numpy.array([(b"T", *each, 1)], deal).tobytes(), 1) for each in told_of]
    day.put(0, Put((*rows, Row(b"A.C", numpy.array([(b"C", b"x-3")], cancel).tobytes(), 2))))
    found = Recording.open(tmp_path).trades
    assert found.to_polars().select("trade_id", "price").rows() == [("x-1", 1.5), ("x-2", 1.5), ("x-1", 0.0)]
    assert (found.left_out().repeated, found.left_out().broken) == (1, 1)


def test_records_of_a_wrong_size_are_left_out_and_counted(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of(schema=DEALS))
    rows = Deal("A", "T", 3).row, Sides("A", 1, 2).row
    short = [Row(row.topic, (row.payload or b"")[:-1], row.ts_event) for row in rows]
    day.put(0, Put((Deal("A", "T", 1).row, *short, Deal("A", "T", 2).row, Sides("A", 5, 7).row)))
    recording = Recording.open(tmp_path)
    assert recording.trades.to_polars()["trade_id"].to_list() == [1, 2]
    assert recording.quotes.to_polars(prices="integer")["bid_price"].to_list() == [5]
    assert recording.trades.left_out().misfit == recording.quotes.left_out().misfit == 1


def test_settings_of_another_kind_are_rejected(tmp_path: Path) -> None:
    recording = write_deals(tmp_path, [])
    with pytest.raises(ConfigError, match="broken was given for messages, it applies only to recording.trades"):
        recording.to_arrow(broken=True)
    with pytest.raises(ConfigError, match="broken was given for quotes, it applies only to trades"):
        recording.quotes.to_arrow(broken=True)
    quote = dataclasses.replace(DEALS.quotes[0], absent=0)
    with pytest.raises(ConfigError, match="quotes of type 'Q' had absent 0, expected it only for payloads of JSON"):
        dataclasses.replace(DEALS, quotes=(quote,))


def test_trades_and_quotes_join_in_pandas_and_polars(tmp_path: Path, shared_data: Path) -> None:
    """Columns of trades and quotes have the same dtypes for any symbols and nulls."""
    rows: list[Any] = [Deal("A", "T", 1, time=2), Deal("B", "T", 2, time=3), Sides("C", 1, 2), Sides("A", 3, None)]
    mbp = recorded(tmp_path / "dbn", lambda: Dbn(shared_data / "dbn/futures_mbp-1_2024-07-01T23-58.dbn.zst"))
    for recording in (mbp, write_deals(tmp_path / "deals", rows)):
        forms: tuple[Any, ...] = ({}, {"times": "integer", "prices": "integer"})
        for form in forms:
            trades, quotes = (each.to_pandas(**form) for each in (recording.trades, recording.quotes))
            common = [column for column in trades if column in quotes]
            assert len(common) == 9
            assert [trades[each].dtype for each in common] == [quotes[each].dtype for each in common]
            left, right = (each.sort_values("ts_event", kind="stable") for each in (trades, quotes))
            joined = pandas.merge_asof(left, right, on="ts_event", by="symbol", suffixes=("", "_quote"))
            lean, other = (each.to_polars(**form) for each in (recording.trades, recording.quotes))
            assert [lean[each].dtype for each in common] == [other[each].dtype for each in common]
            found = lean.sort("ts_event", maintain_order=True).join_asof(
                other.sort("ts_event", maintain_order=True), on="ts_event", by="symbol", check_sortedness=False
            )
            bids = joined["bid_price"].astype(object)
            assert bids.where(bids.notna(), None).tolist() == found["bid_price"].to_list()
            assert bids.notna().any()
