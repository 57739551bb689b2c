"""Connect a relay's line to its source: socket, clock and shared memory for the decisions of an `Upstream`."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

import zmq

from blackbox.block.form.format import NONCE_BYTES
from blackbox.errors import EndpointError
from blackbox.receive.publishers.lines import open_sub
from blackbox.services.relay.line_state import LineState
from blackbox.services.relay.requests_up import Upstream
from blackbox.transport.context import allow_ipv6
from blackbox.transport.inproc import bound_number, is_bound_anew, is_inproc, new_endpoint
from blackbox.transport.security.curve import ClientKeys, refusal_of, use_keys
from blackbox.transport.shared_memory.attached import SharedSource
from blackbox.transport.tcp_info import FAILURE_EVENTS, Connection, Failure, connection_to, event_of, failure_of
from blackbox.transport.wakeup import Pipe

log = logging.getLogger("blackbox")

_RECONNECT_MS: Final = 20, 200
"""First and longest pause between connection attempts, which peers below wait for."""
_LEAST_WAITING: Final = 1_000
"""Messages waiting for a connection before those that cancel each other are removed."""


class Source(NamedTuple):
    """Connection settings of an address."""

    keys: ClientKeys | None
    memory: str
    """Name of the shared memory with its blocks on its host; empty: they are sent on the socket."""


def in_the_end(messages: Iterable[bytes]) -> list[bytes]:
    """Return the subscriptions and unsubscriptions that no later one cancels."""
    left = dict[bytes, bytes]()
    for message in messages:
        prefix = message[1:]
        if left.pop(prefix, message) == message:
            left[prefix] = message
    return [*left.values()]


class UpstreamSocket:
    """XSUB socket towards the source, used by the thread of its slice. Connected to one address at a time.

    Attributes: `memory`, shared memory of the current address; `handles`, of the socket and of its connection monitor,
    0 before `open`.
    """

    def __init__(
        self,
        sources: Mapping[str, Source],
        hold_s: float,
        state: LineState,
        heartbeat_ns: int,
        what: str,
        bell: Pipe,
    ) -> None:
        """`sources`: connection settings by address.

        `what` names the slice in the log. `bell`: rung by writers of shared memory. `hold_s`: as in `Interest`.
        """
        heartbeat_s = heartbeat_ns / 1e9
        self.upstream = Upstream(sources, hold_s, heartbeat_s, what, lambda: secrets.token_bytes(NONCE_BYTES))
        self.memory = SharedSource("", bell, what)
        self.handles = 0, 0
        self._sources, self._failures = sources, dict[str, set[Failure]]()
        self._state, self._what, self._bell = state, what, bell
        self._heartbeats, self._most_waiting = 0, _LEAST_WAITING
        self._connection: Connection | None = None

    def open(self, context: zmq.Context[zmq.Socket[bytes]], hwm_blocks: int) -> None:
        """Open and connect the socket. Raises EndpointError naming an address that it cannot connect to."""
        self._xsub = open_sub(context, hwm_blocks, zmq.XSUB)
        self._news: zmq.Socket[bytes] = context.socket(zmq.PAIR)
        self.handles = self._xsub.underlying, self._news.underlying
        # A high-water mark would drop requests; peers below are bounded already. ZMQ_IMMEDIATE must not be set: a lost
        # connection then takes the rest of a half-read message, and libzmq aborts.
        self._xsub.sndhwm = 0
        self._xsub.reconnect_ivl, self._xsub.reconnect_ivl_max = _RECONNECT_MS
        name = new_endpoint("upstream")
        connected = zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED
        self._xsub.monitor(name, connected | zmq.EVENT_DISCONNECTED | FAILURE_EVENTS)
        self._news.linger = 0
        self._news.connect(name)
        self.upstream.lose(time.monotonic())
        self._connect()

    def close(self) -> None:
        """Close the sockets if they are open."""
        if self.handles != (0, 0):
            self.memory.close()
            with suppress(zmq.ZMQError):
                self._xsub.monitor(None, 0)
            self._news.close()
            self._xsub.close(linger=0)

    def _connect(self) -> None:
        address = self.upstream.source.address
        source = self._sources[address]
        allow_ipv6(self._xsub, address)
        use_keys(self._xsub, source.keys)
        self.memory.close()
        self.memory = SharedSource(source.memory, self._bell, self._what)
        if self.memory.is_asked:
            self.memory.attach()
        self.upstream.read_in(self.memory.is_asked)
        self._flush()
        self._bound_number = bound_number(address)
        try:
            self._xsub.connect(address)
        except zmq.ZMQError as error:
            text = f"{self._what}: cannot connect to {address}: {error.strerror}"
            raise EndpointError(error.errno, text) from error
        if is_inproc(address):
            self._note_connection(True)

    def _flush(self) -> None:
        """Send all messages of `out`. Without a connection they stay there: libzmq's queue would be unbounded."""
        out = self.upstream.out
        if not self.upstream.source.is_connected:
            if len(out) > self._most_waiting:
                out[:] = in_the_end(out)
                self._most_waiting = 2 * len(out) + _LEAST_WAITING
        elif out:
            self._xsub.get(zmq.EVENTS)  # libzmq first repeats earlier requests on a new connection
            for message in out:
                self._xsub.send(message)
            out.clear()
        self._state.nonce = int.from_bytes(self.upstream.confirmations.nonce, "little", signed=True)
        ranges = self.upstream.expected.ranges
        self._state.ranges, self._state.range_count = (0, 0) if ranges is None else (ranges.ctypes.data, len(ranges[0]))

    def read_news(self) -> None:
        """Process news of connections opened or closed."""
        while self._news.poll(0):
            event, value, _ = event_of(self._news.recv_multipart())
            if (failure := failure_of(event, value)) is not None:
                self._note_failure(failure)
            elif event == zmq.EVENT_CONNECTED:
                self._connection = connection_to(self.upstream.source.address, value)
                self.upstream.source.local_address = "" if self._connection is None else self._connection.local_address
            else:
                self._note_connection(event == zmq.EVENT_HANDSHAKE_SUCCEEDED)

    def _note_failure(self, failure: Failure) -> None:
        """Log a rejected connection, once per address and reason."""
        address = self.upstream.source.address
        failures = self._failures.setdefault(address, set())
        keys = self._sources[address].keys
        before = refusal_of(failures, keys)
        failures.add(failure)
        why = refusal_of(failures, keys)
        if why != before:
            log.warning("%s: no connection to %s: %s", self._what, address, why)

    def _note_connection(self, is_there: bool) -> None:
        (self.upstream.connect if is_there else self.upstream.lose)(time.monotonic())
        self._state.heard_ns = self._state.ended = 0

    def look(self, is_needed: bool) -> None:
        """Let the upstream decide what is due, and do it. `is_needed`: a peer below waits for a confirmation."""
        upstream, now, heard_at = self.upstream, time.monotonic(), self._state.heard_ns / 1e9
        self._look_at_memory()
        if upstream.source.is_suspect(heard_at, now):
            has_unread = bool(int(self._xsub.get(zmq.EVENTS)) & zmq.POLLIN)
            if why := upstream.source.why_switch(heard_at, now, has_unread, self._is_answered()):
                if has_unread:  # libzmq has read a first part and would abort without the rest
                    self._xsub.recv_multipart()
                with suppress(zmq.ZMQError):
                    self._xsub.disconnect(upstream.source.address)
                self.read_news()  # of the old connection
                upstream.switch(why, now)
                self._connect()
        upstream.look(now, is_needed)
        self._flush()

    def _is_answered(self) -> bool | None:
        """Return True if the source's host answers, None if that is unknown."""
        if is_inproc(self.upstream.source.address):
            return not is_bound_anew(self.upstream.source.address, self._bound_number)
        return None if self._connection is None else self._connection.is_answered()

    def _look_at_memory(self) -> None:
        """Leave the memory of a source that has ended; choose again when the next one is heard."""
        is_heard, self._heartbeats = self._state.heartbeats != self._heartbeats, self._state.heartbeats
        if self.memory.leave_gone():
            self.upstream.confirmations.void()
        elif self.memory.is_open and is_heard and not self._state.ended:
            self._decide()

    def _decide(self) -> None:
        """Attach to the memory of the source just heard, or request data on the socket."""
        self.memory.decide()
        self.upstream.read_in(self.memory.is_asked)

    def answer(self) -> None:
        """Note that the nonce has come back."""
        if self.upstream.confirmations.nonce and self.memory.is_open:
            self._decide()
        else:
            self.upstream.answer(time.monotonic(), self._state.epoch, self._state.answer_flags)
