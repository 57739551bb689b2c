"""Processes of thousands of plain SUB sockets, of one that stays, and of publishers: ours, and a bare XPUB socket.

"join"   the crowd (True) connects and answers when the last socket is confirmed
"block"  the publisher sends a block to all, and the crowd (False) answers when the last socket has it
"beats"  the publisher sends a message each millisecond to the socket that stays, until its next order
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from typing import Any, Final

import msgspec
import zmq

from bench.processes.child import answer, has_order, orders
from blackbox import Feed, Publisher
from blackbox.block.form.format import CONFIRM_KEY, NONCE_BYTES

ALL: Final = b"ALL.TOPC"
"""Key that every socket subscribes to in addition to its own."""
PATIENCE_MS: Final = 60_000
BEAT: Final = b"BEAT.ONE"
"""Key of the socket that stays."""
_QUIET_MS: Final = 200
_BEAT_S: Final = 0.001
_LEAST_S: Final = 3.0
_CALM_S: Final = 1.5
"""A silence is over after this time without a wait longer than 0.1 s."""


def gather(address: str, sockets: int, prefixes_each: int) -> None:
    """Connect `sockets` sockets, each with `prefixes_each` distinct prefixes."""
    with ExitStack() as stack:
        context = stack.enter_context(zmq.Context())
        context.max_sockets = sockets + 10
        subs: list[tuple[zmq.Socket[bytes], bytes]] = []
        for joins in orders():
            if joins:
                began = time.time_ns()
                for number in range(sockets):
                    sub = stack.enter_context(context.socket(zmq.SUB))
                    sub.linger, sub.rcvtimeo, sub.reconnect_ivl = 0, PATIENCE_MS, 100
                    sub.connect(address)
                    for place in range(prefixes_each):
                        sub.subscribe(b"%08d" % (number * prefixes_each + place))
                    sub.subscribe(ALL)
                    subs.append((sub, ask(sub)))
                for sub, nonce in subs:
                    wait_for(sub, nonce)
                answer(began=began, ended=time.time_ns())
            else:
                for sub, _ in subs:
                    wait_for(sub, ALL)
                answer(ended=time.time_ns())


def ask(sub: zmq.Socket[bytes]) -> bytes:
    """Request confirmation of all subscriptions so far; return the key of the reply."""
    nonce = CONFIRM_KEY + os.urandom(NONCE_BYTES)
    sub.subscribe(nonce)
    return nonce


def wait_for(sub: zmq.Socket[bytes], key: bytes) -> None:
    """Discard blocks until one with that key arrives."""
    while not sub.recv_multipart()[0].startswith(key):
        pass


def stay(address: str) -> None:
    """Answer "began" at the first beat, and "silence" with the longest wait between beats once they are regular."""
    with zmq.Context() as context, context.socket(zmq.SUB) as sub:
        sub.linger, sub.rcvtimeo = 0, PATIENCE_MS
        sub.connect(address)
        sub.subscribe(BEAT)
        for order in orders():
            wait_for(sub, BEAT)
            began = last = irregular = time.monotonic()
            longest = 0.0
            while order == "silence" and (last < began + _LEAST_S or last < irregular + _CALM_S):
                wait_for(sub, BEAT)
                now = time.monotonic()
                longest = max(longest, now - last)
                if now - last > 0.1:
                    irregular = now
                last = now
            answer(seconds=longest)


def publish(feed: Any, sockets: int) -> None:
    """Publish to a crowd."""
    with Publisher(msgspec.convert(feed, Feed)) as publisher:
        for order in orders():
            sent = time.time_ns()
            if order == "block":
                publisher.publish(ALL, bytes(100))
            answer(sent=sent)
            while order == "beats" and not has_order():
                publisher.publish(BEAT, bytes(100))
                time.sleep(_BEAT_S)


def publish_bare(feed: Any, sockets: int) -> None:
    """Publish to a crowd from a bare XPUB socket, which returns each nonce and sends one frame."""
    with zmq.Context() as context, context.socket(zmq.XPUB) as xpub:
        xpub.linger, xpub.rcvtimeo, xpub.backlog = 0, PATIENCE_MS, 4_096
        xpub.setsockopt(zmq.XPUB_VERBOSE, 1)
        xpub.bind(msgspec.convert(feed, Feed).slices[0].lines[0])
        for order in orders():
            sent = time.time_ns()
            if order == "join":
                answered = set[bytes]()
                while len(answered) < sockets or xpub.poll(_QUIET_MS):  # reconnecting sockets request again
                    asked = xpub.recv()
                    if asked.startswith(b"\1" + CONFIRM_KEY):
                        xpub.send(asked[1:])
                        answered.add(asked)
            elif order == "block":
                xpub.send(ALL + bytes(100))
            answer(sent=sent)
            while order == "beats" and not has_order():
                xpub.send(BEAT)
                time.sleep(_BEAT_S)
