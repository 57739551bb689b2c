"""Track what recorders acknowledge of a slice. Acknowledgements are untrusted input."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Literal

import msgspec

from blackbox.block.form.ack_format import NEVER_SYNCED, NOTHING_MISSING, Acknowledgement

_MOST_RECORDERS: Final = 1_024
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


class _Recorder:
    """The last acknowledgement of a recorder, and the lines on which it holds."""

    def __init__(self, latest: Acknowledgement) -> None:
        self.latest = latest
        self.standing: dict[int, bytes] = {}


class Acknowledgements:
    """Acknowledgements of one slice in its current epoch. Guarded by `Subscriptions.changed`."""

    def __init__(self) -> None:
        self.epoch = 0
        self._recorders: OrderedDict[bytes, _Recorder] = OrderedDict()
        self._covered: dict[tuple[What, int], int] = {}

    def begin_epoch(self, epoch: int) -> None:
        """Forget the acknowledgements of the previous epoch."""
        self.epoch = epoch
        self._recorders.clear()
        self._covered.clear()

    def note(self, line: int, said: bytes, what: Acknowledgement) -> None:
        """Store an acknowledgement received on a line."""
        if what.epoch != self.epoch:
            return
        recorder = self._recorders.setdefault(what.nonce, _Recorder(what))
        recorder.standing[line] = said
        # A slow line repeats what another one already delivered; positions only grow.
        if (what.recorded, what.synced) >= (recorder.latest.recorded, recorder.latest.synced):
            recorder.latest = what
        while len(self._recorders) > _MOST_RECORDERS:
            self._recorders.popitem(last=False)

    def withdraw(self, line: int, said: bytes) -> None:
        """Withdraw an acknowledgement on a line: a newer one replaces it, or the recorder disconnected."""
        what = Acknowledgement.decode(said)
        recorder = what and self._recorders.get(what.nonce)
        if recorder and recorder.standing.get(line) == said:
            del recorder.standing[line]

    def reached(self, what: What, by: int, goal: int) -> int:
        """Return the position before which `by` recorders have recorded, or synced, everything; at most `goal`."""
        position = self._covered.get((what, by), 0)
        spans = [(each.latest.begin, min(goal, self._position(each, what))) for each in self._recorders.values()]
        while True:
            stops = sorted((stop for begin, stop in spans if begin <= position < stop), reverse=True)
            if len(stops) < by:
                self._covered[what, by] = position
                return position
            position = stops[by - 1]

    def give_up(self, what: What, by: int, goal: int) -> bool:
        """Write off messages that no recorder will have. False unless `by` recorders reach `goal`."""
        here = [each for each in self._recorders.values() if each.standing]
        if sum(self._position(each, what) >= goal for each in here) < by:
            return False
        self._covered[what, by] = goal
        return True

    def positions(self, slice_id: int, sent: int) -> list[RecorderPosition]:
        """Return the position of each recorder."""
        return [
            RecorderPosition(
                slice_id=slice_id,
                recorder=recorder.latest.name,
                epoch=recorder.latest.epoch,
                sent=sent,
                begin=recorder.latest.begin,
                recorded=recorder.latest.recorded,
                synced=None if recorder.latest.synced == NEVER_SYNCED else recorder.latest.synced,
                lacks=_lacking(recorder.latest),
                is_connected=bool(recorder.standing),
            )
            for recorder in self._recorders.values()
        ]

    @staticmethod
    def _position(recorder: _Recorder, what: What) -> int:
        return recorder.latest.recorded if what == "recorded" else recorder.latest.synced


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
