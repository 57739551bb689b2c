"""NATS JetStream with file storage: one stream for all topics, a real nats-server, nats-py on uvloop.

Settings: publish_async with at most 10,000 unacknowledged. The server syncs its files every 2 minutes, its default; our
recorder syncs every second. Replay: an ordered push consumer of the whole stream, without acknowledgements or pending
limits.
"""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from typing import Any

import nats
import uvloop
from nats.js.api import AckPolicy, ConsumerConfig

from bench.processes.acknowledged import PAYLOAD_BYTES
from bench.processes.child import answer, orders
from bench.rivals.runs import Runs, expect_stored
from bench.workload.load import POOL, topics_and_data
from bench.workload.tally import Tally

STREAM = "day"
_UNACKNOWLEDGED = 10_000
_BATCH = 1_000


def record(address: str) -> None:
    uvloop.run(_record(address))


def replay(address: str) -> None:
    uvloop.run(_replay(address))


async def _open_stream(address: str) -> tuple[Any, Any]:
    client = await nats.connect(address)
    stream = client.jetstream(publish_async_max_pending=_UNACKNOWLEDGED)
    await stream.add_stream(name=STREAM, subjects=["day.>"], storage="file")
    return client, stream


async def _record(address: str) -> None:
    client, stream = await _open_stream(address)
    pool = [(f"day.{topic.decode()}", data) for topic, data in topics_and_data(POOL)]
    runs = Runs()
    while (load := await asyncio.to_thread(runs.next)) is not None:
        await stream.purge_stream(STREAM)
        began = time.time_ns()
        publish = stream.publish_async
        for subject, data in pool[: load.messages]:
            await publish(subject, data)
        await stream.publish_async_completed()
        ended = time.time_ns()
        stored = (await stream.stream_info(STREAM)).state.messages
        runs.verified(began, ended, partial(expect_stored, stored, load.messages))
    await client.close()


def restarted() -> None:
    """Answer each server address once that server has stored one more message."""
    for order in orders():
        uvloop.run(_put_one(order["address"]))
        answer(at=time.time_ns())


async def _put_one(address: str) -> None:
    client = await nats.connect(address)
    await client.jetstream().publish("day.AAPL.trade", os.urandom(PAYLOAD_BYTES), timeout=60.0)
    await client.close()


def acknowledge(address: str) -> None:
    """Publish `at_once` messages `calls` times and wait for the acknowledgements each time."""
    uvloop.run(_acknowledge(address))


async def _acknowledge(address: str) -> None:
    client, stream = await _open_stream(address)
    data = os.urandom(PAYLOAD_BYTES)
    told = orders()
    while (order := await asyncio.to_thread(next, told, None)) is not None:
        await stream.purge_stream(STREAM)
        times = [time.perf_counter_ns()]
        for _ in range(order["calls"]):
            for _ in range(order["at_once"]):
                await stream.publish_async("day.AAPL.trade", data)
            await stream.publish_async_completed()
            times.append(time.perf_counter_ns())
        answer(times=times, stored=(await stream.stream_info(STREAM)).state.messages)
    await client.close()


def give_back(address: str) -> None:
    """Reject a message and wait for its redelivery, `times` times."""
    uvloop.run(_give_back(address))


async def _give_back(address: str) -> None:
    client, stream = await _open_stream(address)
    subscription = await stream.subscribe("day.>", stream=STREAM, manual_ack=True)
    data, told = os.urandom(PAYLOAD_BYTES), orders()
    while (order := await asyncio.to_thread(next, told, None)) is not None:
        took = []
        for _ in range(order["times"]):
            await stream.publish("day.AAPL.trade", data)
            message = await subscription.next_msg(10)
            began = time.monotonic_ns()
            await message.nak()
            message = await subscription.next_msg(10)
            took.append(time.monotonic_ns() - began)
            await message.ack_sync()
        answer(took=took)
    await client.close()


def consume(address: str) -> None:
    """Read the stream with a durable consumer; acknowledge each batch."""
    uvloop.run(_consume(address))


async def _consume(address: str) -> None:
    client, stream = await _open_stream(address)
    told, stored = orders(), 0
    while (order := await asyncio.to_thread(next, told, None)) is not None:
        while stored < order["messages"]:
            await stream.publish_async("day.AAPL.trade", bytes(PAYLOAD_BYTES))
            stored += 1
        await stream.publish_async_completed()
        settings = ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=-1)
        consumer = await stream.pull_subscribe("day.>", durable="strategy", stream=STREAM, config=settings)
        messages, began = 0, time.perf_counter()
        while messages < order["messages"]:
            batch = await consumer.fetch(_BATCH, timeout=10)
            messages += len(batch)
            await batch[-1].ack_sync()
        seconds = time.perf_counter() - began
        reached = (await consumer.consumer_info()).ack_floor.stream_seq
        answer(seconds=seconds, messages=messages, reached=reached)
        await stream.delete_consumer(STREAM, "strategy")
    await client.close()


async def _replay(address: str) -> None:
    client = await nats.connect(address)
    stream = client.jetstream()
    done = asyncio.Event()
    tally = Tally(done.set)
    skip = len("day.")

    async def take(message: Any) -> None:
        tally.count(message.subject[skip:], message.data)

    runs = Runs()
    while (load := await asyncio.to_thread(runs.next)) is not None:
        done.clear()
        tally.begin(load.messages)
        began = time.time_ns()
        subscription = await stream.subscribe(
            "day.>", stream=STREAM, ordered_consumer=True, cb=take, pending_msgs_limit=0, pending_bytes_limit=0
        )
        await done.wait()
        runs.done(began, tally.ended, tally.state())
        await subscription.unsubscribe()
    await client.close()
