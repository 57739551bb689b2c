"""Kill -9 publishers midway: missing messages are counted as gaps, except those after the last of an epoch."""

from __future__ import annotations

import time
from random import Random
from typing import Literal

import msgspec

from blackbox import Feed, Publisher, SlowPolicy, Subscriber
from blackbox.testing import wait_until
from tests.torture.numbered import Numbers, publish_numbered
from tests.torture.nursery import Nursery
from tests.torture.outcome import Outcome

PUBLISH = """
def work(run, count, hwm_blocks):
    from tests.torture.numbered import publish_numbered
    with Publisher(feed, hwm_blocks=int(hwm_blocks)) as publisher:
        publisher.wait_for_subscribers(timeout=60)
        for number in range(0, 1 << 40, int(count)):
            notes[0] = number + int(count)
            publish_numbered(publisher, int(run), number, int(count))
"""


def attack(random: Random, seconds: float) -> Outcome:
    """Run one publisher after another, each killed after a number of messages."""
    return attack_over("tcp", random, seconds)


def attack_over(transport: Literal["tcp", "shm"], random: Random, seconds: float) -> Outcome:
    feed = Feed.local("killed-publishers", slices=1, transport=transport)
    feed = msgspec.structs.replace(feed, heartbeat_ns=50_000_000)
    got = Numbers()
    subscriber = Subscriber(feed, workers=1, slow=SlowPolicy(max_lag=3_600))
    subscriber.on_batch(b"")(got.batch)
    offered = runs = 0
    with Nursery(feed, PUBLISH, notes=1) as nursery:
        deadline = time.monotonic() + seconds
        while runs == 0 or time.monotonic() < deadline:
            nursery.notes[0] = 0
            count = random.choice((1, 7, 1_000))
            nursery.begin((runs, count, random.choice((1, 4, 1_000))))
            if runs == 0:
                subscriber.start(timeout=60)
            got.wait(runs, 1)
            much = count * random.randrange(1, 500)
            wait_until(lambda: nursery.notes[0] >= much, 60, "a publisher publishes")
            nursery.kill()
            offered += int(nursery.notes[0])
            runs += 1
    with Publisher(feed) as publisher:
        publisher.wait_for_subscribers(timeout=60)
        publish_numbered(publisher, runs, 0, 1)
    subscriber.run(until_end=True)
    if (came_by := subscriber.statistics().received.transport) != transport:
        got.defects.append(f"blocks arrived over {came_by}, expected {transport}")
    received, gaps = sum(got.received.values()), subscriber.statistics().received.gaps
    found = got.defects
    if not got.missing <= gaps <= offered + 1 - received:
        found.append(
            f"{gaps} messages were counted as lost; {got.missing} are missing between others, "
            f"{offered + 1 - received} in total"
        )
    if (epochs := subscriber.statistics().received.epochs) != runs + 1:
        found.append(f"{epochs} epochs were counted for {runs + 1} publishers")
    return Outcome(runs, "killed publishers", found)
