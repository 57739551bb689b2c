"""Publish messages into the slices of a feed."""

from __future__ import annotations

import logging
import math
import os
import struct
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from time import time_ns
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import numpy
from numpy.typing import NDArray

from blackbox.arguments import Duration, as_bytes, check_function, seconds
from blackbox.block.columns.user_columns import columns_of, parts_of
from blackbox.block.form.encode import NO_VALUE, Rows
from blackbox.block.form.rows import PayloadColumns, as_rows, as_topic_index
from blackbox.block.gap import shares_of
from blackbox.errors import JournalError, NoSubscriberError, PublisherError
from blackbox.feed.feed import Feed, check_is_feed, missing_peer_hint
from blackbox.feed.schema.schema import load_schema
from blackbox.feed.source import Source
from blackbox.feed.symbol_choice import TopicChoice, starts_by_slice
from blackbox.life import Life
from blackbox.native.system.limits import check_limits
from blackbox.native.system.waits import STEP_S
from blackbox.publish.listeners.ack_tracker import What
from blackbox.publish.listeners.demand import Demand, Listener
from blackbox.publish.listeners.queue_policy import QueuePolicy
from blackbox.publish.routes import Routes
from blackbox.publish.send.batcher import windows
from blackbox.publish.send.outbox import NO_OUTBOX, Again, PublisherOutbox, outbox_of
from blackbox.publish.send.packers import FullError, LargePayloadError, Packers, bytes_of
from blackbox.publish.send.ring import ASKED, RECORD_BYTES, TAIL
from blackbox.publish.send.slice_sender import SliceSender, needs_of
from blackbox.publish.send.slice_writer import WINDOW_ROWS, Resolved, SliceWriter
from blackbox.publish.statistics import PublisherStatistics, statistics_of
from blackbox.publish.twin import Twin, refuse

__all__ = ["Publisher", "PublisherLife", "PublisherStatistics"]

log = logging.getLogger("blackbox")

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
    """Accepts no more messages: one of another thread may still be sent, or count as discarded. Final state."""


class Publisher:
    """Publish into a feed. Messages are batched into blocks; each slice has a sender thread and an I/O thread.

    Life: NEW, `start` (or `with`), RUNNING, `close`, CLOSED. Any thread may publish; messages of one thread keep their
    order within a key (within a slice without keys).

    `when_full` is the policy for a full subscriber queue of `hwm_blocks` blocks. With "drop" (for live data) the block
    is not sent to that subscriber, which reports the gap. With "wait" (for replays) publishing is as fast as the
    slowest subscriber. Memory per subscriber is bounded by `hwm_blocks * feed.block_bytes`; defaults: 1,000 for drop, 8
    for wait.

    `slow_peer` is the policy for a TCP peer that stays behind. With "keep" it stays connected. With "disconnect" it is
    disconnected once its oldest data has waited longer than `max_peer_age` (seconds or a `timedelta`; default: 5 s).

    With an `outbox` (an `Outbox`, or its directory) each block is written there before it is sent, wanted or not. After
    a kill, the next publisher continues the same `epoch` (known once it has started), reuses no sequence, and sends
    again what no archive has.
    With a `twin` it publishes one line of the feed, and another process the other one: see `Twin`.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        when_full: Literal["drop", "wait"] = "drop",
        hwm_blocks: int | None = None,
        outbox: PublisherOutbox | str | os.PathLike[str] | None = None,
        slow_peer: Literal["keep", "disconnect"] = "keep",
        max_peer_age: float | timedelta | None = None,
        twin: Twin | None = None,
    ) -> None:
        check_is_feed(feed)
        self._twin = twin
        self.feed = feed if twin is None else twin.feed_of(feed, has_outbox=outbox is not None)
        self._policy = QueuePolicy.of(when_full, hwm_blocks, slow_peer, max_peer_age)
        self.epoch = time.time_ns() if twin is None else twin.epoch
        self.source: Source | None = None
        self.state = PublisherLife.NEW
        self._epoch_lock, self._guard = threading.Lock(), threading.Lock()
        self._slices: list[SliceWriter] = []
        self._demand = Demand()
        self._outbox = outbox_of(outbox)
        self._packers = Packers(load_schema(feed.schema))
        self._routes = Routes(feed, self._running)
        self._has_started = threading.Event()  # set after the blocks to send again: they have the next sequences
        self._pid = os.getpid()

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
        outbox, self._outbox = self._outbox, None  # `close` closes it only if this opened it
        try:
            needs = [need for feed_slice in self.feed.slices for need in needs_of(feed_slice)]
            check_limits(f"publisher of feed {self.feed.name!r}", *needs)
            boxes = [NO_OUTBOX] * len(self.feed.slices)
            if outbox is not None:
                self.epoch, boxes = outbox.open(self.feed)
                self._outbox = outbox
            for slice_id, box in enumerate(boxes):
                sender = SliceSender(self.feed, slice_id, self._policy, self.epoch, self._demand, box)
                self._slices.append(SliceWriter(sender, outbox is not None))
                self._slices[-1].start()
            self._slices[0].warm_up()
            self._demand.start()
            again = [(each, box) for each, box in zip(self._slices, boxes, strict=True) if box.again]
            until = time.monotonic() + (outbox.again_wait_s if outbox and again else 0.0)
            for each, box in again:
                each.wait_for_any(until)
                keys, stored, _alive = Again.of(box)
                each.put_stored(keys, stored)
            self._has_started.set()
        except BaseException:
            with suppress(JournalError):
                self.close(timeout=0.0)
            raise
        return self

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
                self._packers.check(bytes_of(payload))
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
            else:
                if shared[ASKED]:
                    ring.tell(0)
        except LargePayloadError:
            data = bytes_of(payload)
            self.publish_many([topic], (0,), data, (ts_event,), (0, len(data)))  # a list: keeps the routes of a tuple
        except struct.error as error:
            if type(payload) is bytes:
                raise ValueError(f"ts_event was {ts_event!r}, expected an int64") from error
            self.publish(topic, bytes_of(payload), ts_event)
        except TypeError:
            if payload is not None:
                bytes_of(payload)
                raise
            self._publish_null(topic, ts_event)

    def _publish_null(self, topic: str | bytes, ts_event: int) -> None:
        route = self._routes[topic]
        try:
            route.ring.put_waiting(Packers.null, RECORD_BYTES, NO_VALUE, route.topic_id, ts_event)
        except struct.error as error:
            raise ValueError(f"ts_event was {ts_event!r}, expected an int64") from error

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
        rows, _alive = as_rows(
            PayloadColumns(payloads, ts_event=ts_event, offsets=offsets, lengths=lengths, valid=valid), len(index)
        )
        if checks_records:
            self._packers.check_rows(rows, len(index))
        self._publish_rows(self._routes.resolve(topics), index, rows)
        return len(index)

    def publish_record(
        self, topic: str | bytes, record: object, message_type: str | None = None, ts_event: int | None = None
    ) -> None:
        """Publish one message, given as a record: a dict, a dataclass, a msgspec Struct or a numpy record.

        `Schema.pack` describes the record, `message_type`, and how prices and times are given. `ts_event` is as in
        `publish`. Raises as `Schema.pack` and `publish`. For many records `publish_table` is much faster.
        """
        self.publish(topic, self._packers.schema.pack(record, message_type), ts_event)

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
        count, schema = 0, self._packers.schema
        for part in parts_of(table, WINDOW_ROWS):
            columns = columns_of(part, schema, message_type, topic, self.feed.symbol_rule.topic, time_ns())
            topics, index, payloads, times, offsets, valid = columns
            is_checked = message_type is None
            count += self.publish_many(topics, index, payloads, times, offsets, valid=valid, checks_records=is_checked)
        return count

    def _publish_rows(self, resolved: Resolved, index: NDArray[numpy.int32], rows: Rows) -> None:
        """Publish rows that are known to be valid; payloads are not checked against the schema."""
        ts_in = time_ns()
        for window in windows(rows, len(index), WINDOW_ROWS):
            for slice_id in resolved.distinct:
                self._slices[slice_id].put_rows(resolved, index, rows, window, ts_in)

    def skip(self, count: int, ts_event: int = 0) -> None:
        """Report that `count` messages of the venue are missing before the next published one. Subscribers see gaps.

        Slices and keys of the missing messages are not known, so every slice skips at least one sequence, and all
        slices together at least `count`. With keys, each key counts one message as missing.

        `ts_event`: latest `ts_event` published before, ns; 0: not known. Replays report the gap after that time.

        Raises ValueError if `count` is below 1, PublisherError as `publish`, and for a twin.
        """
        if count < 1:
            raise ValueError(f"count was {count}, expected 1 or more missing messages")
        refuse(self._twin, f"the source lacks {count} messages")
        slices = self._running()
        for each, share in zip(slices, shares_of(count, len(slices)), strict=True):
            each.skip(share, ts_event)

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
        timeout: Duration | None = None,
        count: int = 1,
        *,
        symbols: Iterable[str | bytes] | None = None,
    ) -> None:
        """Wait until every slice that topics with `prefix` can belong to has `count` subscribers for them.

        With `symbols`, wait for topics of each of these symbols, with a type if they can have one. Logs a warning after
        three seconds, and raises NoSubscriberError after `timeout` seconds (None: no limit). Both name the slice with
        too few subscribers. Slices with only multicast lines are not waited for: their subscribers are unknown.
        """
        timeout = seconds("timeout", timeout)
        deadline, warn_at = math.inf if timeout is None else time.monotonic() + timeout, time.monotonic() + _WARN_S
        starts = TopicChoice.of(self.feed, prefix, symbols).starts
        wanted = starts_by_slice(self.feed, [each for each in starts if not each[1]] or starts)
        for slice_id, (start, whole) in ((each, start) for each, starts in sorted(wanted.items()) for start in starts):
            if not self.feed.slices[slice_id].sockets:
                continue
            sender = self._running()[slice_id].sender
            subscriptions = sender.subscriptions
            here = f"feed {self.feed.name!r} slice {slice_id}"
            with subscriptions.changed:
                while (found := subscriptions.subscribers(start, whole=whole)) < count:
                    sender.check()
                    hint = "" if found else missing_peer_hint(self.feed.slices[slice_id].lines)
                    if time.monotonic() >= deadline:
                        raise NoSubscriberError(
                            f"{here}: {found} subscribers to {start!r} after {timeout} s, expected {count}{hint}"
                        )
                    if time.monotonic() >= warn_at:
                        warn_at = math.inf
                        log.warning("%s: waiting: %d subscribers to %r, expected %d%s", here, found, start, count, hint)
                    subscriptions.changed.wait(min(0.5, max(0.0, deadline - time.monotonic())))

    def flush(self, timeout: Duration = 60.0) -> None:
        """Wait until all messages published before the call were handed to ZeroMQ.

        Raises PublisherError after `timeout` seconds if a subscriber is too slow (`when_full="wait"`).
        """
        deadline = time.monotonic() + seconds("timeout", timeout)
        for each in self._running():
            each.flush(deadline)

    def wait_recorded(self, timeout: Duration = 10.0, by: int = 1) -> None:
        """Wait until `by` recorders have recorded everything published before this call.

        The messages are then in the page cache of the recorders' hosts and survive a kill of the recorders. Messages
        published before the last `new_epoch` are not waited for.

        Raises as `flush`, and NotRecordedError after `timeout` seconds or if `new_epoch` is called meanwhile. The error
        lists the position of each recorder. A further call waits for the same messages, except those published before
        any recorder was connected: these are reported once and given up.
        """
        self._wait_acknowledged("recorded", seconds("timeout", timeout), by)

    def wait_synced(self, timeout: Duration = 10.0, by: int = 1) -> None:
        """Wait as `wait_recorded`, until the messages are on the disks of `by` recorders and survive a power cut.

        A recorder syncs as its `fsync` says: "interval" once a second, so this takes that long; "never" does not count.
        """
        self._wait_acknowledged("synced", seconds("timeout", timeout), by)

    def _wait_acknowledged(self, what: What, timeout: float, by: int) -> None:
        if by < 1:
            raise ValueError(f"by was {by}, expected 1 or more")
        deadline = time.monotonic() + timeout
        self.flush(timeout)
        asked = [(each, each.ask_recorders()) for each in self._running()]
        for each, sent in asked:
            each.wait_acknowledged(what, by, sent, timeout, deadline)

    def new_epoch(self, timeout: Duration = 60.0) -> None:
        """Begin a new epoch: from now on time goes back, and subscribers get `on_reset`.

        Sequences start again without a gap. Waits for subscribers to have room for the notice: at most a second per
        slice, or until the timeout with `when_full="wait"`; a subscriber still without room reports a gap. Waits
        another second for confirmations. Raises as `flush`, and for a twin; slices may then be in different epochs.
        """
        self._running()
        refuse(self._twin, "a new epoch was begun")
        with self._epoch_lock:
            deadline = time.monotonic() + seconds("timeout", timeout)
            self.epoch += 1
            for each in self._slices:
                each.flush(deadline, self.epoch)

    def published_count(self, slice_id: int = 0) -> int:
        """Return the number of messages of a slice sequenced in this epoch, over all keys.

        After `flush` these are all that were published. With an outbox, messages before a kill count too, so a
        restarted publisher can find where to continue.
        """
        return self._running()[slice_id].sender.numbers.position

    def statistics(self) -> PublisherStatistics:
        """Return a snapshot of the counters."""
        return statistics_of([each.sender for each in self._slices])

    def close(self, timeout: Duration = 30.0, *, says_end: bool | None = None) -> None:
        """Send what was published, announce the end to subscribers, and stop; after `timeout` seconds discard the rest.

        With `says_end` False, the default of a twin, subscribers and the outbox see the same as after a kill; another
        publisher continues the epoch.

        Discarded messages are logged and counted. Closing twice does nothing. Raises JournalError if the outbox may
        lack sent messages. Not for signal handlers, as they may interrupt `publish`: raise an exception there.
        """
        timeout = seconds("timeout", timeout)
        if self._pid != os.getpid():
            return  # a publisher inherited by fork belongs to the parent process
        with self._guard:
            if self.state is PublisherLife.CLOSED:
                return
            outbox = self._outbox if self.state is PublisherLife.RUNNING else None
            self._enter(PublisherLife.CLOSED)
        deadline, says_end = time.monotonic() + timeout, self._twin is None if says_end is None else says_end
        self._demand.end()
        for each in self._slices:
            each.sender.ask_to_close(deadline, says_end)
        for each in self._slices:
            each.sender.close(deadline)
        self._demand.join(max(0.0, deadline - time.monotonic()))  # a listener may have been blocked in `publish`
        if discarded := sum(each.sender.sent.discarded for each in self._slices):
            text = "feed %r: closed with %d messages not sent: a subscriber did not keep up"
            log.warning(text, self.feed.name, discarded)
        if outbox is not None:
            outbox.close()

    def _enter(self, state: PublisherLife) -> None:
        """Change to `state`. Raises RuntimeError if the transition is not allowed."""
        self.state = self.state.enter(state, f"publisher of feed {self.feed.name!r}")

    def _running(self) -> list[SliceWriter]:
        if self._pid != os.getpid():
            raise PublisherError(
                f"feed {self.feed.name!r}: the publisher is of process {self._pid}, this one was forked from it as "
                f"{os.getpid()}: expected a publisher made after the fork"
            )
        while self.state is PublisherLife.RUNNING and not self._has_started.is_set():
            self._has_started.wait(STEP_S)
        if self.state is not PublisherLife.RUNNING:
            raise PublisherError(f"feed {self.feed.name!r}: the publisher is not running")
        return self._slices

    def __enter__(self) -> Self:
        return self if self.state is PublisherLife.RUNNING else self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            with suppress(JournalError):  # it is logged; the error of the `with` block is raised
                self.close(timeout=1.0)

    def __repr__(self) -> str:
        return f"Publisher({self.feed!r}, when_full={'wait' if self._policy.waits else 'drop'!r})"
