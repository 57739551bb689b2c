"""A recorded day as a notebook shows it: totals from its indexes, and the first messages of one block.

Only the records of one index entry are read, so that a day of any size is shown at once.
"""

from __future__ import annotations

from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy

from blackbox.archive.files.segment import Segment
from blackbox.archive.read.filter import Filter
from blackbox.archive.read.reader import Span, blocks_of, read_spans
from blackbox.block.batch.batch import Batch
from blackbox.block.batch.first_rows import Row, first_rows, rows_of
from blackbox.block.batch.received_block import BatchFeed, ReceivedBlock
from blackbox.errors import JournalError
from blackbox.notebook import Cell, Rows, period, view
from blackbox.numbers import byte_size, counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from blackbox.archive.recording import Recording


def message_count(segments: Iterable[Segment]) -> int:
    """Return the number of messages according to the indexes."""
    return sum(int(segment.entries["messages"].sum(dtype=numpy.int64)) for segment in segments)


def recording_view(day: Recording) -> str:
    """Return a recorded day as HTML."""
    messages, zone = message_count(day.segments), day.feed.time_zone
    facts: dict[str, Cell] = {
        "feed": day.feed.name,
        "date": str(day.date),
        "schema": day.schema.name,
        "messages": messages,
        "on disk": byte_size(day.file_bytes),
        "market time": period(*day.time_range("ts_event"), zone),
        "sent": period(*day.time_range("ts_out"), zone),
        "directory": str(day.path),
        **({"damage found": counted(len(day.damage), "part")} if day.damage else {}),
    }
    slices: list[list[Cell]] = [
        [str(slice_id), message_count(mine), len(mine), byte_size(sum(len(each.memory) for each in mine))]
        for slice_id, mine in day.segments.of()
    ]
    columns = ("slice", "messages", "segments", "on disk")
    return view("Recording", facts, Rows(columns, slices, len(slices), "slices"), _first_rows(day, messages))


def _first_rows(day: Recording, messages: int) -> Rows:
    try:
        return first_rows(_first_messages(day), messages, day.feed.time_zone)
    except JournalError as error:  # such as a compression library that is not installed
        return Rows(("first messages",), [[str(error)]], 1, "rows")


def _first_messages(day: Recording) -> list[Row]:
    """Return the first messages of the index entry that was sent first; none if all its blocks are damaged."""
    begins = [begin for _, mine in day.segments.of() for begin in islice(_begins(mine), 1)]
    rule, feed = day.feed.key_rule, BatchFeed(day.feed.name, day.schema if day.schema.records else None)
    spans = [span for _, span in sorted(begins, key=itemgetter(0))[:1]]
    for run in read_spans([spans], Filter(rule).records, rule, lambda _damage: None):
        for block, ts_recv, first_row, _, _ in blocks_of(run, rule):
            rows = numpy.arange(first_row, block.count, dtype=numpy.int32)
            return list(rows_of(Batch(block, rows, ReceivedBlock.of_block(block, feed, ts_recv))))
    return []


def _begins(segments: Iterable[Segment]) -> Iterator[tuple[int, Span]]:
    """Yield the lowest `ts_out` and the bytes of the first index entry with records of each segment."""
    for segment in segments:
        for entry in segment.entries[segment.entries["records"] > 0][:1]:
            yield int(entry["min_ts_out"]), Span(segment, int(entry["start"]), int(entry["stop"]))


def recordings_view(days: Sequence[Recording]) -> str:
    """Return several days as HTML: one row for each."""
    facts: dict[str, Cell] = {
        "feeds": ", ".join(dict.fromkeys(day.feed.name for day in days)),
        "days": len(days),
        "dates": f"{days[0].date} to {days[-1].date}",
        "messages": sum(message_count(day.segments) for day in days),
        "on disk": byte_size(sum(day.file_bytes for day in days)),
    }
    columns = ("date", "feed", "messages", "on disk", "market time")
    return view("Recordings", facts, Rows(columns, map(_row_of, days), len(days), "days"))


def _row_of(day: Recording) -> list[Cell]:
    times = period(*day.time_range("ts_event"), day.feed.time_zone)
    return [str(day.date), day.feed.name, message_count(day.segments), byte_size(day.file_bytes), times]
