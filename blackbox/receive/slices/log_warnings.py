"""Log what slices only count: rejected blocks, implausible messages, stepped clocks."""

from __future__ import annotations

import logging

from blackbox.block.form.validate import FAULT_TEXT, Fault, version_text
from blackbox.receive.slices.slice_status import SliceStatus
from blackbox.repeated_log import RepeatedLog

log = logging.getLogger("blackbox")


class LogWarnings:
    """Logs counters of slices, and remembers what was logged. Used by one thread."""

    def __init__(self) -> None:
        self._repeated = RepeatedLog(log)
        self._told: dict[tuple[int, str], int] = {}
        self._seen: dict[int, int] = {}

    def check(self, status: SliceStatus) -> None:
        """Log what was counted since the last notice of its kind."""
        slice_id, state, counters = status.slice_id, status.state, status.counters.slice
        doubted = counters.implausible + counters.implausible_control
        seen = counters.malformed + doubted + counters.clock_steps
        if seen == self._seen.get(slice_id, 0) and not self._repeated.waiting:
            return
        self._seen[slice_id] = seen
        for fault, text in FAULT_TEXT.items():
            is_named = fault == Fault.VERSION and state.other_version
            what = version_text(state.other_version - 1) if is_named else text
            self._tell(slice_id, counters.faults[fault], f"rejected %d blocks: {what}", fault.name)
        text = "%d messages or heartbeats were implausible: of another epoch, or far ahead in sequence"
        self._tell(slice_id, doubted, text, "implausible")
        ahead = f"the publisher's is now {-counters.clock_offset_ns / 1e9:.3f} s ahead of this host's"
        self._tell(slice_id, counters.clock_steps, f"clocks were stepped %d times: {ahead}", "clock")

    def _tell(self, slice_id: int, count: int, text: str, kind: str) -> None:
        """Log `text` with the increase of `count`, now or later."""
        which = slice_id, kind
        more, self._told[which] = count - self._told.get(which, 0), count
        if more := self._repeated.due(which, more):
            log.warning("slice %d: %s", slice_id, text % more)
