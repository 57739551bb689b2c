"""Send a feed to clients that cannot read blocks: any SUB socket, one message at a time."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import msgspec
import numpy
import zmq

from blackbox.arguments import Duration, check_integers
from blackbox.errors import BlackBoxError, ConfigError, RelayError
from blackbox.feed.endpoint import check_bind, check_endpoint, transport_of
from blackbox.feed.feed import Feed, check_is_feed
from blackbox.native.compile.jit import warm_up
from blackbox.native.system.limits import Needs, start_thread
from blackbox.native.system.waits import join
from blackbox.publish.listeners.peer_sockets import UPSTREAM_BYTES
from blackbox.receive.slow_subscriber import SlowPolicy
from blackbox.receive.statistics import Statistics
from blackbox.services.relay.plain_send import SCRATCH_WORDS, PlainAt, PlainState, send_plain
from blackbox.services.relay.relay import RelayLife
from blackbox.subscriber.subscriber import Subscriber
from blackbox.transport.context import allow_ipv6, close_context, new_context
from blackbox.transport.keep_alive import keep_alive
from blackbox.transport.libzmq import close_messages, init_messages
from blackbox.transport.security.gate import Gate, open_gate
from blackbox.transport.server_thread import bind

if TYPE_CHECKING:
    from blackbox.block.batch.batch import Batch

log = logging.getLogger("blackbox")

HWM_MESSAGES: Final = 100_000
_WAITING: Final = 100_000
"""Most messages waiting for the sending thread; after that slices wait."""
_LINGER_MS: Final = 1_000
_LOOK_S: Final = 0.5
_NEEDS: Final = Needs(descriptors=3, threads=1)
"""In addition to context and subscriber: the socket, its endpoint, a connection, and the sending thread."""


class PlainStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a plain relay."""

    messages: int
    """Messages offered to the clients that subscribe to them."""
    full: int
    """Messages for which the queue of at least one such client was full. The client misses them, and further messages,
    which are not counted, until half of its queue is sent."""
    source: Statistics
    """Statistics of the relay as a subscriber: received, lost and late messages."""


class PlainRelay:
    """Send each message of a feed, all slices in one, as `topic | ts_event | payload` from a PUB socket at an endpoint.

    For clients that cannot read blocks: a plain SUB subscribes to prefixes of topics. `ts_event` is an int64 of 8
    bytes, little-endian, ns since the epoch; 0: unknown. A message without a value has two frames. Messages keep the
    order of their slice; slices are interleaved as they arrive.

    Keys: as on any socket that the feed binds, clients need one of its `allowed_keys`; `in_the_clear` lets any client
    read an encrypted feed.

    It subscribes to the whole feed, whatever its clients subscribe to. Up to `hwm_messages` wait for one client;
    further ones are dropped for that client only: see `PlainStatistics`. Clients get no reports of missing messages.

    Life: NEW, `start` (or `with`, or `run`), RUNNING, `close`, CLOSED. Besides its subscriber it has one thread, which
    owns the socket once it is bound. Raises ConfigError if the endpoint is neither tcp nor ipc.
    """

    def __init__(
        self, upstream: Feed, endpoint: str, *, hwm_messages: int = HWM_MESSAGES, in_the_clear: bool = False
    ) -> None:
        check_is_feed(upstream)
        check_integers(("hwm_messages", hwm_messages, 1, 1 << 30))
        if transport_of(endpoint) == "tcp":
            check_bind("endpoint of plain clients", endpoint)
        else:
            check_endpoint(endpoint)
        if transport_of(endpoint) not in ("tcp", "ipc"):
            raise ConfigError(f"endpoint of plain clients was {endpoint!r}, expected tcp:// or ipc://")
        self.upstream, self.endpoint, self.hwm_messages = upstream, endpoint, hwm_messages
        self._in_the_clear = in_the_clear
        self._gate: Gate | None = None
        self.state = RelayLife.NEW
        self.error: BlackBoxError | None = None
        # A relay that ends itself because it lags would leave its clients without any data.
        self._subscriber = Subscriber(upstream, workers=1, slow=SlowPolicy("warn"))
        self._stream = self._subscriber.stream(b"", limit=_WAITING, batches=True)
        for callback in self._subscriber.callbacks:
            callback.gets_all = True  # its clients have other prefixes
        self._counts = PlainState()
        self._scratch = numpy.zeros(SCRATCH_WORDS, numpy.int64)
        self._what = f"plain relay of feed {upstream.name!r}"
        self._thread = threading.Thread(target=self._run, name="blackbox-plain", daemon=True)

    def start(self, timeout: Duration | None = None) -> Self:
        """Bind the endpoint, and return when every publisher has confirmed the subscription.

        Messages are forwarded at once. Raises EndpointError naming an endpoint that cannot be bound, else the same
        errors as `Subscriber.start`.
        """
        if self.state is not RelayLife.NEW:
            raise RelayError(f"start was called when {self.state}; a relay is used once")
        self._enter(RelayLife.RUNNING)
        try:
            warm_up(send_plain, self._at(0), 0, 0, 0, 0)
            self._open()
            self._subscriber.start(timeout)
        except BaseException:
            self.close()
            raise
        return self

    def run(self) -> None:
        """Forward messages until another thread calls `close`, or an error. Starts the relay if necessary.

        The feed's publishers need not run yet. Raises the error that ended it.
        """
        if self.state is RelayLife.NEW:
            self.start()
        try:
            while self._thread.is_alive():
                self._thread.join(_LOOK_S)
        finally:
            self.close()
        self.check()

    def check(self) -> None:
        """Raise the error that ended the relay, if any."""
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """Send the received messages, then end. Clients reconnect to the next process that binds the endpoint."""
        self._enter(RelayLife.CLOSED)
        with suppress(BlackBoxError):  # the thread gets the error from the stream
            self._subscriber.stop()
        self._stream._queue.end()
        if self._thread.ident is not None:
            join(self._thread)

    def statistics(self) -> PlainStatistics:
        """Return a snapshot of the counters."""
        return PlainStatistics(
            messages=self._counts.messages, full=self._counts.full, source=self._subscriber.statistics()
        )

    def __enter__(self) -> Self:
        return self if self.state is RelayLife.RUNNING else self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
        if kind is None:
            self.check()

    def __repr__(self) -> str:
        return f"PlainRelay({self.upstream!r}, {self.endpoint!r})"

    def _enter(self, state: RelayLife) -> None:
        """Enter `state`. Raises RuntimeError if it cannot follow the current state."""
        self.state = self.state.enter(state, self._what)

    def _at(self, socket: int) -> PlainAt:
        return PlainAt(socket, self._counts.address, self._scratch.ctypes.data)

    def _open(self) -> None:
        """Bind the socket and hand it over to the thread."""
        self._context = new_context(self._what, _NEEDS)
        self._socket = self._context.socket(zmq.PUB)
        try:
            self._socket.sndhwm = self.hwm_messages
            self._socket.maxmsgsize = UPSTREAM_BYTES
            self._socket.linger = _LINGER_MS
            self._socket.setsockopt(zmq.XPUB_NODROP, 1)
            keep_alive(self._socket)
            allow_ipv6(self._socket, self.endpoint)
            if not self._in_the_clear:
                self._gate = open_gate(self._context, self.upstream, [self.endpoint], self._what)
            if self._gate is not None:
                self._gate.secure(self._socket, self.endpoint)
            bind(self._socket, self.endpoint, f"{self._what}: endpoint")
            start_thread(self._thread)
        except BaseException:
            self._close_socket()
            raise

    def _close_socket(self) -> None:
        if self._gate is not None:
            self._gate.close()
        self._socket.close()
        close_context(self._context)

    # In the thread.

    def _run(self) -> None:
        init_messages(self._scratch.ctypes.data, 1)
        try:
            at = self._at(self._socket.underlying)
            for batch in self._stream:
                self._send(at, batch)
        except BlackBoxError as error:
            self.error = error
        except Exception as error:  # any error that ends this thread must be raised by `run`
            log.exception("%s failed", self._what)
            self.error = RelayError(f"{self._what} failed: {error}")
            self.error.__cause__ = error
        finally:
            self._stream._queue.end()  # a slice may be waiting for room in it
            close_messages(self._scratch.ctypes.data, 1)
            self._close_socket()

    def _send(self, at: PlainAt, batch: Batch) -> None:
        head = numpy.frombuffer(batch.block.header, numpy.uint8)
        body, rows, full = batch.block.body, batch.rows, self._counts.full
        rows_at = 0 if rows is None else rows.ctypes.data
        error = send_plain(at, head.ctypes.data, body.ctypes.data, rows_at, len(batch))
        if error:
            raise RelayError(f"{self._what}: libzmq rejected a message: {zmq.strerror(error)}")
        if self._counts.full and not full:
            log.warning(
                "%s: a client does not keep up: more than %d messages wait for it, and further ones are dropped for it",
                self._what,
                self.hwm_messages,
            )
