"""Tables of rivals: a Redis hash with published changes; a NATS KV bucket and a watcher.

Redis: HSET and PUBLISH in pipelines of 1,000, redis-py with hiredis; the watcher applies published changes to a dict,
after HGETALL. NATS: a key per topic in JetStream memory storage, published without waiting for each acknowledgement;
nats-py's `watchall` is applied to a dict.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import nats
import redis
import uvloop

from bench.processes.child import answer, orders
from bench.processes.table import PAYLOAD_BYTES, topics_of

_PIPELINE = 1_000
_END = b"end"


def redis_put(address: str, topics: int) -> None:
    client, names = redis.Redis.from_url(address), topics_of(topics)
    for order in orders():
        value = bytes([order["value"]]) * PAYLOAD_BYTES
        began = time.time_ns()
        for start in range(0, order["updates"], _PIPELINE):
            pipeline = client.pipeline(transaction=False)
            for number in range(start, min(start + _PIPELINE, order["updates"])):
                name = names[number % topics]
                pipeline.hset("table", name, value)
                pipeline.publish("table", name + value)
            pipeline.execute()
        client.publish("table", _END)
        answer(began=began, last=[])


def redis_keep(address: str) -> None:
    client = redis.Redis.from_url(address)
    channel = client.pubsub(ignore_subscribe_messages=True)
    began = time.perf_counter()
    channel.subscribe("table")
    table: dict[bytes, bytes] = dict(client.hgetall("table"))
    joined = time.perf_counter() - began
    for order in orders():
        if order == "joined":
            answer(seconds=joined, topics=len(table), bytes=0)
            continue
        while True:
            message = channel.get_message(timeout=60)
            if message is None:
                continue
            data = message["data"]
            if data == _END:
                break
            table[data[:-PAYLOAD_BYTES]] = data[-PAYLOAD_BYTES:]
        ended = time.time_ns()
        value = bytes([order["value"]]) * PAYLOAD_BYTES
        answer(ended=ended, right=sum(each == value for each in table.values()))


def nats_put(address: str, topics: int) -> None:
    uvloop.run(_nats_put(address, topics))


async def _nats_put(address: str, topics: int) -> None:
    client = await nats.connect(address)
    stream = client.jetstream(publish_async_max_pending=10_000)
    await stream.create_key_value(bucket="table", storage="memory")
    names, told = [f"$KV.table.{name.decode()}" for name in topics_of(topics)], orders()
    while (order := await asyncio.to_thread(next, told, None)) is not None:
        value = bytes([order["value"]]) * PAYLOAD_BYTES
        began = time.time_ns()
        for number in range(order["updates"]):
            await stream.publish_async(names[number % topics], value)
        await stream.publish_async_completed()
        answer(began=began, last=[])
    await client.close()


def nats_keep(address: str) -> None:
    uvloop.run(_nats_keep(address))


async def _nats_keep(address: str) -> None:
    client = await nats.connect(address)
    bucket = await client.jetstream().key_value("table")
    began, table = time.perf_counter(), dict[str, bytes | None]()
    watcher: Any = await bucket.watchall()
    while (entry := await watcher.updates(timeout=60)) is not None:
        table[entry.key] = entry.value
    joined, told = time.perf_counter() - began, orders()
    while (order := await asyncio.to_thread(next, told, None)) is not None:
        if order == "joined":
            answer(seconds=joined, topics=len(table), bytes=0)
            continue
        for _ in range(order["updates"]):
            entry = await watcher.updates(timeout=60)
            table[entry.key] = entry.value
        ended = time.time_ns()
        value = bytes([order["value"]]) * PAYLOAD_BYTES
        answer(ended=ended, right=sum(each == value for each in table.values()))
    await client.close()
