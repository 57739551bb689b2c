"""Step the clocks of both sides of a live feed: no subscriber is reported slow or silent, and none loses messages."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import msgspec

from blackbox import Feed
from tests.clock_steps import STEP_CLOCK, words_before
from tests.support import Script
from tests.torture.outcome import Outcome

PUBLISH = f"""
        {STEP_CLOCK.strip()}
        number = 0
        with Publisher(feed, when_full="wait") as publisher:
            publisher.wait_for_subscribers(timeout=120)
            say("started")
            while (step := input()) != "end":
                step_clock(float(step))
                for _ in range(100):
                    publisher.publish(b"T", b"%d" % number)
                    number += 1
                publisher.flush()
                say(number)
"""
SUBSCRIBE = f"""
        {STEP_CLOCK.strip()}
        got = Collector()
        subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=3_600))
        subscriber.on(b"")(got.message)
        subscriber.start(120)
        say("started")
        while (step := input()) != "end":
            step_clock(float(step))
            got.wait(int(input()), 30)
            say(len(got))
        subscriber.run(until_end=True, silence_timeout=30)
        received = subscriber.statistics().received
        say([int(payload) for payload in got.payloads] == list(range(len(got))), received.gaps, received.stale)
"""


def attack(random: Random, seconds: float) -> Outcome:
    """Step the clock of a publisher or its subscriber by up to half an hour; send a hundred messages; repeat."""
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        return Outcome(0, "steps (no C compiler)", [])
    feed = msgspec.structs.replace(Feed.local("clock-steps", slices=1), heartbeat_ns=50_000_000)
    found: list[str] = []
    steps, off = 0, [0.0, 0.0]
    with TemporaryDirectory() as directory:
        before = words_before(Path(directory))
        with Script(SUBSCRIBE, feed, before) as subscriber, Script(PUBLISH, feed, before) as publisher:
            publisher.expect("started")
            subscriber.expect("started")
            deadline = time.monotonic() + seconds
            while steps == 0 or time.monotonic() < deadline:
                for side, script in enumerate((subscriber, publisher)):
                    now = random.choice([off[side], random.uniform(-900, 900)])
                    script.tell(str(now - off[side]))
                    off[side] = now
                number = publisher.read()
                subscriber.tell(number)
                if (came := subscriber.read()) != number:
                    found.append(f"{came} of {number} messages were received with the clocks off by {off} s")
                steps += 1
            subscriber.tell("end")
            publisher.tell("end")
            if (said := subscriber.read()) != "True 0 0":
                found.append(f"in order, lost, stale: {said}")
    return Outcome(steps, "steps of a clock", found)
