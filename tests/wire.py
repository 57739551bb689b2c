"""The wire format once more, written by hand from its description: slow, obvious, and sharing no code with the core."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import xxhash

HEADER = struct.Struct("<4sBBHHHIQQQQIIIIII")
"""Epoch, sequence and times are signed, but valid only from 0 on."""
CHECKSUM, FIXED, CONTROL, LINE_B, END, SEQUENCES, NULLS = (1 << bit for bit in range(7))
NUMBERS = 256
MAX_BODY = 64 * 1024 * 1024


class Fields(NamedTuple):
    """The header's fields, in the order in which they stand."""

    magic: bytes = b"BBOX"
    version: int = 2
    key_bytes: int = 0
    flags: int = CHECKSUM
    schema: int = 0
    slice_id: int = 0
    count: int = 0
    epoch: int = 1
    sequence: int = 0
    ts_out: int = 0
    ts_in: int = 0
    topics: int = 0
    topic_bytes: int = 0
    body_bytes: int = 0
    stride: int = 0
    body_checksum: int = 0
    header_checksum: int = 0


class Decoded(NamedTuple):
    """What a block says."""

    fields: Fields
    topics: list[bytes]
    messages: list[tuple[bytes, Any, int]]
    """(topic, payload, ts_event); a payload of None: no value."""
    sequences: list[int]
    """Of each message."""


def checksum(data: bytes) -> int:
    """The low 32 bits of XXH3."""
    return xxhash.xxh3_64_intdigest(data) & 0xFFFFFFFF


def pack(fields: Fields) -> bytes:
    """The 72 bytes of a header, its own checksum made right."""
    head = HEADER.pack(*fields)[:68]
    return head + struct.pack("<I", checksum(head))


def sealed(body: bytes, **fields: Any) -> tuple[bytes, bytes]:
    """Header and body, with sizes and checksums right unless `fields` say otherwise."""
    known: dict[str, Any] = {"body_bytes": len(body), "body_checksum": checksum(body)} | fields
    return pack(Fields(**known)), body


def unpack(header: bytes) -> Fields:
    return Fields(*HEADER.unpack(header))


def pad(data: bytes) -> bytes:
    """Zeros up to a multiple of 8."""
    return data + bytes(-len(data) % 8)


def body_of(
    ts_event: list[int],
    topic_index: list[int],
    topics: list[bytes],
    payloads: Sequence[bytes | None],
    fixed: bool,
    sequences: list[int] | None = None,
) -> bytes:
    """A body, column by column. Some payload of None: it has a column that says so."""
    data = [payload or b"" for payload in payloads]
    body = struct.pack(f"<{len(ts_event)}q", *ts_event)
    body += pad(struct.pack(f"<{len(topic_index)}i", *topic_index))
    if not fixed:
        body += pad(struct.pack(f"<{len(data) + 1}i", *_offsets(data)))
    if sequences is not None:
        body += struct.pack(f"<{len(sequences)}q", *sequences)
    if None in payloads:
        bits = sum((payload is not None) << i for i, payload in enumerate(payloads))
        body += pad(bits.to_bytes(-(-len(payloads) // 8), "little"))
    body += pad(struct.pack(f"<{len(topics) + 1}i", *_offsets(topics)))
    return body + pad(b"".join(topics)) + b"".join(data)


def decode(key: bytes | None, header: bytes, body: bytes) -> Decoded:
    """Read a block; a key of None is its first topic's. Raises ValueError with the reason when it is not valid."""
    _require(len(header) == 72, "header size")
    fields = unpack(header)
    _check_fields(fields, header)
    control, fixed = bool(fields.flags & CONTROL), bool(fields.flags & FIXED)
    _require(len(body) == fields.body_bytes <= MAX_BODY, "body size")
    if fields.flags & CHECKSUM:
        _require(fields.body_checksum == checksum(body), "body checksum")
    at = 8 * fields.count
    index_at = at
    at = _up(at + 4 * fields.count)
    offsets_at = at
    if not fixed:
        at = _up(at + 4 * (fields.count + 1))
    sequences_at = at
    if fields.flags & SEQUENCES:
        at += 8 * fields.count
    validity_at = at
    if fields.flags & NULLS:
        at = _up(at + -(-fields.count // 8))
    topic_offsets_at = at
    at = _up(at + 4 * (fields.topics + 1))
    text_at = at = _up(at + 4 * fields.topics * bool(fields.flags & NUMBERS))
    payloads_at = _up(at + fields.topic_bytes)
    _require(payloads_at <= len(body), "columns")
    data = body[payloads_at:]
    ts_event = struct.unpack_from(f"<{fields.count}q", body, 0)
    topic_index = struct.unpack_from(f"<{fields.count}i", body, index_at)
    _require(all(0 <= i < fields.topics for i in topic_index), "topic index")
    if fixed:
        _require(fields.stride * fields.count == len(data), "stride")
        offsets: tuple[int, ...] = (
            tuple(range(0, len(data) + 1, fields.stride)) if fields.stride else (0,) * (fields.count + 1)
        )
    else:
        offsets = struct.unpack_from(f"<{fields.count + 1}i", body, offsets_at)
        _require(_runs(offsets, len(data)), "payload offsets")
    topic_offsets = struct.unpack_from(f"<{fields.topics + 1}i", body, topic_offsets_at)
    _require(_runs(topic_offsets, fields.topic_bytes), "topic offsets")
    text = body[text_at : text_at + fields.topic_bytes]
    topics = [text[a:b] for a, b in zip(topic_offsets, topic_offsets[1:], strict=False)]
    key = topics[0][: fields.key_bytes] if key is None else key
    if not control:
        _require(len(key) <= fields.key_bytes, "key")
        for topic in topics:
            _require(1 <= len(topic) <= 65_535, "topic size")
            _require(topic[: fields.key_bytes] == key and topic[0] != 0, "topic key")
    payloads: list[Any] = [data[a:b] for a, b in zip(offsets, offsets[1:], strict=False)]
    if fields.flags & NULLS:
        bits = int.from_bytes(body[validity_at : validity_at + -(-fields.count // 8)], "little")
        _require(bits < 1 << fields.count, "validity")
        for i in range(fields.count):
            if not bits >> i & 1:
                _require(payloads[i] == b"", "payload without a value")
                payloads[i] = None
    sequences = list(range(fields.sequence, fields.sequence + fields.count))
    if fields.flags & SEQUENCES:
        sequences = list(struct.unpack_from(f"<{fields.count}q", body, sequences_at))
        _require(sequences[0] == fields.sequence, "first sequence")
        _require(sequences == sorted(set(sequences)) and sequences[-1] <= 1 << 62, "sequences")
    messages = [(topics[i], payload, ts) for i, payload, ts in zip(topic_index, payloads, ts_event, strict=True)]
    return Decoded(fields, topics, messages, sequences)


def _check_fields(fields: Fields, header: bytes) -> None:
    _require(fields.magic == b"BBOX", "magic")
    _require(fields.version == 2, "version")
    _require(fields.header_checksum == checksum(header[:68]), "header checksum")
    _require(fields.flags & ~(127 | NUMBERS) == 0, "flags")
    _require(not (fields.flags & CONTROL and fields.flags & (SEQUENCES | NULLS | NUMBERS)), "flags of control")
    _require(fields.key_bytes <= 8, "key bytes")
    control, fixed = bool(fields.flags & CONTROL), bool(fields.flags & FIXED)
    if control:
        _require(fixed and fields.stride == 8 and fields.topics == fields.count, "control counts")
    else:
        _require(1 <= fields.topics <= fields.count, "counts")
    _require(all(0 <= number <= 1 << 62 for number in fields[8:11]), "sequence or time")
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
