"""Stop and kill -9 subscribers midway: none receives a torn message, and a surviving one loses none unreported."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Literal

import msgspec

from blackbox import Feed, Publisher, SlowPolicy, Subscriber
from blackbox.native.memory.arrays import foreign_array
from blackbox.testing import wait_until
from blackbox.transport.shared_memory.layout import Slot
from blackbox.transport.shared_memory.writer import SharedWriter
from tests.torture.numbered import Numbers, publishing
from tests.torture.nursery import Nursery
from tests.torture.outcome import Outcome

SUBSCRIBE = """
def work(transport, workers, queue_blocks, keep):
    from tests.torture.numbered import Numbers, numbers_of
    subscriber = Subscriber(
        feed, workers=int(workers), queue_blocks=int(queue_blocks), slow=SlowPolicy(max_lag=3_600)
    )
    got, kept = Numbers(), []

    @subscriber.on_batch(b"")
    def note(batch):
        began = not got.received
        got.batch(batch)
        if began:
            got.missing = 0
        kept.append(batch)
        if len(kept) > int(keep):
            before = kept.pop(0)
            rows = numbers_of(before)
            good = (rows[:, 0] == 0).all() and (rows[:, 1] == rows[0, 1] + numpy.arange(len(rows))).all()
            notes[1] += not good or rows[0, 1] != before.sequence[0]
        notes[2] = len(got.defects)
        notes[3] = got.missing
        notes[0] = got.received[0]

    subscriber.start(timeout=60)
    notes[4] = subscriber.statistics().received.transport != transport
    while subscriber.state is not subscriber.state.ENDED:
        notes[5] = subscriber.statistics().received.malformed
        threading.Event().wait(0.001)
"""
PUBLISHED = 64
"""Messages per call, so many that the publisher almost always writes to shared memory."""


def attack(random: Random, seconds: float) -> Outcome:
    """Attack subscribers of a publisher that waits."""
    return attack_over("tcp", random, seconds, wait=True)


def attack_over(transport: Literal["tcp", "shm"], random: Random, seconds: float, *, wait: bool) -> Outcome:
    """Run one subscriber after another next to a surviving one; pause some, kill each."""
    feed = Feed.local("killed-subscribers", slices=1, transport=transport)
    feed = msgspec.structs.replace(feed, block_bytes=4_096, heartbeat_ns=50_000_000)
    got, outcome = Numbers(), Outcome(0, "killed subscribers")
    subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=3_600))
    subscriber.on_batch(b"")(got.batch)
    publisher = Publisher(feed, when_full="wait" if wait else "drop", hwm_blocks=random.choice((4, 16, 256)))
    with publisher, Nursery(feed, SUBSCRIBE, 6) as nursery:
        shared = publisher._slices[0].sender.sockets.shared
        assert (shared is not None) == (transport == "shm")
        subscriber.start(timeout=60)
        with publishing(publisher, PUBLISHED) as published:
            deadline = time.monotonic() + seconds
            while outcome.tried == 0 or time.monotonic() < deadline:
                outcome.tried += 1
                defects = _attack_one(random, nursery, transport, published, wait)
                outcome.found += [f"subscriber {outcome.tried} {found}" for found in defects]
            before = published()
            wait_until(lambda: published() > before + 1_000, 60, "the publisher continues")
            if shared is not None:
                wait_until(lambda: shared.state.readers == 1, 60, "only the survivor has a slot")
        publisher.flush(60)
        if shared is not None:
            wait_until(lambda: _pinned(shared) <= 1, 60, "all places except that of the last block are released")
    subscriber.run(until_end=True)
    received = subscriber.statistics().received
    if received.malformed:
        got.defects.append(f"the survivor received {received.malformed} malformed blocks")
    if wait and got.received[0] != published():
        got.defects.append(f"the survivor received {got.received[0]} of {published()} messages")
    if got.received[0] + received.gaps != published():
        got.defects.append(f"{got.received[0]} messages and {received.gaps} in gaps do not add up to {published()}")
    outcome.found += got.defects
    return outcome


def _attack_one(
    random: Random, nursery: Nursery, transport: str, published: Callable[[], int], wait: bool
) -> Iterator[str]:
    """Run a subscriber, maybe pause it, and kill it; yield its defects."""
    nursery.notes[:] = 0
    nursery.begin((transport, random.choice((0, 1)), random.choice((1, 16)), random.choice((0, 3, 40, 200))))
    much = random.randrange(1, 50_000)
    wait_until(lambda: nursery.notes[0] >= much, 60, "a subscriber receives")
    if random.random() < 0.5:
        nursery.signal(signal.SIGSTOP)
        before = published()
        if not wait:
            wait_until(lambda: published() > before + 10_000, 60, "a publisher that drops continues")
        if random.random() < 0.5:
            nursery.signal(signal.SIGCONT)
    nursery.kill()
    torn, untrue, missing, elsewhere, malformed = nursery.notes[1:]
    if torn or untrue or malformed:
        yield f"received {torn} torn, {untrue} wrong and {malformed} malformed batches"
    if wait and missing:
        yield f"missed {missing} messages before it was killed"
    if elsewhere:
        yield "used another transport"


def _pinned(shared: SharedWriter) -> int:
    """Return the number of places held by readers."""
    at, layout = shared.state.memory, shared.at.layout
    starts = range(at + layout.slots, at + layout.small, layout.page_bytes)
    slots = [foreign_array(shared, start, Slot.dtype.itemsize) for start in starts]
    live = [Slot(words) for words, is_live in zip(slots, shared.state.live, strict=True) if is_live]
    return sum((word & (1 << 64) - 1).bit_count() for slot in live for word in slot.pins)
