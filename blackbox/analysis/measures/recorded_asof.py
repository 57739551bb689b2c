"""As-of join of two message types of recordings: one compiled pass over each slice, in the order of capture.

    day, slice ==one task==> batches in order ==compiled==> trades with their symbol's last quote ==> Spark

Only the result goes to Spark: trades and quotes are not extracted separately, sorted, or shuffled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy
import pyarrow
import pyarrow.compute
from numpy.typing import NDArray
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StructField, StructType

from blackbox.analysis.measures.asof import joined_names
from blackbox.analysis.measures.inputs import seconds_ns
from blackbox.analysis.spark.columns import BASE, PAYLOAD, RecordField, record_array, record_fields, table_schema
from blackbox.analysis.spark.days import days_of, schema_of_days
from blackbox.analysis.spark.filters import Pushed
from blackbox.analysis.spark.plan import Partition, plan
from blackbox.analysis.spark.read import Reading
from blackbox.errors import ConfigError, JournalError
from blackbox.feed.schema.prices import Prices
from blackbox.feed.schema.schema import ABSENT, Schema
from blackbox.native.compile.jit import njit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PLACE: Final = ("ts_event", "ts_recv", "sequence")
"""The columns of a quote in addition to its fields."""
_TS_EVENT: Final = _PLACE.index("ts_event")
_ALL: Final = 1 << 62
_NO_TOLERANCE: Final = -1


def asof_recorded(
    spark: SparkSession,
    paths: str | Path | Sequence[str | Path],
    trades: str,
    quotes: str,
    columns: Sequence[str] | None = None,
    tolerance: float | timedelta | None = None,
    prices: Prices = "decimal",
    suffix: str = "_quote",
) -> DataFrame:
    """Return each message of type `trades`, joined with its symbol's last earlier message of type `quotes`.

    A quote of a feed that sends one side at a time gets both, once the day has had both: an absent side is that of the
    last quote that had it, as in `recorded_quotes`. Price and size of an absent side are null. All messages of type
    `trades` are included, even trades that the venue cancelled; `recorded_trades` leaves those out.

    Earlier means earlier in the recording of the slice, whatever the times: it is what a subscriber knew when the trade
    arrived. If the times of a symbol's messages never go back, the result equals `asof_join` on `ts_event`, except that
    the order of capture decides between a quote and a trade of equal time. A day begins without quotes. Each trade
    appears once; without a quote the columns of quotes are null.

    A publisher groups messages by key in each block. So if keys (`key_bytes`) are longer than a symbol and its dot, a
    quote may be recorded after a trade that it preceded at the venue; then use `asof_join`, which goes by times.

    Args:
        spark: the session.
        paths: as in `load` of the data source.
        trades: a message type of the feed's schema, such as "T".
        quotes: another one, such as "Q".
        columns: columns of the result; default: all. Fewer are faster.
        tolerance: the greatest age of a quote, by `ts_event`, in seconds or as a `timedelta`.
        prices: as the option of the data source.
        suffix: appended to the names of quote columns that trades have too.

    The result has the columns of `option("messageType", trades)`, then `ts_event`, `ts_recv` and `sequence` of the
    quote with the suffix, and its fields. Each day's slice is one task.

    Raises ConfigError if an argument is invalid, JournalError if a day does not exist; later, if a recording is
    damaged.
    """
    tolerance_ns = _NO_TOLERANCE if tolerance is None else seconds_ns("tolerance", tolerance, 0)
    days = days_of([str(path) for path in ([paths] if isinstance(paths, str | Path) else paths)])
    schema = schema_of_days(days, trades, quotes)
    if schema.character(trades) == schema.character(quotes):
        raise ConfigError(f"trades and quotes were {trades!r} and {quotes!r}, expected two message types")
    left, right = (tuple(record_fields(schema, kind, prices)) for kind in (trades, quotes))
    place = [StructField(name, LongType()) for name in _PLACE]
    told = StructType([*place, *(StructField(field.column, field.kind) for field in right)])
    trade_schema = table_schema(list(left))
    names = joined_names(trade_schema, told, (), suffix)
    whole = [*trade_schema, *(StructField(made, told[name].dataType) for name, made in names.items())]
    result = StructType([_field(whole, name) for name in columns] if columns is not None else whole)
    wanted = set(result.names)
    join = _Join(
        tuple(_slices(days)),
        schema,
        (schema.character(trades), schema.character(quotes)),
        tuple(field for field in left if field.column in wanted),
        tuple(field for field in right if names[field.column] in wanted),
        names,
        result,
        tolerance_ns,
        _Sides.of(schema, quotes),
    )
    many = len(join.slices)
    return spark.range(0, many, 1, max(1, many)).mapInArrow(join.batches, result)


def _field(fields: list[StructField], name: str) -> StructField:
    for field in fields:
        if field.name == name:
            return field
    raise ConfigError(f"columns had {name!r}, expected some of: {', '.join(field.name for field in fields)}")


def _slices(days: list[Path]) -> list[Partition]:
    """Return a partition for each whole slice of each day."""
    found: dict[tuple[str, int], Partition] = {}
    for part in plan(days, Pushed(), _ALL, False).partitions:
        first = found.setdefault((part.day, part.slice_id), part)
        if first is not part:
            first.spans += part.spans
    return list(found.values())


class _Join(NamedTuple):
    """The work of a task."""

    slices: tuple[Partition, ...]
    schema: Schema
    kinds: tuple[str, str]
    trade_fields: tuple[RecordField, ...]
    quote_fields: tuple[RecordField, ...]
    names: dict[str, str]
    """Columns of quotes by name, with their names in the result."""
    result: StructType
    tolerance_ns: int
    sides: _Sides

    def batches(self, batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._slice(self.slices[number])

    def _slice(self, partition: Partition) -> Iterator[pyarrow.RecordBatch]:
        own = {*self.result.names, "symbol", PAYLOAD, *_PLACE}
        needed = StructType([field for field in table_schema(None) if field.name in own])
        schema = to_arrow_schema(self.result, timezone="UTC")
        known = _Known(self.schema.dtype(self.kinds[1]).itemsize)
        for batch in Reading(needed, Pushed(), False, None).batches(partition):
            arrays = self._joined(batch, known, partition)
            if arrays is not None:
                yield pyarrow.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)

    def _joined(
        self, batch: pyarrow.RecordBatch, known: _Known, partition: Partition
    ) -> dict[str, pyarrow.Array] | None:
        trade, quote = (self.schema.dtype(kind) for kind in self.kinds)
        offsets, data = _bytes_of(batch.column(PAYLOAD))
        codes = known.codes(batch.column("symbol"))
        place = numpy.stack([batch.column(name).to_numpy() for name in _PLACE])
        kinds = ord(self.kinds[0]), ord(self.kinds[1])
        many, wrong = _count(data, offsets, self.schema.type_offset, kinds, (trade.itemsize, quote.itemsize))
        if wrong >= 0:
            size = offsets[wrong + 1] - offsets[wrong]
            kind = chr(data[offsets[wrong] + self.schema.type_offset])
            expected = self.schema.dtype(kind).itemsize
            raise JournalError(f"{partition.day}: a message of type {kind!r} had {size} bytes, expected {expected}")
        rows = numpy.empty(many, numpy.int64)
        records = numpy.empty((many, trade.itemsize), numpy.uint8)
        quotes = numpy.zeros((many, quote.itemsize), numpy.uint8)
        places = numpy.zeros((len(_PLACE), many), numpy.int64)
        found = numpy.zeros(many, numpy.bool_)
        told = data, offsets, self.schema.type_offset, kinds, codes, place
        last = known.payloads, known.places, known.there
        carried = self.sides.carried, self.sides.absent
        _match(*told, *last, *carried, self.tolerance_ns, rows, records, quotes, places, found)
        if not many:
            return None
        valid = pyarrow.array(found)
        base = batch.select([name for name, _ in BASE if name in self.result.names])
        taken = base if many == batch.num_rows else base.take(pyarrow.array(rows))
        arrays = dict(zip(base.schema.names, taken.columns, strict=True))
        table = records.reshape(-1).view(trade)
        arrays |= {field.column: record_array(field, table) for field in self.trade_fields}
        table = quotes.reshape(-1).view(quote)
        right = {
            name: pyarrow.array(places[i]) for i, name in enumerate(_PLACE) if self.names[name] in self.result.names
        }
        right |= {field.column: record_array(field, table) for field in self.quote_fields}
        sides = self.sides.there(table)
        there = {
            field.column: pyarrow.array(found & sides[field.name]) for field in self.quote_fields if field.name in sides
        }
        return arrays | {
            self.names[name]: pyarrow.compute.if_else(there.get(name, valid), array, pyarrow.scalar(None, array.type))
            for name, array in right.items()
        }


class _Sides(NamedTuple):
    """The two sides of a quote type."""

    fields: tuple[tuple[str, str], ...] = ()
    """Fields of price and size of each side that may be absent."""
    prices: tuple[int | None, ...] = ()
    """The integer that means that the side is absent; None: only NaN does."""
    carried: NDArray[numpy.int64] = numpy.empty((0, 5), numpy.int64)
    """Sides that are carried forward if absent: offset and size of the price, then of the size; then the step from a
    float price's highest byte to the next one, 0 for an integer."""
    absent: NDArray[numpy.uint8] = numpy.empty((0, 8), numpy.uint8)
    """The bytes of the price that means that such a side is absent."""

    @classmethod
    def of(cls, schema: Schema, kind: str) -> Self:
        """Return the sides of a message type.

        Empty if the schema does not declare it as quotes, or has no absent price. NaN is one of a float.
        """
        declared = [each for each in schema.quotes if schema.character(each.message_type) == schema.character(kind)]
        dtype: Any = schema.dtype(kind)
        fields, prices, carried, absent = [], [], [], []
        for quote in declared[:1]:
            for price, size in ((quote.bid_price, quote.bid_size), (quote.ask_price, quote.ask_size)):
                none = (dtype[price].metadata or {}).get(ABSENT)
                step = 0 if dtype[price].kind != "f" else 1 if dtype[price].str[0] == ">" else -1
                if none is None and not step:
                    continue
                fields.append((price, size))
                prices.append(none)
                if quote.one_sided:
                    places = [(dtype.fields[name][1], dtype[name].itemsize) for name in (price, size)]
                    carried.append([*(number for place in places for number in place), step])
                    value = numpy.nan if none is None else none
                    absent.append(numpy.array([value], dtype[price]).tobytes().ljust(8, b"\0"))
        return cls(
            tuple(fields),
            tuple(prices),
            numpy.array(carried, numpy.int64).reshape(-1, 5),
            numpy.frombuffer(b"".join(absent), numpy.uint8).reshape(-1, 8),
        )

    def there(self, quotes: NDArray[Any]) -> dict[str, NDArray[numpy.bool_]]:
        """Return for the columns of each side which quotes have it."""
        found = {}
        for (price, size), none in zip(self.fields, self.prices, strict=True):
            found[price] = ~numpy.isnan(quotes[price])
            if none is not None:
                found[price] &= quotes[price] != none
            found[size] = found[price] & ~numpy.isnan(quotes[size])
        return found


class _Known:
    """The last quote of each symbol, by the symbol's number."""

    def __init__(self, width: int) -> None:
        self._numbers: dict[str | None, int] = {}
        self.payloads = numpy.zeros((1024, width), numpy.uint8)
        self.places = numpy.zeros((1024, len(_PLACE)), numpy.int64)
        self.there = numpy.zeros(1024, numpy.bool_)

    def codes(self, symbols: pyarrow.Array) -> NDArray[numpy.int64]:
        """Return the number of each row's symbol, and make room for its quote."""
        encoded = symbols.dictionary_encode()
        names, numbers = encoded.dictionary.to_pylist(), self._numbers
        table = [numbers.setdefault(name, len(numbers)) for name in names]
        while len(numbers) > len(self.there):
            self.payloads, self.places, self.there = (
                numpy.concatenate((array, numpy.zeros_like(array)))
                for array in (self.payloads, self.places, self.there)
            )
        codes: NDArray[numpy.int64] = numpy.array(table, numpy.int64)[encoded.indices.to_numpy()]
        return codes


def _bytes_of(column: pyarrow.Array) -> tuple[NDArray[numpy.int32], NDArray[numpy.uint8]]:
    _, offsets, data = column.buffers()
    places = numpy.frombuffer(offsets, numpy.int32)[column.offset : column.offset + len(column) + 1]
    return places, numpy.frombuffer(data, numpy.uint8)


@njit(nogil=True, cache=True)
def _count(
    data: NDArray[numpy.uint8],
    offsets: NDArray[numpy.int32],
    type_offset: int,
    kinds: tuple[int, int],
    widths: tuple[int, int],
) -> tuple[int, int]:
    """Return the number of trades, and the index of the first trade or quote of the wrong size; -1: none."""
    many = 0
    for row in range(len(offsets) - 1):
        start, size = offsets[row], offsets[row + 1] - offsets[row]
        if size <= type_offset:
            continue
        kind = data[start + type_offset]
        if (kind == kinds[0] and size != widths[0]) or (kind == kinds[1] and size != widths[1]):
            return many, row
        many += kind == kinds[0]
    return many, -1


@njit(nogil=True, cache=True)
def _is_nan(value: NDArray[numpy.uint8]) -> bool:
    """Return True if the bytes of a float, the highest first, are a NaN."""
    bits = numpy.int64(0)
    for byte in value:
        bits = bits << 8 | numpy.int64(byte)
    if len(value) == 4:
        return (bits & 0x7FFF_FFFF) > 0x7F80_0000
    return (bits & 0x7FFF_FFFF_FFFF_FFFF) > 0x7FF0_0000_0000_0000


@njit(nogil=True, cache=True)
def _match(
    data: NDArray[numpy.uint8],
    offsets: NDArray[numpy.int32],
    type_offset: int,
    kinds: tuple[int, int],
    codes: NDArray[numpy.int64],
    place: NDArray[numpy.int64],
    last_payloads: NDArray[numpy.uint8],
    last_places: NDArray[numpy.int64],
    there: NDArray[numpy.bool_],
    sides: NDArray[numpy.int64],
    absent: NDArray[numpy.uint8],
    tolerance: int,
    rows: NDArray[numpy.int64],
    records: NDArray[numpy.uint8],
    quotes: NDArray[numpy.uint8],
    places: NDArray[numpy.int64],
    found: NDArray[numpy.bool_],
) -> None:
    """Keep the last quote of each symbol. Write each trade's row and record, and the quote before it with its position.

    An absent side of a quote is copied from the symbol's previous quote.
    """
    many = 0
    quote = numpy.empty(last_payloads.shape[1], numpy.uint8)
    for row in range(len(offsets) - 1):
        start, size = offsets[row], offsets[row + 1] - offsets[row]
        if size <= type_offset:
            continue
        kind, code = data[start + type_offset], codes[row]
        if kind == kinds[1]:
            quote[:] = data[start : start + size]
            for side in range(len(sides)):
                price, price_bytes, shares, shares_bytes, step = sides[side]
                is_absent = True
                for each in range(price_bytes):
                    is_absent &= quote[price + each] == absent[side, each]
                if step != 0:
                    is_absent |= _is_nan(quote[price : price + price_bytes][::step])
                if there[code] and is_absent:
                    quote[price : price + price_bytes] = last_payloads[code, price : price + price_bytes]
                    quote[shares : shares + shares_bytes] = last_payloads[code, shares : shares + shares_bytes]
            last_payloads[code] = quote
            for each in range(len(place)):
                last_places[code, each] = place[each, row]
            there[code] = True
        elif kind == kinds[0]:
            rows[many] = row
            records[many] = data[start : start + size]
            age = place[_TS_EVENT, row] - last_places[code, _TS_EVENT]
            if there[code] and (tolerance < 0 or age <= tolerance):
                found[many] = True
                quotes[many] = last_payloads[code]
                for each in range(len(place)):
                    places[each, many] = last_places[code, each]
            many += 1
