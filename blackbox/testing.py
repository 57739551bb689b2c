"""Helpers for tests of code that publishes or subscribes: real sockets, no mocks.

`Collector` gathers the messages of callbacks. `RawPublisher` sends blocks that a `Publisher` never would: lost,
repeated and damaged ones, blocks on one line only, another epoch. `wait_until` waits for a condition that has no event.
"""

from __future__ import annotations

import os
import queue
import select
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy
import zmq

from blackbox.block.batch.batch import Batch, Message
from blackbox.block.form.block import Block, HeaderFields
from blackbox.block.form.encode import finish_header
from blackbox.block.form.format import CONFIRM_KEY, FLAG_END, FLAG_LINE_B, HEARTBEAT_KEY, NONCE_BYTES
from blackbox.block.form.rows import PayloadColumns
from blackbox.block.position import End
from blackbox.errors import PublisherError
from blackbox.feed.feed import Feed
from blackbox.feed.schema.schema import load_schema
from blackbox.life import Life
from blackbox.native.system.limits import Needs
from blackbox.native.system.waits import join, result_of, step_of
from blackbox.transport.context import MAX_SUBSCRIPTIONS, close_context, open_context
from blackbox.transport.server_thread import bind
from blackbox.transport.wakeup import Pipe

_LEAST_POLL_S = 0.0005
_POLL_S = 0.005
_LINGER_MS = 5_000
_QUEUE_BLOCKS = 1_000_000


def wait_until(condition: Callable[[], object], timeout: float = 60.0, what: str = "the condition") -> None:
    """Return as soon as `condition()` is true. Raises TimeoutError naming `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    pause, pause_s = threading.Event(), _LEAST_POLL_S
    while not condition():
        if time.monotonic() >= deadline:
            raise TimeoutError(f"{what} was not true after {timeout} s")
        pause.wait(pause_s)
        pause_s = min(2 * pause_s, _POLL_S)


class Received(NamedTuple):
    """One message as received by a callback."""

    topic: bytes
    payload: bytes
    ts_event: int
    sequence: int


class Collector:
    """Gathers messages: give `message` to `Subscriber.on`, or `batch` to `on_batch`. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._messages: list[Received] = []

    def message(self, message: Message) -> None:
        """A callback for `on`."""
        self._add([Received(message.topic, message.payload, message.ts_event, message.sequence)])

    def batch(self, batch: Batch) -> None:
        """A callback for `on_batch`."""
        rows = range(len(batch))
        topics, times, numbers = batch.topics_per_message(), batch.ts_event.tolist(), batch.sequence.tolist()
        self._add([Received(topics[i], batch.payload(i), times[i], numbers[i]) for i in rows])

    def _add(self, messages: list[Received]) -> None:
        with self._changed:
            self._messages += messages
            self._changed.notify_all()

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def messages(self) -> list[Received]:
        """The messages received so far, in order of arrival."""
        with self._changed:
            return list(self._messages)

    @property
    def payloads(self) -> list[bytes]:
        """Their payloads."""
        return [message.payload for message in self.messages]

    def wait(self, count: int, timeout: float = 60.0) -> list[Received]:
        """Wait until at least `count` messages have arrived; return all. Raises TimeoutError."""
        with self._changed:
            until = time.monotonic() + timeout
            while len(self._messages) < count:
                if (left := until - time.monotonic()) <= 0:
                    raise TimeoutError(f"{len(self._messages)} messages arrived in {timeout} s, expected {count}")
                self._changed.wait(step_of(left))
            return list(self._messages)


class RawPublisherLife(Life):
    """State of a raw publisher."""

    NEW = "new", "running"
    """`start` leads to RUNNING."""
    RUNNING = "running", "closed"
    """Ready to send once `start` has returned. CLOSED follows by `close` or if the start fails."""
    CLOSED = "closed"
    """Nothing follows."""


class RawPublisher:
    """Plain XPUB sockets on a feed's endpoints, which send exactly the given frames on the chosen lines.

    On its own it sends only confirmations of subscriptions. Life: see `RawPublisherLife`. A separate thread owns its
    sockets. It is thread-safe, and every call returns when it is done.

    Attributes:
        epoch: epoch of blocks made by `encode` and of control blocks.
        sequences: next sequence of each slice. `encode` updates it; tests may change it.
        ends: end of every key by slice, also updated by `encode`. Heartbeats report `sequences` and `ends`. Without
            keys they report the end of the slice.
        confirms: False to leave subscriptions unanswered. While some encoded blocks were not sent, confirmations only
            count those that were.
    """

    def __init__(self, feed: Feed, epoch: int = 1) -> None:
        self.feed = feed
        self.epoch = epoch
        self.confirms = True
        self.sequences = [0 for _ in feed.slices]
        self.ends: list[dict[bytes, End]] = [{} for _ in feed.slices]
        self._sent: dict[tuple[int, int], tuple[int, dict[bytes, End]]] = {}
        """Next sequence and end of every key of sent blocks, by slice and epoch."""
        self._unsent: set[tuple[int, int, int]] = set()
        """Slice, epoch and sequence of blocks that were encoded but not sent."""
        self._lines = [
            (slice_id, line) for slice_id, feed_slice in enumerate(feed.slices) for line in _lines_of(feed_slice)
        ]
        self._subscriptions: dict[tuple[int, int], set[bytes]] = {place: set() for place in self._lines}
        self._sockets: dict[tuple[int, int], zmq.Socket[bytes]] = {}
        self._contexts: list[zmq.Context[zmq.Socket[bytes]]] = []
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._wake = Pipe()
        self._life = RawPublisherLife.NEW
        self._thread = threading.Thread(target=self._run, name="blackbox-raw-publisher", daemon=True)

    def start(self) -> Self:
        """Bind every line of every slice. Raises EndpointError if an endpoint could not be bound."""
        if self._life is not RawPublisherLife.NEW:
            raise PublisherError(f"start was called when {self._life}; a raw publisher is used once")
        self._enter(RawPublisherLife.RUNNING)
        self._thread.start()
        try:
            self._call(self._bind)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Close the sockets without announcing the end, as a killed publisher does.

        Data already sent is still delivered.
        """
        if self._life is RawPublisherLife.RUNNING:
            self._call(self._close)
            join(self._thread)

    def _enter(self, life: RawPublisherLife) -> None:
        """Change to `life`. Raises RuntimeError if the transition is not allowed."""
        self._life = self._life.enter(life, f"raw publisher of feed {self.feed.name!r}")

    def encode(
        self,
        messages: Sequence[tuple[bytes, bytes]],
        *,
        slice_id: int = 0,
        sequence: int | None = None,
        previous: int | None = None,
        key_sequence: int | None = None,
        ts_event: Any = None,
        ts_out: int | None = None,
        ts_in: int | None = None,
        same: Sequence[int] | None = None,
        flags: int = 0,
        checksum: bool = True,
    ) -> Block:
        """Return a block of (topic, payload) messages that all have the key of the first.

        Defaults: `sequence` is the next one of the slice. `previous` and `key_sequence` are the key's end in `ends`, or
        `sequence` without keys. `ts_out` is now, and `ts_in` is `ts_out`. `same`: see `Block.same`.
        """
        sent = time.time_ns() if ts_out is None else ts_out
        topics = list(dict.fromkeys(topic for topic, _ in messages))
        payloads = [payload for _, payload in messages]
        key, ends, count = self.feed.key_of(topics[0]), self.ends[slice_id], len(messages)
        first = self.sequences[slice_id] if sequence is None else sequence
        end = ends.get(key, End(0, 0)) if self.feed.key_rule else End(first, first)
        previous = min(first, end.sequence) if previous is None else previous
        key_sequence = min(previous, end.count) if key_sequence is None else key_sequence
        self.sequences[slice_id] = max(first + count, self.sequences[slice_id])
        ends[key] = max(End(first + count, key_sequence + count), end)
        self._unsent.add((slice_id, self.epoch, first))
        return Block.encode(
            topics,
            [topics.index(topic) for topic, _ in messages],
            PayloadColumns(
                b"".join(payloads), ts_event=ts_event, offsets=numpy.cumsum([0, *map(len, payloads)]), same=same
            ),
            HeaderFields(
                key_rule=self.feed.key_rule,
                slice_id=slice_id,
                schema_id=load_schema(self.feed.schema).schema_id,
                epoch=self.epoch,
                sequence=first,
                previous=previous,
                key_sequence=key_sequence,
                ts_out=sent,
                ts_in=sent if ts_in is None else ts_in,
                flags=flags,
            ),
            key=key,
            checksum=checksum,
        )

    def send(self, block: Block, lines: Iterable[int] = (0,)) -> None:
        """Send a block on these lines, marked with the line on each."""
        for line in lines:
            frames = (block.key, _header_on(block, line), block.body.data)
            self._call(partial(self._send, block, frames, line))

    def send_frames(self, frames: Sequence[Any], slice_id: int = 0, line: int = 0) -> None:
        """Send any frames as they are."""
        self._call(lambda: self._sockets[slice_id, line].send_multipart(frames))

    def heartbeat(self, *, end: bool = False, lines: Iterable[int] | None = None, slice_id: int | None = None) -> None:
        """Send a heartbeat with the end of every key, by default on all lines of all slices. `end`: the last one."""
        for at, line in self._lines:
            if (slice_id is None or at == slice_id) and (lines is None or line in lines):
                told, flags = (self.sequences[at], self.ends[at]), FLAG_END if end else 0
                self.send_frames(self._control(HEARTBEAT_KEY, told, at, line, flags).frames, at, line)

    def close_line(self, line: int, slice_id: int = 0) -> None:
        """Close one line's socket without announcing the end."""
        self._call(lambda: self._sockets.pop((slice_id, line)).close())

    def subscriptions(self, slice_id: int = 0, line: int = 0) -> frozenset[bytes]:
        """Return the filters in force on a line, including reserved ones."""
        return self._call(lambda: frozenset(self._subscriptions[slice_id, line]))  # type: ignore[no-any-return]

    def __enter__(self) -> Self:
        return self if self._life is RawPublisherLife.RUNNING else self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _call(self, function: Callable[[], Any]) -> Any:
        if self._life is not RawPublisherLife.RUNNING:
            raise PublisherError(f"feed {self.feed.name!r}: the raw publisher is not running")
        future: Future[Any] = Future()
        self._calls.put((function, future))
        self._wake.poke()
        return result_of(future)

    # The following runs in the thread.

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake.reader, select.POLLIN)
        while self._life is RawPublisherLife.RUNNING:
            for socket in self._sockets.values():
                poller.register(socket, zmq.POLLIN)
            ready = dict(poller.poll())
            for place, socket in self._sockets.items():
                if socket in ready:
                    self._read(place, socket)
            if self._wake.reader in ready:
                os.read(self._wake.reader, 1)
                function, future = self._calls.get()
                before = set(self._sockets.values())
                try:
                    future.set_result(function())
                except Exception as error:  # noqa: BLE001 - it is raised in the calling thread
                    future.set_exception(error)
                for gone in before.difference(self._sockets.values()):
                    poller.unregister(gone)

    def _bind(self) -> None:
        for slice_id, line in self._lines:
            feed_slice = self.feed.slices[slice_id]
            if line == 0:
                self._contexts.append(open_context(feed_slice, "raw publisher", Needs(2 * 3)))
            socket = self._contexts[-1].socket(zmq.XPUB)
            self._sockets[slice_id, line] = socket
            socket.sndhwm, socket.rcvhwm, socket.linger = _QUEUE_BLOCKS, MAX_SUBSCRIPTIONS, _LINGER_MS
            bind(socket, feed_slice.lines[line], "endpoint")

    def _close(self) -> None:
        self._enter(RawPublisherLife.CLOSED)
        for socket in self._sockets.values():
            socket.close()
        self._sockets.clear()
        for context in self._contexts:
            close_context(context)

    def _read(self, place: tuple[int, int], socket: zmq.Socket[bytes]) -> None:
        while int(socket.get(zmq.EVENTS)) & zmq.POLLIN:
            said = bytes(socket.recv())
            wish = said[1:]
            if said[:1] == b"\1":
                self._subscriptions[place].add(wish)
                if self.confirms and wish.startswith(CONFIRM_KEY) and len(wish) == len(CONFIRM_KEY) + NONCE_BYTES:
                    socket.send_multipart(self._control(wish, self._told(place[0]), *place).frames)
            else:
                self._subscriptions[place].discard(wish)

    def _told(self, slice_id: int) -> tuple[int, dict[bytes, End]]:
        """Return the next sequence and the end of every key for a confirmation."""
        if not any(each[:2] == (slice_id, self.epoch) for each in list(self._unsent)):
            return self.sequences[slice_id], self.ends[slice_id]
        return self._sent.get((slice_id, self.epoch), (0, {}))

    def _send(self, block: Block, frames: Sequence[Any], line: int) -> None:
        self._sockets[block.slice_id, line].send_multipart(frames)
        self._unsent.discard((block.slice_id, block.epoch, block.sequence))
        following, ends = self._sent.get((block.slice_id, block.epoch), (0, {}))
        end = End(block.number_of(-1) + 1, block.key_sequence + block.count)
        ends[block.key] = max(end, ends.get(block.key, end))
        self._sent[block.slice_id, block.epoch] = max(following, end.sequence), ends

    def _control(
        self, key: bytes, told: tuple[int, dict[bytes, End]], slice_id: int, line: int, flags: int = 0
    ) -> Block:
        following, ends = told
        return Block.encode_ends(
            key,
            ends if self.feed.key_rule else {b"": End(following, following)},
            HeaderFields(
                sequence=following,
                slice_id=slice_id,
                epoch=self.epoch,
                ts_out=time.time_ns(),
                key_rule=self.feed.key_rule,
                flags=flags | (FLAG_LINE_B if line else 0),
            ),
        )


def _lines_of(feed_slice: Any) -> range:
    return range(len(feed_slice.lines))


def _header_on(block: Block, line: int) -> bytes:
    """Return a block's header as sent on a line."""
    if line == block.line:
        return block.header
    header = numpy.frombuffer(block.header, numpy.uint8).copy()
    finish_header(header.ctypes.data, block.ts_out, FLAG_LINE_B)
    return header.tobytes()
