"""Count the messages of each topic of feeds, for the busiest ones. Subscribes to whole feeds: only while looked at."""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Iterable
from typing import Any, Final, Self

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.block.batch.batch import Batch
from blackbox.errors import BlackBoxError
from blackbox.feed.feed import Feed
from blackbox.native.system.limits import start_thread
from blackbox.receive.slow_subscriber import SlowPolicy
from blackbox.services.monitor.watch.view import TopicRow
from blackbox.subscriber.subscriber import Subscriber

log = logging.getLogger("blackbox")

_RATE_S: Final = 2.0
_MOST_TOPICS: Final = 100
_LAG_S: Final = 0.5


class TopicCounts:
    """Counts in a `with` block, with one subscriber per feed that drops blocks rather than lag. Used by one thread.

    Counts are therefore lower bounds while this process does not keep up.
    """

    def __init__(self, feeds: Iterable[Feed]) -> None:
        self._feeds = [_Counted(feed) for feed in feeds]

    def __enter__(self) -> Self:
        """Begin to subscribe, without waiting for publishers."""
        for each in self._feeds:
            start_thread(each.thread)
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._feeds:
            each.subscriber.request_stop()
            each.subscriber.terminate()

    def busiest(self) -> tuple[TopicRow, ...]:
        """Return the busiest topics of the last seconds."""
        rows = [row for each in self._feeds for row in each.rows()]
        return tuple(heapq.nlargest(_MOST_TOPICS, rows, key=lambda row: row.messages_per_second))


class _Counted:
    """The counts of one feed. A callback of each slice adds to an array of that slice."""

    def __init__(self, feed: Feed) -> None:
        self.feed = msgspec.structs.replace(feed, monitor=None)  # its lag causes no alert
        self._counts: list[NDArray[numpy.int64]] = [numpy.zeros(1_024, numpy.int64) for _ in feed.slices]
        self._before: list[NDArray[numpy.int64]] = [each.copy() for each in self._counts]
        self._at, self._rows = time.monotonic(), tuple[TopicRow, ...]()
        slow = SlowPolicy("drop", _LAG_S, start_grace=0)
        self.subscriber = Subscriber(self.feed, workers=0, slow=slow)
        self.subscriber.on_batch(b"")(self._add)
        self.thread = threading.Thread(target=self._start, name="blackbox-topics", daemon=True)

    def _start(self) -> None:
        try:
            self.subscriber.start()
        except BlackBoxError as error:
            log.warning("topics of feed %r are not counted: %s", self.feed.name, error)

    def _add(self, batch: Batch) -> None:
        numbers, slice_id = batch.topic_numbers, batch.block.slice_id
        counts = self._counts[slice_id]
        if len(numbers) and (most := int(numbers.max())) >= len(counts):
            grown: NDArray[numpy.int64] = numpy.zeros(2 * most + 2, numpy.int64)
            grown[: len(counts)] = counts
            self._counts[slice_id] = counts = grown
        many: Any = numpy.bincount(batch.topic_index, minlength=len(numbers))
        numpy.add.at(counts, numbers, many)

    def rows(self) -> tuple[TopicRow, ...]:
        """Return the busiest topics; new ones every two seconds."""
        seconds = time.monotonic() - self._at
        if seconds < _RATE_S:
            return self._rows
        found, total = list[tuple[float, int, int]](), 0
        for slice_id, counts in enumerate(self._counts):
            before, after = self._before[slice_id], counts.copy()
            after[: len(before)] -= before
            total += int(after.sum())
            for number in numpy.argsort(after)[-_MOST_TOPICS:]:
                if after[number] > 0:
                    found.append((int(after[number]), slice_id, int(number)))
            after[: len(before)] += before
            self._before[slice_id] = after
        self._at = time.monotonic()
        names = {slice_id: self.subscriber.topics(slice_id) for slice_id in {each[1] for each in found}}
        self._rows = tuple(
            TopicRow(
                feed=self.feed.name,
                topic=names[slice_id][number].decode(errors="replace"),
                messages_per_second=many / seconds,
                share=many / total,
            )
            for many, slice_id, number in heapq.nlargest(_MOST_TOPICS, found)
            if number < len(names[slice_id])
        )
        return self._rows
