"""The link of a hub with its peer: a socket that asks, and one that answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import zmq

from blackbox.documents import DecodeError
from blackbox.feed.feed import Feed
from blackbox.hub.pair import FOLLOWS, LEADS, Follow, Lead, Pair, Standing
from blackbox.hub.protocol import ENCODER
from blackbox.transport.context import allow_ipv6
from blackbox.transport.curve import key_of, keys_of_line, use_keys
from blackbox.transport.keep_alive import keep_alive

log = logging.getLogger("blackbox")

_MOST_ANSWER_BYTES: Final = 64 << 20
_QUEUE: Final = 8
_BEATS: Final = 8
"""Questions in the time of silence after which the peer counts as dead."""


class Link:
    """Asks the peer how it stands, at least `_BEATS` times in `silence_ns`, and keeps what it asks until there is news.

    Used in the hub's thread. What is lost is asked again: nothing hangs on one message.
    """

    def __init__(self, answers: zmq.Socket[bytes], feed: Feed, pair: Pair) -> None:
        """`answers`: a ROUTER socket that is bound to the link's endpoint."""
        self._answers, self._pair, self._name = answers, pair, feed.name
        self._has_warned = False
        self._keys = keys_of_line(feed, 1 - pair.line, pair.peer)
        self.beat_s = pair.silence_ns / 1e9 / _BEATS
        self.ask_at = 0.0
        """When to ask again, by the monotonic clock."""
        self._connected_at = 0.0
        self._number = self._unanswered = 0
        self._asked: tuple[bytes, Follow] | None = None
        self.answer_at = 0.0
        """When to answer what is kept, whether there is news or not."""
        self._asks: zmq.Socket[bytes] | None = None
        self._connect()

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """Those that bring something; others after `ask`."""
        assert self._asks is not None
        return [self._answers, self._asks]

    def close(self) -> None:
        """Close the socket that asks."""
        if self._asks is not None:
            self._asks.close()

    def wait_s(self) -> float:
        """Return how long nothing is to be done, unless something comes."""
        until = min(self.ask_at, self.answer_at) if self._asked is not None else self.ask_at
        return max(0.0, until - time.monotonic())

    @property
    def is_silent(self) -> bool:
        """Whether the peer has answered nothing for `silence_ns`, in which it was asked again and again."""
        return self._unanswered > _BEATS

    def ask(self, make: Callable[[int], Follow]) -> None:
        """Ask what `make` makes of a number, if it is time for that."""
        now = time.monotonic()
        if now < self.ask_at:
            return
        if self.is_silent and now - self._connected_at >= _BEATS * self.beat_s:
            self._connect()  # libzmq may have given up
        self.ask_at = now + self.beat_s
        self._number += 1
        self._unanswered += 1
        assert self._asks is not None
        with suppress(zmq.Again):
            self._asks.send(ENCODER.encode(make(self._number)), zmq.NOBLOCK)

    def answered(self) -> Lead | None:
        """Return the answer to what was asked last, if it has come."""
        found: Lead | None = None
        assert self._asks is not None
        with suppress(zmq.Again):
            while True:
                text = self._asks.recv(zmq.NOBLOCK)
                with suppress(DecodeError):
                    lead = LEADS.decode(text)
                    if self._is_of_peer(lead.standing) and lead.number == self._number:
                        found, self._unanswered = lead, 0
        return found

    def asked(self) -> Follow | None:
        """Return what the peer asks, if it has asked since; it is kept until `answer`."""
        found: Follow | None = None
        with suppress(zmq.Again):
            while True:
                peer, *rest = self._answers.recv_multipart(zmq.NOBLOCK, copy=False)
                with suppress(DecodeError):
                    follow = FOLLOWS.decode(rest[0].bytes)
                    if self._is_of_peer(follow.standing, key_of(rest[0])):
                        found = follow
                        self._asked = peer.bytes, found
                        self.answer_at = time.monotonic() + self.beat_s / 2  # before it asks again
        return found

    def _is_of_peer(self, standing: Standing, key: str = "") -> bool:
        """Whether the other one of the two says something; warn of others, once. `key`: of who asks."""
        is_it = standing.feed == self._name and standing.role != self._pair.role
        if self._keys is not None and key and key.encode() != self._keys.server:
            is_it = False  # a client may connect, too: it is to read nothing here, and to end nobody's lead
        if not is_it and not self._has_warned:
            self._has_warned = True
            log.warning(
                "hub of feed %r, the %s: the %s of feed %r speaks on the link%s, expected the other one of two hubs",
                self._name,
                self._pair.role,
                standing.role,
                standing.feed,
                f" with key {key}" if key else "",
            )
        return is_it

    @property
    def waiting(self) -> Follow | None:
        """What the peer has asked, and is not answered."""
        return self._asked[1] if self._asked is not None else None

    def answer(self, lead: Lead) -> None:
        """Answer it."""
        assert self._asked is not None
        peer, self._asked = self._asked[0], None
        with suppress(zmq.ZMQError):  # it has gone, or takes nothing: it asks again
            self._answers.send_multipart([peer, ENCODER.encode(lead)], zmq.NOBLOCK)

    def _connect(self) -> None:
        self.close()
        self._connected_at = time.monotonic()
        self._asks = asks = self._answers.context.socket(zmq.DEALER)
        asks.linger, asks.sndhwm, asks.rcvhwm = 0, _QUEUE, _QUEUE
        asks.setsockopt(zmq.IMMEDIATE, 1)
        asks.setsockopt(zmq.MAXMSGSIZE, _MOST_ANSWER_BYTES)
        keep_alive(asks)
        allow_ipv6(asks, self._pair.peer)
        use_keys(asks, self._keys)
        asks.connect(self._pair.peer)
