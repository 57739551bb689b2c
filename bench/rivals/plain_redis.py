"""redis-py with hiredis and a real redis-server, publish/subscribe: a channel for each topic, one pattern for them all.

Set: PUBLISH in pipelines of 1,000 without a transaction; reads of 1 MB; the server's buffers for subscribers without a
bound, since Redis cannot wait for a subscriber: nothing is lost because the run fits into its memory.
"""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING

import redis

from bench.rivals.records import outgoing, tally_of

if TYPE_CHECKING:
    from bench.rivals.orders import Orders

_PIPELINE = 1_000
_READ_BYTES = 1 << 20


def publish(orders: Orders) -> None:
    client = redis.Redis.from_url(orders.address)
    client.ping()
    orders.ready()
    for messages in orders:
        at_once = _PIPELINE if orders.form == "messages" else 8
        frames = outgoing(orders.form, messages)
        started = time.perf_counter()
        while part := list(islice(frames, at_once)):
            pipeline = client.pipeline(transaction=False)
            publish = pipeline.publish
            for topic, data in part:
                publish(topic, data)
            pipeline.execute()
        orders.sent(started)
    client.close()


def receive(orders: Orders) -> None:
    client = redis.Redis.from_url(orders.address, socket_read_size=_READ_BYTES)
    tally = tally_of(orders.form)
    subscription = client.pubsub()
    subscription.psubscribe("*")
    subscription.parse_response()  # in force now
    orders.ready()
    for messages in orders:
        count = tally.begin(messages).count
        tally.ended = 0.0
        orders.receiving()
        for message in subscription.listen():
            count(message["channel"], message["data"])
            if tally.ended:
                break
        orders.received(tally.ended, tally.state(), messages)
    client.close()
