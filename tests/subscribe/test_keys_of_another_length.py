"""Publisher and subscriber with different `key_bytes`: nothing is delivered, and both report the reason."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from blackbox import Feed, Publisher, Recorder, Subscriber
from blackbox.block.block import Block
from blackbox.testing import Collector, RawPublisher
from tests.subscribe.subscribers import error_of_start, nothing

PAIRS = [(2, 4), (4, 2), (0, 2), (2, 0)]


def feeds(theirs: int, ours: int) -> tuple[Feed, Feed]:
    feed = Feed.local("keys", slices=1, key_bytes=theirs)
    feed = msgspec.structs.replace(feed, heartbeat_ns=20_000_000)
    return feed, msgspec.structs.replace(feed, key_bytes=ours)


@pytest.mark.parametrize(("theirs", "ours"), PAIRS)
def test_start_names_both_lengths(theirs: int, ours: int) -> None:
    feed, other = feeds(theirs, ours)

    def make() -> Subscriber:
        subscriber = Subscriber(other)
        subscriber.on(b"AAPL")(nothing)
        return subscriber

    differ = f"its blocks have key_bytes = {theirs}, expected key_bytes = {ours}"
    text = f"slice 0: no publisher at tcp.* confirmed .*: {differ}"
    with Publisher(feed) as publisher:
        publisher.publish(b"AAPL.trade", b"")
        subscriber = error_of_start(make, text)
    assert subscriber.statistics().received.faults["key_rule"] > 0
    assert subscriber.statistics().received.messages == 0


def test_a_recorder_names_both_lengths_and_records_nothing(tmp_path: Path) -> None:
    feed, other = feeds(2, 4)
    with Publisher(feed) as publisher:
        publisher.publish(b"AAPL.trade", b"")
        recorder = error_of_start(
            lambda: Recorder(other, tmp_path), "its blocks have key_bytes = 2, expected key_bytes = 4"
        )
    assert recorder.statistics().messages == 0


@pytest.mark.parametrize(("key", "key_bytes", "fault"), [(b"AA", 2, "key_rule"), (b"AA", 0, "topic_key")])
def test_one_block_with_a_key_on_a_feed_without_keys_changes_nothing(key: bytes, key_bytes: int, fault: str) -> None:
    feed = Feed.local("keys", slices=1)
    subscriber, got = Subscriber(feed), Collector()
    subscriber.on(b"")(got.message)
    forged = Block.encode([b"AAPL"], [0], b"x", offsets=[0, 1], key=b"AA", key_rule=2, slice_id=0, epoch=1)
    header = bytearray(forged.header)
    if key_bytes == 0:
        honest = Block.encode([b"AAPL"], [0], b"x", offsets=[0, 1], key=b"", key_rule=0, slice_id=0, epoch=1)
        header = bytearray(honest.header)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        publisher.send(publisher.encode([(b"AAPL", b"0")]))
        publisher.send_frames((key, bytes(header), forged.body.tobytes()))
        publisher.encode([(b"AAPL", b"lost")])
        block = publisher.encode([(b"AAPL", b"2")])
        publisher.send(block)
        publisher.send(block)
        publisher.heartbeat(end=True)
        subscriber.run(until_end=True)
    received = subscriber.statistics().received
    assert got.payloads == [b"0", b"2"]
    assert (received.gaps, received.duplicates, received.faults) == (1, 1, {fault: 1})


def test_a_key_shorter_than_the_feeds_is_rejected() -> None:
    feed = Feed.local("keys", slices=1, key_bytes=4)
    subscriber, got = Subscriber(feed), Collector()
    subscriber.on(b"")(got.message)
    with RawPublisher(feed) as publisher:
        subscriber.start()
        block = publisher.encode([(b"AAPL.trade", b"0")])
        publisher.send_frames((b"AA", block.header, block.body.tobytes()))
        publisher.send_frames((b"", block.header, block.body.tobytes()))
        publisher.send(block)
        publisher.send(publisher.encode([(b"A.x", b"a topic as long as its key")][:1]))
        got.wait(2)
        subscriber.stop()
    assert subscriber.statistics().received.faults == {"topic_key": 2}
