"""Read and write `closed.json`: the totals and the number of segments of each slice when its journal was last closed.

A missing segment is found by comparing with it.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

import msgspec

from blackbox.archive.files.day import MOST_JSON_BYTES, replace_file
from blackbox.archive.files.marks import Totals
from blackbox.documents import Decoder
from blackbox.errors import JournalError
from blackbox.regular_file import read_regular

CLOSED: Final = "closed.json"
_changes: Final = threading.Lock()
"""Held while the file is read, changed and replaced."""
os.register_at_fork(after_in_child=_changes._at_fork_reinit)  # type: ignore[attr-defined]  # no public name


class ClosedSlice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Totals of a slice's journal up to its last SEGMENT_END mark."""

    records: int = 0
    messages: int = 0
    marks: int = 0
    chain: str = ""
    """16 hex digits; empty if no segment has been closed."""
    segments: int = 0
    """Number of segments that are not empty. They are numbered from 0."""

    @property
    def totals(self) -> Totals | None:
        """Totals up to the last SEGMENT_END mark; None before the first one."""
        if not self.chain:
            return None
        word = int(self.chain, 16)
        return Totals(self.records, self.messages, self.marks, word - (1 << 64) if word >> 63 else word)


_CLOSED_SLICES: Final = Decoder[dict[int, ClosedSlice]]("json", dict[int, ClosedSlice])


def read_closed(day: Path) -> dict[int, ClosedSlice]:
    """Return the entry of each slice that has records.

    Raises JournalError if the file is damaged.
    """
    path = day / CLOSED
    try:
        known = _CLOSED_SLICES.decode(read_regular(path, MOST_JSON_BYTES))
        for each in known.values():
            _ = each.totals
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise JournalError(f"{path} is damaged: {error}") from error
    return known


def note_closed(day: Path, slice_id: int, totals: Totals, segments: int) -> None:
    """Store, durably, a slice's totals after one of its segments was closed. Raises OSError."""
    chain = f"{totals.chain % (1 << 64):016x}"
    closed = ClosedSlice(
        records=totals.records, messages=totals.messages, marks=totals.marks, chain=chain, segments=segments
    )
    with _changes:
        _write(day, {**_known(day), slice_id: closed}, is_durable=True)


def note_segments(day: Path, slice_id: int, segments: int) -> None:
    """Store the number of a slice's segments that are not empty. Raises OSError."""
    with _changes:
        known = _known(day)
        closed = msgspec.structs.replace(known.get(slice_id, ClosedSlice()), segments=segments)
        _write(day, {**known, slice_id: closed}, is_durable=False)


def _known(day: Path) -> dict[int, ClosedSlice]:
    """Return the stored entries. Entries in a damaged file are lost and not checked any more."""
    try:
        return read_closed(day)
    except JournalError:
        return {}


def _write(day: Path, document: dict[int, ClosedSlice], *, is_durable: bool) -> None:
    text = msgspec.json.format(msgspec.json.encode(dict(sorted(document.items()))), indent=2) + b"\n"
    replace_file(day / CLOSED, day / f"{CLOSED}.{os.getpid()}.new", text, is_durable=is_durable)
