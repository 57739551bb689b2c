"""Process of thousands of plain SUB sockets, and those of their publishers: ours, and a bare XPUB socket.

order True   the crowd connects and answers when the last socket is confirmed
order False  the publisher sends a block to all, and the crowd answers when the last socket has it
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from typing import Any, Final

import msgspec
import zmq

from bench.processes.child import answer, orders
from blackbox import Feed, Publisher
from blackbox.block.form.format import CONFIRM_KEY, NONCE_BYTES

ALL: Final = b"ALL.TOPC"
"""Key that every socket subscribes to in addition to its own."""
PATIENCE_MS: Final = 60_000
_QUIET_MS: Final = 200


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


def publish(feed: Any, sockets: int) -> None:
    """Publish to a crowd."""
    with Publisher(msgspec.convert(feed, Feed)) as publisher:
        for joins in orders():
            sent = time.time_ns()
            if not joins:
                publisher.publish(ALL, bytes(100))
            answer(sent=sent)


def publish_bare(feed: Any, sockets: int) -> None:
    """Publish to a crowd from a bare XPUB socket, which returns each nonce and sends one frame."""
    with zmq.Context() as context, context.socket(zmq.XPUB) as xpub:
        xpub.linger, xpub.rcvtimeo, xpub.backlog = 0, PATIENCE_MS, 4_096
        xpub.setsockopt(zmq.XPUB_VERBOSE, 1)
        xpub.bind(msgspec.convert(feed, Feed).slices[0].lines[0])
        for joins in orders():
            sent = time.time_ns()
            if joins:
                answered = set[bytes]()
                while len(answered) < sockets or xpub.poll(_QUIET_MS):  # reconnecting sockets request again
                    asked = xpub.recv()
                    if asked.startswith(b"\1" + CONFIRM_KEY):
                        xpub.send(asked[1:])
                        answered.add(asked)
            else:
                xpub.send(ALL + bytes(100))
            answer(sent=sent)
