"""Process of a misbehaving peer; orders start and stop its thread."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import Any, Final

import msgspec
import zmq

from bench.processes.child import answer, orders
from blackbox import Feed

PREFIXES: Final = 100_000
_SLOW_S: Final = 0.05
_GARBAGE_BYTES: Final = 4_096
_PAUSE_S: Final = 0.01


def misbehave(feed: Any) -> None:
    """Misbehave as each order's `how` says until the next order; "" stops."""
    ((endpoint, *_),) = (each.lines for each in msgspec.convert(feed, Feed).slices)
    ending, running = threading.Event(), threading.Thread()
    for order in orders():
        if running.is_alive():
            ending.set()
            running.join()
        if order["how"]:
            ending, has_begun = threading.Event(), threading.Event()
            running = threading.Thread(target=_HOW[order["how"]], args=(endpoint, has_begun, ending))
            running.start()
            has_begun.wait()
        answer()


def _subscribe(endpoint: str, has_begun: threading.Event, ending: threading.Event, pause_s: float | None) -> None:
    """Subscribe to everything with a queue of one message; receive one after each pause, or none."""
    with zmq.Context() as context, context.socket(zmq.SUB) as sub:
        sub.rcvhwm, sub.linger = 1, 0
        sub.connect(endpoint)
        sub.subscribe(b"")
        sub.poll()
        has_begun.set()
        while not ending.wait(pause_s):
            if sub.poll(0):
                sub.recv_multipart()


def _does_not_read(endpoint: str, has_begun: threading.Event, ending: threading.Event) -> None:
    _subscribe(endpoint, has_begun, ending, None)


def _reads_slowly(endpoint: str, has_begun: threading.Event, ending: threading.Event) -> None:
    _subscribe(endpoint, has_begun, ending, _SLOW_S)


def _asks_for_much(endpoint: str, has_begun: threading.Event, ending: threading.Event) -> None:
    with zmq.Context() as context, context.socket(zmq.SUB) as sub:
        sub.linger = 0
        sub.connect(endpoint)
        has_begun.set()
        for number in range(PREFIXES):
            sub.subscribe(b"wanted %d" % number)
        ending.wait()


def _sends_garbage(endpoint: str, has_begun: threading.Event, ending: threading.Event) -> None:
    host, port = endpoint.removeprefix("tcp://").split(":")
    has_begun.set()
    while not ending.wait(_PAUSE_S):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(os.urandom(_GARBAGE_BYTES))


_HOW: Final[dict[str, Callable[[str, threading.Event, threading.Event], None]]] = {
    "does not read": _does_not_read,
    "reads slowly": _reads_slowly,
    "asks for 100,000 prefixes": _asks_for_much,
    "sends garbage, 100 connections a second": _sends_garbage,
}
HOW: Final = tuple(_HOW)
