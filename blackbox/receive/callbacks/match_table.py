"""Subscribed topics of one slice, laid out for the slice thread's match and the workers' dispatch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.feed.routing.key_rule import start_of_keys
from blackbox.feed.routing.symbol_trie import build_symbol_trie
from blackbox.feed.symbol_choice import ALL_TOPICS, TopicChoice
from blackbox.native.tables.prefix_trie import Trie, build_trie
from blackbox.receive.callbacks.callbacks import Callback, CompiledCallback
from blackbox.receive.callbacks.gap_hooks import NO_RULES, GapHooks, GapRules
from blackbox.receive.callbacks.timers import Timer
from blackbox.receive.deliver.worker_state import WorkerTableAt
from blackbox.receive.slice_memory import TableAt

MAX_WORKERS = 63
REMOVED = -1


class WorkerTable:
    """One worker's part of a `Table`: match set s has the callbacks `members[starts[s]:starts[s + 1]]`.

    `mine`: the callbacks on this worker; `gap_hooks`: the hooks for messages that they miss.
    """

    def __init__(
        self,
        version: int,
        slice_id: int,
        callbacks: Sequence[Callback],
        mine: Sequence[Callback],
        sets: list[list[int]],
        rules: GapRules,
    ) -> None:
        self.version = version
        self.callbacks = callbacks
        self.gap_hooks = GapHooks(mine, rules)
        self.timers: Sequence[Timer] = ()
        self._starts = numpy.zeros(len(sets) + 1, numpy.int64)
        numpy.cumsum([len(each) for each in sets], out=self._starts[1:])
        self._members = numpy.array([c for each in sets for c in each] or [0], numpy.int32)
        self._functions = numpy.zeros(len(callbacks) + 1, numpy.int64)
        self._states = numpy.zeros(len(callbacks) + 1, numpy.int64)
        self._lost = numpy.zeros(len(callbacks) + 1, numpy.int64)
        keys = [start_of_keys(rules.key_rule, callback.prefix) for callback in callbacks]
        self._key_ends = numpy.cumsum([0, *map(len, keys)], dtype=numpy.int64)
        self._keys = numpy.frombuffer(b"".join(keys) + b"\0", numpy.uint8)
        self._gets_all = numpy.array([each.gets_all for each in callbacks] or [False], numpy.uint8)
        own = set(mine)
        for number, callback in enumerate(callbacks):
            if isinstance(callback, CompiledCallback):
                self._functions[number] = callback.address
                self._states[number] = callback.state_for(slice_id).ctypes.data
                self._lost[number] = callback.lost_of(slice_id).ctypes.data if callback in own else 0
        self.at = WorkerTableAt(
            version,
            self._starts.ctypes.data,
            len(sets),
            self._members.ctypes.data,
            self._functions.ctypes.data,
            self._states.ctypes.data,
            len(self._members),
            len(callbacks),
            self._keys.ctypes.data,
            self._key_ends.ctypes.data,
            self._lost.ctypes.data,
            int(self.gap_hooks.listens),
            self._gets_all.ctypes.data,
        )

    @property
    def is_told(self) -> bool:
        """True if it receives gap notices."""
        return self.gap_hooks.listens or any(isinstance(each, CompiledCallback) for each in self.gap_hooks.callbacks)

    def remove(self, callback: Callback) -> None:
        """Deliver no further batch to a callback, even of blocks matched before its removal."""
        if callback in self.callbacks:
            self._functions[self.callbacks.index(callback)] = REMOVED


class Filters(NamedTuple):
    """Topics of a slice that a table covers."""

    upstream: frozenset[bytes] = frozenset((b"",))
    """ZeroMQ filters."""
    wanted: frozenset[bytes] = frozenset()
    """Prefixes of the subscribed topics."""
    within: TopicChoice = ALL_TOPICS
    """Topics to match with callbacks."""


class Table:
    """One version of a subscriber's topics in one slice. Immutable except for `remove`: a change makes a new one.

    A *match set* is an index of a distinct prefix, plus 1: a topic's longest prefix determines all its callbacks, since
    the shorter ones are prefixes of it. Set 0 has no callbacks. If callbacks choose symbols, a set is of all topics
    with the same callbacks.

    Attributes: `version`; `topics` and `keys`, tries of the prefixes and of the ZeroMQ filters; `upstream`, those
    filters; `wanted`, prefixes of the subscribed topics; `workers`, a `WorkerTable` each.
    """

    def __init__(
        self,
        version: int,
        slice_id: int,
        callbacks: Sequence[Callback],
        workers: int,
        filters: Filters,
        rules: GapRules = NO_RULES,
    ) -> None:
        """Match topics with `callbacks`, which run on `workers`."""
        self.version = version
        self.upstream, self.wanted, within = filters
        worker_of = [callback.worker % workers for callback in callbacks]
        self.keys: Trie = build_trie(sorted(self.upstream))
        self.topics, sets = _match_sets(callbacks, within)
        self.set_workers: NDArray[numpy.uint64] = numpy.zeros(len(sets), numpy.uint64)
        for place, members in enumerate(sets):
            self.set_workers[place] = sum(1 << w for w in {worker_of[n] for n in members})
        self.workers = [
            WorkerTable(
                version,
                slice_id,
                callbacks,
                [callback for n, callback in enumerate(callbacks) if worker_of[n] == worker],
                [[n for n in s if worker_of[n] == worker] for s in sets],
                rules,
            )
            for worker in range(workers)
        ]
        self._callbacks_of_set = numpy.zeros((1 + workers, len(sets)), numpy.int64)
        for place, members in enumerate(sets):
            for number in members:
                self._callbacks_of_set[1 + worker_of[number], place] += 1
        self._callbacks_of_set[0] = self._callbacks_of_set[1:].sum(axis=0)
        self._set_counts = numpy.zeros(len(sets), numpy.int64)
        listeners = sum(1 << number for number, worker in enumerate(self.workers) if worker.is_told)
        self.at = TableAt(
            version,
            self.set_workers.ctypes.data,
            self._set_counts.ctypes.data,
            self._callbacks_of_set.ctypes.data,
            len(sets),
            int(numpy.uint64(listeners).astype(numpy.int64)),
        )


def _match_sets(callbacks: Sequence[Callback], within: TopicChoice) -> tuple[Trie, list[list[int]]]:
    """Return the trie that finds a topic's match set, and the callback indices of each set."""
    by_prefix: dict[bytes, list[int]] = {}
    for number, callback in enumerate(callbacks):
        for prefix in callback.prefixes:
            by_prefix.setdefault(prefix, []).append(number)
    of_prefix = {
        p: members
        for p in sorted({*by_prefix, *within.prefixes})
        if p.startswith(within.prefixes)
        and (members := [n for size in range(len(p) + 1) for n in by_prefix.get(p[:size], ())])
    }
    prefixes = list(of_prefix)
    choices = [each for each in (within.symbols, *(callback.symbols for callback in callbacks)) if each is not None]
    if not choices:
        return build_trie(prefixes), [[], *of_prefix.values()]
    sets: list[list[int]] = [[]]
    places: dict[tuple[int, ...], int] = {}
    known: dict[tuple[bytes | None, bytes | None], int] = {}

    def set_of(prefix: bytes | None, symbol: bytes | None) -> int:
        if (prefix, symbol) not in known:
            members = [
                n
                for n in ([] if prefix is None else of_prefix[prefix])
                if all(each is None or symbol in each.names for each in (within.symbols, callbacks[n].symbols))
            ]
            place = places.setdefault(tuple(members), len(sets))
            if place == len(sets):
                sets.append(members)
            known[prefix, symbol] = place
        return known[prefix, symbol]

    names = {name for choice in choices for name in choice.names}
    return build_symbol_trie(prefixes, names, choices[0].rule, set_of), sets
