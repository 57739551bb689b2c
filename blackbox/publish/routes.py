"""Slice and topic id of each published topic."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import numpy

from blackbox.arguments import as_bytes
from blackbox.feed.feed import Feed
from blackbox.publish.send.ring import Ring
from blackbox.publish.send.slice_writer import Resolved, SliceWriter


class Route(NamedTuple):
    """Values that `publish` needs for a topic; `shared` and `view` belong to the ring."""

    slice_id: int
    topic_id: int
    ring: Ring
    shared: memoryview[int]
    view: memoryview[int]


class Routes(dict[str | bytes, Route]):
    """Routes by topic, as str or bytes like the caller's, filled when a topic is first published.

    In a forked process they are empty, so that the next lookup calls `running`, which raises there.
    """

    _all: ClassVar[weakref.WeakValueDictionary[int, Routes]] = weakref.WeakValueDictionary()

    def __init__(self, feed: Feed, running: Callable[[], list[SliceWriter]]) -> None:
        super().__init__()
        self._feed = feed
        self._running = weakref.WeakMethod(running)  # avoids a reference cycle: the publisher holds this
        self._all[id(self)] = self
        self._forget()

    def _forget(self) -> None:
        self.clear()
        nothing = numpy.empty(0, numpy.int32)
        self._resolved: tuple[Sequence[str | bytes], Resolved] = (), Resolved(nothing, nothing, [])

    @staticmethod
    def forget_all() -> None:
        """Forget all routes, in a forked process."""
        for routes in tuple(Routes._all.values()):
            routes._forget()

    def __missing__(self, topic: str | bytes) -> Route:
        name = as_bytes("topic", topic)
        running = self._running()
        assert running is not None, "routes are used only by a live publisher"
        slice_id = self._feed.slice_of(name)
        sender = running()[slice_id].sender
        ring = sender.ring
        with ring.lock:
            sender.check()
            route = self[topic] = Route(slice_id, sender.topics.add(name), ring, ring.shared, ring.view)
        return route

    def resolve(self, topics: Sequence[str | bytes]) -> Resolved:
        """Return the routes of topics. A tuple that is passed again is not looked up again."""
        before, resolved = self._resolved
        if topics is before:
            return resolved
        # A source appends topics: earlier ones are the same objects, which makes this comparison fast.
        known = len(before) if topics[: len(before)] == before else 0
        routes = [self[topic] for topic in topics[known:]]
        slices = numpy.array([route.slice_id for route in routes], numpy.int32)
        ids = numpy.array([route.topic_id for route in routes], numpy.int32)
        resolved = Resolved.of(
            numpy.concatenate([resolved.slices[:known], slices]), numpy.concatenate([resolved.ids[:known], ids])
        )
        if type(topics) is tuple:  # a list could be changed by its owner
            self._resolved = topics, resolved
        return resolved


os.register_at_fork(after_in_child=Routes.forget_all)
