"""Facts about trades that need the whole day: prices of orders, cancelled trades, and repetitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy
from numpy.typing import NDArray

from blackbox.archive.export.members import reader_of
from blackbox.archive.export.table import Chosen
from blackbox.archive.export.tick_records import Symbols, Tick, records_of
from blackbox.block.batch.batch import Batch
from blackbox.feed.schema.schema import BreakFields, Schema

if TYPE_CHECKING:
    from blackbox.archive.export.ticks import Trades

_SPREAD: Final = numpy.uint64(0x9E3779B97F4A7C15)
_TEXT_SPREAD: Final = numpy.uint64(0xC2B2AE3D27D4EB4F)


class Repeated:
    """Trades that repeat an earlier one of the day: with the same symbol, rank, id, price and size."""

    def __init__(self, symbols: Symbols, keys: NDArray[numpy.uint64]) -> None:
        """`keys`: of symbols and ids that occur more than once, ascending."""
        self._symbols, self._keys = symbols, keys
        self._topics: dict[bytes, int] = {}
        self._texts: dict[bytes, int] = {}
        self._found: list[NDArray[numpy.int64]] = []
        self._sequences: dict[tuple[int, int, bytes], NDArray[numpy.int64]] = {}

    def add(self, batch: Batch, trade: Trades) -> None:
        """Store the trades of a batch that may be repetitions or be repeated."""
        rows, records = trade.of_lowest_rank(batch, trade.read(batch))
        may = records["has_trade_id"] & _is_in(id_keys(self._symbols, batch, rows, records), self._keys)
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
        for index, topic in enumerate(batch.topics):
            sequences = self._sequences.get((batch.block.epoch, batch.block.slice_id, topic))
            if sequences is not None:
                own = batch.topic_index[rows] == index
                found[own] = _is_in(batch.sequence[rows[own]], sequences)
        return found


class Breaks:
    """Trades that the venue cancelled."""

    def __init__(self, schema: Schema, symbols: Symbols) -> None:
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
                self._keys = numpy.union1d(self._keys, id_keys(self._symbols, batch, rows, records))

    def of(self, batch: Batch, rows: NDArray[numpy.int64], records: NDArray[Any]) -> NDArray[numpy.bool_]:
        """Return True for each cancelled trade."""
        found = records["has_trade_id"] & _is_in(id_keys(self._symbols, batch, rows, records), self._keys)
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


class _Broken(Tick):
    """Messages of one type that cancel trades."""

    def __init__(self, schema: Schema, symbols: Symbols, fields: BreakFields) -> None:
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


class Orders:
    """Prices of orders by symbol and number. A symbol's order numbers are unique in a day."""

    def __init__(self, schema: Schema, symbols: Symbols) -> None:
        self._schema, self._symbols = schema, symbols
        self._symbol, self._number = numpy.empty(0, numpy.uint64), numpy.empty(0, numpy.uint64)
        self._keys, self._price = numpy.empty(0, numpy.uint64), numpy.empty(0, numpy.int64)
        self._parts: list[tuple[NDArray[Any], ...]] = []

    def add(self, batch: Batch) -> None:
        """Store the orders that messages of a batch enter."""
        for each in self._schema.orders:
            rows, records, _ = records_of(batch, self._schema, each.message_type)
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
        index = numpy.searchsorted(self._keys, _keys(symbol, numbers))
        index[index == len(self._keys)] = 0
        return self._price[index], (self._symbol[index] == symbol) & (self._number[index] == numbers)


def id_keys(symbols: Symbols, batch: Batch, rows: NDArray[numpy.int64], records: NDArray[Any]) -> NDArray[numpy.uint64]:
    """Return a hash of each symbol and id. Collisions are rare."""
    ids = records["trade_id"]
    if ids.dtype.kind not in "iu":
        octets = numpy.ascontiguousarray(ids).view(numpy.uint8).reshape(len(ids), -1)
        ids = numpy.zeros(len(ids), numpy.uint64)
        for octet in octets.T[::-1]:  # from the end, so that the zeros after a text do not change its hash
            ids = ids * _TEXT_SPREAD + octet
    return _keys(symbols.of_rows(batch, rows), ids.astype(numpy.uint64))


def _keys(symbol: NDArray[numpy.uint64], number: NDArray[numpy.uint64]) -> NDArray[numpy.uint64]:
    return number + symbol * _SPREAD


def _is_in(values: NDArray[Any], known: NDArray[Any]) -> NDArray[numpy.bool_]:
    """Return True for each value among the known ones, which ascend."""
    if not len(known):
        return numpy.zeros(len(values), bool)
    index = numpy.searchsorted(known, values)
    index[index == len(known)] = 0
    same: NDArray[numpy.bool_] = known[index] == values
    return same


def _as_integers(values: NDArray[Any]) -> NDArray[numpy.int64]:
    """Return an integer for each number. Equal numbers have equal integers."""
    if values.dtype.kind != "f":
        return values.astype(numpy.int64)
    return (values.astype(numpy.float64) + 0.0).view(numpy.int64)  # -0.0 becomes 0.0
