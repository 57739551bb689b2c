"""Record a feed: a subscriber that appends every block to journals, one a slice, a directory a day."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Literal, Self

import msgspec

from blackbox.archive.format import SEGMENT_BYTES
from blackbox.archive.journals import Journals, JournalsLife
from blackbox.archive.retention import EVERYTHING, Retention
from blackbox.archive.serve.server import ArchiveStatistics
from blackbox.block.block_handler import BlockHandlerAt
from blackbox.errors import BlackBoxError, JournalError, SubscriberError
from blackbox.feed.feed import Feed, check_is_feed
from blackbox.subscribe.options import Options
from blackbox.subscribe.slice_plan import whole_feed
from blackbox.subscribe.slow_subscriber import SlowPolicy
from blackbox.subscribe.statistics import LagStatistics, ReceivedStatistics, SliceStatistics
from blackbox.subscribe.supervisor import SubscriberLife, Supervisor

log = logging.getLogger("blackbox")


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
    """Messages published before the first message or heartbeat of each epoch that this recorder received. They are not
    recorded and not gaps."""
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

    Life: NEW, `start` (or `with`), RUNNING, `stop`, ENDED; or `run`, which ends at SIGINT, SIGTERM and SIGHUP. Blocks
    go to `<directory>/<feed>/<session date>/`, see docs/journal-format.md. One recorder at a time owns a feed there.

    Slice threads append, without the GIL. One more thread, the keeper, makes segments and days for them, syncs, and
    ends it all when something is wrong with the files.
    """

    def __init__(
        self,
        feed: Feed,
        directory: str | os.PathLike[str],
        *,
        fsync: Literal["never", "interval", "block"] = "interval",
        fsync_interval: float | timedelta = 1.0,
        segment_bytes: int = SEGMENT_BYTES,
        compression: Literal["none", "lz4", "zstd"] = "none",
        max_lag: float | timedelta | None = None,
        hwm_blocks: int = 128,
        line_wait: float | timedelta = 0.05,
        serve: bool | str = False,
        retention: Retention = EVERYTHING,
    ) -> None:
        """Settings; nothing is opened before `start`. Durations are seconds or `timedelta`.

        Args:
            feed: what to record.
            directory: where recordings are; made if it is missing.
            fsync: how far a block is safe. A recorder that is killed loses only what it has not yet handed to the
                system: under 1 MiB a slice, nothing once the line was idle. When the machine itself dies, "interval"
                loses the last `fsync_interval` at most; "block" nothing, and it waits for the disk at every block;
                "never" leaves it to the system, which takes some 30 s.
            fsync_interval: time between two syncs, of "interval".
            segment_bytes: size at which the next segment is begun, 1 MiB to 1 TiB.
            compression: of bodies. "none": replays use them as they are. "lz4", "zstd": smaller files, and the
                interpreter once a block; `blackbox compact` does the same later, with larger blocks.
            max_lag: lag above which the recorder alerts; it records all the same. Default: the feed's.
            hwm_blocks: as `Subscriber`.
            line_wait: as `Subscriber`.
            serve: whether to answer who asks for recorded blocks, in a thread of its own, at the feed's first archive,
                or at this endpoint. Whoever can reach it may read all of the feed's recordings there.
            retention: how much of the feed's recordings to keep. What is over is deleted, once a minute, whole days,
                never the newest.
        """
        check_is_feed(feed)
        self.feed = feed
        self._supervisor = Supervisor(
            feed,
            Options(workers=0, slow=SlowPolicy("warn", max_lag), hwm_blocks=hwm_blocks, line_wait=line_wait),
            whole_feed(feed),
            block_handler=self._block_handler,
        )
        self._journals = Journals(
            feed,
            directory,
            self._supervisor.request_stop,
            fsync=fsync,
            fsync_interval=fsync_interval,
            segment_bytes=segment_bytes,
            compression=compression,
            serve=serve,
            retention=retention,
            acknowledge=self._supervisor.acknowledge,
        )
        self.directory = self._journals.directory
        self._guard = threading.RLock()

    def start(self, timeout: float | None = None) -> Self:
        """Begin, and return when every publisher has confirmed: nothing sent after that is missed.

        It waits without limit unless there is a `timeout` in seconds, and logs which slices it waits for. Raises
        JournalError naming file and reason when the recording cannot be opened or another recorder has it, and what
        `Subscriber.start` raises.
        """
        self._open()
        try:
            self._supervisor.start(timeout)
        except BaseException as error:
            self._close()
            self._raise_failure(error)
            raise
        return self

    def run(
        self, *, until_end: bool = False, timeout: float | None = None, silence_timeout: float | None = None
    ) -> None:
        """Start (unless it runs), record, close. In the main thread SIGINT, SIGTERM and SIGHUP end it, without loss.

        With `until_end` it also ends when every publisher has closed; `silence_timeout` is `Subscriber.run`'s. Raises
        JournalError when recording had to stop, saying what was lost, and what `Subscriber.run` raises.
        """
        if self.state is SubscriberLife.NEW:
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
        return self._journals.archive_statistics

    @property
    def state(self) -> SubscriberLife:
        """Where it is in its life."""
        return self._supervisor.state

    def _check_silence(self, silence_timeout: float | None) -> None:
        """Raise SilentPublisherError when a slice that has not ended has brought nothing for so many seconds."""
        self._supervisor.check_silence(silence_timeout)

    @property
    def is_finished(self) -> bool:
        """Whether every publisher has said that it ends, and all it sent was received."""
        return self._supervisor.is_finished

    def statistics(self) -> RecorderStatistics:
        """A snapshot; exact once it has ended."""
        total = self._journals.total()
        subscribed = self._supervisor.statistics()
        return RecorderStatistics(
            messages=total.messages,
            blocks=total.records,
            stored_bytes=total.stored_bytes,
            lost=total.lost,
            unheard=total.unheard,
            cut_bytes=self._journals.cut_bytes,
            segments=self._journals.slices + total.switches,
            received=subscribed.received,
            lag=subscribed.lag,
            slices=subscribed.slices,
        )

    def __enter__(self) -> Self:
        return self if self.state is SubscriberLife.RUNNING else self.start()

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

    def _block_handler(self, slice_id: int) -> BlockHandlerAt:
        return self._journals.at(slice_id)

    def _open(self) -> None:
        """Take hold of the files, and be ready to record: that begins before the slices do."""
        with self._guard:
            if self._journals.life is not JournalsLife.NEW or self.state is not SubscriberLife.NEW:
                raise JournalError(f"start was called when {self.state}; a recorder is used once")
            try:
                self._journals.open()
            except BaseException:
                self._close()
                raise

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
            if self._journals.life is JournalsLife.CLOSED:
                return
            if self.state is not SubscriberLife.ENDED:
                self._supervisor.terminate()  # `start` or `stop` was interrupted
            self._journals.close(lambda: self._supervisor.is_done)

    def _raise_failure(self, cause: BaseException | None = None) -> None:
        if self._journals.error is None or not isinstance(cause, SubscriberError | None):
            return
        lost = self.statistics().lost
        text = f"{self._journals.error}; {lost} messages were received and not recorded, what was recorded is whole"
        raise JournalError(text) from cause
