"""Round trip over ZeroMQ without storage: a DEALER requests, a ROUTER replies."""

from __future__ import annotations

import sys
import time

import zmq

from bench.processes.acknowledged import PAYLOAD_BYTES
from bench.processes.child import answer, orders

_ANSWER_BYTES = 40
_WAIT_MS = 10_000


def acknowledge(address: str) -> None:
    """Send `calls` requests with one payload each, and wait for each reply."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as asking:
        asking.linger = 0
        asking.connect(address)
        for order in orders():
            times, answered = [time.perf_counter_ns()], 0
            for _ in range(order["calls"]):
                asking.send(bytes(PAYLOAD_BYTES))
                if not asking.poll(_WAIT_MS):
                    break
                asking.recv()
                answered += 1
                times.append(time.perf_counter_ns())
            answer(times=times, stored=answered)


def serve(address: str) -> None:
    """Reply to all requests until the end."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as answering:
        answering.linger = 0
        answering.bind(address)
        answer()
        poller = zmq.Poller()
        poller.register(answering, zmq.POLLIN)
        poller.register(sys.stdin.fileno(), zmq.POLLIN)
        while sys.stdin.fileno() not in dict(poller.poll()):
            who, _ = answering.recv_multipart()
            answering.send_multipart([who, bytes(_ANSWER_BYTES)])
