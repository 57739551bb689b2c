"""The parts of a process that monitors see, and their statuses, taken at most five times a second."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Final, NamedTuple

import msgspec

from blackbox import __version__
from blackbox.services.monitor.serve.observe import Beats, Observed, observe
from blackbox.services.monitor.serve.status import ProcessStatus

FRESH_S: Final = 0.2
"""Time for which statuses are reused, so that many readers cost no more than one."""
_KNOWN_S: Final = 3.0
"""Longest time between two looks after which the time of a change between them is known."""


class Watched:
    """Parts of this process, in the order in which they were added. Any thread may use it."""

    def __init__(self, *things: object) -> None:
        """`things`: publishers, subscribers, recorders ..., which need not run yet."""
        self._parts: list[_Part] = []
        self._lock = threading.Lock()
        self._seen = Seen((), ())
        self._taken_at = 0.0
        self._started_ns, self._host = time.time_ns(), socket.gethostname()
        for thing in things:
            self.add(thing)

    def add(self, thing: object) -> None:
        """Add a part. Raises TypeError if it is nothing that can be watched."""
        part = _Part(thing)
        with self._lock:
            self._parts.append(part)
            self._taken_at = 0.0

    def look(self) -> Seen:
        """Return the current state, or that of less than 0.2 s ago."""
        with self._lock:
            if time.monotonic() - self._taken_at >= FRESH_S:
                observed = tuple(part.look() for part in self._parts)
                feed = next((each.feed for each in observed if each.feed), "")
                observed = tuple(each if each.feed else each._replace(feed=feed) for each in observed)
                since_ns = [part.since_ns for part in self._parts]
                self._seen = Seen(observed, tuple(map(self._status_of, observed, since_ns)))
                self._taken_at = time.monotonic()
            return self._seen

    def _status_of(self, seen: Observed, since_ns: int) -> ProcessStatus:
        return ProcessStatus(
            role=seen.role,
            feed=seen.feed,
            host=self._host,
            pid=os.getpid(),
            version=__version__,
            started_ns=self._started_ns,
            now_ns=time.time_ns(),
            ready=not (seen.waits or seen.faults),
            healthy=not seen.faults,
            since_ns=since_ns,
            reasons=(*seen.faults, *seen.waits),
            statistics=msgspec.to_builtins(seen.statistics),
            more=tuple(map(msgspec.to_builtins, seen.more)),
            slices=seen.slices,
        )


class _Part:
    """A part, and since when it has been ready and healthy, or not."""

    def __init__(self, thing: object) -> None:
        self._thing, self._beats = thing, Beats()
        self._state: tuple[bool, bool] | None = None
        self._looked_at = time.monotonic()
        self.since_ns = 0
        self.look()

    def look(self) -> Observed:
        """Return its state. A change is of this moment if the last look was a moment ago, else its time is unknown."""
        seen, now = observe(self._thing, self._beats), time.monotonic()
        state = not (seen.waits or seen.faults), not seen.faults
        if state != self._state:
            self.since_ns = time.time_ns() if now - self._looked_at <= _KNOWN_S else 0
        self._state, self._looked_at = state, now
        return seen


class Seen(NamedTuple):
    """The state of all parts at one moment."""

    observed: tuple[Observed, ...]
    statuses: tuple[ProcessStatus, ...]

    @property
    def reasons(self) -> list[str]:
        """Return all reasons, each with its part if there are several."""
        named = len(self.statuses) > 1
        return [f"{each.role}: {reason}" if named else reason for each in self.statuses for reason in each.reasons]

    @property
    def is_ready(self) -> bool:
        """True if all parts are ready, and there is one."""
        return bool(self.statuses) and all(each.ready for each in self.statuses)

    @property
    def is_healthy(self) -> bool:
        """True unless a part has failed or is stuck."""
        return all(each.healthy for each in self.statuses)
