"""What a day held when its journals were last closed: `closed.json`, which shows that a segment went missing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from blackbox.archive.day import sync_directory
from blackbox.archive.marks import Totals
from blackbox.errors import JournalError

CLOSED: Final = "closed.json"


class ClosedSlice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a slice's journal held up to a SEGMENT_END."""

    records: int
    messages: int
    marks: int
    chain: str
    """16 hex digits."""


def read_closed(day: Path) -> dict[int, Totals]:
    """Return what each slice held when a segment of it was last closed; slices that never were have none.

    Raises JournalError when the file is damaged.
    """
    path = day / CLOSED
    try:
        known = msgspec.json.decode(path.read_bytes(), type=dict[int, ClosedSlice])
        return {
            slice_id: Totals(each.records, each.messages, each.marks, _signed(int(each.chain, 16)))
            for slice_id, each in known.items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, msgspec.DecodeError) as error:
        raise JournalError(f"{path} is damaged: {error}") from error


def note_closed(day: Path, slice_id: int, totals: Totals) -> None:
    """Write down, durably, what a slice holds now that a segment of it is closed. Raises OSError.

    A damaged file is begun anew: what it held of other slices is no longer checked.
    """
    try:
        known = read_closed(day)
    except JournalError:
        known = {}
    known[slice_id] = totals
    document = {
        number: ClosedSlice(
            records=each.records, messages=each.messages, marks=each.marks, chain=f"{each.chain % (1 << 64):016x}"
        )
        for number, each in sorted(known.items())
    }
    fresh = day / f"{CLOSED}.{os.getpid()}.new"
    with fresh.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(day / CLOSED)
    sync_directory(day)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
