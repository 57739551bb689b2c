"""Tell in the log what a slice only counts: refused blocks, what was not believed, stepped clocks, many errors."""

from __future__ import annotations

import logging
import threading
import time

from blackbox.block.validate import FAULT_TEXT, Fault, version_text
from blackbox.errors import CallbackError
from blackbox.subscribe.state import SliceCounters, SliceState

log = logging.getLogger("blackbox")

_EVERY_S = 10.0
"""Time between two notices of one kind and slice, at least."""
_MOST_ERRORS = 10
"""Errors of callbacks that are logged in that time, of one slice."""


class CallbackErrors:
    """Log what the callbacks of a slice raise: some of it in full, of the rest how many. Any thread may call."""

    def __init__(self, slice_id: int) -> None:
        self._slice_id = slice_id
        self._lock = threading.Lock()
        self._count = 0
        self._until = 0.0

    def log(self, failure: CallbackError) -> None:
        """Log an error with its traceback, unless there have been many."""
        with self._lock:
            if time.monotonic() >= self._until:
                self._tell_more()
                self._until = time.monotonic() + _EVERY_S
            self._count += 1
            is_told = self._count <= _MOST_ERRORS
        if is_told:
            log.error("%s", failure, exc_info=failure.__cause__ or failure)

    def close(self) -> None:
        """Tell how many were not logged."""
        with self._lock:
            self._tell_more()

    def _tell_more(self) -> None:
        if self._count > _MOST_ERRORS:
            text = "slice %d: %d more errors of callbacks were not logged"
            log.error(text, self._slice_id, self._count - _MOST_ERRORS)
        self._count = 0


class LogWarnings:
    """Logs what slices have counted, and keeps what was logged when. Used by one thread."""

    def __init__(self) -> None:
        self._told: dict[tuple[int, str], int] = {}
        self._next: dict[tuple[int, str], float] = {}
        self._seen: dict[int, int] = {}

    def check(self, slice_id: int, counters: SliceCounters, state: SliceState) -> None:
        """Log what has been counted since the last notice of its kind."""
        doubted = counters.implausible + counters.implausible_control
        seen = counters.malformed + doubted + counters.clock_steps
        if seen == self._seen.get(slice_id, 0):
            return
        waits = False
        for fault, text in FAULT_TEXT.items():
            is_named = fault == Fault.VERSION and state.other_version
            what = version_text(state.other_version - 1) if is_named else text
            waits |= self._tell(slice_id, counters.faults[fault], f"refused %d blocks: {what}", fault.name)
        waits |= self._tell(
            slice_id, doubted, "%d messages or heartbeats were not believed: of another run, or numbered far ahead"
        )
        ahead = f"the publisher's is now {-counters.clock_offset_ns / 1e9:.3f} s ahead of this host's"
        waits |= self._tell(slice_id, counters.clock_steps, f"clocks were stepped %d times: {ahead}", "clock")
        if not waits:
            self._seen[slice_id] = seen

    def _tell(self, slice_id: int, count: int, text: str, kind: str = "") -> bool:
        """Log `text` with what is new of `count`; return whether it has to wait."""
        which = slice_id, kind or text
        more = count - self._told.get(which, 0)
        if more == 0:
            return False
        if time.monotonic() < self._next.get(which, 0.0):
            return True
        self._told[which], self._next[which] = count, time.monotonic() + _EVERY_S
        log.warning("slice %d: %s", slice_id, text % more)
        return False
