"""Kill and stop processes that share memory at any moment: no torn message is delivered, no other process waits."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec

from blackbox import Feed, Publisher, SlowPolicy, Subscriber
from blackbox.native.memory.arrays import foreign_array
from blackbox.testing import wait_until
from blackbox.transport.shared_memory.layout import Slot
from blackbox.transport.shared_memory.writer import SharedWriter
from tests.torture.killed_publishers import attack_over
from tests.torture.numbered import Numbers, publish_numbered
from tests.torture.nursery import Nursery
from tests.torture.outcome import Outcome

READ = """
def work(workers, keep):
    from tests.torture.numbered import numbers_of
    subscriber = Subscriber(feed, workers=int(workers), slow=SlowPolicy(max_lag=3_600))
    kept = []

    def check(batch):
        rows = numbers_of(batch)
        good = (rows[:, 0] == 0).all() and (rows[:, 1] == rows[0, 1] + numpy.arange(len(rows))).all()
        notes[1] += not good or rows[0, 1] != batch.sequence[0]

    @subscriber.on_batch(b"")
    def note(batch):
        check(batch)
        kept.append(batch)
        if len(kept) > int(keep):
            check(kept.pop(0))
        notes[0] += len(batch)

    subscriber.start(timeout=60)
    notes[2] = subscriber.statistics().received.transport != "shm"
    while subscriber.state is not subscriber.state.ENDED:
        notes[3] = subscriber.statistics().received.malformed
        time.sleep(0.001)
"""
PUBLISHED = 64
"""Messages per call, so many that the publisher almost always writes to shared memory."""


def attack(random: Random, seconds: float) -> Outcome:
    """Attack readers of a publisher that drops, of one that waits, and then publishers."""
    outcomes = [_attack_readers(random, seconds / 3, wait=False)]
    before = _held()
    outcomes.append(_attack_readers(random, seconds / 3, wait=True))
    outcomes.append(attack_over("shm", random, seconds / 3))
    if (after := _held()) != before:
        outcomes[0].found.append(f"open files and mappings of shared memory were {after}, {before} at the start")
    return Outcome(
        sum(outcome.tried for outcome in outcomes),
        "killed and stopped processes",
        [found for outcome in outcomes for found in outcome.found],
    )


def _attack_readers(random: Random, seconds: float, wait: bool) -> Outcome:
    """Run one reader after another next to a surviving one; pause some, kill each."""
    feed = Feed.local("killed-readers", slices=1, transport="shm")
    feed = msgspec.structs.replace(feed, block_bytes=4_096, heartbeat_ns=50_000_000)
    got, ending, published, tried = Numbers(), threading.Event(), [0], 0
    subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=3_600))
    subscriber.on_batch(b"")(got.batch)
    publisher = Publisher(feed, when_full="wait" if wait else "drop", hwm_blocks=random.choice((4, 16, 256)))

    def publish() -> None:
        while not ending.is_set():
            publish_numbered(publisher, 0, published[0], PUBLISHED)
            published[0] += PUBLISHED

    with publisher, Nursery(feed, READ, 4) as nursery:
        shared = publisher._slices[0].sender.sockets.shared
        assert shared is not None
        subscriber.start(timeout=60)
        thread = threading.Thread(target=publish)
        thread.start()
        try:
            deadline = time.monotonic() + seconds
            while tried == 0 or time.monotonic() < deadline:
                tried += 1
                got.defects += [f"reader {tried} {found}" for found in _attack_one(random, nursery, published, wait)]
            before = published[0]
            wait_until(lambda: published[0] > before + 1_000, 60, "the publisher continues")
            wait_until(lambda: shared.state.readers == 1, 60, "only the survivor has a slot")
        finally:
            ending.set()
            thread.join(60)
        publisher.flush(60)
        wait_until(lambda: _pinned(shared) <= 1, 60, "all places except that of the last block are released")
    subscriber.run(until_end=True)
    received = subscriber.statistics().received
    if received.malformed:
        got.defects.append(f"the survivor received {received.malformed} malformed blocks")
    if wait and got.received[0] != published[0]:
        got.defects.append(f"the survivor received {got.received[0]} of {published[0]} messages")
    if got.received[0] + received.gaps != published[0]:
        got.defects.append(f"{got.received[0]} messages and {received.gaps} in gaps do not add up to {published[0]}")
    return Outcome(tried, "", got.defects)


def _attack_one(random: Random, nursery: Nursery, published: list[int], wait: bool) -> Iterator[str]:
    """Run a reader, maybe pause it, and kill it; yield its defects."""
    nursery.notes[:] = 0
    nursery.begin((random.choice((0, 1)), random.choice((0, 3, 40, 200))))
    much = random.randrange(1, 50_000)
    wait_until(lambda: nursery.notes[0] >= much, 60, "a reader receives")
    if random.random() < 0.5:
        nursery.signal(signal.SIGSTOP)
        before = published[0]
        if not wait:
            wait_until(lambda: published[0] > before + 10_000, 60, "a publisher that drops continues")
        if random.random() < 0.5:
            nursery.signal(signal.SIGCONT)
    nursery.kill()
    torn, elsewhere, malformed = nursery.notes[1:4]
    if torn or malformed:
        yield f"received {torn} torn and {malformed} malformed batches"
    if elsewhere:
        yield "did not use shared memory"


def _pinned(shared: SharedWriter) -> int:
    """Return the number of places held by readers."""
    at, layout = shared.state.memory, shared.at.layout
    starts = range(at + layout.slots, at + layout.small, layout.page_bytes)
    slots = [foreign_array(shared, start, Slot.dtype.itemsize) for start in starts]
    live = [Slot(words) for words, is_live in zip(slots, shared.state.live, strict=True) if is_live]
    return sum((word & (1 << 64) - 1).bit_count() for slot in live for word in slot.pins)


def _held() -> tuple[int, int]:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir())), Path("/proc/self/maps").read_text().count("memfd:blackbox")
