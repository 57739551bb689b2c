"""Messages as one Arrow table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy
import pyarrow
from numpy.typing import NDArray

from blackbox.block.arrow import record_columns
from blackbox.block.batch import Batch
from blackbox.feed.schema import Schema

PART_ROWS: Final = 1 << 20
PART_BYTES: Final = 64 << 20
"""A part of the table is closed at either: offsets into its payloads are int32."""

_COLUMNS: Final = (
    ("slice", pyarrow.uint16()),
    ("topic", pyarrow.dictionary(pyarrow.int32(), pyarrow.binary())),
    ("ts_event", pyarrow.int64()),
    ("ts_out", pyarrow.int64()),
    ("ts_recv", pyarrow.int64()),
    ("epoch", pyarrow.int64()),
    ("sequence", pyarrow.int64()),
)


def table_of(batches: Iterable[Batch], schema: Schema, kind: str | None) -> pyarrow.Table:
    """See `Recording.to_arrow`."""
    topics: dict[bytes, int] = {}
    typed = None if kind is None else schema.arrow(kind)
    parts, part = [], Part(schema, kind)
    for batch in batches:
        part.add(batch, topics)
        if part.rows >= PART_ROWS or part.bytes >= PART_BYTES:
            parts.append(part.columns())
            part = Part(schema, kind)
    parts.append(part.columns())
    dictionary = pyarrow.array(list(topics), pyarrow.binary())
    for columns in parts:
        columns[1] = pyarrow.DictionaryArray.from_arrays(columns[1], dictionary)
    fields = [pyarrow.field(*column, nullable=False) for column in _COLUMNS]
    if typed is None:
        fields.append(pyarrow.field("payload", pyarrow.binary()))
    else:
        taken = {field.name for field in fields}
        fields += [field.with_name(f"record_{field.name}") if field.name in taken else field for field in typed]
    table = pyarrow.schema(fields, None if typed is None else typed.metadata)
    return pyarrow.Table.from_batches([pyarrow.RecordBatch.from_arrays(part, schema=table) for part in parts])


class Part:
    """Rows of a table, gathered batch by batch."""

    def __init__(self, schema: Schema, kind: str | None) -> None:
        self.rows = self.bytes = 0
        self._schema, self._kind = schema, kind
        self._blocks: list[tuple[int, int, int, int, int]] = []
        """Of each batch: rows, slice, ts_out, ts_recv, epoch."""
        self._topics: list[NDArray[Any]] = [numpy.empty(0, numpy.int32)]
        self._times: list[NDArray[Any]] = [numpy.empty(0, numpy.int64)]
        self._sequences: list[NDArray[Any]] = [numpy.empty(0, numpy.int64)]
        self._sizes: list[NDArray[Any]] = [numpy.zeros(1, numpy.int64)]
        self._valid: list[NDArray[numpy.bool_]] = [numpy.empty(0, numpy.bool_)]
        self._data: list[NDArray[Any]] = [numpy.empty(0, numpy.uint8 if kind is None else schema.dtype(kind))]

    def add(self, batch: Batch, topics: dict[bytes, int]) -> None:
        """Append a batch's messages, of one type if the table is of one."""
        chosen: Any = slice(None)
        if self._kind is None:
            self._sizes.append(numpy.diff(batch.payload_offsets()))
            self._valid.append(batch.valid)
            data = batch.payloads().reshape(-1)
        else:
            chosen = batch.indices(self._kind)
            if not len(chosen):
                return
            data = batch.records(self._kind)
        self._data.append(data.copy())  # now: what it lies in is given back when the next block is read
        numbers = _numbers(batch.topics, topics)
        times = batch.ts_event[chosen].copy()
        self._topics.append(numbers[batch.topic_index[chosen]])
        self._times.append(times)
        self._sequences.append(batch.sequence[chosen])
        block = batch.block
        self._blocks.append((len(times), block.slice_id, block.ts_out, batch.ts_recv, block.epoch))
        self.rows += len(times)
        self.bytes += data.nbytes

    def columns(self) -> list[Any]:
        """All columns; the topics as their numbers."""
        rows, slices, ts_out, ts_recv, epochs = zip(*self._blocks, strict=True) if self._blocks else ((),) * 5
        count = numpy.array(rows, numpy.int64)

        def spread(values: tuple[int, ...], dtype: Any) -> pyarrow.Array:
            return pyarrow.array(numpy.repeat(numpy.array(values, dtype), count))

        columns = [
            spread(slices, numpy.uint16),
            pyarrow.array(numpy.concatenate(self._topics)),
            pyarrow.array(numpy.concatenate(self._times)),
            spread(ts_out, numpy.int64),
            spread(ts_recv, numpy.int64),
            spread(epochs, numpy.int64),
            pyarrow.array(numpy.concatenate(self._sequences)),
        ]
        data = numpy.concatenate(self._data)
        if self._kind is not None:
            return columns + record_columns(self._schema, self._kind, data)
        offsets = numpy.cumsum(numpy.concatenate(self._sizes)).astype(numpy.int32)
        valid = numpy.concatenate(self._valid)
        bits = None if valid.all() else pyarrow.py_buffer(numpy.packbits(valid, bitorder="little"))
        buffers = [bits, pyarrow.py_buffer(offsets), pyarrow.py_buffer(data)]
        return [*columns, pyarrow.Array.from_buffers(pyarrow.binary(), len(offsets) - 1, buffers)]


def _numbers(names: list[bytes], topics: dict[bytes, int]) -> NDArray[numpy.int32]:
    """The number of each topic; new ones get the next."""
    try:
        return numpy.array([*map(topics.__getitem__, names)], numpy.int32)
    except KeyError:
        for name in names:
            topics.setdefault(name, len(topics))
    return numpy.array([*map(topics.__getitem__, names)], numpy.int32)
