"""redis-py with hiredis and a real redis-server, publish/subscribe: a channel per topic, one pattern for all.

Settings: PUBLISH in pipelines of 1,000 without a transaction; reads of 1 MB; no limit on the server's subscriber
buffers, because Redis cannot wait for a subscriber. Nothing is lost because the run fits into its memory.
"""

from __future__ import annotations

import time
from itertools import islice

import redis

from bench.rivals.records import outgoing, tally_of
from bench.rivals.runs import Runs

_PIPELINE = 1_000
_READ_BYTES = 1 << 20


def publish(address: str, form: str) -> None:
    client = redis.Redis.from_url(address)
    client.ping()
    runs = Runs()
    for load in runs:
        at_once = _PIPELINE if form == "messages" else 8
        frames = outgoing(form, load)
        began = time.time_ns()
        while part := list(islice(frames, at_once)):
            pipeline = client.pipeline(transaction=False)
            publish = pipeline.publish
            for topic, data in part:
                publish(topic, data)
            pipeline.execute()
        runs.sent(began)
    client.close()


def receive(address: str, form: str) -> None:
    client = redis.Redis.from_url(address, socket_read_size=_READ_BYTES)
    tally = tally_of(form)
    subscription = client.pubsub()
    subscription.psubscribe("*")
    subscription.parse_response()  # the subscription is confirmed
    runs = Runs()
    for load in runs:
        count = tally.begin(load.messages).count
        runs.receiving()
        for message in subscription.listen():
            count(message["channel"], message["data"])
            if tally.ended:
                break
        runs.received(tally.ended, tally.state())
    client.close()
