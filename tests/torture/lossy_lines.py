"""Lose blocks while the archive stops or is killed: each message is delivered once, in order, or reported as lost."""

from __future__ import annotations

import signal
import time
from random import Random
from tempfile import TemporaryDirectory

import msgspec
import numpy

from blackbox import Batch, Feed, Gap, Publisher, Subscriber
from blackbox.feed.endpoint import free_endpoints
from blackbox.testing import wait_until
from tests.lossy_proxy import LossyProxy
from tests.torture.nursery import WARM_RECORDER, Nursery
from tests.torture.outcome import Outcome

RECORD = """
def work(shape, directory):
    feed = msgspec.json.decode(shape, type=Feed)
    with Recorder(feed, directory, serve=True, max_lag=1e9) as recorder:
        notes[0] = 1
        wait_until(lambda: False, 3600)
"""
MESSAGES = 2_000
SHAPES = tuple((key_bytes, lines) for key_bytes in (0, 1, 2) for lines in (1, 2))
FEWEST_SHAPES = 2
"""Minimum number of shapes, whatever the time limit."""
RUNS = 10
"""Runs of one shape before the next shape."""
TOPICS = (b"A.x", b"B.x")


class Heard:
    """Messages and gaps received by a subscriber of all keys or of one key, in order."""

    def __init__(self, subscriber: Subscriber, prefix: bytes) -> None:
        self.defects: list[str] = []
        self.delivered = self.lost = 0
        self._prefix = prefix
        subscriber.on_batch(prefix)(self.batch)
        subscriber.on_gap(prefix)(self.gap)

    def batch(self, batch: Batch) -> None:
        """Add messages by their sequence numbers in the slice, or by the numbers of their topic in the payloads."""
        numbers = batch.payloads().view(numpy.int64)[:, 0] if self._prefix else batch.sequence
        self._add("message", numbers.tolist())
        self.delivered += len(batch)

    def gap(self, gap: Gap) -> None:
        """Add lost messages."""
        first = self.delivered + self.lost if self._prefix else gap.sequence
        self._add("gap", list(range(first, first + gap.count)))
        self.lost += gap.count

    def _add(self, what: str, numbers: list[int]) -> None:
        first = self.delivered + self.lost
        if numbers != list(range(first, first + len(numbers))):
            self.defects.append(f"{what} {numbers[0]} to {numbers[-1]} arrived, expected {first} next")


def attack(random: Random, seconds: float) -> Outcome:
    """Publish one epoch after another over a line that loses none, some or most of its blocks."""
    outcome, until = Outcome(0, "runs over lossy lines"), time.monotonic() + seconds
    with Nursery(Feed.local("lossy-lines", slices=1, key_bytes=2), WARM_RECORDER + RECORD, notes=1) as nursery:
        while outcome.tried == 0 or time.monotonic() < until:
            for number, (key_bytes, lines) in enumerate(random.sample(SHAPES, len(SHAPES))):
                if number >= FEWEST_SHAPES and time.monotonic() >= until:
                    break
                _run_shape(random, key_bytes, lines, nursery, outcome, until)
    return outcome


def _run_shape(random: Random, key_bytes: int, lines: int, nursery: Nursery, outcome: Outcome, until: float) -> None:
    feed = msgspec.structs.replace(
        Feed.local(f"lossy-lines-{key_bytes}-{lines}", slices=1, key_bytes=key_bytes, lines=lines),
        archives=free_endpoints("tcp", "archive", 1, 1)[0],
        heartbeat_ns=200_000_000,
    )
    before = outcome.tried
    with TemporaryDirectory() as directory:
        while outcome.tried == before or (outcome.tried < before + RUNS and time.monotonic() < until):
            _run(random, feed, directory, nursery, outcome)
            outcome.tried += 1
        nursery.kill()
        nursery.notes[0] = 0


def _begin(nursery: Nursery, feed: Feed, directory: str) -> None:
    nursery.notes[0] = 0
    nursery.begin((msgspec.json.encode(feed).decode(), directory))
    wait_until(lambda: nursery.notes[0], 60, "an archive answers")


def _run(random: Random, feed: Feed, directory: str, nursery: Nursery, outcome: Outcome) -> None:
    share, harm = random.choice((0.0, 0.3, 0.8)), random.choice(("no harm", "stopped", "killed"))
    lags, prefix = random.choice((0.0, 0.5)), random.choice((b"", b"A") if feed.key_bytes else (b"",))
    harmed_at, published, is_stopped = random.randrange(MESSAGES), 0, False
    sent = numpy.zeros(len(TOPICS), numpy.int64)
    with Publisher(feed, when_full="wait") as publisher:
        if not nursery.notes[0]:
            _begin(nursery, feed, directory)
        publisher.wait_for_subscribers(timeout=60)
        with LossyProxy(feed, share, random.randrange(1 << 30), lags) as proxy:
            subscriber = Subscriber(proxy.feed, on_gap="repair", repair_wait=20)
            heard = Heard(subscriber, prefix)
            subscriber.start(timeout=60)
            while published < MESSAGES:
                count = min(random.randrange(1, 60), MESSAGES - published)
                index = numpy.array([random.randrange(2) for _ in range(count)])
                numbers = numpy.zeros(count, numpy.int64)
                for topic in range(len(TOPICS)):
                    which = index == topic
                    numbers[which] = sent[topic] + numpy.arange(which.sum())
                    sent[topic] += which.sum()
                publisher.publish_many(TOPICS, index, numbers.view(numpy.uint8).reshape(-1, 8))
                publisher.flush()
                if is_stopped:
                    nursery.signal(signal.SIGCONT)
                is_stopped = harm == "stopped" and published <= harmed_at < published + count
                if is_stopped:
                    nursery.signal(signal.SIGSTOP)
                if harm == "killed" and published <= harmed_at < published + count:
                    nursery.kill()
                    _begin(nursery, feed, directory)
                published += count
            if is_stopped:
                nursery.signal(signal.SIGCONT)
            publisher.close()
            subscriber.run(until_end=True)
    shape = f"{len(feed.slices[0].lines)} lines, {share:.0%} lost, {lags:.0%} lag"
    how = f"run {outcome.tried} ({shape}, key_bytes {feed.key_bytes}, archive: {harm}, wanted: {prefix!r})"
    wanted = sent[0] if prefix else MESSAGES
    outcome.found += [f"{how}: {defect}" for defect in heard.defects]
    if heard.delivered + heard.lost != wanted:
        outcome.found.append(f"{how}: {heard.delivered} were received and {heard.lost} reported as lost of {wanted}")
    if heard.lost and harm != "killed":
        outcome.found.append(f"{how}: {heard.lost} were reported as lost, but the archive had them")
