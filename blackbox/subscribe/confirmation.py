"""Whose confirmations are missing when a subscriber has waited for them, and what came in their place."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from blackbox.block.validate import FAULT_TEXT, Fault
from blackbox.errors import NotConfirmedError
from blackbox.feed.feed import Feed
from blackbox.subscribe.slice_thread import SliceThread

log = logging.getLogger("blackbox")


def check_lines(feed: Feed, slices: Mapping[int, SliceThread], timeout: float) -> None:
    """Raise NotConfirmedError for a slice that no line's publisher has confirmed; warn of one that only one has."""
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
    """Say what came in place of a confirmation, if anything did."""
    state, counters = thread.state, thread.counters.slice
    if thread.refusal:
        return f": {thread.refusal}"
    if state.other_key_bytes:
        theirs, ours = state.other_key_bytes - 1, feed.key_bytes
        return f": its blocks have key_bytes = {theirs}, expected {ours} as in the feed file"
    if state.other_slice:
        theirs = state.other_slice - 1
        return f": what came from there is slice {theirs}, expected {thread.slice_id}; compare the two feed files"
    for fault in Fault:
        if counters.faults[fault]:
            return f": {counters.faults[fault]} blocks were refused: {FAULT_TEXT[fault]}"
    return ": it sent blocks and did not answer" if counters.blocks + counters.control else ""
