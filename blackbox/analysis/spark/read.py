"""Read a partition as record batches: runs of the journal reader, gathered into columns by compiled code."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy
import pyarrow
from numpy.typing import NDArray
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from blackbox.analysis.spark.columns import PAYLOAD, RecordField, record_array
from blackbox.analysis.spark.filters import Pushed
from blackbox.analysis.spark.gather import Chosen, Target, Wanted, choose, fill
from blackbox.analysis.spark.metrics import write_metrics
from blackbox.analysis.spark.plan import Partition
from blackbox.archive.files.segment import Damage
from blackbox.archive.read.reader import RecordRun, open_spans, read_spans
from blackbox.errors import JournalError
from blackbox.feed.routing.compiled_routing import CompiledSymbolRule
from blackbox.feed.schema.schema import Schema

_log = logging.getLogger(__name__)

BATCH_ROWS: Final = 65_536
BATCH_BYTES: Final = 16 << 20
"""Maximum bytes of topics, and of payloads, in a record batch, unless a single message has more."""
_MICROS: Final = pyarrow.timestamp("us", "UTC")
_NUMBERS: Final[tuple[str, ...]] = ("ts_event", "ts_out", "ts_recv", "epoch", "sequence")
_TIMES: Final[tuple[str, ...]] = ("event_time", "out_time", "recv_time")


class Reading(NamedTuple):
    """How the partitions of a query are read."""

    schema: StructType
    """The columns to return, in order."""
    pushed: Pushed
    skip_damage: bool
    metrics: str | None
    character: str | None = None
    """The character of the wanted message type; None for all."""
    records: Schema | None = None
    """The schema that defines the message type."""
    fields: tuple[RecordField, ...] = ()
    names: tuple[str, ...] = ()
    """Our names of the columns of `schema`; empty if they are the same."""

    def batches(self, partition: Partition) -> Iterator[pyarrow.RecordBatch]:
        """Yield the messages of a partition in the order of its slice.

        Raises JournalError with file and offset of damage, unless damage is skipped.
        """
        return _Partition(self, partition).batches()


class _Partition:
    """A partition being read, with its counters."""

    def __init__(self, reading: Reading, partition: Partition) -> None:
        self._reading, self._partition = reading, partition
        self._blocks = self._bytes = self._rows = self._damaged = self._lost = 0
        self._schema = to_arrow_schema(reading.schema, timezone="UTC")
        self._names = reading.names or tuple(self._schema.names)
        self._columns = set(self._names)
        self._constants = _Constants(partition)
        self._conditions = reading.pushed.conditions()
        self._rule = CompiledSymbolRule.of(partition.symbol_rule)
        schema, message_type = reading.records, reading.character
        self._dtype = None if schema is None or message_type is None else schema.dtype(message_type)
        character = -1 if schema is None or message_type is None else ord(schema.character(message_type))
        first, last = reading.pushed.ts_event.limits()
        type_offset = 0 if schema is None else schema.type_offset
        width = 0 if self._dtype is None else self._dtype.itemsize
        self._wanted = Wanted(first, last, character, type_offset, width)

    def batches(self) -> Iterator[pyarrow.RecordBatch]:
        partition = self._partition
        spans = open_spans(Path(partition.day), partition.slice_id, partition.spans)
        try:
            for run in read_spans([spans], self._reading.pushed.records, partition.key_rule, self._tell):
                self._blocks += len(run.heads)
                self._bytes += int(run.heads["stored_bytes"].sum(dtype=numpy.int64))
                yield from self._batches_of(run)
        finally:
            self._report()

    def _batches_of(self, run: RecordRun) -> Iterator[pyarrow.RecordBatch]:
        record = row = 0
        places = run.addresses, run.bodies
        while record < len(run.heads):
            rows = numpy.empty(BATCH_ROWS, numpy.int32), numpy.empty(BATCH_ROWS, numpy.int32)
            wanted = self._wanted, self._conditions, self._rule
            chosen = choose(*places, record, row, *wanted, BATCH_ROWS, BATCH_BYTES, *rows)
            if chosen.wrong:
                self._tell_wrong(run, chosen)
            if chosen.count:
                self._rows += chosen.count
                yield self._batch(run, rows, chosen)
            record, row = chosen.record, chosen.row

    def _batch(
        self, run: RecordRun, rows: tuple[NDArray[numpy.int32], NDArray[numpy.int32]], chosen: Chosen
    ) -> pyarrow.RecordBatch:
        draft = _Draft(self._columns, chosen, self._dtype)
        target = draft.target()
        fill(run.addresses, run.bodies, *rows, chosen.count, target, self._rule, self._wanted.width)
        arrays = {**self._constants.arrays(chosen.count), **draft.arrays()}
        if self._dtype is not None:
            table = draft.payload.view(self._dtype)
            arrays |= {f.column: record_array(f, table) for f in self._reading.fields if f.column in self._columns}
        return pyarrow.RecordBatch.from_arrays([arrays[name] for name in self._names], schema=self._schema)

    def _tell(self, damage: Damage) -> None:
        if not self._reading.skip_damage:
            raise JournalError(f"{damage}; onDamage=skip reads the rest")
        self._damaged += 1
        self._lost += damage.messages
        _log.warning("%s", damage)

    def _tell_wrong(self, run: RecordRun, chosen: Chosen) -> None:
        told = f"a message of type {self._reading.character!r} had {chosen.wrong_bytes} bytes"
        what = f"{told}, expected {self._wanted.width}"
        self._tell(run.damage(chosen.wrong_record, what, chosen.wrong))

    def _report(self) -> None:
        if self._damaged:
            day, slice_id = self._partition.day, self._partition.slice_id
            _log.warning("%s slice %d: skipped %d damaged parts, %d messages", day, slice_id, self._damaged, self._lost)
        if self._reading.metrics is not None:
            write_metrics(
                self._reading.metrics,
                "task",
                day=self._partition.day,
                slice=self._partition.slice_id,
                blocks=self._blocks,
                bytes=self._bytes,
                rows=self._rows,
                damaged=self._damaged,
                lost=self._lost,
            )


class _Constants:
    """Columns with one value in a whole partition: created once, then sliced."""

    def __init__(self, partition: Partition) -> None:
        self._make: dict[str, Callable[[int], pyarrow.Array]] = {
            "feed": lambda count: pyarrow.repeat(pyarrow.scalar(partition.feed), count),
            "date": lambda count: pyarrow.repeat(pyarrow.scalar(partition.date), count),
            "slice": lambda count: pyarrow.repeat(pyarrow.scalar(partition.slice_id, pyarrow.int32()), count),
        }
        self._made: dict[str, pyarrow.Array] = {}

    def arrays(self, count: int) -> dict[str, pyarrow.Array]:
        if len(next(iter(self._made.values()), ())) < count:
            self._made = {name: make(count) for name, make in self._make.items()}
        return {name: array.slice(0, count) for name, array in self._made.items()}


class _Draft:
    """The buffers of one batch, which `fill` writes."""

    def __init__(self, columns: set[str], chosen: Chosen, dtype: numpy.dtype[Any] | None) -> None:
        count = chosen.count
        self._count = count
        self._numbers = {name: numpy.empty(count, numpy.int64) for name in (*_NUMBERS, *_TIMES) if name in columns}
        self._valid = {name: numpy.zeros((count + 7) // 8, numpy.uint8) for name in ("event_time", "type", PAYLOAD)}
        sizes = {"topic": chosen.topic_bytes, "symbol": chosen.symbol_bytes, "type": chosen.type_bytes}
        if dtype is None:
            sizes[PAYLOAD] = chosen.payload_bytes
        self._texts = {
            name: (numpy.zeros(count + 1, numpy.int32), numpy.empty(max(1, size), numpy.uint8))
            for name, size in sizes.items()
            if name in columns
        }
        self.payload = numpy.empty(0 if dtype is None else chosen.payload_bytes, numpy.uint8)

    def target(self) -> Target:
        def number(name: str) -> int:
            return self._numbers[name].ctypes.data if name in self._numbers else 0

        def data(name: str) -> int:
            return self._texts[name][1].ctypes.data if name in self._texts else 0

        def offsets(name: str) -> int:
            return self._texts[name][0].ctypes.data if name in self._texts else 0

        return Target(
            ts_event=number("ts_event"),
            ts_out=number("ts_out"),
            ts_recv=number("ts_recv"),
            event_time=number("event_time"),
            event_valid=self._valid["event_time"].ctypes.data,
            out_time=number("out_time"),
            recv_time=number("recv_time"),
            epoch=number("epoch"),
            sequence=number("sequence"),
            topic=data("topic"),
            topic_offsets=offsets("topic"),
            symbol=data("symbol"),
            symbol_offsets=offsets("symbol"),
            type=data("type"),
            type_offsets=offsets("type"),
            type_valid=self._valid["type"].ctypes.data,
            payload=self.payload.ctypes.data if len(self.payload) else data(PAYLOAD),
            payload_offsets=offsets(PAYLOAD),
            payload_valid=self._valid[PAYLOAD].ctypes.data,
        )

    def arrays(self) -> dict[str, pyarrow.Array]:
        found: dict[str, pyarrow.Array] = {}
        for name, numbers in self._numbers.items():
            valid = self._bits(name)
            kind = _MICROS if name in _TIMES else pyarrow.int64()
            found[name] = pyarrow.Array.from_buffers(kind, self._count, [valid, pyarrow.py_buffer(numbers)])
        for name, (offsets, data) in self._texts.items():
            kind = pyarrow.binary() if name == PAYLOAD else pyarrow.string()
            buffers = [self._bits(name), pyarrow.py_buffer(offsets), pyarrow.py_buffer(data)]
            found[name] = pyarrow.Array.from_buffers(kind, self._count, buffers)
        return found

    def _bits(self, name: str) -> pyarrow.Buffer | None:
        return pyarrow.py_buffer(self._valid[name]) if name in self._valid else None
