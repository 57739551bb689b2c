"""What the marks of a slice's day tell of the publisher's runs: how far each has sent, and when nobody recorded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.archive.format import FILE_HEAD_BYTES, MARK, MARK_HEAD_BYTES
from blackbox.archive.marks import Mark, MarkKind, places_of_marks, read_mark
from blackbox.archive.segment import Segment
from blackbox.archive.serve.protocol import Outage, RunAbout

_TELLS_OF_A_RUN: Final = (MarkKind.EPOCH_BEGIN, MarkKind.EPOCH_END, MarkKind.HEARD)
_RECORDERS: Final = (MarkKind.RECORDER_BEGIN, MarkKind.RECORDER_END)


class Place(NamedTuple):
    """Where something stands in a slice's day."""

    segment: int
    offset: int


EVERYWHERE: Final = Place(1 << 62, 0)
"""Behind all that a day holds."""


class _Turn(NamedTuple):
    """Where a recorder began or ended, or heard of the publisher for the first time after that."""

    kind: MarkKind
    place: Place
    ts: int
    before_ns: int
    """When a recorder last made a mark before it, by its clock; 0: none did."""


class RunMarks:
    """What the marks of a slice's day tell, read once, however the day grows."""

    def __init__(self) -> None:
        self._until = Place(0, FILE_HEAD_BYTES)
        """Marks before this place are read."""
        self._begun: dict[int, Place] = {}
        """Where marks tell of each run first."""
        self._told: dict[int, dict[bytes, int]] = {}
        """By run, the largest next number that its publisher has told of each key, as far as records fell short."""
        self._ended: set[int] = set()
        self._heard_ns: dict[int, int] = {}
        """When each run was last heard of, by the recorder's clock."""
        self._turns: list[_Turn] = []
        self._last_ns = 0

    def grow(self, segments: Iterable[Segment]) -> RunMarks:
        """Read what has come since. `segments`: all of the slice's day, in order."""
        for segment in segments:
            if segment.number >= self._until.segment and len(segment.entries):
                start = self._until.offset if segment.number == self._until.segment else FILE_HEAD_BYTES
                self._until = Place(segment.number, int(segment.entries["stop"][-1]))
                self._take(segment, places_of_marks(segment, start))
        return self

    def _take(self, segment: Segment, places: NDArray[numpy.int64]) -> None:
        """Take marks. Most are heartbeats that say nothing new: only their heads are looked at."""
        heads = segment.memory[places[:, numpy.newaxis] + numpy.arange(MARK_HEAD_BYTES)].view(MARK)[:, 0]
        heard = heads[numpy.isin(heads["kind"], (MarkKind.EPOCH_END, MarkKind.HEARD))]
        self._heard_ns.update(zip(heard["epoch"].tolist(), heard["ts"].tolist(), strict=True))
        says_more = (heads["names"] > 0) | (heads["kind"] != MarkKind.HEARD)
        # What a new recorder writes first, the beginning of a segment, does not show that the one before was alive.
        lasts = numpy.where(heads["kind"] == MarkKind.SEGMENT_BEGIN, 0, numpy.arange(1, len(heads) + 1))
        made_ns = numpy.concatenate(([self._last_ns], heads["ts"]))
        before_ns = made_ns[numpy.maximum.accumulate(numpy.concatenate(([0], lasts)))]
        for number in numpy.flatnonzero(says_more).tolist():
            mark = read_mark(segment, int(places[number]))
            if mark is not None:
                self._take_mark(mark, int(before_ns[number]))
        self._last_ns = int(before_ns[-1])

    def _take_mark(self, mark: Mark, before_ns: int) -> None:
        place = Place(mark.segment, mark.offset)
        if mark.kind in _TELLS_OF_A_RUN:
            self._begun.setdefault(mark.epoch, place)
            told = self._told.setdefault(mark.epoch, {})
            for key, number in mark.keys.items():
                told[key] = max(number, told.get(key, 0))
            if mark.kind is MarkKind.EPOCH_END:
                self._ended.add(mark.epoch)
        is_first = bool(self._turns) and self._turns[-1].kind in _RECORDERS and mark.kind in _TELLS_OF_A_RUN
        if is_first or mark.kind in _RECORDERS:
            self._turns.append(_Turn(mark.kind, place, mark.ts, before_ns))

    def next_sequences(self, key: bytes, before: Place = EVERYWHERE) -> dict[int, int]:
        """Return by run the largest next number of a key that its publisher has told; 0: none.

        Only of runs of which marks before a place tell.
        """
        return {epoch: self._told[epoch].get(key, 0) for epoch, place in self._begun.items() if place < before}

    def ends(self, first: int, stop: int) -> dict[int, dict[bytes, int]]:
        """Return by run, from `first` to before `stop`, the largest next numbers that its publisher has told, by key.

        As far as records fell short when it did.
        """
        return {epoch: told for epoch, told in self._told.items() if first <= epoch < stop}

    def tells_of(self, before: int) -> bool:
        """Whether marks tell of a run before one."""
        return any(epoch < before for epoch in self._told)

    def runs(self, recorded: dict[int, int]) -> list[RunAbout]:
        """Return what is known of each run, in order. `recorded`: the largest number of each, over all keys."""
        return [
            RunAbout(
                epoch=epoch,
                last_sequence=max(*self._told.get(epoch, {}).values(), recorded.get(epoch, -1) + 1, 0) - 1,
                has_ended=epoch in self._ended,
                heard_ns=self._heard_ns.get(epoch, 0),
            )
            for epoch in dict.fromkeys([*self._begun, *recorded])
        ]

    def outages(self, segments: Iterable[Segment]) -> list[Outage]:
        """Return when nobody recorded, as far as recorders have told. `segments`: all of the slice's day."""
        found: list[Outage] = []
        since_ns, is_out = 0, False
        for turn in self._turns:
            if turn.kind in _TELLS_OF_A_RUN:
                found.append(Outage(since_ns, turn.ts))
                is_out = False
            elif turn.kind is MarkKind.RECORDER_END:
                since_ns, is_out = turn.ts, True
            elif not is_out:  # the recorder before was killed, or was of another day
                since_ns, is_out = max(_last_before(segments, turn.place), turn.before_ns), True
        return [*found, Outage(since_ns, 0)] if is_out else found


def _last_before(segments: Iterable[Segment], place: Place) -> int:
    """Return when the last message before a place was received; 0: there is none."""
    before = [
        each.entries if each.number < place.segment else each.entries[each.entries["stop"] <= place.offset]
        for each in segments
        if each.number <= place.segment
    ]
    return max((int(entries["max_ts_recv"].max()) for entries in before if len(entries)), default=0)
