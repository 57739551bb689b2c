"""Watch the messages of a feed at any hop, without ever slowing it."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

import msgspec
import numpy
import zmq

from blackbox.arguments import Duration, seconds
from blackbox.block.batch.batch import Batch
from blackbox.block.batch.received_block import BatchFeed, ReceivedBlock
from blackbox.block.form.block import Block
from blackbox.block.form.format import CONFIRM_KEY, FLAG_CONTROL, FLAG_REFUSED, HEARTBEAT_KEY, NONCE_BYTES, TAP_KEY
from blackbox.block.position import End
from blackbox.errors import BlackBoxError, BlockError, ConfigError, EndpointError, NotConfirmedError
from blackbox.feed.feed import Feed, check_is_feed
from blackbox.feed.routing.prefixes import Prefixes
from blackbox.feed.schema.schema import load_schema
from blackbox.feed.symbol_choice import TopicChoice, starts_by_slice
from blackbox.native.system.limits import Needs, start_thread
from blackbox.native.system.waits import join, step_of
from blackbox.receive.publishers.lines import address_from, open_sub
from blackbox.receive.publishers.refusal import Refusal
from blackbox.services.monitor.key_counts import KeyCounts
from blackbox.services.monitor.tap_budget import Budget
from blackbox.transport.context import allow_ipv6, new_context
from blackbox.transport.security.curve import keys_of_line, use_keys
from blackbox.transport.tcp_info import event_of

log = logging.getLogger("blackbox")

_HWM_BLOCKS: Final = 256
_MOST_WAITING: Final = 8_192
"""Batches that wait for `read`; further ones replace the oldest."""
_MOST_WAITING_BYTES: Final = 64 << 20
"""Bytes of their blocks."""
_MOST_NOTES: Final = 100
_POLL_MS: Final = 50
_ASK_AGAIN_NS: Final = 2_000_000_000
_RECONNECT_MS: Final = 1_000
"""Time until a tap that was dropped connects again: a publisher waits for it once a second at most."""
_TURN_BLOCKS: Final = 64
"""Blocks of a slice received in one turn."""


class TapCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a tap."""

    received: int
    """Messages received, chosen or not."""
    chosen: int
    """Received messages with the tap's prefixes and symbols."""
    missed: int
    """Messages of the same keys that were not received: the tap paused, or was dropped. Some may not be chosen."""
    skipped: int
    """Chosen messages that were received but not read in time."""
    dropped: int
    """Times that a connection was lost."""
    malformed: int
    """Messages that were not valid blocks."""


class Tap:
    """Receive some of a feed's messages as batches. The publisher disconnects a tap before it waits for one.

    A thread, `blackbox-tap`, owns the sockets, one to the first line of each slice. It never waits for `read`: older
    batches make room for newer ones. Above 4 MB/s it pauses its subscription. Use it in a `with` block, from one
    thread.
    """

    def __init__(self, feed: Feed, prefix: Prefixes = b"", *, symbols: Iterable[str | bytes] | None = None) -> None:
        """Choose topics that start with one of the prefixes and have one of the symbols. Raises as `Subscriber.on`."""
        check_is_feed(feed)
        self.feed = feed
        self._choice = TopicChoice.of(feed, prefix, symbols)
        self._slices: list[_TappedSlice] = []
        self._batches = deque[Batch]()
        self._notes = deque[str](maxlen=_MOST_NOTES)
        self._changed = threading.Condition()
        self._skipped = self._waiting_bytes = 0
        self._budget = Budget()
        self._error: BlackBoxError | None = None
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="blackbox-tap", daemon=True)

    def __enter__(self) -> Self:
        """Connect. Raises EndpointError naming an endpoint, LimitError naming a limit.

        Raises ConfigError without topics, and for a slice with only multicast lines.
        """
        starts = starts_by_slice(self.feed, self._choice.starts)
        if not starts:
            raise ConfigError(f"no slice of feed {self.feed.name!r} has a topic {self._choice}")
        # For each slice: socket, connection, both ends of its monitor.
        context = new_context(f"tap of feed {self.feed.name!r}", Needs(descriptors=4 * len(starts), threads=1))
        self._context = context
        try:
            for slice_id, each in starts.items():
                keys = tuple(dict.fromkeys(self.feed.subscription_of(start, whole=whole) for start, whole in each))
                self._slices.append(_TappedSlice(context, self.feed, slice_id, keys, self._choice))
            start_thread(self._thread)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over = True
        join(self._thread)

    def wait_confirmed(self, timeout: Duration | None = None) -> None:
        """Wait until every slice has confirmed the filters.

        Raises NotConfirmedError after `timeout` seconds, RightsError if a topic is refused.
        """
        timeout = seconds("timeout", timeout)
        until = None if timeout is None else time.monotonic() + timeout
        while missing := [each for each in self._slices if not each.is_confirmed]:
            self._check()
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                raise NotConfirmedError(f"{missing[0].where} did not confirm the tap in {timeout:g} s")
            with self._changed:
                self._changed.wait(step_of(left))

    def read(self, timeout: Duration = 0.2) -> list[Batch]:
        """Return the batches that have come; wait up to `timeout` seconds for the first. Raises as `wait_confirmed`."""
        timeout = seconds("timeout", timeout)
        with self._changed:
            self._changed.wait_for(lambda: self._batches or self._error is not None, timeout)
            found = list(self._batches)
            self._batches.clear()
            self._waiting_bytes = 0
        self._check()
        return found

    def notes(self) -> list[str]:
        """Return what has happened to the connections since the last call."""
        found = []
        while self._notes:
            found.append(self._notes.popleft())
        return found

    def statistics(self) -> TapCounters:
        """Return a snapshot of the counters."""
        return TapCounters(
            received=sum(each.received for each in self._slices),
            chosen=sum(each.chosen for each in self._slices),
            missed=sum(each.counts.missed for each in self._slices),
            skipped=self._skipped,
            dropped=sum(each.dropped for each in self._slices),
            malformed=sum(each.malformed for each in self._slices),
        )

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            poller = zmq.Poller()
            for each in self._slices:
                poller.register(each.sub, zmq.POLLIN)
                poller.register(each.events, zmq.POLLIN)
            while not self._is_over:
                ready = dict(poller.poll(_POLL_MS))
                for each in self._slices:
                    if each.sub in ready:
                        self._take(each)
                    if each.events in ready:
                        self._notes.extend(each.read_events())
                    each.look()
                self._keep_to_budget()
        except BlackBoxError as error:
            self._error = error
        except Exception as error:  # the reader must see any error that ends this thread
            log.exception("the tap of feed %r failed", self.feed.name)
            self._error = BlackBoxError(f"the tap of feed {self.feed.name!r} failed: {error}")
        finally:
            self._close()
            with self._changed:
                self._changed.notify_all()

    def _take(self, each: _TappedSlice) -> None:
        for block, batch in each.receive():
            self._budget.charge(block.body.nbytes, time.monotonic_ns())
            self._keep_to_budget()  # at once: a fast publisher sends much in a turn
            with self._changed:
                if batch is not None:
                    self._append(batch)
                self._changed.notify_all()

    def _keep_to_budget(self) -> None:
        if self._budget.has_changed(time.monotonic_ns()):
            for each in self._slices:
                each.pause(self._budget.is_paused)

    def _append(self, batch: Batch) -> None:
        self._batches.append(batch)
        self._waiting_bytes += batch.block.body.nbytes
        while len(self._batches) > _MOST_WAITING or self._waiting_bytes > _MOST_WAITING_BYTES:
            oldest = self._batches.popleft()
            self._skipped += len(oldest)
            self._waiting_bytes -= oldest.block.body.nbytes

    def _close(self) -> None:
        for each in self._slices:
            each.close()
        self._context.term()


class _TappedSlice:
    """The first line of a slice: its socket and counters. Made by one thread, then used by the tap's."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        feed: Feed,
        slice_id: int,
        keys: tuple[bytes, ...],
        choice: TopicChoice,
    ) -> None:
        part = feed.slices[slice_id]
        if not part.sockets:
            raise ConfigError(
                f"slice {slice_id} of feed {feed.name!r} had only multicast lines, expected one on tcp: a tap reads it"
            )
        endpoint = part.sockets[0]
        self.where = f"feed {feed.name!r} slice {slice_id} at {endpoint}"
        self.received = self.chosen = self.dropped = self.malformed = 0
        self.is_confirmed = False
        self.counts = KeyCounts(keys)
        self._feed, self._keys, self._choice = feed, keys, choice
        schema = load_schema(feed.schema)
        self._batch_feed = BatchFeed(feed.name, schema if schema.records else None, feed.symbol_rule)
        self._nonce, self._asked_ns = b"", 0
        self._has_ended = False
        line_keys = keys_of_line(feed, 0, endpoint)
        self.sub = open_sub(context, _HWM_BLOCKS)
        self.events = self.sub.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.sub.reconnect_ivl = _RECONNECT_MS
        address = address_from(part.interface, endpoint)
        allow_ipv6(self.sub, address)
        self.sub.subscribe(TAP_KEY)  # first: with the filters below alone a publisher would wait for it
        self.sub.subscribe(HEARTBEAT_KEY)
        self.pause(False)
        try:
            use_keys(self.sub, line_keys)
            self.sub.connect(address)
        except zmq.ZMQError as error:
            self.close()
            raise EndpointError(error.errno, f"cannot connect to {endpoint}: {error.strerror}") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.sub.disable_monitor()
        self.events.close(linger=0)
        self.sub.close(linger=0)

    def pause(self, is_paused: bool) -> None:
        """Withdraw the filters, or subscribe to them again."""
        for key in self._keys:
            (self.sub.unsubscribe if is_paused else self.sub.subscribe)(key)

    def look(self) -> None:
        """Request a confirmation, again if none comes: a full queue drops it."""
        now_ns = time.monotonic_ns()
        if not self.is_confirmed and now_ns - self._asked_ns >= _ASK_AGAIN_NS:
            self._withdraw_nonce()
            self._nonce, self._asked_ns = CONFIRM_KEY + secrets.token_bytes(NONCE_BYTES), now_ns
            self.sub.subscribe(self._nonce)

    def _withdraw_nonce(self) -> None:
        if self._nonce:
            self.sub.unsubscribe(self._nonce)
            self._nonce = b""

    def read_events(self) -> Iterator[str]:
        """Yield what has happened to the connection."""
        while self.events.poll(0):
            event_of(self.events.recv_multipart())
            self.dropped += not self._has_ended
            yield f"{self.where}: " + (
                "the publisher has closed"
                if self._has_ended
                else "dropped; a tap that does not keep up is disconnected"
            )

    def receive(self) -> Iterator[tuple[Block, Batch | None]]:
        """Yield some blocks that have come, each with its chosen messages, if it has any.

        Raises RightsError if a filter is refused.
        """
        with suppress(zmq.Again):
            for _ in range(_TURN_BLOCKS):
                frames = self.sub.recv_multipart(zmq.DONTWAIT)
                ts_recv = time.time_ns()
                try:
                    key, header, body = frames
                    block = Block.decode(key, header, body)
                    ends = block.ends() if block.flags & FLAG_CONTROL else None
                except (BlockError, ValueError):
                    self.malformed += 1
                    continue
                if ends is not None:
                    self._note(block, ends)
                yield block, self._chosen(block, ts_recv) if ends is None else None

    def _note(self, block: Block, ends: dict[bytes, End]) -> None:
        """Process a heartbeat or our confirmation."""
        if block.key == self._nonce:
            if block.flags & FLAG_REFUSED:
                refusal = Refusal(self.where, {key: end.sequence for key, end in ends.items()})
                raise refusal.error(self._feed, self._choice.starts)
            self._withdraw_nonce()
            self.is_confirmed = True
        elif block.key != HEARTBEAT_KEY:
            return
        self._has_ended = block.is_end
        self.counts.settle(block.epoch, ends)

    def _chosen(self, block: Block, ts_recv: int) -> Batch | None:
        self._has_ended = False
        self.received += block.count
        self.counts.take(block)
        if self._choice.takes_all:
            self.chosen += block.count
            return Batch(block, None, ReceivedBlock.of_block(block, self._batch_feed, ts_recv))
        has = numpy.fromiter(map(self._choice.has, block.topics), numpy.bool_, block.topic_count)
        rows = numpy.flatnonzero(has[block.topic_index]).astype(numpy.int32)
        self.chosen += len(rows)
        if not len(rows):
            return None
        return Batch(block, rows, ReceivedBlock.of_block(block, self._batch_feed, ts_recv))
