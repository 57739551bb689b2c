"""Wait until publishers have confirmed the filters of slices, and say what was received instead."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from typing import Final

from blackbox.block.form.validate import FAULT_TEXT, Fault, version_text
from blackbox.errors import NotConfirmedError, SubscriberError
from blackbox.feed.feed import Feed, missing_peer_hint
from blackbox.feed.routing.key_rule import rule_text
from blackbox.native.compile.compiling import COMPILE_S
from blackbox.receive.slices.slice_thread import SliceThread
from blackbox.receive.supervise.supervisor import TICK_S, SubscriberLife, Supervisor

log = logging.getLogger("blackbox")

_SECOND_LINE_S: Final = 10.0
"""Longest wait without a timeout for the second line, once one line of each slice is confirmed."""
_REPORT_AFTER_S: Final = 1.0
_REPORT_AGAIN_S: Final = 10.0
_MOST_NAMED: Final = 4


class ConfirmationWait:
    """Decides when a wait for confirmations is over, and logs what it waits for."""

    def __init__(self, feed: Feed, timeout: float | None) -> None:
        self._feed, self._timeout = feed, timeout
        now = time.monotonic()
        self._deadline = math.inf if timeout is None else now + COMPILE_S
        self._one_line_is_enough_from = math.inf
        self._is_ready = False
        self._next_report = now + _REPORT_AFTER_S
        self._last_report = ""

    def is_over(self, slices: Mapping[int, SliceThread], *, are_all: bool) -> bool:
        """Return True if enough lines are confirmed. `are_all`: no slice is still to start.

        One of two lines is enough after the timeout. Raises NotConfirmedError for a slice without a publisher,
        SubscriberError if one is not ready in time.
        """
        statuses, now = [thread.status for thread in slices.values()], time.monotonic()
        if not self._is_ready and are_all and all(status.is_ready for status in statuses):
            self._is_ready = True
            self._one_line_is_enough_from = now + _SECOND_LINE_S
            self._deadline = math.inf if self._timeout is None else now + self._timeout
        if now >= self._deadline:
            if not self._is_ready:
                raise SubscriberError(f"a slice was not ready after {COMPILE_S:g} s: it may still compile")
            _check_lines(self._feed, slices, self._timeout or 0.0)
            return True
        is_enough = self._timeout is None and now >= self._one_line_is_enough_from and are_all
        if is_enough and all(status.confirmed_lines for status in statuses):
            _check_lines(self._feed, slices, _SECOND_LINE_S)
            return True
        if now >= self._next_report:
            self._report(slices, now)
        return False

    def _report(self, slices: Mapping[int, SliceThread], now: float) -> None:
        """Log what it waits for: after a second, and again when the reason changes."""
        self._next_report = now + _REPORT_AFTER_S
        text = self._text(slices)
        if text and text != self._last_report:
            if self._last_report:
                self._next_report = now + _REPORT_AGAIN_S
            log.warning("%s", text)
            self._last_report = text

    def _text(self, slices: Mapping[int, SliceThread]) -> str:
        if any(not thread.status.is_ready for thread in slices.values()):
            return ""  # still compiling, which is logged there
        missing = {n: thread for n, thread in slices.items() if not thread.status.is_confirmed}
        if not missing:
            return ""
        named = [
            f"slice {slice_id} at {' or '.join(thread.status.lines)}{_heard(self._feed, thread)}"
            for slice_id, thread in list(missing.items())[:_MOST_NAMED]
        ]
        more = f"; {len(missing) - _MOST_NAMED} more slices" if len(missing) > _MOST_NAMED else ""
        return f"feed {self._feed.name!r}: waiting for the publisher of {'; '.join(named)}{more}"


def _check_lines(feed: Feed, slices: Mapping[int, SliceThread], timeout: float) -> None:
    """Raise NotConfirmedError for a slice confirmed by no line; warn about a slice confirmed by one of two lines."""
    for slice_id, thread in slices.items():
        endpoints, confirmed = thread.status.lines, thread.status.confirmed_lines
        if confirmed == 0:
            raise NotConfirmedError(
                f"feed {feed.name!r} slice {slice_id}: no publisher at {' or '.join(endpoints)} "
                f"confirmed the subscription in {timeout} s{_heard(feed, thread)}"
            )
        if confirmed < len(endpoints):
            log.warning("slice %d: only %d of %d lines have a publisher", slice_id, confirmed, len(endpoints))


def _heard(feed: Feed, thread: SliceThread) -> str:
    """Return what was received instead of a confirmation, if anything."""
    state, counters = thread.status.state, thread.status.counters.slice
    if thread.refusal:
        return f": {thread.refusal}"
    if state.other_version:
        return f": {version_text(state.other_version - 1)}"
    if state.other_key_rule:
        found = rule_text(state.other_key_rule - 1)
        return f": its blocks have {found}, expected {rule_text(feed.key_rule)} as in the feed file"
    if state.other_slice:
        theirs = state.other_slice - 1
        return f": it publishes slice {theirs}, expected {thread.slice_id}; compare the two feed files"
    for fault in Fault:
        if counters.faults[fault]:
            return f": {counters.faults[fault]} blocks were rejected: {FAULT_TEXT[fault]}"
    if counters.blocks + counters.control:
        return ": it sends blocks, but no confirmation"
    return missing_peer_hint(thread.status.lines)


def wait_live(supervisor: Supervisor, timeout: float) -> None:
    """Wait until all slices have caught up. Raises TimeoutError, and the error that ended the subscriber."""
    deadline = time.monotonic() + timeout
    supervisor.raise_failure()
    with supervisor.changed:
        while behind := [n for n, each in supervisor.slices.running.items() if each.status.is_catching_up]:
            supervisor.raise_failure()
            if supervisor.state is not SubscriberLife.RUNNING:
                raise SubscriberError("the subscriber ended before it had caught up")
            if time.monotonic() >= deadline:
                raise TimeoutError(f"slices {behind} had not caught up in {timeout} s")
            supervisor.changed.wait(TICK_S)
