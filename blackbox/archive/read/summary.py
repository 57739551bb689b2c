"""Summarise a recording: counts, times and gaps."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import NamedTuple, Self

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.archive.files.format import MarkKind
from blackbox.archive.files.marks import marks_of
from blackbox.archive.files.segment import NO_TIME, Damage, Segment, open_end
from blackbox.archive.read.filter import Filter
from blackbox.archive.read.reader import Recorded, Report, read_runs
from blackbox.archive.read.rows import count_topics
from blackbox.archive.read.segments import NO_TIMES, Segments, time_range_of
from blackbox.block.gap import Gap
from blackbox.native.tables.name_table import Numbering

_TOPICS_AT_ONCE = 65_536
_MEAN_TOPIC_BYTES = 32
_TELL_NUMBERS = (MarkKind.HEARD, MarkKind.EPOCH_END)


class SliceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of one slice of a recording. Times are ns since 1970, None if there is no message."""

    slice_id: int
    messages: int
    """Without duplicates from the other line. Messages of damaged bodies are included."""
    blocks: int
    body_bytes: int
    """Size of the blocks' bodies, decompressed."""
    file_bytes: int
    """Size of the segments, without their indexes."""
    segments: int
    first_ts_event: int | None
    """Lowest venue time of a message, from the index; None: no message has one."""
    last_ts_event: int | None
    first_ts_out: int | None
    last_ts_out: int | None
    epochs: tuple[int, ...]
    """The publisher's epochs, in the order of their first records."""
    torn_bytes: int
    """Bytes after the last whole record: of a killed recorder, or of a record being written."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of a recording. Times are ns since 1970, None if there is no message."""

    messages: int
    blocks: int
    body_bytes: int
    file_bytes: int
    first_ts_event: int | None
    last_ts_event: int | None
    first_ts_out: int | None
    last_ts_out: int | None
    epochs: tuple[int, ...]
    """The publisher's epochs, by their first `ts_out`."""
    torn_bytes: int
    damage: tuple[Damage, ...]
    """Damage found so far; `verify` checks everything."""
    slices: tuple[SliceSummary, ...]


class LateBegin(msgspec.Struct, frozen=True, order=True):
    """An epoch of a slice whose first recorded message is not the first published one."""

    slice_id: int
    epoch: int
    sequence: int
    """Sequence of the first recorded message."""


class Examined(NamedTuple):
    """Result of `Recording.examine`."""

    damage: list[Damage]
    gaps: list[Gap]
    begins: list[LateBegin]


class Rate(msgspec.Struct, frozen=True):
    """Messages over time, by `ts_out`."""

    times: NDArray[numpy.int64]
    """int64[bins + 1]: limits of the bins, ns since 1970."""
    counts: NDArray[numpy.int64]
    """int64[bins]: number of messages in each bin."""


def summarise(segments: Segments) -> Summary:
    """Return `Recording.summary`. Reads the heads of all records."""
    parts, seen = [], []
    for slice_id, mine in segments.of():
        part, epochs = _summarise_slice(slice_id, mine, Filter(segments.feed.key_rule), segments.note)
        parts.append(part)
        seen += [(ts_out, slice_id, epoch) for epoch, ts_out in epochs.items()]
    return Summary(
        messages=sum(part.messages for part in parts),
        blocks=sum(part.blocks for part in parts),
        body_bytes=sum(part.body_bytes for part in parts),
        file_bytes=sum(part.file_bytes for part in parts),
        first_ts_event=_least(part.first_ts_event for part in parts),
        last_ts_event=_most(part.last_ts_event for part in parts),
        first_ts_out=_least(part.first_ts_out for part in parts),
        last_ts_out=_most(part.last_ts_out for part in parts),
        epochs=tuple(dict.fromkeys(epoch for _, _, epoch in sorted(seen))),
        torn_bytes=sum(part.torn_bytes for part in parts),
        damage=tuple(segments.damage),
        slices=tuple(parts),
    )


def _summarise_slice(
    slice_id: int, segments: list[Segment], wanted: Filter, report: Report
) -> tuple[SliceSummary, dict[int, int]]:
    messages = blocks = body_bytes = 0
    epochs: dict[int, int] = {}
    for run in read_runs([segments], wanted, report, bodies="stored"):
        heads = run.heads
        blocks += len(heads)
        messages += int(heads["count"].sum(dtype=numpy.int64) - heads["first_row"].sum(dtype=numpy.int64))
        body_bytes += int(heads["body_bytes"].sum(dtype=numpy.int64))
        changes = numpy.flatnonzero(numpy.diff(heads["epoch"], prepend=~heads["epoch"][:1]))
        for index in changes.tolist():
            epochs.setdefault(int(heads["epoch"][index]), int(heads["ts_out"][index]))
    times = time_range_of(segments, "ts_event")
    summary = SliceSummary(
        slice_id=slice_id,
        messages=messages,
        blocks=blocks,
        body_bytes=body_bytes,
        file_bytes=sum(len(segment.memory) for segment in segments),
        segments=len(segments),
        first_ts_event=None if times == NO_TIMES else times[0],
        last_ts_event=None if times == NO_TIMES else times[1],
        first_ts_out=_least(_known(segments, "min_ts_out")),
        last_ts_out=_most(_known(segments, "max_ts_out")),
        epochs=tuple(epochs),
        torn_bytes=sum(segment.torn_bytes for segment in open_end(segments)),
    )
    return summary, epochs


def _known(segments: Iterable[Segment], name: str) -> Iterator[int]:
    """Yield all known values of a column of the entries."""
    for segment in segments:
        column = segment.entries[name]
        column = column[numpy.abs(column) != NO_TIME]
        yield from column.tolist()


def _least(times: Iterable[int | None]) -> int | None:
    return min((time for time in times if time is not None), default=None)


def _most(times: Iterable[int | None]) -> int | None:
    return max((time for time in times if time is not None), default=None)


def message_rate(segments: Segments, bins: int) -> Rate:
    """Return `Recording.rate`. Reads the heads of all records."""
    first, last = _least(_known(segments, "min_ts_out")) or 0, _most(_known(segments, "max_ts_out")) or 0
    width = (last - first) // bins + 1
    counts = numpy.zeros(bins, numpy.int64)
    for _, mine in segments.of():
        for run in read_runs([mine], Filter(segments.feed.key_rule), segments.note, bodies="stored"):
            heads = run.heads
            bins_of = numpy.clip((heads["ts_out"] - first) // width, 0, bins - 1)
            numpy.add.at(counts, bins_of, heads["count"].astype(numpy.int64) - heads["first_row"])
    return Rate(first + width * numpy.arange(bins + 1, dtype=numpy.int64), counts)


class Since(NamedTuple):
    """The latest times before a gap, ns since 1970. Its messages are not earlier."""

    ts_out: int = 0
    ts_event: int = 0


class Reported(NamedTuple):
    """Sequences by epoch, as reported by the marks and the index of a slice. The records may lack some."""

    first: dict[int, int]
    """Lowest sequence: the publisher was received from here on."""
    last: dict[int, tuple[int, int]]
    """Highest next sequence and its send time, ns since 1970. All messages before it were published."""
    shown: dict[int, list[tuple[int, Since]]]
    """Sequence of each mark, ascending, with the latest times before it."""

    @classmethod
    def of(cls, segments: Iterable[Segment]) -> Self:
        """Return the sequences reported by the marks and the index of a slice."""
        segments = list(segments)
        found = cls({}, {}, {})
        for mark in marks_of(segments):
            if mark.kind in _TELL_NUMBERS:
                found._note(mark.epoch, mark.sequence, mark.sequence, mark.ts_out)
                since = Since(mark.ts_out, mark.ts_event)
                insort(found.shown.setdefault(mark.epoch, []), (mark.sequence, since), key=itemgetter(0))
        for segment in segments:
            entries = segment.entries[segment.entries["records"] > 0]
            for epoch, low, high, ts_out in entries[["epoch", "min_sequence", "max_sequence", "max_ts_out"]].tolist():
                found._note(epoch, low, high + 1, ts_out)
        return found

    def _note(self, epoch: int, low: int, end: int, ts_out: int) -> None:
        self.first[epoch] = min(self.first.get(epoch, low), low)
        self.last[epoch] = max(self.last.get(epoch, (0, 0)), (end, ts_out))

    def since(self, gap: Gap, before: Since) -> Since:
        """Return the latest times before a gap: in the source, or else `before`, those of the message before it."""
        shown = self.shown.get(gap.epoch, [])
        index = bisect_right(shown, gap.sequence, key=itemgetter(0))
        return shown[index][1] if index < len(shown) and shown[index][1].ts_event else before


def find_gaps(
    slice_id: int,
    blocks: Iterable[Recorded],
    reported: Reported,
    expected: dict[int, int],
    late: set[tuple[int, int]] | None = None,
    since: dict[Gap, Since] | None = None,
) -> Iterator[Gap]:
    """Yield the gaps of one slice: between its blocks, and before and after them where marks report sequences.

    Sequences that a block itself leaves out are not gaps. The keys of missing messages are not known: `Gap.key` is
    b"".

    `expected` has the sequence after earlier recordings by epoch, and is updated. Without it and without a mark,
    messages before the first block of an epoch are not gaps. `late` receives (slice, epoch) if messages before the
    first block or mark are unknown. `since` receives the latest times before each gap.
    """
    before: dict[int, Since] = {}

    def gap_at(epoch: int, known: int, stop: int, ts_out: int) -> Gap:
        gap = Gap(slice_id, epoch, b"", known, stop - known, ts_out)
        if since is not None:
            since[gap] = reported.since(gap, before.get(epoch, Since()))
        return gap

    for block, _, first_row, _, _ in blocks:
        epoch, begin, end = block.epoch, block.number_of(first_row), block.number_of(-1) + 1
        known = expected.get(epoch)
        if known is None:
            known = min(begin, reported.first.get(epoch, begin))
            if late is not None and known > 0:
                late.add((slice_id, epoch))
        if begin > known:
            yield gap_at(epoch, known, begin, block.ts_out)
        expected[epoch] = max(known, end)
        if since is not None:
            before[epoch] = Since(block.ts_out, max(before.get(epoch, Since()).ts_event, int(block.ts_event.max())))
    for epoch, (number, ts_out) in reported.last.items():
        known = expected.get(epoch, reported.first[epoch])
        if number > known:
            yield gap_at(epoch, known, number, ts_out)
            expected[epoch] = number


def gaps_and_late(
    segments: Segments, slices: Iterable[int] | None, expected: Mapping[int, dict[int, int]]
) -> tuple[dict[Gap, Since], set[tuple[int, int]]]:
    """Return the gaps of a day, each with the latest times before it, and (slice, epoch) of epochs that begin late.

    An epoch begins late if messages before the first recorded one are unknown.

    `expected`: by slice, argument of `find_gaps`: the sequences after earlier recordings.
    """
    late, since = set[tuple[int, int]](), dict[Gap, Since]()
    for slice_id, mine in segments.of(slices):
        found = find_gaps(slice_id, segments.blocks(slice_id), Reported.of(mine), expected[slice_id], late, since)
        deque(found, maxlen=0)
    return since, late


def topic_counts(blocks: Iterable[Recorded]) -> Counter[bytes]:
    """Return the number of messages by topic."""
    total: Counter[bytes] = Counter()
    numbering, counts = _fresh()
    for block, _, first_row, header, body in blocks:
        topic = 0
        while (topic := count_topics(header, body, first_row, topic, numbering.at, counts)) < block.topic_count:
            total.update(dict(zip(numbering.names(), counts.tolist(), strict=False)))
            numbering, counts = _fresh()
    total.update(dict(zip(numbering.names(), counts.tolist(), strict=False)))
    return total


def _fresh() -> tuple[Numbering, NDArray[numpy.int64]]:
    return Numbering(_TOPICS_AT_ONCE, _MEAN_TOPIC_BYTES), numpy.zeros(_TOPICS_AT_ONCE, numpy.int64)
