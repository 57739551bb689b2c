"""Read the messages that a schema declares as trades, quotes or breaks, as records with one flag for each column."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy
import pyarrow
from numpy.typing import NDArray

from blackbox.archive.export.members import Members, columns_of, integer, number
from blackbox.archive.export.table import Chosen, Pick
from blackbox.block.batch.batch import Batch
from blackbox.feed.routing.symbol import SymbolRule
from blackbox.feed.schema.schema import ABSENT, Schema


class Symbols:
    """Numbers symbols in order of appearance."""

    def __init__(self, rule: SymbolRule) -> None:
        self.rule = rule
        self.lowest: dict[int, int] = {}
        """The lowest rank of each symbol that has a trade or quote, by its number."""
        self._numbers: dict[bytes, int] = {}

    def of_topics(self, batch: Batch) -> list[int]:
        """Return the number of the symbol of each topic."""
        known = self._numbers
        return [known.setdefault(self.rule.symbol_of(topic), len(known)) for topic in batch.topics]

    def of_rows(self, batch: Batch, rows: NDArray[numpy.int64]) -> NDArray[numpy.uint64]:
        """Return the number of the symbol of each of these rows."""
        return numpy.array(self.of_topics(batch), numpy.uint64)[batch.topic_index[rows]]


class Tick(ABC):
    """The messages of one declaration. For each column a record also has a flag, `has_` and the column's name."""

    _read_members: Members
    """Reads the members of a JSON document; set only for JSON payloads."""

    def __init__(
        self, schema: Schema, symbols: Symbols, kind: str, names: Mapping[str, str | None], rank: int = 0
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

    def of_lowest_rank(self, batch: Batch, chosen: Chosen) -> Chosen:
        """Return the messages of symbols whose lowest rank is this one, and count the others."""
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
        rows, records, misfits = records_of(batch, self._schema, self._type)
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


def block_rows(batch: Batch, rows: NDArray[Any]) -> NDArray[Any]:
    """Return the rows of the block for these rows of the batch."""
    return rows if batch.rows is None else batch.rows[rows]


def records_of(batch: Batch, schema: Schema, kind: str) -> tuple[NDArray[numpy.int64], NDArray[Any], int]:
    """Return the rows and records of a type, and the number of its messages that have another size."""
    rows = batch.indices(kind)
    fits = numpy.diff(batch.payload_offsets())[rows] == schema.dtype(kind).itemsize
    if fits.all():
        return rows, batch.records(kind), 0
    good = rows[fits]
    part = Batch(batch.block, block_rows(batch, good).astype(numpy.int32), batch._received_block)
    return good, part.records(kind), len(rows) - len(good)
