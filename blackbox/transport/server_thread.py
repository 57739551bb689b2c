"""A thread that binds a socket and answers requests until it is stopped."""

from __future__ import annotations

import errno
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

import zmq

from blackbox.errors import BlackBoxError, EndpointError
from blackbox.life import Life
from blackbox.native.system.limits import start_thread
from blackbox.native.system.waits import result_of
from blackbox.transport.inproc import note_bound
from blackbox.transport.wakeup import Pipe

log = logging.getLogger("blackbox")

_BACKLOG: Final = 4_096
"""Pending connections: when a server restarts many clients reconnect at once, and rejected ones wait for seconds.
`net.core.somaxconn` is the upper limit."""
_bound_here: Final = WeakValueDictionary[str, "zmq.Socket[Any]"]()
"""The last socket that this process bound to each endpoint."""


class SupportsFileno(Protocol):
    """A file or socket with a descriptor."""

    def fileno(self) -> int:
        """Return it."""


class ServerLife(Life):
    """Stages in the life of a server's thread."""

    NEW = "new", "binding", "ended"
    """Created. BINDING by `start`, ENDED by `end`."""
    BINDING = "binding", "serving", "ended"
    """`start` waits for it. SERVING once bound; ENDED if it cannot bind."""
    SERVING = "serving", "ending", "ended"
    """It answers requests. ENDING by `end`, ENDED by an error."""
    ENDING = "ending", "ended"
    """It finishes its work, then it is ENDED."""
    ENDED = "ended"
    """The last stage."""


class ServerThread:
    """Runs a server in a thread, and reports to `start` whether it could bind.

    Life: see `ServerLife`. `start` and `end` are for the owner's thread, all else for `serve`, which runs in the new
    thread.
    """

    def __init__(self, name: str, what: str, serve: Callable[[], None]) -> None:
        """`serve` binds, then answers `requests`. `what`: name of the server in the log."""
        self.life = ServerLife.NEW
        self._what, self._serve = what, serve
        self._end = Pipe()
        self._bound: Future[None] = Future()
        self._error: BaseException | None = None
        self._busy_since = 0.0
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread and return once it has bound. Raises the error of binding, and LimitError."""
        self._enter(ServerLife.BINDING)
        try:
            start_thread(self._thread)
        except BaseException:
            self._enter(ServerLife.ENDED)
            raise
        result_of(self._bound)

    def end(self, timeout: float | None = None) -> bool:
        """Stop the thread; return True if it has ended within `timeout` seconds. A second call does nothing."""
        if self.life is ServerLife.NEW:
            self._enter(ServerLife.ENDED)
        self._end.poke()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def check(self) -> None:
        """Raise BlackBoxError if the thread has failed."""
        if self._error is not None:
            raise BlackBoxError(f"{self._what} failed: {self._error!r}") from self._error

    def requests(self, socket: zmq.Socket[bytes]) -> Iterator[list[bytes]]:
        """Report the socket as bound; yield requests until the thread is stopped."""
        return ([frame.bytes for frame in frames] for frames in self.frames(socket))

    def frames(
        self, socket: zmq.Socket[bytes], left_s: Callable[[], float | None] = lambda: None
    ) -> Iterator[list[zmq.Frame]]:
        """Yield the same as `requests`, but as frames with libzmq's metadata about the sender.

        `left_s`: seconds to wait, None: no limit. After the timeout it yields no frames.
        """
        self.begin()
        poller = self.watch(socket)
        while (ready := self.poll(poller, left_s())) is not None:
            yield receive(socket) if ready else []
        self.begin_to_end()

    def begin(self) -> None:
        """Report that everything is bound."""
        self._enter(ServerLife.SERVING)
        self._bound.set_result(None)

    def watch(self, *sockets: zmq.Socket[bytes] | SupportsFileno | int) -> zmq.Poller:
        """Return a poller for `poll`, which returns the descriptors of other sockets."""
        poller = zmq.Poller()
        for socket in (*sockets, self._end.reader):
            poller.register(socket, zmq.POLLIN)
        return poller

    def poll(self, poller: zmq.Poller, timeout_s: float | None = None) -> list[Any] | None:
        """Wait for requests; return the readable sockets, empty after the timeout. None: stop."""
        self._busy_since = 0.0
        ready = [each for each, _ in poller.poll(None if timeout_s is None else max(0, math.ceil(1e3 * timeout_s)))]
        self._busy_since = time.monotonic()
        return None if self._end.reader in ready else ready

    def busy_s(self) -> float:
        """Return the seconds since the server began to work on requests; 0.0 while it waits. For any thread."""
        since = self._busy_since
        return time.monotonic() - since if since and self.life in (ServerLife.SERVING, ServerLife.ENDING) else 0.0

    def begin_to_end(self) -> None:
        """Note that the remaining work is being finished."""
        self._enter(ServerLife.ENDING)

    def _enter(self, life: ServerLife) -> None:
        """Enter `life`. Raises RuntimeError if it cannot follow the current stage."""
        self.life = self.life.enter(life, self._what)

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # `start` waits for this thread and must not wait for ever
            if self.life is ServerLife.BINDING:
                self._bound.set_exception(error)
            else:
                self._error = error
                log.exception("%s failed", self._what)
        self._enter(ServerLife.ENDED)
        del self._serve  # breaks the reference cycle with the owner, so that the pipe is closed with it


def receive(socket: zmq.Socket[Any], flags: int = 0) -> list[zmq.Frame]:
    """Receive a message like `recv_multipart`, but faster: it asks each frame for more instead of the socket."""
    frames = [socket.recv(flags, copy=False)]
    while frames[-1].more:
        frames.append(socket.recv(flags, copy=False))
    return frames


def bind(socket: zmq.Socket[Any], endpoint: str, what: str) -> None:
    """Bind a socket. Raises EndpointError naming `what` the endpoint is."""
    socket.backlog = _BACKLOG
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        if error.errno in (errno.ENODEV, errno.EADDRNOTAVAIL):
            why = (
                "could not be bound: its host is unknown or not an address of this machine; if peers use another "
                "address, set `bind` in the feed file"
            )
        else:
            why = "is in use" if error.errno == zmq.EADDRINUSE else f"could not be bound: {error.strerror}"
            if (earlier := _bound_here.get(endpoint)) is not None and not earlier.closed:
                why += " by this process: close the earlier publisher or server first"
        raise EndpointError(error.errno, f"{what} {endpoint} {why}") from error
    note_bound(endpoint)
    _bound_here[endpoint] = socket
