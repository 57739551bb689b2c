"""Validate a block in compiled code before any of it is used."""

from __future__ import annotations

from enum import IntEnum

import numpy

from blackbox.block.form.format import (
    CHECKED_BYTES,
    END_BYTES,
    FLAG_CHECKSUM,
    FLAG_CONTROL,
    FLAG_END,
    FLAG_FIXED,
    FLAG_NULLS,
    FLAG_NUMBERS,
    FLAG_REFUSED,
    FLAG_SAME,
    FLAG_SEQUENCES,
    HEADER_BYTES,
    KNOWN_FLAGS,
    LEAST_ROW_BYTES,
    MAGIC,
    MAX_BODY_BYTES,
    MAX_SEQUENCE,
    MAX_TOPIC_BYTES,
    OFFSET_VERSION,
    VERSION,
    BodyLayout,
    Header,
    block_header_at,
    is_same,
    layout_of,
    read_header,
    sequence_of,
)
from blackbox.feed.routing.compiled_routing import find_key
from blackbox.feed.routing.key_rule import MAX_CHANNELS, MAX_KEY_BYTES
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import bytes_at, inner, int32s_at, int64s_at
from blackbox.native.tables.xxh3 import checksum_32


class Fault(IntEnum):
    """Fault of a block; NONE if it is valid."""

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
    KEY_RULE = 16
    NUMBERS = 17
    SEQUENCES = 18
    VALIDITY = 19
    EPOCH = 20
    SAME = 21


RULE_OF_HEADER = -1
"""Value of `rule` if the feed is not known: channels are then not compared with the topics."""

KEY_OF_TOPICS = -1
"""Key size of a stored block, which has no key frame: all its topics must have the same key."""

FAULT_TEXT = {
    Fault.HEADER_SIZE: f"header size was not {HEADER_BYTES}",
    Fault.MAGIC: "magic was not b'BBOX'",
    Fault.VERSION: f"version was not {VERSION}",
    Fault.FLAGS: f"flags were set that version {VERSION} does not have, or not for this kind of block",
    Fault.HEADER_CHECKSUM: "header checksum did not match",
    Fault.COUNTS: "message, topic or byte counts were impossible",
    Fault.BODY_SIZE: "body size did not match the header",
    Fault.BODY_CHECKSUM: "body checksum did not match",
    Fault.TOPIC_INDEX: "a topic index was out of range",
    Fault.PAYLOAD_OFFSETS: "payload offsets were not ascending within the body",
    Fault.TOPIC_OFFSETS: "topic offsets were not ascending, or a topic was empty or too long",
    Fault.TOPIC_KEY: "a topic did not have the block's key, or was reserved",
    Fault.FRAMES: "a message did not have three frames",
    Fault.RESERVED_KEY: "a control block's key was not reserved, or another's was",
    Fault.SLICE: "a block came on the line of another slice",
    Fault.KEY_RULE: "key_bytes or channels of a block were not those of the feed",
    Fault.NUMBERS: "epoch or a time was out of range, or not key_sequence <= previous <= sequence",
    Fault.SEQUENCES: "sequence numbers were not ascending from the header's on",
    Fault.VALIDITY: "a message without a value had a payload, or the validity had bits after the last message",
    Fault.SAME: "the rows of a message with several topics did not agree on its first row",
    Fault.EPOCH: "the publisher's run began in the future: one of the two clocks is wrong",
}


def version_text(version: int) -> str:
    """Return the error for a block of another version."""
    return f"block version was {version}, expected {VERSION}: use the same release of blackbox on both sides"


_CONTROL_ONLY = FLAG_END | FLAG_REFUSED
_DATA_ONLY = FLAG_SEQUENCES | FLAG_NULLS | FLAG_NUMBERS | FLAG_SAME
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
_KEY_RULE = int(Fault.KEY_RULE)
_NUMBERS = int(Fault.NUMBERS)
_SEQUENCES = int(Fault.SEQUENCES)
_VALIDITY = int(Fault.VALIDITY)
_SAME = int(Fault.SAME)


@njit(nogil=True, cache=True)
def check_header(address: int, size: int) -> int:
    """Return the `Fault` of the header alone: enough to trust its sequence, count and lengths."""
    # First: other versions may have headers of other sizes.
    header = block_header_at(address)
    if size > OFFSET_VERSION and header.magic == MAGIC and header.version != VERSION:
        return _VERSION
    if size != HEADER_BYTES:
        return _HEADER_SIZE
    if header.magic != MAGIC:
        return _MAGIC
    if header.header_checksum != checksum_32(address, CHECKED_BYTES):
        return _HEADER_CHECKSUM
    return _check_fields(read_header(address))


@inner
def _check_fields(header: Header) -> int:
    control = header.flags & FLAG_CONTROL
    if header.flags & ~KNOWN_FLAGS or header.flags & (_DATA_ONLY if control else _CONTROL_ONLY):
        return _FLAGS
    if header.key_rule > MAX_KEY_BYTES + MAX_CHANNELS:
        return _KEY_RULE
    if control and (header.flags & FLAG_FIXED == 0 or header.stride != END_BYTES or header.count != header.topics):
        return _COUNTS
    if not control and (header.count == 0 or header.topics == 0 or header.topics > header.count):
        return _COUNTS
    if header.body_bytes > MAX_BODY_BYTES or (header.flags & FLAG_FIXED == 0 and header.stride != 0):
        return _COUNTS
    if header.epoch <= 0 or header.sequence > MAX_SEQUENCE:
        return _NUMBERS
    if not 0 <= header.key_sequence <= header.previous <= header.sequence:
        return _NUMBERS
    # With later times a lag would overflow.
    if header.ts_out < 0 or header.ts_out > MAX_SEQUENCE or header.ts_in < 0 or header.ts_in > MAX_SEQUENCE:
        return _NUMBERS
    return _NONE


@inner
def _ascending(address: int, count: int, last: int) -> bool:
    """Return True if int32[count + 1] at `address` ascends from 0 to `last`."""
    offsets = int32s_at(address, count + 1)
    good = offsets[0] == 0 and offsets[count] == last
    for i in range(count):
        good &= offsets[i] <= offsets[i + 1]
    return good


@inner
def _are_sequences(header: Header, address: int) -> bool:
    sequences = int64s_at(address, header.count)
    last = header.sequence - 1
    good = sequences[0] == header.sequence and sequences[header.count - 1] <= MAX_SEQUENCE
    for i in range(header.count):
        good &= sequences[i] > last
        last = sequences[i]
    return good


@inner
def _is_validity(header: Header, layout: BodyLayout, body: int) -> bool:
    size = (header.count + 7) >> 3
    valid = bytes_at(body + layout.validity, size)
    good = header.count & 7 == 0 or valid[size - 1] >> (header.count & 7) == 0
    fixed = header.flags & FLAG_FIXED != 0
    offsets = int32s_at(body + layout.payload_offsets, 0 if fixed else header.count + 1)
    for i in range(header.count):
        if valid[i >> 3] >> (i & 7) & 1 == 0:
            good &= header.stride == 0 if fixed else offsets[i] == offsets[i + 1]
    return good


@inner
def _are_same(header: Header, layout: BodyLayout, body: int) -> bool:
    same = bytes_at(body + layout.same, header.count)
    good = True
    for row in range(1, header.count):
        if is_same(header, layout, body, row):
            step = sequence_of(header, layout, body, row) - sequence_of(header, layout, body, row - 1)
            good &= numpy.int64(same[row]) - step == numpy.int64(same[row - 1])
    return good


@njit(nogil=True, cache=True)
def check_block(
    header_address: int,
    header_size: int,
    body_address: int,
    body_size: int,
    key_address: int,
    key_size: int,
    rule: int,
) -> int:
    """Return the block's `Fault`. Never reads outside the three frames.

    `rule`: the key rule of the feed. Header and body must be 8-byte aligned.
    """
    fault = check_header(header_address, header_size)
    if fault != _NONE:
        return fault
    key_rule = read_header(header_address).key_rule
    if rule == RULE_OF_HEADER:
        rule = key_rule
    elif key_size != KEY_OF_TOPICS and key_rule != rule & 0xFF:
        return _KEY_RULE
    return check_body(header_address, body_address, body_size, key_address, key_size, rule, True)


@njit(nogil=True, cache=True)
def check_body(
    header_address: int,
    body_address: int,
    body_size: int,
    key_address: int,
    key_size: int,
    rule: int,
    with_checksum: bool,
) -> int:
    """Do the same after `check_header` has accepted the header; check the body's checksum only `with_checksum`."""
    header = read_header(header_address)
    if header.body_bytes != body_size:
        return _BODY_SIZE
    # The body size bounds the counts before any arithmetic uses them, so that no sum can overflow.
    if header.count * LEAST_ROW_BYTES > body_size or header.topics * 4 > body_size or header.topic_bytes > body_size:
        return _COUNTS
    fixed = header.flags & FLAG_FIXED != 0
    if fixed and header.stride * header.count > body_size:
        return _COUNTS
    layout = layout_of(header)
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
    if header.flags & FLAG_SEQUENCES and not _are_sequences(header, body_address + layout.sequences):
        return _SEQUENCES
    if header.flags & FLAG_NULLS and not _is_validity(header, layout, body_address):
        return _VALIDITY
    if header.flags & FLAG_SAME and not _are_same(header, layout, body_address):
        return _SAME
    return _check_topics(header, body_address, layout.topic_offsets, layout.topics, key_address, key_size, rule)


@inner
def _check_topics(
    header: Header,
    body_address: int,
    offsets_place: int,
    text_place: int,
    key_address: int,
    key_size: int,
    rule: int,
) -> int:
    if not _ascending(body_address + offsets_place, header.topics, header.topic_bytes):
        return _TOPIC_OFFSETS
    if header.flags & FLAG_CONTROL:
        return _NONE
    offsets = int32s_at(body_address + offsets_place, header.topics + 1)
    text_address = body_address + text_place
    text = bytes_at(text_address, header.topic_bytes)
    if key_size == KEY_OF_TOPICS:
        key_address, key_size = find_key(rule, text_address, numpy.int64(offsets[1]))
    is_known = rule <= MAX_KEY_BYTES or rule > 0xFF
    if not is_known and not (key_size == 1 and 1 <= bytes_at(key_address, 1)[0] <= rule - MAX_KEY_BYTES):
        return _TOPIC_KEY
    for topic in range(header.topics):
        start = numpy.int64(offsets[topic])
        size = numpy.int64(offsets[topic + 1]) - start
        if size == 0 or size > MAX_TOPIC_BYTES:
            return _TOPIC_OFFSETS
        if text[start] == 0 or (is_known and not _has_key(rule, text_address + start, size, key_address, key_size)):
            return _TOPIC_KEY
    return _NONE


@inner
def _has_key(rule: int, topic: int, size: int, key_address: int, key_size: int) -> bool:
    found, many = find_key(rule, topic, size)
    same = many == key_size
    left, right = bytes_at(found, min(many, key_size)), bytes_at(key_address, min(many, key_size))
    for i in range(min(many, key_size)):
        same &= left[i] == right[i]
    return same
