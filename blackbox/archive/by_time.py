"""Read several slices by the times of their messages: the index says which bytes to read before which time.

A recording's own order is that of sending. For the order of the market, a *unit* of some MiB of a slice is read when
the time of the first of its messages has come::

    by_time = ByTime(streams, wanted, report)
    for unit in by_time.units:                 # by the least time that may be in them
        runs = by_time.read(unit)              # unpacked, not checked
        ...
        unit.release()

A message without a time takes that of the latest one before it in its slice. An entry of the index with such a message
tells no least time: it is taken not to go back behind what stands before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.archive.filter import Filter
from blackbox.archive.reader import RecordRun, Report, Span, read_spans
from blackbox.archive.segment import Segment

_UNIT_BYTES: Final = 2 << 20
_NO_TIME: Final = 0


class Unit(NamedTuple):
    """Bytes of one slice that are read together."""

    low_ns: int
    """No message in it is earlier."""
    stream: int
    """The place of its slice among those that are read."""
    latest_ns: int
    """The largest `ts_event` of its slice before it; 0: none."""
    span: Span

    def release(self) -> None:
        """Give its memory back; it can still be read."""
        self.span.segment.release(self.span.start, self.span.stop)


class ByTime:
    """The records of several slices that may hold wanted messages, in units by time.

    Attributes: `units`; `is_in_order`, whether `ts_event` never runs back within a slice of a recording; `slices`, of
    which slice each stream is.
    """

    def __init__(self, streams: Sequence[Sequence[Segment]], wanted: Filter, report: Report) -> None:
        self._wanted, self._report = wanted, report
        self.is_in_order = True
        self.slices = [segments[0].slice_id for segments in streams if segments]
        self.units: list[Unit] = []
        for stream, segments in enumerate(streams):
            self._plan(stream, segments)
        self.units.sort(key=lambda unit: (unit.low_ns, unit.span.latest, unit.stream))

    def read(self, unit: Unit) -> list[RecordRun]:
        """Return the unit's records, as `read_spans` has them "unpacked"."""
        records = read_spans(
            [[unit.span]],
            self._wanted.records,
            self._wanted.key_bytes,
            self._report,
            bodies="unpacked",
            kept=1 << 62,  # the unit's pages are given back when it has been used
        )
        return list(records)

    def _plan(self, stream: int, segments: Sequence[Segment]) -> None:
        latest_event, latest_out = _NO_TIME, 0
        for segment in segments:
            entries = segment.entries
            if not len(entries):
                continue
            events = numpy.maximum.accumulate(numpy.concatenate(([latest_event], entries["max_ts_event"])))
            sent = numpy.maximum.accumulate(numpy.concatenate(([latest_out], entries["max_ts_out"])))
            low, before = entries["min_ts_event"], events[:-1]
            is_apart = (entries["late"] > 0) | (low < before)
            chosen = numpy.flatnonzero(self._wanted.entries(entries) & (entries["records"] > 0))
            self.is_in_order &= not is_apart[chosen].any()
            for group in _groups(entries, chosen, is_apart):
                first, last = group[0], group[-1]
                least = int(low[first]) if low[first] > _NO_TIME else int(before[first])
                span = Span(segment, int(entries["start"][first]), int(entries["stop"][last]), int(sent[first]))
                self.units.append(Unit(least, stream, int(before[first]), span))
            latest_event, latest_out = int(events[-1]), int(sent[-1])


def _groups(
    entries: NDArray[Any], chosen: NDArray[numpy.int64], is_apart: NDArray[numpy.bool_]
) -> list[NDArray[numpy.int64]]:
    """Join neighbouring entries up to a unit's size; what holds late messages stays by itself."""
    if not len(chosen):
        return []
    starts, stops = entries["start"][chosen], entries["stop"][chosen]
    split = (starts[1:] != stops[:-1]) | is_apart[chosen[1:]] | is_apart[chosen[:-1]]
    split |= starts[1:] // _UNIT_BYTES != starts[:-1] // _UNIT_BYTES
    return numpy.split(chosen, numpy.flatnonzero(split) + 1)
