"""Redis Streams: an entry per message with topic and bytes; a real redis-server, redis-py with hiredis.

Settings: XADD in pipelines without a transaction; the server writes an append-only file.
"""

from __future__ import annotations

import time

import redis

from bench.processes.child import answer, orders
from bench.workload.messages import PAYLOAD_BYTES

STREAM = "day"


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
