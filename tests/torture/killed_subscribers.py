"""Kill -9 subscribers midway: until then they miss no message, and neither does a surviving one."""

from __future__ import annotations

import threading
import time
from random import Random

import msgspec

from blackbox import Feed, Publisher, SlowPolicy, Subscriber
from blackbox.testing import wait_until
from tests.torture.numbered import Numbers, publish_numbered
from tests.torture.nursery import Nursery
from tests.torture.outcome import Outcome

SUBSCRIBE = """
def work(queue_blocks, hwm_blocks):
    from tests.torture.numbered import Numbers, numbers_of
    got = Numbers()
    subscriber = Subscriber(
        feed, slow=SlowPolicy(max_lag=3_600), queue_blocks=int(queue_blocks), hwm_blocks=int(hwm_blocks)
    )

    @subscriber.on_batch(b"")
    def note(batch):
        began = not got.received
        got.batch(batch)
        if began:
            got.missing = 0
        notes[1] = got.missing + len(got.defects)
        notes[0] = got.received[0]

    subscriber.run(timeout=60)
"""
HOUR_NS = 3_600 * 10**9


def attack(random: Random, seconds: float) -> Outcome:
    """Run and kill one subscriber after another, each after a number of messages, next to a surviving one."""
    feed = msgspec.structs.replace(Feed.local("killed-subscribers", slices=1), block_bytes=8_192)
    got, ending, killed = Numbers(), threading.Event(), 0
    subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=3_600))
    subscriber.on_batch(b"")(got.batch)
    published = 0

    def publish() -> None:
        nonlocal published
        while not ending.is_set():
            publish_numbered(publisher, 0, published, 1_000)
            published += 1_000

    with Publisher(feed, when_full="wait") as publisher, Nursery(feed, SUBSCRIBE, notes=2) as nursery:
        subscriber.start(timeout=60)
        thread = threading.Thread(target=publish)
        thread.start()
        try:
            deadline = time.monotonic() + seconds
            while killed == 0 or time.monotonic() < deadline:
                nursery.notes[:] = 0
                nursery.begin((random.choice((1, 16)), random.choice((1, 128))))
                much = random.randrange(1, 200_000)
                wait_until(lambda: nursery.notes[0] >= much, 60, "a subscriber receives")
                nursery.kill()
                killed += 1
                if nursery.notes[1]:
                    got.defects.append(f"subscriber {killed} missed {nursery.notes[1]} messages before it was killed")
        finally:
            ending.set()
            thread.join(60)
    subscriber.run(until_end=True)
    if (received := got.received[0]) != published:
        got.defects.append(f"the survivor received {received} of {published} messages")
    return Outcome(killed, "killed subscribers", got.defects)
