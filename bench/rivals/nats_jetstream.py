"""NATS JetStream in files: one stream of all topics; a real nats-server, nats-py on uvloop.

Set: publish_async, 10,000 unacknowledged at a time. The server syncs its files every 2 minutes, as it comes, and our
recorder every second. Replay: an ordered push consumer of the whole stream, without acknowledgements, its pending
limits off.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import nats
import uvloop

from bench.contest import expect
from bench.rivals.records import Tally, messages_of_pool

if TYPE_CHECKING:
    from bench.rivals.orders import Orders

STREAM = "day"
_UNACKNOWLEDGED = 10_000


def record(orders: Orders) -> None:
    uvloop.run(_record(orders))


def replay(orders: Orders) -> None:
    uvloop.run(_replay(orders))


async def _record(orders: Orders) -> None:
    client = await nats.connect(orders.address)
    stream = client.jetstream(publish_async_max_pending=_UNACKNOWLEDGED)
    await stream.add_stream(name=STREAM, subjects=["day.>"], storage="file")
    pool = [(f"day.{topic.decode()}", data) for topic, data in messages_of_pool()]
    orders.ready()
    while (messages := await asyncio.to_thread(orders.next)) is not None:
        await stream.purge_stream(STREAM)
        started = time.perf_counter()
        publish = stream.publish_async
        for subject, data in pool[:messages]:
            await publish(subject, data)
        await stream.publish_async_completed()
        ended = time.perf_counter()
        stored = (await stream.stream_info(STREAM)).state.messages
        orders.done(started, ended, partial(expect, "messages", stored, messages))
    await client.close()


async def _replay(orders: Orders) -> None:
    client = await nats.connect(orders.address)
    stream = client.jetstream()
    done = asyncio.Event()
    tally = Tally(done.set)
    skip = len("day.")

    async def take(message: Any) -> None:
        tally.count(message.subject[skip:], message.data)

    orders.ready()
    while (messages := await asyncio.to_thread(orders.next)) is not None:
        done.clear()
        tally.begin(messages)
        started = time.perf_counter()
        subscription = await stream.subscribe(
            "day.>", stream=STREAM, ordered_consumer=True, cb=take, pending_msgs_limit=0, pending_bytes_limit=0
        )
        await done.wait()
        orders.tallied(started, tally.ended, tally.state(), messages)
        await subscription.unsubscribe()
    await client.close()
