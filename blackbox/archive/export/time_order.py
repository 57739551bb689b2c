"""Merge the messages of a recording by the venue's times, and copy their payloads into one array.

A stream is one key of one slice in one epoch. Its order is that of its sequences. Streams are merged message by
message by `ts_event`, then slice, then position in the slice. A message with an earlier time than the one before in its
stream stays after that one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.archive.read.filter import Filter, RowFilter
from blackbox.archive.read.reader import RecordRun, blocks_of, read_runs
from blackbox.block.form.format import FLAG_FIXED, layout_of, read_header
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import copy_bytes, int32s_at, int64s_at, unsigned

if TYPE_CHECKING:
    from blackbox.archive.files.segment import Segment, SegmentFile
    from blackbox.archive.recording import Recording

_PART_ROWS: Final = 131_072
"""Maximum number of messages in a part."""
_PART_BYTES: Final = 16 << 20
"""A part is closed once its payloads have this size."""
_WINDOW_ROWS: Final = 1 << 21
"""Maximum number of waiting messages, 40 bytes each."""
_NEVER: Final = (1 << 63) - 1
_LATEST: Final = _NEVER - 2
"""Messages with a later time are sorted as if they had this one."""

# Columns of waiting messages.
_PLACE: Final = 0
"""The highest time of the stream so far."""
_TIME: Final = 1
_ADDRESS: Final = 2
_LENGTH: Final = 3
_STREAM: Final = 4
_COLUMNS: Final = 5


class Messages(NamedTuple):
    """Consecutive messages, in columns."""

    payloads: NDArray[numpy.uint8]
    """All payloads, concatenated."""
    offsets: NDArray[numpy.int64]
    """int64[n + 1]: start of each payload in `payloads`."""
    ts_event: NDArray[numpy.int64]
    """int64[n]: time at the venue, ns since 1970-01-01 UTC."""


class Order(msgspec.Struct):
    """Counts of messages, and of those with an unknown order."""

    messages: int = 0
    ties: int = 0
    """Messages of several streams with equal times, whose order of publication is unknown."""
    late: int = 0
    """Messages with an earlier time than one before in their stream. Their position among other streams is unknown."""


def in_order_of_time(recording: Recording, wanted: Filter, order: Order) -> Iterator[Messages]:
    """Yield the wanted messages, and count those with an unknown order in `order`.

    Epochs follow one another. Only messages that wait for earlier ones of other slices or keys are in memory, as
    determined from the indexes. Above two million waiting messages the earliest half is yielded (see `Order.late`).
    """
    for streams in _runs(recording):
        waiting = [_Slice(recording, slice_id, wanted._replace(epoch=epoch)) for slice_id, epoch in streams]
        yield from _merged(waiting, order)


def _runs(recording: Recording) -> list[list[tuple[int, int]]]:
    """Return groups of (slice, epoch). Members of a group may have been published at the same time."""
    seen: dict[tuple[int, int], int] = {}
    for slice_id in range(len(recording.feed.slices)):
        for segment in _segments(recording, slice_id):
            entries = segment.entries
            for index in numpy.flatnonzero(numpy.diff(entries["epoch"], prepend=~entries["epoch"][:1])).tolist():
                seen.setdefault((slice_id, int(entries["epoch"][index])), int(entries["min_ts_out"][index]))
    epochs = dict.fromkeys(epoch for (_, epoch), _ in sorted(seen.items(), key=lambda item: (item[1], item[0])))
    levels: dict[int, int] = {}  # number of epochs so far, by slice
    groups: list[list[tuple[int, int]]] = []
    for epoch in epochs:
        slices = [slice_id for slice_id, other in seen if other == epoch]
        level = max(levels.get(slice_id, 0) for slice_id in slices)
        levels.update(dict.fromkeys(slices, level + 1))
        if level == len(groups):
            groups.append([])
        groups[level] += [(slice_id, epoch) for slice_id in slices]
    return [sorted(group) for group in groups]


def _segments(recording: Recording, slice_id: int) -> list[Segment]:
    return next(iter(recording.segments.streams(b"", [slice_id])), [])


class _Part(NamedTuple):
    """Messages of one slice, in order."""

    columns: NDArray[numpy.int64]
    """int64[_COLUMNS, n]."""
    owners: list[Any]
    """Owners of the decompressed bodies."""
    ranges: list[tuple[SegmentFile, int, int]]
    """Bytes of segments to release once they are written."""


class _Slice:
    """One slice's messages of one epoch, read on demand. No later message has a time before `safe`."""

    def __init__(self, recording: Recording, slice_id: int, wanted: Filter) -> None:
        self._recording = recording
        self._id = slice_id
        self._segments = _segments(recording, slice_id)
        self._runs = read_runs([self._segments], wanted, recording.segments.note)
        self._select = RowFilter(wanted)
        self._latest: dict[bytes, int] = {}
        self._streams: dict[bytes, int] = {}
        self._later = self._find_later(wanted)
        self._scratch = numpy.zeros(1, numpy.int64)
        self.safe = -_NEVER
        self.parts: list[_Part] = []

    def read(self, floor: int, order: Order) -> None:
        """Read another run of records. None of its messages sorts before `floor`."""
        run = next(self._runs, None)
        if run is None:
            self.safe = _NEVER
            return
        columns = numpy.empty((_COLUMNS, int(run.heads["count"].sum(dtype=numpy.int64))), numpy.int64)
        owners = []
        many = 0
        key_rule = self._recording.feed.key_rule
        for block, _, first_row, header, body in blocks_of(run, key_rule):
            rows = self._select.rows(block, first_row, header, body)
            key = block.key
            latest = max(floor, self._latest.get(key, -_NEVER))
            stream = self._streams.setdefault(key, (self._id << 32) + len(self._streams))
            chosen = -1 if rows is None else len(rows)
            rows_address = 0 if rows is None else rows.ctypes.data
            many, self._latest[key], late = list_messages(
                header, body, rows_address, chosen, latest, stream, columns, many
            )
            order.late += late
            owners.append(block.body)
        self.parts.append(_Part(columns[:, :many], owners, list(run.ranges())))
        self.safe = self._safe_after(run)
        if not key_rule:
            self.safe = max(self.safe, self._latest.get(b"", -_NEVER))

    def take(self, before: int) -> list[_Part]:
        """Remove and return the messages before a time. The last piece of a part has its `ranges`."""
        taken, kept = [], []
        for part in self.parts:
            goes = part.columns[_PLACE] < before
            if goes.all():
                taken.append(part)
            elif not goes.any():
                kept.append(part)
            else:
                taken.append(_Part(part.columns[:, goes], part.owners, []))
                kept.append(_Part(part.columns[:, ~goes], part.owners, part.ranges))
        self.parts = kept
        return taken

    def _find_later(self, wanted: Filter) -> dict[SegmentFile, tuple[NDArray[numpy.int64], NDArray[numpy.int64]]]:
        """Return by segment the end of each index entry, and int64[entries + 1], the lowest time from each entry on."""
        found: dict[SegmentFile, tuple[NDArray[numpy.int64], NDArray[numpy.int64]]] = {}
        least = _NEVER
        for segment in reversed(self._segments):
            entries = segment.entries
            times = numpy.minimum(entries["min_ts_event"], _LATEST)
            times = numpy.where(wanted.entries(entries), times, _NEVER)
            times = numpy.minimum.accumulate(numpy.append(times, least)[::-1])[::-1]
            found[segment] = entries["stop"], times
            least = int(times[0])
        return found

    def _safe_after(self, run: RecordRun) -> int:
        segment, _, end = list(run.ranges())[-1]
        stops, least = self._later[segment]
        return int(least[numpy.searchsorted(stops, end, side="right")])


def _merged(slices: list[_Slice], order: Order) -> Iterator[Messages]:
    written = -_NEVER
    enough = _PART_ROWS
    while True:
        waiting = sum(part.columns.shape[1] for each in slices for part in each.parts)
        lowest = min(slices, key=lambda each: each.safe)
        safe = lowest.safe
        if safe < _NEVER and waiting < enough:
            lowest.read(written, order)
            continue
        if waiting >= _WINDOW_ROWS and safe < _NEVER:
            places = numpy.concatenate([part.columns[_PLACE] for each in slices for part in each.parts])
            safe = max(safe, int(numpy.partition(places, waiting // 2)[waiting // 2]) + 1)
        taken = [part for each in slices for part in each.take(safe)]
        rows = sum(part.columns.shape[1] for part in taken)
        if rows:
            written = max(written, *(int(part.columns[_PLACE].max()) for part in taken if part.columns.size))
            yield from _laid_out([part.columns for part in taken], order)
        for part in taken:
            for segment, start, stop in part.ranges:
                segment.release(start, stop)
        if safe == _NEVER:
            return
        # The waiting messages are scanned again, so not at every step.
        enough = min(_WINDOW_ROWS, max(_PART_ROWS, 2 * (waiting - rows)))


def _laid_out(parts: list[NDArray[numpy.int64]], order: Order) -> Iterator[Messages]:
    columns = numpy.concatenate(parts, axis=1)
    columns = columns[:, numpy.argsort(columns[_PLACE], kind="stable")]
    order.messages += columns.shape[1]
    order.ties += _ties(columns[_PLACE], columns[_STREAM])
    ends = numpy.cumsum(columns[_LENGTH])
    start = 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        stop = int(numpy.searchsorted(ends, before + _PART_BYTES, side="right"))
        stop = min(max(stop, start + 1), start + _PART_ROWS)
        offsets = numpy.zeros(stop - start + 1, numpy.int64)
        numpy.subtract(ends[start:stop], before, out=offsets[1:])
        payloads = numpy.empty(int(offsets[-1]), numpy.uint8)
        gather(columns[_ADDRESS, start:stop], offsets, payloads)
        yield Messages(payloads, offsets, columns[_TIME, start:stop])
        start = stop


def _ties(places: NDArray[numpy.int64], streams: NDArray[numpy.int64]) -> int:
    """Return how many messages have the same time as a message of another stream."""
    starts = numpy.flatnonzero(numpy.diff(places, prepend=places[:1] - 1))
    sizes = numpy.diff(starts, append=len(places))
    mixed = numpy.minimum.reduceat(streams, starts) != numpy.maximum.reduceat(streams, starts)
    return int(sizes[mixed].sum())


@njit(nogil=True, cache=True)
def list_messages(
    header: int, body: int, rows: int, wanted: int, latest: int, stream: int, columns: NDArray[numpy.int64], many: int
) -> tuple[int, int, int]:
    """Append a checked block's messages to the columns, from position `many` on.

    `wanted`: number of rows in the int32 array at `rows`; -1: all. `latest`: highest time of the stream so far. Returns
    the new number of messages, the new highest time, and how many of the block's messages were before it.
    """
    block = read_header(header)
    fixed = block.flags & FLAG_FIXED != 0
    layout = layout_of(block)
    ts_event = int64s_at(body, block.count)
    chosen = int32s_at(rows, max(wanted, 0))
    offsets = int32s_at(body + layout.payload_offsets, 0 if fixed else block.count + 1)
    late = 0
    for i in range(block.count if wanted < 0 else wanted):
        row = numpy.uint64(i) if wanted < 0 else unsigned(chosen[i])
        time = ts_event[row]
        late += time < latest
        latest = max(latest, min(time, _LATEST))
        start = numpy.int64(row) * block.stride if fixed else numpy.int64(offsets[row])
        columns[_PLACE, many] = latest
        columns[_TIME, many] = time
        columns[_ADDRESS, many] = body + layout.payloads + start
        columns[_LENGTH, many] = block.stride if fixed else numpy.int64(offsets[row + numpy.uint64(1)]) - start
        columns[_STREAM, many] = stream
        many += 1
    return many, latest, late


@njit(nogil=True, cache=True)
def gather(addresses: NDArray[numpy.int64], offsets: NDArray[numpy.int64], target: NDArray[numpy.uint8]) -> None:
    """Copy the payload at each address to its offset in `target`."""
    address = target.ctypes.data
    for i in range(len(addresses)):
        copy_bytes(address + offsets[i], addresses[i], offsets[i + 1] - offsets[i])
