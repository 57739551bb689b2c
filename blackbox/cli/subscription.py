"""What `blackbox subscribe` counts, and how it shows it: live on a terminal, else as lines, at the end as a table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy
from rich.console import Group, RenderableType
from rich.live import Live

from blackbox.batch import Batch
from blackbox.cli.feeds import feed_text
from blackbox.cli.shown import Shown, schema_of
from blackbox.cli.symbols import SymbolOf
from blackbox.cli.terminal import (
    LAG,
    bad_if,
    columns_table,
    count,
    duration,
    megabytes,
    rate,
    say,
    stderr,
    stdout,
    titled,
    values_table,
)
from blackbox.memory import shared_array
from blackbox.statistics import Statistics
from blackbox.subscriber import Subscriber

LIVE_EVERY_S = 0.25
LINE_EVERY_S = 2.0
_RATE_OVER_S = 1.0


class Screen(Protocol):
    """Something that shows how a subscription does, when called often."""

    def show(self) -> None:
        """Show it, if it is time."""


class Subscription:
    """A subscriber with one batch callback for each prefix, which counts.

    The counts lie in memory that forked processes share: a word for each prefix and slice, each written by one thread.
    """

    def __init__(self, subscriber: Subscriber, prefixes: tuple[bytes, ...], show: int) -> None:
        self.subscriber = subscriber
        self.prefixes = prefixes
        self._counts = shared_array((len(prefixes), len(subscriber.feed.slices)), numpy.int64)
        self._schema_id = shared_array((1,), numpy.int64)
        self._shown = Shown(show, lambda line: stdout.print(line, markup=False, highlight=False, soft_wrap=True))
        for place, prefix in enumerate(prefixes):
            subscriber.on_batch(prefix)(self._counter(place))

    def _counter(self, place: int) -> Callable[[Batch], None]:
        counts, schema_id, offer = self._counts[place], self._schema_id, self._shown.offer

        def count_batch(batch: Batch) -> None:
            schema_id[0] = batch.block.schema_id  # what the publisher says: to a raw feed it can be any
            counts[batch.block.slice_id] += len(batch)
            offer(batch)

        return count_batch

    @contextmanager
    def screen(self) -> Iterator[Screen]:
        """Show the subscription, which has started, until its end."""
        self._shown.start()
        try:
            terminal = next((console for console in (stdout, stderr) if console.is_terminal), None)
            if terminal is not None:
                with Live(console=terminal, auto_refresh=False, transient=True) as live:
                    yield _LiveScreen(self, live)
            else:
                yield _LineScreen(self)
        finally:
            self._shown.close()

    def delivered(self) -> list[int]:
        """Messages that each prefix's callback got."""
        return [int(total) for total in self._counts.sum(axis=1)]

    def print_statistics(self) -> None:
        """The end of it."""
        subscriber, prefixes = self.subscriber, self.prefixes
        now = subscriber.statistics()
        seen = [topic for part in now.slices for topic in subscriber.topics(part.slice_id)]
        topics = [topic for topic in seen if topic.startswith(prefixes)]
        stdout.print(
            titled(
                f"received from {feed_text(subscriber.feed)}",
                values_table(
                    [
                        ("schema", self._schema()),
                        ("received", count(now.received), "all that came, also what no PREFIX takes"),
                        ("delivered", count(now.delivered), "to callbacks: counted once for each PREFIX that takes it"),
                        ("symbols", count(SymbolOf(subscriber.feed.topic).count(topics))),
                        ("topics", count(len(topics))),
                        ("blocks", count(now.blocks)),
                        ("lost", bad_if(now.gaps > 0, count(now.gaps)), "sequence numbers that never came"),
                        ("duplicated", count(now.duplicates), "came again, from the other line: delivered once"),
                        ("dropped", bad_if(now.dropped > 0, count(now.dropped)), "too late: --on-slow drop"),
                        ("conflated", count(now.conflated), "replaced by newer ones: --on-slow conflate"),
                        ("discarded", bad_if(now.discarded > 0, count(now.discarded)), "not delivered before the end"),
                        ("malformed", bad_if(now.malformed > 0, count(now.malformed)), "blocks that were not valid"),
                        ("lag p50", duration(now.lag_p50_ns), LAG),
                        ("lag p99", duration(now.lag_p99_ns), "99 in 100 messages had no more"),
                        ("lag max", duration(now.lag_max_ns)),
                    ]
                ),
            )
        )

    def _schema(self) -> str:
        schema_id = int(self._schema_id[0])
        return schema_of(schema_id).name if schema_id else self.subscriber.feed.schema


class Rates:
    """Messages and bytes a second over about the last second, for each of some counters."""

    def __init__(self) -> None:
        self._before: dict[Any, tuple[float, float]] = {}
        self._shown: dict[Any, float] = {}

    def per_second(self, name: object, total: float) -> float:
        """The rate of the counter called `name`, which is at `total` now."""
        now = time.monotonic()
        then, value = self._before.setdefault(name, (now, total))
        if now - then >= _RATE_OVER_S:
            self._shown[name] = (total - value) / (now - then)
            self._before[name] = now, total
        return self._shown.get(name, 0.0)


class _LineScreen:
    """A line on stderr every other second."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._last = time.monotonic()
        self._received = 0
        self._octets = 0

    def show(self) -> None:
        """Print the line, if it is time."""
        seconds = time.monotonic() - self._last
        if seconds < LINE_EVERY_S:
            return
        now = self._subscription.subscriber.statistics()
        say(
            f"received {count(now.received)} messages, {rate(now.received - self._received, seconds)}, "
            f"{megabytes(now.body_bytes - self._octets, seconds)}, lost {count(now.gaps)}, "
            f"lag p99 {duration(now.lag_p99_ns)}"
        )
        self._last += seconds
        self._received, self._octets = now.received, now.body_bytes


class _LiveScreen:
    """Two tables that stay in place: slices and callbacks."""

    def __init__(self, subscription: Subscription, live: Live) -> None:
        self._subscription = subscription
        self._live = live
        self._last = 0.0
        self._rates = Rates()

    def show(self) -> None:
        """Draw the tables, if it is time."""
        if time.monotonic() - self._last >= LIVE_EVERY_S:
            self._last = time.monotonic()
            now = self._subscription.subscriber.statistics()
            self._live.update(Group(self._slices(now), self._callbacks()), refresh=True)

    def _slices(self, now: Statistics) -> RenderableType:
        table = columns_table(
            ("slice", "received", "rate", "lost", "duplicated", "dropped", "queue", "lag p99"),
        )
        for part in now.slices:
            table.add_row(
                str(part.slice_id),
                count(part.received),
                rate(self._rates.per_second(part.slice_id, part.received), 1),
                bad_if(part.gaps > 0, count(part.gaps)),
                count(part.duplicates),
                bad_if(part.dropped > 0, count(part.dropped)),
                count(part.queue_blocks),
                duration(part.lag_p99_ns),
            )
        table.caption = f"queue: blocks that wait for callbacks; {LAG}"
        return titled("slices", table)

    def _callbacks(self) -> RenderableType:
        table = columns_table(("prefix", "delivered", "rate"))
        for prefix, delivered in zip(self._subscription.prefixes, self._subscription.delivered(), strict=True):
            name = prefix.decode(errors="backslashreplace") or "(all)"
            per_second = self._rates.per_second(prefix, delivered)
            table.add_row(name.replace("[", r"\["), count(delivered), rate(per_second, 1))
        return titled("callbacks", table)
