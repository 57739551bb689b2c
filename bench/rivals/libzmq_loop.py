"""libzmq itself from compiled loops, one message a frame: what C gets of PUB/SUB. Set as in plain_pyzmq.py."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy
import zmq

from bench.rivals.compiled import receive_frames, send_frames
from bench.rivals.plain_pyzmq import publisher_socket, subscriber_socket, wait_for_subscription
from bench.rivals.records import messages_of_pool
from bench.workload import TOPICS

if TYPE_CHECKING:
    from bench.rivals.orders import Orders


def publish(orders: Orders) -> None:
    context = zmq.Context()
    socket = publisher_socket(context, orders)
    frames = numpy.frombuffer(b"".join(b"%b %b" % each for each in messages_of_pool()), numpy.uint8)
    frames = frames.reshape(len(messages_of_pool()), -1)
    scratch = numpy.zeros(24, numpy.int64)
    send_frames(socket.underlying, scratch, frames, 0)  # compiles, or loads what was compiled
    orders.ready()
    for messages in orders:
        wait_for_subscription(socket)
        started = time.perf_counter()
        if not send_frames(socket.underlying, scratch, frames, messages):
            raise RuntimeError("libzmq refused a frame")
        orders.sent(started)
    context.destroy(linger=0)


def receive(orders: Orders) -> None:
    context = zmq.Context()
    scratch = numpy.zeros(24, numpy.int64)
    state = numpy.zeros((TOPICS, 3), numpy.int64)
    receive_frames(0, scratch, state, 0)
    orders.ready()
    for messages in orders:
        state[:] = 0
        socket = subscriber_socket(context, orders)
        orders.receiving()
        if not receive_frames(socket.underlying, scratch, state, messages):
            raise RuntimeError("libzmq gave another frame than was sent")
        orders.received(time.perf_counter(), state, messages)
        socket.close(linger=0)
    context.destroy(linger=0)
