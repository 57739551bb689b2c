"""zmq.asyncio on uvloop, both sides, one message a frame, as many users write it today; set as in plain_pyzmq.py.

Its `send` does not come back from a full XPUB that must not drop: a run has to fit into the queues.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import uvloop
import zmq.asyncio

from bench.rivals.plain_pyzmq import publisher_socket, subscriber_socket
from bench.rivals.records import Tally, many, messages_of_pool

if TYPE_CHECKING:
    from bench.rivals.orders import Orders


def publish(orders: Orders) -> None:
    uvloop.run(_publish(orders))


def receive(orders: Orders) -> None:
    uvloop.run(_receive(orders))


async def _publish(orders: Orders) -> None:
    context = zmq.asyncio.Context()
    socket = publisher_socket(context, orders)
    joined = [b"%b %b" % each for each in messages_of_pool()]
    orders.ready()
    while (messages := await asyncio.to_thread(orders.next)) is not None:
        while (await socket.recv())[:1] != b"\1":
            pass
        started = time.perf_counter()
        for frame in many(joined, messages):
            await socket.send(frame)
        orders.sent(started)
    context.destroy(linger=0)


async def _receive(orders: Orders) -> None:
    context = zmq.asyncio.Context()
    tally = Tally()
    orders.ready()
    while (messages := await asyncio.to_thread(orders.next)) is not None:
        count = tally.begin(messages).count
        socket = subscriber_socket(context, orders)
        orders.receiving()
        for _ in range(messages):
            topic, _, data = (await socket.recv()).partition(b" ")
            count(topic, data)
        orders.received(tally.ended, tally.state(), messages)
        socket.close(linger=0)
    context.destroy(linger=0)
