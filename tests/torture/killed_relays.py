"""Kill -9 one of five relays in a tree repeatedly: losses are reported and subscriptions are soon restored.

source ==> relay 1 ==> relay 2 ==> relay 4 ==> subscriber
                   ==> relay 3 ==> subscriber
                               ==> relay 5 ==> subscriber
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from random import Random

import msgspec

from blackbox import Feed, Publisher, SlowPolicy, Subscriber
from blackbox.testing import wait_until
from tests.torture.numbered import Numbers, publish_numbered
from tests.torture.nursery import Nursery
from tests.torture.outcome import Outcome

RELAY = """
import logging
logging.getLogger("blackbox").addHandler(logging.NullHandler())  # lost connections are expected
def prepare():
    global above
    above = msgspec.json.decode(sys.argv[3], type=Feed)
    import blackbox.services.relay.relay
def work():
    with Relay(above, feed) as relay:
        notes[0] = 1
        relay.run()
"""
ABOVE = (0, 1, 1, 2, 3)
"""Upstream relay of each relay; 0 is the source."""
HEARS = (3, 4, 5)
"""Relays with a subscriber."""
COUNT = 100
AGAIN_S = 2.0
"""Maximum time from a relay's restart until messages arrive everywhere again."""


def attack(random: Random, seconds: float) -> Outcome:
    """Kill a relay after a number of messages, publish some and restart it; then the same or another one."""
    feeds = [
        msgspec.structs.replace(Feed.local("killed-relays", slices=1, key_bytes=1), heartbeat_ns=200_000_000)
        for _ in range(len(ABOVE) + 1)
    ]
    got = {hears: Numbers() for hears in HEARS}
    subscribers = {hears: Subscriber(feeds[hears], slow=SlowPolicy(max_lag=3_600)) for hears in HEARS}
    for hears, subscriber in subscribers.items():
        subscriber.on_batch(b"T")(got[hears].batch)
    outcome, published = Outcome(0, "killed relays"), 0
    with ExitStack() as stack:
        nurseries = [
            stack.enter_context(Nursery(below, RELAY, 1, msgspec.json.encode(feeds[above]).decode()))
            for above, below in zip(ABOVE, feeds[1:], strict=True)
        ]
        publisher = stack.enter_context(Publisher(feeds[0]))

        def publish(count: int) -> None:
            nonlocal published
            for _ in range(count):
                publish_numbered(publisher, 0, published, COUNT)
                published += COUNT

        def begin(place: int) -> None:
            nurseries[place].notes[0] = 0
            nurseries[place].begin()
            wait_until(lambda: nurseries[place].notes[0], 60, f"relay {place + 1} runs")

        def arrives() -> bool:
            publish(1)
            return all(sum(got[hears].received.values()) > before[hears] for hears in HEARS)

        for place in range(len(ABOVE)):
            begin(place)
        for subscriber in subscribers.values():
            subscriber.start(timeout=60)
        deadline = time.monotonic() + seconds
        while outcome.tried == 0 or time.monotonic() < deadline:
            place = random.randrange(len(ABOVE))
            publish(random.randrange(1, 100))
            nurseries[place].kill()
            outcome.tried += 1
            publish(random.randrange(1, 100))
            begin(place)
            before = {hears: sum(got[hears].received.values()) for hears in HEARS}
            began = time.monotonic()
            wait_until(arrives, 30, f"messages arrive everywhere below relay {place + 1}")
            if (took := time.monotonic() - began) > AGAIN_S:
                outcome.found.append(f"messages arrived {took:.2f} s after the restart of relay {place + 1}")
        publisher.close()
        for subscriber in subscribers.values():
            subscriber.run(until_end=True)
    for hears, subscriber in subscribers.items():
        gaps = subscriber.statistics().received.gaps
        outcome.found += (f"below relay {hears}: {each}" for each in _defects(got[hears], gaps, published))
    return outcome


def _defects(got: Numbers, gaps: int, published: int) -> list[str]:
    received = sum(got.received.values())
    if received + gaps == published:
        return got.defects
    return [*got.defects, f"of {published} messages {received} were received and {gaps} reported as lost"]
