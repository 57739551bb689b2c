"""Collect the traces of a feed, and report where the time of its messages goes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, Self

import msgspec
import numpy

from blackbox.arguments import Duration
from blackbox.block.batch.batch import Batch
from blackbox.feed.feed import Feed
from blackbox.receive.slow_subscriber import SlowPolicy
from blackbox.receive.supervise.supervisor import SubscriberLife
from blackbox.receive.trace.hops import Hop, Trace, TraceReader
from blackbox.subscriber.subscriber import Subscriber

_MOST_SAMPLES: Final = 65_536
"""Newest samples of a hop that count."""
_NAMES: Final = ("venue", "publish", "send", "relay in", "relay out", "receive", "match", "callback")
_Point = tuple[int, int, int]
"""A hop, comparable in the order of the way: before, at or after relays, the relay's place, and the hop's name."""


class HopTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Times that traced messages took for one hop, in ns."""

    hop: str
    """Its two ends, such as `send to receive`."""
    samples: int
    p50_ns: int
    p99_ns: int
    max_ns: int


class Hops:
    """The newest samples of each hop. Does no I/O.

    Attributes: `traces`, their number.
    """

    def __init__(self) -> None:
        self.traces = 0
        # By place: names of relays come from others, and are not bounded.
        self._samples: dict[tuple[bool, _Point, _Point], deque[int]] = {}
        self._names: dict[tuple[bool, _Point, _Point], str] = {}

    def add(self, trace: Trace) -> None:
        """Add a trace: each hop from the one before, and the whole way from the venue and from `publish`."""
        self.traces += 1
        for before, hop in pairwise(trace.hops):
            self._add(before, hop, is_whole=False)
        for hop in trace.hops:
            if hop.name in ("venue", "publish"):
                self._add(hop, trace.hops[-1], is_whole=True)

    def _add(self, before: Hop, hop: Hop, *, is_whole: bool) -> None:
        ends = is_whole, _point(hop), _point(before)
        self._samples.setdefault(ends, deque(maxlen=_MOST_SAMPLES)).append(hop.at_ns - before.at_ns)
        self._names[ends] = f"{before.label} to {hop.label}"

    def times(self) -> list[HopTimes]:
        """Return the times of each hop that has samples, in the order of the way."""
        found = []
        for ends, samples in sorted(self._samples.items()):
            p50, p99 = numpy.percentile([*samples], (50, 99), method="inverted_cdf").tolist()
            name, longest = self._names[ends], max(samples)
            found.append(HopTimes(hop=name, samples=len(samples), p50_ns=p50, p99_ns=p99, max_ns=longest))
        return found


def _point(hop: Hop) -> _Point:
    name = _NAMES.index(hop.name)
    stage = 1 if hop.place else 2 * (name >= _NAMES.index("receive"))
    return stage, hop.place, name


class Tracer:
    """Subscribes to a feed, and traces its messages. Use it in a `with` block."""

    def __init__(
        self,
        feed: Feed,
        prefixes: Iterable[bytes] = (b"",),
        *,
        symbols: Sequence[str | bytes] | None = None,
        every: int | None = None,
    ) -> None:
        """`every`: trace one message in this many, instead of `trace_every` of the feed. Raises as `on_batch`."""
        if every is not None:
            feed = msgspec.structs.replace(feed, trace_every=every)
        self._hops, self._reader = Hops(), TraceReader()
        self._subscriber = Subscriber(feed, workers=1, slow=SlowPolicy("warn"))
        for prefix in prefixes:
            self._subscriber.on_batch(prefix, symbols=symbols)(_leave)

    def start(self, timeout: Duration | None = None) -> None:
        """Wait until the publishers have confirmed. Raises as `Subscriber.start`."""
        self._subscriber.start(timeout)

    def look(self) -> int:
        """Add the new traces; return the number of all. Raises the error that has ended the subscriber, if any."""
        if self._subscriber.state is not SubscriberLife.RUNNING:
            self._subscriber.stop()
        for trace in self._subscriber._supervisor.slices.traces(self._reader):
            self._hops.add(trace)
        return self._hops.traces

    def times(self) -> list[HopTimes]:
        """Return the times of each hop so far."""
        return self._hops.times()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._subscriber.stop()


def _leave(batch: Batch) -> None:
    """Take a batch: only its way is of interest."""
