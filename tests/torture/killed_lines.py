"""Kill -9 one of two lines repeatedly: no message is missing or repeated."""

from __future__ import annotations

import time
from random import Random

import msgspec

from blackbox import Feed, Publisher, SlowPolicy, Subscriber
from blackbox.feed.slice import Slice
from blackbox.testing import wait_until
from tests.torture.numbered import Numbers, publish_numbered
from tests.torture.nursery import Nursery
from tests.torture.outcome import Outcome

FORWARD = """
def work(near, far):
    import zmq
    context = zmq.Context()
    subscribers, publisher = context.socket(zmq.XPUB), context.socket(zmq.XSUB)
    for socket in (subscribers, publisher):
        socket.set_hwm(0)
    subscribers.setsockopt(zmq.XPUB_VERBOSER, 1)
    publisher.connect(far)
    subscribers.bind(near)
    zmq.proxy(subscribers, publisher)
"""
"""Code of the process that forwards a line."""
COUNT = 500
WINDOW = 20_000
"""Maximum messages in flight: the forwarding processes have unbounded queues."""
HOUR_NS = 3_600 * 10**9


def attack(random: Random, seconds: float) -> Outcome:
    """Kill a line after a number of messages and restart it; then the same or the other one."""
    source = msgspec.structs.replace(Feed.local("killed-lines", slices=1, lines=2), heartbeat_ns=500_000_000)
    near = Feed.local("killed-lines", slices=1, lines=2).slices[0].endpoints
    feed = msgspec.structs.replace(source, slices=(Slice(endpoints=near),))
    got = Numbers()
    subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=3_600), line_wait=5)
    subscriber.on_batch(b"")(got.batch)
    published = killed = 0

    def publish(count: int) -> None:
        nonlocal published
        for _ in range(0, count, COUNT):
            got.wait(0, published - WINDOW)
            publish_numbered(publisher, 0, published, COUNT)
            published += COUNT

    def is_subscribed() -> bool:
        """Return True if the publisher has all subscriptions of the line that was started again."""
        peers = publisher.statistics().peers
        mine = [each.subscriptions for each in peers if each.line == "AB"[line] and each.since_ns > begun_ns]
        return bool(mine) and max(mine) >= max(each.subscriptions for each in peers)

    def both_carry() -> bool:
        publish(COUNT)
        return subscriber.statistics().received.duplicates > duplicates

    with (
        Nursery(feed, FORWARD, notes=1) as first,
        Nursery(feed, FORWARD, notes=1) as second,
        Publisher(source, when_full="wait") as publisher,
    ):
        lines = first, second
        for line, nursery in enumerate(lines):
            nursery.begin((near[line], source.slices[0].endpoints[line]))
        subscriber.start(timeout=60)
        deadline = time.monotonic() + seconds
        while killed == 0 or time.monotonic() < deadline:
            line = random.randrange(2)
            publish(random.randrange(COUNT, 20 * COUNT))
            lines[line].kill()
            killed += 1
            publish(random.randrange(COUNT, 100 * COUNT))
            begun_ns = time.time_ns()
            lines[line].begin((near[line], source.slices[0].endpoints[line]))
            # Before that, waiting messages of the killed line count as duplicates, too.
            wait_until(is_subscribed, 60, f"line {'AB'[line]} is subscribed")
            duplicates = subscriber.statistics().received.duplicates
            wait_until(both_carry, 30, f"line {'AB'[line]} carries again")
        got.wait(0, published)
    subscriber.run(until_end=True)
    gaps = subscriber.statistics().received.gaps
    if got.received[0] != published or got.missing or gaps:
        got.defects.append(f"{got.received[0]} of {published} messages were received, {gaps} were counted as lost")
    return Outcome(killed, "killed lines", got.defects)
