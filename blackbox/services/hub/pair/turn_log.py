"""Turns of a hub of a pair in its journals: appended by it, or read for a peer that lacks them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from blackbox.block.form.block import Block
from blackbox.errors import JournalError
from blackbox.services.hub.pair.entries import digest_of
from blackbox.services.hub.pair.protocol import Entry, Part
from blackbox.services.hub.server.history import History
from blackbox.services.hub.server.judge import Turn
from blackbox.services.hub.server.notes import head_of, snapshot_part

_MOST_BYTES: Final = 4 << 20
"""Maximum size of the entries in one answer to a passive hub."""
_MOST_DIGESTS: Final = 1_000


class ConflictError(Exception):
    """The peer has another turn with the same number."""


class Reader(Protocol):
    """Entries of the journals from a turn on."""

    def take(self, most_bytes: int) -> list[Entry]:
        """Return the next entries, at least one and at most `most_bytes` bytes; an empty list at the end."""


class Journals(Protocol):
    """Journals of a hub of a pair. An error of a method ends the hub."""

    def begin_epoch(self, epoch: int) -> None:
        """Publish in another epoch from now on."""

    def entry_of(self, turn: Turn) -> Entry:
        """Return the entry that a turn appends."""

    def blocks_of(self, entry: Entry) -> list[list[Block]]:
        """Return the blocks of each part of an entry. Raises BlockError if they are not what was sent."""

    def following(self, slice_id: int) -> int:
        """Return the sequence of the next message of a slice."""

    def append(self, part: Part, blocks: Sequence[Block]) -> None:
        """Append the note and some blocks of a part."""

    def sync(self) -> None:
        """Sync appended data to the disk."""

    def day(self) -> Path:
        """Return the oldest day in which some slice is written."""

    def delete_before(self, day: Path) -> None:
        """Delete earlier days that exceed the retention."""

    def entries(self, first: int) -> Reader:
        """Return the entries from a turn on. Raises TooFarBehindError, JournalError."""


class TurnLog:
    """The turns that the journals have. Attributes: `digests`, by turn, of recent turns."""

    def __init__(self, journals: Journals, history: History, newest: int, digest: bytes) -> None:
        """`newest`, `digest`: the last complete turn, and its digest."""
        self._journals = journals
        numbers = [each.notes.numbers for each in history.parts_from(0, newest)]
        self._noted = max((int(each.max()) for each in numbers if len(each)), default=0)
        """The last turn whose note slice 0 had at the start."""
        self.digests: dict[int, bytes] = {newest: digest}
        self._snapshot: tuple[int, Path] | None = None
        """First turn of the snapshot that is being appended, and the oldest day that was written before it."""
        self._reader: Reader | None = None
        """Reader of the entries for a peer that catches up."""
        self._given = 0
        """The last turn that was read from it."""

    def append(self, entry: Entry, blocks: list[list[Block]]) -> bytes:
        """Append what the journals lack of an entry; return its digest. Raises JournalError if it does not fit.

        Days are deleted once a later snapshot is on the disk.
        """
        journals, note = self._journals, entry.parts[0].note
        part = snapshot_part(note)
        begins_snapshot = part is not None and part[0] == 0
        if begins_snapshot or head_of(note)["first"] == entry.number:
            journals.sync()  # a power cut then loses nothing before the snapshot, or before the run
        if begins_snapshot:
            self._snapshot = entry.number, journals.day()
        for each, mine in zip(entry.parts, blocks, strict=True):
            following = journals.following(each.slice_id)
            lacking = [block for block in mine if block.sequence >= following]
            if lacking and lacking[0].sequence != following:
                raise JournalError(
                    f"turn {entry.number} began at {lacking[0].sequence} of slice {each.slice_id}, expected {following}"
                )
            if lacking or (not mine and entry.number > self._noted):
                journals.append(each, lacking)
        self.digests[entry.number] = digest = digest_of(entry)
        if len(self.digests) > _MOST_DIGESTS:
            del self.digests[next(iter(self.digests))]
        if part is not None and self._snapshot is not None and part[0] == part[1] - 1:
            first, day = self._snapshot
            if first == entry.number - part[0]:
                journals.sync()
                journals.delete_before(day)
        return digest

    def after(self, newest: int, digest: bytes) -> list[Entry]:
        """Return some entries after a turn. Raises JournalError, or ConflictError if that turn has another digest."""
        found = self._reader.take(_MOST_BYTES) if self._reader is not None and self._given == newest else []
        if not found:
            self._reader = self._journals.entries(max(newest, 1))
            if newest:
                (first,) = self._reader.take(0)
                if digest not in (b"", digest_of(first)):
                    raise ConflictError
            found = self._reader.take(_MOST_BYTES)
        self._given = max([newest, *(each.number for each in found)])
        return found

    def end_reading(self) -> None:
        """Close files of deleted days that a reader keeps open."""
        self._reader = None
