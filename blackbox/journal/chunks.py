"""Read the records of several slices in one order, passing over what the indexes show not to match."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.journal.layout import RECORD, RECORD_HEAD_BYTES
from blackbox.journal.merge import Target, merge, streams_of
from blackbox.journal.record import bit_of, next_record, walk
from blackbox.journal.segment import NO_GOOD_RECORD, Damage, Segment

CHUNK_RECORDS: Final = 1_024
"""Records of a chunk, at most."""
CHUNK_BYTES: Final = 32 << 20
"""A chunk gets no more records once they have that many bytes."""
_LOOKAHEAD_BYTES: Final = 32 << 20
_LEAST_LOOKAHEAD_BYTES: Final = 1 << 20
"""Of one slice; the other two are over all slices."""
_LOOKAHEAD_RECORDS: Final = 65_536

Clock = Literal["ts_event", "ts_out", "ts_recv"]
"""By which of its times a message is chosen."""


class Query(NamedTuple):
    """Which messages are wanted. What is None does not matter."""

    key_bytes: int
    """Of the feed."""
    prefix: bytes = b""
    """With what their topics begin."""
    key: bytes | None = None
    """Their key."""
    start: int | None = None
    """The first of their times, ns since the epoch."""
    stop: int | None = None
    """The end of their times, ns since the epoch; not wanted itself."""
    by: Clock = "ts_event"
    """Which times."""
    epoch: int | None = None
    """The run of the publisher that they are of."""
    first_sequence: int | None = None
    """The first of their sequence numbers."""

    def entries(self, entries: NDArray[Any]) -> NDArray[numpy.bool_]:
        """bool[n]: which index entries may tell of such messages."""
        may = numpy.ones(len(entries), bool)
        if self.start is not None:
            may &= entries[f"max_{self.by}"] >= self.start
        if self.stop is not None:
            may &= entries[f"min_{self.by}"] < self.stop
        if self.epoch is not None:
            may &= entries["epoch"] == numpy.uint64(self.epoch)
        if self.first_sequence is not None:
            may &= entries["max_sequence"] >= self.first_sequence
        if (bit := self._bit()) is not None:
            may &= entries["keys"] & bit != 0
        return may

    def records(self, heads: NDArray[Any]) -> NDArray[numpy.bool_]:
        """bool[n]: which records may hold such messages, as far as their heads show."""
        may = numpy.ones(len(heads), bool)
        if self.by != "ts_event":
            if self.start is not None:
                may &= heads[self.by] >= self.start
            if self.stop is not None:
                may &= heads[self.by] < self.stop
        if self.epoch is not None:
            may &= heads["epoch"] == numpy.uint64(self.epoch)
        if self.first_sequence is not None:
            may &= heads["sequence"] + heads["count"] > self.first_sequence
        return may

    def _bit(self) -> numpy.uint64 | None:
        key = self.key
        if key is None:
            if len(self.prefix) < self.key_bytes:
                return None
            key = self.prefix[: self.key_bytes]
        text = numpy.frombuffer(key or b"\0", numpy.uint8)
        return numpy.uint64(bit_of(text.ctypes.data, len(key)))


class Chunk(NamedTuple):
    """Records of a recording, in its order. Addresses are good as long as `segments` are kept."""

    heads: NDArray[Any]
    """RECORD[n]."""
    addresses: NDArray[numpy.int64]
    """int64[n]: where each record's head lies in memory; its body as stored is behind it."""
    segments: list[Segment]
    """The segments that they lie in."""
    segment_of: NDArray[numpy.int32]
    """int32[n]: each record's place in `segments`."""


class _Run(NamedTuple):
    """Records that stand one behind the other in a segment."""

    segment: Segment
    start: int
    stop: int
    latest: int
    """The largest `ts_out` of the slice before them, whether it was wanted or not."""
    mean_bytes: int


def _runs(segments: list[Segment], query: Query) -> Iterator[_Run]:
    latest = 0
    for segment in segments:
        entries = segment.entries
        if not len(entries):
            continue
        before = numpy.maximum.accumulate(numpy.concatenate(([latest], entries["max_ts_out"])))
        wanted = numpy.flatnonzero(query.entries(entries))
        segment.expect(read_through=2 * len(wanted) > len(entries))
        apart = (numpy.diff(wanted) > 1) | (entries["stop"][wanted[:-1]] != entries["start"][wanted[1:]])
        for group in numpy.split(wanted, numpy.flatnonzero(apart) + 1):
            if len(group):
                start, stop = int(entries["start"][group[0]]), int(entries["stop"][group[-1]])
                mean = (stop - start) // max(1, int(entries["records"][group].sum()))
                yield _Run(segment, start, stop, int(before[group[0]]), mean)
        latest = int(before[-1])


class _Reader:
    """One slice's records, a lookahead at a time. Damage between them is told, and passed over."""

    def __init__(self, segments: list[Segment], query: Query, tell: Callable[[Damage], None], ahead_bytes: int) -> None:
        self._bytes = ahead_bytes
        self._runs = _runs(segments, query)
        self._tell = tell
        self._run: _Run | None = None
        self._at = 0

    def fill(self, offsets: int, heads: int, room: int) -> tuple[int, _Run | None]:
        """List the next records at two addresses, as `walk`; returns how many, of which run; 0: there are no more."""
        while True:
            if self._run is None:
                self._run = next(self._runs, None)
                if self._run is None:
                    return 0, None
                self._at = self._run.start
            run, segment = self._run, self._run.segment
            ahead = max(1, min(room, self._bytes // max(1, run.mean_bytes)))
            found, at = walk(segment.address, run.stop, self._at, offsets, heads, ahead)
            if found < ahead and at < run.stop:
                following = next_record(segment.address, run.stop, at + 1)
                following = run.stop if following < 0 else following
                self._tell(Damage(segment.path, at, following - at, NO_GOOD_RECORD))
                at = following
            self._at = at
            if at >= run.stop:
                self._run = None
            if found:
                return found, run


class _Merged:
    """All slices' lookahead, merged. `segments` numbers those that were looked at."""

    def __init__(self, slices: list[list[Segment]], query: Query, tell: Callable[[Damage], None]) -> None:
        self._room = max(16, min(CHUNK_RECORDS, _LOOKAHEAD_RECORDS // len(slices)))
        self._streams, self._tables = streams_of(len(slices), self._room)
        ahead_bytes = max(_LEAST_LOOKAHEAD_BYTES, _LOOKAHEAD_BYTES // len(slices))
        self._readers = [_Reader(segments, query, tell, ahead_bytes) for segments in slices]
        self.segments: dict[Segment, int] = {}
        for stream in range(len(slices)):
            self._fill(stream)

    def take(self, target: Target) -> int:
        """Put the next records into `target`; returns how many: 0, there are no more."""
        count = size = 0
        while True:
            count, size, dry = merge(self._streams, target, count, size)
            if dry < 0:
                return int(count)
            self._fill(dry)

    def _fill(self, stream: int) -> None:
        tables = self._tables
        places = tables["places"][stream]
        found, run = self._readers[stream].fill(places.ctypes.data, tables["heads"][stream].ctypes.data, self._room)
        tables["next"][stream], tables["filled"][stream] = 0, found
        if run is not None:
            places[:found] += run.segment.address
            tables["latest"][stream] = max(int(tables["latest"][stream]), run.latest)
            tables["source"][stream] = self.segments.setdefault(run.segment, len(self.segments))


def read_chunks(
    slices: list[list[Segment]], query: Query, tell: Callable[[Damage], None], kept: int = 0
) -> Iterator[Chunk]:
    """The records that may match, slices merged by `merge`; memory behind a chunk is given back when the next is made.

    `slices` holds the segments of each wanted slice, in order; `tell` is called with whatever cannot be read; so many
    chunks are `kept` mapped behind the newest.
    """
    if not slices:
        return
    merged = _Merged(slices, query, tell)
    released: dict[Segment, int] = {}
    mapped: deque[Chunk] = deque()
    while True:
        heads = numpy.empty(CHUNK_RECORDS, RECORD)
        places = numpy.empty(CHUNK_RECORDS, numpy.int64)
        source = numpy.empty(CHUNK_RECORDS, numpy.int32)
        count = merged.take(
            Target(heads.ctypes.data, places.ctypes.data, source.ctypes.data, CHUNK_RECORDS, CHUNK_BYTES)
        )
        if not count:
            return
        whole = _chunk(heads[:count], places[:count], source[:count], list(merged.segments))
        may = query.records(whole.heads)
        if may.any():
            yield (
                whole
                if may.all()
                else _chunk(whole.heads[may], places[:count][may], source[:count][may], list(merged.segments))
            )
        mapped.append(whole)
        if len(mapped) > kept:
            _release(mapped.popleft(), released)


def _chunk(
    heads: NDArray[Any], places: NDArray[numpy.int64], source: NDArray[numpy.int32], segments: list[Segment]
) -> Chunk:
    numbers, segment_of = numpy.unique(source, return_inverse=True)
    return Chunk(heads, places, [segments[number] for number in numbers.tolist()], segment_of.astype(numpy.int32))


def _release(chunk: Chunk, released: dict[Segment, int]) -> None:
    ends = chunk.addresses + chunk.heads["stored_bytes"] + RECORD_HEAD_BYTES
    for number, segment in enumerate(chunk.segments):
        end = int(ends[chunk.segment_of == number].max()) - segment.address
        segment.release(released.get(segment, 0), end)
        released[segment] = end
