"""The datagram format by another reader, and reassembly as a plain loop: what `transport/udp/` must agree with."""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import xxhash

from blackbox.block.form.format import HEADER_BYTES, MAX_BODY_BYTES

HEAD = struct.Struct("<16s4sBBHqqIIII")
SLOTS = 256
MOST_BYTES = 128 << 20


class Part(NamedTuple):
    """A datagram without its tag."""

    slice_id: int
    stream: int
    block: int
    key_bytes: int
    block_bytes: int
    part_bytes: int
    part: int
    data: bytes

    def packed(self, key: bytes = b"") -> bytes:
        head = HEAD.pack(
            b"",
            b"BBUD",
            3,
            self.key_bytes,
            self.slice_id,
            self.stream,
            self.block,
            self.block_bytes,
            self.part_bytes,
            self.part,
            0,
        )
        rest = head[16:] + self.data
        return tag_of(rest, key) + rest


def tag_of(rest: bytes, key: bytes) -> bytes:
    if key:
        return hashlib.blake2b(rest, digest_size=16, key=key).digest()
    return xxhash.xxh3_64_intdigest(rest).to_bytes(16, "little")


def parts_of(block: bytes, key_bytes: int, part_bytes: int, stream: int, number: int, slice_id: int = 3) -> list[Part]:
    """Split a block, which is key, header and body."""
    starts = range(0, len(block), part_bytes)
    return [
        Part(slice_id, stream, number, key_bytes, len(block), part_bytes, part, block[start : start + part_bytes])
        for part, start in enumerate(starts)
    ]


def part_in(datagram: bytes) -> Part:
    """Read a datagram that was sent."""
    _, magic, version, key_bytes, slice_id, stream, block, block_bytes, part_bytes, part, zero = HEAD.unpack_from(
        datagram
    )
    assert (magic, version, zero) == (b"BBUD", 3, 0)
    return Part(slice_id, stream, block, key_bytes, block_bytes, part_bytes, part, datagram[HEAD.size :])


def is_possible(part: Part) -> bool:
    """True if the sizes and numbers of a part agree."""
    expected = min(part.part_bytes, part.block_bytes - part.part * part.part_bytes)
    body_bytes = part.block_bytes - part.key_bytes - HEADER_BYTES
    is_sane = part.key_bytes <= 8 and 0 <= body_bytes <= MAX_BODY_BYTES and 512 <= part.part_bytes <= 65_507
    return is_sane and len(part.data) == expected > 0 and part.stream > 0 and 0 <= part.block <= 1 << 62


class SlowAssembly:
    """Takes datagrams one by one. `counts` has the counters, `complete` the blocks in the order of completion."""

    def __init__(self, slice_id: int, key: bytes, latest_stream: int) -> None:
        self._slice_id, self._key, self._latest = slice_id, key, latest_stream
        self._stream, self._newest = 0, -1
        self._open: dict[int, dict[int, bytes]] = {}
        """Parts of each incomplete block in the ring."""
        self._shape: dict[int, tuple[int, int, int]] = {}
        self._known: set[int] = set()
        """Numbers in the ring that have begun."""
        self.counts: Counter[str] = Counter()
        self.complete: list[tuple[int, int, bytes]] = []

    def take(self, datagram: bytes) -> None:
        self.counts["datagrams"] += 1
        self.counts[self._outcome(datagram)] += 1

    def _outcome(self, datagram: bytes) -> str:
        if len(datagram) < HEAD.size or datagram[16:21] != b"BBUD\3":
            return "malformed"
        if datagram[:16] != tag_of(datagram[16:], self._key):
            return "unauthentic"
        _, _, _, key_bytes, slice_id, stream, block, block_bytes, part_bytes, part, zero = HEAD.unpack_from(datagram)
        if slice_id != self._slice_id:
            return "foreign"
        read = Part(slice_id, stream, block, key_bytes, block_bytes, part_bytes, part, datagram[HEAD.size :])
        if zero or not is_possible(read):
            return "malformed"
        if stream < self._stream:
            return "stale"
        if stream > self._latest:
            return "malformed"
        if stream > self._stream:
            self._begin(stream)
        return self._take(read)

    def _take(self, read: Part) -> str:
        block, shape = read.block, (read.key_bytes, read.block_bytes, read.part_bytes)
        if block <= self._newest - SLOTS:
            return "repeated"
        if block > self._newest:
            self._newest = block
            for old in [each for each in self._known if each <= block - SLOTS]:
                self._give_up(old)
                self._known.discard(old)
        if block not in self._known:
            self._known.add(block)
            while self._held() + read.block_bytes > MOST_BYTES:
                self._give_up(min(self._open))
            self._open[block], self._shape[block] = {}, shape
        elif block not in self._open:
            return "repeated"
        elif self._shape[block] != shape:
            return "malformed"
        if read.part in self._open[block]:
            return "repeated"
        self._open[block][read.part] = read.data
        if len(self._open[block]) == -(-read.block_bytes // read.part_bytes):
            parts = self._open.pop(block)
            self.complete.append((block, read.key_bytes, b"".join(parts[each] for each in sorted(parts))))
            self.counts["blocks"] += 1
        return "parts"

    def _held(self) -> int:
        return sum(self._shape[each][1] for each in self._open)

    def _begin(self, stream: int) -> None:
        for each in list(self._open):
            self._give_up(each)
        self._known.clear()
        self._stream, self._newest = stream, -1

    def _give_up(self, block: int) -> None:
        if self._open.pop(block, None) is not None:
            self.counts["incomplete"] += 1


def damaged(datagram: bytes, at: int, how: int) -> Iterator[bytes]:
    """Yield a truncated copy, one with a byte changed, and one with bytes added."""
    yield datagram[: at % (len(datagram) + 1)]
    place = at % len(datagram)
    yield datagram[:place] + bytes([datagram[place] ^ (1 + how % 255)]) + datagram[place + 1 :]
    yield datagram + bytes(1 + how % 3)
