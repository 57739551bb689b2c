"""Delete recorded days beyond the retention: oldest first, whole days, never the newest.

In: a feed's directory, with the stored positions of named consumers. Out: `deleted.json`, which lists what was deleted,
and `dropped.json`, which lists messages that were dropped from days that stay. It has its own thread, because this
takes time.
"""

from __future__ import annotations

import datetime
import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec

from blackbox.archive.consumer_positions import CONSUMERS, Kept, owned_consumers
from blackbox.archive.files.codec import Compression
from blackbox.archive.files.day import (
    Lock,
    exchange_directories,
    make_directory,
    read_document,
    recorded_days,
    session_date,
    sync_directory,
    write_document,
)
from blackbox.archive.files.dropped import Dropped
from blackbox.archive.maintain.drop import Dropper
from blackbox.archive.maintain.retention import Retention
from blackbox.archive.recording import Recording
from blackbox.block.position import Number, Position
from blackbox.documents import Decoder
from blackbox.errors import BlackBoxError, JournalError
from blackbox.feed.feed import Feed
from blackbox.native.system.limits import start_thread

log = logging.getLogger("blackbox")

_DELETED: Final = "deleted.json"
_GOING: Final = ".deleted"
"""Directory for days while their files are removed."""
_MOST_BYTES: Final = 64 << 20
_MOST_EPOCHS: Final = 1_024
_LOOK_S: Final = 60.0
_PATIENCE_S: Final = 10.0


class Deleted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of `deleted.json`: what was deleted of a feed's recordings."""

    last_day: str = ""
    """Latest deleted day; empty: none."""
    slices: dict[Number, list[Position]] = {}
    """By slice, the last (epoch, sequence) of each deleted epoch, in order. Only the latest epochs are kept."""

    @classmethod
    def read(cls, directory: Path) -> Deleted:
        """Read a feed's `deleted.json`. Raises JournalError if it cannot be read."""
        return read_document(directory / _DELETED, _DECODER, _MOST_BYTES) or cls()


_DECODER: Final = Decoder[Deleted]("json", Deleted)


class Deleter:
    """Deletes days of one feed beyond the retention, in a thread, from `open` to `close`."""

    def __init__(
        self,
        directory: Path,
        feed: Feed,
        keep: Retention,
        first_kept: Callable[[], Path | None] = lambda: None,
        compression: Compression = "none",
    ) -> None:
        """`first_kept` returns the first day that must not be changed now; None: any may be changed."""
        self._directory, self._feed, self._keep, self._first_kept = directory, feed, keep, first_kept
        self._compression: Compression = compression
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="blackbox-retention", daemon=True)

    def open(self) -> None:
        """Start the thread. May be called again."""
        if self._thread.ident is None:
            start_thread(self._thread)

    def close(self) -> bool:
        """Stop after the current day. Return False if the thread still runs after 10 s."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(_PATIENCE_S)
        return not self._thread.is_alive()

    def release_later(self, lock: Lock | None) -> None:
        """Close a lock when the thread has ended."""

        def release() -> None:
            self._thread.join()
            if lock is not None:
                lock.close()

        start_thread(threading.Thread(target=release, name="blackbox-retention-end", daemon=True))

    def look(self) -> list[str]:
        """Delete the days beyond the retention, and return their names."""
        self._clear()
        dates = {day: date for day in recorded_days(self._directory) if (date := _date_of(day)) is not None}
        days = list(dates)
        sizes = [sum(path.stat().st_size for path in day.rglob("*") if path.is_file()) for day in days]
        gone = []
        kept = self._first_kept()
        for number, day in enumerate(days[:-1]):
            if self._ending.is_set() or (kept is not None and day >= kept):
                break
            age, size = self._age_of(dates[day]), sum(sizes[number:])
            is_over = _exceeds(age, self._keep.days) or _exceeds(size, self._keep.bytes)
            is_too_much = _exceeds(age, self._keep.most_days) or _exceeds(size, self._keep.most_bytes)
            if not is_over and not is_too_much:
                break
            ends = ends_of(day)
            needing = [name for name, each in self._consumers().items() if needs(each.slices, ends)]
            if needing and not is_too_much:
                break
            if needing:
                log.warning("deleting %s, which consumers still need: %s", day, ", ".join(needing))
            self._delete(day, ends)
            gone.append(day.name)
        if self._keep.drops:
            self._drop(days[len(gone) :], kept)
        return gone

    def _drop(self, days: list[Path], kept: Path | None) -> None:
        """Drop messages from days that are over, once for each new one of these."""
        over = [day for day in days[:-1] if kept is None or day < kept]
        was, rule = Dropped.read(self._directory), (self._keep.messages_per_topic, self._keep.only_wanted)
        if not over or (was.through, was.rule) == (over[-1].name, rule):
            return
        dropper = Dropper(rule[0], self._wanted() if rule[1] else (b"",))
        for day in reversed(days):
            if self._ending.is_set():
                return
            if day not in over:
                dropper.count(day)
                continue
            fresh = self._directory / _GOING / day.name
            if dropped := dropper.rewrite(day, fresh, self._compression):
                was = was.joined(dropped, Deleted.read(self._directory).slices)
                was.write(self._directory)  # first: after a kill in between nothing is missing that is not noted
                exchange_directories(day, fresh)
            self._clear()
        msgspec.structs.replace(was, through=over[-1].name, rule=rule).write(self._directory)

    def _wanted(self) -> tuple[bytes, ...]:
        """Return prefixes of the topics that consumers want."""
        wanted = [each.prefixes or (b"",) for each in self._consumers().values()]
        return tuple(dict.fromkeys(chain.from_iterable(wanted)))

    def _run(self) -> None:
        while True:
            try:
                for day in self.look():
                    log.info("%s of %s was deleted", day, self._directory)
            except (BlackBoxError, OSError) as error:
                log.error("days of %s beyond the retention could not be deleted: %s", self._directory, error)
            except Exception:  # a late deletion must not stop the process
                log.exception("days of %s beyond the retention could not be deleted", self._directory)
            if self._ending.wait(_LOOK_S):
                return

    def _age_of(self, date: datetime.date) -> int:
        """Return the age of a day in session dates; the current one has age 1."""
        return (session_date(self._feed, time.time_ns()) - date).days + 1

    def _consumers(self) -> dict[str, Kept]:
        place = self._directory / CONSUMERS
        found = [(name, file.read()) for name, file in owned_consumers(place).items()] if place.is_dir() else []
        return {name: kept for name, kept in found if kept is not None}

    def _delete(self, day: Path, ends: Mapping[int, list[Position]]) -> None:
        """Store what is deleted, then delete it. After a kill in between, the next run deletes it."""
        slices = dict(Deleted.read(self._directory).slices)
        for slice_id, positions in ends.items():
            last = dict(slices.get(slice_id, []))
            for epoch, sequence in positions:
                last[epoch] = max(sequence, last.get(epoch, 0))
            slices[slice_id] = [Position(*each) for each in sorted(last.items())[-_MOST_EPOCHS:]]
        write_document(self._directory / _DELETED, Deleted(day.name, slices))
        make_directory(self._directory / _GOING)
        day.rename(self._directory / _GOING / day.name)
        sync_directory(self._directory)
        self._clear()

    def _clear(self) -> None:
        if (self._directory / _GOING).is_dir():
            shutil.rmtree(self._directory / _GOING)


def _date_of(day: Path) -> datetime.date | None:
    """Return the date that a day's directory is named after; None for a renamed copy."""
    try:
        return datetime.date.fromisoformat(day.name)
    except ValueError:
        return None


def _exceeds(value: int, bound: int | None) -> bool:
    return bound is not None and value > bound


def ends_of(day: Path) -> dict[int, list[Position]]:
    """Return the last (epoch, sequence) of each epoch in a day, by slice; empty if the day cannot be read."""
    ends: dict[int, list[Position]] = {}
    try:
        recording = Recording.open(day)
    except JournalError:
        return ends  # unreadable
    for slice_id, segments in recording.segments.of():
        last: dict[int, int] = {}
        for segment in segments:
            for entry in segment.entries[segment.entries["records"] > 0]:
                epoch = int(entry["epoch"])
                last[epoch] = max(last.get(epoch, 0), int(entry["max_sequence"]))
        ends[slice_id] = [Position(*each) for each in sorted(last.items())]
    return ends


def needs(positions: Mapping[int, Position], ends: Mapping[int, list[Position]]) -> bool:
    """Return True if a consumer of these slices has not passed all of a day."""
    return any(last and slice_id in positions and positions[slice_id] <= last[-1] for slice_id, last in ends.items())
