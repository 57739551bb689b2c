"""Keep how far recorders say they are with a slice. Whoever says it may be hostile."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Literal

import msgspec

from blackbox.block.acknowledgement import NEVER_SYNCED, NOTHING_MISSING, TOO_MANY_KEYS, Acknowledgement

_MOST_TOLD: Final = 1_024
"""Recorders of a slice that are remembered, those that have gone included; the oldest are forgotten first."""

What = Literal["recorded", "synced"]


class RecorderPosition(msgspec.Struct, frozen=True, kw_only=True):
    """How far a recorder is with one slice. Positions count the messages of the slice and epoch, over all its keys."""

    slice_id: int
    recorder: str
    """Its process and host."""
    epoch: int
    sent: int
    """How many messages the publisher has numbered so far."""
    begin: int
    """Where it began; it has nothing from before."""
    recorded: int
    """It has all from `begin` up to here, in the page cache of its host at least."""
    synced: int | None
    """It has all from `begin` up to here on its disk; None: it leaves that to its system (`fsync="never"`)."""
    lacks: str
    """What it lacks, so that `recorded` stays; empty: nothing."""
    is_connected: bool
    """Whether it is connected. What it acknowledged still holds once it has gone."""


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
    if what.missing == NOTHING_MISSING:
        return ""
    if what.missing == TOO_MANY_KEYS:
        return "more keys were published than it can follow"
    return f"a gap at sequence {what.missing} of key {what.key!r}"


def in_words(position: RecorderPosition) -> str:
    """Return how far a recorder is, for a message to people."""
    synced = 'never syncs (fsync="never")' if position.synced is None else f"synced {position.synced}"
    return "".join((
        f"{position.recorder} has recorded {position.recorded}, {synced}, of {position.sent}",
        f", began at {position.begin}" if position.begin else "",
        f", lacks {position.lacks}" if position.lacks else "",
        "" if position.is_connected else ", and is gone",
    ))  # fmt: skip
