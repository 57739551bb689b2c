"""Kill -9 one of five relays in a chain, again and again: what is lost is told, and all is in force again soon."""

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
logging.getLogger("blackbox").addHandler(logging.NullHandler())  # that connections go is what this is about
def prepare():
    global above
    above = msgspec.json.decode(sys.argv[3], type=Feed)
    import blackbox.relay.relay
def work():
    with Relay(above, feed) as relay:
        notes[0] = 1
        relay.run()
"""
RELAYS = 5
COUNT = 100
AGAIN_S = 2.0
"""Time from a relay's restart until what is published arrives again."""
HOUR_NS = 3_600 * 10**9


def attack(random: Random, seconds: float) -> Outcome:
    """Kill a relay after a number of messages, publish some, and start it again; then the same or another one."""
    feeds = [
        msgspec.structs.replace(Feed.local("killed-relays", slices=1, key_bytes=1), heartbeat_ns=200_000_000)
        for _ in range(RELAYS + 1)
    ]
    got = Numbers()
    subscriber = Subscriber(feeds[-1], slow=SlowPolicy(max_lag_ns=HOUR_NS))
    subscriber.on_batch(b"T")(got.batch)
    published = killed = 0
    with ExitStack() as stack:
        nurseries = [
            stack.enter_context(Nursery(below, RELAY, 1, msgspec.json.encode(above).decode()))
            for above, below in zip(feeds, feeds[1:], strict=False)
        ]
        publisher = stack.enter_context(Publisher(feeds[0]))

        def publish(count: int) -> None:
            nonlocal published
            for _ in range(count):
                publish_numbered(publisher, 0, published, COUNT)
                published += COUNT

        def begin(hop: int) -> None:
            nurseries[hop].notes[0] = 0
            nurseries[hop].begin()
            wait_until(lambda: nurseries[hop].notes[0], 60, f"relay {hop + 1} is there")

        def arrives() -> bool:
            publish(1)
            return sum(got.received.values()) > before

        for hop in range(RELAYS):
            begin(hop)
        subscriber.start(timeout=60)
        deadline = time.monotonic() + seconds
        while killed == 0 or time.monotonic() < deadline:
            hop = random.randrange(RELAYS)
            publish(random.randrange(1, 100))
            nurseries[hop].kill()
            killed += 1
            publish(random.randrange(1, 100))
            begin(hop)
            before = sum(got.received.values())
            began = time.monotonic()
            wait_until(arrives, 30, f"what is published arrives behind relay {hop + 1}")
            if (took := time.monotonic() - began) > AGAIN_S:
                got.defects.append(f"{took:.2f} s after relay {hop + 1} was there again the first message arrived")
        publisher.close()
        subscriber.run(until_end=True)
    received, gaps = sum(got.received.values()), subscriber.statistics().received.gaps
    if received + gaps != published:
        got.defects.append(f"of {published} messages {received} came and {gaps} were told as lost")
    return Outcome(killed, "killed relays", got.defects)
