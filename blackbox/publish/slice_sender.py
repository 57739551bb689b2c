"""A slice's sender: owns the XPUB sockets of one slice, sends what its ring holds, answers its subscribers."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Iterator
from enum import Enum

import numpy
import zmq

from blackbox.block.block import distinct_scratch
from blackbox.block.encode import Origin, TopicTable
from blackbox.block.format import (
    ACCEPT_KEY,
    CONFIRM_KEY,
    FLAG_END,
    HEARTBEAT_KEY,
    MAX_KEY_BYTES,
    NONCE_BYTES,
)
from blackbox.errors import BlackBoxError, EndpointError, PublisherError
from blackbox.feed.feed import Feed, Slice
from blackbox.native.jit import WARM_UP_NEEDS, warm_up
from blackbox.native.limits import Needs, start_thread
from blackbox.publish import send_loop as send
from blackbox.publish.batcher import Encoder, make_selection
from blackbox.publish.ring import DRAINING, ENDING, Ring, discard
from blackbox.transport.context import (
    CONTEXT_NEEDS,
    MAX_SUBSCRIPTIONS,
    close_context,
    open_context,
    pin_thread,
    wake_on_time,
)
from blackbox.transport.wakeup import PIPE_NEEDS

log = logging.getLogger("blackbox")

RING_BYTES = 4 << 20
_PENDING_BLOCKS = 16
"""Encoded blocks that may wait for a sender: enough to keep both busy, few enough to stay in the cache."""
_TOPIC_TEXT_BYTES = 32
"""Mean room for a topic's text, per topic of `max_topics`."""
_RETRY_NS = 2_000_000
_SEND_WAIT_MS = 20
_RECEIVED_BYTES = 64 << 10
_ACCEPT_S = 1.0
_REPEAT_S = 0.1
_NEVER_NS = (1 << 63) - 1


def _split(data: bytes) -> Iterator[bytes]:
    place = 0
    while place < len(data):
        end = place + 4 + int.from_bytes(data[place : place + 4], "little")
        yield data[place + 4 : end]
        place = end


class State(Enum):
    """Where a sender is in its life. It goes forward only."""

    NEW = "new"
    RUNNING = "running"
    CLOSING = "closing"
    ENDED = "ended"


_ORDER = tuple(State)


def needs_of(part: Slice) -> tuple[Needs, ...]:
    """What a `SliceSender` opens and starts, with one connection a line."""
    return PIPE_NEEDS, PIPE_NEEDS, CONTEXT_NEEDS, WARM_UP_NEEDS, Needs(threads=1), _sockets_of(part)


def _sockets_of(part: Slice) -> Needs:
    return Needs(descriptors=3 * len(part.endpoints))


class SliceSender:
    """One slice of a publisher: its topics and keys, its ring, and the thread that sends.

    Life: NEW, `start`, RUNNING, `ask_to_close`, CLOSING, ENDED; an error ends it at once. Sockets are created, used and
    closed in its thread. Topics are added by publishing threads that hold `ring.lock`; the set of subscriptions is
    guarded by `changed`.
    """

    def __init__(self, feed: Feed, slice_id: int, schema_id: int, epoch: int, wait: bool, hwm_blocks: int) -> None:
        self.feed = feed
        self.slice_id = slice_id
        self.part = feed.slices[slice_id]
        sender = weakref.proxy(self)  # not a circle: the ring's memory and pipes go with the sender, at once

        def check() -> None:
            sender.check()

        self.ring = Ring(RING_BYTES, max(_PENDING_BLOCKS * feed.block_bytes, 1 << 20), check)
        self.state = State.NEW
        self.topics: dict[bytes, int] = {}
        self.keys: dict[bytes, int] = {}
        self.changed = threading.Condition()
        self.error: BlackBoxError | None = None
        self.discarded = 0
        self.alive: set[object] = set()
        """What bodies lie in that are sent from where they are. It goes with the thread."""
        self._wait = wait
        self._hwm_blocks = hwm_blocks
        self._max_keys = feed.max_topics if feed.key_bytes else 1
        self._subscriptions: list[set[bytes]] = [set() for _ in self.part.endpoints]
        self._deadline = 0.0
        self._received = numpy.zeros(_RECEIVED_BYTES, numpy.uint8)
        self._unanswered: list[tuple[int, bytes]] = []
        self._answered: set[tuple[int, bytes]] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"blackbox-sender-{slice_id}", daemon=True)
        self.table = TopicTable(
            numpy.zeros(feed.max_topics * _TOPIC_TEXT_BYTES, numpy.uint8),
            numpy.zeros(feed.max_topics, numpy.int64),
            numpy.zeros(feed.max_topics, numpy.int32),
        )
        self._text_end = 0
        self.wanted = numpy.zeros(self._max_keys, numpy.uint8)
        self.sent = send.SenderState()
        self.sent.asked_at = time.time_ns()
        self.next_sequence = numpy.zeros(self._max_keys, numpy.int64)
        self.key_of_topic = numpy.zeros(feed.max_topics, numpy.int32)
        self._key_table = TopicTable(
            numpy.zeros(self._max_keys * MAX_KEY_BYTES, numpy.uint8),
            numpy.arange(self._max_keys, dtype=numpy.int64) * MAX_KEY_BYTES,
            numpy.zeros(self._max_keys, numpy.int32),
        )
        self.origin = Origin(schema_id, slice_id, feed.key_bytes, epoch)
        self._epoch = epoch

    def start(self, timeout: float = 120.0) -> None:
        """Bind the endpoints. Raises EndpointError naming the one that could not be bound."""
        start_thread(self._thread)
        if not self._ready.wait(timeout):
            raise PublisherError(f"slice {self.slice_id}: sender did not start in {timeout} s")
        if self.error is not None:
            self._thread.join()
            raise self.error

    def add_topic(self, topic: bytes) -> int:
        """The id of a topic of this slice. Call with `ring.lock` held. Raises PublisherError when the table is full."""
        known = self.topics.get(topic)
        if known is not None:
            return known
        number = len(self.topics)
        end = self._text_end + len(topic)
        if number >= self.feed.max_topics or end > self.table.text.nbytes:
            raise PublisherError(
                f"slice {self.slice_id}: topic {topic[:64]!r} did not fit: {number} topics of {self._text_end} bytes, "
                f"expected at most max_topics = {self.feed.max_topics} of {_TOPIC_TEXT_BYTES} bytes on average"
            )
        self.table.text[self._text_end : end] = numpy.frombuffer(topic, numpy.uint8)
        self.table.offsets[number] = self._text_end
        self.table.sizes[number] = len(topic)
        self.key_of_topic[number] = self.add_key(self.feed.key_of(topic))
        self._text_end = end
        self.topics[topic] = number
        return number

    def add_key(self, key: bytes) -> int:
        """The number of a key. Call with `ring.lock` held."""
        known = self.keys.get(key)
        if known is not None:
            return known
        with self.changed:
            number = len(self.keys)
            if number >= self._max_keys:
                raise PublisherError(
                    f"slice {self.slice_id}: key {key!r} did not fit: {number} keys, "
                    f"expected at most max_topics = {self._max_keys}"
                )
            place = number * MAX_KEY_BYTES
            self._key_table.text[place : place + len(key)] = numpy.frombuffer(key, numpy.uint8)
            self._key_table.sizes[number] = len(key)
            self.wanted[number] = self._is_wanted(key)
            self.keys[key] = number
            self.sent.keys = number + 1
        return number

    def _is_wanted(self, key: bytes) -> bool:
        return any(key[:size] in wanted for wanted in self._subscriptions for size in range(len(key) + 1))

    def subscribers(self, prefix: bytes) -> int:
        """How many subscribers have all their filters in force, if any filter can match topics with `prefix`; else 0.

        Call with `changed` held. Plain SUB sockets, which want no heartbeats and ask for nothing, count as one.
        """
        best = 0
        asked = self.feed.subscription_of(prefix)
        for line, subscriptions in enumerate(self._subscriptions):
            if any(not s.startswith(b"\0") and (s.startswith(asked) or asked.startswith(s)) for s in subscriptions):
                best = max(best, self._accepted(line) if HEARTBEAT_KEY in subscriptions else 1)
        return best

    def _accepted(self, line: int) -> int:
        # After a reconnect libzmq sends filters in an order of its own, but an old answer carries an old epoch.
        mine = self._epoch.to_bytes(8, "little") + bytes([line])
        return sum(s.startswith(ACCEPT_KEY) and s.endswith(mine) for s in self._subscriptions[line])

    def subscriber_count(self) -> int:
        """Subscribers that have all their filters in force, on the line that has most."""
        with self.changed:
            return max(map(self._accepted, range(len(self._subscriptions))))

    def check(self) -> None:
        """Raise what ended the thread, if it has ended."""
        if self.error is not None:
            raise self.error
        if self.state is State.ENDED:
            raise PublisherError(f"slice {self.slice_id}: the publisher was closed")

    def flush(self, deadline: float) -> None:
        """Wait until the ring is empty: everything published before is with ZeroMQ. Raises PublisherError in time."""
        late = PublisherError(f"slice {self.slice_id}: flush was not done in time: a subscriber did not keep up")
        if not self.ring.lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise late  # another thread holds it while it waits for room
        try:
            while not self.ring.is_empty():
                if time.monotonic() >= deadline:
                    raise late
                self.ring.announce_wait()
                if not self.ring.is_empty():
                    self.ring.wait()
        finally:
            self.ring.lock.release()

    def ask_to_close(self, deadline: float) -> None:
        """Let the thread send what the ring holds, then end. ZeroMQ keeps sending until the deadline at most."""
        self._deadline = deadline
        self._enter(State.CLOSING)
        self._close_ring(DRAINING)

    def close(self, deadline: float) -> None:
        """Wait for the thread; at the deadline tell it to end at once. What it then discards is in `discarded`."""
        if self._thread.ident is None:
            return  # it could not be started
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._close_ring(ENDING)
            self._thread.join()

    def _close_ring(self, how: int) -> None:
        self.ring.state.closing = max(how, self.ring.state.closing)
        self.ring.wake()

    def _enter(self, state: State) -> None:
        """Go forward to `state`; no change if it is as far already."""
        with self.changed:
            if _ORDER.index(state) > _ORDER.index(self.state):
                log.debug("slice %d: sender %s -> %s", self.slice_id, self.state.value, state.value)
                self.state = state
                self.changed.notify_all()

    def _run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] | None = None
        sockets: list[zmq.Socket[bytes]] = []
        try:
            context = open_context(self.part, f"slice {self.slice_id}", _sockets_of(self.part))
            pin_thread(self.part.cpus)
            wake_on_time()
            encoder = self.make_encoder(send.GATHER_ROWS)
            sender = self._sender(0, 0)
            warm_up(send.send_until, sender, self.ring.at, encoder, 0)
            warm_up(send.read_subscriptions, sender, 0, 0, 0)
            warm_up(send.send_control, sender, self.origin, 0, 0, 0, 0, 0)
            self._bind(context, sockets)
            second = sockets[1].underlying if len(sockets) > 1 else 0
            sender = self._sender(sockets[0].underlying, second)
            self._enter(State.RUNNING)
            self._ready.set()
            self._serve(sender, encoder, sockets)
            self._announce_end(sender, sockets)
        except BlackBoxError as error:
            self.error = error
        except Exception as error:  # whatever ends this thread must reach the publishing thread
            log.exception("slice %d: sender failed", self.slice_id)
            self.error = PublisherError(f"slice {self.slice_id}: sender failed: {error}")
            self.error.__cause__ = error
        finally:
            self._enter(State.ENDED)  # writers that wait for room hold the lock, and leave when they see this
            with self.ring.lock:
                self.ring.forget_limit()  # from now on every write looks for room, and finds that this has ended
                self.discarded = discard(self.ring.at) - self.sent.handled
            for socket in sockets:
                socket.close()
            if context is not None:
                close_context(context)
            self._ready.set()

    def _bind(self, context: zmq.Context[zmq.Socket[bytes]], sockets: list[zmq.Socket[bytes]]) -> None:
        for endpoint in self.part.endpoints:
            socket = context.socket(zmq.XPUB)
            sockets.append(socket)
            socket.sndhwm = self._hwm_blocks
            socket.rcvhwm = MAX_SUBSCRIPTIONS
            socket.linger = 0
            socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
            if self._wait:
                socket.setsockopt(zmq.XPUB_NODROP, 1)
                socket.sndtimeo = _SEND_WAIT_MS
            try:
                socket.bind(endpoint)
            except zmq.ZMQError as error:
                what = "is in use" if error.errno == zmq.EADDRINUSE else f"could not be bound: {error.strerror}"
                raise EndpointError(
                    error.errno,
                    f"feed {self.feed.name!r} slice {self.slice_id}: endpoint {endpoint} {what}",
                ) from error

    def make_encoder(self, rows: int) -> Encoder:
        """Return what one thread encodes up to `rows` messages at a time of this slice with."""
        return Encoder(
            make_selection(rows, self._max_keys),
            self.table,
            self.key_of_topic,
            distinct_scratch(self.feed.max_topics),
            self.feed.block_bytes,
            self.feed.checksum,
            self.origin,
        )

    def _sender(self, socket_a: int, socket_b: int) -> send.Sender:
        return send.Sender(
            socket_a,
            socket_b,
            self.ring.wake_pipe.reader,
            self.feed.linger_ns,
            self.feed.heartbeat_ns,
            self.sent.address,
            self._key_table,
            self.next_sequence,
            self.wanted,
            numpy.zeros(send.GATHER_ROWS, numpy.int64),
            numpy.zeros(send.GATHER_ROWS, numpy.int32),
            numpy.zeros(send.GATHER_ROWS, numpy.int64),
            numpy.zeros(send.SCRATCH_WORDS, numpy.int64),
        )

    def _serve(self, sender: send.Sender, encoder: Encoder, sockets: list[zmq.Socket[bytes]]) -> None:
        self.sent.heartbeat_at = time.monotonic_ns() + self.feed.heartbeat_ns
        while True:
            retry_ns = time.monotonic_ns() + _RETRY_NS if self._unanswered else _NEVER_NS
            reason = send.send_until(sender, self.ring.at, encoder, retry_ns)
            # A confirmation waits for a pass of the ring: what was put there before it, unwanted, then has its numbers.
            if self._unanswered:
                answered = [ask for ask in self._unanswered if self._send_control_surely(sender, sockets, *ask)]
                self._unanswered = [ask for ask in self._unanswered if ask not in answered]
                self._answered.update(answered)
            if reason == send.SUBSCRIPTIONS:
                self._read_subscriptions(sender)
            elif reason == send.CLOSED:
                return
            self._check_sender()

    def _check_sender(self) -> None:
        error = self.sent.errno
        if error:
            raise PublisherError(f"slice {self.slice_id}: libzmq refused a block: {zmq.strerror(error)}")

    def _announce_end(self, sender: send.Sender, sockets: list[zmq.Socket[bytes]]) -> None:
        for line in range(len(sockets)):
            while not self._send_control_surely(sender, sockets, line, HEARTBEAT_KEY, FLAG_END):
                if self.ring.state.closing == ENDING:
                    break
                self._check_sender()  # each try waits for the slowest subscriber, up to the send timeout
        # A connection that is closed while subscriptions lie unread in it is reset, and takes with it what the other
        # side has not read yet. So stay until subscribers say that they have the last block.
        patience = time.monotonic() + _ACCEPT_S
        repeat = time.monotonic() + _REPEAT_S
        while (waiting := self._still_reading(patience)) and not self._is_late():
            if any(socket.poll(_SEND_WAIT_MS) for socket in sockets):
                self._read_subscriptions(sender)
            if not self._wait and time.monotonic() >= repeat:
                # A queue that has refused a block is passed over until it has room: what was sent then did not get in.
                repeat = time.monotonic() + _REPEAT_S
                for line in range(len(sockets)):
                    self._send_control(sender, line, HEARTBEAT_KEY, FLAG_END, zmq.DONTWAIT)
        if waiting:
            log.warning("slice %d: closed before %d subscribers had everything", self.slice_id, waiting)
        for socket in sockets:
            socket.linger = max(0, int(1000 * (self._deadline - time.monotonic())))

    def _is_late(self) -> bool:
        return self.ring.state.closing == ENDING or time.monotonic() >= self._deadline

    def _still_reading(self, patience: float) -> int:
        """Subscribers that have not withdrawn their acceptance; until `patience` also those whose may be on its way."""
        reading = self.subscriber_count()
        return max(reading, len(self._answered)) if time.monotonic() < patience else reading

    def _read_subscriptions(self, sender: send.Sender) -> None:
        for line, subscriptions in enumerate(self._subscriptions):
            while used := send.read_subscriptions(sender, line, self._received.ctypes.data, len(self._received)):
                with self.changed:
                    for change in _split(self._received[:used].tobytes()):
                        self._note_subscription(line, subscriptions, change[:1], change[1:])
        with self.changed:
            for key, number in self.keys.items():
                self.wanted[number] = self._is_wanted(key)
            self.changed.notify_all()

    def _note_subscription(self, line: int, subscriptions: set[bytes], what: bytes, prefix: bytes) -> None:
        if what == b"\0":
            subscriptions.discard(prefix)
            self._answered.discard((line, prefix))
            if (line, prefix) in self._unanswered:
                self._unanswered.remove((line, prefix))
        elif what == b"\1":
            subscriptions.add(prefix)
            if prefix.startswith(CONFIRM_KEY) and len(prefix) == len(CONFIRM_KEY) + NONCE_BYTES:
                self._unanswered.append((line, prefix))
            elif prefix.startswith(ACCEPT_KEY):
                self._answered.discard((line, CONFIRM_KEY + prefix[len(ACCEPT_KEY) :][:NONCE_BYTES]))

    def _send_control_surely(
        self, sender: send.Sender, sockets: list[zmq.Socket[bytes]], line: int, key: bytes, flags: int = 0
    ) -> bool:
        """Send the next sequence of every key, not dropped in silence by a full queue. False: there was no room."""
        sockets[line].setsockopt(zmq.XPUB_NODROP, 1)
        sockets[line].sndtimeo = _SEND_WAIT_MS
        sent = self._send_control(sender, line, key, flags, 0)
        if not self._wait:
            sockets[line].setsockopt(zmq.XPUB_NODROP, 0)
        return sent

    def _send_control(self, sender: send.Sender, line: int, key: bytes, flags: int, wait: int) -> bool:
        text = numpy.frombuffer(key, numpy.uint8)
        return bool(send.send_control(sender, self.origin, line, text.ctypes.data, len(key), flags, int(wait)))
