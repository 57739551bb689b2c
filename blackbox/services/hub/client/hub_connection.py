"""The connection of a client with the active hub: one socket, polled together with a pipe that wakes it."""

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
"""Delay before unanswered requests are sent again: the first, doubled each time up to the second."""
_PASSIVE_S: Final = 0.1
"""Delay before the other hub is asked, after one has answered that it is passive."""
_NEEDS: Final = Needs(descriptors=9)
_POLLIN: Final = int(zmq.POLLIN)


class HubConnection:
    """Sends to one of a feed's hubs, and to the other one if that does not answer. One thread at a time uses it."""

    def __init__(self, feed: Feed, pipe: Pipe) -> None:
        """`pipe` ends a wait."""
        self.hubs = tuple(filter(None, (feed.hub, feed.hub_backup)))
        self.why = ""
        """Reason why the hub refuses the connection, if it is known."""
        self._feed, self._pipe = feed, pipe
        self._hub = 0
        """Index of the hub that it is connected to."""
        self._again_at, self._again_s = 0.0, _AGAIN_S
        self._wants_room = False

    def open(self, stack: ExitStack) -> None:
        """Connect, even if the hub is away. Raises EndpointError, ConfigError or LimitError."""
        context = stack.enter_context(new_context("hub client", _NEEDS))
        self._socket = socket = stack.enter_context(context.socket(zmq.DEALER))
        socket.linger, socket.sndhwm = 0, _QUEUE_REQUESTS
        socket.setsockopt(zmq.IMMEDIATE, 1)  # messages for a hub that is away wait only in the client
        for hub in self.hubs:
            allow_ipv6(socket, hub)
        keep_alive(socket)
        self._poller = zmq.Poller()
        for source in (self._pipe.reader, socket):
            self._poller.register(source, zmq.POLLIN)
        self._connections = Connections(socket)
        stack.callback(self._connections.close)
        self._connect()

    def _connect(self) -> None:
        endpoint = self.hubs[self._hub]
        self._keys = keys_of_hub(self._feed, self._hub, endpoint)
        use_keys(self._socket, self._keys)
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            raise EndpointError(error.errno, f"cannot connect to hub {endpoint}: {error.strerror}") from error

    def send(self, text: bytes) -> None:
        """Send a request. Raises zmq.Again if the connection has no room."""
        self._socket.send(text, zmq.NOBLOCK)
        self._again_at = time.monotonic() + self._again_s

    def wait(self, most_s: float, *, is_waiting: bool, wants_room: bool) -> bool:
        """Wait for an answer, at most `most_s` seconds; return True if there is one.

        `is_waiting`: requests are not answered; the wait then ends once they must be sent again. `wants_room`: the wait
        also ends if the connection has room.
        """
        if self._wants_room != wants_room:
            self._wants_room = wants_room
            self._poller.register(self._socket, zmq.POLLIN | zmq.POLLOUT if wants_room else zmq.POLLIN)
        left_s = max(0.0, min(most_s, self._again_at - time.monotonic())) if is_waiting else most_s
        ready = dict(self._poller.poll(math.ceil(1e3 * left_s)))
        if self._pipe.reader in ready:
            with suppress(BlockingIOError):
                os.read(self._pipe.reader, 4096)
        return bool(ready.get(self._socket, 0) & _POLLIN)

    def receive(self) -> bytes:
        """Return an answer, which must be there."""
        return receive(self._socket, zmq.NOBLOCK)[0].bytes

    def has_answer(self) -> bool:
        """Return True if an answer is there."""
        return bool(int(self._socket.get(zmq.EVENTS)) & _POLLIN)

    def is_answered(self) -> None:
        """Note an answer: the next request is sent again after the shortest delay."""
        self._again_s = _AGAIN_S
        self._again_at = time.monotonic() + _AGAIN_S

    def is_passive(self) -> None:
        """Note that the hub does not lead: the other one is asked soon."""
        self._again_at = min(self._again_at, time.monotonic() + _PASSIVE_S)

    def must_repeat(self) -> bool:
        """Return True if unanswered requests must be sent again. It then connects to the other hub, if there is one."""
        if time.monotonic() < self._again_at:
            return False
        if len(self.hubs) > 1:  # the other hub may be active by now
            self._socket.disconnect(self.hubs[self._hub])
            self._hub = 1 - self._hub
            self._connect()
        else:
            self._again_s = min(2 * self._again_s, _MOST_AGAIN_S)
        self._again_at = time.monotonic() + self._again_s
        self._connections.look()
        self.why = refusal_of(self._connections.failures.keys() - {Failure.LEFT}, self._keys)
        return True
