"""The link of a hub with its peer: a socket that asks, and one that answers."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import Final

import zmq

from blackbox.documents import DecodeError
from blackbox.feed.feed import Feed
from blackbox.publish.send.ring import MAX_NOTE_BYTES
from blackbox.services.hub.pair.protocol import FOLLOWS, LEADS, Follow, Lead, Pair, Standing
from blackbox.services.hub.protocol import ENCODER
from blackbox.transport.context import allow_ipv6
from blackbox.transport.keep_alive import keep_alive
from blackbox.transport.security.curve import key_of, keys_of_line, use_keys

log = logging.getLogger("blackbox")

_MOST_BLOCK_BYTES: Final = 64 << 20
"""Maximum size of the blocks of an answer."""
_QUEUE: Final = 8


class Link:
    """Carries questions and answers of two hubs. A lost question is repeated."""

    def __init__(self, answers: zmq.Socket[bytes], feed: Feed, pair: Pair) -> None:
        """`answers`: a ROUTER socket that is bound to the link's endpoint."""
        self._answers, self._pair, self._name = answers, pair, feed.name
        self._slices, self._has_warned = len(feed.slices), False
        self._keys = keys_of_line(feed, 1 - pair.line, pair.peer)
        self._connected_at = self._heard_at = 0.0
        self._asked_by = b""
        """Identity of the peer that has asked last."""
        self._asks: zmq.Socket[bytes] | None = None
        self._connect()

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """Sockets to poll; `ask` may replace one."""
        assert self._asks is not None
        return [self._answers, self._asks]

    def close(self) -> None:
        """Close the socket that asks."""
        if self._asks is not None:
            self._asks.close()

    def ask(self, follow: Follow) -> None:
        """Send a question."""
        now, silence_s = time.monotonic(), self._pair.silence_ns / 1e9
        if now - max(self._heard_at, self._connected_at) > silence_s:
            self._connect()  # libzmq may have given up
        assert self._asks is not None
        with suppress(zmq.Again):
            self._asks.send(ENCODER.encode(follow), zmq.NOBLOCK)

    def answered(self) -> Lead | None:
        """Return the last answer, if one has come."""
        found: Lead | None = None
        assert self._asks is not None
        with suppress(zmq.Again):
            while True:
                text = self._asks.recv(zmq.NOBLOCK)
                with suppress(DecodeError):
                    lead = LEADS.decode(text)
                    if self._is_of_peer(lead.standing):
                        found, self._heard_at = lead, time.monotonic()
        return found

    def asked(self) -> Follow | None:
        """Return the last question of the peer, if one has come."""
        found: Follow | None = None
        with suppress(zmq.Again):
            while True:
                peer, *rest = self._answers.recv_multipart(zmq.NOBLOCK, copy=False)
                with suppress(DecodeError):
                    follow = FOLLOWS.decode(rest[0].bytes)
                    if self._is_of_peer(follow.standing, key_of(rest[0])):
                        self._asked_by, found = peer.bytes, follow
        return found

    def _is_of_peer(self, standing: Standing, key: str = "") -> bool:
        """Return True if the other hub of the pair has sent this; else log it, once. `key`: the sender's key."""
        is_it = standing.feed == self._name and standing.role != self._pair.role
        if self._keys is not None and key and key.encode() != self._keys.server:
            is_it = False  # a client may connect, too, but must not read or end a lead here
        if not is_it and not self._has_warned:
            self._has_warned = True
            log.warning(
                "hub of feed %r, the %s: the link got a message from the %s of feed %r%s, expected the other hub",
                self._name,
                self._pair.role,
                standing.role,
                standing.feed,
                f" with key {key}" if key else "",
            )
        return is_it

    def answer(self, lead: Lead) -> None:
        """Answer the last question."""
        with suppress(zmq.ZMQError):  # the peer is away or does not read: it asks again
            self._answers.send_multipart([self._asked_by, ENCODER.encode(lead)], zmq.NOBLOCK)

    def _connect(self) -> None:
        self.close()
        self._connected_at = time.monotonic()
        self._asks = asks = self._answers.context.socket(zmq.DEALER)
        asks.linger, asks.sndhwm, asks.rcvhwm = 0, _QUEUE, _QUEUE
        asks.setsockopt(zmq.IMMEDIATE, 1)
        asks.setsockopt(zmq.MAXMSGSIZE, self._slices * MAX_NOTE_BYTES + _MOST_BLOCK_BYTES)
        keep_alive(asks)
        allow_ipv6(asks, self._pair.peer)
        use_keys(asks, self._keys)
        asks.connect(self._pair.peer)
