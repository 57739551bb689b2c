"""Redis Streams: a stream per day, an entry per message with topic and bytes; a real redis-server, redis-py.

Settings: XADD in pipelines of 1,000 without a transaction, hiredis, reads of 1 MB; the server writes an append-only
file and syncs it every second, like our recorder. Replay: XRANGE of 5,000 entries at a time to the end.
"""

from __future__ import annotations

import time
from functools import partial
from itertools import islice
from typing import Any

import redis

from bench.processes.acknowledged import PAYLOAD_BYTES
from bench.processes.child import answer, orders
from bench.rivals.runs import Runs, expect_stored
from bench.workload.load import POOL, many, topics_and_data
from bench.workload.tally import Tally

STREAM = "day"
_PIPELINE = 1_000
_PAGE = 5_000
_READ_BYTES = 1 << 20
_ACKNOWLEDGED = 1_000


def record(address: str) -> None:
    client = redis.Redis.from_url(address)
    pool = [{b"t": topic, b"d": data} for topic, data in topics_and_data(POOL)]
    runs = Runs()
    for load in runs:
        client.delete(STREAM)
        fields = many(pool, load.messages)
        began = time.time_ns()
        while part := list(islice(fields, _PIPELINE)):
            pipeline = client.pipeline(transaction=False)
            add = pipeline.xadd
            for each in part:
                add(STREAM, each)
            pipeline.execute()
        ended = time.time_ns()
        stored: Any = client.xlen(STREAM)
        runs.verified(began, ended, partial(expect_stored, stored, load.messages))


def acknowledge(address: str) -> None:
    """Add `at_once` messages in a pipeline `calls` times, waiting for the replies."""
    client = redis.Redis.from_url(address)
    fields = {b"t": b"AAPL.trade", b"d": bytes(PAYLOAD_BYTES)}
    for order in orders():
        client.delete(STREAM)
        times = [time.perf_counter_ns()]
        for _ in range(order["calls"]):
            if order["at_once"] == 1:
                client.xadd(STREAM, fields)
            else:
                pipeline = client.pipeline(transaction=False)
                for _ in range(order["at_once"]):
                    pipeline.xadd(STREAM, fields)
                pipeline.execute()
            times.append(time.perf_counter_ns())
        answer(times=times, stored=client.xlen(STREAM))


def consume(address: str) -> None:
    """Read the stream as a consumer of a group; acknowledge each page."""
    client = redis.Redis.from_url(address, socket_read_size=_READ_BYTES)
    for order in orders():
        if not client.exists(STREAM):
            pipeline = client.pipeline(transaction=False)
            for _ in range(order["messages"]):
                pipeline.xadd(STREAM, {b"t": b"AAPL.trade", b"d": bytes(PAYLOAD_BYTES)})
            pipeline.execute()
        client.xgroup_create(STREAM, "strategy", id="0")
        messages, reached, began = 0, 0, time.perf_counter()
        while messages < order["messages"]:
            [(_, entries)] = client.xreadgroup("strategy", "one", {STREAM: ">"}, count=_ACKNOWLEDGED)
            messages += len(entries)
            reached += client.xack(STREAM, "strategy", *(name for name, _ in entries))
        seconds = time.perf_counter() - began
        answer(seconds=seconds, messages=messages, reached=reached)
        client.xgroup_destroy(STREAM, "strategy")


def replay(address: str) -> None:
    client = redis.Redis.from_url(address, socket_read_size=_READ_BYTES)
    tally = Tally()
    runs = Runs()
    for load in runs:
        count = tally.begin(load.messages).count
        after = "-"
        began = time.time_ns()
        while entries := client.xrange(STREAM, min=after, count=_PAGE):
            for _, fields in entries:
                count(fields[b"t"], fields[b"d"])
            after = "(" + entries[-1][0].decode()
        runs.done(began, time.time_ns(), tally.state())
