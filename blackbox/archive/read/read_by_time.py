"""Read several slices by the times of their messages. The index decides which bytes to read before which time.

A recording's own order is the order of sending. For the market's order, a *unit* of a few MiB of a slice is read when
the time of its first message is reached::

    by_time = ByTime(streams, wanted, report)
    for unit in by_time.units:                 # by the lowest time in them
        runs = by_time.read(unit)              # decompressed, not checked
        ...
        unit.release()

A message without a time takes that of the latest one before it in its slice. Before the first time of a slice, it takes
the next one in its unit, but at most the largest `ts_out` of its slice so far. The index has no lowest time for an
entry with such a message. The entry is read at the latest time before it, and late messages in it are played then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.archive.files.segment import NO_TIME, Segment
from blackbox.archive.read.filter import Filter
from blackbox.archive.read.reader import RecordRun, Report, Span, read_spans

_UNIT_BYTES: Final = 8 << 20
_NO_TIME: Final = 0


class Unit(NamedTuple):
    """Bytes of one slice that are read together."""

    low_ns: int
    """Lower bound of its messages' times."""
    stream: int
    """Index of its slice among those read."""
    latest_ns: int
    """Largest `ts_event` of its slice before it; 0: none."""
    span: Span

    def release(self) -> None:
        """Release its memory. It can still be read."""
        self.span.segment.release(self.span.start, self.span.stop)


class ByTime:
    """Records of several slices that may hold wanted messages, in units by time.

    Attributes: `slices`, the slice of each stream.
    """

    def __init__(self, streams: Sequence[Sequence[Segment]], wanted: Filter, report: Report) -> None:
        self._streams, self._wanted, self._report = streams, wanted, report
        self.slices = [segments[0].slice_id for segments in streams if segments]

    @cached_property
    def is_in_order(self) -> bool:
        """True if the recorded order of the wanted messages of each slice is the market's order."""
        return not any((part.is_apart | part.is_timed_late)[part.chosen].any() for part in self._parts())

    @cached_property
    def units(self) -> list[Unit]:
        """The units to read, by the lowest time in them."""
        units = [unit for part in self._parts() for unit in part.units()]
        return sorted(units, key=lambda unit: (unit.low_ns, unit.span.latest, unit.stream))

    def read(self, unit: Unit) -> list[RecordRun]:
        """Return the unit's records as `read_spans` with `bodies="unpacked"`."""
        records = read_spans(
            [[unit.span]],
            self._wanted.records,
            self._wanted.key_rule,
            self._report,
            bodies="unpacked",
            kept=1 << 62,  # `Unit.release` releases the pages
        )
        return list(records)

    def _parts(self) -> Iterator[_Part]:
        """Yield the index data of each segment."""
        for stream, segments in enumerate(self._streams):
            latest_event, latest_out = _NO_TIME, 0
            for segment in segments:
                entries = segment.entries
                if not len(entries):
                    continue
                # The times of an entry with unreadable records are unknown.
                known = numpy.where(entries["max_ts_event"] < NO_TIME, entries["max_ts_event"], _NO_TIME)
                events = numpy.maximum.accumulate(numpy.concatenate(([latest_event], known)))
                sent = numpy.maximum.accumulate(numpy.concatenate(([latest_out], entries["max_ts_out"])))
                wanted = self._wanted.entries(entries) & (entries["records"] > 0)
                yield _Part(stream, segment, numpy.flatnonzero(wanted), events, sent)
                latest_event, latest_out = int(events[-1]), int(sent[-1])


class _Part(NamedTuple):
    """Index data of a segment."""

    stream: int
    segment: Segment
    chosen: NDArray[numpy.int64]
    """Entries that may hold wanted messages."""
    events: NDArray[numpy.int64]
    """Largest `ts_event` before each entry, and after the last."""
    sent: NDArray[numpy.int64]
    """Largest `ts_out` before each entry, and after the last."""

    @property
    def is_apart(self) -> NDArray[numpy.bool_]:
        """bool[n]: True for entries with messages that are earlier than others before them."""
        entries = self.segment.entries
        apart: NDArray[numpy.bool_] = (entries["late"] > 0) | (entries["min_ts_event"] < self.events[:-1])
        return apart

    @property
    def is_timed_late(self) -> NDArray[numpy.bool_]:
        """bool[n]: True for the entry with the first time of its slice, if messages without a time may precede it."""
        entries = self.segment.entries
        is_first: NDArray[numpy.bool_] = (self.events[:-1] <= _NO_TIME) & (entries["max_ts_event"] > _NO_TIME)
        return is_first & ((entries["min_ts_event"] <= _NO_TIME) | (self.sent[:-1] > 0))

    def units(self) -> Iterator[Unit]:
        """Yield the units in the order of the slice."""
        entries, before = self.segment.entries, self.events[:-1]
        # Entries without a time, before the first time of their slice, are read at their `ts_out`.
        untimed = (before <= _NO_TIME) & (entries["max_ts_event"] <= _NO_TIME)
        sent = numpy.maximum(entries["min_ts_out"], self.sent[:-1])
        known = entries["min_ts_event"] > _NO_TIME
        low = numpy.where(known, entries["min_ts_event"], numpy.where(untimed, sent, before))
        for group in _groups(entries, self.chosen, self.is_apart):
            first, last = group[0], group[-1]
            span = Span(self.segment, int(entries["start"][first]), int(entries["stop"][last]), int(self.sent[first]))
            yield Unit(int(low[group].min()), self.stream, int(before[first]), span)


def _groups(
    entries: NDArray[Any], chosen: NDArray[numpy.int64], is_apart: NDArray[numpy.bool_]
) -> list[NDArray[numpy.int64]]:
    """Join adjacent entries up to a unit's size. Entries with late messages are kept separate."""
    if not len(chosen):
        return []
    starts, stops = entries["start"][chosen], entries["stop"][chosen]
    split = (starts[1:] != stops[:-1]) | is_apart[chosen[1:]] | is_apart[chosen[:-1]]
    split |= starts[1:] // _UNIT_BYTES != starts[:-1] // _UNIT_BYTES
    return numpy.split(chosen, numpy.flatnonzero(split) + 1)
