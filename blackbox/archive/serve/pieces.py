"""Read the recorded days of a feed a piece at a time, each from where the one before ended."""

from __future__ import annotations

import secrets
import time
from bisect import bisect, bisect_left
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy

from blackbox.archive.day import MANIFEST, recorded_days, segment_path
from blackbox.archive.format import FILE_HEAD_BYTES
from blackbox.archive.marks import End, Totals, end_of
from blackbox.archive.reader import Span, read_spans
from blackbox.archive.recording import Recording
from blackbox.archive.retention import Deleted
from blackbox.archive.segment import Damage, Segment
from blackbox.archive.serve.piece_reading import EVERYTHING, PieceReading, Read
from blackbox.archive.serve.protocol import (
    MOST_ENDS,
    About,
    AskBlocks,
    AskEnds,
    Cursor,
    Ends,
    Piece,
    PieceState,
    SliceAbout,
)
from blackbox.archive.serve.run_marks import EVERYWHERE, Place, RunMarks
from blackbox.block.layout import VERSION
from blackbox.block.position import KeyPosition, Position, SlicePosition
from blackbox.errors import ArchiveError, PositionError, RightsError
from blackbox.feed.rights import Prefixes
from blackbox.feed.schema_document import SchemaDocument

_PASSED_SEGMENTS: Final = 64
"""Segments without a wanted block that one answer passes over, at most: others wait for theirs."""
_DAYS_OPEN: Final = 16
_MARKS_KEPT: Final = 256
"""Slices of days of which marks are kept in memory."""
_DAYS_GROWING: Final = 2
"""The newest days, which may still be written."""


class StaleCursorError(ArchiveError):
    """A cursor was not made by this archive."""


class _End(NamedTuple):
    """How far a slice's day goes."""

    last_ns: int
    """The largest `ts_recv`."""
    position: Position
    """The largest sequence number of the last epoch, over all keys."""


class Pieces:
    """The days of one feed. From one thread at a time; keeps maps of the files of the last days read."""

    def __init__(self, directory: Path) -> None:
        """`directory`: the feed's, with a directory for each day."""
        self._directory = directory
        self._archive = secrets.randbits(63)
        self._rights: Prefixes | None = None
        self._most_bytes: int | None = None
        self._open: dict[str, tuple[int, Recording]] = {}
        self._days: list[str] = []
        """As they were listed last."""
        self._deleted = Deleted()
        """What was, when they were."""
        self._ends: dict[tuple[str, int], tuple[int, _End | None]] = {}
        self._marks: dict[tuple[str, int], tuple[int, RunMarks]] = {}

    def about(self, name: str | None, back: Mapping[int, int] | None = None, rights: Prefixes | None = None) -> About:
        """Return what is there. `back`: see `AskAbout`. `rights`: as `read`; with some, slices are left out.

        Raises RightsError for `back` with rights to some topics, as it would reveal how many others there are;
        ArchiveError when there is no such day, JournalError when it cannot be read.
        """
        if back and rights is not None:
            raise RightsError("the key has rights to some topics only: begin at a time, not a count of messages back")
        days = self.list_days()
        if not days:
            raise ArchiveError(f"{self._directory} had no recorded day, expected at least one")
        if name is not None and name not in days:
            raise ArchiveError(f"day was {name!r}, expected one of {days[0]} to {days[-1]}, {len(days)} in all")
        last, day = self.fresh(days[-1]), self.fresh(name or days[-1])
        open_epochs = [
            int(segments[-1].entries["epoch"].max())
            for _, segments in _with_entries(last)
            if not _end_of_segment(segments[-1]).is_closed
        ]
        slices = {
            slice_id: _about(
                segments,
                self._marks_of(day.path.name, day, slice_id),
                (back or {}).get(slice_id, 0),
                day.feed.key_bytes,
            )
            for slice_id, segments in _with_entries(day)
            if rights is None
        }
        return About(
            version=VERSION,
            feed=day.feed.name,
            key_bytes=day.feed.key_bytes,
            schema=msgspec.to_builtins(SchemaDocument.of(day.schema)),
            days=days,
            day=name or days[-1],
            slices=slices,
            deleted=self._deleted.last_day,
            live_epoch=max(open_epochs, default=None),
        )

    def read(self, ask: AskBlocks, rights: Prefixes | None = None, most_bytes: int | None = None) -> Read:
        """Return the next piece. What is on disk and whole is in it, or in one of those after it, in order.

        `rights`: what the keys of its blocks are to begin with; None: with anything. `most_bytes`: bodies of a piece
        once they have so many; default: `PIECE_BYTES`.

        Raises ArchiveError naming what of the request cannot be, JournalError when files cannot be read.
        """
        _check(ask)
        self._rights, self._most_bytes = rights, most_bytes
        found = self._read(ask)
        for _ in range(_PASSED_SEGMENTS):
            if found.blocks or found.piece.gone or found.piece.state != "more":
                break
            piece = found.piece
            ask = msgspec.structs.replace(ask, cursor=piece.cursor, start=piece.start, ranges=piece.ranges)
            found = self._read(ask)
        return found

    def ends(self, ask: AskEnds, rights: Prefixes | None = None) -> Ends:
        """Return how far runs had come, as marks tell, key by key. `rights`: as `read`, and it raises as that."""
        found: dict[tuple[int, bytes], int] = {}
        for name in reversed(self.list_days()[-_DAYS_OPEN:]):
            day = self.fresh(name, ask.slice_id)
            marks, prefix = self._marks_of(name, day, ask.slice_id), ask.prefix[: day.feed.key_bytes]
            for epoch, told in marks.ends(ask.first, ask.stop).items():
                for key, following in told.items():
                    if key.startswith(prefix) and (rights is None or key.startswith(rights)) and following > 0:
                        found[epoch, key] = max(following, found.get((epoch, key), 0))
            if marks.tells_of(ask.first):
                break
        behind = sorted(each for each in found if ask.behind is None or each > ask.behind)
        ends = [(epoch, key, found[epoch, key]) for epoch, key in behind[:MOST_ENDS]]
        return Ends(ends=ends, has_more=len(behind) > MOST_ENDS)

    def check_positions(self, positions: Mapping[int, SlicePosition]) -> None:
        """Check that positions of a consumer are of this feed, and not beyond what is recorded.

        Raises PositionError naming the position and the end, JournalError when files cannot be read.
        """
        days = self.list_days()[-_DAYS_OPEN:]
        feed = self.known(days[-1]).feed if days else None
        if feed is None or not positions:
            raise PositionError(f"{len(positions)} positions were given for {len(days)} days, expected some of both")
        for slice_id, position in positions.items():
            if slice_id >= len(feed.slices) or isinstance(position, KeyPosition) != bool(feed.key_bytes):
                raise PositionError(
                    f"slice {slice_id}: position was {position}, expected one of slices 0 to {len(feed.slices) - 1}, "
                    f"{'with' if feed.key_bytes else 'without'} keys"
                )
            end = self._end_of_slice(days, slice_id)
            if isinstance(position, Position):
                is_beyond = position > end.position
            else:
                newest_ns = max(end.last_ns, time.time_ns())
                is_beyond = position.epoch > end.position.epoch or max(position.done_ns, position.since_ns) > newest_ns
            if is_beyond:
                raise PositionError(f"slice {slice_id}: position was {position}, beyond {end.position}, the end")

    def _end_of_slice(self, days: list[str], slice_id: int) -> _End:
        """Return the position that comes next in a slice, as recorded or reported by its publisher.

        Its `last_ns` is the largest time of sending or receiving of the day that holds it.
        """
        for name in reversed(days):
            day = self.fresh(name, slice_id)
            segments = segments_of(day, slice_id) if slice_id < len(day.feed.slices) else []
            if segments:
                entries = numpy.concatenate([each.entries for each in segments])
                recorded = entries[entries["records"] > 0]
                epochs = {int(epoch) for epoch in numpy.unique(recorded["epoch"])}
                lasts = {each: int(recorded["max_sequence"][recorded["epoch"] == each].max()) for each in epochs}
                last = max(self._marks_of(name, day, slice_id).runs(lasts), key=lambda run: run.epoch, default=None)
                if last is not None:
                    last_ns = max(int(recorded[each].max(initial=0)) for each in ("max_ts_out", "max_ts_recv"))
                    return _End(last_ns, Position(last.epoch, last.last_sequence + 1))
        return _End(0, Position(0, 0))

    def _read(self, ask: AskBlocks) -> Read:
        cursor = ask.cursor
        if cursor is None or cursor.day not in self._days:
            self.list_days()
        if cursor is None or (not cursor.day and cursor.archive == self._archive):
            cursor = self._begin(self._days[0]) if self._days else Cursor(self._archive, "", 0, FILE_HEAD_BYTES)
        elif cursor.day not in self._days or cursor.archive != self.made(cursor.day):
            raise StaleCursorError("cursor was of another archive or day, expected one that this archive has made")
        if not cursor.day:
            return _nothing("later", ask, cursor)
        if (cursor.segment, cursor.offset) == (0, FILE_HEAD_BYTES):
            cursor = self._begin(self._first_wanted(cursor.day, ask))
        day = self.known(cursor.day)
        found = _next(day, ask.slice_id, cursor)
        if found is None:
            day = self.fresh(cursor.day, ask.slice_id)
            found = _next(day, ask.slice_id, cursor)
        if found is None:
            return self._at_end(day, ask, cursor)
        segment, is_open = found
        start = cursor.offset if segment.number == cursor.segment else FILE_HEAD_BYTES
        reading = self._reading(ask, day, _missing(day, ask.slice_id, cursor.segment, segment.number))
        stop = reading.take(segment, start, torn=not is_open)
        number = segment.number
        if stop < 0:
            number, stop = (number, segment.whole_bytes) if is_open else (number + 1, FILE_HEAD_BYTES)
        return reading.answer("done" if reading.is_done else "more", Cursor(cursor.archive, cursor.day, number, stop))

    def _at_end(self, day: Recording, ask: AskBlocks, cursor: Cursor) -> Read:
        """Answer where nothing more of a day is known: go on to the next one, or say whether anything follows."""
        is_begun = _is_begun(day, ask.slice_id)
        days = self.list_days()
        for name in days[bisect(days, cursor.day) :]:
            following = self.fresh(name, ask.slice_id)
            is_begun |= _is_begun(following, ask.slice_id)
            if segments_of(following, ask.slice_id):
                # Only now is what was known of this day all that there is of it.
                day = self.fresh(cursor.day, ask.slice_id)
                if _next(day, ask.slice_id, cursor) is not None:
                    return _nothing("more", ask, cursor)
                reading = self._reading(ask, day, _missing(day, ask.slice_id, cursor.segment))
                return reading.answer("more", self._begin(name))
        segments = segments_of(day, ask.slice_id)
        if segments:
            end = _end_of_segment(segments[-1])
        else:
            end = End(Totals(), is_closed=False, epoch=self._last_run_before(cursor.day, ask.slice_id))
        missing = _missing(day, ask.slice_id, cursor.segment)
        if is_begun or (not end.is_closed and not missing):
            reading = self._reading(ask, day, [])
            reading.pass_runs(end.epoch)
            return reading.answer("done" if reading.is_done else "later", cursor, end.epoch)
        reading = self._reading(ask, day, missing)
        reading.end()
        return reading.answer("done", cursor)

    def _last_run_before(self, name: str, slice_id: int) -> int:
        """Return the last run of which the days before one tell; 0: they tell of none."""
        for before in reversed(self._days[: bisect_left(self._days, name)][-_DAYS_OPEN:]):
            segments = segments_of(self.known(before), slice_id) if self.made(before) else []
            if segments:
                return _end_of_segment(segments[-1]).epoch
        return 0

    def _reading(self, ask: AskBlocks, day: Recording, missing: list[Damage]) -> PieceReading:
        def told(since: int, before: Place) -> dict[int, int]:
            return self._told_of_runs(ask.slice_id, ask.key or b"", since, day, before)

        deleted = self._deleted.slices.get(ask.slice_id, [])
        return PieceReading(ask, day.feed.key_bytes, missing, deleted, told, self._rights, self._most_bytes)

    def _told_of_runs(self, slice_id: int, key: bytes, since: int, day: Recording, before: Place) -> dict[int, int]:
        """Return by run, from one on, the next number of a key that its publisher has told.

        As far as marks tell that stand before a place of a day. Of the days before, as many are read as may tell of
        these runs: each tells anew how far a run is that goes on.
        """
        found: dict[int, int] = {}
        for name in reversed(self._days[: bisect(self._days, day.path.name)][-_DAYS_OPEN:]):
            is_here = name == day.path.name
            if not is_here and not self.made(name):
                continue  # it was deleted meanwhile
            marks = self._marks_of(name, day if is_here else self.fresh(name, slice_id), slice_id)
            told = marks.next_sequences(key, before if is_here else EVERYWHERE)
            for epoch, following in told.items():
                found[epoch] = max(following, found.get(epoch, 0))
            if any(epoch <= since for epoch in told):
                break
        return found

    def _marks_of(self, name: str, day: Recording, slice_id: int) -> RunMarks:
        """Return the marks of a slice's day, as far as the day is known; those used longest ago are let go."""
        made, was = self.made(name), self._marks.pop((name, slice_id), None)
        marks = was[1] if was and was[0] == made else RunMarks()
        self._marks[name, slice_id] = made, marks.grow(segments_of(day, slice_id))
        if len(self._marks) > _MARKS_KEPT:
            del self._marks[next(iter(self._marks))]
        return marks

    def list_days(self) -> list[str]:
        """Return all days there are now, in order."""
        self._days = [day.name for day in recorded_days(self._directory)]
        self._deleted = Deleted.read(self._directory)  # behind it: a day that is not listed is noted there before
        return self._days

    def _first_wanted(self, name: str, ask: AskBlocks) -> str:
        """Return the first day, from one on, that may hold what is asked for; no more than some are opened for it."""
        opened = len(self._ends)
        start = min((Position(each.epoch, each.first) for each in ask.ranges), default=ask.start)
        for day in self._days[self._days.index(name) : -_DAYS_GROWING]:
            end = self._end_of(day, ask.slice_id)
            if end is None or len(self._ends) - opened == _DAYS_OPEN:
                return day
            if end.position.epoch < ask.epoch:
                continue
            if start is not None:
                if end.position >= start:
                    return day
            elif ask.start_ns is None or end.last_ns >= ask.start_ns:
                return day
        return max(name, self._days[-_DAYS_GROWING:][0])

    def _end_of(self, name: str, slice_id: int) -> _End | None:
        """Return how far a day goes that is not written any more; None: damage has left that unknown."""
        made = self.made(name)
        known = self._ends.get((name, slice_id))
        if known is None or known[0] != made:
            day = self.fresh(name, slice_id)
            self._ends[name, slice_id] = known = made, _end_of(day, slice_id)
        return known[1]

    def _begin(self, name: str) -> Cursor:
        return Cursor(self.made(name), name, 0, FILE_HEAD_BYTES)

    def made(self, name: str) -> int:
        """Return a number of this archive and a day, another once the day is replaced; 0: it is gone."""
        try:
            manifest = (self._directory / name / MANIFEST).stat()
        except FileNotFoundError:
            return 0
        return (self._archive + manifest.st_ino + manifest.st_mtime_ns) % (1 << 63)

    def known(self, name: str) -> Recording:
        """Return a day as it was known; the one used longest ago is let go."""
        made, was = self.made(name), self._open.pop(name, None)
        day = was[1] if was and was[0] == made else Recording.open(self._directory / name)
        self._open[name] = made, day
        if len(self._open) > _DAYS_OPEN:
            del self._open[next(iter(self._open))]
        return day

    def fresh(self, name: str, slice_id: int | None = None) -> Recording:
        """Return a day as it is now, or at least one slice of it."""
        day = self.known(name)
        day.refresh(slice_id)
        return day


def _check(ask: AskBlocks) -> None:
    if ask.key is None and (ask.start or ask.stop):
        raise ArchiveError("start or stop was a position without a key, expected the key that it counts")
    alone = AskBlocks(slice_id=ask.slice_id, ranges=ask.ranges, cursor=ask.cursor)
    if ask.ranges and ask != alone:
        raise ArchiveError("ranges came with another choice of blocks, expected them alone")
    for each in ask.ranges:
        if each.first >= each.stop:
            raise ArchiveError(f"range was {each.first} to {each.stop}, expected an end behind its beginning")


def _nothing(state: PieceState, ask: AskBlocks, cursor: Cursor, epoch: int = 0) -> Read:
    piece = Piece(blocks=[], gone=[], state=state, cursor=cursor, start=ask.start, ranges=ask.ranges, epoch=epoch)
    return Read(piece, [])


def segments_of(day: Recording, slice_id: int) -> list[Segment]:
    """Return the segments of a slice that hold something. Raises ArchiveError when the day has no such slice."""
    if slice_id >= len(day.feed.slices):
        raise ArchiveError(f"slice was {slice_id}, expected 0 to {len(day.feed.slices) - 1}")
    return [each for _, segments in day._segments_of([slice_id]) for each in segments if len(each.entries)]


def _end_of(day: Recording, slice_id: int) -> _End | None:
    if day.damage:
        return None
    segments = segments_of(day, slice_id)
    if not segments:
        return _End(-EVERYTHING, Position(0, 0))
    entries = numpy.concatenate([each.entries for each in segments])
    epoch = int(entries["epoch"].max())
    return _End(
        int(entries["max_ts_recv"].max()),
        Position(epoch, int(entries["max_sequence"][entries["epoch"] == epoch].max())),
    )


def _is_begun(day: Recording, slice_id: int) -> bool:
    """Whether a recorder has begun a segment that holds nothing yet: when it ends, it removes it."""
    return any(not len(segments[-1].entries) for _, segments in day._segments_of([slice_id]) if segments)


def _with_entries(day: Recording) -> list[tuple[int, list[Segment]]]:
    found = [(slice_id, segments_of(day, slice_id)) for slice_id, _ in day._segments_of()]
    return [(slice_id, segments) for slice_id, segments in found if segments]


def _next(day: Recording, slice_id: int, cursor: Cursor) -> tuple[Segment, bool] | None:
    """Return the segment to read on in, and whether more may be appended to it; None: nothing more is known."""
    segments = segments_of(day, slice_id)
    for segment in segments:
        is_last = segment is segments[-1]
        unread = segment.number > cursor.segment or segment.whole_bytes > cursor.offset or not is_last
        if segment.number >= cursor.segment and unread:
            return segment, is_last
    return None


def _missing(day: Recording, slice_id: int, first: int, stop: int | None = None) -> list[Damage]:
    """Return the segments, of numbers from `first` on, that the day should have, and of which nothing can be read."""
    readable = {each.path for each in segments_of(day, slice_id)}
    low = segment_path(day.path, slice_id, first)
    high = None if stop is None else segment_path(day.path, slice_id, stop)
    return [
        each
        for each in day.damage
        if each.path.parent == low.parent and each.path >= low and (high is None or each.path < high)
        if each.path.suffix == low.suffix and each.path not in readable
    ]


def _end_of_segment(segment: Segment) -> End:
    return end_of(segment, Totals())


def _last_of(segments: list[Segment], back: int, key_bytes: int) -> int:
    """Return the least `ts_recv` of the last `back` messages; 0: there are none."""
    least, left = EVERYTHING, back
    for segment in reversed(segments):
        entries = segment.entries[segment.entries["records"] > 0][::-1]
        whole = int(numpy.searchsorted(numpy.cumsum(entries["messages"]), left, side="right"))
        least = min(least, int(entries["min_ts_recv"][:whole].min(initial=EVERYTHING)))
        left -= int(entries["messages"][:whole].sum())
        if left > 0 and whole < len(entries):
            span = Span(segment, int(entries["start"][whole]), int(entries["stop"][whole]))
            runs = read_spans([[span]], lambda heads: numpy.ones(len(heads), bool), key_bytes, lambda _: None)
            heads = numpy.concatenate([run.heads for run in runs])[::-1]
            many = int(numpy.searchsorted(numpy.cumsum(heads["count"] - heads["first_row"]), left)) + 1
            least = min(least, int(heads["ts_recv"][:many].min(initial=EVERYTHING)))
            left = 0
        if left <= 0:
            break
    return least if least != EVERYTHING else 0


def _about(segments: list[Segment], marks: RunMarks, back: int, key_bytes: int) -> SliceAbout:
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
        back_ns=_last_of(segments, back, key_bytes),
        is_closed=_end_of_segment(segments[-1]).is_closed,
        runs=marks.runs(dict(zip(epochs, lasts, strict=True))),
        outages=marks.outages(segments),
    )
