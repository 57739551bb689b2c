"""Histograms of the time that traced messages took for each hop."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.native.tables.histogram import BUCKETS, record_one
from blackbox.receive.trace.hops import Hop, Trace, TraceReader


class Histogram(NamedTuple):
    """Counts of times, as in `blackbox.native.tables.histogram`."""

    of: str
    """lag, age or hop."""
    label: tuple[str, str]
    """Name and value of its label."""
    counts: NDArray[numpy.int64]


class HopCounts:
    """Counts the times of hops in the traces of one subscriber. Not for several threads.

    Attributes: `reader` of the traces.
    """

    def __init__(self) -> None:
        self.reader = TraceReader()
        self._counts: dict[str, NDArray[numpy.int64]] = {}

    def add(self, trace: Trace) -> None:
        """Count a trace."""
        for before, hop in pairwise(trace.hops):
            name = f"{_name(before)} to {_name(hop)}"
            counts = self._counts.setdefault(name, numpy.zeros(BUCKETS, numpy.int64))
            record_one(counts.ctypes.data, hop.took_ns)

    def histograms(self) -> tuple[Histogram, ...]:
        """Return a histogram for each hop with samples."""
        return tuple(Histogram("hop", ("hop", name), counts.copy()) for name, counts in self._counts.items())


def _name(hop: Hop) -> str:
    """Return the name of a hop with the place of its relay: relays may be renamed, and a label has few values."""
    return f"relay {hop.place} {hop.name.removeprefix('relay ')}" if hop.place else hop.name
