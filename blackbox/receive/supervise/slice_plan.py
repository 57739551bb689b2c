"""Slices that a subscriber needs: a match table per slice, rebuilt whenever callbacks change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from blackbox.block.form.format import MOST_WANT_BYTES
from blackbox.feed.feed import Feed
from blackbox.feed.routing.prefixes import uncovered
from blackbox.feed.symbol_choice import starts_by_slice
from blackbox.receive.callbacks.gap_hooks import GapRules
from blackbox.receive.callbacks.match_table import Filters, Table
from blackbox.receive.supervise.sharers import Sharers

Plan = Callable[[int, Iterable[int]], dict[int, Table]]
"""`plan(version, running)`: the table of each slice that is needed now, and of each that is running."""


_MOST_WANTS: Final = 10_000
"""Most wanted prefixes that a subscriber sends per slice, since publishers keep a bounded number; above that it wants
all."""


def _wanted(starts: Iterable[bytes]) -> frozenset[bytes]:
    """Return the topic prefixes to request from publishers that compute only wanted topics."""
    prefixes = frozenset(uncovered(start[:MOST_WANT_BYTES] for start in starts))
    return prefixes if len(prefixes) <= _MOST_WANTS else frozenset({b""})


def whole_feed(feed: Feed) -> Plan:
    """Return the plan that takes every block of every slice, for a block handler."""

    def plan(version: int, _running: Iterable[int]) -> dict[int, Table]:
        return {n: Table(version, n, (), 1, Filters(wanted=frozenset({b""}))) for n in feed.slices_for(b"")}

    return plan


def slices_of_callbacks(feed: Feed, sharers: Sharers, workers: int) -> Plan:
    """Return the plan for the registered callbacks, which it reads at each call.

    Timers run on a worker of the first slice, that of their group.
    """

    def plan(version: int, running: Iterable[int]) -> dict[int, Table]:
        present = sharers.present
        callbacks = [callback for each in present for callback in each.callbacks]
        hears_live = any(each.hooks.on_live for each in present)
        rules = GapRules([hook for each in present for hook in each.gap_hooks], hears_live, feed.key_rule)
        starts_of = {callback: starts_by_slice(feed, callback.starts) for callback in callbacks}
        tables = {}
        for slice_id in sorted({n for slices in starts_of.values() for n in slices} | set(running)):
            of_slice = [callback for callback, slices in starts_of.items() if slice_id in slices]
            starts = [start for callback in of_slice for start in starts_of[callback][slice_id]]
            upstream = frozenset(feed.subscription_of(start, whole=whole) for start, whole in starts)
            filters = Filters(upstream, _wanted(start for start, _ in starts))
            tables[slice_id] = Table(version, slice_id, of_slice, workers + 1, filters, rules)
        for each in present if tables and not running else ():
            for timer in each.timers:
                group = [c.worker for c in each.callbacks if timer.group is not None and c.group == timer.group]
                worker = tables[min(tables)].workers[group[0] if group else 0]
                worker.timers = (*worker.timers, timer)
        return tables

    return plan
