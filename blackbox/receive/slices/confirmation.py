"""Missing confirmations after a subscriber has waited for them, and what was received instead."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from blackbox.block.form.validate import FAULT_TEXT, Fault, version_text
from blackbox.errors import NotConfirmedError
from blackbox.feed.feed import Feed, missing_peer_hint
from blackbox.feed.routing.key_rule import rule_text
from blackbox.receive.slices.slice_thread import SliceThread

log = logging.getLogger("blackbox")

_REPORT_AFTER_S: Final = 1.0
_REPORT_AGAIN_S: Final = 10.0
_MOST_NAMED: Final = 4


class WaitReport:
    """Logs what a start waits for: after a second, and again when the reason changes."""

    def __init__(self, feed: Feed, started: float) -> None:
        self._feed = feed
        self._next = started + _REPORT_AFTER_S
        self._last = ""

    def update(self, slices: Mapping[int, SliceThread], now: float) -> None:
        """Log a line if it is time and there is news; `now` is monotonic, in seconds."""
        if now < self._next:
            return
        self._next = now + _REPORT_AFTER_S
        text = self._text(slices)
        if text and text != self._last:
            if self._last:
                self._next = now + _REPORT_AGAIN_S
            log.warning("%s", text)
            self._last = text

    def _text(self, slices: Mapping[int, SliceThread]) -> str:
        if any(not thread.is_ready for thread in slices.values()):
            return ""  # still compiling, which is logged there
        missing = {n: thread for n, thread in slices.items() if not thread.is_confirmed}
        if not missing:
            return ""
        named = [
            f"slice {slice_id} at {' or '.join(thread.feed_slice.lines)}{_heard(self._feed, thread)}"
            for slice_id, thread in list(missing.items())[:_MOST_NAMED]
        ]
        more = f"; {len(missing) - _MOST_NAMED} more slices" if len(missing) > _MOST_NAMED else ""
        return f"feed {self._feed.name!r}: waiting for the publisher of {'; '.join(named)}{more}"


def check_lines(feed: Feed, slices: Mapping[int, SliceThread], timeout: float) -> None:
    """Raise NotConfirmedError for a slice confirmed by no line; warn about a slice confirmed by one of two lines."""
    for slice_id, thread in slices.items():
        endpoints = thread.feed_slice.lines
        if thread.confirmed_lines == 0:
            raise NotConfirmedError(
                f"feed {feed.name!r} slice {slice_id}: no publisher at {' or '.join(endpoints)} "
                f"confirmed the subscription in {timeout} s{_heard(feed, thread)}"
            )
        if thread.confirmed_lines < len(endpoints):
            log.warning(
                "slice %d: only %d of %d lines have a publisher", slice_id, thread.confirmed_lines, len(endpoints)
            )


def _heard(feed: Feed, thread: SliceThread) -> str:
    """Return what was received instead of a confirmation, if anything."""
    state, counters = thread.state, thread.counters.slice
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
        return ": it sent blocks and did not answer"
    return missing_peer_hint(thread.feed_slice.lines)
