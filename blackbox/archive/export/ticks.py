"""Select trades and quotes, with their prices, as a feed's schema declares them.

    whole day ==first pass==> orders, ranks, broken trades, ids that occur twice ==second pass==> repetitions
    selection ==frames==> messages of the declared types, without those that the day excludes

The whole day decides whether a message counts, so that every selection has the same trades as the day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import numpy
import pyarrow
from numpy.typing import NDArray

from blackbox.archive.export.day_of_trades import Breaks, Orders, Repeated, id_keys
from blackbox.archive.export.members import reader_of, text
from blackbox.archive.export.table import Chosen, Picks
from blackbox.archive.export.tick_records import Symbols, Tick, block_rows
from blackbox.block.batch.batch import Batch
from blackbox.feed.routing.symbol import BEFORE_FIRST, WHOLE, SymbolRule
from blackbox.feed.schema.schema import QuoteFields, Schema, TradeFields

if TYPE_CHECKING:
    from blackbox.archive.data_frames import Frames
    from blackbox.archive.read.filter import Selection

_SIDES: Final = ("bid", "ask")
_QUOTED: Final = ("bid_price", "bid_size", "ask_price", "ask_size")

What = Literal["trades", "quotes"]


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of the declared types that are not trades. Each is counted once, at the first reason that applies."""

    misfit: int = 0
    """The payload's size differs from the schema's."""
    not_trades: int = 0
    """Excluded by `TradeFields.only`."""
    no_size: int = 0
    """Size 0, or no size."""
    no_price: int = 0
    """The price is missing or not a number. Trades that name only an order are kept, even if its price is unknown."""
    other_type: int = 0
    """The type repeats those of another type (`TradeFields.rank`)."""
    repeated: int = 0
    """Same symbol, id, price and size as an earlier trade of the day."""
    broken: int = 0
    """Cancelled by the venue (`Schema.breaks`)."""

    def __add__(self, other: LeftOut) -> LeftOut:
        names = self.__struct_fields__
        return LeftOut(**{name: getattr(self, name) + getattr(other, name) for name in names})


def picks_of(source: Frames, what: What, prefix: bytes, selection: Selection, broken: bool) -> Picks:
    """Return the trades, or quotes, of a selection. `broken` includes trades that the venue cancelled.

    If the schema requires it, the whole day is scanned before the first selection.
    """
    ticks, look_up = _ticks_of(source, what, prefix, selection, broken)
    return tuple(tick.pick(look_up) for tick in ticks)


def left_out_of(source: Frames, what: What, prefix: bytes, selection: Selection) -> LeftOut:
    """Return how many messages of the selection are not among the trades, or quotes."""
    ticks, look_up = _ticks_of(source, what, prefix, selection, broken=False)
    look_up()
    for batch in source.batches(prefix, **selection):
        for tick in ticks:
            tick.choose(batch)
    return sum((LeftOut(**tick.left_out) for tick in ticks), LeftOut())


def _ticks_of(
    source: Frames, what: What, prefix: bytes, selection: Selection, broken: bool
) -> tuple[Sequence[Tick], Callable[[], None]]:
    """Return the declared trades, or quotes, and a function that scans the day, once, for those that count."""
    schema, symbols = source.schema, Symbols(source.feed.symbol_rule)
    whole = _of_whole_symbols(prefix, symbols.rule)

    def day() -> Iterator[Batch]:
        return source.batches(whole)

    if what == "trades":
        trades = [Trades(schema, symbols, each, broken) for each in schema.trades]
        return trades, cache(lambda: _look_up(day, trades, schema, symbols))
    is_part = prefix != whole or any(value is not None for value in selection.values())
    quotes = [
        _QuotesOfPart(schema, symbols, each, day) if is_part and each.one_sided else _Quotes(schema, symbols, each)
        for each in schema.quotes
    ]
    return quotes, cache(lambda: _look_up_ranks(day, quotes))


def _of_whole_symbols(prefix: bytes, rule: SymbolRule) -> bytes:
    """Return a prefix that matches all topics of the symbols that have a topic with this prefix."""
    if rule.symbol == WHOLE:
        return prefix
    separator = rule.separator.encode()
    return prefix[: (prefix.find if rule.symbol == BEFORE_FIRST else prefix.rfind)(separator) + 1] or prefix


class Trades(Tick):
    """The trades of one declaration."""

    def __init__(self, schema: Schema, symbols: Symbols, fields: TradeFields, broken: bool) -> None:
        names = {"price": fields.price, "size": fields.size, "trade_id": fields.id}
        super().__init__(schema, symbols, fields.message_type, names, fields.rank)
        self.orders: Orders | None = None
        self.breaks: Breaks | None = None
        self.repeated: Repeated | None = None
        self.has_id = fields.id is not None
        self.order = fields.order
        self._only, self._broken = fields.only, broken
        if self.order is not None:
            price = schema.arrow(schema.orders[0].message_type).field(schema.orders[0].price)
            self._columns["price"] = price.with_name("price").with_nullable(True)
            self._kinds |= {"price": numpy.int64, "order": numpy.uint64}
        if fields.id is None or schema.json is not None:
            self._columns["trade_id"] = pyarrow.field("trade_id", pyarrow.int64())
            self._kinds["trade_id"] = numpy.int64
        if schema.json is not None:
            members = [fields.price, fields.size, fields.id, fields.only and fields.only[0]]
            self._read_members = reader_of(schema.json, members)

    def read(self, batch: Batch) -> Chosen:
        """Return the trades of a batch that match the declaration, without the prices of orders."""
        rows, records, only = self._of_records(batch) if self._json is None else self._of_json(batch)
        rows, records = self._kept(only, rows, records, "not_trades")
        rows, records = self._kept(records["has_size"] & (records["size"] > 0), rows, records, "no_size")
        if self.order is not None:
            return rows, records
        return self._kept(records["has_price"], rows, records, "no_price")

    def choose(self, batch: Batch) -> Chosen:
        """Return the trades of a batch that count, with prices."""
        rows, records = self.of_lowest_rank(batch, self.read(batch))
        if not len(rows):
            return rows, records
        self.take_prices(batch, rows, records)
        if self.repeated is not None:
            rows, records = self._kept(~self.repeated.has(batch, rows), rows, records, "repeated")
        if self.breaks is not None and not self._broken:
            rows, records = self._kept(~self.breaks.of(batch, rows, records), rows, records, "broken")
        return rows, records

    def take_prices(self, batch: Batch, rows: NDArray[numpy.int64], records: NDArray[Any]) -> None:
        """Set the prices of trades that have those of their orders."""
        if self.orders is not None and self.order is not None:
            records["price"], records["has_price"] = self.orders.prices(batch, rows, records["order"])

    def _of_records(self, batch: Batch) -> tuple[NDArray[numpy.int64], NDArray[Any], NDArray[numpy.bool_]]:
        rows, records = self._records(batch)
        found = numpy.zeros(len(rows), self.dtype)
        self._take_fields(found, records)
        if self.order is not None:
            found["order"] = records[self.order]
        if self._only is None:
            return rows, found, numpy.ones(len(rows), bool)
        name, value = self._only
        return rows, found, records[name] == (value.encode() if isinstance(value, str) else value)

    def _of_json(self, batch: Batch) -> tuple[NDArray[numpy.int64], NDArray[Any], NDArray[numpy.bool_]]:
        rows, found, (prices, sizes, ids, only) = self._documents(batch, 4)
        self._take_numbers(found, "price", prices)
        self._take_numbers(found, "size", sizes)
        self._take_ids(found, ids)
        value = None if self._only is None else text(self._only[1])
        return rows, found, numpy.array([each is None or text(each) == value for each in only], bool)


class _Quotes(Tick):
    """The quotes of one declaration."""

    def __init__(self, schema: Schema, symbols: Symbols, fields: QuoteFields) -> None:
        names = {name: getattr(fields, name) for name in _QUOTED}
        super().__init__(schema, symbols, fields.message_type, names, fields.rank)
        self._columns = {name: column.with_nullable(True) for name, column in self._columns.items()}
        self._carries = fields.one_sided
        self._absent = fields.absent
        self._last = numpy.zeros(1_024, self.dtype)
        """The last quote of each symbol number."""
        if schema.json is not None:
            self._read_members = reader_of(schema.json, list(names.values()))

    def read(self, batch: Batch) -> Chosen:
        """Return the quotes of a batch."""
        if self._json is None:
            rows, records = self._records(batch)
            found = numpy.zeros(len(rows), self.dtype)
            self._take_fields(found, records)
        else:
            rows, found, members = self._documents(batch, len(_QUOTED))
            for name, values in zip(_QUOTED, members, strict=True):
                self._take_numbers(found, name, values)
        for side in _SIDES:
            if self._absent is not None:
                found[f"has_{side}_price"] &= found[f"{side}_price"] != self._absent
            found[f"has_{side}_size"] &= found[f"has_{side}_price"]
        return rows, found

    def choose(self, batch: Batch) -> Chosen:
        """Return the quotes of a batch that count, with both sides if known."""
        rows, records = self.of_lowest_rank(batch, self.read(batch))
        if self._carries and len(rows):
            self._carry(self._symbols.of_rows(batch, rows).astype(numpy.int64), records)
        return rows, records

    def _carry(self, symbols: NDArray[numpy.int64], records: NDArray[Any]) -> None:
        """Fill each missing side from the symbol's last quote that had it."""
        while len(self._last) <= symbols.max():
            self._last = numpy.concatenate((self._last, numpy.zeros_like(self._last)))
        order = numpy.argsort(symbols, kind="stable")
        symbol, own = symbols[order], records[order]
        index = numpy.arange(len(order))
        starts = numpy.flatnonzero(numpy.diff(symbol, prepend=-1))
        start = numpy.repeat(starts, numpy.diff(starts, append=len(order)))
        for side in _SIDES:
            last = numpy.maximum.accumulate(numpy.where(own[f"has_{side}_price"], index, -1))
            inside = last >= start
            for part in (f"{side}_price", f"{side}_size", f"has_{side}_price", f"has_{side}_size"):
                own[part] = numpy.where(inside, own[part][last], self._last[part][symbol])
        self._last[symbol[starts]] = own[numpy.append(starts[1:], len(order)) - 1]
        records[order] = own


class _QuotesOfPart(_Quotes):
    """The quotes of a part of the day. Their sides are the same as in the whole day."""

    def __init__(
        self, schema: Schema, symbols: Symbols, fields: QuoteFields, day: Callable[[], Iterator[Batch]]
    ) -> None:
        super().__init__(schema, symbols, fields)
        self._day = ((batch, *whole.choose(batch)) for whole in [_Quotes(schema, symbols, fields)] for batch in day())

    def choose(self, batch: Batch) -> Chosen:
        """Return the quotes of a batch that count. Batches must come in the day's order."""
        rows, records = self.of_lowest_rank(batch, self.read(batch))
        for whole, every, carried in self._day if len(rows) else ():
            if (whole.block.key, whole.block.header) == (batch.block.key, batch.block.header):
                return rows, carried[numpy.searchsorted(block_rows(whole, every), block_rows(batch, rows))]
        return rows, records


def _has_ranks(ticks: Sequence[Tick]) -> bool:
    return len({tick.rank for tick in ticks}) > 1


def _look_up_ranks(day: Callable[[], Iterator[Batch]], quotes: Sequence[_Quotes]) -> None:
    """Find the ranks of quotes of each symbol in the whole day."""
    for batch in day() if _has_ranks(quotes) else ():
        for quote in quotes:
            quote.note_rank(batch, quote.read(batch)[0])
    for quote in quotes:
        quote.left_out.clear()


def _look_up(day: Callable[[], Iterator[Batch]], trades: list[Trades], schema: Schema, symbols: Symbols) -> None:
    """Scan the whole day for what decides which trades count, and pass it to `trades`."""
    ranked = _has_ranks(trades)
    orders, breaks = Orders(schema, symbols), Breaks(schema, symbols)
    with_id = [trade for trade in trades if trade.has_id]
    if not (ranked or schema.orders or schema.breaks or with_id):
        return
    keys = [numpy.empty(0, numpy.uint64)]
    for batch in day():
        orders.add(batch)
        breaks.add(batch)
        for trade in trades if ranked else with_id:
            rows, records = trade.read(batch)
            if ranked:
                trade.note_rank(batch, rows)
            if trade.has_id:
                keys.append(id_keys(symbols, batch, rows, records)[records["has_trade_id"]])
    orders.sort()
    for trade in trades:
        trade.orders, trade.breaks = orders, breaks
    ordered = numpy.sort(numpy.concatenate(keys))
    twice = numpy.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    repeated = Repeated(symbols, twice)
    for batch in day() if len(twice) else ():
        for trade in with_id:
            repeated.add(batch, trade)
    repeated.find()
    for trade in trades:
        trade.repeated = repeated
        trade.left_out.clear()
