"""Forged blocks between those of a live feed: another epoch, sequence numbers far ahead, an end."""

from __future__ import annotations

import time
from random import Random

import msgspec

from blackbox import Feed, SlowPolicy, Subscriber
from blackbox.block.form.block import Block, HeaderFields
from blackbox.block.form.format import FLAG_END, FLAG_LINE_B, HEARTBEAT_KEY
from blackbox.block.form.rows import PayloadColumns
from blackbox.block.position import End
from blackbox.testing import Collector, RawPublisher
from tests.torture.outcome import Outcome

EPOCH = 10**18
AT_ONCE = 200


def attack(random: Random, seconds: float) -> Outcome:
    """Send a forged block, then true blocks, repeatedly; every true message must arrive once and in order."""
    feed = msgspec.structs.replace(Feed.local("forged", slices=1, lines=2), heartbeat_ns=60 * 10**9)
    subscriber, got = Subscriber(feed, slow=SlowPolicy(max_lag=3_600)), Collector()
    subscriber.on(b"true")(got.message)
    forged = sent = 0
    with RawPublisher(feed, epoch=EPOCH) as publisher:

        def forge() -> None:
            """Send a forged block without changing the publisher's state."""
            line, epoch = random.randrange(2), EPOCH
            number = random.choice([1 << 62, 1 << 40, random.randrange(1 << 25, 1 << 62)])
            kind = random.choice(["run", "number", "heartbeat of a run", "heartbeat", "end"])
            if "run" in kind:
                epoch = random.choice([1, EPOCH - 1, EPOCH + 1, time.time_ns(), (1 << 63) - 1])
            flags = FLAG_LINE_B if line else 0
            head = HeaderFields(key_rule=0, epoch=epoch, ts_out=time.time_ns())
            if "heartbeat" in kind or kind == "end":
                told = publisher.sequences[0] if kind == "end" else number
                flags |= FLAG_END if random.random() < 0.5 or kind == "end" else 0
                block = Block.encode_ends(HEARTBEAT_KEY, {b"": End(told, told)}, head._replace(flags=flags))
            else:
                sequence = 0 if kind == "run" else number
                head = head._replace(sequence=sequence, flags=flags)
                block = Block.encode([b"forged"], [0], PayloadColumns(b"", offsets=[0, 0]), head)
            publisher.send_frames(block.frames, line=line)

        def send() -> Block:
            return publisher.encode([(b"true", b"%d" % sent)])

        subscriber.start(timeout=60)
        publisher.send(send(), (0, 1))
        sent += 1
        deadline = time.monotonic() + seconds
        while forged == 0 or time.monotonic() < deadline:
            for _ in range(AT_ONCE):
                forge()
                forged += 1
                for _ in range(random.randrange(1, 3)):
                    publisher.send(send(), (0, 1))
                    sent += 1
            got.wait(sent, timeout=60)
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    found = []
    if [int(payload) for payload in got.payloads] != list(range(sent)):
        found.append(f"{len(got)} messages were received, expected {sent} in order")
    received = subscriber.statistics().received
    if (received.gaps, received.epochs) != (0, 1):
        found.append(f"{received.gaps} messages were counted as lost in {received.epochs} epochs, expected 0 in 1")
    return Outcome(forged, "forged blocks and heartbeats", found)
