"""Kill -9 a recorder repeatedly: messages once read stay, none is repeated, and no file is damaged."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import msgspec
import numpy

from blackbox import Feed, Publisher, Recorder, Recording
from blackbox.testing import wait_until
from tests.torture.numbered import numbers_of, publishing
from tests.torture.nursery import Nursery
from tests.torture.outcome import Outcome

RECORD = """
def work(directory, compression):
    recorder = Recorder(feed, directory, compression=compression, segment_bytes=1 << 20).start(timeout=60)
    while True:
        notes[0] = recorder.statistics().messages
        time.sleep(0.001)
import time
"""


def attack(random: Random, seconds: float) -> Outcome:
    """Record with one recorder after another; all but the last are killed after a number of messages."""
    feed = msgspec.structs.replace(Feed.local("killed-recorders", slices=1), block_bytes=8_192)
    outcome, seen = Outcome(0, "killed recorders"), 0
    with TemporaryDirectory() as directory, Publisher(feed, when_full="wait") as publisher:
        with Nursery(feed, RECORD, notes=1) as nursery, publishing(publisher, 500):
            deadline = time.monotonic() + seconds
            while outcome.tried == 0 or time.monotonic() < deadline:
                nursery.notes[:] = 0
                nursery.begin((directory, random.choice(("none", "lz4"))))
                much = random.randrange(1, 100_000)
                wait_until(lambda: nursery.notes[0] >= much, 60, "a recorder records")
                nursery.kill()
                outcome.tried += 1
                now = _check(outcome, Path(directory, feed.name), "after a kill")
                if now < seen:
                    outcome.found.append(f"{now} messages are stored after kill {outcome.tried}, {seen} before")
                seen = now
            recorder = Recorder(feed, directory).start(timeout=60)
            wait_until(lambda: recorder.statistics().messages > 10_000, 60, "the last one records")
        publisher.close()
        recorder.run(until_end=True, timeout=60)
        if _check(outcome, Path(directory, feed.name), "at the end") < seen + recorder.statistics().messages:
            outcome.found.append("messages recorded before the last recorder started are missing")
    return outcome


def _check(outcome: Outcome, feed: Path, when: str) -> int:
    """Read all days, add defects to the outcome and return the number of messages."""
    count, last = 0, -1
    for day in sorted(path.parent for path in feed.glob("*/manifest.json")):
        recording = Recording.open(day)
        for batch in recording.batches():
            numbers = numbers_of(batch)[:, 1]
            if numbers[0] <= last or (numpy.diff(numbers) != 1).any() or (numbers != batch.sequence).any():
                outcome.found.append(f"{when}: number {numbers[0]} follows {last}")
            last, count = int(numbers[-1]), count + len(numbers)
        torn = "torn tail: no whole record"
        wrong = [str(damage) for damage in recording.verify() if damage.what != torn or when == "at the end"]
        outcome.found += [f"{when}: {each}" for each in wrong]
    return count
