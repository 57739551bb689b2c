"""Read the marks of a slice in one day: the end of each epoch, and outages of the recorders."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.archive.files.format import FILE_HEAD_BYTES, MARK, MARK_HEAD_BYTES, MarkKind
from blackbox.archive.files.marks import NAMES_LEFT_OUT, Mark, places_of_marks, read_mark
from blackbox.archive.files.segment import Segment
from blackbox.archive.serve.protocol import Outage, RunAbout
from blackbox.block.position import End

_HEARD: Final = (MarkKind.EPOCH_END, MarkKind.HEARD)
_TELLS_OF_A_RUN: Final = (MarkKind.EPOCH_BEGIN, *_HEARD)
_SETTLED_NS: Final = 1_000_000_000
"""Age of a mark from which messages before its sequence are recorded or lost, even if a line is slower."""
_RECORDERS: Final = (MarkKind.RECORDER_BEGIN, MarkKind.RECORDER_END)


class Place(NamedTuple):
    """Location in a slice of one day."""

    segment: int
    offset: int


class RunEnd(NamedTuple):
    """End of an epoch, as reported by its publisher."""

    heard: int = 0
    """Largest next sequence of any mark."""
    told: int = 0
    """Largest next sequence of a mark that left no key out."""
    ends: Mapping[bytes, End] = MappingProxyType({})
    """End of each key that marks name."""

    def joined(self, other: RunEnd) -> RunEnd:
        """Return both combined, with the later end of each key."""
        ends = {key: max(end, self.ends.get(key, end)) for key, end in other.ends.items()}
        return RunEnd(
            max(self.heard, other.heard), max(self.told, other.told), {**self.ends, **ends} if ends else self.ends
        )


class _Turn(NamedTuple):
    """Start or stop of a recorder, or its first mark about the publisher after that."""

    kind: MarkKind
    place: Place
    ts: int
    before_ns: int
    """Time of the last mark before it, by the recorder's clock, ns since 1970; 0: none."""


class RunMarks:
    """Contents of the marks of a slice in one day. Each mark is read once while the day grows."""

    def __init__(self) -> None:
        self._until = Place(0, FILE_HEAD_BYTES)
        """Marks before this place have been read."""
        self._ends: dict[int, RunEnd] = {}
        """End of each epoch, in the order of their first marks."""
        self._latest: dict[int, deque[tuple[int, int]]] = {}
        """Time and sequence of each epoch's latest marks, ascending."""
        self._ended: set[int] = set()
        self._heard_ns: dict[int, int] = {}
        """Time of the last mark of each epoch, by the recorder's clock, ns since 1970."""
        self._turns: list[_Turn] = []
        self._last_ns = 0

    def grow(self, segments: Iterable[Segment]) -> RunMarks:
        """Read new marks. `segments`: all segments of the slice in this day, in order."""
        for segment in segments:
            if segment.number >= self._until.segment and len(segment.entries):
                start = self._until.offset if segment.number == self._until.segment else FILE_HEAD_BYTES
                self._until = Place(segment.number, int(segment.entries["stop"][-1]))
                self._take(segment, places_of_marks(segment, start))
        return self

    def _take(self, segment: Segment, places: NDArray[numpy.int64]) -> None:
        """Take marks. Most are heartbeats without keys: only their heads are read."""
        heads = segment.memory[places[:, numpy.newaxis] + numpy.arange(MARK_HEAD_BYTES)].view(MARK)[:, 0]
        says_all = (heads["kind"] == MarkKind.HEARD) & (heads["names"] == 0) & (heads["flags"] & NAMES_LEFT_OUT == 0)
        # A new recorder first marks the start of a segment, which does not show that the recorder before it was alive.
        lasts = numpy.where(heads["kind"] == MarkKind.SEGMENT_BEGIN, 0, numpy.arange(1, len(heads) + 1))
        made_ns = numpy.concatenate(([self._last_ns], heads["ts"]))
        before_ns = made_ns[numpy.maximum.accumulate(numpy.concatenate(([0], lasts)))]
        for number, (epoch, ts, sequence) in enumerate(heads[["epoch", "ts", "sequence"]].tolist()):
            if says_all[number]:
                self._take_end(epoch, ts, RunEnd(sequence, sequence))
            elif (mark := read_mark(segment, int(places[number]))) is not None:
                self._take_mark(mark, int(before_ns[number]))
        self._last_ns = int(before_ns[-1])

    def _take_mark(self, mark: Mark, before_ns: int) -> None:
        place = Place(mark.segment, mark.offset)
        if mark.kind in _TELLS_OF_A_RUN:
            told = 0 if mark.flags & NAMES_LEFT_OUT else mark.sequence
            self._take_end(mark.epoch, mark.ts if mark.kind in _HEARD else 0, RunEnd(mark.sequence, told, mark.keys))
            if mark.kind is MarkKind.EPOCH_END:
                self._ended.add(mark.epoch)
        is_first = bool(self._turns) and self._turns[-1].kind in _RECORDERS and mark.kind in _TELLS_OF_A_RUN
        if is_first or mark.kind in _RECORDERS:
            self._turns.append(_Turn(mark.kind, place, mark.ts, before_ns))

    def _take_end(self, epoch: int, ts: int, end: RunEnd) -> None:
        self._ends[epoch] = self._ends.get(epoch, RunEnd()).joined(end)
        self._heard_ns[epoch] = ts or self._heard_ns.get(epoch, 0)
        latest = self._latest.setdefault(epoch, deque())
        if not latest or end.heard > latest[-1][1]:
            latest.append((ts, end.heard))
        while len(latest) > 1 and latest[1][0] <= ts - _SETTLED_NS:
            latest.popleft()

    @property
    def epochs(self) -> list[int]:
        """Epochs that have marks."""
        return list(self._ends)

    def end(self, epoch: int) -> RunEnd:
        """Return the end of an epoch, as reported by its marks."""
        return self._ends.get(epoch, RunEnd())

    def settled(self, epoch: int, now_ns: int) -> int:
        """Return the largest sequence of a mark that is older than `_SETTLED_NS`; 0: no such mark."""
        return max((number for ts, number in self._latest.get(epoch, ()) if ts <= now_ns - _SETTLED_NS), default=0)

    def runs(self, recorded: dict[int, int]) -> list[RunAbout]:
        """Return a summary of each epoch, in order. `recorded`: last recorded sequence of each."""
        return [
            RunAbout(
                epoch=epoch,
                last_sequence=max(self.end(epoch).heard - 1, recorded.get(epoch, -1)),
                has_ended=epoch in self._ended,
                heard_ns=self._heard_ns.get(epoch, 0),
            )
            for epoch in dict.fromkeys([*self._ends, *recorded])
        ]

    def outages(self, segments: Iterable[Segment]) -> list[Outage]:
        """Return the times without a recorder, according to marks. `segments`: all of the slice in this day."""
        found: list[Outage] = []
        since_ns, is_out = 0, False
        for turn in self._turns:
            if turn.kind in _TELLS_OF_A_RUN:
                found.append(Outage(since_ns, turn.ts))
                is_out = False
            elif turn.kind is MarkKind.RECORDER_END:
                since_ns, is_out = turn.ts, True
            elif not is_out:  # the previous recorder was killed, or stopped on another day
                since_ns, is_out = max(_last_before(segments, turn.place), turn.before_ns), True
        return [*found, Outage(since_ns, 0)] if is_out else found


def _last_before(segments: Iterable[Segment], place: Place) -> int:
    """Return the time at which the last message before a place was received; 0: no such message."""
    before = [
        each.entries if each.number < place.segment else each.entries[each.entries["stop"] <= place.offset]
        for each in segments
        if each.number <= place.segment
    ]
    return max((int(entries["max_ts_recv"].max()) for entries in before if len(entries)), default=0)
