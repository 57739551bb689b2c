"""A slow and obvious second implementation of the wire format. It shares only the layout table with the core."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import xxhash

from blackbox.block.form import layout
from blackbox.block.form.layout import VERSION

HEADER = struct.Struct("<4s" + layout.HEADER.format[2:].replace("q", "Q"))
"""Epoch, sequence and times are signed, but only values from 0 are valid."""
CHECKED_BYTES = layout.HEADER.offsets["header_checksum"]
"""Number of header bytes covered by its checksum."""
FLAGS = {flag.name: flag.value for flag in layout.FLAGS if flag.travels}
CHECKSUM, FIXED, CONTROL, LINE_B, END, REFUSED = (
    FLAGS[name] for name in ("CHECKSUM", "FIXED", "CONTROL", "LINE_B", "END", "REFUSED")
)
SEQUENCES, NULLS, NUMBERS, SAME = (FLAGS[name] for name in ("SEQUENCES", "NULLS", "NUMBERS", "SAME"))
MAX_BODY = 64 * 1024 * 1024
_BITS = {"i64": 64, "i32": 32, "u32": 32, "byte": 8, "bit": 1}


class Fields(NamedTuple):
    """The header's fields in order."""

    # layout: fields of a header
    magic: bytes = b"BBOX"
    version: int = VERSION
    key_rule: int = 0
    flags: int = CHECKSUM
    schema: int = 0
    slice_id: int = 0
    count: int = 0
    epoch: int = 1
    sequence: int = 0
    previous: int = 0
    key_sequence: int = 0
    ts_out: int = 0
    ts_in: int = 0
    topics: int = 0
    topic_bytes: int = 0
    body_bytes: int = 0
    stride: int = 0
    body_checksum: int = 0
    header_checksum: int = 0
    # end of layout


class Decoded(NamedTuple):
    """Contents of a block."""

    fields: Fields
    topics: list[bytes]
    messages: list[tuple[bytes, Any, int]]
    """(topic, payload, ts_event) of each message; a payload of None means no value."""
    sequences: list[int]
    """Sequence of each message."""
    firsts: list[int]
    """Sequence of the first row of each message."""


def checksum(data: bytes) -> int:
    """Return the low 32 bits of XXH3."""
    return xxhash.xxh3_64_intdigest(data) & 0xFFFFFFFF


def pack(fields: Fields) -> bytes:
    """Return a header with its checksum."""
    head = HEADER.pack(*fields)[:CHECKED_BYTES]
    return head + struct.pack("<I", checksum(head))


def sealed(body: bytes, **fields: Any) -> tuple[bytes, bytes]:
    """Return header and body, with right sizes and checksums unless `fields` overrides them."""
    known: dict[str, Any] = {"body_bytes": len(body), "body_checksum": checksum(body)} | fields
    return pack(Fields(**known)), body


def unpack(header: bytes) -> Fields:
    return Fields(*HEADER.unpack(header))


def pad(data: bytes) -> bytes:
    """Return data padded with zeros to a multiple of 8."""
    return data + bytes(-len(data) % 8)


def body_of(
    ts_event: list[int],
    topic_index: list[int],
    topics: list[bytes],
    payloads: Sequence[bytes | None],
    fixed: bool,
    sequences: list[int] | None = None,
    same: list[int] | None = None,
) -> bytes:
    """Return a body, column by column. It has a column of nulls if any payload is None."""
    data = [payload or b"" for payload in payloads]
    columns = {
        "ts_event": struct.pack(f"<{len(ts_event)}q", *ts_event),
        "topic_index": struct.pack(f"<{len(topic_index)}i", *topic_index),
        "topic_offsets": struct.pack(f"<{len(topics) + 1}i", *_offsets(topics)),
        "topics": b"".join(topics),
        "payloads": b"".join(data),
    }
    if not fixed:
        columns["payload_offsets"] = struct.pack(f"<{len(data) + 1}i", *_offsets(data))
    if sequences is not None:
        columns["sequences"] = struct.pack(f"<{len(sequences)}q", *sequences)
    if same is not None:
        columns["same"] = bytes(same)
    if None in payloads:
        bits = sum((payload is not None) << i for i, payload in enumerate(payloads))
        columns["validity"] = bits.to_bytes(-(-len(payloads) // 8), "little")
    body = b""
    for column in layout.COLUMNS:
        body = pad(body) + columns.get(column.name, b"")
    return body


def data(
    rows: Sequence[tuple[bytes, bytes | None, int]],
    *,
    sequences: list[int] | None = None,
    same: list[int] | None = None,
    **fields: Any,
) -> tuple[bytes, bytes]:
    """Return header and body of messages, each (topic, payload, ts_event)."""
    topics = list(dict.fromkeys(topic for topic, _, _ in rows))
    sizes = {len(payload or b"") for _, payload, _ in rows}
    fixed = len(sizes) <= 1
    body = body_of(
        [ts_event for _, _, ts_event in rows],
        [topics.index(topic) for topic, _, _ in rows],
        topics,
        [payload for _, payload, _ in rows],
        fixed,
        sequences,
        same,
    )
    flags = fields.pop("flags", CHECKSUM) | (FIXED if fixed else 0) | (SEQUENCES if sequences is not None else 0)
    flags |= NULLS if any(payload is None for _, payload, _ in rows) else 0
    flags |= 0 if same is None else SAME
    previous = fields.get("previous", fields.get("sequence", 0))
    known = {
        "count": len(rows),
        "topics": len(topics),
        "topic_bytes": sum(map(len, topics)),
        "stride": max(sizes, default=0) if fixed else 0,
        "previous": previous,
        "key_sequence": previous,
    }
    return sealed(body, flags=flags, **(known | fields))


def control(ends: Mapping[bytes, int | tuple[int, int]], flags: int = 0, **fields: Any) -> tuple[bytes, bytes]:
    """Return header and body of a control block. `ends` has (end, count) by key, or one number for both.

    The slice's next sequence is the largest end, unless `fields` overrides it.
    """
    both = {key: (end, end) if isinstance(end, int) else end for key, end in ends.items()}
    rows = [(key, struct.pack("<qq", *end), 0) for key, end in both.items()]
    following = fields.get("sequence", max((end for end, _ in both.values()), default=0))
    known = {"sequence": following, "previous": following, "key_sequence": 0}
    return data(rows, **(known | fields | {"flags": CHECKSUM | CONTROL | FIXED | flags, "stride": 16}))


def ends_of(control: Decoded) -> dict[bytes, tuple[int, int]]:
    """Return the end and the number of messages of each key in a control block."""
    return {key: struct.unpack("<qq", numbers) for key, numbers, _ in control.messages}


def is_there(column: layout.Column, fields: Fields) -> bool:
    """Return True if a block with this header has the column."""
    return not column.flag or bool(fields.flags & FLAGS[column.flag]) != column.only.startswith("not ")


def starts_of(fields: Fields) -> dict[str, int]:
    """Return the start of each column in the body of a block with this header."""
    at, starts = 0, {}
    for column in layout.COLUMNS:
        starts[column.name] = at = _up(at)
        if is_there(column, fields) and column.name != "payloads":
            at += -(-_BITS[column.type] * eval(column.items, {}, fields._asdict()) // 8)
    return starts


def decode(key: bytes | None, header: bytes, body: bytes) -> Decoded:
    """Decode a block; with a key of None, the key of its first topic. Raises ValueError with the reason if invalid."""
    _require(len(header) == HEADER.size, "header size")
    fields = unpack(header)
    _check_fields(fields, header)
    control, fixed = bool(fields.flags & CONTROL), bool(fields.flags & FIXED)
    _require(len(body) == fields.body_bytes <= MAX_BODY, "body size")
    if fields.flags & CHECKSUM:
        _require(fields.body_checksum == checksum(body), "body checksum")
    at = starts_of(fields)
    _require(at["payloads"] <= len(body), "columns")
    data = body[at["payloads"] :]
    ts_event = struct.unpack_from(f"<{fields.count}q", body, 0)
    topic_index = struct.unpack_from(f"<{fields.count}i", body, at["topic_index"])
    _require(all(0 <= i < fields.topics for i in topic_index), "topic index")
    if fixed:
        _require(fields.stride * fields.count == len(data), "stride")
        offsets: tuple[int, ...] = (
            tuple(range(0, len(data) + 1, fields.stride)) if fields.stride else (0,) * (fields.count + 1)
        )
    else:
        _require(fields.stride == 0, "stride")
        offsets = struct.unpack_from(f"<{fields.count + 1}i", body, at["payload_offsets"])
        _require(_runs(offsets, len(data)), "payload offsets")
    topic_offsets = struct.unpack_from(f"<{fields.topics + 1}i", body, at["topic_offsets"])
    _require(_runs(topic_offsets, fields.topic_bytes), "topic offsets")
    text = body[at["topics"] :][: fields.topic_bytes]
    topics = [text[a:b] for a, b in zip(topic_offsets, topic_offsets[1:], strict=False)]
    is_channel = fields.key_rule > 8
    key = topics[0][: fields.key_rule] if key is None else key
    if not control:
        _require(
            len(key) == 1 and 1 <= key[0] <= fields.key_rule - 8 if is_channel else len(key) <= fields.key_rule, "key"
        )
        for topic in topics:
            _require(1 <= len(topic) <= 65_535, "topic size")
            _require((is_channel or topic[: fields.key_rule] == key) and topic[0] != 0, "topic key")
    payloads: list[Any] = [data[a:b] for a, b in zip(offsets, offsets[1:], strict=False)]
    if fields.flags & NULLS:
        bits = int.from_bytes(body[at["validity"] :][: -(-fields.count // 8)], "little")
        _require(bits < 1 << fields.count, "validity")
        for i in range(fields.count):
            if not bits >> i & 1:
                _require(payloads[i] == b"", "payload without a value")
                payloads[i] = None
    sequences = list(range(fields.sequence, fields.sequence + fields.count))
    if fields.flags & SEQUENCES:
        sequences = list(struct.unpack_from(f"<{fields.count}q", body, at["sequences"]))
        _require(sequences[0] == fields.sequence, "first sequence")
        _require(sequences == sorted(set(sequences)) and sequences[-1] <= 1 << 62, "sequences")
    firsts = list(sequences)
    if fields.flags & SAME:
        firsts = [number - back for number, back in zip(sequences, body[at["same"] :], strict=False)]
        for row in range(1, fields.count):
            _require(firsts[row] in (sequences[row], firsts[row - 1]) or firsts[row] > sequences[row - 1], "same")
    messages = [(topics[i], payload, ts) for i, payload, ts in zip(topic_index, payloads, ts_event, strict=True)]
    return Decoded(fields, topics, messages, sequences, firsts)


def _check_fields(fields: Fields, header: bytes) -> None:
    _require(fields.magic == b"BBOX", "magic")
    _require(fields.version == VERSION, "version")
    _require(fields.header_checksum == checksum(header[:CHECKED_BYTES]), "header checksum")
    _require(fields.flags & ~sum(FLAGS.values()) == 0, "flags")
    control, fixed = bool(fields.flags & CONTROL), bool(fields.flags & FIXED)
    others = SEQUENCES | NULLS | NUMBERS | SAME if control else END | REFUSED
    _require(fields.flags & others == 0, "flags of the other kind")
    _require(fields.key_rule <= 136, "key rule")
    if control:
        _require(fixed and fields.stride == 16 and fields.topics == fields.count, "control counts")
    else:
        _require(1 <= fields.topics <= fields.count, "counts")
    _require(
        all(0 <= number <= 1 << 62 for number in (fields.sequence, fields.ts_out, fields.ts_in)), "sequence or time"
    )
    _require(fields.key_sequence <= fields.previous <= fields.sequence, "previous and key_sequence")
    _require(0 < fields.epoch < 1 << 63, "epoch")


def is_valid(key: bytes, header: bytes, body: bytes) -> bool:
    try:
        decode(key, header, body)
    except ValueError:
        return False
    return True


def _offsets(parts: list[bytes]) -> list[int]:
    return [sum(map(len, parts[:i])) for i in range(len(parts) + 1)]


def _up(offset: int) -> int:
    return -(-offset // 8) * 8


def _runs(offsets: tuple[int, ...], last: int) -> bool:
    return offsets[0] == 0 and offsets[-1] == last and list(offsets) == sorted(offsets)


def _require(good: bool, what: str) -> None:
    if not good:
        raise ValueError(what)
