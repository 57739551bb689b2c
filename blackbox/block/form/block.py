"""A block: messages of one key in columns, as numpy views of the bytes on the wire."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.block.form import layout
from blackbox.block.form.encode import (
    Distinct,
    Origin,
    Plan,
    TopicTable,
    finish_header,
    number_header,
    plan_block,
    plan_bytes,
    plan_ends,
    write_body,
    write_ends,
    write_template,
)
from blackbox.block.form.format import (
    FLAG_CONTROL,
    FLAG_END,
    FLAG_FIXED,
    FLAG_LINE_B,
    FLAG_NULLS,
    FLAG_SAME,
    FLAG_SEQUENCES,
    HEADER_BYTES,
    MAX_BODY_BYTES,
    OFFSET_VERSION,
    BodyLayout,
    body_layout,
)
from blackbox.block.form.rows import PayloadColumns, as_integers, as_rows
from blackbox.block.form.validate import FAULT_TEXT, RULE_OF_HEADER, Fault, check_block, version_text
from blackbox.block.position import End
from blackbox.errors import BlockError
from blackbox.feed.routing.key_rule import key_of

if TYPE_CHECKING:
    import pyarrow

_HEADER = struct.Struct(
    layout.HEADER.format_of(
        *("key_rule", "flags", "schema", "slice", "count", "epoch", "sequence", "previous", "key_sequence"),
        *("ts_out", "ts_in", "topics", "topic_bytes", "stride"),
    )
)
_layout_of = lru_cache(maxsize=256)(body_layout)
"""Cached layouts: many small blocks have the same, and a lookup takes a tenth of the time."""


def topic_table(topics: Sequence[bytes]) -> TopicTable:
    """Return the topics laid out for compiled code."""
    sizes = numpy.fromiter(map(len, topics), numpy.int32, len(topics))
    offsets = numpy.zeros(len(topics), numpy.int64)
    numpy.cumsum(sizes[:-1], out=offsets[1:])
    text = numpy.frombuffer(bytearray(b"".join(topics) or b"\0"), numpy.uint8)  # writable: one compiled version
    return TopicTable(text, offsets, sizes)


def distinct_scratch(topics: int) -> Distinct:
    """Return scratch for `plan_block` over at most `topics` topic ids."""
    return Distinct(numpy.zeros(topics, numpy.int64), numpy.zeros(topics + 1, numpy.int32), numpy.zeros(1, numpy.int64))


class HeaderFields(NamedTuple):
    """Fields of a header that do not follow from the messages."""

    key_rule: int | None = None
    """Rule of the feed, see `blackbox.feed.routing.key_rule`; None: the length of the key."""
    slice_id: int = 0
    schema_id: int = 0
    epoch: int = 1
    sequence: int | None = None
    """Sequence of the first message; None: 0."""
    previous: int | None = None
    """None: equal to `sequence`, as if all messages had one key."""
    key_sequence: int | None = None
    """None: equal to `previous`."""
    ts_out: int = 0
    ts_in: int = 0
    flags: int = 0


_NO_FIELDS: Final = HeaderFields()


def _header(plan: Plan, body: NDArray[numpy.uint8], fields: HeaderFields, checksum: bool) -> bytes:
    header, sequence = numpy.zeros(HEADER_BYTES, numpy.uint8), fields.sequence or 0
    origin = Origin(fields.schema_id, fields.slice_id, fields.key_rule or 0, fields.epoch)
    write_template(header.ctypes.data, plan, body.ctypes.data, checksum, origin, fields.ts_in)
    previous = sequence if fields.previous is None else fields.previous
    key_sequence = previous if fields.key_sequence is None else fields.key_sequence
    number_header(header.ctypes.data, sequence, previous, key_sequence)
    finish_header(header.ctypes.data, fields.ts_out, fields.flags)
    return header.tobytes()


class Block:
    """Columns of one block, as zero-copy views of its body.

    Attributes: `key` and `header`, bytes; `key_rule`, the low byte of its feed's; `flags`, `schema_id`, `slice_id`;
    `epoch`, the start of its publisher; `ts_out`, its send time, and `ts_in`, when its oldest message was published
    (all ns since 1970); `sequence` of its first message; `count` messages; `topic_count` distinct topics; `stride`
    bytes of each payload, 0 if they differ; `body` uint8 array. Made by `encode` or `decode`, never changed.
    """

    __slots__ = (
        "_layout",
        "_topic_bytes",
        "body",
        "count",
        "epoch",
        "flags",
        "header",
        "key",
        "key_rule",
        "key_sequence",
        "previous",
        "schema_id",
        "sequence",
        "slice_id",
        "stride",
        "topic_count",
        "ts_in",
        "ts_out",
    )

    def __init__(self, key: bytes, header: bytes, body: NDArray[numpy.uint8]) -> None:
        """Wrap frames that `check_block` has accepted; for others use `decode`."""
        self.key, self.header, self.body = key, header, body
        (
            self.key_rule,
            self.flags,
            self.schema_id,
            self.slice_id,
            self.count,
            self.epoch,
            self.sequence,
            self.previous,
            self.key_sequence,
            self.ts_out,
            self.ts_in,
            self.topic_count,
            self._topic_bytes,
            self.stride,
        ) = _HEADER.unpack(header)
        self._layout: BodyLayout | None = None

    @classmethod
    def decode(cls, key: bytes, header: bytes, body: Any) -> Block:
        """Check three frames and wrap them; an 8-byte aligned body is shared, not copied.

        Raises BlockError naming the fault.
        """
        memory = numpy.frombuffer(body, numpy.uint8) if len(body) else numpy.empty(0, numpy.uint8)
        if memory.ctypes.data % 8:
            memory = memory.copy()
        head = numpy.frombuffer(bytes(header).ljust(HEADER_BYTES, b"\0") + bytes(key), numpy.uint8).copy()
        place = head.ctypes.data
        behind = place + head.nbytes - len(key)
        fault = check_block(place, len(header), memory.ctypes.data, memory.nbytes, behind, len(key), RULE_OF_HEADER)
        if fault != Fault.NONE:
            what = FAULT_TEXT[Fault(fault)]
            if fault == Fault.VERSION:
                what = version_text(header[OFFSET_VERSION])
            raise BlockError(f"{what} (key {key!r}, header {len(header)} bytes, body {memory.nbytes} bytes)")
        return cls(bytes(key), bytes(header), memory)

    @classmethod
    def encode(
        cls,
        topics: Sequence[bytes],
        topic_index: Any,
        columns: PayloadColumns,
        fields: HeaderFields = _NO_FIELDS,
        *,
        key: bytes = b"",
        checksum: bool = True,
    ) -> Block:
        """Encode messages as one block. Only topics that occur are written.

        `topic_index`: the index of each message's topic in `topics`.

        Raises BlockError if there are no messages, an index is out of range, a topic lacks the key, or sequences do not
        ascend.
        """
        index = numpy.array(as_integers(topic_index, numpy.int32, "topic_index"))  # a copy, as in `as_rows`
        rule = len(key) if fields.key_rule is None else fields.key_rule
        if any(key_of(rule, topic) != key or topic[:1] in (b"", b"\0") for topic in topics):
            raise BlockError(f"a topic was empty, reserved, or did not have key {key!r}: {list(topics)[:5]!r}")
        if index.size and (index.min() < 0 or index.max() >= len(topics)):
            raise BlockError(f"topic_index ran from {index.min()} to {index.max()}, expected 0 to {len(topics) - 1}")
        if not index.size:
            raise BlockError("a block had 0 messages, expected at least 1")
        sequence = fields.sequence or 0
        if columns.sequences is not None:
            numbers = as_integers(columns.sequences, numpy.int64, "sequences")
            if (numpy.diff(numbers) <= 0).any():
                raise BlockError(f"sequences were {numbers[:5].tolist()}..., expected them to ascend")
            sequence = int(numbers[0])
        rows, alive = as_rows(columns, len(index))
        order = numpy.arange(len(index), dtype=numpy.int32)
        table, distinct = topic_table(topics), distinct_scratch(len(topics))
        plan = plan_block(rows, order, index, 0, len(index), MAX_BODY_BYTES, table, distinct)
        if plan.stop < len(index) or plan_bytes(plan) > MAX_BODY_BYTES:
            raise BlockError(f"the messages needed more than {MAX_BODY_BYTES} bytes, the largest body")
        body = numpy.zeros(plan_bytes(plan), numpy.uint8)
        write_body(body.ctypes.data, plan, rows, order, index, table, distinct)
        del alive
        return cls(key, _header(plan, body, fields._replace(key_rule=rule, sequence=sequence), checksum), body)

    @classmethod
    def encode_ends(cls, key: bytes, ends: Mapping[bytes, End], fields: HeaderFields) -> Block:
        """Return a control block with the end of each key.

        `fields.sequence`: next sequence of the slice; None: the largest of the ends. `fields.ts_in`: latest time before
        messages lost by the source, if the block reports such a loss; else 0.
        """
        keys = topic_table(list(ends))
        plan = plan_ends(keys, len(ends))
        body = numpy.zeros(plan_bytes(plan), numpy.uint8)
        columns = numpy.array([*ends.values()], numpy.int64).reshape(-1, 2).T.copy()
        write_ends(body.ctypes.data, plan, keys, *columns)
        following = max((end.sequence for end in ends.values()), default=0)
        following = following if fields.sequence is None else fields.sequence
        fields = fields._replace(sequence=following, key_sequence=0, flags=fields.flags | FLAG_CONTROL)
        return cls(key, _header(plan, body, fields, True), body)

    def ends(self) -> dict[bytes, End]:
        """Return the end of each key in a control block."""
        numbers = self.body[self.layout.payloads :].view(numpy.int64).reshape(-1, 2).tolist()
        return {key: End(*each) for key, each in zip(self.topics, numbers, strict=True)}

    def __len__(self) -> int:
        return int(self.count)

    def __repr__(self) -> str:
        return (
            f"Block(key={self.key!r}, count={self.count}, topics={self.topic_count}, slice={self.slice_id}, "
            f"sequence={self.sequence}, bytes={self.body.nbytes})"
        )

    @property
    def frames(self) -> tuple[bytes, bytes, memoryview]:
        """Key, header and body, as sent."""
        return self.key, self.header, self.body.data

    @property
    def layout(self) -> BodyLayout:
        """Offsets of the columns in the body."""
        if self._layout is None:
            self._layout = _layout_of(self.count, self.topic_count, self._topic_bytes, 0, self.flags)
        return self._layout

    @property
    def line(self) -> int:
        """Line of the slice on which it was sent: 0 (A) or 1 (B)."""
        return 1 if self.flags & FLAG_LINE_B else 0

    @property
    def is_end(self) -> bool:
        """True if this is the publisher's last block."""
        return bool(self.flags & FLAG_END)

    @property
    def is_fixed(self) -> bool:
        """True if every payload has `stride` bytes."""
        return bool(self.flags & FLAG_FIXED)

    @property
    def has_sequences(self) -> bool:
        """True if the block has a column of sequences."""
        return bool(self.flags & FLAG_SEQUENCES)

    @property
    def sequences(self) -> NDArray[numpy.int64]:
        """int64[count]: sequence of each message in its epoch and slice."""
        if self.has_sequences:
            start = self.layout.sequences
            return self.body[start : start + 8 * self.count].view(numpy.int64)
        return numpy.arange(self.sequence, self.sequence + self.count, dtype=numpy.int64)

    def number_of(self, row: int) -> int:
        """Return the sequence of message `row`; -1: of the last one."""
        if self.has_sequences:
            return int(self.sequences[row])
        return int(self.sequence) + row % int(self.count)

    def row_from(self, sequence: int) -> int:
        """Return the first row with this sequence or a later one; `count`: none."""
        if self.has_sequences:
            return int(numpy.searchsorted(self.sequences, sequence))
        return min(max(0, sequence - int(self.sequence)), int(self.count))

    @property
    def validity(self) -> NDArray[numpy.uint8] | None:
        """One bit per message, lowest first, as in Arrow: 0 if it has no value. None: all have one."""
        if not self.flags & FLAG_NULLS:
            return None
        start = self.layout.validity
        return self.body[start : start + (self.count + 7) // 8]

    @property
    def valid(self) -> NDArray[numpy.bool_]:
        """bool[count]: True if the message has a value."""
        if self.validity is None:
            return numpy.ones(self.count, numpy.bool_)
        return numpy.unpackbits(self.validity, count=self.count, bitorder="little").view(numpy.bool_)

    @property
    def same(self) -> NDArray[numpy.uint8] | None:
        """uint8[count]: sequences since the first row of the message, if it has several topics. None: none has."""
        if not self.flags & FLAG_SAME:
            return None
        start = self.layout.same
        return self.body[start : start + self.count]

    @property
    def ts_event(self) -> NDArray[numpy.int64]:
        """int64[count]: venue time in ns since the epoch; 0 if the venue gave none."""
        return self.body[: 8 * self.count].view(numpy.int64)

    @property
    def topic_index(self) -> NDArray[numpy.int32]:
        """int32[count]: index of each message's topic in `topics`."""
        start = self.layout.topic_index
        return self.body[start : start + 4 * self.count].view(numpy.int32)

    @property
    def topic_offsets(self) -> NDArray[numpy.int32]:
        """int32[topic_count + 1]: start of each topic in `topic_text`."""
        start = self.layout.topic_offsets
        return self.body[start : start + 4 * (self.topic_count + 1)].view(numpy.int32)

    @property
    def topic_text(self) -> NDArray[numpy.uint8]:
        """uint8[...]: the distinct topics, concatenated."""
        start = self.layout.topics
        return self.body[start : start + int(self.topic_offsets[-1])]

    @property
    def topics(self) -> list[bytes]:
        """Distinct topics."""
        offsets = self.topic_offsets.tolist()
        text = self.body[self.layout.topics : self.layout.topics + offsets[-1]].tobytes()
        return list(map(text.__getitem__, map(slice, offsets, offsets[1:])))

    @property
    def payload_offsets(self) -> NDArray[numpy.int32]:
        """int32[count + 1]: start of each payload in `payloads`."""
        if self.is_fixed:
            return numpy.arange(self.count + 1, dtype=numpy.int32) * numpy.int32(self.stride)
        start = self.layout.payload_offsets
        return self.body[start : start + 4 * (self.count + 1)].view(numpy.int32)

    @property
    def payloads(self) -> NDArray[numpy.uint8]:
        """uint8[...]: all payloads, concatenated."""
        return self.body[self.layout.payloads :]

    def payload(self, row: int) -> bytes | Any:
        """Return the payload of message `row`; None if it has no value."""
        if self.validity is not None and not self.validity[row >> 3] >> (row & 7) & 1:
            return None
        offsets = self.payload_offsets
        return self.payloads[offsets[row] : offsets[row + 1]].tobytes()

    def to_arrow(self) -> pyarrow.RecordBatch:
        """Return a record batch on the same memory: `topic` (dictionary), `ts_event` (ns, UTC), `sequence`, `payload`.

        A time of 0 (unknown) is null. Copied are only `sequence`, and a bit per message if a time is 0. Needs pyarrow,
        the extra `arrow`.
        """
        from blackbox.block.columns.arrow import block_to_arrow

        return block_to_arrow(self)
