"""One look at an installation after the other: what it is like, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterable

from blackbox.services.monitor.watch.conditions import Changes, Conditions, Finding
from blackbox.services.monitor.watch.installation import Installation
from blackbox.services.monitor.watch.rules import explained, findings
from blackbox.services.monitor.watch.view import TopicRow, View, view_of
from blackbox.services.monitor.watch.watcher import Watcher


class Watch:
    """Takes snapshots of a running watcher and decides. One thread at a time uses it."""

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.installation = Installation(watcher.feeds)
        self.conditions = Conditions()

    def look(self, alerts: Iterable[Finding] = ()) -> Changes:
        """Look once, and return the conditions that began and ended."""
        snapshot = self.watcher.snapshot()
        self.installation.take(snapshot)
        found = explained([*alerts, *findings(self.installation)], self.conditions.raised)
        return self.conditions.look(found, snapshot.at_ns, snapshot.now_ns)

    def view(self, topics: tuple[TopicRow, ...] = ()) -> View:
        """Return the state at the last look."""
        return view_of(self.installation, self.conditions.now, topics)
