"""Subscribers that share slices: their registrations, who is present and who is leaving."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Final

from blackbox.errors import RightsError
from blackbox.feed.symbol_choice import starts_by_slice
from blackbox.receive.callbacks.callbacks import IN_SLICE, Callback
from blackbox.receive.callbacks.gap_hooks import GapHook
from blackbox.receive.callbacks.slice_hooks import NO_HOOKS, SliceHooks
from blackbox.receive.callbacks.timers import Timer
from blackbox.receive.publishers.refusal import Refusal

if TYPE_CHECKING:
    from blackbox.feed.feed import Feed
    from blackbox.receive.stream import Stream

log = logging.getLogger("blackbox")

_MOST_REFUSALS: Final = 1_000


class Registered:
    """Registrations of one subscriber."""

    def __init__(self) -> None:
        self.callbacks: list[Callback] = []
        self.timers: list[Timer] = []
        self.gap_hooks: list[GapHook] = []
        self.hooks = SliceHooks([], [], [])
        self.streams: list[Stream] = []
        self._refusals: deque[tuple[bytes, RightsError]] = deque(maxlen=_MOST_REFUSALS)
        """Prefixes of callbacks removed after a refusal, until their owner gets the error."""

    def refuse(self, callback: Callback, error: RightsError) -> None:
        """Remove a callback whose prefix was refused. The error ends its stream if it has one, else it is logged."""
        callback.active = False
        self.callbacks.remove(callback)
        self._refusals.append((callback.prefix, error))
        for stream in tuple(self.streams):
            if callback.function == stream._queue.put:
                self.streams.remove(stream)
                stream._queue.end(failure=error)
                return
        log.error("%s: callback %s was removed", error, callback.name)

    def raise_refusal(self, prefixes: tuple[bytes, ...]) -> None:
        """Raise, once, the refusal of a prefix that begins with one of `prefixes`, or the reverse."""
        for refused, error in tuple(self._refusals):
            if refused.startswith(prefixes) or any(each.startswith(refused) for each in prefixes):
                self._refusals.remove((refused, error))
                raise RightsError(*error.args) from error

    def slices(self, feed: Feed) -> set[int]:
        """Return the slices that its callbacks need."""
        return {n for callback in tuple(self.callbacks) for n in starts_by_slice(feed, callback.starts)}


class Sharers:
    """The active subscribers. Changed with the supervisor's lock held; any thread may read.

    It refers to no subscriber, since a cycle would keep the subscriber's descriptors open.
    """

    def __init__(self, workers: int) -> None:
        """`workers`: number per slice."""
        self.present: tuple[Registered, ...] = ()
        self.leaving: dict[Registered, int] = {}
        """First version of the plan without them; blocks matched before are still delivered. Replaced at each
        change."""
        self.loads = [0] * workers
        """Callbacks of each worker, counted incrementally, since recounting each time would be quadratic."""

    def join(self, registered: Registered) -> None:
        """Call its callbacks from now on."""
        self.present = (*self.present, registered)

    def leave(self, registered: Registered, version: int) -> None:
        """Exclude it from plans of a version and later. Blocks matched before are delivered to it, until `forget`."""
        self.present = tuple(each for each in self.present if each is not registered)
        self.leaving = {**self.leaving, registered: version}

    def forget(self, registered: Registered) -> None:
        """Stop calling its callbacks."""
        self.leaving = {each: version for each, version in self.leaving.items() if each is not registered}
        for callback in registered.callbacks:
            callback.active = False
        for timer in registered.timers:
            timer.active = False
        for stream in registered.streams:
            stream._queue.end()
        self.count(registered.callbacks, -1)

    def count(self, callbacks: Iterable[Callback], by: int) -> None:
        """Count callbacks added to their workers, or removed."""
        for callback in callbacks:
            if callback.worker != IN_SLICE:
                self.loads[callback.worker] += by

    def refuse(self, feed: Feed, refusal: Refusal) -> list[Callback]:
        """Remove and return the callbacks that need refused filters."""
        gone = list[Callback]()
        for registered in self.present:
            for callback in tuple(registered.callbacks):
                if (error := refusal.error_of(feed, callback.starts)) is not None:
                    registered.refuse(callback, error)
                    gone.append(callback)
        self.count(gone, -1)
        return gone

    def hooks(self) -> SliceHooks:
        """Return the hooks of all subscribers."""
        of_all = [each.hooks for each in (*self.present, *self.leaving)]
        return SliceHooks(*(list(chain(*hooks)) for hooks in zip(NO_HOOKS, *of_all, strict=True)))

    def streams(self) -> list[Stream]:
        """Return the streams of all subscribers."""
        return [stream for each in (*self.present, *self.leaving) for stream in tuple(each.streams)]

    def only_others_need(self, registered: Registered, feed: Feed) -> frozenset[int]:
        """Return the slices that only others need."""
        others = [each for each in self.present if each is not registered]
        needed = {n for each in others for n in each.slices(feed)}
        return frozenset(needed - registered.slices(feed) if needed else ())
