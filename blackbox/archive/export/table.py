"""Messages in Arrow columns, gathered batch by batch and returned as record batches of bounded memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

import numpy
import pyarrow
from numpy.typing import NDArray

from blackbox.block.batch.batch import Batch
from blackbox.feed.routing.symbol import SymbolRule
from blackbox.feed.schema.schema import Schema

PART_ROWS: Final = 1 << 20
PART_BYTES: Final = 64 << 20
"""A part is closed at either limit. Offsets into its payloads are int32."""
TEXT: Final = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())

Chosen = tuple[NDArray[numpy.int64], NDArray[Any]]
"""Rows of the chosen messages of a batch, ascending, and the record of each."""


class Pick(NamedTuple):
    """Messages whose fields become columns."""

    label: str
    """Value of their `message_type` column."""
    choose: Callable[[Batch], Chosen]
    dtype: numpy.dtype[Any]
    """Type of the records."""
    columns: tuple[tuple[str, pyarrow.Field], ...]
    """A field of the records, and its column, as in `Schema.arrow`."""
    valid: Mapping[str, str] = MappingProxyType({})
    """Nullable columns. Each has a field of the records that is False where the column is null."""

    @classmethod
    def of_type(cls, schema: Schema, kind: str) -> Pick:
        """Return all messages of one type, with all its fields. Raises ConfigError if the schema has no such type."""

        def choose(batch: Batch) -> Chosen:
            return batch.indices(kind), batch.records(kind)

        return cls(kind, choose, schema.dtype(kind), tuple((field.name, field) for field in schema.arrow(kind)))


Picks = tuple[Pick, ...]


class Records(Protocol):
    """Records of one pick: a structured array, or its fields."""

    def __getitem__(self, field: str, /) -> NDArray[Any]:
        """Return one field."""

    def __len__(self) -> int: ...


BASE: Final = ("slice", "topic", "ts_event", "ts_out", "ts_recv", "epoch", "sequence")
"""Columns of `Rows.column`: topics are numbers."""


class Rows(ABC):
    """Rows of a table: all messages with payloads, or those of some picks. Attribute: `rows`, their number."""

    rows: int

    @abstractmethod
    def column(self, name: str) -> NDArray[Any]:
        """Return one of the columns `BASE`."""

    @abstractmethod
    def payloads(self) -> pyarrow.Array:
        """Return the payloads; null for a message without a value."""

    @abstractmethod
    def records(self, index: int) -> Records:
        """Return the records of the pick at an index."""

    @abstractmethod
    def pick_of_row(self) -> NDArray[numpy.int16]:
        """Return the place of each row's pick."""

    def merged(self, columns: list[pyarrow.Array]) -> pyarrow.Array:
        """Merge a column of each pick into one of all rows."""
        if len(columns) == 1:
            return columns[0]
        # The rows of each pick are contiguous and in order; a stable sort by pick finds each row.
        places = numpy.empty(self.rows, numpy.int64)
        places[numpy.argsort(self.pick_of_row(), kind="stable")] = numpy.arange(self.rows)
        return pyarrow.concat_arrays(columns).take(pyarrow.array(places))


class Part(Rows):
    """Rows gathered batch by batch."""

    def __init__(self, picks: Picks | None) -> None:
        self.rows = self.bytes = 0
        self._picks = picks
        self._blocks: list[tuple[int, int, int, int, int]] = []
        """Rows, slice, ts_out, ts_recv and epoch of each batch."""
        self._topics: list[NDArray[Any]] = [numpy.empty(0, numpy.int32)]
        self._times: list[NDArray[Any]] = [numpy.empty(0, numpy.int64)]
        self._sequences: list[NDArray[Any]] = [numpy.empty(0, numpy.int64)]
        self._sizes: list[NDArray[Any]] = [numpy.zeros(1, numpy.int64)]
        self._valid: list[NDArray[numpy.bool_]] = [numpy.empty(0, numpy.bool_)]
        self._payloads: list[NDArray[Any]] = [numpy.empty(0, numpy.uint8)]
        self._records: list[list[NDArray[Any]]] = [[numpy.empty(0, pick.dtype)] for pick in picks or ()]
        self._pick_of_row: list[NDArray[Any]] = [numpy.empty(0, numpy.int16)]

    def add(self, batch: Batch, topics: dict[bytes, int]) -> None:
        """Append a batch's messages. Raises ValueError if a picked message's length differs from its type's."""
        chosen = self._add_payloads(batch) if self._picks is None else self._add_records(batch, self._picks)
        times = batch.ts_event[chosen].copy()
        if not len(times):
            return
        numbers = _numbers(batch.topics, topics)
        self._topics.append(numbers[batch.topic_index[chosen]])
        self._times.append(times)
        self._sequences.append(batch.sequence[chosen])
        block = batch.block
        self._blocks.append((len(times), block.slice_id, block.ts_out, batch.ts_recv, block.epoch))
        self.rows += len(times)

    def _add_payloads(self, batch: Batch) -> Any:
        self._sizes.append(numpy.diff(batch.payload_offsets()))
        self._valid.append(batch.valid)
        self._keep(batch.payloads().reshape(-1), self._payloads)
        return slice(None)

    def _add_records(self, batch: Batch, picks: Picks) -> Any:
        found = []
        for pick, kept in zip(picks, self._records, strict=True):
            rows, records = pick.choose(batch)
            found.append(rows)
            if len(rows):
                self._keep(records, kept)
        if len(picks) == 1:
            return found[0]
        rows = numpy.concatenate(found)
        order = numpy.argsort(rows, kind="stable")
        self._pick_of_row.append(numpy.repeat(numpy.arange(len(picks), dtype=numpy.int16), [*map(len, found)])[order])
        return rows[order]

    def _keep(self, data: NDArray[Any], kept: list[NDArray[Any]]) -> None:
        kept.append(data.copy())  # its memory is released when the next block is read
        self.bytes += data.nbytes

    def base(self) -> list[NDArray[Any]]:
        """Return the common columns: slice, topic number, ts_event, ts_out, ts_recv, epoch, sequence."""
        rows, slices, ts_out, ts_recv, epochs = zip(*self._blocks, strict=True) if self._blocks else ((),) * 5
        count = numpy.array(rows, numpy.int64)

        def spread(values: tuple[int, ...], dtype: Any = numpy.int64) -> NDArray[Any]:
            return numpy.repeat(numpy.array(values, dtype), count)

        return [
            spread(slices, numpy.uint16),
            numpy.concatenate(self._topics),
            numpy.concatenate(self._times),
            spread(ts_out),
            spread(ts_recv),
            spread(epochs),
            numpy.concatenate(self._sequences),
        ]

    def column(self, name: str) -> NDArray[Any]:
        """Return one of the columns `BASE`."""
        return self._base[name]

    @cached_property
    def _base(self) -> dict[str, NDArray[Any]]:
        return dict(zip(BASE, self.base(), strict=True))

    def payloads(self) -> pyarrow.Array:
        """Return the payloads; null for a message without a value."""
        offsets = numpy.cumsum(numpy.concatenate(self._sizes)).astype(numpy.int32)
        valid = numpy.concatenate(self._valid)
        bits = None if valid.all() else pyarrow.py_buffer(numpy.packbits(valid, bitorder="little"))
        buffers = [bits, pyarrow.py_buffer(offsets), pyarrow.py_buffer(numpy.concatenate(self._payloads))]
        return pyarrow.Array.from_buffers(pyarrow.binary(), len(offsets) - 1, buffers)

    def records(self, index: int) -> NDArray[Any]:
        """Return the records of the pick at an index."""
        kept = self._records[index]
        kept[:] = [numpy.concatenate(kept)]
        return kept[0]

    def pick_of_row(self) -> NDArray[numpy.int16]:
        """Return the place of each row's pick."""
        return numpy.concatenate(self._pick_of_row) if len(self._records) > 1 else numpy.zeros(self.rows, numpy.int16)


def parts_of(
    batches: Iterable[Batch], picks: Picks | None, rows: int = PART_ROWS
) -> Iterator[tuple[Part, dict[bytes, int]]]:
    """Yield parts of at least `rows` rows or `PART_BYTES` bytes, each with its topics and their numbers."""
    part, topics = Part(picks), dict[bytes, int]()
    for batch in batches:
        part.add(batch, topics)
        if part.rows >= rows or part.bytes >= PART_BYTES:
            yield part, topics
            part, topics = Part(picks), {}
    if part.rows:
        yield part, topics


def texts(index: NDArray[Any], values: Iterable[bytes | None]) -> pyarrow.Array:
    """Return the string of each row by the number in `index`; null for None."""
    known = _Texts()
    known.add(map(text_of, values))
    return known.column(index)


def text_of(value: bytes | None) -> str | None:
    """Return a topic or a part of one as a string; bytes that are not UTF-8 are escaped."""
    return None if value is None else value.decode(errors="backslashreplace")


class TopicTexts:
    """The topics of a feed with their symbols and types as strings, by number."""

    def __init__(self, rule: SymbolRule) -> None:
        self._rule = rule
        self._of = {name: _Texts() for name in ("topic", "symbol", "type")}

    def add(self, topics: Iterable[bytes]) -> None:
        """Add the topics with the next numbers."""
        rows = [(topic, *self._rule.split(topic)) for topic in topics]
        for place, known in enumerate(self._of.values()):
            known.add(text_of(row[place]) for row in rows)

    def column(self, name: str, numbers: NDArray[Any]) -> pyarrow.Array:
        """Return the topic, symbol or type of each row by the topic's number."""
        return self._of[name].column(numbers)


class _Texts:
    """Distinct strings, and the string of each number."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._place_of: list[int] = []
        self._made: tuple[NDArray[numpy.int32] | None, pyarrow.Array] | None = None
        """Place of each number's string, None if it is the number itself, and the strings."""
        self._has_null = False

    def add(self, values: Iterable[str | None]) -> None:
        """Add the strings of the next numbers; None is null."""
        places, before = self._places, len(self._place_of)
        self._place_of += [-1 if value is None else places.setdefault(value, len(places)) for value in values]
        if len(self._place_of) > before:
            self._made = None

    def column(self, numbers: NDArray[Any]) -> pyarrow.Array:
        """Return the string of each row by its number."""
        if self._made is None:
            place_of = numpy.array(self._place_of, numpy.int32)
            is_same = len(self._places) == len(place_of)  # each number has another string: they have the same order
            self._made = None if is_same else place_of, pyarrow.array(list(self._places), pyarrow.string())
            self._has_null = bool((place_of < 0).any())
        own_places, distinct = self._made
        places = numbers if own_places is None else own_places.take(numbers)
        chosen = pyarrow.array(places, mask=places < 0 if self._has_null else None)
        return pyarrow.DictionaryArray.from_arrays(chosen, distinct)


def _numbers(names: list[bytes], topics: dict[bytes, int]) -> NDArray[numpy.int32]:
    """Return the number of each topic. New topics get the next numbers."""
    try:
        return numpy.array([*map(topics.__getitem__, names)], numpy.int32)
    except KeyError:
        for name in names:
            topics.setdefault(name, len(topics))
    return numpy.array([*map(topics.__getitem__, names)], numpy.int32)
