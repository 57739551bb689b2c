"""A checksum of messages, whatever their blocks. Two recordings with the same messages have the same one."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy

from blackbox.archive.read.reader import Recorded
from blackbox.block.form.format import FLAG_FIXED, has_value, layout_of, read_header, sequence_of
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import inner, int32s_at, uint64s_at
from blackbox.native.tables.xxh3 import xxh3


class Digest(msgspec.Struct):
    """Number of messages and the sum of their checksums."""

    messages: int = 0
    total: int = 0

    def add(self, recorded: Recorded) -> None:
        """Add the messages of a checked block."""
        self.total = (self.total + int(digest_of(recorded.header, recorded.body, recorded.first_row))) % (1 << 64)
        self.messages += recorded.block.count - recorded.first_row


_PRIME: Final = numpy.uint64(0x9E3779B185EBCA87)
_OTHER_PRIME: Final = numpy.uint64(0xC2B2AE3D27D4EB4F)


@inner
def _mixed(total: int, word: int) -> int:
    total = (total ^ word) * _PRIME
    total ^= total >> numpy.uint64(32)
    total *= _OTHER_PRIME
    return total ^ (total >> numpy.uint64(29))


@njit(nogil=True, cache=True)
def digest_of(header: int, body: int, first_row: int) -> int:
    """Return the sum, uint64, of the checksums of a checked block's messages from `first_row` on.

    A checksum covers slice, epoch, sequence, `ts_event`, topic and payload.
    """
    block = read_header(header)
    layout = layout_of(block)
    fixed = block.flags & FLAG_FIXED != 0
    topic_offsets = int32s_at(body + layout.topic_offsets, block.topics + 1)
    topics = numpy.empty(block.topics, numpy.uint64)
    for topic in range(block.topics):
        start = numpy.int64(topic_offsets[topic])
        topics[topic] = xxh3(body + layout.topics + start, numpy.int64(topic_offsets[topic + 1]) - start)
    ts_event = uint64s_at(body, block.count)
    topic_index = int32s_at(body + layout.topic_index, block.count)
    offsets = int32s_at(body + layout.payload_offsets, 0 if fixed else block.count + 1)
    origin = _mixed(_mixed(numpy.uint64(block.slice_id), numpy.uint64(block.epoch)), numpy.uint64(block.schema_id))
    total = numpy.uint64(0)
    for row in range(first_row, block.count):
        start = row * block.stride if fixed else numpy.int64(offsets[row])
        size = block.stride if fixed else numpy.int64(offsets[row + 1]) - start
        word = _mixed(origin, numpy.uint64(sequence_of(block, layout, body, row)))
        word = _mixed(word, ts_event[row])
        word = _mixed(word, topics[topic_index[row]])
        if not has_value(block, layout, body, row):
            word = _mixed(word, numpy.uint64(1))
        total += _mixed(word, xxh3(body + layout.payloads + start, size))
    return total
