"""Log what slices only count: rejected blocks, implausible messages, stepped clocks, many errors."""

from __future__ import annotations

import logging
import threading
import time

from blackbox.block.form.validate import FAULT_TEXT, Fault, version_text
from blackbox.errors import CallbackError
from blackbox.receive.state import SliceCounters, SliceState

log = logging.getLogger("blackbox")

_EVERY_S = 10.0
"""Least seconds between two notices of one kind and slice."""
_MOST_ERRORS = 10
"""Errors of callbacks logged in that time per slice."""


class CallbackErrors:
    """Logs exceptions of a slice's callbacks: some in full, the rest as a count. Thread-safe."""

    def __init__(self, slice_id: int) -> None:
        self._slice_id = slice_id
        self._lock = threading.Lock()
        self._count = 0
        self._until = 0.0

    def log(self, failure: CallbackError) -> None:
        """Log an error with its traceback, unless there were too many."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._tell_more()
                self._until = time.monotonic() + _EVERY_S
            self._count += 1
            is_told = self._count <= _MOST_ERRORS
        if is_told:
            log.error("%s", failure, exc_info=failure.__cause__ or failure)

    def close(self) -> None:
        """Log how many errors were not logged."""
        with self._lock:
            self._tell_more()

    def _tell_more(self) -> None:
        if self._count > _MOST_ERRORS:
            text = "slice %d: %d more errors of callbacks were not logged"
            log.error(text, self._slice_id, self._count - _MOST_ERRORS)
        self._count = 0


class LogWarnings:
    """Logs counters of slices, and remembers what was logged when. Used by one thread."""

    def __init__(self) -> None:
        self._told: dict[tuple[int, str], int] = {}
        self._next: dict[tuple[int, str], float] = {}
        self._seen: dict[int, int] = {}

    def check(self, slice_id: int, counters: SliceCounters, state: SliceState) -> None:
        """Log what was counted since the last notice of its kind."""
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
