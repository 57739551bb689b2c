"""Record a feed: a subscriber that appends every block to journals, one for each slice, a directory for each day."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, Unpack

import msgspec

from blackbox.archive.record.journals import Journals, JournalsLife
from blackbox.archive.record.resumption import other_archives, resumption
from blackbox.archive.record.settings import JournalKeywords, JournalSettings
from blackbox.archive.serve.server import ArchiveStatistics
from blackbox.arguments import Duration, seconds
from blackbox.block.batch.block_handler import BlockHandlerAt
from blackbox.block.position import Position
from blackbox.errors import BlackBoxError, JournalError, SubscriberError
from blackbox.feed.feed import Feed, check_is_feed
from blackbox.receive.alerts import kind_of_disk_error
from blackbox.receive.slices.options import Options
from blackbox.receive.slow_subscriber import SlowPolicy
from blackbox.receive.statistics import LagStatistics, ReceivedStatistics, SliceStatistics
from blackbox.receive.supervise.run import run
from blackbox.receive.supervise.shared_slices import Share
from blackbox.receive.supervise.slice_plan import whole_feed
from blackbox.receive.supervise.supervisor import SubscriberLife, Supervisor

log = logging.getLogger("blackbox")


class RecorderStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a recorder.

    Received messages are recorded or lost, except for duplicates and stale ones. After the recorder has ended,
    `messages + lost == received.messages - received.duplicates - received.stale`.
    """

    messages: int
    """Messages recorded. Before the end, up to 1 MiB of them per slice may be in memory."""
    blocks: int
    """Blocks recorded."""
    stored_bytes: int
    """Size of the blocks' records, with heads and padding."""
    lost: int
    """Messages received that could not be recorded: the disk was full, or the files were removed."""
    unheard: int
    """Messages published before the first message or heartbeat of each epoch that this recorder received. They are not
    recorded and not gaps."""
    cut_bytes: int
    """Bytes of torn tails of a killed recorder that were cut at the start."""
    segments: int
    """Segments begun."""
    free_bytes: int
    """Bytes that this user may still write to the disk of the recording; -1: not known."""
    received: ReceivedStatistics
    """Counters of received blocks: gaps, duplicates …"""
    lag: LagStatistics
    """Lag of received blocks: `last_ns`. Percentiles are those of callbacks, and 0 here."""
    slices: tuple[SliceStatistics, ...]
    """Both, by slice."""


class Recorder:
    """Record a feed until `stop`. Both lines of a slice are recorded once; gaps remain gaps, unless it repairs them.

    Life: NEW, `start` (or `with`), RUNNING, `stop`, ENDED; or `run`, which ends at SIGINT, SIGTERM and SIGHUP. Blocks
    are written to `<directory>/<feed>/<session date>/`, see `journal-format` in the docs. Only one recorder at a time
    can record a feed there.

    Slice threads append without the GIL. The keeper thread creates segments and days, syncs them, and ends the recorder
    after a file error.
    """

    def __init__(
        self,
        feed: Feed,
        directory: str | os.PathLike[str],
        *,
        max_lag: float | timedelta | None = None,
        hwm_blocks: int = 128,
        line_wait: float | timedelta = 0.05,
        on_gap: Literal["tell", "repair"] = "tell",
        **settings: Unpack[JournalKeywords],
    ) -> None:
        """Settings; nothing is opened before `start`. Durations are seconds or `timedelta`.

        Args:
            feed: the feed to record.
            directory: directory of the recordings. Created if missing.
            max_lag: lag above which the recorder raises an alert; it continues to record. Default: the feed's.
            hwm_blocks: as `Subscriber`.
            line_wait: as `Subscriber`.
            on_gap: "repair" fetches missing messages from the feed's other archives, as `Subscriber` does. If one of
                them answers, it begins after its last message of the last 24 hours, so that a restart costs none.
            settings: of the journals, see `JournalKeywords`.

        Raises ConfigError if there is no other archive to repair from.
        """
        check_is_feed(feed)
        self.feed = feed
        self._archives = other_archives(feed, settings.get("serve", False)) if on_gap == "repair" else None
        supervisor = Supervisor(
            feed,
            Options(
                workers=0,
                slow=SlowPolicy("warn", max_lag),
                hwm_blocks=hwm_blocks,
                line_wait=line_wait,
                on_gap=on_gap,
            ),
            whole_feed(feed),
            block_handler=self._block_handler,
            archives=self._archives,
        )
        self._share = Share(supervisor)
        self._journals = Journals(
            feed,
            directory,
            JournalSettings(**settings),
            self._end_by_failure,
            acknowledge=lambda slice_id, said: supervisor.slices.running[slice_id].acknowledge(said),
        )
        self.directory = self._journals.directory
        self._guard = threading.RLock()
        self._has_reported = False

    def start(self, timeout: Duration | None = None) -> Self:
        """Start, and return when every publisher has confirmed. All messages sent after that are received.

        Waits without limit unless `timeout` seconds are given, and logs the slices that it waits for. Raises
        JournalError naming file and reason if the recording cannot be opened or another recorder owns it, and as
        `Subscriber.start`.
        """
        timeout = seconds("timeout", timeout)
        self._open()
        try:
            self._start(timeout)
        except BaseException as error:
            self._close()
            self._raise_failure(error)
            raise
        return self

    def run(
        self, *, until_end: bool = False, timeout: Duration | None = None, silence_timeout: Duration | None = None
    ) -> None:
        """Start (unless running), record, close. In the main thread SIGINT, SIGTERM and SIGHUP end it without loss.

        With `until_end` it also ends when every publisher has closed; `silence_timeout` as in `Subscriber.run`. Raises
        JournalError with the number of lost messages if recording failed, and as `Subscriber.run`.
        """
        timeout = seconds("timeout", timeout)
        silence_timeout = seconds("silence_timeout", silence_timeout)
        if self.state is SubscriberLife.NEW:
            self._open()
        self._end_with(
            lambda: run(self._share, self._start, until_end=until_end, timeout=timeout, silence_timeout=silence_timeout)
        )

    def stop(self, timeout: Duration = 30.0) -> None:
        """Record everything received so far, then end. Every call raises the errors of `run`."""
        timeout = seconds("timeout", timeout)
        self._end_with(lambda: self._share.stop(timeout))

    @property
    def archive_statistics(self) -> ArchiveStatistics | None:
        """Statistics of the archive; None if the recorder does not serve one."""
        return self._journals.archive_statistics

    @property
    def state(self) -> SubscriberLife:
        """Its state in the life cycle."""
        return self._share.state

    def _check_silence(self, silence_timeout: float | None) -> None:
        """Raise SilentPublisherError if a slice that has not ended received nothing for `silence_timeout` seconds."""
        self._share.check_silence(silence_timeout)

    @property
    def is_finished(self) -> bool:
        """True if every publisher has closed and all its messages were received."""
        return self._share.is_finished

    def _first_positions(self) -> dict[int, Position]:
        """Return by slice the position from which everything was received, once it is confirmed."""
        return self._share.supervisor.slices.first_positions()

    def statistics(self) -> RecorderStatistics:
        """A snapshot; exact after the end."""
        total = self._journals.total()
        subscribed = self._share.supervisor.slices.statistics()
        return RecorderStatistics(
            messages=total.messages,
            blocks=total.records,
            stored_bytes=total.stored_bytes,
            lost=total.lost,
            unheard=total.unheard,
            cut_bytes=self._journals.cut_bytes,
            segments=self._journals.slices + total.switches,
            free_bytes=_free_bytes(self.directory),
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
            log.error("%s", failure)  # the `with` block's own error is raised

    def __repr__(self) -> str:
        return f"Recorder({self.feed!r}, {str(self.directory)!r})"

    def _start(self, timeout: float | None) -> None:
        """Start the slices, after the last recorded messages if it repairs and another archive answers."""
        since = None if self._archives is None else resumption(self.directory, self._archives)
        self._share.start(timeout, since)

    def _block_handler(self, slice_id: int) -> BlockHandlerAt:
        return self._journals.handler(slice_id)

    def _end_by_failure(self) -> None:
        """End because of a file error, and report it once. Called repeatedly by the keeper."""
        if not self._has_reported:
            self._has_reported, text = True, self._journals.failure()
            self._share.supervisor.report(kind_of_disk_error(text), text)
        self._share.request_end()

    def _open(self) -> None:
        """Open the files before the slices start."""
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
        """End the threads, then close their files, once. Concurrent calls wait for it."""
        with self._guard:
            if self._journals.life is JournalsLife.CLOSED:
                return
            if self.state is not SubscriberLife.ENDED:
                self._share.terminate()  # `start` or `stop` was interrupted
            self._journals.close(lambda: self._share.is_done)

    def _raise_failure(self, cause: BaseException | None = None) -> None:
        if self._journals.error is None or not isinstance(cause, SubscriberError | None):
            return
        lost = self.statistics().lost
        text = f"{self._journals.error}; {lost} received messages were not recorded, the recorded ones are complete"
        raise JournalError(text) from cause


def _free_bytes(directory: Path) -> int:
    try:
        found = os.statvfs(directory)
    except OSError:
        return -1
    return found.f_bavail * found.f_frsize
