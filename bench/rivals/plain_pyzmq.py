"""Plain pyzmq, PUB/SUB over TCP, one message or one block packed by hand a frame: topic, a space, bytes.

Set: XPUB_NODROP, so that the publisher would wait; one part a message, the cheapest there is; marks of 100,000 frames,
since libzmq batches what waits in its queue: both sides' together hold a run, and nobody waits. For blocks 8, as ours,
since more only leaves the cache: there the publisher waits.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import zmq

from bench.rivals.records import many, messages_of_pool, outgoing, tally_of

if TYPE_CHECKING:
    from bench.rivals.orders import Orders


def publish(orders: Orders) -> None:
    context = zmq.Context()
    socket = publisher_socket(context, orders)
    joined = [b"%b %b" % each for each in messages_of_pool()]
    orders.ready()
    for messages in orders:
        wait_for_subscription(socket)
        send = socket.send
        started = time.perf_counter()
        if orders.form == "blocks":
            for _, block in outgoing("blocks", messages):
                send(block)
        else:
            for frame in many(joined, messages):
                send(frame)
        orders.sent(started)
    context.destroy(linger=0)


def receive(orders: Orders) -> None:
    tally = tally_of(orders.form)
    context = zmq.Context()
    orders.ready()
    for messages in orders:
        count = tally.begin(messages).count
        socket = subscriber_socket(context, orders)
        orders.receiving()
        receive = socket.recv
        tally.ended = 0.0
        if orders.form == "blocks":
            while not tally.ended:
                frame = socket.recv(copy=False)
                count(None, frame.buffer)
        else:
            for _ in range(messages):
                topic, _, data = receive().partition(b" ")
                count(topic, data)
        orders.received(tally.ended, tally.state(), messages)
        socket.close(linger=0)
    context.destroy(linger=0)


def publisher_socket(context: Any, orders: Orders) -> Any:
    """A bound XPUB that waits for slow subscribers, and tells of each subscription."""
    socket = context.socket(zmq.XPUB)
    socket.setsockopt(zmq.XPUB_NODROP, 1)
    socket.setsockopt(zmq.XPUB_VERBOSE, 1)
    socket.sndhwm = _mark(orders)
    socket.bind(orders.address)
    return socket


def subscriber_socket(context: Any, orders: Orders) -> Any:
    """A connected SUB of everything."""
    socket = context.socket(zmq.SUB)
    socket.rcvhwm = _mark(orders)
    socket.connect(orders.address)
    socket.subscribe(b"")
    return socket


def wait_for_subscription(socket: zmq.Socket[bytes]) -> None:
    """Pass over what has ended, and wait for the next subscription."""
    while socket.recv()[:1] != b"\1":
        pass


def _mark(orders: Orders) -> int:
    return 8 if orders.form == "blocks" else 100_000
