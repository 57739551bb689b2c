"""Decide in compiled code whether a block may be read, before anything in it is believed."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy
from numba import njit

from blackbox.atoms import bytes_at, inner, int32s_at, int64s_at, uint16s_at, uint64s_at
from blackbox.layout import (
    FLAG_CHECKSUM,
    FLAG_CONTROL,
    FLAG_FIXED,
    HEADER_BYTES,
    KNOWN_FLAGS,
    MAGIC,
    MAX_BODY_BYTES,
    MAX_SEQUENCE,
    MAX_TOPIC_BYTES,
    OFFSET_BODY_BYTES,
    OFFSET_BODY_CHECKSUM,
    OFFSET_COUNT,
    OFFSET_EPOCH,
    OFFSET_FLAGS,
    OFFSET_HEADER_CHECKSUM,
    OFFSET_MAGIC,
    OFFSET_RESERVED,
    OFFSET_SCHEMA,
    OFFSET_SEQUENCE,
    OFFSET_SLICE,
    OFFSET_STRIDE,
    OFFSET_TOPIC_BYTES,
    OFFSET_TOPICS,
    OFFSET_TS_OUT,
    OFFSET_VERSION,
    VERSION,
    body_layout,
)
from blackbox.xxh3 import checksum_32


class Fault(IntEnum):
    """What is wrong with a block; NONE when it may be read."""

    NONE = 0
    HEADER_SIZE = 1
    MAGIC = 2
    VERSION = 3
    FLAGS = 4
    HEADER_CHECKSUM = 5
    COUNTS = 6
    BODY_SIZE = 7
    BODY_CHECKSUM = 8
    TOPIC_INDEX = 9
    PAYLOAD_OFFSETS = 10
    TOPIC_OFFSETS = 11
    TOPIC_KEY = 12
    FRAMES = 13
    RESERVED_KEY = 14
    SLICE = 15


FAULT_TEXT = {
    Fault.HEADER_SIZE: f"header size was not {HEADER_BYTES}",
    Fault.MAGIC: "magic was not b'BBOX'",
    Fault.VERSION: f"version was not {VERSION}",
    Fault.FLAGS: "reserved flags or bytes were set",
    Fault.HEADER_CHECKSUM: "header checksum did not match",
    Fault.COUNTS: "message, topic or byte counts were impossible",
    Fault.BODY_SIZE: "body size did not match the header",
    Fault.BODY_CHECKSUM: "body checksum did not match",
    Fault.TOPIC_INDEX: "a topic index was out of range",
    Fault.PAYLOAD_OFFSETS: "payload offsets were not ascending within the body",
    Fault.TOPIC_OFFSETS: "topic offsets were not ascending, or a topic was empty or too long",
    Fault.TOPIC_KEY: "a topic did not start with the block's key, or was reserved",
    Fault.FRAMES: "a message did not have three frames",
    Fault.RESERVED_KEY: "a control block's key was not reserved, or another's was",
    Fault.SLICE: "a block came on the line of another slice",
}

_NONE = int(Fault.NONE)
_HEADER_SIZE = int(Fault.HEADER_SIZE)
_MAGIC = int(Fault.MAGIC)
_VERSION = int(Fault.VERSION)
_FLAGS = int(Fault.FLAGS)
_HEADER_CHECKSUM = int(Fault.HEADER_CHECKSUM)
_COUNTS = int(Fault.COUNTS)
_BODY_SIZE = int(Fault.BODY_SIZE)
_BODY_CHECKSUM = int(Fault.BODY_CHECKSUM)
_TOPIC_INDEX = int(Fault.TOPIC_INDEX)
_PAYLOAD_OFFSETS = int(Fault.PAYLOAD_OFFSETS)
_TOPIC_OFFSETS = int(Fault.TOPIC_OFFSETS)
_TOPIC_KEY = int(Fault.TOPIC_KEY)


class Header(NamedTuple):
    """The fields of a header, as `read_header` finds them."""

    flags: int
    schema_id: int
    slice_id: int
    count: int
    epoch: int
    sequence: int
    ts_out: int
    topics: int
    topic_bytes: int
    body_bytes: int
    stride: int
    body_checksum: int


@njit(inline="always")
def _widen(value: int) -> Any:
    return numpy.int64(value)


@njit(inline="always")
def _uint32(address: int) -> int:
    return numpy.int64(int32s_at(address, 1)[0]) & 0xFFFFFFFF


@njit(nogil=True, cache=True)
def read_header(address: int) -> Header:
    """The fields of the 64 bytes at `address`. Epoch is uint64, all else int64."""
    return Header(
        _widen(bytes_at(address + OFFSET_FLAGS, 1)[0]),
        _widen(uint16s_at(address + OFFSET_SCHEMA, 1)[0]),
        _widen(uint16s_at(address + OFFSET_SLICE, 1)[0]),
        _uint32(address + OFFSET_COUNT),
        uint64s_at(address + OFFSET_EPOCH, 1)[0],
        int64s_at(address + OFFSET_SEQUENCE, 1)[0],
        int64s_at(address + OFFSET_TS_OUT, 1)[0],
        _uint32(address + OFFSET_TOPICS),
        _uint32(address + OFFSET_TOPIC_BYTES),
        _uint32(address + OFFSET_BODY_BYTES),
        _uint32(address + OFFSET_STRIDE),
        _uint32(address + OFFSET_BODY_CHECKSUM),
    )


@njit(nogil=True, cache=True)
def check_header(address: int, size: int) -> int:
    """Fault of the header alone: enough to trust its sequence, count and lengths."""
    if size != HEADER_BYTES:
        return _HEADER_SIZE
    if _uint32(address + OFFSET_MAGIC) != MAGIC:
        return _MAGIC
    if bytes_at(address + OFFSET_VERSION, 1)[0] != VERSION:
        return _VERSION
    if _uint32(address + OFFSET_HEADER_CHECKSUM) != checksum_32(address, OFFSET_HEADER_CHECKSUM):
        return _HEADER_CHECKSUM
    header = read_header(address)
    if header.flags & ~KNOWN_FLAGS or uint16s_at(address + OFFSET_RESERVED, 1)[0] != 0:
        return _FLAGS
    control = header.flags & FLAG_CONTROL
    if control and (header.flags & FLAG_FIXED == 0 or header.stride != 8 or header.count != header.topics):
        return _COUNTS
    if not control and (header.count == 0 or header.topics == 0 or header.topics > header.count):
        return _COUNTS
    if header.sequence < 0 or header.sequence > MAX_SEQUENCE or header.body_bytes > MAX_BODY_BYTES:
        return _COUNTS
    if header.ts_out < 0 or header.ts_out > MAX_SEQUENCE:  # further away, its lag would overflow
        return _COUNTS
    return _NONE


@inner
def _ascending(address: int, count: int, last: int) -> bool:
    """Whether int32[count + 1] at `address` runs from 0 to `last` without a step down."""
    offsets = int32s_at(address, count + 1)
    good = offsets[0] == 0 and offsets[count] == last
    for i in range(count):
        good &= offsets[i] <= offsets[i + 1]
    return good


@njit(nogil=True, cache=True)
def check_block(
    header_address: int,
    header_size: int,
    body_address: int,
    body_size: int,
    key_address: int,
    key_size: int,
) -> int:
    """The block's `Fault`. Reads nothing outside the three frames, whatever they hold.

    Header and body must be 8-byte aligned.
    """
    fault = check_header(header_address, header_size)
    if fault != _NONE:
        return fault
    return check_body(header_address, body_address, body_size, key_address, key_size, True)


@njit(nogil=True, cache=True)
def check_body(
    header_address: int, body_address: int, body_size: int, key_address: int, key_size: int, with_checksum: bool
) -> int:
    """As `check_block`, for a header that `check_header` has passed; the body's checksum only `with_checksum`."""
    header = read_header(header_address)
    if header.body_bytes != body_size:
        return _BODY_SIZE
    # The counts are bounded by the body before any arithmetic uses them, so that no sum can overflow.
    if header.count * 12 > body_size or header.topics * 4 > body_size or header.topic_bytes > body_size:
        return _COUNTS
    fixed = header.flags & FLAG_FIXED != 0
    if fixed and header.stride * header.count > body_size:
        return _COUNTS
    layout = body_layout(header.count, header.topics, header.topic_bytes, 0, fixed)
    payload_bytes = body_size - layout.payloads
    if payload_bytes < 0 or (fixed and payload_bytes != header.stride * header.count):
        return _COUNTS
    has_checksum = with_checksum and header.flags & FLAG_CHECKSUM
    if has_checksum and checksum_32(body_address, body_size) != header.body_checksum:
        return _BODY_CHECKSUM
    topic_index = int32s_at(body_address + layout.topic_index, header.count)
    highest = numpy.uint32(0)
    for i in range(header.count):
        highest = max(highest, numpy.uint32(topic_index[i]))
    if header.count > 0 and highest >= header.topics:
        return _TOPIC_INDEX
    if not fixed and not _ascending(body_address + layout.payload_offsets, header.count, payload_bytes):
        return _PAYLOAD_OFFSETS
    return _check_topics(header, body_address, layout.topic_offsets, layout.topics, key_address, key_size)


@inner
def _check_topics(
    header: Header,
    body_address: int,
    offsets_place: int,
    text_place: int,
    key_address: int,
    key_size: int,
) -> int:
    if not _ascending(body_address + offsets_place, header.topics, header.topic_bytes):
        return _TOPIC_OFFSETS
    if header.flags & FLAG_CONTROL:
        return _NONE
    offsets = int32s_at(body_address + offsets_place, header.topics + 1)
    text = bytes_at(body_address + text_place, header.topic_bytes)
    key = bytes_at(key_address, key_size)
    for topic in range(header.topics):
        start = offsets[topic]
        size = offsets[topic + 1] - start
        if size == 0 or size > MAX_TOPIC_BYTES:
            return _TOPIC_OFFSETS
        if size < key_size or text[start] == 0:
            return _TOPIC_KEY
        for i in range(key_size):
            if text[start + i] != key[i]:
                return _TOPIC_KEY
    return _NONE
