"""Damaged and hostile blocks: on the wire to a subscriber, and in memory right before a protected page."""

from __future__ import annotations

import time
from random import Random

from blackbox import Feed, SlowPolicy, Subscriber
from blackbox.testing import Collector, RawPublisher
from tests import wire
from tests.damage import cases
from tests.support import Script
from tests.torture.outcome import Outcome

AT_ONCE = 500
IN_MEMORY = 5_000


def attack(random: Random, seconds: float) -> Outcome:
    """Send damaged blocks between good ones; validate others in a process that crashes on an out-of-bounds read."""
    found: list[str] = []
    feed = Feed.local("hostile-blocks", slices=1)
    subscriber, got = Subscriber(feed, slow=SlowPolicy(max_lag=3_600)), Collector()
    subscriber.on(b"good")(got.message)
    refused = sent = checked = 0
    with RawPublisher(feed) as publisher:
        subscriber.start(timeout=60)
        deadline = time.monotonic() + seconds
        while sent == 0 or time.monotonic() < deadline:
            for frames in cases(random.getrandbits(32), AT_ONCE):
                if not wire.is_valid(*frames):
                    publisher.send_frames(frames)
                    refused += 1
                publisher.send(publisher.encode([(b"good", b"%d" % sent)]))
                sent += 1
            got.wait(sent, timeout=60)
            code = f"from tests.guarded_blocks import main; main({random.getrandbits(32)}, {IN_MEMORY})"
            with Script(code) as script:
                status, _, errors = script.finish(timeout=120)
            checked += IN_MEMORY
            if status != 0:
                found.append(f"a process that validates damaged blocks ended with status {status}: {errors[-500:]}")
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    received = subscriber.statistics().received
    if [int(payload) for payload in got.payloads] != list(range(sent)):
        found.append(f"{len(got)} messages were received, expected the {sent} good ones in order")
    if (received.malformed, received.gaps) != (refused, 0):
        found.append(f"{received.malformed} blocks were rejected and {received.gaps} lost, expected {refused} and 0")
    return Outcome(refused + checked, "damaged blocks", found)
