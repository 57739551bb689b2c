"""Keep how far recorders say they are with a slice. Whoever says it may be hostile."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Literal

import msgspec

from blackbox.block.acknowledgement import NEVER_SYNCED, NOTHING_MISSING, Acknowledgement

_MOST_TOLD: Final = 1_024
"""Recorders of a slice that are remembered, those that have gone included; the oldest are forgotten first."""

What = Literal["recorded", "synced"]


class RecorderPosition(msgspec.Struct, frozen=True, kw_only=True):
    """Messages of one slice in the present epoch that a recorder has. Positions are sequences of the slice."""

    slice_id: int
    recorder: str
    """Its process and host."""
    epoch: int
    sent: int
    """Next sequence of the publisher."""
    begin: int
    """Sequence of the first recorded message."""
    recorded: int
    """Sequence before which all messages from `begin` on are recorded, at least in the page cache of its host."""
    synced: int | None
    """Sequence before which they are on disk; None: left to the system (`fsync="never"`)."""
    lacks: str
    """Description of the missing message at `recorded`; empty: no message is missing."""
    is_connected: bool
    """True if it is connected. Its acknowledgements remain valid after it disconnects."""


class _Told:
    """The last acknowledgement of a recorder, and the lines on which it is in force."""

    def __init__(self, what: Acknowledgement) -> None:
        self.what = what
        self.standing: dict[int, bytes] = {}


class Acknowledgements:
    """What recorders have told of one slice in its present epoch. Guarded by `Subscriptions.changed`."""

    def __init__(self) -> None:
        self.epoch = 0
        self._told: OrderedDict[bytes, _Told] = OrderedDict()
        self._covered: dict[tuple[What, int], int] = {}

    def begin_epoch(self, epoch: int) -> None:
        """Forget what was acknowledged of the epoch before."""
        self.epoch = epoch
        self._told.clear()
        self._covered.clear()

    def note(self, line: int, said: bytes, what: Acknowledgement) -> None:
        """Take in what a recorder tells on a line."""
        if what.epoch != self.epoch:
            return
        told = self._told.setdefault(what.nonce, _Told(what))
        told.standing[line] = said
        # A line that lags repeats what another has told already; positions only grow.
        if (what.recorded, what.synced) >= (told.what.recorded, told.what.synced):
            told.what = what
        while len(self._told) > _MOST_TOLD:
            self._told.popitem(last=False)

    def withdraw(self, line: int, said: bytes) -> None:
        """Note that an acknowledgement on a line was withdrawn: a newer one replaces it, or the recorder has gone."""
        what = Acknowledgement.decode(said)
        told = what and self._told.get(what.nonce)
        if told and told.standing.get(line) == said:
            del told.standing[line]

    def reached(self, what: What, by: int, goal: int) -> int:
        """Return the position up to which all is recorded, or synced, by `by` recorders; `goal` at most."""
        position = self._covered.get((what, by), 0)
        spans = [(told.what.begin, min(goal, self._position(told, what))) for told in self._told.values()]
        while True:
            stops = sorted((stop for begin, stop in spans if begin <= position < stop), reverse=True)
            if len(stops) < by:
                self._covered[what, by] = position
                return position
            position = stops[by - 1]

    def give_up(self, what: What, by: int, goal: int) -> bool:
        """Give up what recorders will never have, if `by` of them have all that came after it up to `goal`."""
        here = [told for told in self._told.values() if told.standing]
        if sum(self._position(told, what) >= goal for told in here) < by:
            return False
        self._covered[what, by] = goal
        return True

    def positions(self, slice_id: int, sent: int) -> list[RecorderPosition]:
        """Return how far each recorder is."""
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
    """Return how far a recorder is, for a message to people."""
    synced = 'never syncs (fsync="never")' if position.synced is None else f"synced {position.synced}"
    return "".join((
        f"{position.recorder} has recorded {position.recorded}, {synced}, of {position.sent}",
        f", began at {position.begin}" if position.begin else "",
        f", lacks {position.lacks}" if position.lacks else "",
        "" if position.is_connected else ", and is gone",
    ))  # fmt: skip
