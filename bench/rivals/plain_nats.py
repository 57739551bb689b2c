"""nats-py and a real nats-server, core NATS over TCP: a subject for each topic, one subscription `>`.

Set: uvloop; the client's buffer for publishing as it comes (2 MB, written when full); the subscriber's pending limits
off. Core NATS has no way to wait for a subscriber: nothing is lost because a run fits into what the server
holds.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import nats
import uvloop

from bench.rivals.records import outgoing, tally_of

if TYPE_CHECKING:
    from bench.rivals.orders import Orders


def publish(orders: Orders) -> None:
    uvloop.run(_publish(orders))


def receive(orders: Orders) -> None:
    uvloop.run(_receive(orders))


async def _publish(orders: Orders) -> None:
    client = await nats.connect(orders.address)
    orders.ready()
    while (messages := await asyncio.to_thread(orders.next)) is not None:
        frames: Any = outgoing(orders.form, messages)
        if orders.form == "messages":
            frames = [(topic.decode(), data) for topic, data in frames]
        else:
            frames = ((topic.decode(), data) for topic, data in frames)
        publish = client.publish
        started = time.perf_counter()
        for subject, data in frames:
            await publish(subject, data)
        await client.flush()
        orders.sent(started)
    await client.close()


async def _receive(orders: Orders) -> None:
    client = await nats.connect(orders.address)
    done = asyncio.Event()
    tally = tally_of(orders.form, done.set)
    tally.begin(0)

    async def take(message: Any) -> None:
        tally.count(message.subject, message.data)

    await client.subscribe(
        ">" if orders.form == "messages" else "block", cb=take, pending_msgs_limit=0, pending_bytes_limit=0
    )
    await client.flush()
    orders.ready()
    while (messages := await asyncio.to_thread(orders.next)) is not None:
        done.clear()
        tally.begin(messages)
        orders.receiving()
        await done.wait()
        orders.received(tally.ended, tally.state(), messages)
    await client.close()
