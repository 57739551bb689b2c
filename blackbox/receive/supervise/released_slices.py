"""Slices that no callback needs: they are ended, and their counters are kept until they start again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from blackbox.native.tables.name_table import Numbering
from blackbox.receive.slices.slice_thread import SliceThread
from blackbox.receive.statistics import Counters

_UNNEEDED_S: Final = 1.0
"""Seconds without callbacks before a slice is released: one callback may be about to replace another."""


class Kept(NamedTuple):
    """Data kept of a slice that has ended."""

    counters: Counters
    topics: Numbering
    transport: str


class ReleasedSlices:
    """Ends slices, and keeps their counters and topic numbers. Used with the supervisor's lock held.

    `leaving`: slices that have not ended yet. Both dicts are replaced at each change, so others may read them at any
    time.
    """

    def __init__(self) -> None:
        self.leaving: dict[int, SliceThread] = {}
        self.kept: dict[int, Kept] = {}
        self._unneeded_since: dict[int, float] = {}

    def unneeded(self, slices: Mapping[int, SliceThread]) -> list[int]:
        """Return the running slices without callbacks for long enough. Call it periodically."""
        now = time.monotonic()
        idle = [slice_id for slice_id, thread in slices.items() if not thread.is_needed]
        self._unneeded_since = {slice_id: self._unneeded_since.get(slice_id, now) for slice_id in idle}
        return [slice_id for slice_id, since in self._unneeded_since.items() if now - since >= _UNNEEDED_S]

    def release(self, slice_id: int, thread: SliceThread) -> None:
        """Terminate a slice: messages on their way are not delivered."""
        self.kept = {**self.kept, slice_id: Kept(thread.counters, thread.topics, thread.transport)}
        self.leaving = {**self.leaving, slice_id: thread}
        thread.ask_to_terminate()

    def keep_ended(self) -> bool:
        """Remove slices that have ended; return True if there were any."""
        ended = {slice_id for slice_id, thread in self.leaving.items() if thread.release(0.0)}
        for slice_id in ended:
            self.kept[slice_id].counters.settle()
        self.leaving = {slice_id: thread for slice_id, thread in self.leaving.items() if slice_id not in ended}
        return bool(ended)
