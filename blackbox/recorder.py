"""Record a feed: a subscriber that appends every block to journals, one a slice, a directory a day."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import msgspec

from blackbox.errors import JournalError
from blackbox.feed import Feed
from blackbox.journal import append
from blackbox.journal.day import MANIFEST, Lock, Manifest, day_end_ns, session_date
from blackbox.journal.writer import JournalWriter
from blackbox.pipe import Pipe
from blackbox.sink import SinkAt
from blackbox.statistics import Statistics
from blackbox.subscriber import Subscriber

log = logging.getLogger("blackbox")

_TICK_S = 0.25
_LOOK_S = 1.0
"""Time between two looks at whether the files still have their names."""


class RecorderStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a recorder has done so far."""

    messages: int
    """Messages recorded."""
    blocks: int
    stored_bytes: int
    """Bytes of journals, heads and padding included."""
    lost: int
    """Messages received that could not be recorded: the disk was full, or gone."""
    cut_bytes: int
    """Bytes of torn tails that a killed recorder had left, cut off at the start."""
    segments: int
    """Segments begun."""
    received: Statistics
    """What the subscriber underneath says: gaps, duplicates, lag …"""


class Recorder:
    """Record a feed until `stop`. Both lines of a slice are recorded once; gaps stay visible as gaps.

    Life: `start` (or `with`), `stop`; or `run`, which ends at SIGINT and SIGTERM. Blocks go to
    `<directory>/<feed>/<session date>/`, see docs/journal-format.md. One recorder at a time owns a feed there.
    """

    def __init__(
        self,
        feed: Feed,
        directory: str | os.PathLike[str],
        *,
        fsync: Literal["never", "interval", "block"] = "interval",
        fsync_interval_ns: int = 1_000_000_000,
        segment_bytes: int = 256 << 20,
        compression: Literal["none", "lz4", "zstd"] = "none",
        max_lag_ns: int | None = None,
        hwm_blocks: int = 128,
        line_wait_ns: int = 50_000_000,
    ) -> None:
        """Settings; nothing is opened before `start`.

        Args:
            feed: what to record.
            directory: where recordings are; made if it is missing.
            fsync: how far a block is safe. A recorder that is killed loses only what it has not yet handed to the
                system: under 1 MiB a slice, nothing once the line was idle. When the machine itself dies, "interval"
                loses the last `fsync_interval_ns` at most; "block" nothing, and it waits for the disk at every block;
                "never" leaves it to the system, which takes some 30 s.
            fsync_interval_ns: time between two syncs, of "interval".
            segment_bytes: size at which the next segment is begun, 1 MiB to 1 TiB.
            compression: of bodies. "none": replays use them as they are. "lz4", "zstd": smaller files, and the
                interpreter once a block; `blackbox compact` does the same later, with larger blocks.
            max_lag_ns: lag above which the recorder squawks; it records all the same. Default: the feed's.
            hwm_blocks: as `Subscriber`.
            line_wait_ns: as `Subscriber`.
        """
        for name, value, low, high in (
            ("segment_bytes", segment_bytes, 1 << 20, 1 << 40),
            ("fsync_interval_ns", fsync_interval_ns, 1_000_000, 3_600 * 10**9),
        ):
            if not low <= value <= high:
                raise ValueError(f"{name} was {value}, expected {low} to {high}")
        if fsync not in ("never", "interval", "block"):
            raise ValueError(f"fsync was {fsync!r}, expected never, interval or block")
        if compression not in ("none", "lz4", "zstd"):
            raise ValueError(f"compression was {compression!r}, expected none, lz4 or zstd")
        self.feed = feed
        self.directory = Path(directory) / feed.name
        self._fsync = fsync
        self._fsync_interval_s = fsync_interval_ns / 1e9
        self._segment_bytes = segment_bytes
        self._compression = compression
        self._subscriber = Subscriber(
            feed, max_lag_ns=max_lag_ns, on_slow="warn", hwm_blocks=hwm_blocks, line_wait_ns=line_wait_ns
        )
        self._pipe = Pipe()
        self._lock: Lock | None = None
        self._writers: dict[int, JournalWriter] = {}
        self._error: JournalError | None = None
        self._ending = False
        self._keeper = threading.Thread(target=self._keep, name="blackbox-recorder", daemon=True)

    def start(self, timeout: float = 10.0) -> Self:
        """Begin, and return when every publisher has confirmed: nothing sent after that is missed.

        Raises JournalError naming file and reason when the recording cannot be opened or another recorder has it, and
        what `Subscriber.start` raises.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock = Lock(self.directory)
            for slice_id in self.feed.slices_for(b""):
                self._writers[slice_id] = self._make_writer(slice_id)
            self._subscriber.attach(self._sink)
            self._keeper.start()
            self._subscriber.start(timeout)
        except BaseException as error:
            self._close()
            if isinstance(error, OSError) and not isinstance(error, JournalError | ConnectionError):
                raise self._in_words(error) from error
            raise
        return self

    def run(self, *, until_end: bool = False, timeout: float = 10.0) -> None:
        """Start (unless it runs), record, close. In the main thread SIGINT and SIGTERM end it, without loss.

        With `until_end` it also ends when every publisher has closed. Raises JournalError when recording had to stop,
        saying what was lost, and what `Subscriber.run` raises.
        """
        if self._lock is None:
            self.start(timeout)
        try:
            self._subscriber.run(until_end=until_end)
        finally:
            self._close()
        self._raise_failure()

    def stop(self, timeout: float = 30.0) -> None:
        """Record what was received until now, then end. Raises what `run` raises."""
        try:
            self._subscriber.stop(timeout)
        finally:
            self._close()
        self._raise_failure()

    def statistics(self) -> RecorderStatistics:
        """A snapshot; exact once it has ended."""

        def total(word: int) -> int:
            return sum(writer.count(word) for writer in self._writers.values())

        return RecorderStatistics(
            messages=total(append.MESSAGES),
            blocks=total(append.RECORDS),
            stored_bytes=total(append.STORED),
            lost=total(append.LOST),
            cut_bytes=sum(writer.cut_bytes for writer in self._writers.values()),
            segments=len(self._writers) + total(append.SWITCHES),
            received=self._subscriber.statistics(),
        )

    def __enter__(self) -> Self:
        return self if self._lock is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"Recorder({self.feed!r}, {str(self.directory)!r})"

    def _make_writer(self, slice_id: int) -> JournalWriter:
        return JournalWriter(
            slice_id,
            self.feed.key_bytes,
            self._segment_bytes,
            self._fsync == "block",
            self._compression,
            self._pipe,
            self._day,
        )

    def _sink(self, slice_id: int) -> SinkAt:
        return self._writers[slice_id].at

    def _day(self, now_ns: int) -> tuple[Path, int]:
        date = session_date(self.feed, now_ns)
        day = self.directory / date.isoformat()
        if not day.exists():
            day.mkdir()
        if (day / MANIFEST).exists():
            Manifest.read(day).check_feed(self.feed, day)
        else:
            Manifest.new(self.feed, date, now_ns).write(day)
        return day, day_end_ns(self.feed, date)

    # The keeper's thread

    def _keep(self) -> None:
        poller = select.poll()
        poller.register(self._pipe.reader, select.POLLIN)
        synced = looked = time.monotonic()
        while not self._ending and self._error is None:
            if poller.poll(_TICK_S * 1000):
                os.read(self._pipe.reader, 4096)
            try:
                for writer in self._writers.values():
                    writer.tend()
                now = time.monotonic()
                if self._fsync == "interval" and now - synced >= self._fsync_interval_s:
                    synced = now
                    for writer in self._writers.values():
                        writer.sync()
                if now - looked >= _LOOK_S:
                    looked = now
                    self._look_for_files()
            except (OSError, JournalError) as error:
                self._give_up(str(error if isinstance(error, JournalError) else self._in_words(error)))
            refused = [writer.error for writer in self._writers.values() if writer.error]
            if refused:
                self._give_up(refused[0])

    def _look_for_files(self) -> None:
        for writer in self._writers.values():
            if not writer.is_there():
                raise JournalError(f"{writer.path} has been removed or replaced while it was recorded")

    def _give_up(self, why: str) -> None:
        if self._error is None:
            self._error = JournalError(f"recording of feed {self.feed.name!r} ended: {why}")
            log.error("%s", self._error)
        for writer in self._writers.values():
            writer.refuse()
        self._subscriber.request_stop()

    def _close(self) -> None:
        self._ending = True
        self._pipe.poke()
        if self._keeper.is_alive():
            self._keeper.join()
        for writer in self._writers.values():
            try:
                writer.close()
            except OSError as error:
                self._error = self._error or JournalError(f"recording ended: {self._in_words(error)}")
            if writer.error and self._error is None:
                self._error = JournalError(f"recording of feed {self.feed.name!r} ended: {writer.error}")
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _raise_failure(self) -> None:
        if self._error is None:
            return
        lost = self.statistics().lost
        raise JournalError(f"{self._error}; {lost} messages were received and not recorded, what was recorded is whole")

    def _in_words(self, error: OSError) -> JournalError:
        return JournalError(f"{error.filename or self.directory}: {error.strerror or error}")
