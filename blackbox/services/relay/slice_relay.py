"""One slice of a relay: its sockets and the thread that forwards blocks and answers peers below."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from ctypes import string_at
from typing import Final, NamedTuple

import numpy
import zmq

from blackbox.block.form.block import Block
from blackbox.block.form.format import CONFIRM_KEY
from blackbox.errors import BlackBoxError, BlockError, RelayError
from blackbox.feed.feed import Feed, Slice
from blackbox.life import Life
from blackbox.native.compile.jit import WARM_UP_NEEDS, warm_up
from blackbox.native.system.limits import Needs, start_thread
from blackbox.native.system.waits import join
from blackbox.publish.listeners.peer_guard import GUARD_NEEDS, Guard
from blackbox.publish.listeners.peers import Why
from blackbox.publish.listeners.subscription_reader import SubscriptionReader, read_subscriptions
from blackbox.publish.listeners.subscriptions import Asked
from blackbox.publish.send.answers import Answers, Full, send_control_blocks, send_refusal
from blackbox.publish.send.send_loop import send_control
from blackbox.publish.send.xpub import open_xpub
from blackbox.services.relay.cover import Cover
from blackbox.services.relay.forward_loop import CLOSED, FAILED, ITEMS_OF_LINE, SUBSCRIPTIONS, forward_until
from blackbox.services.relay.hops import Hop, check_path, decode_path, encode_path
from blackbox.services.relay.line_state import (
    BODY_AT,
    HEADER_AT,
    UNWANTED_AT,
    LineMemory,
    SliceRelayAt,
    SliceRelayState,
)
from blackbox.services.relay.requests_below import Below
from blackbox.services.relay.upstream_socket import Source, UpstreamSocket
from blackbox.transport.context import CONTEXT_NEEDS, close_context, open_context, pin_thread, wake_on_time
from blackbox.transport.libzmq import message_bytes
from blackbox.transport.security.gate import Gate, open_gate
from blackbox.transport.server_thread import bind
from blackbox.transport.shared_memory.layout import is_supported
from blackbox.transport.shared_memory.writer import SharedWriter
from blackbox.transport.wakeup import PIPE_NEEDS, Pipe

log = logging.getLogger("blackbox")

_SEND_WAIT_MS: Final = 20
_IO_THREADS: Final = 2
"""So that receiving and sending run in parallel."""
_LINGER_MS: Final = 1_000
"""Time to send forwarded blocks when the relay ends."""
_RECEIVED_BYTES: Final = 64 << 10
"""Bytes of subscriptions read in one pass: a few thousand, at most some milliseconds."""
_READ_EVERY_NS: Final = 5_000_000
_LOOK_NS: Final = 100_000_000
"""Time between two checks of the source."""


class Settings(NamedTuple):
    """Settings of all slices of a relay."""

    wait: bool
    hwm_blocks: int
    hold_s: float
    make_cover: Callable[[], Cover]


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
    return Needs(descriptors=11 * len(part.lines) + 7 * bool(part.shared_memory))


class Line:
    """One line of a slice: its state, its source and, once open, its sockets below."""

    def __init__(self, memory: LineMemory, way: UpstreamSocket) -> None:
        self.memory, self.way, self.upstream = memory, way, way.upstream
        self.state = memory.state
        self.above: tuple[Hop, ...] = ()
        """Relays between the source and this one."""
        self.path_at_ns = 0
        """When to send this relay's path again."""


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
        uses_inproc: bool,
        settings: Settings,
        me: Hop,
        ended: Callable[[], None],
    ) -> None:
        """`feed`: the feed below. `sources`: of each line. `ended` is called at the end."""
        self.slice_id = slice_id
        self.part = feed.slices[slice_id]
        self.error: BlackBoxError | None = None
        self.life = SliceRelayLife.NEW
        self._feed, self._settings, self._me, self._ended = feed, settings, me, ended
        self._uses_inproc = uses_inproc
        self._what = f"relay {me.name!r} of feed {feed.name!r} slice {slice_id}"
        self._kept = SliceRelayState()
        self._wake = Pipe()
        self.lines: list[Line] = []
        for addresses in sources:
            memory = LineMemory(feed.max_keys)
            cover, hold_s = settings.make_cover(), settings.hold_s
            way = UpstreamSocket(addresses, cover, hold_s, memory.state, feed.heartbeat_ns, self._what, self._wake)
            self.lines.append(Line(memory, way))
        self.below = Below(feed, slice_id, [line.upstream for line in self.lines])
        self.guard = Guard(slice_id, self.below, self._kept, self._wake.poke, drop=not settings.wait)
        self._gate: Gate | None = None
        self._reader: SubscriptionReader | None = None
        self._xpubs: list[zmq.Socket[bytes]] = []
        self._polls = numpy.zeros(2 * (1 + ITEMS_OF_LINE * len(self.lines)), numpy.int64)
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"blackbox-relay-{slice_id}", daemon=True)

    def start(self, timeout: float = 120.0) -> None:
        """Bind and connect. Raises EndpointError naming the endpoint that failed."""
        start_thread(self._thread)
        if not self._ready.wait(timeout):
            raise RelayError(f"{self._what}: did not start in {timeout} s")
        if self.error is not None:
            self._thread.join()
            raise self.error

    def ask_to_close(self) -> None:
        """Ask the thread to end."""
        self._kept.closing = 1
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
            self._warm_up()
            self._open(context)
            self.guard.start()
            self._enter(SliceRelayLife.RUNNING)
            self._ready.set()
            self._serve()
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

    def _warm_up(self) -> None:
        sender = self.lines[0].memory.sender(0)
        warm_up(forward_until, self._at([0] * len(self.lines)), self.below.readers, self.below.readers, 0)
        warm_up(read_subscriptions, *SubscriptionReader.warm_up_arguments())
        warm_up(send_control, sender, self.lines[0].memory.origin(0, 0), 0, 0, 0, 0, 0, 0, 0)
        own = encode_path((self._me,), 0, 0, 1)
        decode_path(own.header, bytes(own.body))

    def _open(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        if (name := self.part.shared_memory) and is_supported():
            sizes = self._feed.block_bytes, self._settings.wait, self._settings.hwm_blocks
            self.guard.shared = SharedWriter(name, f"{self._what}: endpoint shm://{name}", *sizes, self._wake)
        wait_ms = _SEND_WAIT_MS if self._settings.wait else None
        allowed = self.part.allowed_keys
        self._gate = self.guard.gate = open_gate(context, self._feed, self.part.bound, self._what, allowed)
        for number, (line, endpoint) in enumerate(zip(self.lines, self.part.bound, strict=True)):
            xpub = open_xpub(context, endpoint, wait_ms, self._settings.hwm_blocks)
            self._xpubs.append(xpub)
            if self._gate is not None:
                self._gate.secure(xpub, endpoint)
            if not endpoint.startswith("inproc:"):
                self.guard.watch(number, xpub)
            bind(xpub, endpoint, f"{self._what}: endpoint")
            line.way.open(context, self._settings.hwm_blocks)
        lines = self.lines
        self._reader = SubscriptionReader(
            self.below,
            self._xpubs,
            self.part.lines,
            self._gate,
            _RECEIVED_BYTES,
            lambda number: lines[number].upstream.requested,
        )

    def _close(self) -> None:
        self.guard.close()
        for line in self.lines:
            line.way.close()
            line.memory.close()
        if self._reader is not None:
            self._reader.close()
        for xpub in self._xpubs:
            xpub.close(linger=_LINGER_MS if self.error is None else 0)
        if self._gate is not None:
            self._gate.close()

    def _at(self, xpubs: Sequence[int]) -> SliceRelayAt:
        """Return the addresses of all state, and the items to poll."""
        items = self._polls.view(numpy.int32).reshape(-1, 4)
        items[:, 3] = zmq.POLLIN
        items[0, 2] = self._wake.reader
        ats = []
        for number, (line, xpub) in enumerate(zip(self.lines, xpubs, strict=True)):
            xsub, news = line.way.handles
            self._polls[2 * (1 + ITEMS_OF_LINE * number) :: 2][:ITEMS_OF_LINE] = xsub, xpub, news
            ats.append(line.memory.at(xsub, xpub))
        return SliceRelayAt(
            ats[0],
            ats[-1],
            len(ats),
            self._kept.address,
            self._polls.ctypes.data,
            self._wake.reader,
            self.part.spin_ns,
            self.guard.shared_at,
            self.lines[0].way.memory.at,
        )

    def _serve(self) -> None:
        at = self._at([xpub.underlying for xpub in self._xpubs])
        senders = [line.memory.sender(xpub.underlying) for line, xpub in zip(self.lines, self._xpubs, strict=True)]

        def send_answers(number: int, keys: bytes, count: int, full: Full) -> tuple[int, bytes]:
            origin = self.lines[number].memory.origin(self.slice_id, self._feed.key_rule)
            return send_control_blocks(self._xpubs[number], senders[number], origin, number, keys, count, full, wait)

        wait = self._settings.wait
        waits = (lambda: sum(int(line.state.waits) for line in self.lines)) if wait else None

        def refuse(ask: Asked, refused: Mapping[bytes, Why]) -> bool:
            origin = self.lines[ask.line].memory.origin(self.slice_id, self._feed.key_rule)
            return send_refusal(self._xpubs[ask.line], ask, refused, origin, wait)

        answers = Answers(self.below, len(self.lines), send_answers, waits, refuse)
        reason = 0
        while reason != CLOSED:
            self._read_news()
            if reason == SUBSCRIPTIONS:
                self._read_subscriptions()
            is_time = time.monotonic_ns() >= answers.due_ns
            waiting = {ask.line for ask in self.below.asked.values() if is_time and not self._is_due(ask)}
            for number, line in enumerate(self.lines):
                line.way.look(number in waiting)
            retry_ns = self._say_path(time.monotonic_ns() + _LOOK_NS)
            if any(map(self._is_due, self.below.asked.values())):
                answers.send_due(self._is_due)
            if answers.due_ns > time.monotonic_ns():
                retry_ns = min(retry_ns, answers.due_ns)
            above = self.lines[0]
            at = at._replace(above=above.way.memory.at)
            reason = forward_until(at, self.below.readers, above.upstream.keys, retry_ns)
            if reason == FAILED:
                errno = next(line.state.errno for line in self.lines if line.state.errno)
                raise RelayError(f"{self._what}: libzmq rejected a block: {zmq.strerror(errno)}")

    def _is_due(self, ask: Asked) -> bool:
        """Return True if the ends of all keys are known, and all earlier requests are confirmed above."""
        line = self.lines[ask.line]
        return bool(line.state.knows_ends) and line.upstream.is_confirmed(ask.after)

    def _read_news(self) -> None:
        """Process messages from above that are for this relay."""
        self.below.times_asked = sum(line.state.heartbeats for line in self.lines)
        for number, line in enumerate(self.lines):
            state, upstream = line.state, line.upstream
            line.way.read_news()
            if state.has_path:
                state.has_path = 0
                self._read_path(line)
            if not upstream.source.is_connected and line.above:
                line.above, line.path_at_ns = (), 0
            if state.began:
                state.began = 0
                log.info("%s: publisher epoch %d began", self._what, state.epoch)
                upstream.begin_epoch()
                with self.below.changed:
                    self.below.begin_epoch(state.epoch, number)
            if state.answered:
                state.answered = 0
                line.way.answer()
            if state.has_refusal:
                state.has_refusal = 0
                self.below.note_refused(number, upstream.refuse(self._read_refusal(line)))
                if self.below.unwelcome:
                    self.guard.look_now()
            if state.has_unwanted:
                key = string_at(line.memory.scratch + UNWANTED_AT, state.has_unwanted - 1)
                state.has_unwanted = 0
                upstream.note_unwanted(key)
            upstream.note_ended(bool(state.ended))

    @staticmethod
    def _read_refusal(line: Line) -> dict[bytes, Why]:
        header, body = (string_at(*message_bytes(line.memory.scratch + place)) for place in (HEADER_AT, BODY_AT))
        try:
            told = Block.decode(CONFIRM_KEY, header, body).ends()
            return {prefix: Why(end.sequence) for prefix, end in told.items()}
        except (BlockError, ValueError):
            return {}

    def _read_path(self, line: Line) -> None:
        header, body = (string_at(*message_bytes(line.memory.scratch + place)) for place in (HEADER_AT, BODY_AT))
        above = decode_path(header, body)
        if above is not None and above != line.above:
            line.above, line.path_at_ns = above, 0
            check_path(self._me, above)
            log.info("%s: hop %d, below %s", self._what, len(above) + 1, ", ".join(hop.name for hop in above))

    def _say_path(self, until_ns: int) -> int:
        """Send this relay's path if it is time; return when to send it next, at most `until_ns`."""
        now_ns = time.monotonic_ns()
        for line, xpub in zip(self.lines, self._xpubs, strict=True):
            if self.below.wants_path or now_ns >= line.path_at_ns:
                line.path_at_ns = now_ns + self._feed.heartbeat_ns
                hops = *line.above, self._me
                block = encode_path(hops, self.slice_id, self._feed.key_rule, line.state.epoch)
                with suppress(zmq.Again):  # a subscriber without room gets the next one
                    xpub.send_multipart(block.frames, zmq.DONTWAIT)
            until_ns = min(until_ns, line.path_at_ns)
        self.below.wants_path = False
        return until_ns

    def _read_subscriptions(self) -> None:
        """Read some pending subscriptions, then let blocks have their turn."""
        assert self._reader is not None, "it is created before a peer can subscribe"
        self._reader.read()
        self._kept.read_at = time.monotonic_ns() + _READ_EVERY_NS
        self.below.renew_readers()
        if self.below.unwelcome:
            self.guard.look_now()
