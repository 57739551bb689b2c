"""Redis Streams: one stream of a day, an entry a message with its topic and its bytes; a real redis-server, redis-py.

Set: XADD in pipelines of 1,000 without a transaction, hiredis, reads of 1 MB; the server writes an append-only file and
syncs it every second, as our recorder does. Replay: XRANGE of 5,000 entries at a time, as long as there are any.
"""

from __future__ import annotations

import time
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import redis

from bench.contest import expect
from bench.rivals.records import Tally, many, messages_of_pool

if TYPE_CHECKING:
    from bench.rivals.orders import Orders

STREAM = "day"
_PIPELINE = 1_000
_PAGE = 5_000
_READ_BYTES = 1 << 20


def record(orders: Orders) -> None:
    client = redis.Redis.from_url(orders.address)
    pool = [{b"t": topic, b"d": data} for topic, data in messages_of_pool()]
    orders.ready()
    for messages in orders:
        client.delete(STREAM)
        fields = many(pool, messages)
        started = time.perf_counter()
        while part := list(islice(fields, _PIPELINE)):
            pipeline = client.pipeline(transaction=False)
            add = pipeline.xadd
            for each in part:
                add(STREAM, each)
            pipeline.execute()
        ended = time.perf_counter()
        stored: Any = client.xlen(STREAM)
        orders.done(started, ended, partial(expect, "entries", stored, messages))


def replay(orders: Orders) -> None:
    client = redis.Redis.from_url(orders.address, socket_read_size=_READ_BYTES)
    tally = Tally()
    orders.ready()
    for messages in orders:
        count = tally.begin(messages).count
        after = "-"
        started = time.perf_counter()
        while entries := client.xrange(STREAM, min=after, count=_PAGE):
            for _, fields in entries:
                count(fields[b"t"], fields[b"d"])
            after = "(" + entries[-1][0].decode()
        orders.tallied(started, time.perf_counter(), tally.state(), messages)
