"""The wire format once more, written by hand from its description: slow, obvious, and sharing no code with the core."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import xxhash

HEADER = struct.Struct("<4sBBHHHIQQQIIIIII")
"""Sequence and ts_out are signed, but valid only from 0 on."""
CHECKSUM, FIXED, CONTROL, LINE_B, END = 1, 2, 4, 8, 16
MAX_BODY = 64 * 1024 * 1024


class Fields(NamedTuple):
    """The header's fields, in the order in which they stand."""

    magic: bytes = b"BBOX"
    version: int = 1
    flags: int = CHECKSUM
    schema: int = 0
    slice_id: int = 0
    reserved: int = 0
    count: int = 0
    epoch: int = 0
    sequence: int = 0
    ts_out: int = 0
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
    messages: list[tuple[bytes, bytes, int]]
    """(topic, payload, ts_event)."""


def checksum(data: bytes) -> int:
    """The low 32 bits of XXH3."""
    return xxhash.xxh3_64_intdigest(data) & 0xFFFFFFFF


def pack(fields: Fields) -> bytes:
    """The 64 bytes of a header, its own checksum made right."""
    head = HEADER.pack(*fields)[:60]
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
    ts_event: list[int], topic_index: list[int], topics: list[bytes], payloads: list[bytes], fixed: bool
) -> bytes:
    """A body, column by column."""
    body = struct.pack(f"<{len(ts_event)}q", *ts_event)
    body += pad(struct.pack(f"<{len(topic_index)}i", *topic_index))
    if not fixed:
        body += pad(struct.pack(f"<{len(payloads) + 1}i", *_offsets(payloads)))
    body += pad(struct.pack(f"<{len(topics) + 1}i", *_offsets(topics)))
    return body + pad(b"".join(topics)) + b"".join(payloads)


def decode(key: bytes, header: bytes, body: bytes) -> Decoded:
    """Read a block. Raises ValueError with the reason when it is not valid."""
    _require(len(header) == 64, "header size")
    fields = unpack(header)
    _require(fields.magic == b"BBOX", "magic")
    _require(fields.version == 1, "version")
    _require(fields.header_checksum == checksum(header[:60]), "header checksum")
    _require(fields.flags < 32 and fields.reserved == 0, "reserved")
    control, fixed = bool(fields.flags & CONTROL), bool(fields.flags & FIXED)
    if control:
        _require(fixed and fields.stride == 8 and fields.topics == fields.count, "control counts")
    else:
        _require(1 <= fields.topics <= fields.count, "counts")
    _require(fields.sequence <= 1 << 62 and fields.ts_out <= 1 << 62, "sequence or time")
    _require(len(body) == fields.body_bytes <= MAX_BODY, "body size")
    if fields.flags & CHECKSUM:
        _require(fields.body_checksum == checksum(body), "body checksum")
    at = 8 * fields.count
    index_at = at
    at = _up(at + 4 * fields.count)
    offsets_at = at
    if not fixed:
        at = _up(at + 4 * (fields.count + 1))
    topic_offsets_at = at
    at = _up(at + 4 * (fields.topics + 1))
    text_at = at
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
    if not control:
        for topic in topics:
            _require(1 <= len(topic) <= 65_535, "topic size")
            _require(topic.startswith(key) and topic[0] != 0, "topic key")
    payloads = [data[a:b] for a, b in zip(offsets, offsets[1:], strict=False)]
    messages = [(topics[i], payload, ts) for i, payload, ts in zip(topic_index, payloads, ts_event, strict=True)]
    return Decoded(fields, topics, messages)


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
