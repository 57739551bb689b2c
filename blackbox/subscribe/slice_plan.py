"""Which slices a subscriber wants, and what of each: a table a slice, made anew whenever callbacks come or go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from blackbox.block.format import MOST_WANT_BYTES
from blackbox.feed.feed import Feed
from blackbox.feed.symbol_choice import starts_by_slice
from blackbox.subscribe.match_table import Table
from blackbox.subscribe.sharers import Sharers

Plan = Callable[[int, Iterable[int]], dict[int, Table]]
"""`plan(version, running)`: the table of each slice that is wanted now, and of each that runs."""


_MOST_WANTS: Final = 10_000
"""Prefixes that a subscriber says it wants of a slice; with more it wants all: publishers keep a bounded number."""


def _wanted(starts: Iterable[bytes]) -> frozenset[bytes]:
    """Return what is to be asked for of those that compute only what is wanted."""
    prefixes = frozenset(_uppermost(start[:MOST_WANT_BYTES] for start in starts))
    return prefixes if len(prefixes) <= _MOST_WANTS else frozenset({b""})


def _uppermost(prefixes: Iterable[bytes]) -> Iterator[bytes]:
    """Yield those that begin with no other one."""
    last = None
    for prefix in sorted(set(prefixes)):
        if last is None or not prefix.startswith(last):
            yield prefix
            last = prefix


def whole_feed(feed: Feed) -> Plan:
    """Return the plan that takes every block of every slice, for a block handler."""

    def plan(version: int, _running: Iterable[int]) -> dict[int, Table]:
        return {n: Table(version, (), frozenset({b""}), 1, n, wanted=frozenset({b""})) for n in feed.slices_for(b"")}

    return plan


def slices_of_callbacks(feed: Feed, sharers: Sharers, workers: int) -> Plan:
    """Return the plan that brings each callback what its prefix asks for; it reads what is registered anew each time.

    Timers run on a worker of the first slice, that of their group.
    """

    def plan(version: int, running: Iterable[int]) -> dict[int, Table]:
        present = sharers.present
        callbacks = [callback for each in present for callback in each.callbacks]
        gap_hooks = [hook for each in present for hook in each.gap_hooks]
        starts_of = {callback: starts_by_slice(feed, callback.starts) for callback in callbacks}
        tables = {}
        for slice_id in sorted({n for slices in starts_of.values() for n in slices} | set(running)):
            of_slice = [callback for callback, slices in starts_of.items() if slice_id in slices]
            starts = [start for callback in of_slice for start in starts_of[callback][slice_id]]
            upstream = frozenset(feed.subscription_of(start, whole=whole) for start, whole in starts)
            tables[slice_id] = Table(
                version,
                of_slice,
                upstream,
                workers + 1,
                slice_id,
                wanted=_wanted(start for start, _ in starts),
                gap_hooks=gap_hooks,
                hears_live=any(each.hooks.on_live for each in present),
                key_rule=feed.key_rule,
            )
        for each in present if tables and not running else ():
            for timer in each.timers:
                group = [c.worker for c in each.callbacks if timer.group is not None and c.group == timer.group]
                worker = tables[min(tables)].workers[group[0] if group else 0]
                worker.timers = (*worker.timers, timer)
        return tables

    return plan
