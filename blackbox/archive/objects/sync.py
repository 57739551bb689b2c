"""Copy closed days to an object store: checked, resumable, never overwriting or deleting anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from blackbox.archive.files.day import LOCK, MANIFEST, day_end_ns, recorded_days
from blackbox.archive.files.format import MarkKind
from blackbox.archive.files.marks import marks_of
from blackbox.archive.objects.store import FILES, Store, StoredFile, StoredFiles, digest_of, local_files
from blackbox.archive.recording import Recording
from blackbox.errors import JournalError
from blackbox.native.system.file_lock import owner_of

_TRIES: Final = 2
"""Attempts to write an object whose bytes come back changed."""


class Outcome(StrEnum):
    """Result for a day."""

    COPIED = "copied"
    PRESENT = "present"
    """The store has it already."""
    OPEN = "open"
    """It is being recorded, or its session is not over: nothing was copied."""
    DIFFERS = "differs"
    """The store has other files under its name, which were left as they are."""


class SyncedDay(NamedTuple):
    """Result for one day, with its size."""

    day: Path
    name: str
    """FEED/DATE in the store."""
    outcome: Outcome
    files: int
    bytes: int
    """Size of the files."""
    uploaded: int
    """Bytes that were sent now; a resumed copy sends less than `bytes`."""


def days_at(directory: Path) -> list[Path]:
    """Return the days in a directory of recordings, of a feed, or of one day. Raises JournalError if it has no day."""
    if (directory / MANIFEST).exists():
        return [directory.absolute()]  # "." has no name
    feeds = sorted(path for path in directory.glob("*") if path.is_dir()) if directory.is_dir() else []
    found = recorded_days(directory) or [day for feed in feeds for day in recorded_days(feed)]
    if not found:
        raise JournalError(
            f"{directory} has no recorded day, expected a directory of recordings, of a feed or of a day"
        )
    return found


def is_closed(recording: Recording, now_ns: int) -> bool:
    """Return True if nothing more will be recorded in a day.

    Its session is over, and no recorder of the feed runs, or each slice has ended its last file or begun a later day.
    """
    if now_ns < day_end_ns(recording.feed, recording.date):
        return False
    directory = recording.path.parent
    if owner_of(directory / LOCK) is None:
        return True
    later = [Recording.open(day) for day in recorded_days(directory) if day.name > recording.path.name]
    goes_on = {slice_id for day in later for slice_id, _ in day.segments.of() if day.segments.filled(slice_id)}
    for slice_id, _ in recording.segments.of():
        filled = recording.segments.filled(slice_id)
        kinds = [mark.kind for mark in marks_of(filled[-1:])]
        if filled and slice_id not in goes_on and kinds[-1:] != [MarkKind.SEGMENT_END]:
            return False
    return True


def sync(directory: Path, store: Store, progress: Callable[[int], object] = lambda _: None) -> Iterator[SyncedDay]:
    """Copy each closed day that the store lacks; yield the result for each day, in order.

    An object is read back and compared before the day's list of files and then its manifest are written, so that
    readers never see a part of a day. A later run resumes an interrupted one. `progress` is called with bytes sent.

    Raises JournalError naming the day if one cannot be read or the store fails; the days before it are whole.
    """
    for day in days_at(directory):
        recording = Recording.open(day)
        name = f"{recording.feed.name}/{day.name}"
        if not is_closed(recording, time.time_ns()):
            yield SyncedDay(day, name, Outcome.OPEN, 0, 0, 0)
            continue
        try:
            yield _sync_day(day, name, store, progress)
        except OSError as error:
            raise JournalError(f"{day}: {error.strerror or error} ({error.filename})") from error


def _sync_day(day: Path, name: str, store: Store, progress: Callable[[int], object]) -> SyncedDay:
    files = local_files(day)
    before = _stats(files)
    size = sum(each for each, *_ in before.values())
    there = store.files_of(name)
    if there is not None:
        is_same = {each: size for each, (size, *_) in before.items()} == {k: v.size for k, v in there.files.items()}
        is_same = is_same and digest_of(files[MANIFEST]) == there.files[MANIFEST]
        outcome = Outcome.PRESENT if is_same else Outcome.DIFFERS
        return SyncedDay(day, name, outcome, len(there.files), there.bytes, 0)
    has, listed, uploaded = store.sizes(name), dict[str, StoredFile](), 0
    for each in sorted(files, key=lambda each: each == MANIFEST):
        listed[each] = digest_of(files[each])
        if each == MANIFEST:
            continue
        if has.get(each) != listed[each].size or store.digest(f"{name}/{each}") != listed[each].sha256:
            _copy(files[each], f"{name}/{each}", listed[each], store, progress)
            uploaded += listed[each].size
    if _stats(local_files(day)) != before:
        raise JournalError(f"{day} was changed while it was copied: run it again")
    store.write(f"{name}/{FILES}", msgspec.json.format(msgspec.json.encode(StoredFiles(listed)), indent=2) + b"\n")
    store.write(f"{name}/{MANIFEST}", files[MANIFEST].read_bytes())
    if store.files_of(name) != StoredFiles(listed) or store.digest(f"{name}/{MANIFEST}") != listed[MANIFEST].sha256:
        raise JournalError(f"{store.uri}/{name}: the store returns other bytes than were written")
    return SyncedDay(day, name, Outcome.COPIED, len(files), size, uploaded + listed[MANIFEST].size)


def _stats(files: Mapping[str, Path]) -> dict[str, tuple[int, int, int]]:
    """Return size, inode and time of the last change of each file. Raises OSError."""
    found = ((name, path.stat()) for name, path in files.items())
    return {name: (stat.st_size, stat.st_ino, stat.st_mtime_ns) for name, stat in found}


def _copy(file: Path, name: str, expected: StoredFile, store: Store, progress: Callable[[int], object]) -> None:
    """Write an object and read it back."""
    for _ in range(_TRIES):
        store.upload(file, name, progress)
        if store.digest(name) == expected.sha256:
            return
    raise JournalError(f"{store.uri}/{name}: the store returns other bytes than were written, {_TRIES} times")
