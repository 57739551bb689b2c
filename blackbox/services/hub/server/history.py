"""Restore a hub's state from the end of its journals, back to its newest snapshot and the requests it remembers."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.archive.files.day import recorded_days
from blackbox.archive.files.dropped import Dropped
from blackbox.archive.files.format import (
    FILE_HEAD_BYTES,
    MARK_MAGIC,
    OFFSET_BLOCK_HEADER,
    MarkKind,
    mark_bytes,
    record_bytes,
)
from blackbox.archive.files.journal_record import is_whole
from blackbox.archive.files.segment import Damage, Segment
from blackbox.archive.read.reader import Span, blocks_of, read_spans
from blackbox.archive.record.crash_recovery import cut_segment
from blackbox.archive.recording import Recording, open_kept
from blackbox.archive.serve.newest_of_slice import Newest
from blackbox.block.form.block import Block
from blackbox.block.form.format import HEADER_BYTES
from blackbox.errors import JournalError
from blackbox.feed.feed import Feed
from blackbox.services.hub.protocol import Places, unpack_places
from blackbox.services.hub.server.client_table import Table
from blackbox.services.hub.server.deadlines import Deadlines
from blackbox.services.hub.server.notes import END, JUDGED, RENEWED, SNAPSHOT, Client, Judged, Notes, Snapshot
from blackbox.services.hub.server.start_check import refusal
from blackbox.services.hub.server.topics import Topics

log = logging.getLogger("blackbox")

_RECORD_HEAD: Final = struct.Struct("<IIqIHH")
"""First fields of a record or mark: magic, checksum, time, stored_bytes; and of a mark, kind and flags."""
_MOST_TOPICS: Final = 1 << 20
_Place = tuple[int, int, int]
"""Slice, epoch, sequence."""


class Part(NamedTuple):
    """A segment of a slice, and its notes."""

    slice_id: int
    segment: Segment
    notes: Notes


class Copy(NamedTuple):
    """A note of a turn in one slice; see `HEAD`."""

    number: int
    slice_id: int
    place: int
    first: int
    slices: int
    kind: int
    part: Part


class History:
    """The days of the hub of `feed`, as they are now. Methods raise JournalError if they read damaged data."""

    def __init__(self, directory: Path, feed: Feed) -> None:
        """List the days; none is opened yet."""
        self._directory, self._paths, self.feed = directory, recorded_days(directory), feed
        self._days: dict[Path, Recording] = {}
        self._parts: list[list[Part]] = [[] for _ in feed.slices]
        """Parts by slice that were read so far, newest first."""
        self._left = [self._back(slice_id) for slice_id in range(len(feed.slices))]

    def tell(self, table: Table, deadlines: Deadlines, topics: Topics) -> None:
        """Restore the state of a hub from the journals. Raises ConfigError if there are too many topics."""
        snapshot, floor = self._snapshot()
        copies = self._copies(floor)
        ends = _Ends()
        known = [each for each in copies if each.number <= snapshot.number]
        table.restore((each.number, each.part.notes.renewed(each.place)) for each in known if each.kind == RENEWED)
        self._take(table, known, None)
        table.set_clients(snapshot.number, snapshot.clients)
        for topic, at in snapshot.deadlines:
            deadlines.set(topic, at)
        topics.add_all(snapshot.topics)
        self._take(table, [each for each in copies if each.number > snapshot.number], ends)
        for slice_id in range(len(self.feed.slices)):
            topics.add_all(self._topics(slice_id, snapshot.number, ends.wanted.get(slice_id, {})))
        ends.give(deadlines)

    def parts_from(self, slice_id: int, number: int) -> list[Part]:
        """Return the parts of a slice that have turns from a number on, oldest first."""
        found: list[Part] = []
        for part in self._read_back(slice_id):
            found.insert(0, part)
            if len(part.notes.numbers) and part.notes.numbers[0] < number:
                break
        return found

    def newest(self) -> tuple[int, bytes]:
        """Return the last turn that is complete, like all turns before it, and its note in the first slice that has it.

        A killed hub may have stored only part of its last turn. A power cut may have removed more, but nothing before a
        snapshot.
        """
        lasts = {
            slice_id: (int(notes.numbers.max()), int(notes.firsts.max())) for slice_id, notes in self._last_notes()
        }
        first, snapshot = max((first for _, first in lasts.values()), default=1), self._snapshot().snapshot.number
        number, text = max(first - 1, snapshot), b""
        for found, group in groupby(self._copies(number), lambda each: each.number):
            copies = list(group)
            is_noted = len({each.slice_id for each in copies}) == copies[0].slices
            may_lack = any(lasts[each.slice_id][0] == found for each in copies)
            is_whole = is_noted and all(is_there.all() for _, _, is_there in self._requests(copies, may_lack=may_lack))
            if found > number and (found != number + 1 or not is_whole):
                break
            number, text = found, copies[0].part.notes.text(copies[0].place)
        return number, text

    def last(self) -> int:
        """Return the last turn that has a note; 0 if no turn has one."""
        return max((int(notes.numbers.max()) for _, notes in self._last_notes()), default=0)

    def part_of(self, number: int) -> tuple[dict[int, bytes], int]:
        """Return the notes of the last turn, which has this number, by slice; and their number and that of messages."""
        copies = self._copies(number)
        notes = {each.slice_id: each.part.notes.text(each.place) for each in copies}
        return notes, len(notes) + len({place for each in copies for place in self._stored_after(each)})

    def _last_notes(self) -> Iterator[tuple[int, Notes]]:
        """Yield each slice that has turns, with the notes of its newest part that has any."""
        for slice_id in range(len(self.feed.slices)):
            for part in self._read_back(slice_id):
                if len(part.notes.numbers):
                    yield slice_id, part.notes
                    break

    def cut_back(self, number: int) -> None:
        """Cut later turns off the journals."""
        for slice_id in range(len(self.feed.slices)):
            cuts: list[tuple[Segment, int]] = []
            for part in self.parts_from(slice_id, number + 1):
                later = part.notes.places[part.notes.numbers > number]
                if cuts or len(later):  # a part without notes belongs to the part before
                    cuts.append((part.segment, FILE_HEAD_BYTES if cuts else int(later[0])))
            for segment, size in reversed(cuts):
                log.warning("%s: cut the turns of the hub after %d", segment.path, number)
                self._cut(segment, size)

    def _cut(self, segment: Segment, size: int) -> None:
        cut_segment(segment, size)

    def _back(self, slice_id: int) -> Iterator[Part]:
        """Yield the parts of a slice, newest first."""
        for path in reversed(self._paths):
            if path not in self._days:
                if (day := open_kept(path)) is None:
                    return  # all earlier days are deleted, too
                for damage in [each for each in day.damage if each.path.suffix == ".journal"]:
                    raise refusal(damage)
                self._days[path] = day
            for segment in reversed(dict(self._days[path].segments.of([slice_id])).get(slice_id, [])):
                yield Part(slice_id, segment, Notes(segment))

    def _read_back(self, slice_id: int) -> Iterator[Part]:
        """Yield the parts of a slice, newest first. Each is read once."""
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
                fields = notes.places, notes.firsts, notes.slices, notes.kinds
                columns = [each[rows].tolist() for each in fields]
                heads = zip(notes.numbers[rows].tolist(), zip(*columns, strict=True), strict=True)
                found += [
                    Copy(number, slice_id, at, first, slices, kind, part) for number, (at, first, slices, kind) in heads
                ]
                if len(notes.numbers) and notes.numbers[0] < floor:
                    break
        found.sort(key=lambda each: each.number)  # stable; those of one slice are not in order yet
        return found

    def _take(self, table: Table, copies: list[Copy], ends: _Ends | None) -> None:
        """Apply the notes of turns to a table; `ends` gets the deadlines."""
        cut: dict[tuple[Client | None, int], int] = {}
        """Request by client and session that a killed hub has stored in part, until it is repeated."""
        turns = [list(notes) for _, notes in groupby(copies, lambda each: each.number)]
        for at, notes in enumerate(turns):
            table.number = number = notes[0].number
            may_lack = at + 1 == len(turns) or turns[at + 1][0].first > number  # it is the last turn of a run
            for request, places, is_there in self._requests(notes, may_lack=may_lack):
                if ends is not None and request.ends:
                    ends.add(request, places, is_there)
                client = request.client
                key = client, request.session
                if client is None or (is_there.all() and request.first <= cut.get(key, request.first)):
                    table.take(number, request, places)
                    cut.pop(key, None)
                else:
                    cut.setdefault(key, request.first)
                    table.take_partly(number, request, places, is_there)

    def _requests(self, notes: list[Copy], *, may_lack: bool) -> list[tuple[Judged, Places, NDArray[numpy.bool_]]]:
        """Return the requests of a turn in order, with their places, and False for each place without a stored message.

        `may_lack`: the journals may lack messages of the turn.
        """
        if notes[0].kind != JUDGED:
            return []
        requests = notes[0].part.notes.judged(notes[0].place)  # other copies are the same
        found = [(each, unpack_places(each.places)) for each in requests]
        lost: set[_Place] = set()
        if may_lack:
            lost = {place for _, places in found for place in _positions(places[places["is_new"] != 0])}
            for copy in notes:
                lost.difference_update(self._stored_after(copy))
            lost = self._without_dropped(lost)
        return [(*each, _are_others(each[1], lost)) for each in found]

    def _stored_after(self, copy: Copy) -> Iterator[_Place]:
        """Yield the places of the messages after a note."""
        for segment, at, _ in records_after(self._parts_after(copy), copy.place):
            head = segment.memory[at + OFFSET_BLOCK_HEADER :][:HEADER_BYTES].tobytes()
            block = Block(b"", head, numpy.empty(0, numpy.uint8))
            for sequence in range(block.sequence, block.sequence + len(block)):
                yield copy.slice_id, block.epoch, sequence

    def _without_dropped(self, places: set[_Place]) -> set[_Place]:
        """Return the places without those of messages that retention has dropped."""
        slices = Dropped.read(self._directory).slices if places else {}
        return {
            (slice_id, epoch, sequence)
            for slice_id, epoch, sequence in places
            if slice_id not in slices
            or not any(had == epoch and first <= sequence < stop for had, first, stop in slices[slice_id].had)
        }

    def _parts_after(self, copy: Copy) -> list[Part]:
        """Return the part of a note, and those after it."""
        parts = self._parts[copy.slice_id]
        return parts[next(at for at, each in enumerate(parts) if each is copy.part) :: -1]

    def _topics(self, slice_id: int, after: int, wanted: dict[_Place, list[_End]]) -> list[bytes]:
        """Return the topics of messages in turns later than `after`; set the topics of `wanted` messages."""
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
    """Deadline of the topic of a message; the topic is not known yet."""

    def __init__(self, at: int) -> None:
        self.at, self.topic = at, b""


class _Ends:
    """Deadlines of puts, in their order, until their topics are known."""

    def __init__(self) -> None:
        self.wanted: dict[int, dict[_Place, list[_End]]] = {}
        """Deadlines by slice and place."""
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


def _are_others(places: Places, lost: set[_Place]) -> NDArray[numpy.bool_]:
    """Return False for each lost place."""
    if not lost:
        return numpy.ones(len(places), numpy.bool_)
    return numpy.array([each not in lost for each in _positions(places)], numpy.bool_)


def _positions(places: Places) -> list[_Place]:
    return places[["slice", "epoch", "sequence"]].tolist()  # type: ignore[no-any-return]


def records_after(parts: Sequence[Part], place: int) -> Iterator[tuple[Segment, int, int]]:
    """Yield segment, place and body size of each record after a note of the first part, up to the next note.

    Raises JournalError for a damaged record.
    """
    at = place
    for part in parts:
        segment = part.segment
        while at < segment.whole_bytes:
            magic, _, _, stored, kind, _ = _RECORD_HEAD.unpack_from(segment.memory.data, at)
            if magic == MARK_MAGIC:
                if kind == MarkKind.NOTE.value and at != place:
                    return
                at += int(mark_bytes(stored))
                continue
            if not is_whole(segment.address + at):
                raise JournalError(f"{segment.path} is damaged: the record at {at} does not match its checksum")
            yield segment, at, stored
            at += int(record_bytes(stored))
        at, place = FILE_HEAD_BYTES, -1


def newest_epoch(directory: Path) -> int:
    """Return the last epoch in the days of a hub; 0 if they have no messages."""
    segments = [segment for day in recorded_days(directory) for segment in Recording.open(day).segments]
    return max((int(each.entries["epoch"].max()) for each in segments if len(each.entries)), default=0)


def _refuse(damage: Damage) -> None:
    raise refusal(damage)
