"""Publish messages into the slices of a feed."""

from __future__ import annotations

import logging
import secrets
import struct
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox import send
from blackbox.block import as_integers, as_rows, distinct_scratch
from blackbox.encode import Rows
from blackbox.errors import NoSubscriberError, PublisherError
from blackbox.feed import Feed
from blackbox.feeder import OUT_OF_MEMORY, Stored, group_by_key, put_blocks, put_stored, select_rows
from blackbox.line import Line, make_selection
from blackbox.ring import SLEEPING, TAIL, LargePayloadError, Packers, Ring
from blackbox.schema import load_schema
from blackbox.warmup import warm_up

log = logging.getLogger("blackbox")

WINDOW_ROWS = 131_072
"""Rows that `publish_many` groups by key at a time."""
HWM_BLOCKS_DROP = 1_000
HWM_BLOCKS_WAIT = 8


class PublisherStatistics(msgspec.Struct, frozen=True):
    """What a publisher has done so far, over all slices."""

    messages: int
    """Messages sent, each counted once however many subscribers or lines it went to."""
    blocks: int
    """Blocks sent."""
    body_bytes: int
    """Bytes of the bodies sent, on one line."""
    unwanted: int
    """Messages of keys that nobody had subscribed to, hence not sent."""
    waits: int
    """Times a line thread waited up to 20 ms for a slow subscriber (`when_full="wait"`)."""
    discarded: int
    """Messages that `close` gave up on because a subscriber did not take them in time."""
    topics: int
    """Distinct topics published."""
    subscribers: int
    """Confirmed subscribers of the slice that has most."""


class _Routes(dict[bytes, tuple[Ring, int]]):
    """Topic to ring and topic id, filled as topics are first published."""

    def __init__(self, feed: Feed, lines: list[Line]) -> None:
        self._feed = feed
        self._lines = lines

    def __missing__(self, topic: bytes) -> tuple[Ring, int]:
        if type(topic) is not bytes:
            raise TypeError(f"topic was {type(topic).__name__}, expected bytes: {topic!r}")
        if not self._lines:
            raise PublisherError(f"feed {self._feed.name!r}: the publisher was not running")
        line = self._lines[self._feed.slice_of(topic)]
        with line.ring.lock:
            line.check()
            route = self[topic] = line.ring, line.add_topic(topic)
        return route


class _Resolved(NamedTuple):
    """Slice and topic id of each of a caller's topics."""

    topics: Sequence[bytes]
    slices: NDArray[numpy.int32]
    ids: NDArray[numpy.int32]
    distinct_slices: list[int]


class Publisher:
    """Publish into a feed: batches by itself, one thread and one I/O thread per slice.

    Life: NEW, `start` (or `with`), RUNNING, `close`, CLOSED. Any thread may publish; messages of one thread keep their
    order within a key (within a slice when `key_bytes` is 0).

    `when_full` says what happens when a subscriber's queue of `hwm_blocks` blocks is full: "drop" (live: the block is
    not sent to that subscriber, which counts the gap) or "wait" (replay: publish as fast as the slowest takes it).
    Memory per subscriber is bounded by `hwm_blocks * feed.block_bytes`; defaults: 1,000 for drop, 8 for wait.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        when_full: Literal["drop", "wait"] = "drop",
        hwm_blocks: int | None = None,
    ) -> None:
        if when_full not in ("drop", "wait"):
            raise ValueError(f"when_full was {when_full!r}, expected 'drop' or 'wait'")
        default = HWM_BLOCKS_WAIT if when_full == "wait" else HWM_BLOCKS_DROP
        self.hwm_blocks = default if hwm_blocks is None else hwm_blocks
        if self.hwm_blocks < 1:
            raise ValueError(f"hwm_blocks was {self.hwm_blocks}, expected at least 1: 0 would mean unbounded")
        self.feed = feed
        self.when_full = when_full
        self.epoch = secrets.randbits(64)
        self._lines: list[Line] = []
        self._closed = False
        self._packers = Packers()
        self._routes = _Routes(feed, self._lines)
        self._resolved = _Resolved((), numpy.empty(0, numpy.int32), numpy.empty(0, numpy.int32), [])

    def start(self) -> Self:
        """Bind every slice. Raises EndpointError naming the endpoint that could not be bound."""
        if self._lines or self._closed:
            raise PublisherError("start was called twice; a publisher is used once")
        schema_id = load_schema(self.feed.schema).schema_id
        wait = self.when_full == "wait"
        try:
            for slice_id in range(len(self.feed.slices)):
                line = Line(self.feed, slice_id, schema_id, self.epoch, wait, self.hwm_blocks)
                self._lines.append(line)
                line.start()
            max_keys = self.feed.max_topics if self.feed.key_bytes else 1
            self._selections = [make_selection(WINDOW_ROWS, max_keys) for _ in self._lines]
            self._distincts = [distinct_scratch(self.feed.max_topics) for _ in self._lines]
            self._warm_up()
        except BaseException:
            self.close(timeout=0.0)
            raise
        return self

    def _warm_up(self) -> None:
        line, selection, distinct = self._lines[0], self._selections[0], self._distincts[0]
        column = numpy.empty(0, numpy.int32)
        rows, _ = as_rows(numpy.empty((0, 1), numpy.uint8), None, None, None, 0)
        warm_up(select_rows, selection, 0, 0, 0, column, column, 0)
        warm_up(group_by_key, selection, 0, line.key_of_topic, 0)
        warm_up(put_blocks, line.target, selection, 0, rows, 0, line.wanted, line.table, distinct)

    def warm_up_stored(self) -> None:
        """Compile what `publish_stored` runs, before there is something to send."""
        line = self._running()[0]
        warm_up(put_stored, line.target, Stored(0, 0, 0, 0, 0, 0), 0, line.wanted)

    def publish(self, topic: bytes, payload: bytes, ts_event: int = 0) -> None:
        """Publish one message. It is sent as soon as the line is free; what piles up meanwhile shares a block.

        Raises ConfigError when no slice covers the topic, PublisherError when the publisher is not running or its topic
        table is full, ValueError when `ts_event` (ns since the epoch) is no int64. Bytes are the fastest payload; other
        buffers are copied once more.
        """
        try:
            ring, topic_id = self._routes[topic]
            pack, size = self._packers[len(payload)]
            with ring.lock:
                end = ring.tail + size
                if end > ring.limit:
                    ring.make_room(size)
                    end = ring.tail + size
                pack(ring.view, ring.tail, len(payload), topic_id, ts_event, payload)
                ring.shared[TAIL] = ring.tail = end
            # Outside of the lock: its release is the fence that the reader's going to sleep is paired with.
            if ring.shared[SLEEPING]:
                ring.shared[SLEEPING] = 0
                ring.wake()
        except LargePayloadError:
            self.publish_many((topic,), (0,), payload, (ts_event,), (0, len(payload)))
        except struct.error as error:
            if type(payload) is bytes:
                raise ValueError(f"ts_event was {ts_event!r}, expected an int64") from error
            self.publish(topic, bytes(payload), ts_event)

    def publish_many(
        self,
        topics: Sequence[bytes],
        topic_index: Any,
        payloads: Any,
        ts_event: Any = None,
        offsets: Any = None,
        lengths: Any = None,
    ) -> int:
        """Publish n messages in columns; returns n. They are encoded straight into blocks, without the GIL.

        Args:
            topics: distinct topics; a tuple that is passed again is not looked up again.
            topic_index: int32[n], places in `topics`.
            payloads: uint8[n, size]; or one buffer, with `offsets`.
            ts_event: int64[n], ns since the epoch; None: 0 for all.
            offsets: int[n + 1], payload i being `payloads[offsets[i]:offsets[i + 1]]`; or int[n] starts with `lengths`.
            lengths: int[n].

        Raises:
            ValueError: a column has the wrong shape, or reaches outside its buffer; nothing was published.
            ConfigError, PublisherError: as `publish`.
        """
        index = as_integers(topic_index, numpy.int32, "topic_index")
        if index.ndim != 1:
            raise ValueError(f"topic_index had shape {index.shape}, expected (n,)")
        if index.size and (index.min() < 0 or index.max() >= len(topics)):
            raise ValueError(f"topic_index ran from {index.min()} to {index.max()}, expected 0 to {len(topics) - 1}")
        rows, _alive = as_rows(payloads, ts_event, offsets, lengths, len(index))
        self.publish_rows(topics, index, rows)
        return len(index)

    def publish_rows(self, topics: Sequence[bytes], index: NDArray[numpy.int32], rows: Rows) -> None:
        """As `publish_many`, of columns that are known to be right, wherever they lie."""
        resolved = self._resolve(topics)
        for start in range(0, len(index), WINDOW_ROWS):
            stop = min(start + WINDOW_ROWS, len(index))
            for slice_id in resolved.distinct_slices:
                self._put(slice_id, resolved, index, rows, start, stop)

    def publish_stored(self, slice_id: int, keys: Sequence[bytes], stored: Stored, alive: Iterable[object]) -> None:
        """Publish blocks that are encoded already, as they are but for their headers, which are stamped anew.

        Args:
            slice_id: the slice that all their topics fall into.
            keys: of each block.
            stored: the blocks; its `keys` are filled in here.
            alive: what those bodies lie in that stay where they are; kept until all of it has been sent.
        """
        line = self._running()[slice_id]
        ring = line.ring
        at = 0
        if line.part.endpoints[0].startswith("inproc://"):
            # Subscribers in this process share the bodies, and may keep them longer than this publisher lives.
            copies = numpy.zeros(stored.count, numpy.int64)
            stored = stored._replace(stays=copies.ctypes.data)
        with ring.lock:
            line.alive.update(alive)
            numbers = numpy.fromiter(map(line.add_key, keys), numpy.int64, stored.count)
            stored = stored._replace(keys=numbers.ctypes.data)
            while at < stored.count:
                line.check()
                try:
                    at = put_stored(line.target, stored, at, line.wanted)
                finally:  # as in `_put`
                    ring.tail = ring.limit = ring.shared[TAIL]
                if at == OUT_OF_MEMORY:
                    raise MemoryError(f"slice {slice_id}: no memory for a recorded block")
                if at < stored.count:
                    ring.wait()

    def _resolve(self, topics: Sequence[bytes]) -> _Resolved:
        resolved = self._resolved
        if topics is resolved.topics:
            return resolved
        # A source's topics grow at the end: those before are the same objects, and compared in no time.
        known = len(resolved.topics) if topics[: len(resolved.topics)] == resolved.topics else 0
        routes = [self._routes[topic] for topic in topics[known:]]
        slice_of_ring = {id(line.ring): line.slice_id for line in self._lines}
        slices = numpy.array([slice_of_ring[id(ring)] for ring, _ in routes], numpy.int32)
        ids = numpy.array([topic_id for _, topic_id in routes], numpy.int32)
        slices = numpy.concatenate([resolved.slices[:known], slices])
        ids = numpy.concatenate([resolved.ids[:known], ids])
        resolved = _Resolved(topics, slices, ids, numpy.unique(slices).tolist())
        if type(topics) is tuple:  # nothing else is sure to hold the same topics when it comes again
            self._resolved = resolved
        return resolved

    def _put(
        self,
        slice_id: int,
        resolved: _Resolved,
        index: NDArray[numpy.int32],
        rows: Rows,
        start: int,
        stop: int,
    ) -> None:
        line, selection = self._lines[slice_id], self._selections[slice_id]
        ring = line.ring
        with ring.lock:
            line.check()
            count = select_rows(selection, index.ctypes.data, start, stop, resolved.slices, resolved.ids, slice_id)
            groups = group_by_key(selection, count, line.key_of_topic, len(line.keys))
            at = 0
            while at < count:
                try:
                    at = put_blocks(
                        line.target,
                        selection,
                        at,
                        rows,
                        groups,
                        line.wanted,
                        line.table,
                        self._distincts[slice_id],
                    )
                finally:  # also when Ctrl-C comes right behind the call: what was put is put
                    ring.tail = ring.limit = ring.shared[TAIL]
                if at == OUT_OF_MEMORY:
                    raise MemoryError(f"slice {slice_id}: no memory for a block of {self.feed.block_bytes} bytes")
                if at < count:
                    ring.wait()

    def wait_for_subscribers(self, prefix: bytes = b"", timeout: float = 10.0, count: int = 1) -> None:
        """Wait until every slice that topics with `prefix` can fall into has `count` subscribers for them.

        Raises NoSubscriberError after `timeout` seconds, naming the slices that lack them.
        """
        deadline = time.monotonic() + timeout
        for slice_id in self.feed.slices_for(prefix):
            line = self._running()[slice_id]
            with line.changed:
                while (found := line.subscribers(prefix)) < count:
                    line.check()
                    if time.monotonic() >= deadline:
                        raise NoSubscriberError(
                            f"feed {self.feed.name!r} slice {slice_id}: {found} subscribers to {prefix!r} "
                            f"after {timeout} s, expected {count}"
                        )
                    line.changed.wait(min(0.5, max(0.0, deadline - time.monotonic())))

    def flush(self, timeout: float = 60.0) -> None:
        """Wait until everything published so far was handed to ZeroMQ.

        Raises PublisherError after `timeout` seconds: a subscriber did not keep up (`when_full="wait"`).
        """
        deadline = time.monotonic() + timeout
        for line in self._running():
            line.flush(deadline)

    def statistics(self) -> PublisherStatistics:
        """A snapshot of the counters."""
        counters = numpy.sum([line.counters for line in self._lines] or [numpy.zeros(send.COUNTERS, int)], axis=0)
        return PublisherStatistics(
            messages=int(counters[send.MESSAGES]),
            blocks=int(counters[send.BLOCKS]),
            body_bytes=int(counters[send.BYTES]),
            unwanted=int(counters[send.UNWANTED]),
            waits=int(counters[send.WAITS]),
            discarded=sum(line.discarded for line in self._lines),
            topics=sum(len(line.topics) for line in self._lines),
            subscribers=max((line.subscriber_count() for line in self._lines), default=0),
        )

    def close(self, timeout: float = 30.0) -> None:
        """Send what was published, say goodbye to subscribers, and end; after `timeout` seconds discard what is left.

        What was discarded is logged and counted. Closing twice does nothing.
        """
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + timeout
        for line in self._lines:
            line.ask_to_close(deadline)
        for line in self._lines:
            line.close(deadline)
        discarded = sum(line.discarded for line in self._lines)
        if discarded:
            log.warning(
                "feed %r: closed with %d messages not sent: a subscriber did not keep up",
                self.feed.name,
                discarded,
            )

    def _running(self) -> list[Line]:
        if not self._lines or self._closed:
            raise PublisherError(f"feed {self.feed.name!r}: the publisher was not running")
        return self._lines

    def __enter__(self) -> Self:
        return self if self._lines else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close() if kind is None else self.close(timeout=1.0)

    def __repr__(self) -> str:
        return f"Publisher({self.feed!r}, when_full={self.when_full!r})"
