"""A slice's sender: owns the XPUB sockets of one slice, sends the blocks in its ring, confirms its subscribers."""

from __future__ import annotations

import logging
import threading
import time
import weakref

import numpy
import zmq

from blackbox.block.form.block import distinct_scratch
from blackbox.block.form.encode import Origin, TopicTable
from blackbox.block.form.format import FLAG_END, HEARTBEAT_KEY
from blackbox.block.position import End
from blackbox.errors import BlackBoxError, NotRecordedError, PublisherError
from blackbox.feed.feed import Feed
from blackbox.feed.routing.key_rule import MAX_KEY_BYTES
from blackbox.feed.slice import Slice
from blackbox.life import Life
from blackbox.native.compile.jit import WARM_UP_NEEDS, warm_up
from blackbox.native.compile.kept_arguments import Kept
from blackbox.native.system.limits import Needs, start_thread
from blackbox.native.system.posix import allow_barriers
from blackbox.native.system.waits import acquire
from blackbox.publish.listeners.ack_tracker import RecorderPosition, What, in_words
from blackbox.publish.listeners.demand import Demand
from blackbox.publish.listeners.peer_guard import GUARD_NEEDS, Guard
from blackbox.publish.listeners.subscription_reader import SubscriptionReader, read_subscriptions
from blackbox.publish.listeners.wanted import WantedKeys, cover
from blackbox.publish.send import send_loop as send
from blackbox.publish.send.answers import SURELY_S, Answers, Full, send_control_blocks, send_refusal
from blackbox.publish.send.batcher import Encoder, make_selection
from blackbox.publish.send.outbox import NO_OUTBOX, OutboxSlice
from blackbox.publish.send.ring import DRAINING, ENDING, SURE, Ring, discard
from blackbox.publish.send.sender_state import SCRATCH_WORDS, Sender, SenderState
from blackbox.publish.send.xpub import open_xpub
from blackbox.transport.context import CONTEXT_NEEDS, close_context, open_context, pin_thread, wake_on_time
from blackbox.transport.libzmq import EVENTS_SCRATCH_WORDS
from blackbox.transport.security.gate import Gate, open_gate
from blackbox.transport.server_thread import bind
from blackbox.transport.shared_memory.layout import is_supported
from blackbox.transport.shared_memory.writer import SharedWriter
from blackbox.transport.wakeup import PIPE_NEEDS

log = logging.getLogger("blackbox")

RING_BYTES = 4 << 20
_PENDING_BLOCKS = 16
"""Encoded blocks that may wait for a sender: enough to keep both threads busy, few enough to stay in the cache."""
TOPIC_TEXT_BYTES = 32
"""Average room for a topic's text, per topic of `max_topics`."""
_SEND_WAIT_MS = 20
_RECEIVED_BYTES = 16 << 10
"""Bytes of subscriptions read in one pass: some hundreds of subscriptions, up to a millisecond."""
_READ_EVERY_NS = 5_000_000
"""Time between two passes if more wait; messages are sent in between."""
_ACCEPT_S = 1.0
_REPEAT_S = 0.1
_ASK_AGAIN_S = 0.25
"""Time until a heartbeat that recorders did not answer is repeated."""


class SenderLife(Life):
    """State of a slice's sender."""

    NEW = "new", "running", "closing", "ended"
    """It compiles and binds. Then it is RUNNING; CLOSING if asked to close before that, ENDED if it fails."""
    RUNNING = "running", "closing", "ended"
    """It sends. CLOSING follows by `ask_to_close`, ENDED by an error."""
    CLOSING = "closing", "ended"
    """It empties the ring and announces the end. ENDED follows."""
    ENDED = "ended"
    """It has stopped sending and releases its resources. Final state."""


def needs_of(part: Slice) -> tuple[Needs, ...]:
    """Return what a `SliceSender` opens and starts, with one connection per line."""
    return PIPE_NEEDS, PIPE_NEEDS, CONTEXT_NEEDS, WARM_UP_NEEDS, Needs(threads=1), GUARD_NEEDS, _sockets_of(part)


def _sockets_of(part: Slice) -> Needs:
    # For each XPUB, both ends of its connection monitor; for shared memory, the memory and one reader.
    return Needs(descriptors=6 * len(part.lines) + 7 * bool(part.shared_memory))


class SliceSender:
    """One slice of a publisher: its topics and keys, its ring, and the thread that sends.

    Life: see `SenderLife`. The sender's thread creates, uses and closes the sockets; while it sleeps, a publishing
    thread may use them. Publishing threads that hold `ring.lock` add topics. `changed` guards the subscriptions.
    """

    def __init__(
        self,
        feed: Feed,
        slice_id: int,
        schema_id: int,
        epoch: int,
        wait: bool,
        hwm_blocks: int,
        demand: Demand,
        outbox: OutboxSlice = NO_OUTBOX,
    ) -> None:
        self.feed = feed
        self.slice_id = slice_id
        self.part = feed.slices[slice_id]
        sender = weakref.proxy(self)  # avoids a reference cycle: the ring is freed together with the sender

        def check() -> None:
            sender.check()

        def wake(_: int) -> None:
            sender.ring.wake()

        self.ring = Ring(RING_BYTES, max(_PENDING_BLOCKS * feed.block_bytes, 1 << 20), check, wake)
        self.life = SenderLife.NEW
        self.topics: dict[bytes, int] = {}
        self.error: BlackBoxError | None = None
        self.discarded = 0
        self._wait = wait
        self._hwm_blocks = hwm_blocks
        self._max_keys = feed.max_keys
        self._deadline, self._says_end = 0.0, True
        self._reader: SubscriptionReader | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"blackbox-sender-{slice_id}", daemon=True)
        self.table = TopicTable(
            numpy.zeros(feed.max_topics * TOPIC_TEXT_BYTES, numpy.uint8),
            numpy.zeros(feed.max_topics, numpy.int64),
            numpy.zeros(feed.max_topics, numpy.int32),
        )
        self._text_end = 0
        self.sent = SenderState()
        self._epoch_deadline = 0.0
        self.sent.asked_at, self.sent.asked_from = time.time_ns(), SURE
        self._ends = numpy.zeros(self._max_keys, numpy.int64)
        self._counts = numpy.zeros(self._max_keys, numpy.int64)
        self.key_of_topic = numpy.zeros(feed.max_topics, numpy.int32)
        self._key_table = TopicTable(
            numpy.zeros(self._max_keys * MAX_KEY_BYTES, numpy.uint8),
            numpy.arange(self._max_keys, dtype=numpy.int64) * MAX_KEY_BYTES,
            numpy.zeros(self._max_keys, numpy.int32),
        )
        self.origin = Origin(schema_id, slice_id, feed.key_rule, epoch)
        self.subscriptions = WantedKeys(feed, len(self.part.lines), epoch, self._key_table, demand)
        self.keys, self.wanted = self.subscriptions.keys, self.subscriptions.wanted
        self.changed = self.subscriptions.changed
        self._outbox, self._outbox_failure = outbox.handler, outbox.failure
        self.encoded = numpy.ones(self._max_keys, numpy.uint16) if outbox.handler.function else self.wanted
        """Above 0: callers want the blocks of unwanted keys too, because the outbox must get every message."""
        if not feed.key_rule:
            self.add_key(
                b""
            )  # heartbeats include it from the start, so that a loss before its first message is reported
        self.sent.sequence, ends = outbox.begin()
        self.sent.kept = outbox.sequence
        for key, end in ends.items():
            number = self.add_key(key)
            self._ends[number], self._counts[number] = end
        self.guard = Guard(slice_id, self.subscriptions, self.sent, self.ring.wake, drop=not wait)
        self._gate: Gate | None = None

    def start(self, timeout: float = 120.0) -> None:
        """Bind the endpoints. Raises EndpointError if one could not be bound."""
        start_thread(self._thread)
        if not self._ready.wait(timeout):
            raise PublisherError(f"slice {self.slice_id}: sender did not start in {timeout} s")
        if self.error is not None:
            self._thread.join()
            raise self.error

    def add_topic(self, topic: bytes) -> int:
        """Return the id of a topic of this slice. Raises PublisherError if the table is full.

        Call with `ring.lock` held.
        """
        known = self.topics.get(topic)
        if known is not None:
            return known
        number = len(self.topics)
        end = self._text_end + len(topic)
        if number >= self.feed.max_topics or end > self.table.text.nbytes:
            raise PublisherError(
                f"slice {self.slice_id}: topic {topic[:64]!r} did not fit: {number} topics of {self._text_end} bytes, "
                f"expected at most max_topics = {self.feed.max_topics} of {TOPIC_TEXT_BYTES} bytes on average"
            )
        self.table.text[self._text_end : end] = numpy.frombuffer(topic, numpy.uint8)
        self.table.offsets[number] = self._text_end
        self.table.sizes[number] = len(topic)
        self.key_of_topic[number] = self.add_key(self.feed.key_of(topic))
        self._text_end = end
        self.topics[topic] = number
        return number

    def add_key(self, key: bytes) -> int:
        """Return the number of a key. Call with `ring.lock` held."""
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
            self.subscriptions.add_key(key, number)
            self.sent.keys = number + 1
        return number

    def check(self) -> None:
        """Raise the error that ended the thread, if it has ended."""
        if self.error is not None:
            raise self.error
        if self.life is SenderLife.ENDED:
            raise PublisherError(f"slice {self.slice_id}: the publisher was closed")

    def flush(self, deadline: float, next_epoch: int = 0) -> None:
        """Wait until the ring is empty: everything published before was handed to ZeroMQ.

        `next_epoch`: epoch of everything published from now on; waits up to a second for its subscribers to confirm
        again. Raises PublisherError at the deadline.
        """
        late = PublisherError(f"slice {self.slice_id}: flush timed out: a subscriber did not keep up")
        if not acquire(self.ring.lock, deadline - time.monotonic()):
            raise late  # another thread holds it while waiting for room
        try:
            self.ring.take_turn()
            try:
                while not self.ring.is_empty():
                    if time.monotonic() >= deadline:
                        raise late
                    self.ring.announce_wait()
                    if not self.ring.is_empty():
                        self.ring.wait()
                if next_epoch:
                    self._epoch_deadline = deadline
                    self._ask_for_epoch(next_epoch)
            finally:
                self.ring.turn = None
        finally:
            self.ring.lock.release()

    def _ask_for_epoch(self, epoch: int) -> None:
        with self.changed:
            before = self.subscriptions.subscriber_count()
            self.sent.next_epoch = epoch
            self.ring.wake()
            while self.sent.next_epoch:
                self.check()
                self.changed.wait(_ACCEPT_S)
            self.changed.wait_for(
                lambda: self.subscriptions.subscriber_count(of_this_epoch=True) >= before or self.error, _ACCEPT_S
            )

    def ask_recorders(self) -> tuple[int, int]:
        """Send a heartbeat at once, which recorders answer with their positions. Return the epoch and position sent."""
        with self.changed:
            asked = self.origin.epoch, self.position
            self.subscriptions.times_asked += 1
        self.sent.heartbeat_at = 0
        self.ring.wake()
        return asked

    def wait_acknowledged(self, what: What, by: int, epoch: int, goal: int, timeout: float, deadline: float) -> None:
        """Wait until `by` recorders have acknowledged everything before `goal` as recorded, or synced.

        Raises NotRecordedError at the deadline, `timeout` seconds after the call, or if another epoch began.
        """
        told = self.subscriptions.acknowledgements
        with self.changed:
            while (reached := told.reached(what, by, goal)) < goal:
                self.check()
                left = deadline - time.monotonic()
                if told.epoch != epoch:
                    raise NotRecordedError(
                        f"feed {self.feed.name!r} slice {self.slice_id}: epoch {epoch} was ended by `new_epoch` "
                        f"while {goal - reached} of its messages were not yet {what}"
                    )
                if left <= 0:
                    raise self._not_recorded(what, by, reached, goal, timeout)
                if not self.changed.wait(min(left, _ASK_AGAIN_S)):
                    self.ask_recorders()

    def _not_recorded(self, what: What, by: int, reached: int, goal: int, timeout: float) -> NotRecordedError:
        told = self.subscriptions.acknowledgements
        given_up = "; they are given up" if told.give_up(what, by, goal) else ""
        recorders = "; ".join(map(in_words, self.recorders())) or "no recorder has acknowledged anything"
        return NotRecordedError(
            f"feed {self.feed.name!r} slice {self.slice_id}: messages {reached} to {goal - 1} were not {what} by {by} "
            f"{'recorder' if by == 1 else 'recorders'} in {timeout} s{given_up}: {recorders}"
        )

    def recorders(self) -> list[RecorderPosition]:
        """Return the position of each recorder that has acknowledged anything."""
        with self.changed:
            return self.subscriptions.acknowledgements.positions(self.slice_id, self.position)

    @property
    def position(self) -> int:
        """Next sequence of the current epoch, including blocks still to be sent again."""
        return max(self.sent.sequence, self.sent.kept)

    def ends(self) -> dict[bytes, End]:
        """Return the end of each key in the current epoch."""
        known = len(self.keys)
        ends, counts = self._ends[:known].tolist(), self._counts[:known].tolist()
        return {key: End(*each) for key, *each in zip(self.keys, ends, counts, strict=True)}

    def ask_to_close(self, deadline: float, says_end: bool) -> None:
        """Let the thread empty the ring, then end. ZeroMQ keeps sending until the deadline at most."""
        self._deadline, self._says_end = deadline, says_end
        self.guard.closing_since = time.monotonic()
        with self.changed:
            if self.life in (SenderLife.NEW, SenderLife.RUNNING):  # it may have failed
                self._enter(SenderLife.CLOSING)
        self._close_ring(DRAINING)

    def close(self, deadline: float) -> None:
        """Wait for the thread; at the deadline end it at once. `discarded` counts what it did not send."""
        if self._thread.ident is None:
            return  # the start failed
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._close_ring(ENDING)
            self._thread.join()

    def _close_ring(self, how: int) -> None:
        self.ring.state.closing = max(how, self.ring.state.closing)
        self.ring.wake()

    def _enter(self, life: SenderLife) -> None:
        """Change to `life`, and wake waiting threads. Raises RuntimeError if the transition is not allowed."""
        with self.changed:
            self.life = self.life.enter(life, f"slice {self.slice_id} sender")
            self.changed.notify_all()

    def _run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] | None = None
        sockets: list[zmq.Socket[bytes]] = []
        try:
            context = open_context(self.part, f"slice {self.slice_id}", _sockets_of(self.part))
            pin_thread(self.part.cpus)
            wake_on_time()
            allow_barriers()
            encoder = self.make_encoder(send.GATHER_ROWS)
            sender = self._sender([])
            warm_up(send.send_until, sender, self.ring.at, encoder, 0)
            warm_up(send.tell, 0, 0)
            warm_up(read_subscriptions, *SubscriptionReader.warm_up_arguments())
            warm_up(send.send_control, sender, self.origin, 0, 0, 0, 0, 0, 0, 0)
            warm_up(cover, 0, 0, 0, 0, 0, 0, 0)
            self._share()
            encoder = encoder._replace(shared=self.guard.shared_at)
            self._bind(context, sockets)
            self.guard.start()
            sender = self._sender(sockets)
            self._let_stand_in(sender, encoder)
            with self.changed:
                if self.life is SenderLife.NEW:  # it may have been asked to close meanwhile
                    self._enter(SenderLife.RUNNING)
            self._ready.set()
            self._serve(sender, encoder, sockets)
            if self._says_end:
                self._announce_end(sender, sockets)
            for socket in sockets:
                socket.linger = max(0, int(1000 * (self._deadline - time.monotonic())))
        except BlackBoxError as error:
            self.error = error
        except Exception as error:  # the publishing thread must see any error that ends this thread
            log.exception("slice %d: sender failed", self.slice_id)
            self.error = PublisherError(f"slice {self.slice_id}: sender failed: {error}")
            self.error.__cause__ = error
        finally:
            self._enter(SenderLife.ENDED)  # writers that wait for room hold the lock, and leave when they see this
            with self.ring.lock:
                self.ring.take_turn()
                self.ring.forget_limit()  # from now on every write looks for room, and finds that this has ended
                self.ring.turn = None
                self.discarded = discard(self.ring.at) - self.sent.handled
            self.guard.close()
            if self._reader is not None:
                self._reader.close()
            for socket in sockets:
                socket.close()
            if self._gate is not None:
                self._gate.close()
            if context is not None:
                close_context(context)
            self._ready.set()

    def _share(self) -> None:
        """Create shared memory before the sockets, so that subscribers connected to them find it."""
        if (name := self.part.shared_memory) and is_supported():
            what = f"feed {self.feed.name!r} slice {self.slice_id}: endpoint shm://{name}"
            sizes = self.feed.block_bytes, self._wait, self._hwm_blocks
            self.guard.shared = SharedWriter(name, what, *sizes, self.ring.wake_pipe)

    def _bind(self, context: zmq.Context[zmq.Socket[bytes]], sockets: list[zmq.Socket[bytes]]) -> None:
        what = f"feed {self.feed.name!r} slice {self.slice_id}"
        self._gate = self.guard.gate = open_gate(context, self.feed, self.part.bound, what, self.part.allowed_keys)
        for line, endpoint in enumerate(self.part.bound):
            socket = open_xpub(context, endpoint, _SEND_WAIT_MS if self._wait else None, self._hwm_blocks)
            sockets.append(socket)
            if self._gate is not None:
                self._gate.secure(socket, endpoint)
            if not endpoint.startswith("inproc:"):
                self.guard.watch(line, socket)
            bind(socket, endpoint, f"{what}: endpoint")
        sent = self.sent
        self._reader = SubscriptionReader(
            self.subscriptions, sockets, self.part.lines, self._gate, _RECEIVED_BYTES, lambda _line: sent.passes
        )

    def make_encoder(self, rows: int) -> Encoder:
        """Return an encoder for one thread and up to `rows` messages of this slice at a time."""
        return Encoder(
            make_selection(rows, self._max_keys),
            self.table,
            self.key_of_topic,
            distinct_scratch(self.feed.max_topics),
            self.feed.block_bytes,
            self.feed.checksum,
            self.origin,
            self.guard.shared_at,
        )

    def _sender(self, sockets: list[zmq.Socket[bytes]]) -> Sender:
        first, second = (*((socket.underlying, -1 - int(socket.FD)) for socket in sockets), (0, 0), (0, 0))[:2]
        return Sender(
            first[0],
            second[0],
            first[1],
            second[1],
            self.ring.wake_pipe.reader,
            self.feed.linger_ns,
            self.feed.heartbeat_ns,
            self.sent.address,
            self._key_table,
            self._ends,
            self._counts,
            self.wanted,
            numpy.zeros(send.GATHER_ROWS, numpy.int64),
            numpy.zeros(send.GATHER_ROWS, numpy.int32),
            numpy.zeros(send.GATHER_ROWS, numpy.int64),
            numpy.zeros(SCRATCH_WORDS, numpy.int64),
            numpy.zeros(EVENTS_SCRATCH_WORDS, numpy.int64),
            self.guard.shared_at,
            self._outbox,
            self.part.spin_ns if self._wait else 0,  # else publishing threads send, and need not wake this one
            not self._wait,
        )

    def _serve(self, sender: Sender, encoder: Encoder, sockets: list[zmq.Socket[bytes]]) -> None:
        self.sent.heartbeat_at = time.monotonic_ns() + self.feed.heartbeat_ns

        def send_answers(line: int, keys: bytes, count: int, full: Full) -> tuple[int, bytes]:
            return self._send_control(sender, line, sockets[line], keys, count, full)

        waits = (lambda: int(self.sent.waits)) if self._wait else None
        answers = Answers(
            self.subscriptions,
            len(sockets),
            send_answers,
            waits,
            lambda ask, refused: send_refusal(sockets[ask.line], ask, refused, self.origin, self._wait),
        )
        while True:
            reason = send.send_until(sender, self.ring.at, encoder, answers.due_ns)
            # Wait for a pass of the ring before a confirmation, so that earlier unwanted messages are counted. Wait
            # also for the `on_demand` functions, so that the subscriber receives what they publish.
            answers.send_due(lambda ask: ask.after < self.sent.passes and self.subscriptions.is_told(ask.demand))
            if reason == send.SUBSCRIPTIONS:
                self._read_subscriptions()
            elif reason == send.EPOCH:
                self._begin_epoch(sender, sockets)
                encoder = encoder._replace(origin=self.origin)
                self._let_stand_in(sender, encoder)
            elif reason == send.CLOSED:
                return
            self._check_sender()

    def _let_stand_in(self, sender: Sender, encoder: Encoder) -> None:
        """Let publishing threads send while this one sleeps, unless they could block there on a slow subscriber."""
        self.sent.epoch = self.origin.epoch
        self.stand_in = send.StandIn(sender, self.ring.at, encoder)
        kept = Kept(self.stand_in)

        def tell(handed_over_ns: int) -> None:
            send.tell(kept.address, handed_over_ns)

        self.ring.tell = tell

    def _begin_epoch(self, sender: Sender, sockets: list[zmq.Socket[bytes]]) -> None:
        """Send a last heartbeat of the old epoch, then two of the new one: subscribers ignore a single one.

        With `when_full="wait"` this waits for slow subscribers until the timeout of `new_epoch`. A subscriber still
        without room then loses messages until it has room.
        """
        patience = self._epoch_deadline if self._wait else time.monotonic() + SURELY_S
        for next_epoch in (0, self.sent.next_epoch, 0):
            if next_epoch:
                with self.changed:
                    self.origin = self.origin._replace(epoch=next_epoch)
                    self._ends[:] = self._counts[:] = self.sent.sequence = self.sent.kept = 0
                    self.subscriptions.begin_epoch(next_epoch)
            for line, socket in enumerate(sockets):
                while not self._send_heartbeat(sender, line, socket, Full.KEEP):
                    self._check_sender()
                    if time.monotonic() >= patience or self.ring.state.closing == ENDING:
                        self._send_heartbeat(sender, line, socket, Full.DROP)
                        break
                    self.sent.waits += int(self._wait)
                    if socket.poll(_SEND_WAIT_MS):
                        self._read_subscriptions()
        with self.changed:
            self.sent.next_epoch = 0
            self.changed.notify_all()

    def _check_sender(self) -> None:
        if self.sent.refused:
            raise PublisherError(f"slice {self.slice_id}: the outbox refused a block: {self._outbox_failure()}")
        error = self.sent.errno
        if error:
            raise PublisherError(f"slice {self.slice_id}: libzmq refused a block: {zmq.strerror(error)}")

    def _announce_end(self, sender: Sender, sockets: list[zmq.Socket[bytes]]) -> None:
        """Send the end to every subscriber, and wait until all have acknowledged it.

        Closing a connection while unread subscriptions wait in it resets it, and data in flight is lost. The wait ends
        early if the remaining subscribers have stopped reading.
        """
        patience = time.monotonic() + _ACCEPT_S
        repeat = 0.0
        untold = set(range(len(sockets)))
        while ((waiting := self._still_reading(patience)) or untold) and not self._is_late():
            # libzmq skips a full queue until it has room again, so the end may be missing in it. A publisher that drops
            # therefore repeats it.
            again = not self._wait and time.monotonic() >= repeat
            for line, socket in enumerate(sockets):
                if line in untold and self._send_heartbeat(sender, line, socket, Full.KEEP, FLAG_END):
                    untold.remove(line)
                elif again:
                    self._send_heartbeat(sender, line, socket, Full.DROP, FLAG_END)
            if again:
                repeat = time.monotonic() + _REPEAT_S
            self._check_sender()
            if any(socket.poll(_SEND_WAIT_MS) for socket in sockets):
                self._read_subscriptions()
        for line in untold:
            self._send_heartbeat(sender, line, sockets[line], Full.DROP, FLAG_END)
        if waiting:
            log.warning("slice %d: closed before %d subscribers had received everything", self.slice_id, waiting)

    def _send_heartbeat(self, sender: Sender, line: int, socket: zmq.Socket[bytes], full: Full, flags: int = 0) -> bool:
        return any(self._send_control(sender, line, socket, HEARTBEAT_KEY, 1, full, flags)[1])

    def _is_late(self) -> bool:
        if self.ring.state.closing == ENDING or time.monotonic() >= self._deadline:
            return True
        # For ipc and inproc it is unknown if peers take anything.
        return all(endpoint.startswith("tcp:") for endpoint in self.part.lines) and self.guard.is_quiet()

    def _still_reading(self, patience: float) -> int:
        """Return the number of subscribers that still have an acceptance or, until `patience`, may yet send one."""
        reading = self.subscriptions.subscriber_count()
        return max(reading, len(self.subscriptions.answered)) if time.monotonic() < patience else reading

    def _read_subscriptions(self) -> None:
        """Read some of the waiting subscriptions, leaving time for messages."""
        assert self._reader is not None, "created before subscribers can connect"
        self._reader.read()
        self.sent.read_at = time.monotonic_ns() + _READ_EVERY_NS if self.subscriptions.is_behind else 0
        if self.subscriptions.unwelcome:
            self.guard.look_now()

    def _send_control(
        self,
        sender: Sender,
        line: int,
        socket: zmq.Socket[bytes],
        keys: bytes,
        count: int,
        full: Full,
        flags: int = 0,
    ) -> tuple[int, bytes]:
        return send_control_blocks(socket, sender, self.origin, line, keys, count, full, self._wait, flags)
