"""Measure the time of each hop of a message, from the venue to a callback, by the times in blocks."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Self

import msgspec
import numpy

from blackbox.block.batch.batch import Batch
from blackbox.feed.feed import Feed
from blackbox.receive.slow_subscriber import SlowPolicy
from blackbox.receive.supervise.supervisor import SubscriberLife
from blackbox.subscriber.subscriber import Subscriber

_MOST_SAMPLES: Final = 65_536
"""Newest samples of a hop that count."""
_MOST_WAITING: Final = 4_096
"""Blocks received at one hop and not yet at the next."""

Identity = tuple[int, int, int]
"""Slice, epoch and first sequence of a block."""


class HopTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Times that sampled messages took for one hop, in ns."""

    hop: str
    samples: int
    p50_ns: int
    p99_ns: int
    max_ns: int


class Moments(NamedTuple):
    """Times of the first message of a block, in ns since 1970."""

    ts_event: int
    """At the venue; 0: not known."""
    ts_in: int
    ts_out: int
    ts_recv: int
    called: int
    """Time when the callback began."""


class Hops:
    """The newest samples of each hop. Does no I/O.

    `names`: of the places where blocks are received, in the order in which they pass them.
    """

    def __init__(self, names: Sequence[str]) -> None:
        first, *below = names
        self._names = names
        self._samples: dict[str, deque[int]] = {
            hop: deque(maxlen=_MOST_SAMPLES)
            for hop in (
                "venue to publish",
                "publish to send",
                f"send to receive at {first}",
                *(f"receive at {above} to receive at {here}" for above, here in zip(names, below, strict=False)),
                "receive to callback",
                "venue to callback",
            )
        }
        self._received: list[OrderedDict[Identity, int]] = [OrderedDict() for _ in names]

    def add(self, place: int, block: Identity, at: Moments) -> None:
        """Add what was received at a place. The hops from and to other places need the same block there."""
        if place == 0:
            if at.ts_event:
                self._samples["venue to publish"].append(at.ts_in - at.ts_event)
            self._samples["publish to send"].append(at.ts_out - at.ts_in)
            self._samples[f"send to receive at {self._names[0]}"].append(at.ts_recv - at.ts_out)
        if place == len(self._names) - 1:
            self._samples["receive to callback"].append(at.called - at.ts_recv)
            if at.ts_event:
                self._samples["venue to callback"].append(at.called - at.ts_event)
        received = self._received[place]
        received[block] = at.ts_recv
        if len(received) > _MOST_WAITING:
            received.popitem(last=False)
        for above in (place - 1, place):
            self._pair(above, block)

    def _pair(self, above: int, block: Identity) -> None:
        if 0 <= above < len(self._names) - 1:
            first, second = self._received[above].get(block), self._received[above + 1].get(block)
            if first is not None and second is not None:
                hop = f"receive at {self._names[above]} to receive at {self._names[above + 1]}"
                self._samples[hop].append(second - first)

    def times(self) -> list[HopTimes]:
        """Return the times of each hop that has samples."""
        found = []
        for hop, samples in self._samples.items():
            if values := [*samples]:
                p50, p99 = numpy.percentile(values, (50, 99), method="higher").tolist()
                found.append(HopTimes(hop=hop, samples=len(values), p50_ns=p50, p99_ns=p99, max_ns=max(values)))
        return found


class Trace:
    """Subscribes to a feed at one or several places, and samples its blocks.

    A block is sampled if it has a message whose sequence is a multiple of `every`; its first message counts, because
    `ts_in` is that message's time. The places are feed files of the same feed: the publisher's, then those below each
    relay. Use it in a `with` block.
    """

    def __init__(
        self,
        feeds: Sequence[Feed],
        names: Sequence[str],
        prefixes: Iterable[bytes] = (b"",),
        *,
        symbols: Sequence[str | bytes] | None = None,
        every: int = 1,
    ) -> None:
        """`names`: one for each place. Raises as `Subscriber.on_batch`."""
        if every < 1:
            raise ValueError(f"every was {every}, expected 1 or more")
        self.samples = 0
        """Blocks sampled at the last place."""
        self._hops, self._every, self._lock = Hops(names), every, threading.Lock()
        self._subscribers = [Subscriber(feed, slow=SlowPolicy("warn")) for feed in feeds]
        for place, subscriber in enumerate(self._subscribers):
            for prefix in prefixes:
                subscriber.on_batch(prefix, symbols=symbols)(self._sampler(place))

    def _sampler(self, place: int) -> Callable[[Batch], None]:
        every, is_last = self._every, place == len(self._subscribers) - 1

        def sample(batch: Batch) -> None:
            called, block = time.time_ns(), batch.block
            first = int(block.sequence)
            if -first % every >= block.count:
                return
            moments = Moments(int(block.ts_event[0]), batch.ts_in, batch.ts_out, batch.ts_recv, called)
            with self._lock:
                self._hops.add(place, (int(block.slice_id), int(block.epoch), first), moments)
                self.samples += is_last

        return sample

    def start(self, timeout: float | None = None) -> None:
        """Wait until all places have confirmed. Raises as `Subscriber.start`."""
        for subscriber in self._subscribers:
            subscriber.start(timeout)

    def check(self) -> None:
        """Raise the error that has ended a subscriber, if any."""
        for subscriber in self._subscribers:
            if subscriber.state is not SubscriberLife.RUNNING:
                subscriber.stop()

    def times(self) -> list[HopTimes]:
        """Return the times of each hop so far."""
        with self._lock:
            return self._hops.times()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for subscriber in self._subscribers:
            subscriber.stop()
