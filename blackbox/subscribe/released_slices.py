"""Slices that no callback needs any more: they are ended, and what they have counted stays until they come back."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, NamedTuple

from blackbox.native.name_table import Numbering
from blackbox.subscribe.slice_thread import SliceThread
from blackbox.subscribe.statistics import Counters

_UNNEEDED_S: Final = 1.0
"""How long no callback has needed a slice when it is released: one callback may be about to replace another."""


class Kept(NamedTuple):
    """What stays of a slice that has ended."""

    counters: Counters
    topics: Numbering
    transport: str


class ReleasedSlices:
    """Ends slices, and keeps what they have counted and how they number topics. Used with the supervisor's lock held.

    `leaving` are those that have not ended yet. Both are made anew at each change: others may read them at any time.
    """

    def __init__(self) -> None:
        self.leaving: dict[int, SliceThread] = {}
        self.kept: dict[int, Kept] = {}
        self._unneeded_since: dict[int, float] = {}

    def unneeded(self, slices: Mapping[int, SliceThread]) -> list[int]:
        """Return which of the running slices have not been needed for long enough. Called now and then."""
        now = time.monotonic()
        idle = [slice_id for slice_id, thread in slices.items() if not thread.is_needed]
        self._unneeded_since = {slice_id: self._unneeded_since.get(slice_id, now) for slice_id in idle}
        return [slice_id for slice_id, since in self._unneeded_since.items() if now - since >= _UNNEEDED_S]

    def release(self, slice_id: int, thread: SliceThread) -> None:
        """Have a slice end: what is on its way is not delivered."""
        self.kept = {**self.kept, slice_id: Kept(thread.counters, thread.topics, thread.transport)}
        self.leaving = {**self.leaving, slice_id: thread}
        thread.ask_to_terminate()

    def keep_ended(self) -> bool:
        """Let go of slices that have ended; return whether some have."""
        ended = {slice_id for slice_id, thread in self.leaving.items() if thread.release(0.0)}
        for slice_id in ended:
            self.kept[slice_id].counters.settle()
        self.leaving = {slice_id: thread for slice_id, thread in self.leaving.items() if slice_id not in ended}
        return bool(ended)
