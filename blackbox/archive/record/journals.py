"""The journals of a recorded feed, one for each slice, with a directory for each day, and their keeper thread."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Literal

from blackbox.archive.files.day import (
    MANIFEST,
    Lock,
    Manifest,
    day_end_ns,
    make_directory,
    recorded_days,
    session_date,
)
from blackbox.archive.files.format import SEGMENT_BYTES
from blackbox.archive.files.synced import SyncedFile, sync_left
from blackbox.archive.maintain.retention import EVERYTHING, Deleter, Retention
from blackbox.archive.record.ack_sender import Acknowledger
from blackbox.archive.record.crash_recovery import recover_day
from blackbox.archive.record.journal_state import JournalState
from blackbox.archive.record.journal_writer import WRITER_NEEDS, JournalWriter
from blackbox.archive.serve.server import ArchiveStatistics, archive_of
from blackbox.arguments import check_integers, duration_ns
from blackbox.block.batch.block_handler import BlockHandlerAt
from blackbox.errors import BlackBoxError, JournalError
from blackbox.feed.feed import Feed
from blackbox.life import Life
from blackbox.native.system.limits import Needs, check_limits, start_thread
from blackbox.transport.wakeup import Pipe

log = logging.getLogger("blackbox")

_KEEPER_PATIENCE_S = 10.0
"""Maximum wait for a running sync in `close`."""
_TICK_S = 0.25
_LOOK_S = 1.0
"""Interval between checks that the files still have their names."""
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
    """A feed's journals, their keeper thread, and optionally an archive server and a thread that deletes old days.

    Blocks are passed to `at(slice_id)` without the GIL, by one thread at a time for each slice. The keeper creates
    segments and days and syncs them. After an error nothing is recorded any more, and the keeper calls `on_failure`
    repeatedly until it is closed.

    Attributes: `life`; `cut_bytes`, bytes of torn tails that were cut; `error`, the first error.
    """

    def __init__(
        self,
        feed: Feed,
        directory: str | os.PathLike[str],
        on_failure: Callable[[], object],
        *,
        fsync: Literal["never", "interval", "block"],
        fsync_interval: float | timedelta,
        segment_bytes: int = SEGMENT_BYTES,
        compression: Literal["none", "lz4", "zstd"] = "none",
        serve: bool | str = False,
        retention: Retention = EVERYTHING,
        acknowledge: Callable[[int, bytes], None] | None = None,
        is_outbox: bool = False,
    ) -> None:
        """Settings, as in `Recorder`; nothing is opened before `open`.

        In an outbox, a block is written to the file before its handler returns, and each day has the ends of all keys.
        `acknowledge` is called with a slice and the acknowledgement for its publisher.
        """
        check_integers(("segment_bytes", segment_bytes, 1 << 20, 1 << 40))
        self._fsync_interval_s = duration_ns("fsync_interval", fsync_interval, 0.001, 3_600) / 1e9
        if fsync not in ("never", "interval", "block"):
            raise ValueError(f"fsync was {fsync!r}, expected never, interval or block")
        if compression not in ("none", "lz4", "zstd"):
            raise ValueError(f"compression was {compression!r}, expected none, lz4 or zstd")
        retention.check()
        self.feed = feed
        self.directory = Path(directory) / feed.name
        self.cut_bytes = 0
        self.error: JournalError | None = None
        self._on_failure, self._acknowledge = on_failure, acknowledge
        self._fsync: Literal["never", "interval", "block"] = fsync
        self._segment_bytes, self._is_outbox = segment_bytes, is_outbox
        self._compression = compression
        self._deleter = (
            Deleter(self.directory, feed, retention, self._first_kept, compression) if retention.is_bound else None
        )
        self._archive = (
            archive_of(self.directory, feed, serve, self._is_recording, retention.is_bound) if serve else None
        )
        self._before: Path | None = None
        self._pipe = Pipe()
        self._synced_file = SyncedFile()
        self._lock: Lock | None = None
        self._writers: dict[int, JournalWriter] = {}
        self._acknowledgers: list[Acknowledger] = []
        self.life = JournalsLife.NEW
        self._synced = self._looked = 0.0
        self._keeper = threading.Thread(target=self._keep, name="blackbox-recorder", daemon=True)

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
            if self._is_outbox and self._fsync != "never":
                sync_left(self.directory, slices)
            for slice_id in slices:
                self._writers = {**self._writers, slice_id: self._make_writer(slice_id)}
            if self._acknowledge is not None:
                self._acknowledgers = [
                    Acknowledger(writer, self._fsync, self._acknowledge) for writer in self._writers.values()
                ]
            start_thread(self._keeper)
            if not self._is_outbox:
                self.begin_deleting()
            if self._archive is not None:
                self._archive.open()
        except BlackBoxError:
            raise
        except OSError as error:
            raise JournalError(self._in_words(error)) from error

    def begin_deleting(self, before: Path | None = None) -> None:
        """Start deleting days beyond the retention, or only those before `before`. An outbox calls it after reading."""
        self._before = before
        if self._deleter is not None:
            self._deleter.open()

    def _first_kept(self) -> Path:
        return self.day() if self._before is None else min(self.day(), self._before)

    def at(self, slice_id: int) -> BlockHandlerAt:
        """Return the handler for the blocks of a slice."""
        return self._writers[slice_id].at

    def sync(self, slice_id: int) -> None:
        """Sync everything that a slice has written so far. Raises JournalError."""
        try:
            self._writers[slice_id].sync(what_is_written=True)
        except OSError as error:
            raise JournalError(self._in_words(error)) from error

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
            if self._deleter is not None:
                self._deleter.close()
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
        return JournalWriter(
            slice_id,
            self.feed.key_rule,
            self._segment_bytes,
            self._fsync == "block",
            self._compression,
            self._pipe,
            self._day,
            is_outbox=self._is_outbox,
            note_synced=self._synced_file.note if self._is_outbox else None,
        )

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
        self._pipe.poke()
        if self._keeper.is_alive():
            self._keeper.join(_KEEPER_PATIENCE_S)
        if self._keeper.is_alive():
            _left_behind.extend(self._writers.values())
            self._fail("the disk does not answer")
            return
        if not are_threads_done():
            _left_behind.extend(self._writers.values())
            self._fail("a slice thread hangs: its disk did not answer")
            return
        for writer in self._writers.values():
            try:
                if not writer.is_there:
                    self._fail(_gone(writer))
                writer.close()
            except OSError as error:
                self._fail(self._in_words(error))
            if writer.error:
                self._fail(writer.error)
        self._synced_file.close()
        if self._lock is not None:
            self._lock.close()

    def _fail(self, why: str) -> None:
        """Store and log the first error."""
        if self.error is None:
            self.error = JournalError(f"recording of feed {self.feed.name!r} ended: {why}")
            log.error("%s", self.error)

    def _in_words(self, error: OSError) -> str:
        return f"{error.filename or self.directory}: {error.strerror or error}"

    # The keeper's thread

    def _keep(self) -> None:
        poller = select.poll()
        poller.register(self._pipe.reader, select.POLLIN)
        self._synced = self._looked = time.monotonic()
        while self.life is JournalsLife.OPEN:
            if poller.poll(self._tick_s() * 1000):
                os.read(self._pipe.reader, 4096)
            try:
                if self.error is None:
                    self._tend()
            except JournalError as error:
                self._fail(str(error))
            except OSError as error:
                self._fail(self._in_words(error))
            except Exception as error:  # without the keeper recording would stop at midnight
                log.exception("the keeper failed")
                self._fail(f"its keeper failed: {error}")
            if self.error is not None:
                for writer in self._writers.values():
                    writer.refuse()
                self._on_failure()

    def _tick_s(self) -> float:
        """Return the time to sleep: at most until a sync is due."""
        if self._fsync != "interval":
            return _TICK_S
        return min(_TICK_S, max(0.0, self._synced + self._fsync_interval_s - time.monotonic()))

    def _tend(self) -> None:
        writers = self._writers.values()
        for acknowledger in self._acknowledgers:
            acknowledger.tell_recorded()
        for writer in writers:
            writer.tend()  # after `tell_recorded`, so that the sync below covers its messages
        now = time.monotonic()
        is_due = self._fsync != "never" and now - self._synced >= self._fsync_interval_s
        for writer in writers:
            writer.sync(what_is_written=is_due)
        if is_due:
            self._synced = now
            for acknowledger in self._acknowledgers:
                acknowledger.tell_synced()
        if now - self._looked >= _LOOK_S:
            self._looked = now
            for writer in writers:
                if not writer.is_there:
                    raise JournalError(_gone(writer))
        for writer in writers:
            if writer.error:
                raise JournalError(writer.error)


def _gone(writer: JournalWriter) -> str:
    return f"{writer.path} was removed or replaced during recording"
