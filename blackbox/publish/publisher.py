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
from blackbox.block.block import as_rows, as_topic_index
from blackbox.block.encode import NO_VALUE, Rows
from blackbox.block.gap import shares_of
from blackbox.block.user_columns import columns_of, parts_of
from blackbox.errors import ConfigError, JournalError, NoSubscriberError, PublisherError
from blackbox.feed.feed import Feed, check_is_feed, missing_peer_hint
from blackbox.feed.schema import load_schema
from blackbox.feed.source import Source
from blackbox.feed.symbol_choice import TopicChoice, starts_by_slice
from blackbox.life import Life
from blackbox.native.jit import warm_up
from blackbox.native.limits import check_limits
from blackbox.native.waits import step_of
from blackbox.publish.acknowledgements import RecorderPosition, What
from blackbox.publish.batcher import (
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
from blackbox.publish.demand import Demand, Listener
from blackbox.publish.outbox import NO_OUTBOX, Again, OutboxSlice, PublisherOutbox
from blackbox.publish.peers import PeerStatistics, most_of
from blackbox.publish.ring import ASKED, RECORD_BYTES, TAIL, FullError, LargePayloadError, Packers, Ring
from blackbox.publish.sender_state import SenderState
from blackbox.publish.slice_sender import SliceSender, needs_of

log = logging.getLogger("blackbox")

WINDOW_ROWS = 131_072
"""Rows that `publish_many` groups by key at a time."""
HWM_BLOCKS_DROP = 1_000
HWM_BLOCKS_WAIT = 8
_WARN_S = 3.0
"""How long subscribers are waited for in silence."""


OnDemand = TypeVar("OnDemand", bound=Listener)


class PublisherLife(Life):
    """Where a publisher is in its life."""

    NEW = "new", "running", "closed"
    """Nothing is opened. RUNNING by `start`, CLOSED by `close`."""
    RUNNING = "running", "closed"
    """It can publish, once `start` has returned. CLOSED by `close`, or when it cannot start."""
    CLOSED = "closed"
    """It takes no more; `close` still sends what it has. Nothing follows."""


class PublisherStatistics(msgspec.Struct, frozen=True):
    """What a publisher has done so far, over all slices."""

    messages: int
    """Messages sent, each counted once however many subscribers or lines it went to."""
    blocks: int
    """Blocks sent."""
    body_bytes: int
    """Bytes of the bodies sent, each counted once however many subscribers or lines it went to."""
    unwanted: int
    """Messages of keys that nobody had subscribed to, hence not sent."""
    waits: int
    """Times a sender waited up to 20 ms for a slow subscriber (`when_full="wait"`)."""
    shared_memory_dropped: int
    """Messages sent that readers of shared memory missed: every place for them was held (`when_full="drop"`)."""
    discarded: int
    """Messages that `close` gave up on because a subscriber did not take them in time."""
    topics: int
    """Distinct topics published."""
    subscribers: int
    """Confirmed subscribers of the slice that has most."""
    put_out: int
    """Peers disconnected because they sent what no subscriber sends, or took nothing for too long."""
    recorders: tuple[RecorderPosition, ...] = ()
    """How far each recorder of each slice is."""
    refused_peers: int = 0
    """Connections that were refused for their key, for another key of ours, or for none (`[security]`)."""
    refused: int = 0
    """Subscriptions that were refused: the key had no right to them, or the connection had as many as it may."""
    peers: tuple[PeerStatistics, ...] = ()
    """Connections that have subscribed, of each slice and line: the 100 with most subscriptions."""
    other_peers: int = 0
    """Further ones."""
    subscriptions: int = 0
    """What all connections have in force, each counted for itself."""


def _bytes_of(payload: object) -> bytes:
    """Return a payload as bytes. Raises TypeError: `bytes` itself would make some of a list, a dict or a number."""
    if isinstance(payload, bytes):
        return payload
    try:
        return memoryview(payload).tobytes()  # type: ignore[arg-type]  # that is the question
    except TypeError:
        raise TypeError(f"payload was {payload!r:.80}, expected bytes or another buffer of bytes") from None


def _check_put(at: int, slice_id: int, what: str) -> None:
    """Raise MemoryError or JournalError if it is not a place at which `put_blocks` or `put_stored` stopped."""
    if at == OUT_OF_MEMORY:
        raise MemoryError(f"slice {slice_id}: no memory for {what}")
    if at == LOST_PAGES:
        raise JournalError(f"slice {slice_id}: a recording's file shrank while its messages were published")


class _Route(NamedTuple):
    """What `publish` needs to know of a topic; `shared` and `view` are the ring's."""

    slice_id: int
    topic_id: int
    ring: Ring
    shared: memoryview[int]
    view: memoryview[int]


class _Routes(dict[str | bytes, _Route]):
    """Routes by topic, text or bytes as it was given, filled as topics are first published."""

    def __init__(self, feed: Feed, running: Callable[[], list[SliceSender]]) -> None:
        self._feed = feed
        self._running = weakref.WeakMethod(running)  # not a circle: its publisher holds this

    def __missing__(self, topic: str | bytes) -> _Route:
        name = as_bytes("topic", topic)
        running = self._running()
        assert running is not None, "the publisher that looks a topic up is there"
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
        # An outbox writes as recorders do, in a room after this one: imported only where a directory is given.
        made: PublisherOutbox = import_module("blackbox.archive.outbox").Outbox(outbox)
        return made
    return outbox


class _Resolved(NamedTuple):
    """Slice and topic id of each of a caller's topics."""

    topics: Sequence[str | bytes]
    slices: NDArray[numpy.int32]
    ids: NDArray[numpy.int32]
    distinct_slices: list[int]


class Publisher:
    """Publish into a feed: batches by itself, one thread and one I/O thread per slice.

    Life: NEW, `start` (or `with`), RUNNING, `close`, CLOSED. Any thread may publish; messages of one thread keep their
    order within a key (within a slice without keys).

    `when_full` says what happens when a subscriber's queue of `hwm_blocks` blocks is full: "drop" (live: the block is
    not sent to that subscriber, which counts the gap) or "wait" (replay: publish as fast as the slowest takes it).
    Memory per subscriber is bounded by `hwm_blocks * feed.block_bytes`; defaults: 1,000 for drop, 8 for wait.

    With an `outbox` (an `Outbox`, or its directory) each block is written there before it is sent, wanted or not.
    After a kill the next one goes on in the same `epoch`, which is known once it has started, uses no number twice, and
    sends again what no archive has.
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
        """Look every topic up anew: in a process that was forked, to find that nothing can be published there."""
        self._routes = _Routes(self.feed, self._running)
        self.source: Source | None = None
        self._resolved = _Resolved((), numpy.empty(0, numpy.int32), numpy.empty(0, numpy.int32), [])

    def start(self) -> Self:
        """Bind every slice.

        Raises EndpointError naming the endpoint that could not be bound, LimitError naming a limit that is too low, and
        JournalError when the outbox cannot be opened.
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
        """Send blocks of the outbox again that may have reached nobody, to all that subscribe in time."""
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
        """Compile what `_publish_stored` runs, before there is something to send."""
        sender = self._running()[0]
        nothing, shared = Stored(0, 0, 0, 0, 0), sender.guard.shared_at
        warm_up(put_stored, sender.ring.at, sender.origin, nothing, 0, sender.encoded, 0, shared, False)

    def publish(self, topic: str | bytes, payload: bytes | None, ts_event: int | None = None) -> None:
        """Publish one message. It is sent at once; where many come, they share blocks: see the feed's `linger_ns`.

        `ts_event` is when it happened, in ns since 1970. None means now. 0 means that the time is not known.

        A payload of None says that the topic has no value any more. With `when_full="drop"` a message is mostly sent
        before this returns, and others' may be sent here, too.

        Raises ConfigError when no slice covers the topic, or the payload is no record of the feed's schema; nothing is
        published then. Raises PublisherError when the publisher is not running or its topic
        table is full, ValueError when `ts_event` is no int64. Bytes are the fastest payload; other
        buffers are copied once more.
        """
        if ts_event is None:
            ts_event = time_ns()
        try:
            _, topic_id, ring, shared, view = self._routes[topic]
            pack, size, payload_bytes, at, kinds = self._packers[len(payload)]  # type: ignore[arg-type]
            if kinds is not None and (type(payload) is not bytes or not kinds or payload[at] not in kinds):
                self._refuse(payload)  # type: ignore[arg-type]
            try:
                del ring.turn  # in place of a lock; as with one, Ctrl-C comes before it or behind `finally`
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
        """Raise ConfigError, or TypeError, unless a payload is a record of the schema."""
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
        """Publish n messages in columns; returns n. They are encoded straight into blocks, without the GIL.

        Do not change the columns meanwhile: some old and some new values are published then, but no memory beside them.

        Args:
            topics: distinct topics; a tuple that is passed again is not looked up again.
            topic_index: int32[n], places in `topics`.
            payloads: uint8[n, size]; or one buffer, with `offsets`.
            ts_event: int64[n], ns since 1970, 0 where the time is not known; None: now for all.
            offsets: int[n + 1], payload i being `payloads[offsets[i]:offsets[i + 1]]`; or int[n] starts with `lengths`.
            lengths: int[n].
            valid: bool[n]; a message where it is False has no value, which deletes its topic. None: all have one.
            checks_records: refuse all if a payload is no record of the feed's schema; False for a venue's own bytes.

        Raises:
            ValueError: a column has the wrong shape, or reaches outside its buffer; nothing was published.
            ConfigError: as `publish`; a payload is no record of the feed's schema, and none was published.
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
                raise ConfigError(f"message {row}: {self._schema.misfit(payload_of(rows, row))}; none was published")
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
        """Do as `publish_many`, with columns that are known to be right, wherever they lie.

        Payloads are not checked by the schema: recorded messages are published as they are.
        """
        self._publish_rows(self._resolve(topics), index, rows)

    def _route(self, topic: str | bytes) -> tuple[int, int]:
        """Return a topic's slice, and its number there, for `_publish_routed`. Raises as `publish`."""
        return self._routes[topic][:2]

    def _publish_routed(
        self, slices: NDArray[numpy.int32], numbers: NDArray[numpy.int32], index: NDArray[numpy.int32], rows: Rows
    ) -> None:
        """Do as `_publish_columns`, with the slice and number of each topic, as `_route` returned them."""
        self._publish_rows(_Resolved((), slices, numbers, numpy.unique(slices).tolist()), index, rows)

    def _publish_rows(self, resolved: _Resolved, index: NDArray[numpy.int32], rows: Rows) -> None:
        ts_in = time.time_ns()
        for start in range(0, len(index), WINDOW_ROWS):
            stop = min(start + WINDOW_ROWS, len(index))
            for slice_id in resolved.distinct_slices:
                self._put(slice_id, resolved, index, rows, start, stop, ts_in)

    def _publish_stored(self, slice_id: int, keys: Sequence[bytes], stored: Stored) -> None:
        """Publish blocks that are encoded already, as they are but for their headers, which are stamped anew.

        Args:
            slice_id: the slice that all their topics fall into.
            keys: of each block.
            stored: the blocks; its `keys` are filled in here.

        Raises JournalError when a file in which they lie has shrunk.
        """
        self._put_stored(slice_id, keys, stored, is_again=False)

    def _note(self, slice_id: int, note: bytes, *, is_alone: bool) -> None:
        """Have the outbox keep a note next to what this thread publishes next in a slice; `is_alone`: at once."""
        self._running()[slice_id].ring.put_note(note, is_alone)

    def _wait_kept(self, slice_id: int, sequence: int, deadline: float) -> None:
        """Wait until the outbox has all messages of a slice before a sequence, and notes. Raises PublisherError."""
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
        # A source's topics grow at the end: those before are the same objects, and compared in no time.
        known = len(resolved.topics) if topics[: len(resolved.topics)] == resolved.topics else 0
        routes = [self._routes[topic] for topic in topics[known:]]
        slices = numpy.array([route.slice_id for route in routes], numpy.int32)
        ids = numpy.array([route.topic_id for route in routes], numpy.int32)
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
                raise ValueError("topic_index was changed while it was being published, and is out of range now")
            groups = group_by_key(selection, count, encoder.key_of_topic, len(sender.keys))
            at = 0
            ring.take_turn()
            try:
                while at < count:
                    try:
                        at = put_blocks(ring.at, encoder, at, rows, groups, sender.encoded, ts_in)
                    finally:  # also when Ctrl-C comes right behind the call: what was put is put
                        ring.forget_limit()
                    _check_put(at, slice_id, f"a block of {self.feed.block_bytes} bytes")
                    if at < count:
                        ring.wait()
            finally:
                ring.turn = None

    def wants(self, topic: str | bytes) -> bool:
        """Whether somebody wants a topic: a subscriber here or behind relays, a recorder. Takes no lock.

        Use it to compute only what is wanted. It is true before a subscriber's `start` returns. A plain SUB socket
        counts if it asks for `WANT_KEY` and a prefix, too: see the wire format.
        """
        return self._demand.wants(as_bytes("topic", topic))

    def on_demand(self, function: OnDemand) -> OnDemand:
        """Call `function(prefix, is_wanted)` when topics that start with a prefix are wanted first, and no longer.

        It hears of what is wanted already, too. Calls come one at a time, in a thread of their own. Who wants a prefix
        is confirmed, so that its `start` returns, once the call for it has: what is published from then on reaches it.
        Of a prefix of more than 32 bytes those are told. While a call runs nobody new is confirmed. Who wants more
        than 10,000 prefixes of a slice, or 65,536 below a relay, wants b"", which is all. Raises LimitError when there
        can be no further thread.

        A call that raises RightsError refuses the prefix: who wants it gets that error in place of the confirmation.
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
        """Wait until every slice that topics with `prefix` can fall into has `count` subscribers for them.

        With `symbols`: for topics of each of these symbols, with a type if they can have one. Logs a warning after
        three seconds, and raises NoSubscriberError after `timeout` seconds; both name the slice that lacks them.
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
        """Wait until everything published so far was handed to ZeroMQ.

        Raises PublisherError after `timeout` seconds: a subscriber did not keep up (`when_full="wait"`).
        """
        deadline = time.monotonic() + timeout
        for sender in self._running():
            sender.flush(deadline)

    def wait_recorded(self, timeout: float = 10.0, by: int = 1) -> None:
        """Wait until `by` recorders have all that was published before this call: it survives their being killed.

        It is in the page cache of their hosts then, and in the journal that the next recorder goes on with. What was
        published before the last `new_epoch` is not waited for.

        Raises as `flush`, and NotRecordedError after `timeout` seconds or when `new_epoch` is called meanwhile. It says
        how far each recorder is. A further call waits for the same messages, except those that were published before
        any recorder was there: these are reported once and given up.
        """
        self._wait_acknowledged("recorded", timeout, by)

    def wait_synced(self, timeout: float = 10.0, by: int = 1) -> None:
        """As `wait_recorded`, until it is on the disks of `by` recorders: it survives a power cut.

        A recorder syncs as its `fsync` says. "interval" syncs once a second, so this takes that long; "never" does not
        count here.
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
        """Tell subscribers that what is published from now on goes back in time: `on_reset` is called there.

        Messages are numbered anew, in the next epoch, without a gap. Waits until subscribers have room to hear of it:
        for a second of each slice at most, with `when_full="wait"` until the timeout; who has none then sees a gap.
        Waits another second for their confirmations. Raises as `flush`; slices may then be in different epochs.
        """
        self._running()
        with self._epoch_lock:
            deadline = time.monotonic() + timeout
            self.epoch += 1
            for sender in self._senders:
                sender.flush(deadline, self.epoch)

    def published_count(self, slice_id: int = 0) -> int:
        """Return how many messages of a slice have their numbers in this epoch, over all keys.

        After `flush` that is all that were published. With an outbox those before a kill count, too: so a publisher
        that goes on sees how far the one before came.
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
        """Send what was published, say goodbye to subscribers, and end; after `timeout` seconds discard what is left.

        `says_end` False: to subscribers and in the outbox it is as if it were killed; another one goes on in its epoch.

        What was discarded is logged and counted. Closing twice does nothing. Raises JournalError when the outbox could
        not be closed, and may lack some of what was sent.
        """
        if self._pid != os.getpid():
            return  # what a parent process publishes is its own to close
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
        self._demand.join(max(0.0, deadline - time.monotonic()))  # now that `publish` waits for nothing there
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
        """Go on to `state`. Raises RuntimeError when it may not follow."""
        self.state = self.state.enter(state, f"publisher of feed {self.feed.name!r}")

    def _running(self) -> list[SliceSender]:
        if self._pid != os.getpid():
            raise PublisherError(
                f"feed {self.feed.name!r}: the publisher is of process {self._pid}, this one was forked from it as "
                f"{os.getpid()}: expected a publisher made after the fork"
            )
        if self.state is not PublisherLife.RUNNING:
            raise PublisherError(f"feed {self.feed.name!r}: the publisher was not running")
        return self._senders

    def __enter__(self) -> Self:
        return self if self.state is PublisherLife.RUNNING else self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            with suppress(JournalError):  # it is in the log, and the `with` block's own error goes on
                self.close(timeout=1.0)

    def __repr__(self) -> str:
        return f"Publisher({self.feed!r}, when_full={self.when_full!r})"
