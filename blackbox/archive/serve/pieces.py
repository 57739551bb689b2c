"""Read the recorded days of a feed piece by piece, each from the end of the one before."""

from __future__ import annotations

import time
from bisect import bisect
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
import numpy

from blackbox.archive.files.day import segment_path
from blackbox.archive.files.dropped import DroppedMessages
from blackbox.archive.files.format import FILE_HEAD_BYTES
from blackbox.archive.files.marks import is_closed
from blackbox.archive.files.segment import Damage, Segment
from blackbox.archive.read.reader import Span, blocks_of, read_spans
from blackbox.archive.recording import Recording
from blackbox.archive.serve.archive_days import DAYS_OPEN, ArchiveDays
from blackbox.archive.serve.piece_reading import PieceReading, Read
from blackbox.archive.serve.protocol import About, AskBlocks, Cursor, FoundPosition, Piece, PieceState, SliceAbout
from blackbox.archive.serve.run_marks import RunEnd, RunMarks
from blackbox.block.form.layout import VERSION
from blackbox.block.position import Position
from blackbox.errors import ArchiveError, PositionError
from blackbox.feed.rights import Prefixes
from blackbox.feed.schema.document import SchemaDocument

_PASSED_SEGMENTS: Final = 64
"""Most segments without a wanted block that one answer skips, so that other clients are served in between."""
_DAYS_GROWING: Final = 2
"""Number of newest days that may still be written."""


class StaleCursorError(ArchiveError):
    """A cursor was not made by this archive."""


class Pieces:
    """Reads the days of one feed for requests. Not thread-safe. Attribute: `days`."""

    def __init__(self, directory: Path) -> None:
        """`directory`: directory of the feed, with one subdirectory for each day."""
        self.days = ArchiveDays(directory)
        self._dropped = DroppedMessages(directory)

    def about(self, name: str | None) -> About:
        """Return the contents of the archive, in detail for one day; None: the last day.

        Raises ArchiveError if there is no such day, JournalError if it cannot be read.
        """
        days = self.days.reload()
        if not days:
            raise ArchiveError(f"{self.days.directory} had no recorded day, expected at least one")
        if name is not None and name not in days:
            raise ArchiveError(f"day was {name!r}, expected one of {days[0]} to {days[-1]}, {len(days)} in all")
        last, day = self.days.fresh(days[-1]), self.days.fresh(name or days[-1])
        open_epochs = [
            int(segments[-1].entries["epoch"].max())
            for _, segments in _with_entries(last)
            if not is_closed(segments[-1])
        ]
        slices = {
            slice_id: _about(segments, self.days.marks_of(day.path.name, day, slice_id))
            for slice_id, segments in _with_entries(day)
        }
        return About(
            version=VERSION,
            feed=day.feed.name,
            key_rule=day.feed.key_rule,
            schema=msgspec.to_builtins(SchemaDocument.of(day.schema)),
            days=days,
            day=name or days[-1],
            slices=slices,
            deleted=self.days.deleted.last_day,
            live_epoch=max(open_epochs, default=None),
        )

    def read(self, ask: AskBlocks, rights: Prefixes | None = None, most_bytes: int | None = None) -> Read:
        """Return the next piece. Successive pieces have every complete block on disk, in order.

        `rights`: prefixes that the keys of its blocks must start with; None: any key. `most_bytes`: size of the bodies
        at which a piece ends; default: `PIECE_BYTES`.

        Raises ArchiveError if the request is invalid, JournalError if files cannot be read.
        """
        cursor, start, stop, days, began_ns = ask.cursor, ask.start, ask.stop, self.days, time.time_ns()
        if cursor is None or cursor.day not in days.names:
            days.reload()
            days.check_slice(ask.slice_id)
        if cursor is None or (not cursor.day and cursor.archive == days.archive):
            cursor = days.begin(days.names[0]) if days.names else Cursor(days.archive, "", 0, FILE_HEAD_BYTES)
        elif cursor.day not in days.names or cursor.archive != days.made(cursor.day):
            raise StaleCursorError("cursor was of another archive or day, expected one of this archive")
        is_done = stop is not None and start >= stop
        if is_done or not cursor.day:
            state: PieceState = "done" if is_done else "later"
            return Read(Piece(blocks=[], gone=[], state=state, cursor=cursor, passed=start), [])
        if (cursor.segment, cursor.offset) == (0, FILE_HEAD_BYTES):
            cursor = days.begin(self._first_wanted(cursor.day, ask.slice_id, start))
        deleted = days.deleted.slices.get(ask.slice_id, [])
        reading = PieceReading(ask, days.known(cursor.day).feed.key_rule, deleted, self._dropped, rights, most_bytes)
        for _ in range(_PASSED_SEGMENTS):
            found = self._next(ask.slice_id, cursor, reading)
            if found is None:
                return self._at_end(ask, cursor, reading, began_ns)
            cursor = found
            if reading.is_full:
                break
        if reading.next_epoch and not reading.is_done:
            self._end_epoch(ask.slice_id, cursor.day, reading)
        return reading.answer("more", cursor)

    def _next(self, slice_id: int, cursor: Cursor, reading: PieceReading) -> Cursor | None:
        """Read the next segment. Return the cursor after it; None: nothing more is recorded."""
        day = self.days.known(cursor.day)
        found = _next(day, slice_id, cursor)
        if found is None and reading.fresh_day != cursor.day:
            day, reading.fresh_day = self.days.fresh(cursor.day, slice_id), cursor.day
            found = _next(day, slice_id, cursor)
        if found is None:
            return self._next_day(slice_id, cursor, reading)
        segment, is_open = found
        start = cursor.offset if segment.number == cursor.segment else FILE_HEAD_BYTES
        reading.note_damage(_missing(day, slice_id, cursor.segment, segment.number))
        stop, number = reading.take(segment, start, torn=not is_open), segment.number
        if stop < 0:
            number, stop = (number, segment.whole_bytes) if is_open else (number + 1, FILE_HEAD_BYTES)
        return Cursor(cursor.archive, cursor.day, number, stop)

    def _next_day(self, slice_id: int, cursor: Cursor, reading: PieceReading) -> Cursor | None:
        """Return the start of the next day with data of a slice; None: no later day has any."""
        days = self.days.reload()
        for name in days[bisect(days, cursor.day) :]:
            if self.days.has(name, slice_id) and self.days.fresh(name, slice_id).segments.filled(slice_id):
                # A later day has begun, so this one is complete. Read its end again.
                day = self.days.fresh(cursor.day, slice_id)
                if _next(day, slice_id, cursor) is not None:
                    return cursor
                reading.note_damage(_missing(day, slice_id, cursor.segment))
                return self.days.begin(name)
        return None

    def _at_end(self, ask: AskBlocks, cursor: Cursor, reading: PieceReading, began_ns: int) -> Read:
        """Return the last recorded piece. Its state says if more may follow. `began_ns`: before the day was read."""
        slice_id, names = ask.slice_id, self.days.names
        # The newest first: what the marks of a day report is then recorded in the days before it, or lost.
        names_later = (name for name in reversed(names[bisect(names, cursor.day) :]) if self.days.has(name, slice_id))
        later = [self.days.fresh(name, slice_id) for name in names_later]
        day = self.days.fresh(cursor.day, slice_id) if later else self.days.known(cursor.day)
        if any(each.segments.filled(slice_id) for each in later) or _next(day, slice_id, cursor) is not None:
            return reading.answer("more", cursor)
        segments, missing = day.segments.filled(slice_id), _missing(day, slice_id, cursor.segment)
        has_ended = bool(segments) and is_closed(segments[-1])
        is_begun = any(_is_begun(each, slice_id) for each in (*later, day))
        may_come = is_begun or not (has_ended or missing)
        epoch = reading.passed.epoch
        marks = next(self.days.marks_back(slice_id, cursor.day, read=cursor.day), None)
        settled = 0 if marks is None else marks.settled(epoch, began_ns)
        run, next_epoch = RunEnd(), 0
        if not may_come or marks is None or max(marks.epochs) != epoch:  # otherwise the epoch goes on
            run, next_epoch = self._run_end(slice_id, cursor.day, epoch, read=cursor.day)
        if next_epoch:
            reading.end_epoch(run, next_epoch)
            return reading.answer("more", cursor)
        if may_come:
            reading.note_heard(settled)
            return reading.answer("later", cursor)
        reading.note_damage(missing)
        reading.note_heard(run.heard)
        return reading.answer("done", cursor)

    def _end_epoch(self, slice_id: int, name: str, reading: PieceReading) -> None:
        """End the epoch because a block of a later one comes next; `name`: day of that block."""
        run, next_epoch = self._run_end(slice_id, name, reading.passed.epoch, read=name)
        reading.end_epoch(run, min(next_epoch, reading.next_epoch) if next_epoch else reading.next_epoch)

    def _run_end(self, slice_id: int, last: str, epoch: int, read: str) -> tuple[RunEnd, int]:
        """Return the end of an epoch and the next known epoch, 0 for none, from the marks of days up to `last`.

        Reads back to the first day that has a mark of an earlier epoch; `read` as in `ArchiveDays.marks_back`.
        """
        run = RunEnd()
        later = [last.epoch for last in self.days.deleted.slices.get(slice_id, []) if last.epoch > epoch]
        for marks in self.days.marks_back(slice_id, last, read):
            run = run.joined(marks.end(epoch))
            later += [each for each in marks.epochs if each > epoch]
            if any(each < epoch for each in marks.epochs):
                break
        return run, min(later, default=0)

    def check_positions(self, positions: Mapping[int, Position]) -> None:
        """Check that the positions of a consumer are of this feed and not after its end.

        Raises PositionError with the position and the end, JournalError if files cannot be read.
        """
        days = self.days.reload()
        feed = self.days.known(days[-1]).feed if days else None
        if feed is None:
            raise PositionError(f"{len(positions)} positions were given to an archive without days")
        for slice_id, position in positions.items():
            if slice_id >= len(feed.slices):
                raise PositionError(f"slice was {slice_id}, expected one of 0 to {len(feed.slices) - 1}")
            end = self._end_of_slice(slice_id)
            if position > end:
                raise PositionError(f"slice {slice_id}: position was {position}, beyond {end}, the end")

    def _end_of_slice(self, slice_id: int) -> Position:
        """Return the position after the last message of a slice, recorded or reported by its publisher."""
        for name in self.days.back(slice_id, max(self.days.names, default="")):
            day = self.days.fresh(name, slice_id)
            segments = day.segments.filled(slice_id)
            if segments:
                entries = numpy.concatenate([each.entries for each in segments])
                recorded = entries[entries["records"] > 0]
                epochs = {int(epoch) for epoch in numpy.unique(recorded["epoch"])}
                lasts = {each: int(recorded["max_sequence"][recorded["epoch"] == each].max()) for each in epochs}
                last = max(self.days.marks_of(name, day, slice_id).runs(lasts), key=lambda run: run.epoch, default=None)
                if last is not None:
                    return Position(last.epoch, last.last_sequence + 1)
        return Position(0, 0)

    def _first_wanted(self, name: str, slice_id: int, start: Position) -> str:
        """Return the first day from `name` on that may have blocks at `start` or later. Opens at most `DAYS_OPEN`."""
        opened = self.days.opened
        for day in self.days.names[self.days.names.index(name) : -_DAYS_GROWING]:
            end = self.days.end_of(day, slice_id)
            if end is None or end.position > start or self.days.opened - opened == DAYS_OPEN:
                return day
        return max(name, self.days.names[-_DAYS_GROWING:][0])

    def position_at(self, slice_id: int, start_ns: int) -> FoundPosition:
        """Return the position of the first block received at a time or later. Opens at most `DAYS_OPEN` days.

        Raises ArchiveError if there is no such slice, JournalError if files cannot be read.
        """
        self.days.reload()
        self.days.check_slice(slice_id)
        end_of_slice = self._end_of_slice(slice_id)  # first: later blocks follow it
        opened = self.days.opened
        for name in self.days.names:
            if name not in self.days.names[-_DAYS_GROWING:]:
                if self.days.opened - opened == DAYS_OPEN:
                    return FoundPosition()
                end = self.days.end_of(name, slice_id)
                if end is not None and end.last_ns < start_ns:
                    continue
            position = _first_received(self.days.fresh(name, slice_id), slice_id, start_ns)
            if position is not None:
                return FoundPosition(position=position)
        return FoundPosition(position=end_of_slice, is_end=True)


def _first_received(day: Recording, slice_id: int, start_ns: int) -> Position | None:
    """Return the position of the first readable block of a day that was received at a time or later."""
    key_rule = day.feed.key_rule
    for segment in day.segments.filled(slice_id):
        entries = segment.entries
        for number in numpy.flatnonzero((entries["records"] > 0) & (entries["max_ts_recv"] >= start_ns)):
            span = Span(segment, int(entries["start"][number]), int(entries["stop"][number]))
            for run in read_spans([[span]], lambda heads: heads["ts_recv"] >= start_ns, key_rule, lambda _: None):
                for recorded in blocks_of(run, key_rule):
                    return Position(recorded.block.epoch, recorded.block.number_of(recorded.first_row))
    return None


def _is_begun(day: Recording, slice_id: int) -> bool:
    """Return True if a recorder has begun a segment that is still empty. It removes such a segment when it stops."""
    return any(not len(segments[-1].entries) for _, segments in day.segments.of([slice_id]) if segments)


def _with_entries(day: Recording) -> list[tuple[int, list[Segment]]]:
    found = [(slice_id, day.segments.filled(slice_id)) for slice_id, _ in day.segments.of()]
    return [(slice_id, segments) for slice_id, segments in found if segments]


def _next(day: Recording, slice_id: int, cursor: Cursor) -> tuple[Segment, bool] | None:
    """Return the segment to continue in, and True if more may be appended to it; None: nothing more is known."""
    segments = day.segments.filled(slice_id)
    for segment in segments:
        is_last = segment is segments[-1]
        unread = segment.number > cursor.segment or segment.whole_bytes > cursor.offset or not is_last
        if segment.number >= cursor.segment and unread:
            return segment, is_last
    return None


def _missing(day: Recording, slice_id: int, first: int, stop: int | None = None) -> list[Damage]:
    """Return the damage of segments numbered from `first` to before `stop` that are missing or unreadable."""
    readable = {each.path for each in day.segments.filled(slice_id)}
    low = segment_path(day.path, slice_id, first)
    high = None if stop is None else segment_path(day.path, slice_id, stop)
    return [
        each
        for each in day.damage
        if each.path.parent == low.parent and each.path >= low and (high is None or each.path < high)
        if each.path.suffix == low.suffix and each.path not in readable
    ]


def _about(segments: list[Segment], marks: RunMarks) -> SliceAbout:
    entries = numpy.concatenate([each.entries[each.entries["records"] > 0] for each in segments])
    epochs = list(dict.fromkeys(entries["epoch"].tolist()))
    each = [entries[entries["epoch"] == epoch] for epoch in epochs]
    lasts = [int(some["max_sequence"].max()) for some in each]
    return SliceAbout(
        messages=int(entries["messages"].sum()),
        epochs=epochs,
        first_sequences=[int(some["min_sequence"].min()) for some in each],
        last_sequences=lasts,
        first_ns=int(entries["min_ts_recv"].min()) if len(entries) else 0,
        last_ns=int(entries["max_ts_recv"].max()) if len(entries) else 0,
        is_closed=is_closed(segments[-1]),
        runs=marks.runs(dict(zip(epochs, lasts, strict=True))),
        outages=marks.outages(segments),
    )
