"""A thread that binds a socket, then answers what comes until it is told to end."""

from __future__ import annotations

import errno
import logging
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Final

import zmq

from blackbox.errors import EndpointError
from blackbox.life import Life
from blackbox.native.limits import start_thread
from blackbox.native.waits import result_of
from blackbox.transport.inproc import note_bound
from blackbox.transport.wakeup import Pipe

log = logging.getLogger("blackbox")

_BACKLOG: Final = 4_096
"""Connections that wait to be taken in: a whole crowd comes at once when who serves it begins again, and whom the
system turns away tries again seconds later. `net.core.somaxconn` bounds it."""


class ServerLife(Life):
    """Where a server's thread is in its life."""

    NEW = "new", "binding", "ended"
    """It has not begun. BINDING by `start`, ENDED by `end`."""
    BINDING = "binding", "serving", "ended"
    """`start` waits for it. Then it is SERVING; ENDED if it cannot bind."""
    SERVING = "serving", "ending", "ended"
    """It answers. ENDING by `end`, ENDED by an error."""
    ENDING = "ending", "ended"
    """It does what is left to do, then it has ENDED."""
    ENDED = "ended"
    """Nothing follows."""


class ServerThread:
    """Runs what serves, and tells who starts it whether it could bind.

    Life: see `ServerLife`. `start` and `end` are for the thread that owns it, the rest for `serve`, which runs in the
    thread that this starts.
    """

    def __init__(self, name: str, what: str, serve: Callable[[], None]) -> None:
        """`serve` binds, then answers `requests`. `what` it is, for the log."""
        self.life = ServerLife.NEW
        self._what, self._serve = what, serve
        self._end = Pipe()
        self._bound: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Return once it is bound. Raises what kept it from that, and LimitError."""
        self._enter(ServerLife.BINDING)
        try:
            start_thread(self._thread)
        except BaseException:
            self._enter(ServerLife.ENDED)
            raise
        result_of(self._bound)

    def end(self, timeout: float | None = None) -> bool:
        """Have it end, and wait for that; return whether it has, within `timeout` seconds. Again is fine."""
        if self.life is ServerLife.NEW:
            self._enter(ServerLife.ENDED)
        self._end.poke()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def requests(self, socket: zmq.Socket[bytes]) -> Iterator[list[bytes]]:
        """Say that the socket is bound; yield what comes, until the thread is told to end."""
        return ([frame.bytes for frame in frames] for frames in self.frames(socket))

    def frames(
        self, socket: zmq.Socket[bytes], left_s: Callable[[], float | None] = lambda: None
    ) -> Iterator[list[zmq.Frame]]:
        """As `requests`, with what libzmq knows of who sent it.

        `left_s`: for how many seconds to wait, None: as long as it takes. If nothing comes, it yields no frames.
        """
        self.begin()
        poller = self.watch(socket)
        while (ready := self.poll(poller, left_s())) is not None:
            yield receive(socket) if ready else []
        self.begin_to_end()

    def begin(self) -> None:
        """Say that all is bound."""
        self._enter(ServerLife.SERVING)
        self._bound.set_result(None)

    def watch(self, *sockets: zmq.Socket[bytes]) -> zmq.Poller:
        """Return a poller for `poll`."""
        poller = zmq.Poller()
        for socket in (*sockets, self._end.reader):
            poller.register(socket, zmq.POLLIN)
        return poller

    def poll(self, poller: zmq.Poller, timeout_s: float | None = None) -> list[Any] | None:
        """Wait until something comes; return the sockets that have it, none after the timeout. None: it is to end."""
        ready = [each for each, _ in poller.poll(None if timeout_s is None else max(0, math.ceil(1e3 * timeout_s)))]
        return None if self._end.reader in ready else ready

    def begin_to_end(self) -> None:
        """Note that it does what is left to do."""
        self._enter(ServerLife.ENDING)

    def _enter(self, life: ServerLife) -> None:
        """Go on to `life`. Raises RuntimeError when it may not follow."""
        self.life = self.life.enter(life, self._what)

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # `start` waits for this thread, and must not wait for ever
            if self.life is ServerLife.BINDING:
                self._bound.set_exception(error)
            else:
                log.exception("%s failed", self._what)
        self._enter(ServerLife.ENDED)
        del self._serve  # it leads back to the owner: without the circle the pipe goes with that


def receive(socket: zmq.Socket[Any], flags: int = 0) -> list[zmq.Frame]:
    """Do as `recv_multipart`, which takes longer: it asks the socket, in place of each frame, for more."""
    frames = [socket.recv(flags, copy=False)]
    while frames[-1].more:
        frames.append(socket.recv(flags, copy=False))
    return frames


def bind(socket: zmq.Socket[Any], endpoint: str, what: str) -> None:
    """Bind a socket. Raises EndpointError, which says `what` the endpoint is."""
    socket.backlog = _BACKLOG
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        if error.errno in (errno.ENODEV, errno.EADDRNOTAVAIL):
            why = (
                "could not be bound: its host is unknown, or no address of this machine; if others reach it there, "
                "`bind` of the feed file says where to bind"
            )
        else:
            why = "is in use" if error.errno == zmq.EADDRINUSE else f"could not be bound: {error.strerror}"
        raise EndpointError(error.errno, f"{what} {endpoint} {why}") from error
    note_bound(endpoint)
