"""Days with repeated, cancelled, empty and excluded trades; a plain loop determines which trades count."""

from __future__ import annotations

import datetime
import json
import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy
from hypothesis import strategies as st

from blackbox import Recording, Schema
from blackbox.archive.export.ticks import LeftOut
from blackbox.feed.schema.schema import BreakFields, QuoteFields, TradeFields, price
from tests.journals import Day, Put, Row, feed_of

_DEAL = numpy.dtype([("type", "S1"), ("only", "S1"), ("id", "<i8"), ("price", price("<i8", 2)), ("size", "<u4")])
_QUOTE = numpy.dtype(
    [
        ("type", "S1"),
        ("bid", price("<i8", 2, absent=99)),
        ("bid_size", "<u4"),
        ("ask", price("<i8", 2, absent=99)),
        ("ask_size", "<u4"),
    ]
)
ABSENT = 99
DEALS = Schema(
    "deals",
    1_790,
    {**dict.fromkeys("TUBC", _DEAL), "Q": _QUOTE},
    trades=(
        TradeFields("T", "price", "size", only=("only", "Y"), id="id"),
        TradeFields("U", "price", "size", rank=1, id="id"),
    ),
    quotes=(QuoteFields("Q", "bid", "bid_size", "ask", "ask_size", one_sided=True),),
    breaks=(BreakFields("B", "id", "price", "size"), BreakFields("C", "id")),
)
"""T and U are trades; U counts only for symbols without T. B cancels by id, price and size, C by id alone."""
SECOND = 10**9


class Deal(NamedTuple):
    """A message and the epoch of its block."""

    symbol: str
    kind: str
    id: int
    price: int = 100
    size: int = 1
    time: int = 1
    only: str = "Y"
    epoch: int = 1

    @property
    def row(self) -> Row:
        text = struct.pack("<ccqqI", self.kind.encode(), self.only.encode(), self.id, self.price, self.size)
        return Row(f"{self.symbol}.{self.kind}".encode(), text, self.time * SECOND)


class Sides(NamedTuple):
    """A quote; None marks an absent side."""

    symbol: str
    bid: int | None
    ask: int | None
    time: int = 1
    size: int = 1

    @property
    def row(self) -> Row:
        bid, ask = (ABSENT if value is None else value for value in (self.bid, self.ask))
        return Row(
            f"{self.symbol}.Q".encode(),
            struct.pack("<cqIqI", b"Q", bid, self.size, ask, self.size + 1),
            self.time * SECOND,
        )


class Counted(NamedTuple):
    """A trade that counts."""

    symbol: str
    ts_event: int
    price: int
    size: int
    trade_id: int
    sequence: int


def write_deals(path: Path, rows: Sequence[Deal | Sides], date: str = "2026-11-20", key_bytes: int = 0) -> Recording:
    """Write a day with one message per block."""
    day = Day(path, feed_of(key_bytes=key_bytes, schema=DEALS), date=date)
    puts = []
    places: Counter[tuple[int, bytes]] = Counter()
    for number, each in enumerate(rows):
        stream = (getattr(each, "epoch", 1), each.row.topic[:key_bytes])
        puts.append(Put((each.row,), sequence=places[stream], ts_out=number, ts_recv=number, epoch=stream[0]))
        places[stream] += 1
    if puts:
        day.put(0, *puts)
    return Recording.open(path)


def counted(rows: Sequence[Deal], broken: bool = False) -> tuple[list[Counted], dict[str, int]]:
    """Return the trades that count, in order, and the numbers of messages left out."""
    left_out = Counter(dict.fromkeys(LeftOut.__struct_fields__, 0))
    places: Counter[int] = Counter()
    trades = []
    for each in rows:
        sequence, places[each.epoch] = places[each.epoch], places[each.epoch] + 1
        if each.kind in "TU":
            reason = "not_trades" if each.kind == "T" and each.only != "Y" else "no_size" if not each.size else ""
            left_out[reason] += bool(reason)
            if not reason:
                trades.append((each, sequence))
    found = []
    for each, sequence in trades:
        own = [other for other, _ in trades if other.symbol == each.symbol]
        if each.kind != min(other.kind for other in own):
            left_out["other_type"] += 1
            continue
        first = min((other.time, other.epoch, place) for other, place in trades if (*other[:5],) == (*each[:5],))
        if first != (each.time, each.epoch, sequence):
            left_out["repeated"] += 1
            continue
        taken_back = [
            other
            for other in rows
            if (other.symbol, other.id) == (each.symbol, each.id)
            and (other.kind == "C" or (other.kind == "B" and (other.price, other.size) == (each.price, each.size)))
        ]
        if taken_back and not broken:
            left_out["broken"] += 1
            continue
        found.append(Counted(each.symbol, each.time * SECOND, each.price, each.size, each.id, sequence))
    del left_out[""]
    return found, dict(left_out)


def days_of_deals(most: int = 25) -> st.SearchStrategy[list[Deal]]:
    """Generate rows from few values, so that many are equal."""
    return st.lists(
        st.builds(
            Deal,
            st.sampled_from(["A", "A.B", "C"]),
            st.sampled_from("TTTUBC"),
            st.integers(-1, 2),
            st.sampled_from([-100, 0, 100]),
            st.sampled_from([0, 1, 1, 2]),
            st.integers(1, 4),
            st.sampled_from("YYYN"),
            st.sampled_from([1, 1, 2]),
        ),
        max_size=most,
    )


def carried(rows: Sequence[Deal | Sides]) -> list[tuple[str, int | None, int | None, int | None, int | None]]:
    """Return symbol, bid price and size, ask price and size of each quote, carrying absent sides forward."""
    known: dict[tuple[str, str], tuple[int, int]] = {}
    found = []
    for each in rows:
        if isinstance(each, Sides):
            for name, value, size in (("bid", each.bid, each.size), ("ask", each.ask, each.size + 1)):
                if value is not None:
                    known[each.symbol, name] = value, size
            bid, ask = (known.get((each.symbol, name), (None, None)) for name in ("bid", "ask"))
            found.append((each.symbol, *bid, *ask))
    return found


def days_of_sides(most: int = 20) -> st.SearchStrategy[list[Sides]]:
    """Generate quotes, many with one or no side, at unordered times."""
    side = st.one_of(st.none(), st.sampled_from([-5, 0, 7]))
    return st.lists(
        st.builds(Sides, st.sampled_from(["A", "C"]), side, side, st.integers(1, 6), st.integers(0, 3)), max_size=most
    )


def frame_of_binance(place: int, kind: str, **members: object) -> Row:
    """Return a line of the Binance collector for symbol `btc`."""
    document = json.dumps({"stream": f"btc@{kind}", "data": {"e": kind, **members}})
    time = int(datetime.datetime(2026, 11, 20, tzinfo=datetime.UTC).timestamp()) * SECOND + place
    return Row(f"btc.{kind}".encode(), f"{time} {document}\n".encode(), time)
