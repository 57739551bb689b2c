"""Read parts of one slice's segments, as a plan has told them: nobody looks at an index again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.check import FAULT_TEXT, Fault
from blackbox.errors import JournalError
from blackbox.journal.blocks import unpack
from blackbox.journal.columns import check_records
from blackbox.journal.day import as_journal_error, segment_path
from blackbox.journal.layout import CODEC_NONE, RECORD, RECORD_HEAD_BYTES, record_bytes
from blackbox.journal.mapping import Mapping
from blackbox.journal.record import next_record, walk
from blackbox.journal.segment import NO_GOOD_RECORD, Damage

_AT_ONCE: Final = 1_024
"""Records that are looked at together, at most."""
_BYTES_AT_ONCE: Final = 8 << 20
"""No more of them once these have that many bytes, unpacked."""
_SLICE: Final = int(Fault.SLICE)
_BODY: Final = int(Fault.BODY_CHECKSUM)


class Span(NamedTuple):
    """Bytes `[start, stop)` of a segment: whole records."""

    segment: int
    start: int
    stop: int


class Records(NamedTuple):
    """Good records of one segment. Addresses are good as long as this is kept."""

    path: Path
    """The segment."""
    heads: NDArray[Any]
    """RECORD[n]."""
    places: NDArray[numpy.int64]
    """int64[n]: where each record begins in the segment."""
    addresses: NDArray[numpy.int64]
    """int64[n]: where each record lies in memory."""
    bodies: NDArray[numpy.int64]
    """int64[n]: where each body lies, unpacked and checked."""
    kept: tuple[object, ...]
    """What they lie in."""


def read_records(
    day: Path,
    slice_id: int,
    key_bytes: int,
    spans: Iterable[Span],
    wanted: Callable[[NDArray[Any]], NDArray[numpy.bool_]],
    tell: Callable[[Damage], None],
) -> Iterator[Records]:
    """The records of a day's slice in these spans, one segment at a time, in order; checked, damaged ones left out.

    `wanted(heads)` says which records may matter; bodies of others are not touched. `tell` is called with what cannot
    be read, and may raise.

    Raises JournalError when a segment is not there, or shorter than it was.
    """
    mapped: tuple[int, Mapping] | None = None
    for span in spans:
        path = segment_path(day, slice_id, span.segment)
        if mapped is None or mapped[0] != span.segment:
            mapped = span.segment, _mapped(path)
        memory = mapped[1]
        if memory.size < span.stop:
            raise JournalError(f"{path} had {memory.size} bytes, expected at least {span.stop}: it has lost records")
        yield from _read_span(path, memory, span, slice_id, key_bytes, wanted, tell)


def _mapped(path: Path) -> Mapping:
    try:
        return Mapping(path)
    except OSError as error:
        raise as_journal_error(error, f"segment {path} cannot be read") from error


def _read_span(
    path: Path,
    memory: Mapping,
    span: Span,
    slice_id: int,
    key_bytes: int,
    wanted: Callable[[NDArray[Any]], NDArray[numpy.bool_]],
    tell: Callable[[Damage], None],
) -> Iterator[Records]:
    at = span.start
    while at < span.stop:
        begun = at
        heads, places = numpy.empty(_AT_ONCE, RECORD), numpy.empty(_AT_ONCE, numpy.int64)
        found, at = walk(memory.address, span.stop, at, places.ctypes.data, heads.ctypes.data, _AT_ONCE)
        sizes = numpy.maximum(heads["body_bytes"][:found], heads["stored_bytes"][:found]).astype(numpy.int64)
        few = 1 + int(numpy.searchsorted(numpy.cumsum(sizes), _BYTES_AT_ONCE))
        if few < found:
            found, at = few, int(places[few])
        elif found < _AT_ONCE and at < span.stop:
            following = next_record(memory.address, span.stop, at + 1)
            following = span.stop if following < 0 else following
            tell(Damage(path, at, following - at, NO_GOOD_RECORD))
            at = following
        chosen = wanted(heads[:found])
        if chosen.any():
            yield _checked(path, memory, heads[:found][chosen], places[:found][chosen], slice_id, key_bytes, tell)
        memory.release(begun, at)


def _checked(
    path: Path,
    memory: Mapping,
    heads: NDArray[Any],
    places: NDArray[numpy.int64],
    slice_id: int,
    key_bytes: int,
    tell: Callable[[Damage], None],
) -> Records:
    addresses = places + memory.address
    bodies = addresses + RECORD_HEAD_BYTES
    sizes = heads["stored_bytes"].astype(numpy.int64)
    kept: list[object] = [memory]
    faults = numpy.where(heads["slice"] == slice_id, 0, _SLICE)
    reasons: dict[int, str] = {}
    file = memory.array()
    for row in numpy.flatnonzero(heads["codec"] != CODEC_NONE).tolist():
        start = int(places[row]) + RECORD_HEAD_BYTES
        stored = file[start : start + int(sizes[row])]
        try:
            body = unpack(int(addresses[row]), int(heads["codec"][row]), stored, int(heads["body_bytes"][row]))
        except JournalError as error:
            if isinstance(error.__cause__, ImportError):
                raise
            faults[row], reasons[row] = _BODY, str(error)
            continue
        bodies[row], sizes[row] = body.ctypes.data, len(body)
        kept.append(body)
    check_records(addresses, bodies, sizes, key_bytes, faults)
    for row in numpy.flatnonzero(faults).tolist():
        what = reasons.get(row) or FAULT_TEXT[Fault(int(faults[row]))]
        lost = int(heads["count"][row]) - int(heads["first_row"][row])
        tell(Damage(path, int(places[row]), record_bytes(int(heads["stored_bytes"][row])), what, lost))
    good = faults == 0
    if not good.all():
        heads, places, addresses, bodies = heads[good], places[good], addresses[good], bodies[good]
    return Records(path, heads, places, addresses, bodies, tuple(kept))
