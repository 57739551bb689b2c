"""Log what slices only count: rejected blocks, implausible messages, stepped clocks."""

from __future__ import annotations

import logging
import time

from blackbox.block.form.validate import FAULT_TEXT, Fault, version_text
from blackbox.receive.slices.slice_status import SliceStatus

log = logging.getLogger("blackbox")

_EVERY_S = 10.0
"""Least seconds between two notices of one kind and slice."""


class LogWarnings:
    """Logs counters of slices, and remembers what was logged when. Used by one thread."""

    def __init__(self) -> None:
        self._told: dict[tuple[int, str], int] = {}
        self._next: dict[tuple[int, str], float] = {}
        self._seen: dict[int, int] = {}

    def check(self, status: SliceStatus) -> None:
        """Log what was counted since the last notice of its kind."""
        slice_id, state, counters = status.slice_id, status.state, status.counters.slice
        doubted = counters.implausible + counters.implausible_control
        seen = counters.malformed + doubted + counters.clock_steps
        if seen == self._seen.get(slice_id, 0):
            return
        waits = False
        for fault, text in FAULT_TEXT.items():
            is_named = fault == Fault.VERSION and state.other_version
            what = version_text(state.other_version - 1) if is_named else text
            waits |= self._tell(slice_id, counters.faults[fault], f"rejected %d blocks: {what}", fault.name)
        waits |= self._tell(
            slice_id, doubted, "%d messages or heartbeats were implausible: of another epoch, or far ahead in sequence"
        )
        ahead = f"the publisher's is now {-counters.clock_offset_ns / 1e9:.3f} s ahead of this host's"
        waits |= self._tell(slice_id, counters.clock_steps, f"clocks were stepped %d times: {ahead}", "clock")
        if not waits:
            self._seen[slice_id] = seen

    def _tell(self, slice_id: int, count: int, text: str, kind: str = "") -> bool:
        """Log `text` with the increase of `count`; return True if it must wait."""
        which = slice_id, kind or text
        more = count - self._told.get(which, 0)
        if more == 0:
            return False
        if time.monotonic() < self._next.get(which, 0.0):
            return True
        self._told[which], self._next[which] = count, time.monotonic() + _EVERY_S
        log.warning("slice %d: %s", slice_id, text % more)
        return False
