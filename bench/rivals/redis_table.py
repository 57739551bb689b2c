"""A table in Redis: a hash with published changes.

Settings: HSET and PUBLISH in pipelines of 1,000, redis-py with hiredis; the watcher applies published changes to a
dict, after HGETALL.
"""

from __future__ import annotations

import time

import redis

from bench.processes.child import answer, orders
from bench.processes.table import PAYLOAD_BYTES, topics_of

_PIPELINE = 1_000
_END = b"end"


def put(address: str, topics: int) -> None:
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


def keep(address: str) -> None:
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
