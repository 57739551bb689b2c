"""zmq.asyncio on uvloop on both sides, one message a frame, as many users write it; configured as in plain_pyzmq.py.

Its `send` does not return from a full XPUB that must not drop, so a run has to fit into the queues.
"""

from __future__ import annotations

import asyncio
import time

import uvloop
import zmq.asyncio

from bench.rivals.plain_pyzmq import publisher_socket, subscriber_socket
from bench.rivals.runs import Runs
from bench.workload.load import POOL, frames, many
from bench.workload.tally import Tally


def publish(address: str, form: str) -> None:
    uvloop.run(_publish(address))


def receive(address: str, form: str) -> None:
    uvloop.run(_receive(address))


async def _publish(address: str) -> None:
    context = zmq.asyncio.Context()
    socket = publisher_socket(context, address)
    joined = frames(POOL)
    runs = Runs()
    while (load := await asyncio.to_thread(runs.next)) is not None:
        while (await socket.recv())[:1] != b"\1":
            pass
        began = time.time_ns()
        for frame in many(joined, load.messages):
            await socket.send(frame)
        runs.sent(began)
    context.destroy(linger=0)


async def _receive(address: str) -> None:
    context = zmq.asyncio.Context()
    tally = Tally()
    runs = Runs()
    while (load := await asyncio.to_thread(runs.next)) is not None:
        count = tally.begin(load.messages).count
        socket = subscriber_socket(context, address)
        runs.receiving()
        for _ in range(load.messages):
            topic, _, data = (await socket.recv()).partition(b" ")
            count(topic, data)
        runs.received(tally.ended, tally.state())
        socket.close(linger=0)
    context.destroy(linger=0)
