"""The squawk: what a slow subscriber tells its operator before it dies, drops or conflates."""

from __future__ import annotations

import logging
from collections.abc import Callable

import zmq

from blackbox.errors import EndpointError

log = logging.getLogger("blackbox")

_QUEUE_FRAMES = 100
_LINGER_MS = 500


class Console:
    """Tells squawks to the log, a function and an operator's endpoint. Used by one thread.

    Telling never waits: an operator who is not there must not keep a sick subscriber alive.
    """

    def __init__(self, endpoint: str | None, function: Callable[[str], object] | None) -> None:
        self._endpoint = endpoint
        self._function = function
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None

    def open(self) -> None:
        """Connect, so that the first squawk does not wait for a connection."""
        if self._endpoint is not None:
            self._context = zmq.Context()
            self._socket = self._context.socket(zmq.PUSH)
            self._socket.sndhwm = _QUEUE_FRAMES
            self._socket.linger = _LINGER_MS
            try:
                self._socket.connect(self._endpoint)
            except zmq.ZMQError as error:
                self.close()
                text = f"cannot connect to operator console {self._endpoint}: {error.strerror}"
                raise EndpointError(error.errno, text) from error

    def squawk(self, text: str) -> None:
        """Tell everyone who listens."""
        log.critical(text)
        if self._socket is not None:
            try:
                self._socket.send(text.encode(), zmq.DONTWAIT)
            except zmq.Again:
                log.error("operator console %s did not take the squawk", self._endpoint)
        if self._function is not None:
            try:
                self._function(text)
            except Exception:  # a broken hook must not stop the policy
                log.exception("on_squawk raised")

    def close(self) -> None:
        """Close the endpoint, after half a second for what is on its way."""
        if self._socket is not None and self._context is not None:
            self._socket.close()
            self._context.term()
            self._socket = None
