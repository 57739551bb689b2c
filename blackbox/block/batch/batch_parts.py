"""Split a batch, keeping the order of its messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy
from numpy.typing import NDArray

if TYPE_CHECKING:
    from blackbox.block.batch.batch import Batch


def cut(batch: Batch, cuts: NDArray[numpy.int64]) -> list[Batch]:
    """Return the parts of a batch before, between and after these indices."""
    parts = numpy.split(batch._all_rows(), cuts)
    return [batch._of_rows(part, number == len(cuts)) for number, part in enumerate(parts)]


def by_interval_ns(batch: Batch, interval_ns: int) -> list[Batch]:
    """Do as `Batch.by_interval` for an interval in ns."""
    times = batch.ts_event
    timed = numpy.maximum.accumulate(numpy.where(times > 0, numpy.arange(len(times)), 0))
    number = times[timed] // interval_ns
    cuts = numpy.flatnonzero(number[1:] != number[:-1]) + 1
    return cut(batch, cuts) if len(cuts) else [batch]


def feed_numbers(batch: Batch) -> NDArray[numpy.int64] | None:
    """int64[n]: index of each message's feed; None: all are of one feed."""
    received = batch._received
    if received is None or received.origins is None or len(received.feeds) == 1:
        return None
    numbers = {feed.name: number for number, feed in enumerate(received.feeds)}
    found = numpy.array([numbers[feed.name] for feed in received.feeds])[batch._column(received.origins[3])]
    return None if (found == found[:1]).all() else found


def parts_by(batch: Batch, numbers: NDArray[numpy.int64]) -> list[tuple[NDArray[numpy.int64], Batch]]:
    """Return a batch for each distinct number of messages, and the indices of its messages."""
    rows, found = batch._all_rows(), [numpy.flatnonzero(numbers == number) for number in numpy.unique(numbers)]
    return [(mine, batch._of_rows(rows[mine], bool(mine[-1] == len(rows) - 1))) for mine in found]
