"""Checked columns of a request for conditions and times to live, and the errors of refused puts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import numpy
from numpy.typing import NDArray

from blackbox.block.position import NOWHERE, Place
from blackbox.errors import ConflictError, RefusedError
from blackbox.services.hub.protocol import ANYWHERE, CONDITION, CONFLICT, MOST_TTL_NS, PLACE, REFUSED, PlaceRow, Places

INT64: Final = 1 << 63
_EXPECTED: Final = "expected a Place, as Table.revision returns it, or NOWHERE"


def as_revision(if_at: Any) -> Place:
    """Return a condition, which may be a row returned by `put_many`, as a Place. Raises TypeError or ValueError."""
    if isinstance(if_at, numpy.void) and if_at.dtype == PLACE:
        if_at = Place(int(if_at["slice"]), int(if_at["epoch"]), int(if_at["sequence"]))
    if type(if_at) is not Place:
        raise TypeError(f"if_at was {if_at!r}, {_EXPECTED}")
    if not (0 <= if_at.epoch < INT64 and -1 <= if_at.sequence < INT64):
        raise ValueError(f"if_at was {if_at}, {_EXPECTED}")
    return if_at


def as_if_at(if_at: Place | Sequence[Place | None] | Places | None, count: int) -> NDArray[Any] | None:
    """Return CONDITION[count] from one value for all or a column; None if not given. Raises TypeError or ValueError."""
    if if_at is None:
        return None
    if isinstance(if_at, Place | numpy.void):
        return numpy.array([as_revision(if_at)[1:]] * count, CONDITION)
    if len(if_at) != count:
        raise ValueError(f"if_at had {len(if_at)} values, expected one Place, or {count}")
    if isinstance(if_at, numpy.ndarray) and {"epoch", "sequence"} <= set(if_at.dtype.names or ()):
        wrong = (if_at["epoch"] < 0) | (if_at["epoch"] >= INT64) | (if_at["sequence"] < -1)
        if wrong.any():
            raise ValueError(f"if_at was {if_at[wrong][0]}, {_EXPECTED}")
        found = numpy.empty(count, CONDITION)
        found["epoch"], found["sequence"] = if_at["epoch"], if_at["sequence"]
        return found
    return numpy.array([ANYWHERE if each is None else as_revision(each)[1:] for each in if_at], CONDITION)


def as_ttl_ns(ttl: Any, count: int) -> NDArray[numpy.int64] | None:
    """Return int64[count], ns, from seconds, one value for all or a column; None if not given. Raises ValueError."""
    if ttl is None:
        return None
    if isinstance(ttl, timedelta):
        ttl = ttl.total_seconds()
    seconds = numpy.asarray(ttl, float)  # None becomes NaN
    if seconds.shape not in ((), (count,)):
        raise ValueError(f"ttl had shape {seconds.shape}, expected one number, or {count}")
    seconds = numpy.broadcast_to(seconds, count)
    ends = ~numpy.isnan(seconds)
    wrong = ends & ~((seconds > 0) & (seconds * 1e9 <= MOST_TTL_NS))
    if wrong.any():
        raise ValueError(f"ttl was of {seconds[wrong][0]} s, expected above 0 and up to {MOST_TTL_NS // 10**9} s")
    found = numpy.zeros(count, numpy.int64)
    found[ends] = numpy.ceil(seconds[ends] * 1e9)
    return found


def as_place(slice_id: int, epoch: int, sequence: int) -> Place:
    """Return the actual or expected place of a topic's newest message."""
    return Place(slice_id, epoch, sequence) if epoch else NOWHERE


def error_of(
    topic: bytes, if_at: Place | None, place: PlaceRow, why: Sequence[str], places: Places | None = None
) -> RefusedError:
    """Return the error of a refused put. `place`: its place in the answer. `why`: reasons of its request."""
    slice_id, _, code, epoch, sequence = place
    if code == CONFLICT:
        return ConflictError(topic, if_at, as_place(slice_id, epoch, sequence), places)
    return RefusedError(topic, f"refused: {why[code - REFUSED]}", places)
