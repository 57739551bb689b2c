"""A slice's sender: the thread that sends the blocks in its ring, confirms its subscribers and announces its end."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from typing import NamedTuple

import numpy
import zmq

from blackbox.block.form.block import distinct_scratch
from blackbox.block.form.format import FLAG_END
from blackbox.errors import BlackBoxError, PublisherError
from blackbox.feed.feed import Feed
from blackbox.feed.slice import Slice
from blackbox.life import Life
from blackbox.native.compile.compiling import StartLimit
from blackbox.native.compile.jit import WARM_UP_NEEDS, warm_up
from blackbox.native.compile.kept_arguments import Kept
from blackbox.native.system.limits import Needs, start_thread
from blackbox.native.system.posix import allow_barriers
from blackbox.publish.listeners.ack_tracker import RecorderPosition
from blackbox.publish.listeners.demand import Demand
from blackbox.publish.listeners.peer_guard import GUARD_NEEDS
from blackbox.publish.listeners.peer_sockets import SEND_WAIT_MS, PeerSockets
from blackbox.publish.listeners.queue_policy import QueuePolicy
from blackbox.publish.listeners.subscription_reader import SubscriptionReader, read_subscriptions
from blackbox.publish.listeners.wanted import WantedKeys, cover
from blackbox.publish.send.batcher import Encoder, make_selection
from blackbox.publish.send.confirm_subscribers import SURELY_S, Answers, ControlLine, Full, warm_up_control
from blackbox.publish.send.control_blocks import cast_heartbeat, store_epoch
from blackbox.publish.send.drain import GATHER_ROWS
from blackbox.publish.send.number_line import NumberLine, SliceTopics
from blackbox.publish.send.outbox import NO_OUTBOX, OutboxSlice
from blackbox.publish.send.ring import Closing, Ring
from blackbox.publish.send.send_loop import StandIn, Wake, send_until, tell
from blackbox.publish.send.sender_state import SCRATCH_WORDS, Sender
from blackbox.transport.context import CONTEXT_NEEDS, close_context, open_context, pin_thread, wake_on_time
from blackbox.transport.libzmq import EVENTS_SCRATCH_WORDS
from blackbox.transport.udp.open_lines import CASTER_NEEDS
from blackbox.transport.wakeup import PIPE_NEEDS

log = logging.getLogger("blackbox")

RING_BYTES = 4 << 20
_PENDING_BLOCKS = 16
"""Encoded blocks that may wait for a sender: enough to keep both threads busy, few enough to stay in the cache."""
_RECEIVED_BYTES = 16 << 10
"""Bytes of subscriptions read in one pass: some hundreds of subscriptions, up to a millisecond."""
_START_S = 120.0
"""Longest time until the thread has started, without that of compiling."""
_LOOK_S = 1.0
"""Interval between checks whether the thread still compiles, until it has started."""
_ACCEPT_S = 1.0
_REPEAT_S = 0.1
_CAST_ENDS = 3


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
    casts = CASTER_NEEDS.descriptors if part.multicast else 0
    return Needs(descriptors=6 * len(part.sockets) + 7 * bool(part.shared_memory) + casts)


class _End(NamedTuple):
    """How the sender is to end."""

    deadline: float
    says_end: bool


class SliceSender:
    """One slice of a publisher: its ring, its sockets, and the thread that sends.

    Life: see `SenderLife`. The sender's thread creates, uses and closes the sockets; while it sleeps, a publishing
    thread may use them. `subscriptions.changed` guards the subscriptions, and is notified of each change here.
    """

    def __init__(
        self,
        feed: Feed,
        slice_id: int,
        policy: QueuePolicy,
        epoch: int,
        demand: Demand,
        outbox: OutboxSlice = NO_OUTBOX,
    ) -> None:
        self.feed, self.slice_id, self._policy, self._outbox = feed, slice_id, policy, outbox
        sender = weakref.proxy(self)  # avoids a reference cycle: the ring is freed together with the sender
        pending_bytes = max(_PENDING_BLOCKS * feed.block_bytes, 1 << 20)
        check = lambda: sender.check()  # noqa: E731, PLW0108 - a bound method would hold the sender
        self.ring = Ring(RING_BYTES, pending_bytes, check, lambda _: sender.ring.wake())
        self.life = SenderLife.NEW
        self.error: BlackBoxError | None = None
        self.subscriptions = WantedKeys(feed, slice_id, epoch, demand)
        self.numbers = NumberLine(feed, slice_id, epoch, self.subscriptions, outbox)
        self.sent = self.numbers.state
        self.topics = SliceTopics(feed, slice_id, self.numbers)
        self.sockets = PeerSockets(feed, slice_id, policy, self.subscriptions, self.sent, self.ring.wake_pipe)
        self._end = _End(0.0, says_end=True)
        self._epoch_deadline = 0.0
        self._thread = threading.Thread(target=self._run, name=f"blackbox-sender-{slice_id}", daemon=True)

    def start(self) -> None:
        """Bind the endpoints. Raises EndpointError if one could not be bound."""
        start_thread(self._thread)
        limit = StartLimit(_START_S)
        with self.subscriptions.changed:
            while not self.subscriptions.changed.wait_for(lambda: self.life is not SenderLife.NEW, _LOOK_S):
                if limit.is_over():
                    raise PublisherError(f"slice {self.slice_id}: sender did not start in {_START_S} s")
        if self.error is not None:
            self._thread.join()
            raise self.error

    def check(self) -> None:
        """Raise the error that ended the thread, if it has ended."""
        if self.error is not None:
            raise self.error
        if self.life is SenderLife.ENDED:
            raise PublisherError(f"slice {self.slice_id}: the publisher was closed")

    def recorders(self) -> list[RecorderPosition]:
        """Return the position of each recorder that has acknowledged anything."""
        with self.subscriptions.changed:
            return self.subscriptions.acknowledgements.positions(self.slice_id, self.numbers.position)

    def ask_to_close(self, deadline: float, says_end: bool) -> None:
        """Let the thread empty the ring, then end. ZeroMQ keeps sending until the deadline at most."""
        self._end = _End(deadline, says_end)
        self.sockets.guard.limits.closing_since = time.monotonic()
        with self.subscriptions.changed:
            if self.life in (SenderLife.NEW, SenderLife.RUNNING):  # it may have failed
                self._enter(SenderLife.CLOSING)
        self.ring.close(Closing.DRAINING)

    def close(self, deadline: float) -> None:
        """Wait for the thread; at the deadline end it at once. `sent.discarded` counts what it did not send."""
        if self._thread.ident is None:
            return  # the start failed
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self.ring.close(Closing.ENDING)
            self.sockets.end_waits()
            self._thread.join()

    def _enter(self, life: SenderLife) -> None:
        """Change to `life`, and wake waiting threads. Raises RuntimeError if the transition is not allowed."""
        with self.subscriptions.changed:
            self.life = self.life.enter(life, f"slice {self.slice_id} sender")
            self.subscriptions.changed.notify_all()

    def _run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] | None = None
        part = self.feed.slices[self.slice_id]
        linger_ms = 0
        try:
            context = open_context(part, f"slice {self.slice_id}", _sockets_of(part))
            pin_thread(part.cpus)
            wake_on_time()
            allow_barriers()
            self._warm_up()
            what, sent = f"feed {self.feed.name!r} slice {self.slice_id}", self.sent
            self.sockets.open(context, what, _RECEIVED_BYTES, lambda _line: sent.passes)
            self.sockets.start_guard()
            sender, encoder = self.make_sender(), self.make_encoder(GATHER_ROWS)
            self._let_stand_in(sender, encoder)
            with self.subscriptions.changed:
                if self.life is SenderLife.NEW:  # it may have been asked to close meanwhile
                    self._enter(SenderLife.RUNNING)
            waits = self._policy.waits
            lines = [ControlLine(*each, sender, self.sent, waits=waits) for each in enumerate(self.sockets.xpubs)]
            self._serve(sender, encoder, lines)
            if self._end.says_end:
                self._announce_end(lines, sender)
            linger_ms = max(0, int(1000 * (self._end.deadline - time.monotonic())))
        except BlackBoxError as error:
            self.error = error
        except Exception as error:  # the publishing thread must see any error that ends this thread
            log.exception("slice %d: sender failed", self.slice_id)
            self.error = PublisherError(f"slice {self.slice_id}: sender failed: {error}")
            self.error.__cause__ = error
        finally:
            self._enter(SenderLife.ENDED)  # writers that wait for room hold the lock, and leave when they see this
            self.sent.discarded = self.ring.end() - self.sent.handled
            self.sockets.close(linger_ms)
            if context is not None:
                close_context(context)

    def _warm_up(self) -> None:
        sender = self.make_sender()
        warm_up(send_until, sender, self.ring.at, self.make_encoder(1), 0)
        warm_up(tell, 0, 0)
        warm_up(read_subscriptions, *SubscriptionReader.warm_up_arguments())
        warm_up_control(sender)
        warm_up(store_epoch, sender)
        warm_up(cover, 0, 0, 0, 0, 0, 0, 0)

    def make_encoder(self, rows: int) -> Encoder:
        """Return an encoder for one thread and up to `rows` messages of this slice at a time."""
        return Encoder(
            make_selection(rows, self.feed.max_keys),
            self.topics.table,
            self.topics.key_of_topic,
            distinct_scratch(self.feed.max_topics),
            self.feed.block_bytes,
            self.feed.checksum,
            self.numbers.origin,
            self.sockets.shared_at,
        )

    def make_sender(self) -> Sender:
        """Return the sender's state for compiled code."""
        handles = [(socket.underlying, -1 - int(socket.FD)) for socket in self.sockets.xpubs]
        first, second = (*handles, (0, 0), (0, 0))[:2]
        waits, spin_ns = self._policy.waits, self.feed.slices[self.slice_id].spin_ns
        return Sender(
            slice_id=self.slice_id,
            key_rule=self.feed.key_rule,
            state=self.sent.address,
            keys=self.subscriptions.table,
            ends=self.numbers.ends,
            counts=self.numbers.counts,
            scratch=numpy.zeros(SCRATCH_WORDS, numpy.int64),
            socket_a=first[0],
            socket_b=second[0],
            readable_a=first[1],
            readable_b=second[1],
            wake_fd=self.ring.wake_pipe.reader,
            linger_ns=self.feed.linger_ns,
            heartbeat_ns=self.feed.heartbeat_ns,
            wanted=self.subscriptions.wanted,
            starts=numpy.zeros(GATHER_ROWS, numpy.int64),
            lengths=numpy.zeros(GATHER_ROWS, numpy.int32),
            ts_event=numpy.zeros(GATHER_ROWS, numpy.int64),
            sleep_scratch=numpy.zeros(EVENTS_SCRATCH_WORDS, numpy.int64),
            shared=self.sockets.shared_at,
            outbox=self._outbox.handler,
            caster=self.sockets.caster_at,
            spin_ns=spin_ns if waits else 0,  # else publishing threads send, and need not wake this one
            others_send=not waits,
        )

    def _serve(self, sender: Sender, encoder: Encoder, lines: list[ControlLine]) -> None:
        self.sent.heartbeat_at = time.monotonic_ns() + self.feed.heartbeat_ns
        answers = Answers(self.subscriptions, lines)
        while True:
            reason = send_until(sender, self.ring.at, encoder, answers.due_ns)
            # Wait for a pass of the ring before a confirmation, so that earlier unwanted messages are counted. Wait
            # also for the `on_demand` functions, so that the subscriber receives what they publish.
            has_answered = answers.send_due(
                lambda ask: ask.after < self.sent.passes and self.subscriptions.is_told(ask.demand)
            )
            if has_answered and self.sockets.caster is not None:
                cast_heartbeat(sender, 0)  # it confirms the multicast line
            if reason == Wake.SUBSCRIPTIONS:
                self.sockets.read()
            elif reason == Wake.EPOCH:
                self._begin_epoch(lines, sender)
                encoder = encoder._replace(origin=self.numbers.origin)
                self._let_stand_in(sender, encoder)
            elif reason == Wake.CLOSED:
                return
            self._check_sender()

    def _let_stand_in(self, sender: Sender, encoder: Encoder) -> None:
        """Let publishing threads send while this one sleeps, unless they could block there on a slow subscriber."""
        kept = Kept(StandIn(sender, self.ring.at, encoder))
        self.ring.tell = lambda handed_over_ns: tell(kept.address, handed_over_ns)

    def _check_sender(self) -> None:
        if self.sent.refused:
            raise PublisherError(f"slice {self.slice_id}: the outbox refused a block: {self._outbox.failure()}")
        self.sockets.warn_of_failures()
        error = self.sent.errno
        if error:
            raise PublisherError(f"slice {self.slice_id}: libzmq refused a block: {zmq.strerror(error)}")

    # Epochs, and the end

    def change_epoch(self, epoch: int, deadline: float) -> None:
        """Have the thread begin an epoch. Call with the ring empty and its turn taken.

        With `when_full="wait"` it waits for slow subscribers until the deadline; then up to a second for all
        subscribers to confirm again.
        """
        subscriptions = self.subscriptions
        self._epoch_deadline = deadline
        with subscriptions.changed:
            before = subscriptions.subscriber_count()
            self.sent.next_epoch = epoch
            self.ring.wake()
            while self.sent.next_epoch:
                self.check()
                subscriptions.changed.wait(_ACCEPT_S)
            subscriptions.changed.wait_for(
                lambda: subscriptions.subscriber_count(of_this_epoch=True) >= before or self.error, _ACCEPT_S
            )

    def _begin_epoch(self, lines: list[ControlLine], sender: Sender) -> None:
        """Send a last heartbeat of the old epoch, then two of the new one: subscribers ignore a single one.

        A subscriber still without room after the deadline loses messages until it has room.
        """
        patience = self._epoch_deadline if self._policy.waits else time.monotonic() + SURELY_S
        for next_epoch in (0, self.sent.next_epoch, 0):
            if next_epoch:
                with self.subscriptions.changed:
                    self.numbers.begin_epoch(next_epoch)
                store_epoch(sender)
            cast_heartbeat(sender, 0)
            for line in lines:
                while not line.beat(Full.KEEP):
                    self._check_sender()
                    if time.monotonic() >= patience or self.ring.state.closing == Closing.ENDING:
                        line.beat(Full.DROP)
                        break
                    self.sent.waits += int(self._policy.waits)
                    if self.sent.tap_bell:
                        self.sockets.guard.taps.bell.poke()
                    if line.socket.poll(SEND_WAIT_MS):
                        self.sockets.read()
        with self.subscriptions.changed:
            self.sent.next_epoch = 0
            self.subscriptions.changed.notify_all()

    def _announce_end(self, lines: list[ControlLine], sender: Sender) -> None:
        """Send the end to every subscriber, and wait until all have acknowledged it.

        Closing a connection while unread subscriptions wait in it resets it, and data in flight is lost. The wait ends
        early if the remaining subscribers have stopped reading.
        """
        for _ in range(_CAST_ENDS if self.sockets.caster is not None else 0):
            cast_heartbeat(sender, FLAG_END)  # several times, since no subscriber acknowledges it
        patience = time.monotonic() + _ACCEPT_S
        repeat = 0.0
        without = list(lines)
        while ((waiting := self._still_reading(patience)) or without) and not self._is_late():
            # libzmq skips a full queue until it has room again, so the end may be missing in it. A publisher that drops
            # therefore repeats it.
            again = not self._policy.waits and time.monotonic() >= repeat
            for line in lines:
                if line in without and line.beat(Full.KEEP, FLAG_END):
                    without.remove(line)
                elif again:
                    line.beat(Full.DROP, FLAG_END)
            if again:
                repeat = time.monotonic() + _REPEAT_S
            self._check_sender()
            if any(line.socket.poll(SEND_WAIT_MS) for line in lines):
                self.sockets.read()
        for line in without:
            line.beat(Full.DROP, FLAG_END)
        if waiting:
            log.warning("slice %d: closed before %d subscribers had received everything", self.slice_id, waiting)

    def _is_late(self) -> bool:
        if self.ring.state.closing == Closing.ENDING or time.monotonic() >= self._end.deadline:
            return True
        # For ipc and inproc it is unknown if peers take anything.
        lines = self.feed.slices[self.slice_id].sockets
        return all(endpoint.startswith("tcp:") for endpoint in lines) and self.sockets.guard.limits.is_quiet()

    def _still_reading(self, patience: float) -> int:
        """Return the number of subscribers that still have an acceptance or, until `patience`, may yet send one."""
        reading, answered = self.subscriptions.subscriber_count(), len(self.subscriptions.confirmations.answered)
        return max(reading, answered) if time.monotonic() < patience else reading
