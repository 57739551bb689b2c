"""Batches: columns and rows of one block, typed records, Arrow on the same memory, single messages."""

from __future__ import annotations

import copy
import ctypes
import gc
import pickle
from typing import Any

import numpy
import pyarrow
import pytest
from blackbox_feeds.itch50 import SCHEMA

from blackbox import Batch, ConfigError, Feed, Subscriber
from blackbox.block.batch.received_block import NO_FEED, ORIGINS, BatchFeed, ReceivedBlock
from blackbox.block.form.block import Block, HeaderFields
from blackbox.block.form.rows import PayloadColumns
from blackbox.feed.schema.typed_record import record_type
from tests.receive.subscribers import publishing

TOPICS = [b"A.x", b"B.x", b"A.y"]
INDEX = [0, 1, 2, 1, 0]
PAYLOADS: dict[str, list[Any]] = {
    "any size": [b"zero", b"", b"two", b"three3", b"4"],
    "one size": [b"%d" % number for number in range(5)],
    "empty": [b""] * 5,
    "no value": [b"zero", None, b"two", b"", None],
    "one size or no value": [None, b"1", b"2", None, None],
}
of_all_kinds = pytest.mark.parametrize("payloads", PAYLOADS.values(), ids=PAYLOADS)
TIMES = [10, 0, -30, 40, 2**62]


def block_of(payloads: list[Any]) -> Block:
    data = [payload or b"" for payload in payloads]
    valid = numpy.array([payload is not None for payload in payloads])
    columns = PayloadColumns(b"".join(data), TIMES, numpy.cumsum([0, *map(len, data)]), valid=valid)
    return Block.encode(TOPICS, INDEX, columns, HeaderFields(sequence=100, ts_out=77))


SOME_ROWS = numpy.array([1, 3, 4], numpy.int32)


@pytest.mark.parametrize("rows", [None, SOME_ROWS, SOME_ROWS[:0]], ids=["all", "some", "none"])
@of_all_kinds
def test_columns_are_those_of_the_rows(rows: Any, payloads: list[Any]) -> None:
    batch = Batch(block_of(payloads), rows)
    places = range(5) if rows is None else rows.tolist()
    assert len(batch) == len(places)
    assert batch.topics == TOPICS
    assert batch.topic_index.tolist() == [INDEX[row] for row in places]
    assert batch.topics_per_message() == [TOPICS[INDEX[row]] for row in places]
    assert batch.ts_event.tolist() == [TIMES[row] for row in places]
    assert batch.sequence.tolist() == [100 + row for row in places]
    assert [batch.payload(i) for i in range(len(batch))] == [payloads[row] for row in places]
    assert batch.payload_list() == [payloads[row] for row in places]
    assert batch.valid.tolist() == [payloads[row] is not None for row in places]
    flat = batch.payloads().tobytes()
    offsets = batch.payload_offsets().tolist()
    assert [flat[a:b] for a, b in zip(offsets, offsets[1:], strict=False)] == [payloads[row] or b"" for row in places]
    assert (batch.ts_out, batch.ts_recv, batch.conflated, batch.end_of_batch) == (77, 0, False, True)
    with pytest.raises(ValueError, match="did not come from a subscriber"):
        batch.topic_numbers  # noqa: B018
    assert repr(batch).startswith(f"Batch({len(places)} of Block(")


def test_messages_are_the_rows() -> None:
    batch = Batch(block_of(PAYLOADS["any size"]), SOME_ROWS)
    messages = list(batch)
    assert [(m.topic, m.payload, m.ts_event, m.sequence, m.end_of_batch) for m in messages] == [
        (b"B.x", b"", 0, 101, False),
        (b"B.x", b"three3", 40, 103, False),
        (b"A.x", b"4", 2**62, 104, True),
    ]
    assert all((m.ts_out, m.batch) == (77, batch) for m in messages)
    with pytest.raises(ValueError, match="this message has no schema"):
        messages[0].record  # noqa: B018
    for read in (batch.records, batch.indices):
        with pytest.raises(ValueError, match="this batch has no schema"):
            read("A")


def test_no_row_of_a_block_with_one_message_has_no_payload() -> None:
    block = Block.encode([b"A"], [0], PayloadColumns(b"one", offsets=[0, 3]))
    batch = Batch(block, SOME_ROWS[:0])
    assert batch.payload_list() == list(batch) == []
    assert batch._repr_html_()


def test_only_the_last_message_of_all_feeds_ends_the_batch() -> None:
    block = Block.encode([b"T"], [0, 0, 0], PayloadColumns(numpy.zeros((3, 1), numpy.uint8)))
    merged = ReceivedBlock.of_block(block, NO_FEED, 0)
    merged.feeds = BatchFeed("a", None), BatchFeed("b", None)
    merged.origins = numpy.zeros((ORIGINS, 3), numpy.int64)
    merged.origins[3] = 0, 1, 0
    messages = Batch(block, None, merged).messages(iter(range(3)))
    assert [(each.batch.feed, each.end_of_batch) for each in messages] == [("a", False), ("b", False), ("a", True)]


def received(rows: list[tuple[bytes, bytes]], prefix: bytes = b"", schema: str = "itch50") -> Batch:
    """Return one block's batch, as a subscriber to `prefix` receives it."""
    feed = Feed.local("batch", slices=1, schema=schema)
    subscriber = Subscriber(feed)
    batches: list[Batch] = []
    subscriber.on_batch(prefix)(batches.append)
    with publishing(feed, subscriber) as publisher:
        publisher.send(publisher.encode(rows))
    return batches[0]


def test_columns_of_a_whole_block_are_read_only_views() -> None:
    batch = received([(b"T", b"abcd"), (b"U", b"efgh")], schema="raw")
    assert batch.rows is None
    columns: list[Any] = [batch.ts_event, batch.topic_index, batch.payloads(), batch.block.body, batch.topic_numbers]
    for column in columns[:3]:
        assert numpy.shares_memory(column, batch.block.body)
    for column in columns:
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 0


def itch(kind: str, number: int) -> bytes:
    """A message of a type with all other bytes set to a number."""
    return kind.encode() + bytes([number]) * (SCHEMA.dtype(kind).itemsize - 1)


def test_records_are_the_messages_of_one_type() -> None:
    rows = [(b"S.%c" % kind.encode(), itch(kind, n)) for n, kind in enumerate("ADAEADX")]
    batch = received(rows)
    for kind in "ADEX":
        records = batch.records(kind)
        expected = [payload for _, payload in rows if payload[:1] == kind.encode()]
        assert records.dtype == SCHEMA.dtype(kind)
        assert [record.tobytes() for record in records] == expected
        assert [rows[i][1] for i in batch.indices(kind).tolist()] == expected
    assert len(batch.records("P")) == 0
    assert batch.records("A")["price"].tolist() == [int.from_bytes(bytes([n]) * 4, "big") for n in (0, 2, 4)]
    with pytest.raises(ConfigError, match="schema 'itch50': message type was '!', expected one of"):
        batch.records("!")


@pytest.mark.parametrize("prefix", [b"S", b"S1"], ids=["a whole block is a view", "selected rows"])
def test_records_of_one_type_alone(prefix: bytes) -> None:
    rows = [(b"S%d.A" % (n % 2), itch("A", n)) for n in range(9)]
    batch = received(rows, prefix)
    expected = [payload for topic, payload in rows if topic.startswith(prefix)]
    assert [record.tobytes() for record in batch.records("A")] == expected
    assert batch.indices("A").tolist() == list(range(len(expected)))
    assert numpy.shares_memory(batch.records("A"), batch.block.body) == (batch.rows is None) == (prefix == b"S")


def test_a_payload_that_is_no_record_raises_and_is_named() -> None:
    batch = received([(b"S", itch("A", 1)), (b"S", itch("A", 2)[:-1]), (b"S", b""), (b"S", b"~")])
    with pytest.raises(ValueError, match=r"message 1 of Block\(.*\) is of type 'A' but has 35 bytes, expected 36"):
        batch.records("A")
    assert len(batch.records("D")) == 0
    good, short, empty, unknown = batch
    assert good.record.shares == 0x01010101
    text = "itch50_A(message_type=b'A', stock_locate=257, tracking_number=257, timestamp=b'\\x01"
    assert repr(good.record).startswith(text)
    with pytest.raises(ValueError, match="message 1 of topic b'S' is of type 'A' but has 35 bytes, expected 36"):
        short.record  # noqa: B018
    with pytest.raises(ValueError, match="message 2 of topic b'S' had 0 bytes, expected a type at byte 0"):
        empty.record  # noqa: B018
    with pytest.raises(ConfigError, match="message type was '~'"):
        unknown.record  # noqa: B018


@pytest.mark.parametrize("count", [5, 50], ids=["one by one", "at once"])
def test_records_are_those_of_numpy_in_memory_of_their_own(count: int) -> None:
    rng = numpy.random.default_rng(1)
    batch = received([(b"S.%c" % b"AB"[n % 2], b"A" + rng.bytes(35)) for n in range(2 * count)], b"S.A")
    expected = batch.records("A")
    records = [message.record for message in batch]
    assert bool(batch._message_records) == (count == 50)
    assert len(records) == count
    for ours, theirs in zip(records, expected, strict=True):
        assert bytes(ours) == theirs.tobytes()
        for name in expected.dtype.names or ():
            value = getattr(ours, name)
            if expected.dtype[name].kind == "S":
                assert value == theirs[name].partition(b"\0")[0]
            elif expected.dtype[name].kind == "V":
                assert value == theirs[name].tobytes()
            else:
                assert value == theirs[name]
    record, body = records[-1], batch.block.body
    assert not body.ctypes.data <= ctypes.addressof(record) < body.ctypes.data + body.nbytes
    alone = copy.copy(record)
    assert alone == record
    assert alone._b_base_ is None


def test_a_record_can_be_sent_and_compared_but_not_changed() -> None:
    first, second = [message.record for message in received([(b"S", itch("A", 1)), (b"S", itch("A", 2))])]
    again = pickle.loads(pickle.dumps(first))
    assert again == first
    assert again.price == first.price
    assert len({first, again, second}) == 2
    assert first != second
    with pytest.raises(AttributeError, match="itch50_A.price cannot be set to 7: records are read-only"):
        first.price = 7


def test_a_record_lies_in_memory_as_its_dtype() -> None:
    dtype = numpy.dtype(
        {
            "names": ["d", "a", "b", "c", "e", "_f", "g", "h"],
            "formats": [">f8", ">i2", "<u8", "S3", "?", (">u4", (2, 3)), [("x", "<i4"), ("y", "u1")], "<M8[ns]"],
            "offsets": [16, 1, 4, 12, 25, 26, 50, 55],
            "itemsize": 70,
        }
    )
    kind = record_type("odd", dtype)
    memory = bytearray(numpy.random.default_rng(2).bytes(70))
    memory[25] = 0
    expected = numpy.frombuffer(memory, dtype)[0]
    record = kind.from_buffer_copy(memory)
    assert ctypes.sizeof(kind) == 70
    assert (record.a, record.b, record.d) == tuple(expected[["a", "b", "d"]])
    assert record.e is False
    assert [list(row) for row in record._f] == expected["_f"].tolist()
    assert (record.g.x, record.g.y) == tuple(expected["g"])
    assert record.h == expected["h"].tobytes()
    assert repr(record).startswith(f"odd(d={record.d}, a={record.a}, b=")
    assert "padding" not in repr(record)


def test_fields_that_overlap_raise() -> None:
    dtype = numpy.dtype({"names": ["a", "b"], "formats": ["<u4", "<u4"], "offsets": [0, 2]})
    with pytest.raises(ConfigError, match="odd: field 'b' was at byte 2, expected 4 or more"):
        record_type("odd", dtype)


# Arrow


def address(column: pyarrow.Array, place: int = -1) -> int:
    buffer = column.buffers()[place]
    return int(buffer.address)


@of_all_kinds
def test_arrow_shares_the_memory_of_the_block(payloads: list[Any]) -> None:
    block = block_of(payloads)
    arrow = block.to_arrow()
    arrow.validate(full=True)
    assert arrow.schema.names == ["topic", "ts_event", "sequence", "payload"]
    assert arrow.column("topic").to_pylist() == [TOPICS[i] for i in INDEX]
    assert arrow.column("ts_event").cast(pyarrow.int64()).to_pylist() == [each or None for each in TIMES]
    assert arrow.column("ts_event").type == pyarrow.timestamp("ns", "UTC")
    assert arrow.column("sequence").to_pylist() == [100, 101, 102, 103, 104]
    assert arrow.column("payload").to_pylist() == payloads
    assert address(arrow.column("ts_event")) == block.ts_event.ctypes.data
    assert address(arrow.column("payload")) == block.payloads.ctypes.data or not block.payloads.size
    assert address(arrow.column("topic").indices) == block.topic_index.ctypes.data
    assert address(arrow.column("topic").dictionary) == block.topic_text.ctypes.data
    if not block.is_fixed:
        assert address(arrow.column("payload"), 1) == block.payload_offsets.ctypes.data
    some = Batch(block, SOME_ROWS).to_arrow()
    some.validate(full=True)
    for name in ("topic", "sequence", "payload"):
        assert some.column(name).to_pylist() == [arrow.column(name).to_pylist()[row] for row in SOME_ROWS]


def test_arrow_outlives_batch_block_and_subscriber() -> None:
    payloads = [b"%06d" % number for number in range(5_000)]
    table = received([(b"T%d" % (len(payload) % 3), payload) for payload in payloads], schema="raw").to_arrow()
    gc.collect()
    _kept = [numpy.ones(table.nbytes // 8) for _ in range(20)]  # would take freed memory
    assert table.column("payload").to_pylist() == payloads
    assert table.column("sequence").to_pylist() == list(range(5_000))


@pytest.mark.parametrize("is_valid", [True, False])
@pytest.mark.parametrize("chosen", [None, slice(1, None, 2), slice(0, 5)])
@pytest.mark.parametrize("stride", [0, 8])
def test_messages_of_a_large_block_have_the_payloads_of_its_list(
    stride: int, chosen: slice | None, is_valid: bool
) -> None:
    count = 5_000
    payloads = numpy.arange(count, dtype=numpy.int64).view(numpy.uint8).reshape(count, 8)[:, :stride]
    valid = numpy.arange(count) % 7 < (7 if is_valid else 5)
    block = Block.encode(
        [b"A"], numpy.zeros(count, numpy.int32), PayloadColumns(numpy.ascontiguousarray(payloads), valid=valid)
    )
    rows = None if chosen is None else numpy.arange(count, dtype=numpy.int32)[chosen]
    places = iter(range(len(Batch(block, rows))))
    messages = list(Batch(block, rows).messages(places))
    assert [message.payload for message in messages] == Batch(block, rows).payload_list()
    assert [message.index for message in messages] == list(range(len(messages)))
    assert not list(places)
