"""The bytes of a block, compared with an independent reference and with golden blocks."""

from __future__ import annotations

import struct

import numpy
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from blackbox import Feed, Publisher, Subscriber
from blackbox.block import format as places
from blackbox.block import layout
from blackbox.block.block import Block
from blackbox.block.format import body_layout
from blackbox.block.position import End
from blackbox.errors import BlockError
from blackbox.native.xxh3 import xxh3
from blackbox.testing import RawPublisher, wait_until
from tests import golden, wire

GOLDEN = golden.blocks() | {"example": golden.example(), "example heartbeat": golden.example_heartbeat()}
TOPICS = st.binary(min_size=1, max_size=12).filter(lambda topic: topic[0] != 0)
ROWS = st.lists(
    st.tuples(TOPICS, st.binary(max_size=20), st.integers(-(2**63), 2**63 - 1)),
    min_size=1,
    max_size=40,
)


def example() -> Block:
    return Block.encode(
        [b"AB", b"ABC"],
        [1, 0, 1],
        b"xyyzzz",
        offsets=[0, 1, 3, 6],
        ts_event=[10, 20, -30],
        key=b"AB",
        key_rule=2,
        schema_id=0x1234,
        slice_id=0x5678,
        epoch=0x7EDCBA9876543210,
        sequence=0x0123456789ABCDEF,
        previous=0x0123456789ABCDE0,
        key_sequence=0x0123456789ABCD00,
        ts_out=0x0FEDCBA987654321,
        ts_in=0x0FEDCBA987654300,
        flags=wire.LINE_B,
    )


def test_each_header_field_is_at_its_offset() -> None:
    block = example()
    body = block.body.tobytes()
    header = wire.Fields(
        key_rule=2,
        flags=wire.CHECKSUM | wire.LINE_B,
        schema=0x1234,
        slice_id=0x5678,
        count=3,
        epoch=0x7EDCBA9876543210,
        sequence=0x0123456789ABCDEF,
        previous=0x0123456789ABCDE0,
        key_sequence=0x0123456789ABCD00,
        ts_out=0x0FEDCBA987654321,
        ts_in=0x0FEDCBA987654300,
        topics=2,
        topic_bytes=5,
        body_bytes=24 + 16 + 16 + 16 + 8 + 6,
        body_checksum=xxhash.xxh3_64_intdigest(body) & 0xFFFFFFFF,
    )
    assert block.header == wire.pack(header)


@pytest.mark.parametrize("bit", [bit for bit in range(16) if 1 << bit not in wire.FLAGS.values()])
def test_an_unknown_flag_is_rejected(bit: int) -> None:
    block = example()
    header = wire.pack(wire.unpack(block.header)._replace(flags=block.flags | 1 << bit))
    with pytest.raises(BlockError, match=f"flags were set that version {places.VERSION} does not have"):
        Block.decode(b"AB", header, block.body)


def test_reserved_numbers_match_the_document() -> None:
    for flag in layout.FLAGS:
        assert getattr(places, f"FLAG_{flag.name}") == flag.value
    assert places.MAX_BODY_BYTES == wire.MAX_BODY
    assert (places.HEARTBEAT_KEY, places.CONFIRM_KEY, places.NONCE_BYTES) == (b"\0H", b"\0C", 8)
    assert places.MAX_TOPIC_BYTES == 65_535


def test_each_column_is_at_its_offset() -> None:
    block = example()
    at = wire.starts_of(wire.unpack(block.header))
    body = block.body.tobytes()
    assert struct.unpack_from("<3q", body, at["ts_event"]) == (10, 20, -30)
    assert struct.unpack_from("<3i", body, at["topic_index"]) == (0, 1, 0)
    assert struct.unpack_from("<4i", body, at["payload_offsets"]) == (0, 1, 3, 6)
    assert struct.unpack_from("<3i", body, at["topic_offsets"]) == (0, 3, 5)
    assert body[at["topics"] : at["topics"] + 8] == b"ABCAB\0\0\0"
    assert body[at["payloads"] :] == b"xyyzzz"


def test_payloads_of_one_size_have_no_offsets() -> None:
    block = Block.encode([b"A"], [0, 0, 0], numpy.arange(12, dtype=numpy.uint8).reshape(3, 4))
    fields = wire.unpack(block.header)
    at = wire.starts_of(fields)
    assert (fields.flags & wire.FIXED, fields.stride) == (wire.FIXED, 4)
    assert at["payload_offsets"] == at["sequences"]
    assert block.body[at["payloads"] :].tobytes() == bytes(range(12))


@given(
    st.integers(0, 1 << 22),
    st.integers(0, 1 << 22),
    st.integers(0, 1 << 26),
    st.integers(0, 1 << 26),
    st.sets(st.sampled_from(sorted(wire.FLAGS))),
)
def test_columns_start_where_the_table_says(
    count: int, topics: int, topic_bytes: int, payload_bytes: int, names: set[str]
) -> None:
    flags = sum(wire.FLAGS[name] for name in names)
    starts = wire.starts_of(wire.Fields(count=count, topics=topics, topic_bytes=topic_bytes, flags=flags))
    found = body_layout(count, topics, topic_bytes, payload_bytes, flags)
    assert {"ts_event": 0, **found._asdict()} == {**starts, "end": starts["payloads"] + payload_bytes}


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
        b"".join(payloads),
        offsets=numpy.cumsum([0, *map(len, payloads)]),
        ts_event=times,
        valid=None if valid is None else numpy.array(valid),
        sequences=sequences,
        checksum=checksum,
        sequence=5,
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
    block = Block.encode_ends(b"\0H", ends, slice_id=3, epoch=2**63 - 1, ts_out=9)
    said = wire.decode(*map(bytes, block.frames))
    assert wire.ends_of(said) == ends == block.ends()
    assert said.fields.sequence == block.sequence == max((end.sequence for end in ends.values()), default=0)


@pytest.mark.parametrize(("key", "header", "body"), GOLDEN.values(), ids=GOLDEN)
def test_golden_blocks_are_read_and_written(key: bytes, header: bytes, body: bytes) -> None:
    expected = wire.decode(key, header, body)
    block = Block.decode(key, header, body)
    fields = expected.fields
    assert (block.flags, block.schema_id, block.slice_id) == (fields.flags, fields.schema, fields.slice_id)
    assert block.count == fields.count
    assert (block.epoch, block.ts_out, block.sequence) == (fields.epoch, fields.ts_out, fields.sequence)
    assert (block.previous, block.key_sequence) == (fields.previous, fields.key_sequence)
    assert (block.key_rule, block.ts_in, block.sequences.tolist()) == (
        fields.key_rule,
        fields.ts_in,
        expected.sequences,
    )
    topics = block.topics
    rows = [
        (topics[i], block.payload(row), ts)
        for row, (i, ts) in enumerate(zip(block.topic_index.tolist(), block.ts_event.tolist(), strict=True))
    ]
    assert rows == expected.messages
    again = encoded_control(block) if block.flags & wire.CONTROL else encoded(block)
    assert tuple(map(bytes, again.frames)) == (key, header, body)


def encoded_control(block: Block) -> Block:
    flags = block.flags & (wire.LINE_B | wire.END)
    return Block.encode_ends(
        block.key,
        block.ends(),
        slice_id=block.slice_id,
        epoch=block.epoch,
        ts_out=block.ts_out,
        sequence=block.sequence,
        key_rule=block.key_rule,
        flags=flags,
    )


def encoded(block: Block) -> Block:
    return Block.encode(
        block.topics,
        block.topic_index,
        block.payloads.reshape(block.count, block.stride) if block.is_fixed else block.payloads,
        ts_event=block.ts_event,
        offsets=None if block.is_fixed else block.payload_offsets,
        key=block.key,
        slice_id=block.slice_id,
        schema_id=block.schema_id,
        epoch=block.epoch,
        sequence=block.sequence,
        previous=block.previous,
        key_sequence=block.key_sequence,
        ts_out=block.ts_out,
        ts_in=block.ts_in,
        key_rule=block.key_rule,
        valid=None if block.validity is None else block.valid,
        sequences=block.sequences if block.has_sequences else None,
        flags=block.flags & wire.LINE_B,
        checksum=bool(block.flags & wire.CHECKSUM),
    )


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


# XXH3


@pytest.mark.parametrize(
    ("text", "digest"),
    [
        (b"", 0x2D06800538D394C2),
        (b"a", 0xE6C632B61E964E1F),
        (b"abc", 0x78AF5F94892F3950),
        (b"Nobody inspects the spammish repetition", 0x6CB00603B5CC47E9),
    ],
)
def test_xxh3_of_known_vectors(text: bytes, digest: int) -> None:
    data = numpy.frombuffer(text + bytes(8), numpy.uint8).copy()
    assert int(xxh3(data.ctypes.data, len(text))) == digest


def test_xxh3_of_every_size_up_to_several_blocks() -> None:
    data = numpy.random.default_rng(1).integers(0, 256, 3_300, numpy.uint8)
    for size in range(3_200):
        start = size % 9
        expected = xxhash.xxh3_64_intdigest(data[start : start + size].tobytes())
        assert int(xxh3(data.ctypes.data + start, size)) == expected


# Rejected blocks


def test_encode_rejects_invalid_blocks() -> None:
    one = numpy.ones((1, 1), numpy.uint8)
    with pytest.raises(BlockError, match="a block had 0 messages, expected at least 1"):
        Block.encode([b"A"], [], numpy.zeros((0, 1), numpy.uint8))
    with pytest.raises(BlockError, match="did not have key b'B'"):
        Block.encode([b"A"], [0], one, key=b"B")
    with pytest.raises(BlockError, match="a topic was empty, reserved"):
        Block.encode([b"\0A"], [0], one)
    with pytest.raises(BlockError, match="topic_index ran from 1 to 1, expected 0 to 0"):
        Block.encode([b"A"], [1], one)
    with pytest.raises(BlockError, match="more than 67108864 bytes, the largest body"):
        Block.encode([b"A"], [0, 0, 0], numpy.zeros((3, 30 << 20), numpy.uint8))


def test_decode_names_the_fault_and_the_sizes() -> None:
    key, header, body = (bytes(frame) for frame in example().frames)
    with pytest.raises(
        BlockError, match=r"header checksum did not match \(key b'AB', header [0-9]+ bytes, body 86 bytes\)"
    ):
        Block.decode(key, header[:30] + b"\xff" + header[31:], body)
    with pytest.raises(BlockError, match="body checksum did not match"):
        Block.decode(key, header, body[:-1] + b"!")
    with pytest.raises(BlockError, match="header size was not"):
        Block.decode(key, header[:-1], body)
    with pytest.raises(BlockError, match="magic was not b'BBOX'"):
        Block.decode(key, b"XBOX" + header[4:], body)
    with pytest.raises(BlockError, match=f"block version was 1, expected {places.VERSION}"):
        Block.decode(key, header[:4] + b"\1" + header[5:-8], body)
    with pytest.raises(BlockError, match="a topic did not have the block's key"):
        Block.decode(b"X", header, body)


def test_decode_accepts_a_body_at_any_address() -> None:
    key, header, body = (bytes(frame) for frame in example().frames)
    for shift in range(8):
        memory = numpy.zeros(len(body) + 16, numpy.uint8)
        start = -memory.ctypes.data % 8 + shift
        memory[start : start + len(body)] = numpy.frombuffer(body, numpy.uint8)
        block = Block.decode(key, header, memory[start : start + len(body)])
        assert block.ts_event.tolist() == [10, 20, -30]
        assert numpy.shares_memory(block.body, memory) == (shift == 0)
