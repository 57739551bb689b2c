"""Publish messages into the slices of a feed."""

from __future__ import annotations

import logging
import math
import os
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from time import time_ns
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeVar

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.arguments import as_bytes, check_function
from blackbox.block.columns.user_columns import columns_of, parts_of
from blackbox.block.form.block import as_rows, as_topic_index
from blackbox.block.form.encode import NO_VALUE, Rows
from blackbox.block.gap import shares_of
from blackbox.errors import ConfigError, JournalError, NoSubscriberError, PublisherError
from blackbox.feed.feed import Feed, check_is_feed, missing_peer_hint
from blackbox.feed.schema.schema import load_schema
from blackbox.feed.source import Source
from blackbox.feed.symbol_choice import TopicChoice, starts_by_slice
from blackbox.life import Life
from blackbox.native.compile.jit import warm_up
from blackbox.native.system.limits import check_limits
from blackbox.native.system.waits import step_of
from blackbox.publish.listeners.ack_tracker import RecorderPosition, What
from blackbox.publish.listeners.demand import Demand, Listener
from blackbox.publish.listeners.peers import PeerStatistics, most_of
from blackbox.publish.send.batcher import (
    LOST_PAGES,
    MOST_ABSENT,
    OUT_OF_MEMORY,
    Stored,
    first_misfit,
    group_by_key,
    payload_of,
    put_blocks,
    put_show,
    put_stored,
    select_rows,
)
from blackbox.publish.send.outbox import NO_OUTBOX, Again, OutboxSlice, PublisherOutbox
from blackbox.publish.send.ring import ASKED, RECORD_BYTES, TAIL, FullError, LargePayloadError, Packers, Ring
from blackbox.publish.send.sender_state import SenderState
from blackbox.publish.send.slice_sender import SliceSender, needs_of

log = logging.getLogger("blackbox")

WINDOW_ROWS = 131_072
"""Rows that `publish_many` groups by key at a time."""
HWM_BLOCKS_DROP = 1_000
HWM_BLOCKS_WAIT = 8
_WARN_S = 3.0
"""Time to wait for subscribers before the first log message."""


OnDemand = TypeVar("OnDemand", bound=Listener)


class PublisherLife(Life):
    """State of a publisher."""

    NEW = "new", "running", "closed"
    """Nothing is opened yet. `start` leads to RUNNING, `close` to CLOSED."""
    RUNNING = "running", "closed"
    """Ready to publish once `start` has returned. CLOSED follows by `close` or if the start fails."""
    CLOSED = "closed"
    """Accepts no more messages; `close` still sends those it has. Final state."""


class PublisherStatistics(msgspec.Struct, frozen=True):
    """Counters of a publisher since its start, over all slices."""

    messages: int
    """Messages sent, each counted once however many subscribers or lines it went to."""
    blocks: int
    """Blocks sent."""
    body_bytes: int
    """Bytes of the bodies sent, each counted once however many subscribers or lines it went to."""
    unwanted: int
    """Messages not sent because no subscriber wanted their key."""
    waits: int
    """Times a sender waited up to 20 ms for a slow subscriber (`when_full="wait"`)."""
    shared_memory_dropped: int
    """Messages that readers of shared memory missed because every place was in use (`when_full="drop"`)."""
    discarded: int
    """Messages discarded by `close` because a subscriber did not take them in time."""
    topics: int
    """Distinct topics published."""
    subscribers: int
    """Confirmed subscribers of the slice with most of them."""
    put_out: int
    """Peers disconnected because they sent what no subscriber sends, or stopped reading for too long."""
    recorders: tuple[RecorderPosition, ...] = ()
    """Position of each recorder of each slice."""
    refused_peers: int = 0
    """Connections refused in the handshake because of a missing or wrong key (`[security]`)."""
    refused: int = 0
    """Subscriptions refused because the key had no right to them or the connection had reached its limit."""
    peers: tuple[PeerStatistics, ...] = ()
    """Connections of all slices and lines: the 100 with most subscriptions."""
    other_peers: int = 0
    """Further ones."""
    subscriptions: int = 0
    """Subscriptions in force, summed over all connections."""


def _bytes_of(payload: object) -> bytes:
    """Return a payload as bytes. Raises TypeError for lists, dicts and numbers, which `bytes` itself would convert."""
    if isinstance(payload, bytes):
        return payload
    try:
        return memoryview(payload).tobytes()  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"payload was {payload!r:.80}, expected bytes or another buffer of bytes") from None


def _check_put(at: int, slice_id: int, what: str) -> None:
    """Raise MemoryError or JournalError if `at`, returned by `put_blocks` or `put_stored`, is an error code."""
    if at == OUT_OF_MEMORY:
        raise MemoryError(f"slice {slice_id}: no memory for {what}")
    if at == LOST_PAGES:
        raise JournalError(f"slice {slice_id}: a recording's file was truncated while it was being published")


class _Route(NamedTuple):
    """Values that `publish` needs for a topic; `shared` and `view` belong to the ring."""

    slice_id: int
    topic_id: int
    ring: Ring
    shared: memoryview[int]
    view: memoryview[int]


class _Routes(dict[str | bytes, _Route]):
    """Routes by topic, as str or bytes like the caller's, filled when a topic is first published."""

    def __init__(self, feed: Feed, running: Callable[[], list[SliceSender]]) -> None:
        self._feed = feed
        self._running = weakref.WeakMethod(running)  # avoids a reference cycle: the publisher holds this

    def __missing__(self, topic: str | bytes) -> _Route:
        name = as_bytes("topic", topic)
        running = self._running()
        assert running is not None, "routes are used only by a live publisher"
        slice_id = self._feed.slice_of(name)
        sender = running()[slice_id]
        ring = sender.ring
        with ring.lock:
            sender.check()
            route = self[topic] = _Route(slice_id, sender.add_topic(name), ring, ring.shared, ring.view)
        return route


_publishers: weakref.WeakSet[Publisher] = weakref.WeakSet()


def _forget_topics() -> None:
    for publisher in _publishers:
        publisher._forget_topics()


os.register_at_fork(after_in_child=_forget_topics)


def _outbox_of(outbox: PublisherOutbox | str | os.PathLike[str] | None) -> PublisherOutbox | None:
    if isinstance(outbox, str | os.PathLike):
        # The outbox is in `archive`, a later folder: import it only if a directory is given.
        made: PublisherOutbox = import_module("blackbox.archive.record.outbox").Outbox(outbox)
        return made
    return outbox


class _Resolved(NamedTuple):
    """Slice and topic id of each of the caller's topics."""

    topics: Sequence[str | bytes]
    slices: NDArray[numpy.int32]
    ids: NDArray[numpy.int32]
    distinct_slices: list[int]


class Publisher:
    """Publish into a feed. Messages are batched into blocks; each slice has a sender thread and an I/O thread.

    Life: NEW, `start` (or `with`), RUNNING, `close`, CLOSED. Any thread may publish; messages of one thread keep their
    order within a key (within a slice without keys).

    `when_full` is the policy for a full subscriber queue of `hwm_blocks` blocks. With "drop" (for live data) the block
    is not sent to that subscriber, which reports the gap. With "wait" (for replays) publishing is as fast as the
    slowest subscriber. Memory per subscriber is bounded by `hwm_blocks * feed.block_bytes`; defaults: 1,000 for drop, 8
    for wait.

    With an `outbox` (an `Outbox`, or its directory) each block is written there before it is sent, wanted or not. After
    a kill, the next publisher continues the same `epoch` (known once it has started), reuses no sequence, and sends
    again what no archive has.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        when_full: Literal["drop", "wait"] = "drop",
        hwm_blocks: int | None = None,
        outbox: PublisherOutbox | str | os.PathLike[str] | None = None,
    ) -> None:
        check_is_feed(feed)
        if when_full not in ("drop", "wait"):
            raise ValueError(f"when_full was {when_full!r}, expected 'drop' or 'wait'")
        default = HWM_BLOCKS_WAIT if when_full == "wait" else HWM_BLOCKS_DROP
        self.hwm_blocks = default if hwm_blocks is None else hwm_blocks
        if self.hwm_blocks < 1:
            raise ValueError(f"hwm_blocks was {self.hwm_blocks}, expected at least 1: 0 would mean unbounded")
        self.feed = feed
        self.when_full = when_full
        self.epoch = time.time_ns()
        self._epoch_lock, self._guard = threading.Lock(), threading.Lock()
        self._senders: list[SliceSender] = []
        self.state = PublisherLife.NEW
        self._demand = Demand()
        self._outbox = _outbox_of(outbox)
        self._has_outbox = False
        self._schema = load_schema(feed.schema)
        self._packers = Packers(self._schema)
        self._record_bytes = numpy.zeros(256, numpy.int64)
        for kind, dtype in self._schema.records.items():
            self._record_bytes[ord(kind)] = dtype.itemsize
        self._pid = os.getpid()
        self._forget_topics()
        _publishers.add(self)

    def _forget_topics(self) -> None:
        """Drop all cached routes. In a forked process the next lookup then raises PublisherError."""
        self._routes = _Routes(self.feed, self._running)
        self.source: Source | None = None
        self._resolved = _Resolved((), numpy.empty(0, numpy.int32), numpy.empty(0, numpy.int32), [])

    def start(self) -> Self:
        """Bind every slice.

        Raises EndpointError if an endpoint could not be bound, LimitError if a system limit is too low, and
        JournalError if the outbox cannot be opened.
        """
        with self._guard:
            if self.state is not PublisherLife.NEW:
                raise PublisherError(f"start was called when {self.state}; a publisher is used once")
            self._enter(PublisherLife.RUNNING)
        self._pid = os.getpid()
        schema_id = self._schema.schema_id
        wait = self.when_full == "wait"
        try:
            needs = [need for feed_slice in self.feed.slices for need in needs_of(feed_slice)]
            check_limits(f"publisher of feed {self.feed.name!r}", *needs)
            boxes = [NO_OUTBOX] * len(self.feed.slices)
            if self._outbox is not None:
                self.epoch, boxes = self._outbox.open(self.feed)
                self._has_outbox = True
            for slice_id, box in enumerate(boxes):
                sender = SliceSender(
                    self.feed, slice_id, schema_id, self.epoch, wait, self.hwm_blocks, self._demand, box
                )
                self._senders.append(sender)
                sender.start()
            self._encoders = [sender.make_encoder(WINDOW_ROWS) for sender in self._senders]
            self._warm_up()
            self._demand.start()
            self._send_again(boxes)
        except BaseException:
            with suppress(JournalError):
                self.close(timeout=0.0)
            raise
        return self

    def _send_again(self, boxes: Sequence[OutboxSlice]) -> None:
        """Send those blocks of the outbox again that may have reached no subscriber, to all that subscribe in time."""
        again = [slice_id for slice_id, box in enumerate(boxes) if box.again]
        until = time.monotonic() + (self._outbox.again_wait_s if self._outbox and again else 0.0)
        for slice_id in again:
            sender = self._senders[slice_id]
            with sender.changed:
                while not sender.subscriptions.subscribers(b"") and (left := until - time.monotonic()) > 0:
                    sender.check()
                    sender.changed.wait(step_of(left))
        for slice_id in again:
            keys, stored, _alive = Again.of(boxes[slice_id])
            self._put_stored(slice_id, keys, stored, is_again=True)

    def _warm_up(self) -> None:
        sender, encoder = self._senders[0], self._encoders[0]
        column = numpy.empty(0, numpy.int32)
        rows, _ = as_rows(numpy.empty((0, 1), numpy.uint8), None, None, None, 0)
        warm_up(select_rows, encoder.selection, 0, 0, 0, column, column, 0)
        warm_up(group_by_key, encoder.selection, 0, encoder.key_of_topic, 0)
        warm_up(first_misfit, rows, 0, 0, self._record_bytes)
        warm_up(put_blocks, sender.ring.at, encoder, 0, rows, 0, sender.encoded, 0)

    def _warm_up_stored(self) -> None:
        """Compile what `_publish_stored` runs, before it is needed."""
        sender = self._running()[0]
        nothing, shared = Stored(0, 0, 0, 0, 0), sender.guard.shared_at
        warm_up(put_stored, sender.ring.at, sender.origin, nothing, 0, sender.encoded, 0, shared, False)

    def publish(self, topic: str | bytes, payload: bytes | None, ts_event: int | None = None) -> None:
        """Publish one message. It is sent at once; at high rates messages share blocks, see the feed's `linger_ns`.

        `ts_event` is when it happened, in ns since 1970. None means now. 0 means that the time is not known.

        A payload of None means that the topic no longer has a value. With `when_full="drop"` a message is usually sent
        before this returns; the call may also send messages of other threads.

        Raises ConfigError if no slice covers the topic or the payload is not a record of the feed's schema,
        PublisherError if the publisher is not running or its topic table is full, and ValueError if `ts_event` is not
        an int64. Nothing is published then. Bytes are the fastest payload; other buffers are copied once more.
        """
        if ts_event is None:
            ts_event = time_ns()
        try:
            _, topic_id, ring, shared, view = self._routes[topic]
            pack, size, payload_bytes, at, kinds = self._packers[len(payload)]  # type: ignore[arg-type]
            if kinds is not None and (type(payload) is not bytes or not kinds or payload[at] not in kinds):
                self._refuse(payload)  # type: ignore[arg-type]
            try:
                del ring.turn  # serves as a lock: Ctrl-C comes before it or after `finally`
                try:
                    tail = ring.tail
                    end = tail + size
                    if end > ring.limit:
                        raise FullError
                    pack(view, tail, payload_bytes, topic_id, ts_event, payload)
                    shared[TAIL] = ring.tail = end
                finally:
                    ring.turn = None
            except (AttributeError, FullError):
                ring.put_waiting(pack, size, payload_bytes, topic_id, ts_event, payload)
            if shared[ASKED]:
                ring.tell(0)
        except LargePayloadError:
            data = _bytes_of(payload)
            self.publish_many((topic,), (0,), data, (ts_event,), (0, len(data)))
        except struct.error as error:
            if type(payload) is bytes:
                raise ValueError(f"ts_event was {ts_event!r}, expected an int64") from error
            self.publish(topic, _bytes_of(payload), ts_event)
        except TypeError:
            if payload is not None:
                _bytes_of(payload)
                raise
            self._publish_null(topic, ts_event)

    def _refuse(self, payload: bytes) -> None:
        """Raise ConfigError or TypeError unless the payload is a record of the schema."""
        if (why := self._schema.misfit(_bytes_of(payload))) is not None:
            raise ConfigError(why)

    def _publish_null(self, topic: str | bytes, ts_event: int) -> None:
        route = self._routes[topic]
        try:
            route.ring.put_waiting(Packers.null, RECORD_BYTES, NO_VALUE, route.topic_id, ts_event)
        except struct.error as error:
            raise ValueError(f"ts_event was {ts_event!r}, expected an int64") from error
        if route.shared[ASKED]:
            route.ring.tell(0)

    def publish_many(
        self,
        topics: Sequence[str | bytes],
        topic_index: Any,
        payloads: Any,
        ts_event: Any = None,
        offsets: Any = None,
        lengths: Any = None,
        valid: Any = None,
        *,
        checks_records: bool = True,
    ) -> int:
        """Publish n messages given as columns; return n. They are encoded straight into blocks, without the GIL.

        Do not change the columns during the call. Otherwise a mix of old and new values is published, but never memory
        outside the columns.

        Args:
            topics: distinct topics; a tuple that is passed again is not looked up again.
            topic_index: int32[n], indices into `topics`.
            payloads: uint8[n, size]; or one buffer, with `offsets`.
            ts_event: int64[n], ns since 1970, 0 where the time is not known; None: now for all.
            offsets: int[n + 1], payload i being `payloads[offsets[i]:offsets[i + 1]]`; or int[n] starts with `lengths`.
            lengths: int[n].
            valid: bool[n]; a message where it is False has no value, which deletes its topic. None: all have one.
            checks_records: refuse all if a payload is no record of the feed's schema; False for a venue's own bytes.

        Raises:
            ValueError: a column has the wrong shape or refers to bytes outside its buffer; nothing was published.
            ConfigError: as `publish`; nothing was published.
            PublisherError: as `publish`.
        """
        if isinstance(topics, str | bytes):
            raise TypeError(f"topics was {topics!r:.80}, expected a list or tuple of str or bytes")
        index = as_topic_index(topic_index, topics)
        if ts_event is None:
            ts_event = numpy.full(len(index), time_ns(), numpy.int64)
        rows, _alive = as_rows(payloads, ts_event, offsets, lengths, len(index), valid=valid)
        if checks_records and self._schema.records:
            row = first_misfit(rows, len(index), self._schema.type_offset, self._record_bytes)
            if row >= 0:
                raise ConfigError(f"message {row}: {self._schema.misfit(payload_of(rows, row))}; nothing was published")
        self._publish_columns(topics, index, rows)
        return len(index)

    def publish_record(
        self, topic: str | bytes, record: object, message_type: str | None = None, ts_event: int | None = None
    ) -> None:
        """Publish one message, given as a record: a dict, a dataclass, a msgspec Struct or a numpy record.

        `Schema.pack` describes the record, `message_type`, and how prices and times are given. `ts_event` is as in
        `publish`. Raises as `Schema.pack` and `publish`. For many records `publish_table` is much faster.
        """
        self.publish(topic, self._schema.pack(record, message_type), ts_event)

    def publish_table(self, table: Any, message_type: str | None = None, *, topic: str | None = None) -> int:
        """Publish the rows of a table in their order; return how many there were.

        Columns are converted as a whole, 131,072 rows at a time. They are:

        - `topic` (text or bytes), or the columns that the template `topic` names. A table without a column `topic` uses
          the feed's template, "{symbol}.{type}" by default: a column `symbol`, and `message_type` for `{type}`.
        - `ts_event`: ns since 1970 or timestamps; 0 or null: the time is not known. Without this column it is now.
        - The fields of `message_type`, by the rules of `Schema.pack` for prices, texts and nulls; the field of the type
          itself may be left out. A field called `topic` or `ts_event` is the column `record_topic` or
          `record_ts_event`. Without a message type: `payload` (bytes or text; null: the topic has no value).

        The columns of `Recording.to_arrow`, `to_pandas` and `to_polars` fit.

        Args:
            table: a dict of numpy arrays or lists, an Arrow table, or a data frame of pandas or polars.
            message_type: the message type of all rows; None: the table has payloads.
            topic: a template, such as "{exchange}.{symbol}.{type}", with names of columns in braces.

        Raises:
            ConfigError: a column is missing, unknown or of the wrong type, or a value does not fit. Rows before the
                131,072 that hold it were published.
            PublisherError: as `publish`.
        """
        count = 0
        for part in parts_of(table, WINDOW_ROWS):
            columns = columns_of(part, self._schema, message_type, topic, self.feed.symbol_rule.topic, time_ns())
            topics, index, payloads, times, offsets, valid = columns
            is_checked = message_type is None
            count += self.publish_many(topics, index, payloads, times, offsets, valid=valid, checks_records=is_checked)
        return count

    def _publish_columns(self, topics: Sequence[str | bytes], index: NDArray[numpy.int32], rows: Rows) -> None:
        """Publish as `publish_many` does, from columns that are known to be valid.

        Payloads are not checked against the schema: recorded messages are published unchanged.
        """
        self._publish_rows(self._resolve(topics), index, rows)

    def _route(self, topic: str | bytes) -> tuple[int, int]:
        """Return the slice and topic id of a topic, for `_publish_routed`. Raises as `publish`."""
        return self._routes[topic][:2]

    def _publish_routed(
        self, slices: NDArray[numpy.int32], numbers: NDArray[numpy.int32], index: NDArray[numpy.int32], rows: Rows
    ) -> None:
        """Publish as `_publish_columns` does, with slices and topic ids from `_route`."""
        self._publish_rows(_Resolved((), slices, numbers, numpy.unique(slices).tolist()), index, rows)

    def _publish_rows(self, resolved: _Resolved, index: NDArray[numpy.int32], rows: Rows) -> None:
        ts_in = time.time_ns()
        for start in range(0, len(index), WINDOW_ROWS):
            stop = min(start + WINDOW_ROWS, len(index))
            for slice_id in resolved.distinct_slices:
                self._put(slice_id, resolved, index, rows, start, stop, ts_in)

    def _publish_stored(self, slice_id: int, keys: Sequence[bytes], stored: Stored) -> None:
        """Publish encoded blocks unchanged except for their headers, which are stamped again.

        Args:
            slice_id: the slice of all their topics.
            keys: key of each block.
            stored: the blocks; this fills in `stored.keys`.

        Raises JournalError if one of their files was truncated.
        """
        self._put_stored(slice_id, keys, stored, is_again=False)

    def _note(self, slice_id: int, note: bytes, *, is_alone: bool) -> None:
        """Have the outbox keep a note with the next blocks of this thread in a slice; `is_alone`: at once."""
        self._running()[slice_id].ring.put_note(note, is_alone)

    def _wait_kept(self, slice_id: int, sequence: int, deadline: float) -> None:
        """Wait until the outbox has all messages of a slice before `sequence`, and its notes. Raises PublisherError."""
        sender = self._running()[slice_id]
        sender.flush(deadline)
        if sender.position < sequence:
            sender.check()
            raise PublisherError(f"slice {slice_id}: reached {sender.position}, expected {sequence}")

    def skip(self, count: int, ts_event: int = 0) -> None:
        """Report that `count` messages of the venue are missing before the next published one. Subscribers see gaps.

        Slices and keys of the missing messages are not known, so every slice skips at least one sequence, and all
        slices together at least `count`. With keys, each key counts one message as missing.

        `ts_event`: latest `ts_event` published before, ns; 0: not known. Replays report the gap after that time.

        Raises ValueError if `count` is below 1, PublisherError as `publish`.
        """
        if count < 1:
            raise ValueError(f"count was {count}, expected 1 or more missing messages")
        senders = self._running()
        for sender, share in zip(senders, shares_of(count, len(senders)), strict=True):
            self._show(sender, 0)  # a heartbeat separates this gap from earlier losses at a recorder
            for first in range(0, share, MOST_ABSENT):
                self._show(sender, ts_event, min(share - first, MOST_ABSENT))

    def _show(self, sender: SliceSender, ts_event: int, absent: int = 0) -> None:
        """Skip `absent` sequences after the messages published before, then request a heartbeat."""
        ring = sender.ring
        with ring.lock:
            ring.take_turn()
            try:
                sender.check()
                while not put_show(ring.at, ts_event, absent, time.time_ns()):
                    ring.forget_limit()
                    ring.wait()
                    sender.check()
            finally:
                ring.forget_limit()
                ring.turn = None

    def _put_stored(self, slice_id: int, keys: Sequence[bytes], stored: Stored, *, is_again: bool) -> None:
        sender = self._running()[slice_id]
        ring, wanted = sender.ring, sender.wanted if is_again else sender.encoded
        at, ts_in = 0, time.time_ns()
        with ring.lock:
            numbers = numpy.fromiter(map(sender.add_key, keys), numpy.int64, stored.count)
            stored = stored._replace(keys=numbers.ctypes.data)
            ring.take_turn()
            try:
                while at < stored.count:
                    sender.check()
                    try:
                        shared = sender.guard.shared_at
                        at = put_stored(ring.at, sender.origin, stored, at, wanted, ts_in, shared, is_again)
                    finally:  # as in `_put`
                        ring.forget_limit()
                    _check_put(at, slice_id, "a recorded block")
                    if at < stored.count:
                        ring.wait()
            finally:
                ring.turn = None

    def _resolve(self, topics: Sequence[str | bytes]) -> _Resolved:
        resolved = self._resolved
        if topics is resolved.topics:
            return resolved
        # A source appends topics: earlier ones are the same objects, which makes this comparison fast.
        known = len(resolved.topics) if topics[: len(resolved.topics)] == resolved.topics else 0
        routes = [self._routes[topic] for topic in topics[known:]]
        slices = numpy.array([route.slice_id for route in routes], numpy.int32)
        ids = numpy.array([route.topic_id for route in routes], numpy.int32)
        slices = numpy.concatenate([resolved.slices[:known], slices])
        ids = numpy.concatenate([resolved.ids[:known], ids])
        resolved = _Resolved(topics, slices, ids, numpy.unique(slices).tolist())
        if type(topics) is tuple:  # a list could be changed by its owner
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
        ts_in: int,
    ) -> None:
        sender = self._senders[slice_id]
        ring = sender.ring
        with ring.lock:
            sender.check()
            encoder = self._encoders[slice_id]._replace(origin=sender.origin)
            selection = encoder.selection
            count = select_rows(selection, index.ctypes.data, start, stop, resolved.slices, resolved.ids, slice_id)
            if count < 0:
                raise ValueError("topic_index was changed during publishing and is now out of range")
            groups = group_by_key(selection, count, encoder.key_of_topic, len(sender.keys))
            at = 0
            ring.take_turn()
            try:
                while at < count:
                    try:
                        at = put_blocks(ring.at, encoder, at, rows, groups, sender.encoded, ts_in)
                    finally:  # runs even if Ctrl-C comes right after the call: the blocks are in the ring
                        ring.forget_limit()
                    _check_put(at, slice_id, f"a block of {self.feed.block_bytes} bytes")
                    if at < count:
                        ring.wait()
            finally:
                ring.turn = None

    def wants(self, topic: str | bytes) -> bool:
        """Return True if a topic is wanted by a subscriber, here or through relays, or by a recorder. Takes no lock.

        Use it to compute only data that is wanted. It is True before the `start` of a subscriber returns. A plain SUB
        socket counts if it also subscribes to `WANT_KEY` and a prefix: see the wire format.
        """
        return self._demand.wants(as_bytes("topic", topic))

    def on_demand(self, function: OnDemand) -> OnDemand:
        """Call `function(prefix, is_wanted)` when a prefix is first wanted, and when it is no longer wanted.

        Prefixes that are already wanted are reported too. Calls come one at a time, in a separate thread. A subscriber
        is confirmed, and its `start` returns, once the call for its prefix has returned: it receives everything
        published from then on. Prefixes are cut to 32 bytes. While a call runs, no new subscriber is confirmed. A
        subscriber with more than 10,000 prefixes in a slice, or 65,536 below a relay, is reported as b"": it wants all.
        Raises LimitError if no thread can be started.

        A call that raises RightsError refuses the prefix: subscribers to it get that error instead of a confirmation.
        """
        check_function(function, "prefix", "is_wanted")
        self._demand.listen(function)
        return function

    def wait_for_subscribers(
        self,
        prefix: str | bytes = b"",
        timeout: float = 60.0,
        count: int = 1,
        *,
        symbols: Iterable[str | bytes] | None = None,
    ) -> None:
        """Wait until every slice that topics with `prefix` can belong to has `count` subscribers for them.

        With `symbols`, wait for topics of each of these symbols, with a type if they can have one. Logs a warning after
        three seconds, and raises NoSubscriberError after `timeout` seconds. Both name the slice with too few
        subscribers.
        """
        deadline = time.monotonic() + timeout
        warn_at = time.monotonic() + _WARN_S
        starts = TopicChoice.of(self.feed, prefix, symbols).starts
        wanted = starts_by_slice(self.feed, [each for each in starts if not each[1]] or starts)
        for slice_id, (start, whole) in ((each, start) for each, starts in sorted(wanted.items()) for start in starts):
            sender = self._running()[slice_id]
            here = f"feed {self.feed.name!r} slice {slice_id}"
            with sender.changed:
                while (found := sender.subscriptions.subscribers(start, whole=whole)) < count:
                    sender.check()
                    hint = "" if found else missing_peer_hint(self.feed.slices[slice_id].lines)
                    if time.monotonic() >= deadline:
                        raise NoSubscriberError(
                            f"{here}: {found} subscribers to {start!r} after {timeout} s, expected {count}{hint}"
                        )
                    if time.monotonic() >= warn_at:
                        warn_at = math.inf
                        log.warning("%s: waiting: %d subscribers to %r, expected %d%s", here, found, start, count, hint)
                    sender.changed.wait(min(0.5, max(0.0, deadline - time.monotonic())))

    def flush(self, timeout: float = 60.0) -> None:
        """Wait until all messages published before the call were handed to ZeroMQ.

        Raises PublisherError after `timeout` seconds if a subscriber is too slow (`when_full="wait"`).
        """
        deadline = time.monotonic() + timeout
        for sender in self._running():
            sender.flush(deadline)

    def wait_recorded(self, timeout: float = 10.0, by: int = 1) -> None:
        """Wait until `by` recorders have recorded everything published before this call.

        The messages are then in the page cache of the recorders' hosts and survive a kill of the recorders. Messages
        published before the last `new_epoch` are not waited for.

        Raises as `flush`, and NotRecordedError after `timeout` seconds or if `new_epoch` is called meanwhile. The error
        lists the position of each recorder. A further call waits for the same messages, except those published before
        any recorder was connected: these are reported once and given up.
        """
        self._wait_acknowledged("recorded", timeout, by)

    def wait_synced(self, timeout: float = 10.0, by: int = 1) -> None:
        """Wait as `wait_recorded`, until the messages are on the disks of `by` recorders and survive a power cut.

        A recorder syncs as its `fsync` says. "interval" syncs once a second, so this takes that long. "never" does not
        count.
        """
        self._wait_acknowledged("synced", timeout, by)

    def _wait_acknowledged(self, what: What, timeout: float, by: int) -> None:
        if by < 1:
            raise ValueError(f"by was {by}, expected 1 or more")
        deadline = time.monotonic() + timeout
        self.flush(timeout)
        senders = self._running()
        asked = [sender.ask_recorders() for sender in senders]
        for sender, (epoch, goal) in zip(senders, asked, strict=True):
            sender.wait_acknowledged(what, by, epoch, goal, timeout, deadline)

    def new_epoch(self, timeout: float = 60.0) -> None:
        """Begin a new epoch: from now on time goes back, and subscribers get `on_reset`.

        Sequences start again without a gap. Waits for subscribers to have room for the notice: at most a second per
        slice, or until the timeout with `when_full="wait"`; a subscriber still without room reports a gap. Waits
        another second for their confirmations. Raises as `flush`; slices may then be in different epochs.
        """
        self._running()
        with self._epoch_lock:
            deadline = time.monotonic() + timeout
            self.epoch += 1
            for sender in self._senders:
                sender.flush(deadline, self.epoch)

    def published_count(self, slice_id: int = 0) -> int:
        """Return the number of messages of a slice sequenced in this epoch, over all keys.

        After `flush` these are all that were published. With an outbox, messages before a kill count too, so a
        restarted publisher can find where to continue.
        """
        return self._running()[slice_id].position

    def statistics(self) -> PublisherStatistics:
        """Return a snapshot of the counters."""
        peers = most_of(peer for sender in self._senders for peer in sender.guard.peers())
        total = SenderState.sum_of([sender.sent for sender in self._senders] or [SenderState()])
        return PublisherStatistics(
            messages=total.messages,
            blocks=total.blocks,
            body_bytes=total.body_bytes,
            unwanted=total.unwanted,
            waits=total.waits,
            shared_memory_dropped=total.shared_memory_dropped,
            discarded=sum(sender.discarded for sender in self._senders),
            topics=sum(len(sender.topics) for sender in self._senders),
            subscribers=max((sender.subscriptions.subscriber_count() for sender in self._senders), default=0),
            put_out=sum(sender.guard.put_out for sender in self._senders),
            recorders=tuple(position for sender in self._senders for position in sender.recorders()),
            refused_peers=sum(sender.guard.refused for sender in self._senders),
            refused=sum(sender.subscriptions.refused for sender in self._senders),
            peers=peers.shown,
            other_peers=peers.others,
            subscriptions=peers.subscriptions,
        )

    def close(self, timeout: float = 30.0, *, says_end: bool = True) -> None:
        """Send what was published, announce the end to subscribers, and stop; after `timeout` seconds discard the rest.

        With `says_end` False, subscribers and the outbox see the same as after a kill; another publisher continues the
        epoch.

        Discarded messages are logged and counted. Closing twice does nothing. Raises JournalError if the outbox could
        not be closed and may lack messages that were sent.
        """
        if self._pid != os.getpid():
            return  # a publisher inherited by fork belongs to the parent process
        with self._guard:
            if self.state is PublisherLife.CLOSED:
                return
            self._enter(PublisherLife.CLOSED)
        deadline = time.monotonic() + timeout
        self._demand.end()
        for sender in self._senders:
            sender.ask_to_close(deadline, says_end)
        for sender in self._senders:
            sender.close(deadline)
        self._demand.join(max(0.0, deadline - time.monotonic()))  # a listener may have been blocked in `publish`
        discarded = sum(sender.discarded for sender in self._senders)
        if discarded:
            log.warning(
                "feed %r: closed with %d messages not sent: a subscriber did not keep up",
                self.feed.name,
                discarded,
            )
        if self._has_outbox and self._outbox is not None:
            self._outbox.close()

    def _enter(self, state: PublisherLife) -> None:
        """Change to `state`. Raises RuntimeError if the transition is not allowed."""
        self.state = self.state.enter(state, f"publisher of feed {self.feed.name!r}")

    def _running(self) -> list[SliceSender]:
        if self._pid != os.getpid():
            raise PublisherError(
                f"feed {self.feed.name!r}: the publisher is of process {self._pid}, this one was forked from it as "
                f"{os.getpid()}: expected a publisher made after the fork"
            )
        if self.state is not PublisherLife.RUNNING:
            raise PublisherError(f"feed {self.feed.name!r}: the publisher is not running")
        return self._senders

    def __enter__(self) -> Self:
        return self if self.state is PublisherLife.RUNNING else self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            with suppress(JournalError):  # it is logged; the error of the `with` block is raised
                self.close(timeout=1.0)

    def __repr__(self) -> str:
        return f"Publisher({self.feed!r}, when_full={self.when_full!r})"
