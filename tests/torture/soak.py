"""Publish and deliver until the time is over: all messages are received in order and memory does not grow."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from hashlib import blake2b
from random import Random
from typing import Any

import msgspec
import numpy

from blackbox import Batch, Feed, Publisher, SlowPolicy, Subscriber
from tests.callbacks import count_rows
from tests.process_state import resident_bytes
from tests.torture.outcome import Outcome

MIB = 1 << 20
GROWTH_BYTES = 64 * MIB
"""Permitted growth after the first tenth of the time, for queues that fill later and the allocator's reserves."""


class Digests:
    """Counts and digests the messages of each topic in order; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._digests: dict[bytes, Any] = defaultdict(blake2b)
        self.count = 0

    def add(self, topics: list[bytes], index: Any, ts_event: Any, rows: Any) -> None:
        """Add messages in columns."""
        order = numpy.argsort(index, kind="stable")
        ends = numpy.searchsorted(index[order], numpy.arange(len(topics)), side="right").tolist()
        whole = numpy.concatenate([ts_event[order, None].view(numpy.uint8), rows[order]], axis=1)
        with self._lock:
            self.count += len(index)
            first = 0
            for topic, end in zip(topics, ends, strict=True):
                if end > first:
                    self._digests[topic].update(whole[first:end].tobytes())
                first = end

    def of_topics(self) -> dict[bytes, str]:
        """Return the digest of each topic's messages."""
        return {topic: digest.hexdigest() for topic, digest in self._digests.items()}


def attack(random: Random, seconds: float) -> Outcome:
    """Publish columns of random messages through one feed."""
    feed = Feed.local(
        "soak", slices=random.choice((1, 2)), lines=random.choice((1, 2)), key_bytes=random.choice((0, 2))
    )
    feed = msgspec.structs.replace(feed, block_bytes=random.choice((4_096, 262_144)))
    choice = numpy.random.default_rng(random.randrange(1 << 32))
    topics = tuple(b"%02d.T%d" % (number % 50, number) for number in range(random.randrange(1, 1_000)))
    size = random.choice((1, 24, 100))
    sent, got = Digests(), Digests()
    subscriber = Subscriber(feed, workers=random.choice((1, 2)), slow=SlowPolicy(max_lag=3_600))

    @subscriber.on_batch(b"")
    def receive(batch: Batch) -> None:
        got.add(batch.topics, batch.topic_index, batch.ts_event, batch.payloads())

    counts = subscriber.on_compiled(b"", state=numpy.zeros(1, numpy.int64))(count_rows)
    began = time.monotonic()
    early_bytes, found = 0, []
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start(timeout=60)
        while sent.count == 0 or time.monotonic() < began + seconds:
            rows = random.choice((1, 100, 20_000))
            index = choice.integers(len(topics), size=rows, dtype=numpy.int32)
            times = choice.integers(1 << 62, size=rows)
            payloads = choice.integers(256, size=(rows, size), dtype=numpy.uint8)
            publisher.publish_many(topics, index, payloads, times)
            sent.add(list(topics), index, times, payloads)
            if not early_bytes and time.monotonic() > began + seconds / 10:
                early_bytes = resident_bytes()
        late_bytes = resident_bytes()
    subscriber.run(until_end=True)
    if not sent.count == got.count == int(counts.total()[0]):
        found.append(f"{got.count} of {sent.count} messages arrived in Python, {counts.total()[0]} in compiled code")
    if wrong := [topic for topic, digest in sent.of_topics().items() if got.of_topics().get(topic) != digest]:
        found.append(f"the messages of {len(wrong)} of {len(topics)} topics differ from those sent: {wrong[:3]}")
    if early_bytes and late_bytes > early_bytes + GROWTH_BYTES:
        found.append(f"memory grew from {early_bytes // MIB} to {late_bytes // MIB} MiB")
    return Outcome(sent.count, "messages, counted and digested", found)
