"""A named consumer: it resumes at its stored positions and stores new ones at each checkpoint."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from blackbox.archive.consumer_positions import Held, PositionFile, secret_of
from blackbox.arguments import duration_ns
from blackbox.errors import BlackBoxError, ConfigError, PositionError
from blackbox.feed.feed import Feed
from blackbox.life import Life
from blackbox.native.system.limits import start_thread
from blackbox.native.system.waits import join
from blackbox.receive.slices.catching_up import Since
from blackbox.receive.slices.slice_status import FinalLoss
from blackbox.subscriber.progress import Positions, Progress
from blackbox.subscriber.start_position import Beginning

if TYPE_CHECKING:
    from blackbox.archive.serve.client import ArchiveClient

log = logging.getLogger("blackbox")

Checkpoint = Callable[[float], AbstractContextManager[Positions]]

_PATIENCE_S: Final = 10.0
_TELL_S: Final = 5.0
_ANSWER_S: Final = 1.0
_LONGEST_INTERVAL_S: Final = 1_000_000.0


class ConsumerLife(Life):
    """Stages in the life of a named consumer."""

    NEW = "new", "named", "ended"
    """Created. NAMED by `begin`, ENDED by `end`."""
    NAMED = "named", "new", "keeping", "ended"
    """It owns its name. NEW if `begin` fails, KEEPING by `keep_by_itself`, ENDED by `end`."""
    KEEPING = "keeping", "ended"
    """Threads store positions and report them to archives. ENDED by `end`."""
    ENDED = "ended", "ended"
    """The name is released. A second `end` does nothing."""


class Consumer:
    """Owner of a name from `begin` to `end`; stores positions under it.

    Life: see `ConsumerLife`.
    """

    def __init__(
        self,
        feed: Feed,
        file: PositionFile,
        wait_s: float,
        interval_s: float | None,
        archives: ArchiveClient,
        release: bool = False,
    ) -> None:
        """Store the settings.

        `wait_s`: longest wait for another process to release the name. `interval_s`: time between checkpoints; None:
        the caller makes them. `archives` receive its positions. `release`: start even if the consumer is held.
        """
        self._release = release
        self._feed, self._file = feed, file
        self._wait_s, self._interval_s = wait_s, interval_s
        self._life = ConsumerLife.NEW
        self._over = threading.Event()
        self._guard = threading.Lock()
        """Makes each change of `_life` atomic with the check of `_over`."""
        self._ends, self._storing = threading.Lock(), threading.Lock()
        self._threads: list[threading.Thread] = []
        self._archives = archives
        self._wanted: Callable[[], Sequence[bytes]] = tuple
        self._progress = Progress(feed.name, len(feed.slices), file.path)

    def begin(self, beginning: Beginning) -> Beginning:
        """Take the name; return the stored positions, or `beginning` if none are stored.

        Raises PositionError if another process has the name, or if the stored positions are of another feed or ahead of
        `beginning`.
        """
        if self._life is not ConsumerLife.NAMED:  # already named if an earlier start failed
            self._file.own(self._wait_s)
            if not self._go_on(ConsumerLife.NAMED):
                self._file.close()
                raise PositionError(f"consumer {self._file.name!r} was ended while it waited for its name")
        try:
            kept = self._file.read()
            beginning = self._progress.resume(kept, beginning, self._release)
            if kept is not None and kept.held:
                self._file.keep(kept.feed, kept.slices, accepted=kept.released())
            return beginning
        except BaseException:
            if self._go_on(ConsumerLife.NEW):
                self._file.close()
            raise

    def keep_by_itself(self, checkpoint: Checkpoint, wanted: Callable[[], Sequence[bytes]]) -> None:
        """Start the thread that reports positions to archives, and with an interval the thread that stores them.

        `wanted` returns prefixes of the consumer's topics as they are now.
        """
        self._wanted = wanted
        with self._guard:
            if self._over.is_set():
                return
            self._enter(ConsumerLife.KEEPING)
            self._begin_thread("consumer", self._tell)
            if self._interval_s is not None:
                self._begin_thread("positions", self._run, checkpoint, self._interval_s)

    def _begin_thread(self, name: str, run: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments, name=f"blackbox-{name}", daemon=True)
        start_thread(thread)
        self._threads.append(thread)

    def keep(self, positions: Positions) -> None:
        """Store the positions of a checkpoint. Raises PositionError if they cannot be written."""
        self._store(self._progress.advance(positions))

    def keep_beginning(self, live: Positions, begin: Callable[[int], Since | None] | None) -> None:
        """Store where slices began, see `Progress.advance_new`. Raises PositionError if it cannot be written."""
        slices = range(len(self._feed.slices))
        starts = {} if begin is None else {slice_id: begin(slice_id) for slice_id in slices}
        self._store(self._progress.advance_new(live, starts))

    @property
    def accepted(self) -> Positions:
        """Released losses, see `Kept.accepted`."""
        return self._progress.accepted

    def hold(self, losses: Mapping[int, FinalLoss]) -> None:
        """Store the losses that end the consumer, by slice; it does not start again until they are released."""
        with self._storing:
            if self._life is ConsumerLife.ENDED:
                return
            self._progress.held = {slice_id: Held(*lost) for slice_id, lost in losses.items()}
            try:
                self._write(self._progress.stored)
            except PositionError as error:
                log.error("consumer %r: its lost messages could not be stored: %s", self._file.name, error)

    def _write(self, positions: Positions) -> None:
        self._file.keep(self._feed.name, positions, self._progress.held, self._progress.accepted)

    def _store(self, positions: Positions) -> None:
        with self._storing:
            if positions == self._progress.stored:
                return
            has_ended = self._life is ConsumerLife.ENDED
            if has_ended:
                self._file.own(0.0)
            try:
                if has_ended:
                    self._progress.check_unmoved(self._file.read())
                self._write(positions)
            finally:
                if has_ended:
                    self._file.close()
            self._progress.note_stored(positions)

    def end(self, checkpoint: Checkpoint) -> None:
        """Release the name, after a last checkpoint if it has an interval. A second call does nothing."""
        with self._guard:
            self._over.set()
        with self._ends:  # a failing `start` calls this too, perhaps in another thread
            if self._life is ConsumerLife.ENDED:
                return
            for thread in self._threads:
                join(thread)
            if self._life is ConsumerLife.KEEPING:
                if self._interval_s is not None:
                    self._keep_now(checkpoint)
                self._tell_now()
            with self._storing:
                self._file.close()
                self._enter(ConsumerLife.ENDED)

    def _go_on(self, life: ConsumerLife) -> bool:
        """Enter `life` unless another thread has ended the consumer; return True if entered."""
        with self._guard:
            if not self._over.is_set():
                self._enter(life)
            return not self._over.is_set()

    def _enter(self, life: ConsumerLife) -> None:
        """Enter `life`. Raises RuntimeError if it cannot follow the current stage."""
        self._life = self._life.enter(life, f"consumer {self._file.name!r}")

    def _tell(self) -> None:
        while True:
            self._tell_now()
            if self._over.wait(_TELL_S):
                return

    def _tell_now(self) -> None:
        if positions := self._progress.unreported:
            try:
                self._archives.tell(self._file.name, positions, secret_of(self._file.directory), self._wanted())
                self._progress.note_reported(positions)
            except BlackBoxError as error:
                log.info("%s", error)  # archives keep days too long; without any report they may delete needed ones

    def _run(self, checkpoint: Checkpoint, interval_s: float) -> None:
        while not self._over.wait(interval_s):
            self._keep_now(checkpoint)

    def _keep_now(self, checkpoint: Checkpoint) -> None:
        try:
            with checkpoint(_PATIENCE_S) as positions:
                self.keep(positions)
        except (BlackBoxError, TimeoutError) as error:
            log.warning("consumer %r: positions were not stored: %s", self._file.name, error)


def consumer_of(
    feed: Feed,
    name: str | None,
    positions: str | os.PathLike[str] | None,
    name_wait: float | timedelta,
    checkpoint_interval: float | timedelta | None,
    release: bool,
) -> Consumer | None:
    """Return the consumer that the settings describe, or None. Raises ConfigError or ValueError for bad settings."""
    wait_s, interval_s = duration_ns("name_wait", name_wait, 0) / 1e9, None
    if checkpoint_interval is not None:
        interval_s = duration_ns("checkpoint_interval", checkpoint_interval, 0.001, _LONGEST_INTERVAL_S) / 1e9
    if name is None or positions is None:
        if name is not None or positions is not None or interval_s is not None or release:
            raise ConfigError(f"name was {name!r} and positions {positions!r}, expected both or neither")
        return None
    if not feed.archives:
        raise ConfigError(f"feed {feed.name!r} had no archives, expected one: a named consumer resumes from it")
    from blackbox.archive.serve.client import ArchiveClient

    archives = ArchiveClient(feed, timeout=_ANSWER_S)
    return Consumer(feed, PositionFile(positions, name), wait_s, interval_s, archives, release)
