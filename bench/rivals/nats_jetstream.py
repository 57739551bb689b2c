"""NATS JetStream with file storage: one stream for all topics, a real nats-server, nats-py on uvloop.

Settings: publish_async with at most 10,000 unacknowledged. The server syncs its files every 2 minutes, its default; our
recorder syncs every second.
"""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from typing import Any

import nats
import uvloop

from bench.processes.child import answer, orders
from bench.rivals.runs import Runs, expect_stored
from bench.workload.load import POOL, topics_and_data
from bench.workload.messages import PAYLOAD_BYTES

STREAM = "day"
_UNACKNOWLEDGED = 10_000


def record(address: str) -> None:
    uvloop.run(_record(address))


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
