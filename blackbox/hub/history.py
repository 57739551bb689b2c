"""Read what a hub knows from the end of its journals: as far back as its newest snapshot, and as what it remembers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.archive.check import refusal
from blackbox.archive.crash_recovery import cut_segment
from blackbox.archive.day import recorded_days
from blackbox.archive.format import FILE_HEAD_BYTES
from blackbox.archive.marks import MarkKind, places_of_marks, read_mark
from blackbox.archive.newest import Newest
from blackbox.archive.reader import Span, blocks_of, read_spans
from blackbox.archive.recording import Recording
from blackbox.archive.segment import Damage, Segment
from blackbox.feed.feed import Feed
from blackbox.hub.deadlines import Deadlines
from blackbox.hub.notes import END, JUDGED, RENEWED, SNAPSHOT, Client, Judged, Notes, Snapshot
from blackbox.hub.protocol import Places, unpack_places
from blackbox.hub.table import Table
from blackbox.hub.topics import Topics

log = logging.getLogger("blackbox")

_FIRST_MARKS: Final = 2
"""Marks of a segment among which is that of the recorder's begin."""
_MOST_TOPICS: Final = 1 << 20
_Place = tuple[int, int, int]
"""Slice, epoch, sequence."""


class Part(NamedTuple):
    """A segment of a slice, and its notes."""

    slice_id: int
    segment: Segment
    notes: Notes
    reached: dict[int, int]
    """Next sequence, by epoch, at the end of the hub's run that wrote it."""


class Copy(NamedTuple):
    """A note of a turn in one slice."""

    number: int
    slice_id: int
    place: int
    kind: int
    part: Part


class History:
    """The days of the hub of `feed`, as they are now. Raises JournalError when what it reads is damaged."""

    def __init__(self, directory: Path, feed: Feed) -> None:
        """Open nothing yet."""
        self._paths, self.feed = recorded_days(directory), feed
        self._days: dict[Path, Recording] = {}
        self._parts: list[list[Part]] = [[] for _ in feed.slices]
        """By slice, from the newest one back, as far as they were read."""
        self._left = [self._back(slice_id) for slice_id in range(len(feed.slices))]

    def tell(self, table: Table, deadlines: Deadlines, topics: Topics) -> None:
        """Have what a hub knows be what the journals say. Raises ConfigError when there are more topics than may be."""
        snapshot, floor = self._snapshot()
        copies = self._copies(floor)
        ends = _Ends()
        known = [each for each in copies if each.number <= snapshot.number]
        table.restore((each.number, each.part.notes.renewed(each.place)) for each in known if each.kind == RENEWED)
        _take(table, known, None)
        table.set_clients(snapshot.number, snapshot.clients)
        for topic, at in snapshot.deadlines:
            deadlines.set(topic, at)
        topics.add_all(snapshot.topics)
        _take(table, [each for each in copies if each.number > snapshot.number], ends)
        for slice_id in range(len(self.feed.slices)):
            topics.add_all(self._topics(slice_id, snapshot.number, ends.wanted.get(slice_id, {})))
        ends.give(deadlines)

    def parts_from(self, slice_id: int, number: int) -> list[Part]:
        """Return the parts of a slice that have turns from a number on, from the oldest one on."""
        found: list[Part] = []
        for part in self._read_back(slice_id):
            found.insert(0, part)
            if len(part.notes.numbers) and part.notes.numbers[0] < number:
                break
        return found

    def newest(self) -> tuple[int, bytes]:
        """Return the last turn that the journals have, as all before it, and its note in the first slice that has it.

        A hub that was killed has not stored all of its last turn, perhaps. A power cut may have taken more, but nothing
        before a snapshot.
        """
        firsts = [int(notes.firsts.max()) for notes in self._last_notes()]
        first, snapshot = max(firsts, default=1), self._snapshot().snapshot.number
        number, text = max(first - 1, snapshot), b""
        copies = self._copies(number)
        for found, group in groupby(copies, lambda each: each.number):
            notes = sorted(group, key=lambda each: each.slice_id)
            is_whole = all(is_there.all() for _, _, is_there in _requests(notes))
            if found > number and (found != number + 1 or not is_whole):
                break
            number, text = found, notes[0].part.notes.text(notes[0].place)
        return number, text

    def _last_notes(self) -> Iterator[Notes]:
        """Yield, of each slice, the newest part that has turns."""
        for slice_id in range(len(self.feed.slices)):
            for part in self._read_back(slice_id):
                if len(part.notes.numbers):
                    yield part.notes
                    break

    def cut_back(self, number: int) -> None:
        """Cut off what the journals have of later turns."""
        for slice_id in range(len(self.feed.slices)):
            cuts: list[tuple[Segment, int]] = []
            for part in self.parts_from(slice_id, number + 1):
                later = part.notes.places[part.notes.numbers > number]
                if cuts or len(later):  # a part without notes has what belongs to the part before
                    cuts.append((part.segment, FILE_HEAD_BYTES if cuts else int(later[0])))
            for segment, size in reversed(cuts):
                log.warning("%s: cut the turns of the hub after %d", segment.path, number)
                self._cut(segment, size)

    def _cut(self, segment: Segment, size: int) -> None:
        cut_segment(segment, size)

    def _back(self, slice_id: int) -> Iterator[Part]:
        """Yield the parts of a slice that have something, from the newest one back."""
        reached: dict[int, int] = {}
        for path in reversed(self._paths):
            if path not in self._days:
                if (day := Recording._open_kept(path)) is None:
                    return  # all days before it are deleted, too
                for damage in [each for each in day.damage if each.path.suffix == ".journal"]:
                    raise refusal(damage)
                self._days[path] = day
            for segment in reversed(dict(self._days[path]._segments_of([slice_id])).get(slice_id, [])):
                entries = segment.entries[segment.entries["records"] > 0]
                for epoch in numpy.unique(entries["epoch"]).tolist():
                    highest = int(entries["max_sequence"][entries["epoch"] == epoch].max())
                    reached[epoch] = max(reached.get(epoch, 0), highest + 1)
                yield Part(slice_id, segment, Notes(segment), reached)
                first = [read_mark(segment, place) for place in places_of_marks(segment)[:_FIRST_MARKS].tolist()]
                if any(mark is not None and mark.kind is MarkKind.RECORDER_BEGIN for mark in first):
                    reached = {}

    def _read_back(self, slice_id: int) -> Iterator[Part]:
        """Yield the parts of a slice, from the newest one back. Each is read once."""
        yield from list(self._parts[slice_id])
        for part in self._left[slice_id]:
            self._parts[slice_id].append(part)
            yield part

    def _snapshot(self) -> _Known:
        """Return the newest snapshot, and the number of the first turn that is needed in addition."""
        found: dict[int, dict[int, Snapshot]] = {}
        for part in self._read_back(0):
            notes = part.notes
            for at in numpy.flatnonzero(notes.kinds == SNAPSHOT)[::-1].tolist():
                snapshot = notes.snapshot(int(notes.places[at]))
                first = int(notes.numbers[at]) - snapshot.part
                known = found.setdefault(first, {})
                known[snapshot.part] = snapshot
                if len(known) == snapshot.parts:
                    return _Known(_joined(first + snapshot.parts - 1, known), snapshot.floor)
        return _Known(_NOTHING, 0)

    def _copies(self, floor: int) -> list[Copy]:
        """Return the notes of turns from a number on, by number."""
        found: list[Copy] = []
        for slice_id in range(len(self.feed.slices)):
            for part in self._read_back(slice_id):
                notes = part.notes
                rows = notes.numbers >= floor
                columns = notes.numbers[rows].tolist(), notes.places[rows].tolist(), notes.kinds[rows].tolist()
                found += [Copy(number, slice_id, at, kind, part) for number, at, kind in zip(*columns, strict=True)]
                if len(notes.numbers) and notes.numbers[0] < floor:
                    break
        found.sort(key=lambda each: each.number)  # stable: of a slice they are not in order yet
        return found

    def _topics(self, slice_id: int, after: int, wanted: dict[_Place, list[_End]]) -> list[bytes]:
        """Return the topics that the messages of later turns have; note those of some messages."""
        spans: list[Span] = []
        for part in self._read_back(slice_id):
            notes = part.notes
            later = numpy.flatnonzero((notes.kinds == JUDGED) & (notes.numbers > after))
            is_first = len(notes.numbers) > 0 and notes.numbers[0] <= after
            if not is_first or len(later):
                start = int(notes.places[later[0]]) if is_first else FILE_HEAD_BYTES
                spans.insert(0, Span(part.segment, start, part.segment.whole_bytes))
            if is_first:
                break
        if not spans:
            return []
        most = max(self.feed.max_topics, _MOST_TOPICS)
        newest = Newest(slice_id, self.feed.key_rule, most, has_payloads=False)
        sequences = numpy.array(sorted(sequence for _, _, sequence in wanted), numpy.int64)
        for run in read_spans([spans], lambda heads: numpy.ones(len(heads), numpy.bool_), self.feed.key_rule, _refuse):
            newest.take(run)
            if len(sequences):
                firsts = run.heads["sequence"].astype(numpy.int64)
                has = numpy.searchsorted(sequences, firsts) < numpy.searchsorted(sequences, firsts + run.heads["count"])
                for recorded in blocks_of(run.chosen(has), self.feed.key_rule):
                    block = recorded.block
                    for row in range(len(block)):
                        for end in wanted.get((slice_id, block.epoch, block.number_of(row)), ()):
                            end.topic = block.topics[int(block.topic_index[row])]
        return newest.names()


class _Snapshot(NamedTuple):
    """A snapshot with all parts joined."""

    number: int
    clients: list[tuple[Client, int, int]]
    deadlines: list[tuple[bytes, int]]
    topics: list[bytes]


_NOTHING: Final = _Snapshot(0, [], [], [])


class _Known(NamedTuple):
    """A snapshot, and the number of the first turn that is needed in addition."""

    snapshot: _Snapshot
    floor: int


def _joined(number: int, parts: dict[int, Snapshot]) -> _Snapshot:
    joined = _Snapshot(number, [], [], [])
    for _, part in sorted(parts.items()):
        joined.clients.extend(part.clients)
        joined.deadlines.extend(part.deadlines)
        joined.topics.extend(part.topics)
    return joined


class _End:
    """When the topic of a message ends; the topic is not known yet."""

    def __init__(self, at: int) -> None:
        self.at, self.topic = at, b""


class _Ends:
    """Deadlines of puts, in their order, until their topics are known."""

    def __init__(self) -> None:
        self.wanted: dict[int, dict[_Place, list[_End]]] = {}
        """By slice and place."""
        self._all: list[_End] = []

    def add(self, request: Judged, places: Places, is_there: NDArray[numpy.bool_]) -> None:
        for row, at in numpy.frombuffer(request.ends, END).tolist():
            if is_there[row]:
                slice_id, _, _, epoch, sequence = places[row].item()
                end = _End(at)
                self._all.append(end)
                self.wanted.setdefault(slice_id, {}).setdefault((slice_id, epoch, sequence), []).append(end)

    def give(self, deadlines: Deadlines) -> None:
        for end in self._all:
            deadlines.set(end.topic, end.at)


def _take(table: Table, copies: list[Copy], ends: _Ends | None) -> None:
    """Have a table take the notes of turns; `ends` gets the deadlines."""
    cut: dict[tuple[Client | None, int], int] = {}
    """By client and session, the request that a killed hub has not stored whole, until it comes again."""
    for number, notes in groupby(copies, lambda each: each.number):
        table.number = number
        for request, places, is_there in _requests(notes):
            if ends is not None and request.ends:
                ends.add(request, places, is_there)
            client = request.client
            if client is None or (
                is_there.all() and request.first <= cut.get((client, request.session), request.first)
            ):
                table.take(number, request, places)
                cut.pop((client, request.session), None)
            else:
                cut.setdefault((client, request.session), request.first)
                table.take_partly(number, request, places, is_there)


def _requests(notes: Iterable[Copy]) -> list[tuple[Judged, Places, NDArray[numpy.bool_]]]:
    """Return the requests of a turn in order: their places, and False for those whose message was not stored."""
    requests: dict[int, tuple[Judged, Places, list[Copy]]] = {}
    for copy in notes:
        for request in copy.part.notes.judged(copy.place) if copy.kind == JUDGED else ():
            requests.setdefault(request.at, (request, unpack_places(request.places), []))[2].append(copy)
    found = [each for _, each in sorted(requests.items())]
    lost = {place for _, places, copies in found for place in _positions(places[_are_lost(places, copies)])}
    if not lost:
        return [(request, places, numpy.ones(len(places), numpy.bool_)) for request, places, _ in found]
    return [
        (request, places, numpy.array([each not in lost for each in _positions(places)], numpy.bool_))
        for request, places, _ in found
    ]


def _positions(places: Places) -> list[_Place]:
    return places[["slice", "epoch", "sequence"]].tolist()  # type: ignore[no-any-return]


def _are_lost(places: Places, copies: list[Copy]) -> NDArray[numpy.bool_]:
    """Return which new puts of a request are not behind its notes."""
    are_lost: NDArray[numpy.bool_] = places["is_new"] != 0
    for copy in copies:
        for epoch, stop in copy.part.reached.items():
            are_lost &= (places["slice"] != copy.slice_id) | (places["epoch"] != epoch) | (places["sequence"] >= stop)
    return are_lost


def newest_epoch(directory: Path) -> int:
    """Return the last epoch in the days of a hub; 0: none."""
    segments = [segment for day in recorded_days(directory) for segment in Recording.open(day)._segments]
    return max((int(each.entries["epoch"].max()) for each in segments if len(each.entries)), default=0)


def _refuse(damage: Damage) -> None:
    raise refusal(damage)
