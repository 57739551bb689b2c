"""The sockets on which a hub gets requests and answers them, and the rights of its clients."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Final

import zmq

from blackbox.documents import DecodeError
from blackbox.feed.feed import Feed
from blackbox.native.system.limits import Needs
from blackbox.services.hub.protocol import (
    ENCODER,
    MOST_REQUEST_BYTES,
    REQUESTS,
    Ended,
    FindSites,
    FoundSites,
    Hello,
    Put,
    Refused,
)
from blackbox.services.hub.server.judge import Answer, Request
from blackbox.services.hub.sites.sites import Sites
from blackbox.transport.context import allow_ipv6, new_context
from blackbox.transport.keep_alive import keep_alive
from blackbox.transport.security.curve import key_of
from blackbox.transport.security.gate import Gate, open_gate
from blackbox.transport.server_thread import bind, receive

_QUEUE_REQUESTS: Final = 16
"""Requests of one client that wait here; more wait on the client's side."""
QUEUE_ANSWERS: Final = 1_000
"""Answers that may wait for one client. More are dropped, and the client asks again."""
_MOST_AT_ONCE: Final = 256
_MOST_BYTES_AT_ONCE: Final = 16 << 20
"""Maximum number of requests that are answered together, and of their bytes."""
_FRAMES: Final = 2
_POLLIN: Final = int(zmq.POLLIN)
_MORE: Final = int(zmq.SNDMORE | zmq.NOBLOCK)
"""Flags of the first frame; a socket that accepts it accepts the whole message."""
_NEEDS: Final = Needs(descriptors=64)


class Frontend:
    """Clients of a hub: their socket, their rights, the requests that wait; the surroundings of its judge.

    Attributes: `socket`, of the clients, once it is bound.
    """

    socket: zmq.Socket[bytes]

    def __init__(self, feed: Feed, sites: Sites) -> None:
        self._gate: Gate | None = None
        self._feed, self._sites = feed, sites

    def bind(self, stack: ExitStack, *endpoints: str) -> list[zmq.Socket[bytes]]:
        """Return a socket at each endpoint, for as long as the stack is open. The first one is for clients."""
        context = stack.enter_context(new_context("hub", _NEEDS))
        what = f"hub of feed {self._feed.name!r}"
        self._gate = gate = open_gate(context, self._feed, endpoints, what, takes_puts=True)
        if gate is not None:
            stack.callback(gate.close)
        sockets = []
        for endpoint in endpoints:
            socket = stack.enter_context(context.socket(zmq.ROUTER))
            socket.setsockopt(zmq.MAXMSGSIZE, MOST_REQUEST_BYTES)
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # else dropped answers are not counted
            socket.rcvhwm, socket.sndhwm, socket.linger = _QUEUE_REQUESTS, QUEUE_ANSWERS, 0
            keep_alive(socket)
            allow_ipv6(socket, endpoint)
            if gate is not None:
                gate.secure(socket, endpoint)
            bind(socket, endpoint, "hub endpoint")
            sockets.append(socket)
        self.socket = sockets[0]
        return sockets

    def waiting(self, frames: list[zmq.Frame]) -> list[Request]:
        """Return a request and those that wait after it."""
        socket, waiting = self.socket, [frames]
        size = sum(map(len, frames))
        while len(waiting) < _MOST_AT_ONCE and size < _MOST_BYTES_AT_ONCE and int(socket.get(zmq.EVENTS)) & _POLLIN:
            frames = receive(socket, zmq.NOBLOCK)
            size += sum(map(len, frames))
            waiting.append(frames)
        return [self._request_of(frames) for frames in waiting]

    def _request_of(self, frames: list[zmq.Frame]) -> Request:
        """Return the request in a message. Without a gate, clients have no keys."""
        text = frames[-1].bytes
        key = key_of(frames[-1]) if self._gate is not None else ""
        return Request(frames[0].bytes, key, text, _decoded(text, len(frames)))

    def send(self, client: bytes, answer: Answer, counts: dict[str, int]) -> None:
        """Answer a client. `counts`: as `Judge.counts`."""
        counts["refused"] += isinstance(answer, Refused) or (isinstance(answer, Ended) and answer.session is None)
        try:
            self.socket.send(client, _MORE)
            self.socket.send(ENCODER.encode(answer), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            counts["unread"] += 1

    # Surroundings of the judge.

    def now_ns(self) -> int:
        """As `Around`."""
        return time.time_ns()

    def put_rights(self, key: str) -> tuple[bytes, ...] | None:
        """As `Around`."""
        if self._gate is None or not key:
            return None
        self._gate.look()
        return self._gate.put_rights_of(key)

    def may_read(self, prefix: bytes, key: str) -> bool:
        """As `Around`."""
        if self._gate is None or not key:
            return True
        self._gate.look()
        start, rights = self._feed.subscription_of(prefix), self._gate.rights_of(key)[1]
        return rights is None or any(start.startswith(right) or right.startswith(start) for right in rights)

    def find_sites(self, request: FindSites, key: str) -> FoundSites | Ended:
        """As `Around`."""
        return self._sites.answer(request, key)


def _decoded(text: bytes, frames: int) -> Hello | Put | FindSites | Ended:
    if frames != _FRAMES:
        return Ended(f"request had {frames - 1} frames, expected 1")
    try:
        request: Hello | Put | FindSites = REQUESTS.decode(text)
    except DecodeError as error:
        return Ended(f"request was not understood: {error}")
    return request
