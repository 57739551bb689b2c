"""Decide where a named consumer begins, which positions it stores, and which it reports to archives.

A state machine without files, threads or clocks. `consumer.py` reads, writes and sends.

::

    UNREAD   -- `resume`: no positions are stored -------------------------->  NEW: begins as `start` says
    UNREAD   -- `resume`: positions of this feed, durable since `own` ------>  STORED: begins there, or later
    NEW      -- `advance_new`: slices have begun at known positions -------->  ADVANCED
    STORED   -- `advance`: a checkpoint, all earlier messages are handled -->  ADVANCED
    ADVANCED -- `note_stored`: the file and its directory are synced ------->  STORED
    ADVANCED -- `check_unmoved`, after the end: another process has the name ->  error
    STORED   -- `note_reported`: archives have stored the positions -------->  REPORTED: they delete earlier days
    any      -- `held`: lost messages end it, with on_gap="stop" ----------->  HELD: begins only with `release`
    HELD     -- `resume` with `release`: the losses are `accepted` --------->  STORED

After a crash at any time: reported position <= stored position <= handled messages.
So a message may be delivered twice, but is never skipped or deleted too early.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from blackbox.archive.consumer_positions import Held, Kept
from blackbox.block.position import Position
from blackbox.errors import PositionError
from blackbox.receive.slices.catching_up import Since
from blackbox.subscriber.start_position import Beginning, positions_of

Positions = Mapping[int, Position]
"""Next position by slice."""


class Progress:
    """Positions of one consumer.

    Attributes: `stored`, the durable positions; `held` and `accepted` losses, as in `Kept`.
    """

    def __init__(self, feed: str, slices: int, path: Path) -> None:
        """`path`: the file of positions, named in errors."""
        self.stored: Positions = {}
        self.held: Mapping[int, Held] = {}
        self._accepted: Positions = {}
        self._reported: Positions = {}
        self._feed, self._slices, self._path = feed, slices, path

    def resume(self, kept: Kept | None, beginning: Beginning, release: bool) -> Beginning:
        """Return where to begin.

        Raises PositionError for positions of another feed or ahead of `beginning`, and for a held consumer without
        `release`.
        """
        if kept is None:
            return beginning
        if kept.feed != self._feed or not kept.slices.keys() <= set(range(self._slices)):
            raise PositionError(
                f"{self._path} was of feed {kept.feed!r} and slices {sorted(kept.slices)}, expected {self._feed!r} "
                f"and slices up to {self._slices - 1}"
            )
        if kept.held and not release:
            lost = "; ".join(f"slice {slice_id}: {each}" for slice_id, each in kept.held.items())
            raise PositionError(
                f"consumer {self._path.stem!r} is held because it {lost}: to continue after the loss, release it with "
                f"`blackbox positions {self._path.parent} --release {self._path.stem}` or Subscriber(release=True)"
            )
        self._accepted = kept.released()
        self.stored = kept.slices
        if beginning == Beginning():
            return Beginning(self.stored)
        if not isinstance(beginning.since, Mapping):
            raise PositionError(
                f"start was given {beginning}, but consumer {self._path.stem!r} has stored later positions: "
                f"pass positions, or `blackbox positions {self._path.parent} --forget {self._path.stem}` first"
            )
        given = positions_of(beginning.since)
        for slice_id, position in self.stored.items():
            if given.get(slice_id, position) < position:
                raise PositionError(
                    f"consumer {self._path.stem!r} slice {slice_id}: position was {_text(given[slice_id])}, "
                    f"expected {_text(position)} or later, which is stored"
                )
        return Beginning({**self.stored, **given})

    @property
    def accepted(self) -> Positions:
        """Accepted losses that end after the stored positions."""
        return {n: end for n, end in self._accepted.items() if n not in self.stored or self.stored[n] < end}

    def advance(self, positions: Positions) -> Positions:
        """Return what to store after a checkpoint."""
        return {**self.stored, **positions}

    def advance_new(self, live: Positions, starts: Mapping[int, Since | None]) -> Positions:
        """Return what to store so that a consumer killed before its first checkpoint begins there again.

        `live`: positions of slices that begin live; `starts`: of the others. Times and images are not stored: a new
        start with the same arguments finds them again.
        """
        known = {n: since.position for n, since in starts.items() if since is not None and since.image is None}
        return {**live, **{n: position for n, position in known.items() if position is not None}, **self.stored}

    def check_unmoved(self, kept: Kept | None) -> None:
        """Raise PositionError if the file's positions differ from those that this consumer stored."""
        if (found := {} if kept is None else kept.slices) != self.stored:
            raise PositionError(f"{self._path} had {found}, expected {self.stored}: another process has the name now")

    def note_stored(self, positions: Positions) -> None:
        """Note that positions are durable."""
        self.stored = positions

    @property
    def unreported(self) -> Positions:
        """Positions that archives have not yet stored."""
        return {} if self.stored == self._reported else self.stored

    def note_reported(self, positions: Positions) -> None:
        """Note that every archive has stored `positions`."""
        self._reported = positions


def _text(position: Position) -> str:
    return f"{position.sequence} of epoch {position.epoch}"
