"""The connection of a client with its hubs: a socket for each, polled together with a pipe that wakes it."""

from __future__ import annotations

import math
import os
import time
from contextlib import ExitStack, suppress
from typing import Final

import zmq

from blackbox.errors import EndpointError
from blackbox.feed.feed import Feed
from blackbox.native.system.limits import Needs
from blackbox.transport.context import allow_ipv6, new_context
from blackbox.transport.keep_alive import keep_alive
from blackbox.transport.security.curve import keys_of_hub, refusal_of, use_keys
from blackbox.transport.server_thread import receive
from blackbox.transport.tcp_info import Connections, Failure
from blackbox.transport.wakeup import Pipe

_QUEUE_REQUESTS: Final = 64
_AGAIN_S: Final = 0.5
_MOST_AGAIN_S: Final = 2.0
"""Delay before unanswered requests are sent again: the first, doubled up to the second when all hubs were asked."""
_PASSIVE_S: Final = 0.1
"""Delay before the other hub is asked, after one has answered that it is passive."""
_NEEDS: Final = Needs(descriptors=16)
_POLLIN: Final = int(zmq.POLLIN)


class _Link:
    """A socket that is connected to one hub, also while the client uses the other one.

    It is never connected elsewhere: what is sent right after a `disconnect` may go to the old peer and be lost.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], feed: Feed, index: int, endpoint: str) -> None:
        """Connect, even if the hub is away. Raises EndpointError or ConfigError."""
        self.keys = keys_of_hub(feed, index, endpoint)
        self.socket = socket = context.socket(zmq.DEALER)
        self.connections = Connections(socket)
        try:
            socket.linger, socket.sndhwm = 0, _QUEUE_REQUESTS
            socket.setsockopt(zmq.IMMEDIATE, 1)  # messages for a hub that is away wait only in the client
            allow_ipv6(socket, endpoint)
            keep_alive(socket)
            use_keys(socket, self.keys)
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise EndpointError(error.errno, f"cannot connect to hub {endpoint}: {error.strerror}") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.connections.close()
        self.socket.close()

    def refusal(self) -> str:
        """Return why the hub refuses this connection; "" if it does not, or the reason is not known."""
        self.connections.look()
        return refusal_of(self.connections.failures.keys() - {Failure.LEFT}, self.keys)


class HubConnection:
    """Sends to one of a feed's hubs, and to the other one if that does not answer. One thread at a time uses it.

    An answer counts whichever hub it comes from.
    """

    def __init__(self, feed: Feed, pipe: Pipe) -> None:
        """`pipe` ends a wait."""
        self.hubs = tuple(filter(None, (feed.hub, feed.hub_backup)))
        self._refusals = ["" for _ in self.hubs]
        """By hub, why it refuses the connection, as far as that is known."""
        self._feed, self._pipe = feed, pipe
        self._hub = self._answering = 0
        """Indexes of the hub that is asked, and of the one with the next answer."""
        self._again_at, self._again_s = 0.0, _AGAIN_S
        self._watched = (0, False)
        """The hub that is watched for room, and whether it is."""

    @property
    def why(self) -> str:
        """Why a hub refuses the connection; "" if none does, or the reason is not known."""
        return next(filter(None, self._refusals), "")

    def open(self, stack: ExitStack) -> None:
        """Connect, even if hubs are away. Raises EndpointError, ConfigError or LimitError."""
        self._context = stack.enter_context(new_context("hub client", _NEEDS))
        self._poller = zmq.Poller()
        self._poller.register(self._pipe.reader, zmq.POLLIN)
        self._links: list[_Link] = []
        stack.callback(self._close)
        for index, hub in enumerate(self.hubs):
            self._links.append(_Link(self._context, self._feed, index, hub))
            self._poller.register(self._links[-1].socket, zmq.POLLIN)
        self._again_at = time.monotonic() + _AGAIN_S

    def _close(self) -> None:
        for link in self._links:
            link.close()

    def send(self, text: bytes) -> None:
        """Send a request. Raises zmq.Again if the connection has no room."""
        self._links[self._hub].socket.send(text, zmq.NOBLOCK)
        self._again_at = time.monotonic() + self._again_s

    def wait(self, most_s: float, *, is_waiting: bool, wants_room: bool) -> bool:
        """Wait for an answer, at most `most_s` seconds; return True if there is one.

        `is_waiting`: requests are not answered; the wait then ends once they must be sent again. `wants_room`: the wait
        also ends if the connection has room.
        """
        if self._watched != (self._hub, wants_room):
            self._poller.register(self._links[self._watched[0]].socket, zmq.POLLIN)
            self._poller.register(self._links[self._hub].socket, zmq.POLLIN | zmq.POLLOUT if wants_room else zmq.POLLIN)
            self._watched = (self._hub, wants_room)
        left_s = max(0.0, min(most_s, self._again_at - time.monotonic())) if is_waiting else most_s
        ready = dict(self._poller.poll(math.ceil(1e3 * left_s)))
        if self._pipe.reader in ready:
            with suppress(BlockingIOError):
                os.read(self._pipe.reader, 4096)
        for index, link in enumerate(self._links):
            if ready.get(link.socket, 0) & _POLLIN:
                self._answering = index
                return True
        return False

    def receive(self) -> bytes:
        """Return an answer, which must be there."""
        return receive(self._links[self._answering].socket, zmq.NOBLOCK)[0].bytes

    def has_answer(self) -> bool:
        """Return True if the hub that has answered has another answer."""
        return bool(int(self._links[self._answering].socket.get(zmq.EVENTS)) & _POLLIN)

    def is_answered(self) -> None:
        """Note an answer of a hub that leads: it is asked from now on, and again after the shortest delay."""
        self._hub = self._answering
        self._refusals = ["" for _ in self.hubs]
        self._again_s = _AGAIN_S
        self._again_at = time.monotonic() + _AGAIN_S

    def is_passive(self) -> None:
        """Note that a hub does not lead: if it was asked last, the other one is asked soon."""
        if self._answering == self._hub:
            self._again_at = min(self._again_at, time.monotonic() + _PASSIVE_S)

    def must_repeat(self) -> bool:
        """Return True if unanswered requests must be sent again, to the other hub if there is one."""
        if time.monotonic() < self._again_at:
            return False
        self._refusals[self._hub] = why = self._links[self._hub].refusal()
        if why:
            self._connect_again(self._hub)  # libzmq does not try again
        self._hub = (self._hub + 1) % len(self.hubs)  # the other hub may be active by now
        if self._hub == 0:
            self._again_s = min(2 * self._again_s, _MOST_AGAIN_S)
        self._again_at = time.monotonic() + self._again_s
        return True

    def _connect_again(self, index: int) -> None:
        self._poller.unregister(self._links[index].socket)
        self._links[index].close()
        self._links[index] = _Link(self._context, self._feed, index, self.hubs[index])
        self._poller.register(self._links[index].socket, zmq.POLLIN)
        self._watched = (index, False)
