"""A named consumer: it begins where it was, and its positions are kept at each checkpoint."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from blackbox.archive.consumer_positions import PositionFile, secret_of
from blackbox.arguments import duration_ns
from blackbox.block.position import Position
from blackbox.errors import BlackBoxError, ConfigError, PositionError
from blackbox.feed.feed import Feed
from blackbox.life import Life
from blackbox.native.limits import start_thread
from blackbox.native.waits import join
from blackbox.recovery.start_position import Beginning, positions_of
from blackbox.subscribe.catching_up import Since

if TYPE_CHECKING:
    from blackbox.archive.serve.client import ArchiveClient

log = logging.getLogger("blackbox")

Checkpoint = Callable[[float], AbstractContextManager[Mapping[int, Position]]]

_PATIENCE_S: Final = 10.0
_TELL_S: Final = 5.0
_ANSWER_S: Final = 1.0
_LONGEST_INTERVAL_S: Final = 1_000_000.0


class ConsumerLife(Life):
    """Where a named consumer is in its life."""

    NEW = "new", "named", "ended"
    """It has no name. NAMED by `begin`, ENDED by `end`."""
    NAMED = "named", "new", "keeping", "ended"
    """It owns its name. NEW if it cannot begin there, KEEPING by `keep_by_itself`, ENDED by `end`."""
    KEEPING = "keeping", "ended"
    """Threads keep positions and tell archives of them. ENDED by `end`."""
    ENDED = "ended", "ended"
    """Its name is another's to take. To end it once more changes nothing."""


class Consumer:
    """Owns a name from `begin` to `end`, and keeps positions under it; by itself too, if it is given an interval.

    Life: see `ConsumerLife`.
    """

    def __init__(
        self, feed: Feed, file: PositionFile, wait_s: float, interval_s: float | None, archives: ArchiveClient
    ) -> None:
        """Settings. `wait_s`: how long to wait for the process that has the name. `archives` are told of it."""
        self._feed, self._file = feed, file
        self._wait_s, self._interval_s = wait_s, interval_s
        self._life = ConsumerLife.NEW
        self._over = threading.Event()
        self._guard = threading.Lock()
        """Held where it goes on, so that it does not once it is over."""
        self._ends = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._archives = archives
        self._last: Mapping[int, Position] = {}
        self._told: Mapping[int, Position] = {}

    def begin(self, beginning: Beginning) -> Beginning:
        """Take the name; return where to begin: where it was, or where `beginning` says.

        Raises PositionError when another process has the name, the stored positions are of another feed, or are ahead
        of `beginning`.
        """
        if self._life is not ConsumerLife.NAMED:  # it may be so since a start that failed
            self._file.own(self._wait_s)
            if not self._go_on(ConsumerLife.NAMED):
                self._file.close()
                raise PositionError(f"consumer {self._file.name!r} was ended while it waited for its name")
        try:
            kept = self._file.read()
            if kept is None:
                return beginning
            slices = range(len(self._feed.slices))
            if kept.feed != self._feed.name or not kept.slices.keys() <= set(slices):
                raise PositionError(
                    f"{self._file.path} was of feed {kept.feed!r} and slices {sorted(kept.slices)}, expected "
                    f"{self._feed.name!r} and slices up to {slices[-1]}"
                )
            self._last = kept.slices
            if beginning == Beginning():
                return Beginning(self._last)
            if not isinstance(beginning.since, Mapping):
                raise PositionError(
                    f"start was given {beginning}, but consumer {self._file.name!r} has been further: expected "
                    f"positions, or `blackbox positions {self._file.directory} --forget {self._file.name}` first"
                )
            self._check_forward(positions_of(beginning.since))
        except BaseException:
            if self._go_on(ConsumerLife.NEW):
                self._file.close()
            raise
        return beginning

    def keep_by_itself(self, checkpoint: Checkpoint) -> None:
        """Keep positions at each interval, if there is one, in a thread; tell archives of them, in another."""
        with self._guard:
            if self._over.is_set():
                return  # it was ended meanwhile
            self._enter(ConsumerLife.KEEPING)
            self._begin_thread("consumer", self._tell)
            if self._interval_s is not None:
                self._begin_thread("positions", self._run, checkpoint, self._interval_s)

    def _begin_thread(self, name: str, run: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments, name=f"blackbox-{name}", daemon=True)
        start_thread(thread)
        self._threads.append(thread)

    def keep(self, positions: Mapping[int, Position]) -> None:
        """Keep where it is. Raises PositionError when that cannot be written."""
        positions = {**self._last, **positions}
        if positions != self._last:
            self._file.keep(self._feed.name, positions)
            self._last = positions

    def keep_beginning(self, positions: Mapping[int, Position], begin: Callable[[int], Since | None] | None) -> None:
        """Keep the beginnings of slices that have no position yet: a consumer killed before a checkpoint begins there.

        `positions`: of slices that begin live; `begin` says where others do. Times are not kept, nor images: a new
        start with the same arguments begins there again. Raises PositionError when the file cannot be written.
        """
        found = dict(positions)
        if begin is not None:
            starts = {slice_id: begin(slice_id) for slice_id in range(len(self._feed.slices))}
            known = {n: since.position for n, since in starts.items() if since is not None and since.image is None}
            found |= {slice_id: position for slice_id, position in known.items() if position is not None}
        self.keep({slice_id: position for slice_id, position in found.items() if slice_id not in self._last})

    def end(self, checkpoint: Checkpoint) -> None:
        """Let the name go; if it keeps positions by itself, keep where it ended. Again is fine."""
        with self._guard:
            self._over.set()
        with self._ends:  # `start`, which fails when another thread terminates, ends it, too
            if self._life is ConsumerLife.ENDED:
                return
            for thread in self._threads:
                join(thread)
            if self._life is ConsumerLife.KEEPING:
                if self._interval_s is not None:
                    self._keep_now(checkpoint)
                self._tell_now()
            self._file.close()
            self._enter(ConsumerLife.ENDED)

    def _go_on(self, life: ConsumerLife) -> bool:
        """Enter `life`, unless another thread has ended it; return whether it did."""
        with self._guard:
            if not self._over.is_set():
                self._enter(life)
            return not self._over.is_set()

    def _enter(self, life: ConsumerLife) -> None:
        """Go on to `life`. Raises RuntimeError when it may not follow."""
        self._life = self._life.enter(life, f"consumer {self._file.name!r}")

    def _tell(self) -> None:
        while True:
            self._tell_now()
            if self._over.wait(_TELL_S):
                return

    def _tell_now(self) -> None:
        last = self._last
        if last != self._told:
            try:
                self._archives.tell(self._file.name, last, secret_of(self._file.directory))
                self._told = last
            except BlackBoxError as error:
                log.info("%s", error)  # they may delete nothing; or what it needs, if they are never told

    def _run(self, checkpoint: Checkpoint, interval_s: float) -> None:
        while not self._over.wait(interval_s):
            self._keep_now(checkpoint)

    def _keep_now(self, checkpoint: Checkpoint) -> None:
        try:
            with checkpoint(_PATIENCE_S) as positions:
                self.keep(positions)
        except (BlackBoxError, TimeoutError) as error:
            log.warning("consumer %r: positions were not kept: %s", self._file.name, error)

    def _check_forward(self, positions: Mapping[int, Position]) -> None:
        for slice_id, position in self._last.items():
            if slice_id in positions and positions[slice_id] < position:
                raise PositionError(
                    f"consumer {self._file.name!r} slice {slice_id}: position was {_text(positions[slice_id])}, "
                    f"expected {_text(position)} or later, where it has been"
                )


def consumer_of(
    feed: Feed,
    name: str | None,
    positions: str | os.PathLike[str] | None,
    name_wait: float | timedelta,
    checkpoint_interval: float | timedelta | None,
) -> Consumer | None:
    """Return the consumer that settings name, if they do. Raises ConfigError or ValueError when one cannot be."""
    wait_s, interval_s = duration_ns("name_wait", name_wait, 0) / 1e9, None
    if checkpoint_interval is not None:
        interval_s = duration_ns("checkpoint_interval", checkpoint_interval, 0.001, _LONGEST_INTERVAL_S) / 1e9
    if name is None or positions is None:
        if name is not None or positions is not None or interval_s is not None:
            raise ConfigError(f"name was {name!r} and positions {positions!r}, expected both or none of them")
        return None
    if not feed.archives:
        raise ConfigError(f"feed {feed.name!r} had no archives, which a named consumer goes on from")
    from blackbox.archive.serve.client import ArchiveClient

    archives = ArchiveClient(feed, timeout=_ANSWER_S)
    return Consumer(feed, PositionFile(positions, name), wait_s, interval_s, archives)


def _text(position: Position) -> str:
    return f"{position.sequence} of epoch {position.epoch}"
