"""Record a feed: a subscriber that appends every block to journals, one a slice, a directory a day."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import msgspec

from blackbox.archive.acknowledge import Acknowledger
from blackbox.archive.day import (
    MANIFEST,
    Lock,
    Manifest,
    day_end_ns,
    make_directory,
    recorded_days,
    session_date,
)
from blackbox.archive.format import SEGMENT_BYTES
from blackbox.archive.journal_state import JournalState
from blackbox.archive.journal_writer import WRITER_NEEDS, JournalWriter
from blackbox.archive.recovery import recover_day
from blackbox.archive.retention import EVERYTHING, Deleter, Retention
from blackbox.archive.serve.server import ArchiveStatistics, archive_of
from blackbox.block.block_handler import BlockHandlerAt
from blackbox.errors import BlackBoxError, JournalError, SubscriberError
from blackbox.feed.feed import Feed, check_is_feed
from blackbox.native.limits import Needs, check_limits, start_thread
from blackbox.subscribe.options import Options
from blackbox.subscribe.slow_subscriber import SlowPolicy
from blackbox.subscribe.statistics import LagStatistics, ReceivedStatistics, SliceStatistics
from blackbox.subscribe.supervisor import State, Supervisor, whole_feed
from blackbox.transport.wakeup import Pipe

log = logging.getLogger("blackbox")

_KEEPER_PATIENCE_S = 10.0
"""How long a sync that runs may take at the end."""
_TICK_S = 0.25
_LOOK_S = 1.0
"""Time between two looks at whether the files still have their names."""


_DAYS_TO_RECOVER = 2
"""The newest days of the feed: a recorder may have been killed before midnight and be started after it."""

_left_behind: list[JournalWriter] = []
"""Journals of slice threads that hang, in a disk that does not answer: their memory must stay."""


class RecorderStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a recorder has done so far.

    Of the messages received, those that were no duplicates and not stale are recorded or lost:
    `messages + lost == received.messages - received.duplicates - received.stale`, once it has ended.
    """

    messages: int
    """Messages recorded. Until it has ended, up to 1 MiB a slice of them may wait in memory."""
    blocks: int
    """Blocks recorded."""
    stored_bytes: int
    """Bytes of the records of these blocks, with heads and padding."""
    lost: int
    """Messages received that could not be recorded: the disk was full, or the files were removed."""
    unheard: int
    """Messages that their publishers had numbered before the first ones that came here of their keys: not recorded, at
    least not by this recorder, and no gaps."""
    cut_bytes: int
    """Bytes of torn tails that a killed recorder had left, cut off at the start."""
    segments: int
    """Segments begun."""
    received: ReceivedStatistics
    """What came from the publishers: gaps, duplicates …"""
    lag: LagStatistics
    """How late it came: `last_ns`; percentiles are of callbacks, and 0 here."""
    slices: tuple[SliceStatistics, ...]
    """Both, slice by slice."""


class Recorder:
    """Record a feed until `stop`. Both lines of a slice are recorded once; gaps stay visible as gaps.

    Life: NEW, `start` (or `with`), RUNNING, `stop`, ENDED; or `run`, which ends at SIGINT and SIGTERM. Blocks go to
    `<directory>/<feed>/<session date>/`, see docs/journal-format.md. One recorder at a time owns a feed there.

    Slice threads append, without the GIL. One more thread, the keeper, makes segments and days for them, syncs, and
    ends it all when something is wrong with the files.
    """

    def __init__(
        self,
        feed: Feed,
        directory: str | os.PathLike[str],
        *,
        fsync: Literal["never", "interval", "block"] = "interval",
        fsync_interval_ns: int = 1_000_000_000,
        segment_bytes: int = SEGMENT_BYTES,
        compression: Literal["none", "lz4", "zstd"] = "none",
        max_lag_ns: int | None = None,
        hwm_blocks: int = 128,
        line_wait_ns: int = 50_000_000,
        serve: bool | str = False,
        retention: Retention = EVERYTHING,
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
            max_lag_ns: lag above which the recorder alerts; it records all the same. Default: the feed's.
            hwm_blocks: as `Subscriber`.
            line_wait_ns: as `Subscriber`.
            serve: whether to answer who asks for recorded blocks, in a thread of its own, at the feed's first archive,
                or at this endpoint. Whoever can reach it may read all of the feed's recordings there.
            retention: how much of the feed's recordings to keep. What is over is deleted, once a minute, whole days,
                never the newest.
        """
        check_is_feed(feed)
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
        self._supervisor = Supervisor(
            feed,
            Options(workers=0, slow=SlowPolicy("warn", max_lag_ns), hwm_blocks=hwm_blocks, line_wait_ns=line_wait_ns),
            whole_feed(feed),
            block_handler=self._block_handler,
        )
        retention.check()
        self._deleter = Deleter(self.directory, feed, retention) if retention.is_bound else None
        self._archive = (
            archive_of(self.directory, feed, serve, self._is_recording, retention.is_bound) if serve else None
        )
        self._pipe = Pipe()
        self._lock: Lock | None = None
        self._writers: dict[int, JournalWriter] = {}
        self._acknowledgers: list[Acknowledger] = []
        self._cut_bytes = 0
        self._error: JournalError | None = None
        self._guard = threading.Lock()
        self._is_opened = self._is_closed = self._ending = False
        self._synced = self._looked = 0.0
        self._keeper = threading.Thread(target=self._keep, name="blackbox-recorder", daemon=True)

    def start(self, timeout: float = 10.0) -> Self:
        """Begin, and return when every publisher has confirmed: nothing sent after that is missed.

        Raises JournalError naming file and reason when the recording cannot be opened or another recorder has it, and
        what `Subscriber.start` raises.
        """
        self._open()
        try:
            self._supervisor.start(timeout)
        except BaseException as error:
            self._close()
            self._raise_failure(error)
            raise
        return self

    def run(self, *, until_end: bool = False, timeout: float = 10.0, silence_timeout: float | None = None) -> None:
        """Start (unless it runs), record, close. In the main thread SIGINT and SIGTERM end it, without loss.

        With `until_end` it also ends when every publisher has closed; `silence_timeout` is `Subscriber.run`'s. Raises
        JournalError when recording had to stop, saying what was lost, and what `Subscriber.run` raises.
        """
        if self.state is State.NEW:
            self._open()
        self._end_with(
            lambda: self._supervisor.run(until_end=until_end, timeout=timeout, silence_timeout=silence_timeout)
        )

    def stop(self, timeout: float = 30.0) -> None:
        """Record what was received until now, then end. Raises what `run` raises, each time that it is called."""
        self._end_with(lambda: self._supervisor.stop(timeout))

    @property
    def archive_statistics(self) -> ArchiveStatistics | None:
        """What it has answered so far; None: it does not serve."""
        return self._archive.statistics() if self._archive else None

    @property
    def state(self) -> State:
        """Where it is in its life."""
        return self._supervisor.state

    def check_silence(self, silence_timeout: float | None) -> None:
        """Raise SilentPublisherError when nothing has come from a slice for so many seconds, and no end."""
        self._supervisor.check_silence(silence_timeout)

    @property
    def is_finished(self) -> bool:
        """Whether every publisher has said that it ends, and all it sent was received."""
        return self._supervisor.is_finished

    def statistics(self) -> RecorderStatistics:
        """A snapshot; exact once it has ended."""
        writers = list(self._writers.values())
        total = JournalState.sum_of([writer.state for writer in writers]) if writers else JournalState()
        subscribed = self._supervisor.statistics()
        return RecorderStatistics(
            messages=total.messages,
            blocks=total.records,
            stored_bytes=total.stored_bytes,
            lost=total.lost,
            unheard=sum(writer.unheard for writer in writers),
            cut_bytes=self._cut_bytes,
            segments=len(writers) + total.switches,
            received=subscribed.received,
            lag=subscribed.lag,
            slices=subscribed.slices,
        )

    def __enter__(self) -> Self:
        return self if self.state is State.RUNNING else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except BlackBoxError as failure:
            if kind is None:
                raise
            log.error("%s", failure)  # the `with` block's own error goes on

    def __repr__(self) -> str:
        return f"Recorder({self.feed!r}, {str(self.directory)!r})"

    def _open(self) -> None:
        """Take hold of the files, and be ready to record."""
        with self._guard:
            if self._is_opened or self.state is not State.NEW:
                raise JournalError(f"start was called when {self.state.value}; a recorder is used once")
            self._is_opened = True
        try:
            slices = self.feed.slices_for(b"")
            check_limits(f"recorder of feed {self.feed.name!r}", Needs(1, 1), *[WRITER_NEEDS] * len(slices))
            make_directory(self.directory)
            self._lock = Lock(self.directory)
            for day in recorded_days(self.directory)[-_DAYS_TO_RECOVER:]:
                self._cut_bytes += recover_day(day)
            for slice_id in slices:
                self._writers = {**self._writers, slice_id: self._make_writer(slice_id)}
            self._acknowledgers = [
                Acknowledger(writer, self._fsync, self._supervisor.acknowledge) for writer in self._writers.values()
            ]
            start_thread(self._keeper)
            if self._deleter is not None:
                self._deleter.open()
            if self._archive is not None:
                self._archive.open()
        except BaseException as error:
            self._close()
            if isinstance(error, OSError) and not isinstance(error, BlackBoxError):
                raise JournalError(self._in_words(error)) from error
            raise

    def _is_recording(self) -> bool:
        return any(writer.is_recording for writer in self._writers.values())

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

    def _block_handler(self, slice_id: int) -> BlockHandlerAt:
        return self._writers[slice_id].at

    def _day(self, now_ns: int) -> tuple[Path, int]:
        date = session_date(self.feed, now_ns)
        day = self.directory / date.isoformat()
        make_directory(day)
        if (day / MANIFEST).exists():
            Manifest.read(day).check_feed(self.feed, day)
        else:
            Manifest.new(self.feed, date, now_ns).write(day)
        return day, day_end_ns(self.feed, date)

    def _end_with(self, end: Callable[[], None]) -> None:
        try:
            end()
        except BaseException as error:
            self._close()
            self._raise_failure(error)
            raise
        self._close()
        self._raise_failure()

    def _close(self) -> None:
        """End the threads, then close the files that they use. Once; others who call wait for it."""
        with self._guard:
            if self._is_closed:
                return
            self._is_closed = True
            if self.state is not State.ENDED:
                self._supervisor.terminate()  # `start` or `stop` was interrupted
            try:
                if self._deleter is not None:
                    self._deleter.close()
                self._close_journals()
            finally:
                if self._archive is not None:
                    self._archive.close()  # last: who asks meanwhile hears that the journals are closed

    def _close_journals(self) -> None:
        self._ending = True
        self._pipe.poke()
        if self._keeper.is_alive():
            self._keeper.join(_KEEPER_PATIENCE_S)
        if self._keeper.is_alive():
            _left_behind.extend(self._writers.values())
            self._fail("the disk does not answer")
            return
        if not self._supervisor.is_done:
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
        if self._lock is not None:
            self._lock.close()

    def _fail(self, why: str) -> None:
        """Keep the first thing that went wrong."""
        if self._error is None:
            self._error = JournalError(f"recording of feed {self.feed.name!r} ended: {why}")
            log.error("%s", self._error)

    def _raise_failure(self, cause: BaseException | None = None) -> None:
        if self._error is None or not isinstance(cause, SubscriberError | None):
            return
        lost = self.statistics().lost
        text = f"{self._error}; {lost} messages were received and not recorded, what was recorded is whole"
        raise JournalError(text) from cause

    def _in_words(self, error: OSError) -> str:
        return f"{error.filename or self.directory}: {error.strerror or error}"

    # The keeper's thread

    def _keep(self) -> None:
        poller = select.poll()
        poller.register(self._pipe.reader, select.POLLIN)
        self._synced = self._looked = time.monotonic()
        while not self._ending:
            if poller.poll(self._tick_s() * 1000):
                os.read(self._pipe.reader, 4096)
            try:
                if self._error is None:
                    self._tend()
            except JournalError as error:
                self._fail(str(error))
            except OSError as error:
                self._fail(self._in_words(error))
            except Exception as error:  # without a keeper nothing would be recorded from the next day on
                log.exception("the keeper failed")
                self._fail(f"its keeper failed: {error}")
            if self._error is not None:
                for writer in self._writers.values():
                    writer.refuse()
                self._supervisor.request_stop()  # each time: it may not have been started yet

    def _tick_s(self) -> float:
        """How long it may sleep: until a sync is due at most."""
        if self._fsync != "interval":
            return _TICK_S
        return min(_TICK_S, max(0.0, self._synced + self._fsync_interval_s - time.monotonic()))

    def _tend(self) -> None:
        writers = self._writers.values()
        for acknowledger in self._acknowledgers:
            acknowledger.tell_recorded()
        for writer in writers:
            writer.tend()  # behind it: what has been told is in segments that are synced now
        now = time.monotonic()
        is_due = self._fsync == "interval" and now - self._synced >= self._fsync_interval_s
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
    return f"{writer.path} has been removed or replaced while it was recorded"
