"""An installation as its snapshots show it: the newest state, and how counters have grown. Does no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from blackbox.feed.feed import Feed
from blackbox.feed.monitor import Monitor
from blackbox.services.monitor.serve.status import ProcessStatus
from blackbox.services.monitor.watch.snapshot import Line, Page, Snapshot

_MOST_SAMPLES: Final = 32
"""Samples kept of each part: half a minute at one a second."""
_MOST_ENDS: Final = 900
"""Heartbeats kept of each slice: a quarter of an hour at one a second."""
_DEFAULT_LIMIT_NS: Final = 1_000_000_000
_RATE_S: Final = 2.0
"""Least time over which rates are computed."""


class Part(NamedTuple):
    """One part of a process: its newest status."""

    key: str
    """URL of its page and its place there."""
    page: Page
    status: ProcessStatus

    @property
    def name(self) -> str:
        """Role, process and host, as in alerts."""
        return f"{self.status.role} {self.status.pid} on {self.status.host}"

    def figure(self, *path: str | int) -> float:
        """Return a number of the statistics; 0 if it is not there."""
        return figure(self.status.statistics, *path)

    def list(self, *path: str | int) -> list[Mapping[str, Any]]:
        """Return the objects in a list of the statistics; empty if it is not there."""
        found = _at(self.status.statistics, path)
        return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list | tuple) else []

    def has(self, *path: str | int) -> bool:
        """Return True if the statistics have this."""
        return _at(self.status.statistics, path) is not None

    @property
    def inside(self) -> tuple[str, ...]:
        """Path of a receiver's statistics: those of a plain relay are one level deeper."""
        return ("source",) if self.has("source", "received") else ()

    @property
    def is_receiver(self) -> bool:
        """True if it receives the messages of a feed and counts gaps."""
        return self.has(*self.inside, "received")


class _Sample(NamedTuple):
    at_ns: int
    status: ProcessStatus


class Installation:
    """Feeds and processes, kept current by `take`. Used by one thread."""

    def __init__(self, feeds: Iterable[Feed] = ()) -> None:
        self.feeds = {feed.name: feed for feed in feeds}
        self.now = Snapshot(0, 0, 0)
        self.parts: tuple[Part, ...] = ()
        self._samples: dict[str, deque[_Sample]] = {}
        self._fresh: set[str] = set()
        """Keys of the parts with a new status in this snapshot."""
        self._names: dict[str, str] = {}
        """Names of parts by the addresses of their connections; empty: it is not sure whose."""
        self._ends: dict[tuple[str, int], deque[tuple[int, int, int]]] = {}
        """By feed and slice: time (ns since 1970), epoch and next sequence at each heartbeat."""

    def take(self, snapshot: Snapshot) -> None:
        """Take the next snapshot."""
        self.now = snapshot
        self.parts = tuple(_parts(snapshot.pages))
        self._fresh = set()
        for part in self.parts:
            samples = self._samples.setdefault(part.key, deque(maxlen=_MOST_SAMPLES))
            if samples and not _is_same(samples[-1].status, part.status):
                samples.clear()
            if not samples or samples[-1].at_ns != part.page.answered_ns:
                samples.append(_Sample(part.page.answered_ns, part.status))
                self._fresh.add(part.key)
        for key in self._samples.keys() - {part.key for part in self.parts}:
            del self._samples[key]
        self._names = {}
        for part in (each for each in self.parts if each.page.failure != "refused"):  # a stuck one keeps connections
            for address in {_of_host(each, part.status.host) for at in part.status.slices for each in at.addresses}:
                self._names[address] = part.name if self._names.get(address, part.name) == part.name else ""
        for line in snapshot.lines:
            self._note_end(line)

    def _note_end(self, line: Line) -> None:
        health = line.health
        if health.epoch is not None:
            ends = self._ends.setdefault((line.feed, health.slice_id), deque(maxlen=_MOST_ENDS))
            if not ends or (health.epoch, health.messages) > ends[-1][1:]:
                ends.append((health.last_heard_ns, health.epoch, health.messages))

    def process_at(self, address: str, host: str) -> str:
        """Return the name of the process behind a peer's address, as a process on `host` sees it; empty: not known."""
        return self._names.get(_of_host(address, host), "")

    # Time

    def wall_ns(self, at_ns: int) -> int:
        """Return a monotonic time of this host as ns since 1970."""
        return self.now.now_ns - (self.now.at_ns - at_ns)

    def since_state_ns(self, part: Part) -> int:
        """Return when a part became ready, not ready, or unhealthy, by this host's clock, ns since 1970; 0: unknown."""
        status = part.status
        since_ns = self.wall_ns(part.page.answered_ns) - (status.now_ns - status.since_ns)
        return max(0, since_ns) if status.since_ns else 0

    # Limits

    def max_lag_ns(self, feed: str) -> int:
        """Return the lag limit of a feed; one second if its file is not known."""
        return self.feeds[feed].max_lag_ns if feed in self.feeds else _DEFAULT_LIMIT_NS

    def max_peers(self, feed: str) -> int:
        """Return the limit for connections to one process of a feed."""
        monitor = self.feeds[feed].monitor if feed in self.feeds else None
        return (monitor or Monitor()).max_peers

    # Growth

    def growth(self, part: Part, *path: str | int) -> float:
        """Return by how much a counter has grown in an answer that the newest snapshot brought; 0 if it brought none.

        Each growth is therefore returned for one snapshot only.
        """
        samples = self._samples[part.key]
        is_fresh = part.key in self._fresh and len(samples) > 1
        return max(0.0, _difference(samples[-2], samples[-1], path)) if is_fresh else 0.0

    def rate(self, part: Part, *path: str | int) -> float | None:
        """Return the growth of a counter per second over at least two seconds; None: not known yet."""
        samples = self._samples[part.key]
        for sample in reversed(samples):
            seconds = (samples[-1].at_ns - sample.at_ns) / 1e9
            if seconds >= _RATE_S:
                return _difference(sample, samples[-1], path) / seconds
        return None

    def still_s(self, part: Part, *path: str | int, waiting: tuple[str | int, ...] = ()) -> float:
        """Return the seconds since the last known change of a counter.

        `waiting`: another figure, which has been above 0 all the time.
        """
        samples = self._samples[part.key]
        last = samples[-1]
        since_ns = last.at_ns
        for sample in reversed(samples):
            if _difference(sample, last, path) or (waiting and figure(sample.status.statistics, *waiting) <= 0):
                break
            since_ns = sample.at_ns
        return (last.at_ns - since_ns) / 1e9

    def since_ns(self, feed: str, slice_id: int, epoch: int, sequence: int) -> int | None:
        """Return when a slice had passed a position, ns since 1970; None: before the watch, or not yet."""
        before = None
        for time_ns, its_epoch, its_sequence in self._ends.get((feed, slice_id), ()):
            if (its_epoch, its_sequence) > (epoch, sequence):
                return time_ns if before is not None else None
            before = time_ns
        return None

    def end_of(self, feed: str, slice_id: int) -> tuple[int, int] | None:
        """Return epoch and next sequence of a slice; None: not known."""
        ends = self._ends.get((feed, slice_id))
        return ends[-1][1:] if ends else None


def figure(values: object, *path: str | int) -> float:
    """Return the number at a path in decoded JSON of others; 0 if it is missing or beyond int64."""
    found = _at(values, path)
    return found if isinstance(found, int | float) and not isinstance(found, bool) and abs(found) < 1 << 63 else 0


def text(value: object) -> str:
    """Return text in decoded JSON of others; empty for anything else, such as lists too deep to show."""
    return value if isinstance(value, str) else ""


def path_of(line: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the relays from the source to that of a line; empty: not known."""
    path = line.get("path")
    return tuple(filter(text, path)) if isinstance(path, list | tuple) else ()


def _of_host(address: str, host: str) -> str:
    """Return an address that is the same at both ends of a connection, with the host if it is valid only there."""
    address = address.replace("[::ffff:", "").replace("]", "") if address.startswith("[::ffff:") else address
    return f"{host} {address}" if address.startswith(("127.", "[::1]")) else address


def _at(values: object, path: Iterable[str | int]) -> Any:
    for name in path:
        if isinstance(name, int):
            values = values[name] if isinstance(values, list | tuple) and name < len(values) else None
        else:
            values = values.get(name) if isinstance(values, Mapping) else None
    return values


def _difference(before: _Sample, after: _Sample, path: tuple[str | int, ...]) -> float:
    return figure(after.status.statistics, *path) - figure(before.status.statistics, *path)


def _is_same(before: ProcessStatus, after: ProcessStatus) -> bool:
    """Return True if both are of one run of one part."""
    return (before.role, before.pid, before.host, before.started_ns) == (
        after.role,
        after.pid,
        after.host,
        after.started_ns,
    )


def _parts(pages: Iterable[Page]) -> Iterator[Part]:
    for page in pages:
        for place, status in enumerate(page.parts):
            yield Part(f"{page.url}#{place}", page, status)
