"""Knowledge of a watcher at one moment: the lines of feeds and the status pages of processes."""

from __future__ import annotations

from typing import Literal, NamedTuple

from blackbox.services.monitor.heartbeats import LineHealth
from blackbox.services.monitor.serve.status import ProcessStatus

Failure = Literal["", "refused", "silent", "invalid", "unreachable"]
"""Result of the last request for a page: answered; nothing listens there; no answer in time; another answer than a
status; no way to its host."""


class Line(NamedTuple):
    """One line of one slice."""

    feed: str
    heartbeat_ns: int
    """Time between two heartbeats."""
    health: LineHealth


class Page(NamedTuple):
    """One status page, with one status for each part of its process."""

    url: str
    parts: tuple[ProcessStatus, ...] = ()
    """Statuses of the last answer."""
    answered_ns: int = 0
    """Monotonic time of the last answer; 0: never."""
    failure: Failure = ""
    why: str = ""
    """The error of the last request."""
    name: str = ""
    """Name of the process that should be there; empty: none is given."""


class ConsumerPosition(NamedTuple):
    """Stored position of a named consumer in one slice."""

    name: str
    feed: str
    slice_id: int
    epoch: int
    sequence: int
    kept_ns: int
    """When it was stored, ns since 1970."""


class Snapshot(NamedTuple):
    """All of it. Decisions use the monotonic times, `now_ns` is for people."""

    at_ns: int
    """Monotonic time."""
    now_ns: int
    """The same moment, ns since 1970."""
    began_ns: int
    """Monotonic time when the watch began."""
    lines: tuple[Line, ...] = ()
    pages: tuple[Page, ...] = ()
    consumers: tuple[ConsumerPosition, ...] = ()
