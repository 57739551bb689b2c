"""The bytes of a block, compared with an independent reference and with golden blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from blackbox import Feed, Publisher, Subscriber
from blackbox.block.form import format as places
from blackbox.block.form.block import Block, HeaderFields
from blackbox.block.form.rows import PayloadColumns
from blackbox.block.position import End
from blackbox.errors import BlockError
from blackbox.native.tables.xxh3 import xxh3
from blackbox.testing import RawPublisher, wait_until
from tests import golden, wire

GOLDEN = golden.blocks() | {"example": golden.example()}
TOPICS = st.binary(min_size=1, max_size=12).filter(lambda topic: topic[0] != 0)
ROWS = st.lists(
    st.tuples(TOPICS, st.binary(max_size=20), st.integers(-(2**63), 2**63 - 1)),
    min_size=1,
    max_size=40,
)


@given(ROWS, st.booleans(), st.sampled_from([0, 1, 8, 100]), st.booleans(), st.booleans(), st.data())
def test_the_reference_reads_and_writes_the_same_blocks(
    rows: list[tuple[bytes, bytes, int]], one_size: bool, size: int, checksum: bool, numbered: bool, data: st.DataObject
) -> None:
    valid = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)) | st.none())
    sequences = None
    if numbered:
        numbers = st.sets(st.integers(0, 2**62), min_size=len(rows), max_size=len(rows))
        sequences = sorted(data.draw(numbers))
    if one_size:
        rows = [(topic, payload[:size].ljust(size, b"."), ts) for topic, payload, ts in rows]
    topics = list(dict.fromkeys(topic for topic, _, _ in rows))
    index = [topics.index(topic) for topic, _, _ in rows]
    payloads = [payload for _, payload, _ in rows]
    times = [ts for _, _, ts in rows]
    block = Block.encode(
        topics,
        index,
        PayloadColumns(
            b"".join(payloads),
            offsets=numpy.cumsum([0, *map(len, payloads)]),
            ts_event=times,
            valid=None if valid is None else numpy.array(valid),
            sequences=sequences,
        ),
        HeaderFields(sequence=5),
        checksum=checksum,
    )
    values = [payload if valid is None or valid[i] else None for i, payload in enumerate(payloads)]
    fixed = len({len(value or b"") for value in values}) == 1
    decoded = wire.decode(*map(bytes, block.frames))
    assert decoded.messages == list(zip([topic for topic, _, _ in rows], values, times, strict=True))
    assert decoded.sequences == block.sequences.tolist() == (sequences or list(range(5, 5 + len(rows))))
    assert block.body.tobytes() == wire.body_of(times, index, topics, values, fixed, sequences)
    assert [block.payload(row) for row in range(len(rows))] == values
    assert block.valid.tolist() == [value is not None for value in values]
    assert block.is_fixed == fixed
    assert bool(block.flags & wire.CHECKSUM) == checksum


@given(st.dictionaries(st.binary(max_size=8), st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)), max_size=20))
def test_the_reference_reads_the_ends_of_control_blocks(numbers: dict[bytes, tuple[int, int]]) -> None:
    ends = {key: End(max(both), min(both)) for key, both in numbers.items()}
    block = Block.encode_ends(b"\0H", ends, HeaderFields(slice_id=3, epoch=2**63 - 1, ts_out=9))
    said = wire.decode(*map(bytes, block.frames))
    assert wire.ends_of(said) == ends == block.ends()
    assert said.fields.sequence == block.sequence == max((end.sequence for end in ends.values()), default=0)


@pytest.mark.parametrize(("key", "header", "body"), GOLDEN.values(), ids=GOLDEN)
def test_golden_blocks_are_read_and_written(key: bytes, header: bytes, body: bytes) -> None:
    expected = wire.decode(key, header, body)
    block = Block.decode(key, header, body)
    fields = expected.fields
    assert block.schema_id == fields.schema
    for name in ("flags", "slice_id", "count", "epoch", "sequence", "previous", "key_sequence", "ts_out", "ts_in"):
        assert getattr(block, name) == getattr(fields, name), name
    assert (block.key_rule, block.sequences.tolist()) == (fields.key_rule, expected.sequences)
    topics = block.topics
    rows = [
        (topics[i], block.payload(row), ts)
        for row, (i, ts) in enumerate(zip(block.topic_index.tolist(), block.ts_event.tolist(), strict=True))
    ]
    assert rows == expected.messages
    assert tuple(map(bytes, encoded_again(block).frames)) == (key, header, body)


def encoded_again(block: Block) -> Block:
    fields = HeaderFields(**{name: getattr(block, name) for name in HeaderFields._fields})
    fields = fields._replace(flags=block.flags & (wire.LINE_B | wire.END))
    if block.flags & wire.CONTROL:
        return Block.encode_ends(block.key, block.ends(), fields)
    columns = PayloadColumns(
        block.payloads.reshape(block.count, block.stride) if block.is_fixed else block.payloads,
        ts_event=block.ts_event,
        offsets=None if block.is_fixed else block.payload_offsets,
        valid=None if block.validity is None else block.valid,
        sequences=block.sequences if block.has_sequences else None,
        same=block.same,
    )
    checksum = bool(block.flags & wire.CHECKSUM)
    return Block.encode(block.topics, block.topic_index, columns, fields, key=block.key, checksum=checksum)


# A publisher's messages, read by the reference.


def test_the_reference_reads_what_a_publisher_sends() -> None:
    import zmq

    feed = Feed.local("wire", slices=1, key_bytes=2)
    with zmq.Context() as context, context.socket(zmq.SUB) as sub, Publisher(feed, when_full="wait") as publisher:
        sub.connect(feed.slices[0].endpoints[0])
        for wish in (b"\0H", b"AA", b"\0Cnonce678"):
            sub.subscribe(wish)
        while True:  # a heartbeat may arrive before the subscription is active
            assert sub.poll(60_000)
            frames = sub.recv_multipart()
            if frames[0] == b"\0Cnonce678":
                break
        confirmation = wire.decode(*frames)
        assert confirmation.fields.flags == wire.CONTROL | wire.FIXED | wire.CHECKSUM
        assert confirmation.messages == []
        publisher.publish(b"AAPL", b"one", 1)
        publisher.publish(b"ZZZZ", b"nobody wants it", 2)
        publisher.flush()
        publisher.publish_many((b"AAPL", b"AABB"), [1, 0], b"twothree", ts_event=[3, 4], offsets=[0, 3, 8])
        publisher.close()
        blocks: list[wire.Decoded] = []
        while not blocks or not blocks[-1].fields.flags & wire.END:
            assert sub.poll(60_000)
            blocks.append(wire.decode(*sub.recv_multipart()))
    data = [block for block in blocks if not block.fields.flags & wire.CONTROL]
    assert [block.messages for block in data] == [
        [(b"AAPL", b"one", 1)],
        [(b"AABB", b"two", 3), (b"AAPL", b"three", 4)],
    ]
    # The second message is not sent because no subscriber wants its key, but it is counted.
    assert [block.fields.sequence for block in data] == [0, 2]
    assert [(block.fields.previous, block.fields.key_sequence) for block in data] == [(0, 0), (1, 1)]
    assert {block.fields.epoch for block in blocks} == {publisher.epoch}
    assert wire.ends_of(blocks[-1]) == {b"AA": (4, 3), b"ZZ": (2, 1)}
    assert blocks[-1].fields.sequence == 4


def test_a_subscriber_sends_what_the_document_says() -> None:
    feed = Feed.local("wire", slices=1, key_bytes=3)
    subscriber = Subscriber(feed)
    for prefix in (b"A", b"ABCDE", b"ABCXX"):
        subscriber.on(prefix)(lambda message: None)
    with RawPublisher(feed) as publisher, subscriber:
        wait_until(
            lambda: any(w.startswith(b"\0A") for w in publisher.subscriptions()), what="the confirmation was accepted"
        )
        asked = publisher.subscriptions()
        (nonce,) = (wish for wish in asked if wish.startswith(b"\0C"))
        nonces = {nonce}
        accepted = b"\0A" + nonce[2:] + publisher.epoch.to_bytes(8, "little") + b"\0"
        assert asked - nonces == {b"\0H", b"A", b"ABC", b"\0WA", accepted}
        assert len(nonce) == 10
        assert subscriber.statistics().received.subscriptions == 2
        subscriber.on(b"B")(lambda message: None)
        subscriber.wait_confirmed()
        wait_until(lambda: not nonces & publisher.subscriptions(), what="the old nonce is unsubscribed")


def test_xxh3_of_every_size_up_to_several_blocks() -> None:
    data = numpy.random.default_rng(1).integers(0, 256, 3_300, numpy.uint8)
    for size in range(3_200):
        start = size % 9
        expected = xxhash.xxh3_64_intdigest(data[start : start + size].tobytes())
        assert int(xxh3(data.ctypes.data + start, size)) == expected


# Rejected blocks


@pytest.mark.parametrize(
    ("topics", "index", "payloads", "settings", "text"),
    [
        ([b"A"], [], (0, 1), {}, "a block had 0 messages, expected at least 1"),
        ([b"A"], [0], (1, 1), {"key": b"B"}, "did not have key b'B'"),
        ([b"\0A"], [0], (1, 1), {}, "a topic was empty, reserved"),
        ([b"A"], [1], (1, 1), {}, "topic_index ran from 1 to 1, expected 0 to 0"),
        ([b"A"], [0, 0, 0], (3, 30 << 20), {}, "more than 67108864 bytes, the largest body"),
        ([b"A"], [0, 0], (2, 33_554_413), {}, "more than 67108864 bytes, the largest body"),  # with padding
    ],
)
def test_encode_rejects_invalid_blocks(
    topics: list[bytes], index: list[int], payloads: tuple[int, int], settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(BlockError, match=text):
        Block.encode(topics, index, PayloadColumns(numpy.zeros(payloads, numpy.uint8)), **settings)


def with_flag(name: str, flag: int) -> golden.Frames:
    """Return a golden block with a further flag, and the right checksum."""
    frames = GOLDEN[name]
    fields = wire.unpack(frames.header)
    return frames._replace(header=wire.pack(fields._replace(flags=fields.flags | flag)))


def invalid_blocks() -> Iterator[tuple[tuple[bytes, bytes, bytes], str]]:
    """Yield blocks with one fault each, and the error."""
    key, header, body = GOLDEN["payloads_of_one_size"]
    sizes = rf"\(key {key!r}, header [0-9]+ bytes, body {len(body)} bytes\)"
    yield (key, header[:30] + b"\xff" + header[31:], body), "header checksum did not match " + sizes
    yield (key, header, body[:-1] + b"!"), "body checksum did not match"
    yield (key, header[:-1], body), "header size was not"
    yield (key, b"XBOX" + header[4:], body), "magic was not b'BBOX'"
    yield (key, header[:4] + b"\1" + header[5:-8], body), f"block version was 1, expected {places.VERSION}"
    yield (b"X", header, body), "a topic did not have the block's key"
    key, header, body = GOLDEN["payloads_of_any_size"]
    yield (key, wire.pack(wire.unpack(header)._replace(stride=3)), body), "counts were impossible"
    unknown = [1 << bit for bit in range(16) if 1 << bit not in wire.FLAGS.values()]
    for flag in (*unknown, wire.END, wire.REFUSED):
        yield with_flag("payloads_of_one_size", flag), f"flags were set that version {places.VERSION} does not have"
    for flag in (wire.SEQUENCES, wire.NULLS, wire.NUMBERS, wire.SAME):
        yield with_flag("heartbeat", flag), "flags were set .* not for this kind of block"


@pytest.mark.parametrize(("frames", "text"), [*invalid_blocks()])
def test_decode_rejects_an_invalid_block_and_names_the_fault(frames: tuple[bytes, bytes, bytes], text: str) -> None:
    assert not wire.is_valid(*frames)
    with pytest.raises(BlockError, match=text):
        Block.decode(*frames)


def test_decode_accepts_a_body_at_any_address() -> None:
    key, header, body = golden.example()
    expected = Block.decode(key, header, body).ts_event.tolist()
    for shift in range(8):
        memory = numpy.zeros(len(body) + 16, numpy.uint8)
        start = -memory.ctypes.data % 8 + shift
        memory[start : start + len(body)] = numpy.frombuffer(body, numpy.uint8)
        block = Block.decode(key, header, memory[start : start + len(body)])
        assert block.ts_event.tolist() == expected
        assert numpy.shares_memory(block.body, memory) == (shift == 0)
