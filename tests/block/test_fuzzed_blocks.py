"""Damaged, truncated and hostile blocks are rejected and counted; no read ever leaves the frames."""

from __future__ import annotations

import random
import signal
import threading

import msgspec
import numpy
import pytest

from blackbox import Feed
from blackbox.block.form.block import Block, HeaderFields
from blackbox.block.form.rows import PayloadColumns
from blackbox.block.form.validate import Fault
from blackbox.block.position import End
from blackbox.errors import BlockError
from blackbox.testing import RawPublisher, wait_until
from tests import wire
from tests.damage import Frames, cases, damaged, valid
from tests.examples import first_of
from tests.receive.subscribers import numbers_of, publishing, subscribed
from tests.support import Script


@pytest.mark.parametrize("count", first_of([8_000, 24_000]))
def test_no_block_makes_compiled_code_read_outside_its_frames(count: int) -> None:
    """The last line shows that such a read would kill the process."""
    code = f"""
        from blackbox.native.tables.xxh3 import xxh3
        from tests.guarded_blocks import Guarded, main
        main(seed=2, count={count})
        block = Guarded().put(bytes(64), 8)
        print(xxh3(block.ctypes.data, 64), flush=True)
        xxh3(block.ctypes.data, 65)
    """
    with Script(code) as script:
        passed, refused = map(int, script.read().split())
        assert script.read()
        assert script.finish()[0] == -signal.SIGSEGV
    assert passed > count / 10
    assert refused > count / 2


def test_decode_agrees_with_the_reference_on_damaged_blocks() -> None:
    for frames in cases(seed=3, count=2_000):
        try:
            expected = wire.decode(*frames)
        except ValueError:
            with pytest.raises(BlockError, match="header .* bytes, body .* bytes"):
                Block.decode(*frames)
            continue
        block = Block.decode(*frames)
        topics = block.topics
        assert topics == expected.topics
        assert block.sequences.tolist() == expected.sequences
        if block.same is not None:
            assert (block.sequences - block.same).tolist() == expected.firsts
        assert expected.messages == [
            (topics[i], block.payload(row), ts)
            for row, (i, ts) in enumerate(zip(block.topic_index.tolist(), block.ts_event.tolist(), strict=True))
        ]


def hostile(seed: int) -> list[Frames]:
    """Damaged blocks that a subscriber of slice 0 must reject."""
    choice = random.Random(seed)
    found = [damaged(choice, valid(choice)) for _ in range(300)]
    return [frames for frames in found if not wire.is_valid(*frames)]


WRONG_FRAMES = {
    "one frame": [b"K"],
    "an empty frame": [b""],
    "two frames": [b"K", bytes(wire.HEADER.size)],
    "four frames": [b"K", bytes(wire.HEADER.size), bytes(8), b"more"],
    "forty frames": [b"x" * n for n in range(40)],
    "three empty frames": [b"", b"", b""],
    "a header of a megabyte": [b"", bytes(1 << 20), b""],
    "a key of a megabyte": [bytes(1 << 20), bytes(wire.HEADER.size), b""],
}


def test_every_malformed_block_is_counted_and_the_next_valid_one_is_delivered() -> None:
    subscriber, got = subscribed(feed := Feed.local("fuzz", slices=1))
    bad: list[list[bytes]] = [list(frames) for frames in hostile(seed=4)] + list(WRONG_FRAMES.values())
    with publishing(feed, subscriber) as publisher:
        for number, frames in enumerate(bad):
            publisher.send_frames(frames)
            publisher.send(publisher.encode([(b"T", b"%d" % number)]))
    assert numbers_of(got) == list(range(len(bad)))
    received = subscriber.statistics().received
    assert received.malformed == sum(received.faults.values()) == len(bad)
    assert received.faults["frames"] == sum(len(frames) != 3 for frames in bad)
    assert received.faults["body_checksum"] > 0
    assert received.faults.keys() <= {fault.name.lower() for fault in Fault if fault is not Fault.NONE}
    assert received.gaps == 0


def test_a_valid_block_in_the_wrong_place_is_rejected_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    subscriber, got = subscribed(feed := Feed.local("fuzz", slices=1))
    with publishing(feed, subscriber) as publisher:
        good = publisher.encode([(b"T", b"0")])
        other_slice = Block.encode(
            [b"T"], [0], PayloadColumns(numpy.ones((1, 1), numpy.uint8)), HeaderFields(slice_id=7, epoch=1)
        )
        control = Block.encode_ends(b"", {b"": End(9, 9)}, HeaderFields(slice_id=0, epoch=1, ts_out=0))
        for block in (other_slice, control):
            publisher.send_frames(block.frames)
        publisher.send_frames((b"\0H", *good.frames[1:]))
        publisher.send(good)
        got.wait(1)
        wait_until(lambda: "blocks: a block came on the line of another slice" in caplog.text)
    assert subscriber.statistics().received.malformed == 3
    assert subscriber.statistics().received.faults == {"slice": 1, "reserved_key": 1, "topic_key": 1}
    assert got.payloads == [b"0"]


CONTROL_BLOCKS: dict[str, tuple[list[bytes], list[bytes]]] = {
    "payloads of seven bytes": ([b"K"], [bytes(7)]),
    "payloads of any size": ([b"K", b"L"], [bytes(16), bytes(7)]),
    "more keys than ends": ([b"K", b"L"], [bytes(16)]),
    "a negative end": ([b"K"], [b"\xff" * 16]),
    "an end above the maximum": ([b"K"], [(b"\xff" * 7 + b"\x7f") * 2]),
    "more messages than sequences": ([b"K"], [bytes(8) + b"\1" + bytes(7)]),
    "a key that is too long": ([b"K" * 5000], [bytes(16)]),
    "the same key twice": ([b"K", b"K"], [bytes(16), (b"\1" + bytes(7)) * 2]),
}
"""Keys and payloads of hostile control blocks."""


def control(keys: list[bytes], payloads: list[bytes], key_bytes: int) -> tuple[bytes, bytes]:
    """Return header and body of a control block with any keys and payloads."""
    count, sizes = len(payloads), {len(payload) for payload in payloads}
    fixed = len(sizes) == 1
    return wire.sealed(
        wire.body_of([0] * count, list(range(count)), keys, payloads, fixed),
        flags=wire.CONTROL | wire.CHECKSUM | (wire.FIXED if fixed else 0),
        count=count,
        topics=len(keys),
        topic_bytes=sum(map(len, keys)),
        stride=min(sizes) if fixed else 0,
        key_rule=key_bytes,
    )


@pytest.mark.parametrize("key_bytes", [0, 2])
def test_a_hostile_heartbeat_does_not_end_the_subscriber(key_bytes: int) -> None:
    subscriber, got = subscribed(feed := Feed.local("fuzz", slices=1, key_bytes=key_bytes))
    with publishing(feed, subscriber) as publisher:
        for keys, payloads in CONTROL_BLOCKS.values():
            publisher.send(publisher.encode([(b"KK", b"")]))
            publisher.send_frames((b"\0H", *control(keys, payloads, key_bytes)))
        publisher.send(publisher.encode([(b"KK", b"")]))
    assert len(got) == len(CONTROL_BLOCKS) + 1
    assert 0 <= subscriber.statistics().received.gaps <= 1


def test_a_frame_above_the_limit_drops_the_connection_which_is_reopened() -> None:
    # The subscriber reconnects after three heartbeats.
    feed = msgspec.structs.replace(Feed.local("fuzz", slices=1), heartbeat_ns=400_000_000)
    subscriber, got = subscribed(feed)
    dropped = threading.Event()

    class Filters(set[bytes]):
        def discard(self, wish: object) -> None:
            super().discard(wish)
            if not self:
                dropped.set()

    with RawPublisher(feed) as publisher:
        publisher._subscriptions[0, 0] = Filters()
        subscriber.start()
        publisher.send_frames((b"", bytes(wire.HEADER.size), numpy.zeros(wire.MAX_BODY + 1, numpy.uint8)))
        assert dropped.wait(200), "the connection is dropped"
        wait_until(lambda: b"" in publisher.subscriptions(), what="it is reopened")

        def delivered() -> int:
            publisher.heartbeat()  # otherwise the line would count as silent again
            publisher.send(publisher.encode([(b"T", b"0")]))
            return len(got)

        wait_until(delivered, what="messages are delivered again")
        subscriber.stop()
