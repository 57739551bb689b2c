"""libzmq from compiled loops, one message a frame: PUB/SUB at the speed of C. Configured as in plain_pyzmq.py."""

from __future__ import annotations

import time

import numpy
import zmq

from bench.rivals.compiled import receive_frames, send_frames
from bench.rivals.plain_pyzmq import publisher_socket, subscriber_socket, wait_for_subscription
from bench.rivals.runs import Runs
from bench.workload.load import POOL, frames
from bench.workload.messages import TOPICS


def publish(address: str) -> None:
    context = zmq.Context()
    socket = publisher_socket(context, address)
    outgoing = numpy.frombuffer(b"".join(frames(POOL)), numpy.uint8).reshape(len(frames(POOL)), -1)
    scratch = numpy.zeros(24, numpy.int64)
    send_frames(socket.underlying, scratch, outgoing, 0)  # compiles, or loads the compiled code
    runs = Runs()
    for load in runs:
        wait_for_subscription(socket)
        began = time.time_ns()
        if not send_frames(socket.underlying, scratch, outgoing, load.messages):
            raise RuntimeError("libzmq rejected a frame")
        runs.sent(began)
    context.destroy(linger=0)


def receive(address: str) -> None:
    context = zmq.Context()
    scratch = numpy.zeros(24, numpy.int64)
    state = numpy.zeros((TOPICS, 3), numpy.int64)
    receive_frames(0, scratch, state, 0)
    runs = Runs()
    for load in runs:
        state[:] = 0
        socket = subscriber_socket(context, address)
        runs.receiving()
        if not receive_frames(socket.underlying, scratch, state, load.messages):
            raise RuntimeError("libzmq delivered a frame that was not sent")
        runs.received(time.time_ns(), state)
        socket.close(linger=0)
    context.destroy(linger=0)
