"""Stories for rules: snapshots of an installation, one a second, and the conditions that they lead to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from blackbox import Feed
from blackbox.feed.monitor import Monitor
from blackbox.feed.slice import Slice
from blackbox.services.monitor.heartbeats import LineHealth, LineState
from blackbox.services.monitor.serve.status import ProcessStatus
from blackbox.services.monitor.watch.conditions import Condition, Conditions
from blackbox.services.monitor.watch.installation import Installation
from blackbox.services.monitor.watch.rules import explained, findings
from blackbox.services.monitor.watch.snapshot import Failure, Line, Page, Snapshot

S = 1_000_000_000
START_NS = 1_790_000_000 * S
FEED = Feed(
    name="quotes",
    slices=(Slice(endpoints=("tcp://127.0.0.1:17201", "tcp://127.0.0.1:17202")),),
    monitor=Monitor(max_peers=10),
)


def status(role: str, statistics: dict[str, Any] | None = None, **fields: Any) -> ProcessStatus:
    """Return a status of a healthy part."""
    defaults: dict[str, Any] = {
        "feed": "quotes",
        "host": "desk",
        "pid": 7,
        "version": "1",
        "started_ns": 1,
        "now_ns": 2,
    }
    defaults |= {"ready": True, "healthy": True}
    return ProcessStatus(role=role, statistics=statistics or {}, **(defaults | fields))


def received(**changes: Any) -> dict[str, Any]:
    """Return statistics of a receiver; `lag_last_ns=5` changes `lag.last_ns`."""
    values: dict[str, dict[str, Any]] = {
        "received": {"messages": 1_000, "blocks": 100, "gaps": 0},
        "delivery": {"delivered": 1_000, "queue_blocks": 0, "dropped": 0},
        "lag": {"last_ns": 100_000, "last_age_ns": 200_000, "clock_steps": 0, "clock_offset_ns": 0},
    }
    for name, value in changes.items():
        group, _, field = name.partition("_")
        values[group][field] = value
    return values


class Story:
    """Conditions of an installation over a made-up time."""

    def __init__(self, feed: Feed = FEED) -> None:
        self.installation, self.conditions = Installation([feed]), Conditions()
        self.feed, self.at_ns = feed, 1_000 * S
        self.began_ns = self.at_ns
        self.lines = [
            LineHealth(slice_id=0, line=name, endpoint=endpoint, state=LineState.ALIVE, epoch=1)
            for name, endpoint in zip("AB", feed.slices[0].lines, strict=True)
        ]
        self.pages: dict[str, Page] = {}
        self.raised: list[Condition] = []
        self.cleared: list[Condition] = []

    def answer(self, *parts: ProcessStatus, url: str = "http://desk:9300") -> None:
        """Let a page answer at the present time."""
        self.pages[url] = Page(url, parts, self.at_ns)

    def fail(self, failure: Failure, why: str, url: str = "http://desk:9300") -> None:
        """Let a request for a page fail."""
        self.pages[url] = self.pages.get(url, Page(url))._replace(failure=failure, why=why)

    def look(self, seconds: float = 1.0) -> list[str]:
        """Decide at the present time, then let time pass. Return the kinds of the present conditions."""
        wall_ns = START_NS + self.at_ns
        lines = tuple(Line(self.feed.name, self.feed.heartbeat_ns, each) for each in self.lines)
        snapshot = Snapshot(self.at_ns, wall_ns, self.began_ns, lines, tuple(self.pages.values()))
        self.installation.take(snapshot)
        found = explained(findings(self.installation), self.conditions.raised)
        changes = self.conditions.look(found, self.at_ns, wall_ns)
        self.raised += changes.raised
        self.cleared += changes.cleared
        self.at_ns += round(seconds * S)
        return self.kinds

    @property
    def kinds(self) -> list[str]:
        return [each.kind for each in self.conditions.now]

    def see(self, *statuses: ProcessStatus) -> list[str]:
        """Let the page answer with each status in turn, one a second."""
        for each in statuses:
            self.answer(each)
            self.look()
        return self.kinds

    def calm(self, last: ProcessStatus, seconds: int) -> None:
        """Let time pass while counters stay as they are, except for received blocks."""
        for number in range(seconds):
            values = {**last.statistics}
            if "received" in values:
                values["received"] = {**values["received"], "blocks": 10_000 + number}
            self.answer(ProcessStatus(**{**_fields(last), "statistics": values}))
            self.look()


def _fields(status: ProcessStatus) -> dict[str, Any]:
    return {name: getattr(status, name) for name in status.__struct_fields__}


def growing(*changes: dict[str, Any], role: str = "subscriber", **fields: Any) -> Iterable[ProcessStatus]:
    """Return statuses of a receiver that receives blocks all the time."""
    for number, each in enumerate(changes):
        grown = {"received_blocks": 100 * (number + 1), "delivery_delivered": 1_000 * (number + 1)}
        yield status(role, received(**grown, **each), **fields)
