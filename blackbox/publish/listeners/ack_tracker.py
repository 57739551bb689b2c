"""Track what recorders acknowledge of a slice. Acknowledgements are untrusted input."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Literal

import msgspec

from blackbox.block.form.ack_format import NEVER_SYNCED, NOTHING_MISSING, Acknowledgement

_MOST_TOLD: Final = 1_024
"""Recorders remembered per slice, including disconnected ones; the oldest are evicted first."""

What = Literal["recorded", "synced"]


class RecorderPosition(msgspec.Struct, frozen=True, kw_only=True):
    """Position of a recorder in one slice in the current epoch. Positions are sequences of the slice."""

    slice_id: int
    recorder: str
    """Its process and host."""
    epoch: int
    sent: int
    """Next sequence of the publisher."""
    begin: int
    """Sequence of the first recorded message."""
    recorded: int
    """End of the recorded range `[begin, recorded)`, at least in the page cache of its host."""
    synced: int | None
    """End of the range that is on disk; None: the recorder never syncs (`fsync="never"`)."""
    lacks: str
    """Description of the missing message at `recorded`; empty: no message is missing."""
    is_connected: bool
    """True while it is connected. Its acknowledgements stay valid after it disconnects."""


class _Told:
    """The last acknowledgement of a recorder, and the lines on which it holds."""

    def __init__(self, what: Acknowledgement) -> None:
        self.what = what
        self.standing: dict[int, bytes] = {}


class Acknowledgements:
    """Acknowledgements of one slice in its current epoch. Guarded by `Subscriptions.changed`."""

    def __init__(self) -> None:
        self.epoch = 0
        self._told: OrderedDict[bytes, _Told] = OrderedDict()
        self._covered: dict[tuple[What, int], int] = {}

    def begin_epoch(self, epoch: int) -> None:
        """Forget the acknowledgements of the previous epoch."""
        self.epoch = epoch
        self._told.clear()
        self._covered.clear()

    def note(self, line: int, said: bytes, what: Acknowledgement) -> None:
        """Store an acknowledgement received on a line."""
        if what.epoch != self.epoch:
            return
        told = self._told.setdefault(what.nonce, _Told(what))
        told.standing[line] = said
        # A slow line repeats what another one already delivered; positions only grow.
        if (what.recorded, what.synced) >= (told.what.recorded, told.what.synced):
            told.what = what
        while len(self._told) > _MOST_TOLD:
            self._told.popitem(last=False)

    def withdraw(self, line: int, said: bytes) -> None:
        """Withdraw an acknowledgement on a line: a newer one replaces it, or the recorder disconnected."""
        what = Acknowledgement.decode(said)
        told = what and self._told.get(what.nonce)
        if told and told.standing.get(line) == said:
            del told.standing[line]

    def reached(self, what: What, by: int, goal: int) -> int:
        """Return the position before which `by` recorders have recorded, or synced, everything; at most `goal`."""
        position = self._covered.get((what, by), 0)
        spans = [(told.what.begin, min(goal, self._position(told, what))) for told in self._told.values()]
        while True:
            stops = sorted((stop for begin, stop in spans if begin <= position < stop), reverse=True)
            if len(stops) < by:
                self._covered[what, by] = position
                return position
            position = stops[by - 1]

    def give_up(self, what: What, by: int, goal: int) -> bool:
        """Write off messages that no recorder will have. False unless `by` recorders reach `goal`."""
        here = [told for told in self._told.values() if told.standing]
        if sum(self._position(told, what) >= goal for told in here) < by:
            return False
        self._covered[what, by] = goal
        return True

    def positions(self, slice_id: int, sent: int) -> list[RecorderPosition]:
        """Return the position of each recorder."""
        return [
            RecorderPosition(
                slice_id=slice_id,
                recorder=told.what.name,
                epoch=told.what.epoch,
                sent=sent,
                begin=told.what.begin,
                recorded=told.what.recorded,
                synced=None if told.what.synced == NEVER_SYNCED else told.what.synced,
                lacks=_lacking(told.what),
                is_connected=bool(told.standing),
            )
            for told in self._told.values()
        ]

    @staticmethod
    def _position(told: _Told, what: What) -> int:
        return told.what.recorded if what == "recorded" else told.what.synced


def _lacking(what: Acknowledgement) -> str:
    return "" if what.missing == NOTHING_MISSING else f"the message with sequence {what.missing}"


def in_words(position: RecorderPosition) -> str:
    """Describe the position of a recorder in an error message."""
    synced = 'never syncs (fsync="never")' if position.synced is None else f"synced {position.synced}"
    return "".join((
        f"{position.recorder} has recorded {position.recorded}, {synced}, of {position.sent}",
        f", began at {position.begin}" if position.begin else "",
        f", lacks {position.lacks}" if position.lacks else "",
        "" if position.is_connected else ", disconnected",
    ))  # fmt: skip
