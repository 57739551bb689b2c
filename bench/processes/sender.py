"""Process of our publisher, for any load on any of its feeds or a recorded day.

    columns, as fast as the slowest subscriber            ==> publish_many() ==blocks==> XPUB
    messages one by one, fast or each at its due time     --> publish()      ==blocks==> XPUB
    a recorded day                                        ==> Replay         ==blocks==> XPUB

Publishers are kept between runs, so that topics are known, as in the middle of a day. `ts_event` rises through a run;
at a rate it is the due time.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from bench.processes.child import answer, orders
from bench.processes.pair import Order
from bench.workload.load import LEAD_NS, Load, column_rows, due_ns, many, singles, when_due
from blackbox import Feed, Publisher, Recording, Replay


def publish(feeds: Any, **settings: Any) -> None:
    """Publish the ordered loads. `settings` are those of `Publisher`."""
    publishers = {feed.name: Publisher(feed, **settings).start() for feed in msgspec.convert(feeds, list[Feed])}
    for said in orders():
        load = msgspec.convert(said, Order).load
        assert load.feed is not None
        publisher = publishers[load.feed.name]
        if load.at_once == 1:
            singles(load)  # built before timing starts
        publisher.wait_for_subscribers(b"S", timeout=60, count=load.subscribers)
        before = time.process_time()
        began = _send(publisher, load)
        publisher.flush()
        # A pacer spins until a message is due, so its CPU time is meaningless.
        cpu_s = None if load.rate else time.process_time() - before
        answer(began=began, cpu_s=cpu_s)
    for publisher in publishers.values():
        publisher.close()


def replay(feed: Any, day: str) -> None:
    """Publish a recorded day on each order, as fast as the slowest subscriber receives it."""
    recording = Recording.open(day)
    with Publisher(msgspec.convert(feed, Feed), when_full="wait") as publisher:
        for _ in orders():
            publisher.wait_for_subscribers(timeout=60)
            before, began = time.process_time(), time.time_ns()
            Replay(recording).publish(publisher)
            publisher.flush()
            answer(began=began, cpu_s=time.process_time() - before)


def _send(publisher: Publisher, load: Load) -> int:
    """Send a load; return the time when the first message was sent or due, unix ns."""
    if load.at_once == 1:
        return _send_singly(publisher, load)
    pool = load.pool
    if not load.rate:
        began = time.time_ns()
        for start, rows in column_rows(load):
            times = pool.ts_event[: rows.stop - rows.start] + (start + 1)
            publisher.publish_many(pool.topics, pool.topic_index[rows], pool.payloads[rows], times)
        return began
    began = time.time_ns() + LEAD_NS
    dues = due_ns(load) + began
    steps = list(column_rows(load, load.at_once))
    for _, (start, rows) in when_due([int(dues[start]) for start, _ in steps], steps):
        times = dues[start : start + rows.stop - rows.start]
        publisher.publish_many(pool.topics, pool.topic_index[rows], pool.payloads[rows], times)
    return began


def _send_singly(publisher: Publisher, load: Load) -> int:
    call = publisher.publish
    if not load.rate:
        began = time.time_ns()
        for topic, payload, event in many(singles(load), load.messages):
            call(topic, payload, event)
        return began
    messages = list(many(singles(load), load.messages))
    began = time.time_ns() + LEAD_NS
    for due, (topic, payload, _) in when_due((due_ns(load) + began).tolist(), messages):
        call(topic, payload, due)
    return began
