"""Read several archives as one: messages that one archive lacks are requested from the others. Does no I/O.

::

      next message:   an archive has it ----------------------> yield its blocks, then ask all archives again
                      it may still be recorded ---------------> wait
                      every archive lacks it up to a sequence -> report a gap up to the smallest of these
                      its epoch is over ----------------------> continue with the next epoch that any archive knows
                      no archive has more for now ------------> wait, then ask again
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from blackbox.archive.serve import protocol
from blackbox.archive.serve.connection import Fetched
from blackbox.archive.serve.protocol import EndOfEpoch, Gone
from blackbox.block.position import Position

NO_END: Final = 1 << 62


class Lack(NamedTuple):
    """Reason why an archive does not return the next message."""

    stop: int
    """Sequence after the last missing message; NO_END: the archive has nothing more of the epoch."""
    why: str = ""
    next_epoch: int = 0
    """Next epoch that the archive knows; 0: none."""
    end: EndOfEpoch | None = None
    """End of the epoch, if it is over."""


MAY_COME: Final = Lack(NO_END)
"""The archive has nothing more yet: the next message may still be recorded. Compare with `is`."""
CLOSED: Final = Lack(NO_END)
"""The recorder stopped before the next message. Compare with `is`."""


class Cursor:
    """Position up to which all wanted messages are passed, and which archives lack the next one.

    Attributes: `position`, the position of the next message; by endpoint `lacks`, for the archives that were asked, and
    `places`, where each archive reads on in its files.
    """

    def __init__(self, start: Position, stop: Position | None) -> None:
        self.position, self._stop = start, stop
        self.lacks: dict[str, Lack] = {}
        self.places: dict[str, protocol.Cursor] = {}

    @property
    def is_done(self) -> bool:
        """True if all wanted messages are passed."""
        return self._stop is not None and self.position >= self._stop

    def go_to(self, position: Position) -> bool:
        """Move forward to a position. Return False if the cursor has already reached it."""
        if position <= self.position:
            return False
        self.position = position
        self.lacks.clear()
        return True

    def take(self, found: Fetched) -> Fetched | None:
        """Pass a block from an archive. Return it with the range of wanted rows, or None if no row is wanted."""
        block = found.block
        first, stop = found.first_row, block.count
        if (block.epoch, block.number_of(-1)) < self.position:
            return None
        if block.epoch == self.position.epoch:
            first = max(first, block.row_from(self.position.sequence))
        if self._stop is not None and block.epoch == self._stop.epoch:
            stop = block.row_from(self._stop.sequence)
        self.go_to(Position(block.epoch, block.number_of(-1) + 1))
        return Fetched(block, found.ts_recv, first, stop) if first < stop else None

    def note_gone(self, endpoint: str, gone: Gone) -> bool:
        """Note messages that an archive lacks. Return False if the next message is not among them."""
        is_next = gone.epoch == self.position.epoch and self.position.sequence < gone.stop
        if is_next:
            self.lacks[endpoint] = Lack(gone.stop, gone.why)
        return is_next

    @property
    def may_come(self) -> bool:
        """True if the next message may still be recorded."""
        return any(lack is MAY_COME for lack in self.lacks.values())

    @property
    def is_any_closed(self) -> bool:
        """True if a recorder has stopped before the cursor."""
        return any(lack is CLOSED for lack in self.lacks.values())

    @property
    def are_all_closed(self) -> bool:
        """True if archives were asked and all their recorders have stopped before the cursor."""
        return self.is_any_closed and all(lack is CLOSED for lack in self.lacks.values())

    def pass_gone(self) -> Gone | None:
        """Pass messages that every archive lacks and return them; None if nothing later in this epoch is recorded."""
        stop = min((lack.stop for lack in self.lacks.values()), default=NO_END)
        if stop == NO_END:
            return None
        epoch, first = self.position
        if self._stop is not None and self._stop.epoch == epoch:
            stop = min(stop, self._stop.sequence)
        why = "; ".join(sorted({lack.why for lack in self.lacks.values()} - {""}))
        self.go_to(Position(epoch, stop))
        return Gone(epoch, first, stop, why)

    def pass_epoch(self) -> list[EndOfEpoch]:
        """Move to the next epoch that any archive knows. Return the end of this one as each reports it; empty: none."""
        ends = [lack.end for lack in self.lacks.values() if lack.end is not None]
        if ends:
            self.go_to(Position(min(lack.next_epoch for lack in self.lacks.values() if lack.next_epoch), 0))
        return ends

    def pass_on(self) -> Iterator[Gone | EndOfEpoch]:
        """Pass and yield messages that no archive has, or else the end of the epoch."""
        if (gone := self.pass_gone()) is not None:
            yield gone
            return
        rest, ends = self.rest(), self.pass_epoch()
        yield from [rest] if ends and rest is not None else ends

    def rest(self) -> Gone | None:
        """Return the rest of the requested range as a gap when nothing follows; None if `stop` is in another epoch."""
        if self._stop is None or self._stop.epoch != self.position.epoch or self.is_done:
            return None
        return Gone(*self.position, self._stop.sequence, "not recorded")
