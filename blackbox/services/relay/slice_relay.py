"""One slice of a relay: its sockets and the thread that forwards blocks and answers peers below."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple

import numpy
import zmq
from numpy.typing import NDArray

from blackbox.block.form.encode import Origin
from blackbox.block.form.format import FLAG_END
from blackbox.block.form.sampling import trace_mask
from blackbox.errors import BlackBoxError, RelayError
from blackbox.feed.feed import Feed
from blackbox.feed.slice import Slice
from blackbox.life import Life
from blackbox.native.compile.compiling import StartLimit
from blackbox.native.compile.jit import WARM_UP_NEEDS, warm_up
from blackbox.native.system.limits import Needs, start_thread
from blackbox.native.system.waits import join
from blackbox.publish.listeners.confirmations import Asked
from blackbox.publish.listeners.dropped_estimate import LineTotals
from blackbox.publish.listeners.peer_guard import GUARD_NEEDS
from blackbox.publish.listeners.peer_sockets import PeerSockets, open_xpub
from blackbox.publish.listeners.queue_policy import QueuePolicy
from blackbox.publish.listeners.subscription_reader import SubscriptionReader, read_subscriptions
from blackbox.publish.send.confirm_subscribers import Answers, ControlLine, warm_up_control
from blackbox.publish.send.control_blocks import cast_heartbeat
from blackbox.services.relay.forward_loop import CLOSED, FAILED, ITEMS_OF_LINE, SUBSCRIPTIONS, forward_until
from blackbox.services.relay.hops import Hop, decode_path, encode_path
from blackbox.services.relay.line import Line
from blackbox.services.relay.line_state import LineMemory, SliceRelayAt, SliceRelayState
from blackbox.services.relay.requests_below import Below
from blackbox.services.relay.upstream_socket import Source, UpstreamSocket
from blackbox.transport.context import CONTEXT_NEEDS, close_context, open_context, pin_thread, wake_on_time
from blackbox.transport.inproc import is_inproc
from blackbox.transport.udp.open_lines import CASTER_NEEDS
from blackbox.transport.udp.sender import NO_CASTER
from blackbox.transport.wakeup import PIPE_NEEDS, Pipe

log = logging.getLogger("blackbox")

_IO_THREADS: Final = 2
"""So that receiving and sending run in parallel."""
_LINGER_MS: Final = 1_000
"""Time to send forwarded blocks when the relay ends."""
_RECEIVED_BYTES: Final = 64 << 10
"""Bytes of subscriptions read in one pass: a few thousand, at most some milliseconds."""
_READ_EVERY_NS: Final = 5_000_000
_LOOK_NS: Final = 100_000_000
"""Time between two checks of the source."""
_LOOK_S: Final = 0.05
"""Time between two checks whether a slice that has not started still compiles."""


class Settings(NamedTuple):
    """Settings of all slices of a relay."""

    policy: QueuePolicy
    hold_s: float
    most_above: int
    """Most filters of data on a line of a source; the other half that it keeps for a relay is for wanted topics."""


class SliceRelayLife(Life):
    """Stages in the life of a relay's slice."""

    NEW = "new", "running", "ended"
    """It compiles, binds and connects. RUNNING after that; ENDED if it fails."""
    RUNNING = "running", "ended"
    """It forwards. ENDED by `ask_to_close` or an error."""
    ENDED = "ended"
    """It has stopped, and releases everything it opened. The last stage."""


def needs_of(part: Slice, reads_memory: bool) -> tuple[Needs, ...]:
    """Return what a `SliceRelay` opens and starts, with one connection below and one above per line.

    `reads_memory`: a source has shared memory, which needs a connection, a pidfd, its bell, and briefly the memory.
    """
    return (
        PIPE_NEEDS,
        CONTEXT_NEEDS,
        WARM_UP_NEEDS,
        Needs(descriptors=2, threads=_IO_THREADS),
        GUARD_NEEDS,
        _sockets_of(part),
        Needs(descriptors=5 * reads_memory),
    )


def _sockets_of(part: Slice) -> Needs:
    # Per line: XPUB, its endpoint, a connection, and both ends of its monitor; XSUB, its connection, and both ends of
    # its monitor. Shared memory: itself, and one reader.
    casts = CASTER_NEEDS.descriptors if part.multicast else 0
    return Needs(descriptors=11 * part.data_lines + 7 * bool(part.shared_memory) + casts)


class SliceRelay:
    """One slice of a relay.

    Life: see `SliceRelayLife`. Sockets are created, used and closed in its thread. `below.changed` guards the
    subscriptions of peers below.
    """

    def __init__(
        self,
        feed: Feed,
        slice_id: int,
        sources: Sequence[Mapping[str, Source]],
        settings: Settings,
        me: Hop,
        ended: Callable[[], None],
    ) -> None:
        """`feed`: the feed below. `sources`: of each line. `ended` is called at the end."""
        self.part = feed.slices[slice_id]
        self.error: BlackBoxError | None = None
        self.life = SliceRelayLife.NEW
        self._feed, self._settings, self._ended = feed, settings, ended
        self._what = what = f"relay {me.name!r} of feed {feed.name!r} slice {slice_id}"
        self._state = SliceRelayState()
        self._wake = Pipe()
        self.lines: list[Line] = []
        origin = Origin(0, slice_id, feed.key_rule, 0)
        for addresses in sources:
            memory = LineMemory(feed.max_keys)
            memory.state.trace_mask = trace_mask(feed.trace_every)
            way = UpstreamSocket(addresses, settings.hold_s, memory.state, feed.heartbeat_ns, what, self._wake)
            self.lines.append(Line(memory, way, me, origin, what))
        self.below = Below(feed, slice_id, [line.upstream for line in self.lines], settings.most_above)
        self.sockets = PeerSockets(feed, slice_id, settings.policy, self.below, self._state, self._wake)
        self.sockets.guard.totals_of = self._totals_of
        self._uses_inproc = any(map(is_inproc, chain(self.part.lines, *sources)))
        self._unbound: list[zmq.Socket[bytes]] = []
        """Sockets below that no subscriber can connect to, for lines that are multicast alone."""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"blackbox-relay-{slice_id}", daemon=True)

    def start(self, timeout: float = 120.0) -> None:
        """Bind and connect. Raises EndpointError naming the endpoint that failed.

        `timeout`: as in `StartLimit`.
        """
        start_thread(self._thread)
        limit = StartLimit(timeout)
        while not self._ready.wait(_LOOK_S):
            if limit.is_over():
                raise RelayError(f"{self._what}: did not start in {timeout} s")
        if self.error is not None:
            self._thread.join()
            raise self.error

    def _totals_of(self, line: int) -> LineTotals:
        """Return what was sent on a line so far."""
        state = self.lines[line].state
        return LineTotals(state.wire_bytes + state.wire_bytes_b, state.blocks, state.body_bytes)

    @property
    def progress(self) -> tuple[int, int]:
        """Counters that change while the thread works, for monitors."""
        return self._state.passes, self._state.read_at

    def ask_to_close(self) -> None:
        """Ask the thread to end."""
        self._state.closing = 1
        self.sockets.end_waits()
        self._wake.poke()

    def join(self) -> None:
        """Wait until the thread has ended."""
        if self._thread.ident is not None:
            join(self._thread)

    def _enter(self, life: SliceRelayLife) -> None:
        """Enter `life`. Raises RuntimeError if it cannot follow the current stage."""
        self.life = self.life.enter(life, self._what)

    def _run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] | None = None
        try:
            needs = _sockets_of(self.part)
            context = zmq.Context.instance() if self._uses_inproc else open_context(self.part, self._what, needs)
            if not self._uses_inproc:
                context.set(zmq.IO_THREADS, _IO_THREADS)
            pin_thread(self.part.cpus)
            wake_on_time()
            polls = numpy.zeros(2 * (1 + ITEMS_OF_LINE * len(self.lines)), numpy.int64)
            self._warm_up(polls)
            self._open(context)
            self.sockets.start_guard()
            self._enter(SliceRelayLife.RUNNING)
            self._ready.set()
            self._serve(polls)
        except BlackBoxError as error:
            self.error = error
        except Exception as error:  # any error that ends this thread must be raised by `run`
            log.exception("%s failed", self._what)
            self.error = RelayError(f"{self._what} failed: {error}")
            self.error.__cause__ = error
        finally:
            self._enter(SliceRelayLife.ENDED)
            self._close()
            if context is not None:
                close_context(context)
            self._ready.set()
            self._ended()

    def _warm_up(self, polls: NDArray[numpy.int64]) -> None:
        line = self.lines[0]
        warm_up(forward_until, self._addresses(polls), self.below.readers, line.upstream.keys, 0)
        warm_up(read_subscriptions, *SubscriptionReader.warm_up_arguments())
        warm_up_control(line.memory.sender(0, 0, 0, NO_CASTER))
        own = encode_path((Hop(b"", ""),), line.origin)
        decode_path(own.header, bytes(own.body))

    def _open(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        lines, policy = self.lines, self._settings.policy
        self.sockets.open(context, self._what, _RECEIVED_BYTES, lambda number: lines[number].upstream.requested)
        if not self.part.sockets:  # multicast alone: no subscriber can report what it wants
            self._unbound = [open_xpub(context, endpoint, policy) for endpoint in self.part.multicast]
            for line in lines:
                line.upstream.want(b"", 1, time.monotonic())
        for line, xpub in zip(lines, self.sockets.xpubs or self._unbound, strict=True):
            line.open(xpub, self.sockets.caster_at)
            line.way.open(context, policy.hwm_blocks)

    def _close(self) -> None:
        self.sockets.close(_LINGER_MS if self.error is None else 0)
        for xpub in self._unbound:
            xpub.close()
        for line in self.lines:
            line.close()

    def _addresses(self, polls: NDArray[numpy.int64]) -> SliceRelayAt:
        """Return the addresses of all state. `polls` becomes the items to poll."""
        items = polls.view(numpy.int32).reshape(-1, 4)
        items[:, 3] = zmq.POLLIN
        items[0, 2] = self._wake.reader
        lines = []
        for number, line in enumerate(self.lines):
            xsub, news = line.way.handles
            polls[2 * (1 + ITEMS_OF_LINE * number) :: 2][:ITEMS_OF_LINE] = xsub, line.handle, news
            lines.append(line.memory.at(xsub, line.handle, len(self.part.sockets) + number))
        return SliceRelayAt(
            lines[0],
            lines[-1],
            len(lines),
            self._state.address,
            polls.ctypes.data,
            self._wake.reader,
            self.part.spin_ns,
            self.sockets.shared_at,
            self.lines[0].way.memory.at,
            self.sockets.caster_at,
        )

    def _serve(self, polls: NDArray[numpy.int64]) -> None:
        addresses, above, waits = self._addresses(polls), self.lines[0], self._settings.policy.waits
        lines = [
            ControlLine(number, line.xpub, line.sender, line.state, waits=waits)
            for number, line in enumerate(self.lines)
        ]
        answers = Answers(self.below, lines)
        reason = 0
        while reason != CLOSED:
            self._read_news()
            if reason == SUBSCRIPTIONS:
                self._read_subscriptions()
            retry_ns = self._send_due(answers)
            addresses = addresses._replace(above=above.way.memory.at)
            reason = forward_until(addresses, self.below.readers, above.upstream.keys, retry_ns)
            if reason == FAILED:
                errno = next(line.state.errno for line in self.lines if line.state.errno)
                raise RelayError(f"{self._what}: libzmq rejected a block: {zmq.strerror(errno)}")
        if not self._state.closing:
            raise RelayError(f"{self._what}: libzmq's context has ended, or memory is exhausted")

    def _send_due(self, answers: Answers) -> int:
        """Send requests, paths and confirmations that are due. Return when the next ones may be."""
        is_time = time.monotonic_ns() >= answers.due_ns
        asks = {(ask.line, ask.after): ask for ask in self.below.confirmations.asked.values()}.values()  # one of each
        waiting = {ask.line for ask in asks if is_time and not self._is_due(ask)}
        for number, line in enumerate(self.lines):
            line.way.look(number in waiting)
        retry_ns = time.monotonic_ns() + _LOOK_NS
        for line in self.lines:
            retry_ns = min(retry_ns, line.send_path(self.below.wants_path, self._feed.heartbeat_ns))
        self.below.wants_path = False
        is_asked = any(map(self._is_due, asks))
        if is_asked and answers.send_due(self._may_answer) and self.sockets.caster is not None:
            line = self.lines[0]  # next to a socket there is one multicast line, which this confirms
            cast_heartbeat(line.sender, FLAG_END if line.state.ended else 0)
        self.sockets.warn_of_failures()
        return min(retry_ns, answers.due_ns) if answers.due_ns > time.monotonic_ns() else retry_ns

    def _is_due(self, ask: Asked) -> bool:
        """Return True if the ends of all keys are known, and all earlier requests are confirmed above."""
        line = self.lines[ask.line]
        return bool(line.state.knows_ends) and line.upstream.is_confirmed(ask.after)

    def _may_answer(self, ask: Asked) -> bool:
        """Do the same, and see to it that blocks are shared with the requester. `Answers` bounds the time for both."""
        if is_due := self._is_due(ask):
            self.below.renew_readers()
        return is_due

    def _read_news(self) -> None:
        """Process messages from above that are for this relay."""
        self.below.times_asked = sum(line.state.heartbeats for line in self.lines)
        for number, line in enumerate(self.lines):
            state = line.state
            line.way.read_news()
            line.read_path()
            line.send_times()
            if state.began:
                state.began = 0
                log.info("%s: publisher epoch %d began", self._what, state.epoch)
                line.upstream.begin_epoch()
                with self.below.changed:
                    self.below.begin_epoch(state.epoch, number)
            line.read_unwanted()  # it came before an answer
            if state.answered:
                state.answered = 0
                line.way.answer()
            if refused := line.read_refusal():
                self.below.note_refused(number, refused)
                if self.below.unwelcome:
                    self.sockets.guard.look_now()
            line.upstream.note_ended(bool(state.ended))

    def _read_subscriptions(self) -> None:
        """Read some pending subscriptions, then let blocks have their turn."""
        self.sockets.read()
        self._state.read_at = time.monotonic_ns() + _READ_EVERY_NS
