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
_ABOUT_SEGMENTS: Final = (MarkKind.SEGMENT_BEGIN, MarkKind.SEGMENT_END)


class Place(NamedTuple):
    """Where something stands in a slice's day."""

    segment: int
    offset: int


EVERYWHERE: Final = Place(1 << 62, 0)
"""Behind all that a day holds."""


class RunMarks:
    """The marks of a slice's day, read once, however the day grows."""

    def __init__(self) -> None:
        self._until = Place(0, FILE_HEAD_BYTES)
        """Marks before this place are read."""
        self._kept: list[Mark] = []
        """Those that tell more than that a run goes on as it did."""
        self._heard_ns: dict[int, int] = {}
        """When each run was last heard of, by the recorder's clock."""

    def grow(self, segments: Iterable[Segment]) -> RunMarks:
        """Read what has come since. `segments`: all of the slice's day, in order."""
        for segment in segments:
            if segment.number >= self._until.segment and len(segment.entries):
                start = self._until.offset if segment.number == self._until.segment else FILE_HEAD_BYTES
                self._until = Place(segment.number, int(segment.entries["stop"][-1]))
                self._take(segment, places_of_marks(segment, start))
        return self

    def _take(self, segment: Segment, places: NDArray[numpy.int64]) -> None:
        heads = segment.memory[places[:, numpy.newaxis] + numpy.arange(MARK_HEAD_BYTES)].view(MARK)[:, 0]
        heard = heads[numpy.isin(heads["kind"], (MarkKind.EPOCH_END, MarkKind.HEARD))]
        self._heard_ns.update(zip(heard["epoch"].tolist(), heard["ts"].tolist(), strict=True))
        says_more = (heads["names"] > 0) | ~numpy.isin(heads["kind"], (MarkKind.HEARD, *_ABOUT_SEGMENTS))
        marks = (read_mark(segment, place) for place in places[says_more].tolist())
        self._kept += [mark for mark in marks if mark is not None]

    def following(self, key: bytes, before: Place = EVERYWHERE) -> dict[int, int]:
        """Return by run the largest next number of a key that its publisher has told; 0: none.

        Only of runs of which marks before a place tell.
        """
        found: dict[int, int] = {}
        for mark in self._kept:
            if mark.kind in _TELLS_OF_A_RUN and (mark.segment, mark.offset) < before:
                found[mark.epoch] = max(mark.keys.get(key, 0), found.get(mark.epoch, 0))
        return found

    def runs(self, recorded: dict[int, int]) -> list[RunAbout]:
        """Return what is known of each run, in order. `recorded`: the largest number of each, over all keys."""
        told: dict[int, int] = {}
        for mark in self._kept:
            if mark.kind in _TELLS_OF_A_RUN:
                last = max(mark.keys.values(), default=0) - 1
                told[mark.epoch] = max(last, told.get(mark.epoch, recorded.get(mark.epoch, -1)))
        ended = {mark.epoch for mark in self._kept if mark.kind is MarkKind.EPOCH_END}
        epochs = dict.fromkeys([*told, *recorded])
        return [
            RunAbout(
                epoch=epoch,
                last_sequence=max(told.get(epoch, -1), recorded.get(epoch, -1)),
                has_ended=epoch in ended,
                heard_ns=self._heard_ns.get(epoch, 0),
            )
            for epoch in epochs
        ]

    def outages(self, segments: Iterable[Segment]) -> list[Outage]:
        """Return when nobody recorded, as far as recorders have told."""
        lasts = [(each.number, int(each.entries["max_ts_recv"].max())) for each in segments]
        found: list[Outage] = []
        since_ns, is_out = 0, False
        for mark in self._kept:
            if mark.kind is MarkKind.RECORDER_BEGIN and not is_out:  # the one before was killed, or of another day
                since_ns, is_out = max(since_ns, *(ns for number, ns in lasts if number < mark.segment), 0), True
            elif mark.kind is MarkKind.RECORDER_END:
                since_ns, is_out = mark.ts, True
            elif is_out and mark.kind in _TELLS_OF_A_RUN:
                found.append(Outage(since_ns, mark.ts))
                is_out = False
            if not is_out:
                since_ns = max(since_ns, mark.ts)
        return [*found, Outage(since_ns, 0)] if is_out else found
