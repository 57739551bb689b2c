"""Which messages are trades and quotes, and what their prices are, as a feed's schema declares them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import numpy
import pyarrow
from numpy.typing import NDArray

from blackbox.archive.export.table import Chosen, Pick, Picks
from blackbox.block.batch import Batch
from blackbox.feed.schema import QuoteFields, Schema, TradeFields
from blackbox.feed.symbol import BEFORE_FIRST, WHOLE, SymbolRule

if TYPE_CHECKING:
    from blackbox.archive.data_frames import Frames
    from blackbox.archive.filter import Selection

_SPREAD: Final = numpy.uint64(0x9E3779B97F4A7C15)


def picks_of(source: Frames, what: Literal["trades", "quotes"], prefix: bytes, selection: Selection) -> Picks:
    """Return the messages that are trades, or quotes, of what was selected. Reads it first where it must."""
    schema, rule = source.schema, source.feed.symbol_rule
    declared: Sequence[TradeFields | QuoteFields] = schema.trades if what == "trades" else schema.quotes
    orders = None
    if any(isinstance(each, TradeFields) and each.order is not None for each in declared):
        before = selection.copy()
        for name in ("start", "first_sequence"):
            before.pop(name, None)  # type: ignore[misc]
        orders = _Orders(schema, rule, source.batches(_with_orders(prefix, rule), **before))
    ticks = [_Tick(schema, rule, each, orders) for each in declared]
    if len({each.rank for each in declared}) > 1:
        lowest: dict[bytes, int] = {}
        for batch in source.batches(prefix, **selection):
            for tick in ticks:
                tick.note_rank(batch, lowest)
        for tick in ticks:
            tick.lowest = lowest
    return tuple(tick.pick() for tick in ticks)


def _with_orders(prefix: bytes, rule: SymbolRule) -> bytes:
    """Return a prefix of all topics of the symbols of which some topics have this prefix."""
    if rule.symbol == WHOLE:
        return prefix
    separator = rule.separator.encode()
    return prefix[: (prefix.find if rule.symbol == BEFORE_FIRST else prefix.rfind)(separator) + 1] or prefix


class _Tick:
    """The messages of one declaration."""

    def __init__(
        self, schema: Schema, rule: SymbolRule, fields: TradeFields | QuoteFields, orders: _Orders | None
    ) -> None:
        self.lowest: dict[bytes, int] | None = None
        """Of each symbol the rank that counts; None: all do."""
        self._rule, self._fields, self._orders = rule, fields, orders
        self._order = fields.order if isinstance(fields, TradeFields) else None
        if isinstance(fields, TradeFields):
            names = {"price": fields.price or "", "size": fields.size}
            self._absent = {"price": "price"} if schema.json is not None or self._order is not None else {}
        else:
            names = {name: getattr(fields, name) for name in ("bid_price", "bid_size", "ask_price", "ask_size")}
            self._absent = {name: f"{name[:3]}_price" for name in names}
        self._names = names
        self._json = None if schema.json is None else _reader(schema.json, names)
        if schema.json is not None:
            columns = {name: pyarrow.field(name, pyarrow.float64(), nullable=False) for name in names}
            kinds: dict[str, Any] = dict.fromkeys(names, numpy.float64)
        else:
            arrow, dtype = schema.arrow(fields.type), schema.dtype(fields.type)
            columns = {name: arrow.field(each).with_name(name) for name, each in names.items() if each}
            kinds = {name: dtype[each] for name, each in names.items() if each}
        if self._order is not None:
            entered = schema.orders[0]
            columns["price"] = schema.arrow(entered.type).field(entered.price).with_name("price")
            kinds["price"] = numpy.int64
        self._columns = {name: column.with_nullable(name in self._absent) for name, column in columns.items()}
        self._dtype = numpy.dtype([(name, kinds[name]) for name in names])

    def pick(self) -> Pick:
        """Return them, with their columns."""
        columns = tuple((name, self._columns[name]) for name in self._names)
        return Pick(self._fields.type, self.choose, self._dtype, columns, self._absent)

    def choose(self, batch: Batch) -> Chosen:
        """Return which messages of a batch are such."""
        rows, records = self._of_every_rank(batch)
        if self.lowest is not None and len(rows):
            ranks = [self.lowest.get(self._rule.symbol_of(topic)) for topic in batch.topics]
            counts = numpy.array([rank == self._fields.rank for rank in ranks], bool)[batch.topic_index[rows]]
            rows, records = rows[counts], records[counts]
        return rows, records

    def note_rank(self, batch: Batch, lowest: dict[bytes, int]) -> None:
        """Note the lowest rank of each symbol of a batch."""
        for topic in numpy.unique(batch.topic_index[self._of_every_rank(batch)[0]]).tolist():
            symbol = self._rule.symbol_of(batch.topics[topic])
            lowest[symbol] = min(self._fields.rank, lowest.get(symbol, self._fields.rank))

    def _of_every_rank(self, batch: Batch) -> Chosen:
        rows, records = self._of_records(batch) if self._json is None else self._of_json(batch, self._json)
        if isinstance(self._fields, TradeFields):
            good = records["size"] > 0
            rows, records = rows[good], records[good]
        return rows, records

    def _of_records(self, batch: Batch) -> Chosen:
        fields = self._fields
        rows, records = batch.indices(fields.type), batch.records(fields.type)
        if isinstance(fields, TradeFields) and fields.only is not None and len(rows):
            name, value = fields.only
            good = records[name] == (value.encode() if isinstance(value, str) else value)
            rows, records = rows[good], records[good]
        found = numpy.empty(len(rows), self._dtype)
        for name, each in self._names.items():
            if each:
                found[name] = records[each]
        if self._orders is not None and self._order is not None:
            found["price"] = self._orders.prices(batch, rows, records[self._order])
        return rows, found

    def _of_json(self, batch: Batch, read: Callable[[Any], tuple[float, ...]]) -> Chosen:
        kind = self._fields.type.encode()
        of_type = numpy.array([self._rule.split(topic)[1] == kind for topic in batch.topics], bool)
        rows = numpy.flatnonzero(of_type[batch.topic_index])
        payloads = batch.payload_list()
        return rows, numpy.array([read(payloads[row]) for row in rows.tolist()], self._dtype)


def _reader(within: str, names: dict[str, str]) -> Callable[[Any], tuple[float, ...]]:
    """Return what reads fields of the JSON document with which a payload ends; 0 for what is no number."""
    fields = [(name, float | str | None, msgspec.field(name=each, default=None)) for name, each in names.items()]
    inner: Any = msgspec.defstruct("Inner", fields)
    document = ("inner", inner | None, msgspec.field(name=within, default=None))
    decode = msgspec.json.Decoder(msgspec.defstruct("Document", [*fields, document])).decode

    def read(payload: bytes | None) -> tuple[float, ...]:
        found: Any = None
        if payload is not None and (start := payload.find(b"{")) >= 0:
            with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                found = decode(payload[start:])
        return tuple(_number(found, name) for name in names)

    return read


def _number(document: Any, name: str) -> float:
    value = getattr(getattr(document, "inner", None), name, None)
    if value is None:
        value = getattr(document, name, None)
    try:
        return float(value or 0)
    except ValueError:
        return 0.0


class _Orders:
    """The prices of orders, found by symbol and number. A symbol's numbers are unique in a day."""

    def __init__(self, schema: Schema, rule: SymbolRule, batches: Iterable[Batch]) -> None:
        self._rule = rule
        self._symbols: dict[bytes, int] = {}
        symbols, numbers = [numpy.empty(0, numpy.uint64)], [numpy.empty(0, numpy.uint64)]
        prices = [numpy.empty(0, numpy.int64)]
        for batch in batches:
            for each in schema.orders:
                rows = batch.indices(each.type)
                if len(rows):
                    records = batch.records(each.type)
                    symbols.append(self._symbols_of(batch, rows))
                    numbers.append(records[each.number].astype(numpy.uint64))
                    prices.append(records[each.price].astype(numpy.int64))
        symbol, number = numpy.concatenate(symbols), numpy.concatenate(numbers)
        keys = _keys(symbol, number)
        order = numpy.argsort(keys, kind="stable")
        self._keys, self._symbol, self._number = keys[order], symbol[order], number[order]
        self._price = numpy.concatenate(prices)[order]

    def prices(self, batch: Batch, rows: NDArray[numpy.int64], numbers: NDArray[Any]) -> NDArray[numpy.int64]:
        """Return the price of each order; 0: it is not known."""
        found = numpy.zeros(len(rows), numpy.int64)
        if len(self._keys) and len(rows):
            symbol, number = self._symbols_of(batch, rows), numbers.astype(numpy.uint64)
            place = numpy.searchsorted(self._keys, _keys(symbol, number))
            place[place == len(self._keys)] = 0
            known = (self._symbol[place] == symbol) & (self._number[place] == number)
            found[known] = self._price[place[known]]
        return found

    def _symbols_of(self, batch: Batch, rows: NDArray[numpy.int64]) -> NDArray[numpy.uint64]:
        known = self._symbols
        numbers = [known.setdefault(self._rule.symbol_of(topic), len(known)) for topic in batch.topics]
        return numpy.array(numbers, numpy.uint64)[batch.topic_index[rows]]


def _keys(symbol: NDArray[numpy.uint64], number: NDArray[numpy.uint64]) -> NDArray[numpy.uint64]:
    return number + symbol * _SPREAD
