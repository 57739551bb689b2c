"""Recorded messages as columns, many blocks at a time: compiled code selects rows and copies only wanted fields."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy
import pyarrow
from numpy.typing import NDArray

from blackbox.archive.export.columns import Columns
from blackbox.archive.export.pushed import EARLIEST, LATEST, TEXTS, Pushed
from blackbox.archive.export.table import Picks, Rows, TopicTexts
from blackbox.archive.files.topic_numbers import refilled
from blackbox.archive.read.filter import Filter, Selection, filter_of
from blackbox.archive.read.gather import NO_PICK, Found, Wanted, choose_rows, number_topics, take_fields, take_payloads
from blackbox.archive.read.reader import RecordRun, read_runs
from blackbox.feed.schema.schema import Schema
from blackbox.native.tables.name_table import Numbering

if TYPE_CHECKING:
    from blackbox.archive.recording import Recording

_NO_STARTS: Final = numpy.zeros(0, numpy.int64)
_NO_NUMBERS: Final = numpy.zeros(0, numpy.int32)
_TOPICS: Final = 1 << 16
_TOPIC_BYTES: Final = 32
_HEADS: Final = {"slice": numpy.uint16, "ts_out": numpy.int64, "ts_recv": numpy.int64, "epoch": numpy.int64}


class _Fields:
    """Fields of the records of one type, each copied when it is read."""

    def __init__(self, dtype: numpy.dtype[Any], payloads: NDArray[numpy.int64]) -> None:
        self._dtype, self._payloads = dtype, payloads

    def __len__(self) -> int:
        return len(self._payloads)

    def __getitem__(self, field: str) -> NDArray[Any]:
        dtype, offset = self._dtype.fields[field][:2]  # type: ignore[index]  # a structured dtype has fields
        values = _pooled(len(self), dtype)
        take_fields(self._payloads, offset, dtype.itemsize, values.ctypes.data)
        return values


class Gathered(Rows):
    """Rows of one run of the reader, valid while the run is kept."""

    def __init__(self, run: RecordRun, picks: Picks | None, found: Found, rows: int) -> None:
        self._run, self._picks, self.rows = run, picks, rows
        self._found = Found._make(each[:rows] for each in found)  # of `ts_event` and `sequence` perhaps none

    def column(self, name: str) -> NDArray[Any]:
        """Return one of the columns `BASE`."""
        if name in _HEADS:
            return self._run.heads[name].astype(_HEADS[name])[self._found.block]
        found: NDArray[Any] = getattr(self._found, name)
        return found

    def payloads(self) -> pyarrow.Array:
        """Return the payloads; null for a message without a value."""
        sizes = self._found.size
        offsets = numpy.zeros(self.rows + 1, numpy.int32)
        numpy.cumsum(numpy.maximum(sizes, 0), out=offsets[1:])
        data = numpy.empty(int(offsets[-1]), numpy.uint8)
        take_payloads(self._found.payload, sizes, offsets, data.ctypes.data)
        valid = sizes >= 0
        bits = None if valid.all() else pyarrow.py_buffer(numpy.packbits(valid, bitorder="little"))
        return pyarrow.Array.from_buffers(
            pyarrow.binary(), self.rows, [bits, pyarrow.py_buffer(offsets), pyarrow.py_buffer(data)]
        )

    def records(self, index: int) -> _Fields:
        """Return the records of the pick at an index."""
        payloads, picks = self._found.payload, self._picks or ()
        return _Fields(picks[index].dtype, payloads if len(picks) == 1 else payloads[self._found.pick == index])

    def pick_of_row(self) -> NDArray[numpy.int16]:
        """Return the place of each row's pick."""
        return self._found.pick.copy()  # the next run writes there


def gathered(
    recording: Recording, columns: Columns, prefix: bytes, selection: Selection, pushed: Pushed
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the messages of a selection that may meet the pushed conditions, about 8 MiB of the recording at a time.

    Raises as `Recording.batches`; ValueError if the length of a message differs from its type's.
    """
    chosen = filter_of(recording.feed, recording.time, prefix, selection)
    feed, segments = recording.feed, recording.segments
    slices = pushed.slices(feed).intersection(segments.wanted(chosen.prefix, selection.get("slices")))
    bounds = tuple((name, *pushed.limits(name)) for name in {name for name, *_ in pushed.bounds} - {"slice"})
    narrow = chosen._replace(prefix=pushed.prefix(feed, chosen.prefix), bounds=bounds)
    gatherer = _Gatherer(recording, columns, chosen, pushed)
    streams = [mine for _, mine in segments.of(sorted(slices))]
    for run in read_runs(streams, narrow, segments.note, ahead=1):
        if (batch := gatherer.batch(run)) is not None:
            yield batch
        del run


class _Gatherer:
    """Selects rows of runs and makes their columns. Topics are numbered once for all runs."""

    def __init__(self, recording: Recording, columns: Columns, chosen: Filter, pushed: Pushed) -> None:
        self._feed, self._columns, self._chosen, self._pushed = recording.feed, columns, chosen, pushed
        self._has_topics = bool(chosen.prefix or chosen.symbols or pushed.texts) or bool(
            set(TEXTS).intersection(columns.schema.names)
        )
        self._scratch = _scratch(0)
        self._numbering = Numbering(_TOPICS, _TOPIC_BYTES)
        self._texts = TopicTexts(recording.feed.symbol_rule)
        self._is_wanted = numpy.zeros(0, numpy.uint8)
        """uint8 by topic number."""
        self._picks = _pick_table(recording.schema, columns.picks)
        (first, last), (first_time, last_time) = pushed.limits("sequence"), pushed.limits("ts_event")
        if chosen.by == "ts_event":
            first_time = max(first_time, EARLIEST if chosen.start is None else chosen.start)
            last_time = min(last_time, LATEST if chosen.stop is None else chosen.stop - 1)
        self._wanted = Wanted(
            first_time,
            last_time,
            max(first, EARLIEST if chosen.first_sequence is None else chosen.first_sequence),
            last,
            -1 if columns.picks is None else recording.schema.type_offset,
        )

    def batch(self, run: RecordRun) -> pyarrow.RecordBatch | None:
        """Return the columns of the selected rows of a run; None if no row is selected."""
        room = int(run.heads["count"].sum(dtype=numpy.int64))
        starts, numbers = self._number(run) if self._has_topics else (_NO_STARTS, _NO_NUMBERS)
        found = self._room_for(room)
        topics = starts, numbers, self._is_wanted
        rows, wrong = choose_rows(run.addresses, run.bodies, topics, self._wanted, self._picks, found)
        if wrong != NO_PICK and (picks := self._columns.picks):
            raise ValueError(
                f"a message in {run.segment(int(found.block[rows])).path} is of type {picks[wrong].label!r} but has "
                f"{found.size[rows]} bytes, expected {picks[wrong].dtype.itemsize}"
            )
        return self._columns.batch(Gathered(run, self._columns.picks, found, rows), self._texts) if rows else None

    def _room_for(self, rows: int) -> Found:
        """Return columns for rows. Columns of the result get new memory, the others are used again for the next run."""
        if len(self._scratch.block) < rows:
            self._scratch = _scratch(rows)
        names = {"topic" if name in TEXTS else name for name in self._columns.schema.names}
        kept = {
            name: _pooled(rows if name in names else 0, numpy.dtype(kind))
            for name, kind in (("ts_event", numpy.int64), ("sequence", numpy.int64))
        }
        if "topic" in names:
            kept["topic"] = _pooled(rows, numpy.dtype(numpy.int32))
        return self._scratch._replace(**kept)

    def _number(self, run: RecordRun) -> tuple[NDArray[numpy.int64], NDArray[numpy.int32]]:
        """Return the topic numbers of a run's records, and where each record's begin. New topics are added."""
        counts = run.heads["topics"].astype(numpy.int64)
        starts = numpy.cumsum(counts) - counts
        numbers = numpy.empty(int(counts.sum()), numpy.int32)
        done = 0
        while True:
            done = number_topics(run.addresses, run.bodies, starts, done, self._numbering.at, numbers)
            if done == len(starts):
                break
            room = 2 * (len(self._numbering) + int(counts[done]))
            text_bytes = 2 * (len(self._numbering.text) + int(run.heads["topic_bytes"][done]))
            self._numbering = refilled(self._numbering, room, -(-text_bytes // room))
        if more := self._numbering.names(len(self._is_wanted)):
            self._texts.add(more)
            self._is_wanted = numpy.concatenate([self._is_wanted, numpy.array([*map(self._has, more)], numpy.uint8)])
        return starts, numbers

    def _has(self, topic: bytes) -> bool:
        """Return True if messages of a topic may be wanted."""
        chosen = self._chosen
        if not topic.startswith(chosen.prefix) or (chosen.symbols is not None and not chosen.symbols.has(topic)):
            return False
        return self._pushed.has(topic, self._feed)


def _scratch(rows: int) -> Found:
    kinds = numpy.int32, numpy.int32, numpy.int16, None, None, numpy.int64, numpy.int32
    return Found._make(numpy.empty(0 if kind is None else rows, kind or numpy.int64) for kind in kinds)


def _pooled(rows: int, dtype: numpy.dtype[Any]) -> NDArray[Any]:
    """Return an array in the memory of Arrow, which uses pages again: first writes to new ones are slow."""
    item, shape = dtype.base, dtype.shape
    memory = pyarrow.allocate_buffer(max(1, rows) * dtype.itemsize)
    return numpy.frombuffer(memory, item)[: rows * math.prod(shape)].reshape(rows, *shape)


def _pick_table(schema: Schema, picks: Picks | None) -> tuple[NDArray[numpy.int16], NDArray[numpy.int64]]:
    """Return the pick of each type character, and the payload size of each pick."""
    pick_of = numpy.full(256, NO_PICK, numpy.int16)
    for index, pick in enumerate(picks or ()):
        pick_of[ord(schema.character(pick.label))] = index
    return pick_of, numpy.array([pick.dtype.itemsize for pick in picks or ()], numpy.int64)
