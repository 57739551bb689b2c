"""The journals of a recorder or an outbox, one for each slice, with a directory for each day."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from blackbox.archive.files.day import MANIFEST, Lock, Manifest, day_end_ns, make_directory, recorded_days, session_date
from blackbox.archive.files.synced import SyncedFile, sync_left
from blackbox.archive.maintain.deleter import Deleter
from blackbox.archive.record.crash_recovery import recover_day
from blackbox.archive.record.journal_state import JournalState
from blackbox.archive.record.journal_writer import WRITER_NEEDS, JournalWriter
from blackbox.archive.record.keeper import Keeper, in_words
from blackbox.archive.record.settings import JournalSettings
from blackbox.archive.serve.server import ArchiveStatistics, archive_of
from blackbox.block.batch.block_handler import BlockHandlerAt
from blackbox.errors import BlackBoxError, JournalError
from blackbox.feed.feed import Feed
from blackbox.life import Life
from blackbox.native.system.limits import Needs, check_limits

log = logging.getLogger("blackbox")

_DAYS_TO_RECOVER = 2
"""Newest days to recover. A recorder may have been killed before midnight and started after it."""

_left_behind: list[JournalWriter] = []
"""Journals whose threads hang because the disk does not answer. Their memory must stay."""


class JournalsLife(Life):
    """Life cycle of a feed's journals."""

    NEW = "new", "open", "closing"
    """Nothing is opened. `open` leads to OPEN, `close` to CLOSING."""
    OPEN = "open", "closing"
    """Blocks are recorded, once `open` has returned and while `error` is None. `close` leads to CLOSING."""
    CLOSING = "closing", "closed"
    """Threads end and files are closed. CLOSED follows, even if a disk does not answer."""
    CLOSED = "closed"
    """Final."""


class Journals:
    """A feed's journals, their keeper, and optionally an archive server and a thread that deletes old days.

    Blocks are passed to `handler(slice_id)` without the GIL, by one thread at a time for each slice.

    Attributes: `life`; `cut_bytes`, bytes of torn tails that were cut; `directory`, the feed's.
    """

    def __init__(
        self,
        feed: Feed,
        directory: str | os.PathLike[str],
        settings: JournalSettings,
        on_failure: Callable[[], object],
        *,
        acknowledge: Callable[[int, bytes], None] | None = None,
        is_outbox: bool = False,
    ) -> None:
        """Nothing is opened before `open`. `on_failure`: see `Keeper`.

        In an outbox, a block is written to the file before its handler returns, and each day has the ends of all keys.
        `acknowledge` is called with a slice and the acknowledgement for its publisher.
        """
        self.feed = feed
        self.directory = Path(directory) / feed.name
        self.cut_bytes = 0
        self._settings, self._acknowledge, self._is_outbox = settings, acknowledge, is_outbox
        retention, has_limits = settings.retention, settings.retention.has_limits
        self._deleter = (
            Deleter(self.directory, feed, retention, self._first_kept, settings.compression) if has_limits else None
        )
        self._archive = (
            archive_of(self.directory, feed, settings.serve, self._is_recording, has_limits) if settings.serve else None
        )
        self._before: Path | None = None
        self._synced_file = SyncedFile()
        self._lock: Lock | None = None
        self._writers: dict[int, JournalWriter] = {}
        self.life = JournalsLife.NEW
        self.keeper = Keeper(self.directory, settings, on_failure)

    @property
    def error(self) -> JournalError | None:
        """The first error."""
        return self.keeper.error

    def open(self) -> None:
        """Lock and open the files. After an error call `close`.

        Raises JournalError naming file and reason if they cannot be opened or another recorder owns them, LimitError,
        and EndpointError if the archive cannot be bound.
        """
        self._enter(JournalsLife.OPEN)
        try:
            slices = self.feed.slices_for(b"")
            check_limits(f"recorder of feed {self.feed.name!r}", Needs(1, 1), *[WRITER_NEEDS] * len(slices))
            make_directory(self.directory)
            self._lock = Lock(self.directory)
            if self._is_outbox:
                self._synced_file.open(self.directory)
            for day in recorded_days(self.directory)[-_DAYS_TO_RECOVER:]:
                self.cut_bytes += recover_day(day)
            if self._is_outbox and self._settings.fsync != "never":
                sync_left(self.directory, slices)
            for slice_id in slices:
                self._writers = {**self._writers, slice_id: self._make_writer(slice_id)}
            self.keeper.start(self._writers.values(), self._acknowledge)
            if not self._is_outbox:
                self.begin_deleting()
            if self._archive is not None:
                self._archive.open()
        except BlackBoxError:
            raise
        except OSError as error:
            raise JournalError(in_words(error, self.directory)) from error

    def begin_deleting(self, before: Path | None = None) -> None:
        """Start deleting days beyond the retention, or only those before `before`. An outbox calls it after reading."""
        self._before = before
        if self._deleter is not None:
            self._deleter.open()

    def _first_kept(self) -> Path:
        return self.day() if self._before is None else min(self.day(), self._before)

    def handler(self, slice_id: int) -> BlockHandlerAt:
        """Return the handler for the blocks of a slice."""
        return self._writers[slice_id].handler

    def sync(self, slice_id: int) -> None:
        """Sync everything that a slice has written so far. Raises JournalError."""
        try:
            self._writers[slice_id].sync(what_is_written=True)
        except OSError as error:
            raise JournalError(in_words(error, self.directory)) from error

    def day(self) -> Path:
        """Return the oldest day with an open segment."""
        return min(writer.day for writer in self._writers.values())

    def failure(self) -> str:
        """Return the error that stopped recording; otherwise an empty string."""
        found = [str(self.error)] if self.error else [writer.error for writer in self._writers.values()]
        return next(filter(None, found), "")

    def total(self) -> JournalState:
        """Return the counters of all slices, summed."""
        return JournalState.sum_of([writer.state for writer in self._writers.values()] or [JournalState()])

    @property
    def slices(self) -> int:
        """Number of slices with a journal."""
        return len(self._writers)

    @property
    def archive_statistics(self) -> ArchiveStatistics | None:
        """Statistics of the archive; None if there is no archive."""
        return self._archive.statistics() if self._archive else None

    def close(self, are_threads_done: Callable[[], bool]) -> None:
        """End the threads, then close the files, once. `are_threads_done`: True if the slice threads have ended."""
        if self.life is JournalsLife.CLOSED:
            return
        self._enter(JournalsLife.CLOSING)
        try:
            if self._deleter is not None and not self._deleter.close():
                log.warning("days of %s are still being deleted: the directory stays locked until then", self.directory)
                self._deleter.release_later(self._lock)
                self._lock = None
            self._close_journals(are_threads_done)
        finally:
            if self._archive is not None:
                self._archive.close()  # last, so that requests until now get an answer
            self._enter(JournalsLife.CLOSED)

    def _enter(self, life: JournalsLife) -> None:
        """Change to `life`. Raises RuntimeError for an invalid transition."""
        self.life = self.life.enter(life, f"journals of feed {self.feed.name!r}")

    def _is_recording(self) -> bool:
        return any(writer.is_recording for writer in self._writers.values())

    def _make_writer(self, slice_id: int) -> JournalWriter:
        note_synced = self._synced_file.note if self._is_outbox else None
        given = self.feed.key_rule, self._settings, self.keeper.pipe, self._day
        return JournalWriter(slice_id, *given, is_outbox=self._is_outbox, note_synced=note_synced)

    def _day(self, now_ns: int) -> tuple[Path, int]:
        date = session_date(self.feed, now_ns)
        if self._is_outbox and (days := recorded_days(self.directory)):  # days are read in date order
            today, date = date, max(date, Manifest.read(days[-1]).date)
            if date > today and not self._writers:
                log.warning(
                    "%s is later than today, because the clock was ahead: messages are added to this day", days[-1]
                )
        day = self.directory / date.isoformat()
        make_directory(day)
        if (day / MANIFEST).exists():
            Manifest.read(day).check_feed(self.feed, day)
        else:
            Manifest.new(self.feed, date, now_ns).write(day)
        return day, day_end_ns(self.feed, date)

    def _close_journals(self, are_threads_done: Callable[[], bool]) -> None:
        hangs = ""
        if not self.keeper.end():
            hangs = "the disk does not answer"
        elif not are_threads_done():
            hangs = "a slice thread hangs: its disk did not answer"
        if hangs:
            _left_behind.extend(self._writers.values())
            self.keeper.fail(hangs)
            return
        for writer in self._writers.values():
            try:
                writer.check_is_there()
            except JournalError as error:
                self.keeper.fail(str(error))
            try:
                writer.close()
            except OSError as error:
                self.keeper.fail(in_words(error, self.directory))
            if writer.error:
                self.keeper.fail(writer.error)
        self._synced_file.close()
        if self._lock is not None:
            self._lock.close()
