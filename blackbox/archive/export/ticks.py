"""Select trades and quotes, with their prices, as a feed's schema declares them.

    whole day ==first pass==> orders, ranks, broken trades, ids that occur twice ==second pass==> repetitions
    selection ==frames==> messages of the declared types, without those that the day excludes

The whole day decides whether a message counts, so that every selection has the same trades as the day.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import numpy
import pyarrow
from numpy.typing import NDArray

from blackbox.archive.export.members import Members, columns_of, integer, number, reader_of, text
from blackbox.archive.export.table import Chosen, Pick, Picks
from blackbox.block.batch.batch import Batch
from blackbox.feed.routing.symbol import BEFORE_FIRST, WHOLE, SymbolRule
from blackbox.feed.schema.schema import ABSENT, BreakFields, QuoteFields, Schema, TradeFields

if TYPE_CHECKING:
    from blackbox.archive.data_frames import Frames
    from blackbox.archive.read.filter import Selection

_SPREAD: Final = numpy.uint64(0x9E3779B97F4A7C15)
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
) -> tuple[Sequence[_Tick], Callable[[], None]]:
    """Return the declared trades, or quotes, and a function that scans the day, once, for those that count."""
    schema, symbols = source.schema, _Symbols(source.feed.symbol_rule)
    whole = _of_whole_symbols(prefix, symbols.rule)

    def day() -> Iterator[Batch]:
        return source.batches(whole)

    if what == "trades":
        trades = [_Trades(schema, symbols, each, broken) for each in schema.trades]
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


class _Symbols:
    """Numbers symbols in order of appearance."""

    def __init__(self, rule: SymbolRule) -> None:
        self.rule = rule
        self.lowest: dict[int, int] = {}
        """The lowest rank of each symbol that has a trade or quote, by its number."""
        self._numbers: dict[bytes, int] = {}

    def of_topics(self, batch: Batch) -> list[int]:
        known = self._numbers
        return [known.setdefault(self.rule.symbol_of(topic), len(known)) for topic in batch.topics]

    def of_rows(self, batch: Batch, rows: NDArray[numpy.int64]) -> NDArray[numpy.uint64]:
        return numpy.array(self.of_topics(batch), numpy.uint64)[batch.topic_index[rows]]


class _Tick(ABC):
    """The messages of one declaration. For each column a record also has a flag, `has_` and the column's name."""

    _read_members: Members
    """Reads the members of a JSON document; set only for JSON payloads."""

    def __init__(
        self, schema: Schema, symbols: _Symbols, kind: str, names: Mapping[str, str | None], rank: int = 0
    ) -> None:
        """`kind`: the message type. `names`: the field of each column; None if there is no such field."""
        self.left_out: Counter[str] = Counter()
        self.rank = rank
        self._symbols, self._type, self._names = symbols, kind, names
        self._schema, self._json = schema, schema.json
        if schema.json is not None:
            columns = {name: pyarrow.field(name, pyarrow.float64()) for name in names}
            kinds: dict[str, Any] = dict.fromkeys(names, numpy.float64)
        else:
            arrow, dtype = schema.arrow(kind), schema.dtype(kind)
            columns = {name: arrow.field(each).with_name(name) for name, each in names.items() if each}
            kinds = {name: dtype[each] for name, each in names.items() if each}
        self._columns, self._kinds = columns, kinds

    @cached_property
    def dtype(self) -> numpy.dtype[Any]:
        """Type of the records."""
        return numpy.dtype([*self._kinds.items(), *((f"has_{name}", numpy.bool_) for name in self._names)])

    @abstractmethod
    def read(self, batch: Batch) -> Chosen:
        """Return the messages of a batch that match the declaration."""

    @abstractmethod
    def choose(self, batch: Batch) -> Chosen:
        """Return the messages of a batch that also count in the whole day."""

    def pick(self, look_up: Callable[[], None]) -> Pick:
        """Return a pick of these messages. `look_up` is called before messages are chosen."""

        def choose(batch: Batch) -> Chosen:
            look_up()
            return self.choose(batch)

        columns = tuple((name, self._columns[name]) for name in self._names)
        valid = {name: f"has_{name}" for name in self._names if self._columns[name].nullable}
        return Pick(self._type, choose, self.dtype, columns, valid)

    def note_rank(self, batch: Batch, rows: NDArray[numpy.int64]) -> None:
        """Update the lowest rank of the symbols of these messages."""
        lowest = self._symbols.lowest
        numbers = self._symbols.of_topics(batch)
        for topic in numpy.unique(batch.topic_index[rows]).tolist():
            lowest[numbers[topic]] = min(self.rank, lowest.get(numbers[topic], self.rank))

    def _of_lowest_rank(self, batch: Batch, chosen: Chosen) -> Chosen:
        rows, records = chosen
        lowest = self._symbols.lowest
        if not lowest or not len(rows):
            return chosen
        counts = [lowest.get(number) == self.rank for number in self._symbols.of_topics(batch)]
        return self._kept(numpy.array(counts, bool)[batch.topic_index[rows]], rows, records, "other_type")

    def _kept(self, good: NDArray[numpy.bool_], rows: NDArray[Any], records: NDArray[Any], reason: str) -> Chosen:
        if good.all():
            return rows, records
        self.left_out[reason] += len(good) - int(numpy.count_nonzero(good))
        return rows[good], records[good]

    def _records(self, batch: Batch) -> Chosen:
        """Return the records of this type that have its size, and count the others."""
        rows, records, misfits = _records_of(batch, self._schema, self._type)
        self.left_out["misfit"] += misfits
        return rows, records

    def _of_type(self, batch: Batch) -> NDArray[numpy.int64]:
        """Return the rows of JSON documents of this type."""
        kind = self._type.encode()
        of_type = numpy.array([self._symbols.rule.split(topic)[1] == kind for topic in batch.topics], bool)
        return numpy.flatnonzero(of_type[batch.topic_index])

    def _documents(self, batch: Batch, members: int) -> tuple[NDArray[numpy.int64], NDArray[Any], list[Any]]:
        """Return the rows of JSON documents of this type, empty records for them, and their members by column."""
        rows = self._of_type(batch)
        payloads = batch.payload_list()
        read = columns_of(self._read_members, (payloads[row] for row in rows.tolist()), members)
        return rows, numpy.zeros(len(rows), self.dtype), list(read)

    def _take_fields(self, found: NDArray[Any], records: NDArray[Any]) -> None:
        """Copy fields of typed records to columns."""
        dtype = self._schema.dtype(self._type)
        for name, each in self._names.items():
            if each and each in (dtype.names or ()):
                found[name] = records[each]
                absent = dict(dtype[each].metadata or {}).get(ABSENT)
                found[f"has_{name}"] = True if absent is None else records[each] != absent
                if dtype[each].kind == "f":
                    found[f"has_{name}"] &= ~numpy.isnan(records[each])

    def _take_numbers(self, found: NDArray[Any], name: str, values: Iterable[Any]) -> None:
        """Set a column to JSON values."""
        self._take(found, name, [number(value) for value in values])

    def _take_ids(self, found: NDArray[Any], values: Iterable[Any]) -> None:
        """Set the trade ids to JSON values."""
        self._take(found, "trade_id", [integer(value) for value in values])

    def _take(self, found: NDArray[Any], name: str, values: list[Any]) -> None:
        found[name] = [0 if value is None else value for value in values]
        found[f"has_{name}"] = [value is not None for value in values]


class _Trades(_Tick):
    """The trades of one declaration."""

    def __init__(self, schema: Schema, symbols: _Symbols, fields: TradeFields, broken: bool) -> None:
        names = {"price": fields.price, "size": fields.size, "trade_id": fields.id}
        super().__init__(schema, symbols, fields.message_type, names, fields.rank)
        self.orders: _Orders | None = None
        self.breaks: _Breaks | None = None
        self.repeated: _Repeated | None = None
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
        rows, records = self._of_lowest_rank(batch, self.read(batch))
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


class _Quotes(_Tick):
    """The quotes of one declaration."""

    def __init__(self, schema: Schema, symbols: _Symbols, fields: QuoteFields) -> None:
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
        rows, records = self._of_lowest_rank(batch, self.read(batch))
        if self._carries and len(rows):
            self._carry(self._symbols.of_rows(batch, rows).astype(numpy.int64), records)
        return rows, records

    def _carry(self, symbols: NDArray[numpy.int64], records: NDArray[Any]) -> None:
        """Fill each missing side from the symbol's last quote that had it."""
        while len(self._last) <= symbols.max():
            self._last = numpy.concatenate((self._last, numpy.zeros_like(self._last)))
        order = numpy.argsort(symbols, kind="stable")
        symbol, own = symbols[order], records[order]
        place = numpy.arange(len(order))
        starts = numpy.flatnonzero(numpy.diff(symbol, prepend=-1))
        start = numpy.repeat(starts, numpy.diff(starts, append=len(order)))
        for side in _SIDES:
            last = numpy.maximum.accumulate(numpy.where(own[f"has_{side}_price"], place, -1))
            inside = last >= start
            for part in (f"{side}_price", f"{side}_size", f"has_{side}_price", f"has_{side}_size"):
                own[part] = numpy.where(inside, own[part][last], self._last[part][symbol])
        self._last[symbol[starts]] = own[numpy.append(starts[1:], len(order)) - 1]
        records[order] = own


class _QuotesOfPart(_Quotes):
    """The quotes of a part of the day. Their sides are the same as in the whole day."""

    def __init__(
        self, schema: Schema, symbols: _Symbols, fields: QuoteFields, day: Callable[[], Iterator[Batch]]
    ) -> None:
        super().__init__(schema, symbols, fields)
        self._day = ((batch, *whole.choose(batch)) for whole in [_Quotes(schema, symbols, fields)] for batch in day())

    def choose(self, batch: Batch) -> Chosen:
        """Return the quotes of a batch that count. Batches must come in the day's order."""
        rows, records = self._of_lowest_rank(batch, self.read(batch))
        for whole, every, carried in self._day if len(rows) else ():
            if (whole.block.key, whole.block.header) == (batch.block.key, batch.block.header):
                return rows, carried[numpy.searchsorted(_block_rows(whole, every), _block_rows(batch, rows))]
        return rows, records


def _block_rows(batch: Batch, rows: NDArray[Any]) -> NDArray[Any]:
    """Return the rows of the block for these rows of the batch."""
    return rows if batch.rows is None else batch.rows[rows]


def _has_ranks(ticks: Sequence[_Tick]) -> bool:
    return len({tick.rank for tick in ticks}) > 1


def _look_up_ranks(day: Callable[[], Iterator[Batch]], quotes: Sequence[_Quotes]) -> None:
    """Find the ranks of quotes of each symbol in the whole day."""
    for batch in day() if _has_ranks(quotes) else ():
        for quote in quotes:
            quote.note_rank(batch, quote.read(batch)[0])
    for quote in quotes:
        quote.left_out.clear()


def _look_up(day: Callable[[], Iterator[Batch]], trades: list[_Trades], schema: Schema, symbols: _Symbols) -> None:
    """Scan the whole day for what decides which trades count, and pass it to `trades`."""
    ranked = _has_ranks(trades)
    orders, breaks = _Orders(schema, symbols), _Breaks(schema, symbols)
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
                keys.append(_id_keys(symbols, batch, rows, records)[records["has_trade_id"]])
    orders.sort()
    for trade in trades:
        trade.orders, trade.breaks = orders, breaks
    ordered = numpy.sort(numpy.concatenate(keys))
    twice = numpy.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    repeated = _Repeated(symbols, twice)
    for batch in day() if len(twice) else ():
        for trade in with_id:
            repeated.add(batch, trade)
    repeated.find()
    for trade in trades:
        trade.repeated = repeated
        trade.left_out.clear()


class _Repeated:
    """Trades that repeat an earlier one of the day: with the same symbol, rank, id, price and size."""

    def __init__(self, symbols: _Symbols, keys: NDArray[numpy.uint64]) -> None:
        """`keys`: of symbols and ids that occur more than once, ascending."""
        self._symbols, self._keys = symbols, keys
        self._topics: dict[bytes, int] = {}
        self._texts: dict[bytes, int] = {}
        self._found: list[NDArray[numpy.int64]] = []
        self._sequences: dict[tuple[int, int, bytes], NDArray[numpy.int64]] = {}

    def add(self, batch: Batch, trade: _Trades) -> None:
        """Store the trades of a batch that may be repetitions or be repeated."""
        rows, records = trade._of_lowest_rank(batch, trade.read(batch))
        may = records["has_trade_id"] & _is_in(_id_keys(self._symbols, batch, rows, records), self._keys)
        rows, records = rows[may], records[may]
        if not len(rows):
            return
        trade.take_prices(batch, rows, records)
        ids = records["trade_id"]
        if ids.dtype.kind not in "iu":
            ids = numpy.array([self._texts.setdefault(text, len(self._texts)) for text in ids.tolist()])
        topics = [self._topics.setdefault(topic, len(self._topics)) for topic in batch.topics]
        columns = (
            self._symbols.of_rows(batch, rows),
            numpy.full(len(rows), trade.rank),
            ids,
            records["has_price"],
            numpy.where(records["has_price"], _as_integers(records["price"]), 0),
            _as_integers(records["size"]),
            batch.ts_event[rows],
            numpy.full(len(rows), batch.block.epoch),
            numpy.full(len(rows), batch.block.slice_id),
            batch.sequence[rows],
            numpy.array(topics)[batch.topic_index[rows]],
        )
        self._found.append(numpy.stack([column.astype(numpy.int64) for column in columns]))

    def find(self) -> None:
        """Find the repetitions among the stored trades: all but the earliest of each."""
        if not self._found:
            return
        table = numpy.concatenate(self._found, axis=1)
        self._found.clear()
        table = table[:, numpy.lexsort(table[::-1])]
        same = (table[:6, 1:] == table[:6, :-1]).all(axis=0)
        if not same.any():
            return
        epoch, slice_id, sequence, topic = table[7:, 1:][:, same]
        order = numpy.lexsort((sequence, topic, slice_id, epoch))
        stream = numpy.stack((epoch, slice_id, topic))[:, order]
        starts = numpy.flatnonzero((numpy.diff(stream, prepend=-1) != 0).any(axis=0))
        names = list(self._topics)
        for first, own in zip(starts.tolist(), numpy.split(sequence[order], starts[1:]), strict=True):
            self._sequences[int(stream[0, first]), int(stream[1, first]), names[stream[2, first]]] = own

    def has(self, batch: Batch, rows: NDArray[numpy.int64]) -> NDArray[numpy.bool_]:
        """Return which of the messages are repetitions."""
        found = numpy.zeros(len(rows), bool)
        for place, topic in enumerate(batch.topics):
            sequences = self._sequences.get((batch.block.epoch, batch.block.slice_id, topic))
            if sequences is not None:
                own = batch.topic_index[rows] == place
                found[own] = _is_in(batch.sequence[rows[own]], sequences)
        return found


class _Breaks:
    """Trades that the venue cancelled."""

    def __init__(self, schema: Schema, symbols: _Symbols) -> None:
        self._symbols = symbols
        self._taken_back: list[tuple[BreakFields, set[tuple[Any, ...]]]] = [(each, set()) for each in schema.breaks]
        self._ticks = [_Broken(schema, symbols, each) for each in schema.breaks]
        self._keys = numpy.empty(0, numpy.uint64)

    def add(self, batch: Batch) -> None:
        """Store the trades that messages of a batch cancel."""
        for tick, (fields, known) in zip(self._ticks, self._taken_back, strict=True):
            rows, records = tick.read(batch)
            if len(rows):
                known.update(self._named(fields, batch, rows, records))
                self._keys = numpy.union1d(self._keys, _id_keys(self._symbols, batch, rows, records))

    def of(self, batch: Batch, rows: NDArray[numpy.int64], records: NDArray[Any]) -> NDArray[numpy.bool_]:
        """Return True for each cancelled trade."""
        found = records["has_trade_id"] & _is_in(_id_keys(self._symbols, batch, rows, records), self._keys)
        places = numpy.flatnonzero(found)
        if len(places):
            found[places] = False
            for fields, known in self._taken_back:
                named = self._named(fields, batch, rows[places], records[places])
                found[places] |= numpy.array([each in known for each in named], bool)
        return found

    def _named(
        self, fields: BreakFields, batch: Batch, rows: NDArray[numpy.int64], records: NDArray[Any]
    ) -> Iterator[tuple[Any, ...]]:
        """Yield for each trade the values by which a break of this kind names it."""
        names = ["trade_id", *["price"] * (fields.price is not None), *["size"] * (fields.size is not None)]
        symbols = self._symbols.of_rows(batch, rows).tolist()
        return zip(symbols, *(records[name].tolist() for name in names), strict=True)


class _Broken(_Tick):
    """Messages of one type that cancel trades."""

    def __init__(self, schema: Schema, symbols: _Symbols, fields: BreakFields) -> None:
        names = {"price": fields.price, "size": fields.size, "trade_id": fields.id}
        told = {name: each for name, each in names.items() if each is not None}
        super().__init__(schema, symbols, fields.message_type, told)
        if schema.json is not None:
            self._kinds["trade_id"] = numpy.int64
            self._read_members = reader_of(schema.json, list(told.values()))

    def read(self, batch: Batch) -> Chosen:
        """Return the messages of a batch that name a trade."""
        if self._json is None:
            rows, records = self._records(batch)
            found = numpy.zeros(len(rows), self.dtype)
            self._take_fields(found, records)
        else:
            rows, found, members = self._documents(batch, len(self._names))
            for name, values in zip(self._names, members, strict=True):
                if name == "trade_id":
                    self._take_ids(found, values)
                else:
                    self._take_numbers(found, name, values)
        good = found["has_trade_id"]
        return rows[good], found[good]

    choose = read


class _Orders:
    """Prices of orders by symbol and number. A symbol's order numbers are unique in a day."""

    def __init__(self, schema: Schema, symbols: _Symbols) -> None:
        self._schema, self._symbols = schema, symbols
        self._symbol, self._number = numpy.empty(0, numpy.uint64), numpy.empty(0, numpy.uint64)
        self._keys, self._price = numpy.empty(0, numpy.uint64), numpy.empty(0, numpy.int64)
        self._parts: list[tuple[NDArray[Any], ...]] = []

    def add(self, batch: Batch) -> None:
        """Store the orders that messages of a batch enter."""
        for each in self._schema.orders:
            rows, records, _ = _records_of(batch, self._schema, each.message_type)
            if len(rows):
                number, price = records[each.number].astype(numpy.uint64), records[each.price].astype(numpy.int64)
                self._parts.append((self._symbols.of_rows(batch, rows), number, price))

    def sort(self) -> None:
        """Sort the stored orders. Call it before `prices`."""
        if self._parts:
            self._symbol, self._number, self._price = map(numpy.concatenate, zip(*self._parts, strict=True))
            self._parts.clear()
            keys = _keys(self._symbol, self._number)
            order = numpy.argsort(keys, kind="stable")
            self._keys, self._symbol, self._number = keys[order], self._symbol[order], self._number[order]
            self._price = self._price[order]

    def prices(
        self, batch: Batch, rows: NDArray[numpy.int64], numbers: NDArray[numpy.uint64]
    ) -> tuple[NDArray[numpy.int64], NDArray[numpy.bool_]]:
        """Return the price of each order, and True for each that is known."""
        if not len(self._keys):
            return numpy.zeros(len(rows), numpy.int64), numpy.zeros(len(rows), bool)
        symbol = self._symbols.of_rows(batch, rows)
        place = numpy.searchsorted(self._keys, _keys(symbol, numbers))
        place[place == len(self._keys)] = 0
        return self._price[place], (self._symbol[place] == symbol) & (self._number[place] == numbers)


def _records_of(batch: Batch, schema: Schema, kind: str) -> tuple[NDArray[numpy.int64], NDArray[Any], int]:
    """Return the rows and records of a type, and the number of its messages that have another size."""
    rows = batch.indices(kind)
    fits = numpy.diff(batch.payload_offsets())[rows] == schema.dtype(kind).itemsize
    if fits.all():
        return rows, batch.records(kind), 0
    good = rows[fits]
    part = Batch(batch.block, _block_rows(batch, good).astype(numpy.int32), batch._received_block)
    return good, part.records(kind), len(rows) - len(good)


def _id_keys(
    symbols: _Symbols, batch: Batch, rows: NDArray[numpy.int64], records: NDArray[Any]
) -> NDArray[numpy.uint64]:
    """Return a hash of each symbol and id. Collisions are rare."""
    ids = records["trade_id"]
    if ids.dtype.kind not in "iu":
        octets = numpy.ascontiguousarray(ids).view(numpy.uint8).reshape(len(ids), -1)
        ids = numpy.zeros(len(ids), numpy.uint64)
        for octet in octets.T:
            ids = ids * _SPREAD + octet
    return _keys(symbols.of_rows(batch, rows), ids.astype(numpy.uint64))


def _keys(symbol: NDArray[numpy.uint64], number: NDArray[numpy.uint64]) -> NDArray[numpy.uint64]:
    return number + symbol * _SPREAD


def _is_in(values: NDArray[Any], known: NDArray[Any]) -> NDArray[numpy.bool_]:
    """Return True for each value among the known ones, which ascend."""
    if not len(known):
        return numpy.zeros(len(values), bool)
    place = numpy.searchsorted(known, values)
    place[place == len(known)] = 0
    same: NDArray[numpy.bool_] = known[place] == values
    return same


def _as_integers(values: NDArray[Any]) -> NDArray[numpy.int64]:
    """Return an integer for each number. Equal numbers have equal integers."""
    if values.dtype.kind != "f":
        return values.astype(numpy.int64)
    return (values.astype(numpy.float64) + 0.0).view(numpy.int64)  # -0.0 becomes 0.0
