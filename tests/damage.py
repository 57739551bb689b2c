"""Invalid blocks: flipped bits, truncation, and wrong values with right checksums."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any

from tests import wire

Frames = tuple[bytes, bytes, bytes]
HOSTILE = (0, 1, 2, 3, 7, 8, 9, 255, 65_535, 1 << 16, (1 << 26) - 1, 1 << 26, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
BITS = {"version": 8, "key_rule": 8, "flags": 16, "schema": 16, "slice_id": 16}
BITS |= dict.fromkeys(("epoch", "sequence", "previous", "key_sequence", "ts_out", "ts_in"), 64)
WORDS = ("count", "topics", "topic_bytes", "body_bytes", "stride")


def valid(choice: random.Random) -> Frames:
    """Return a small valid block, sometimes a control block."""
    key = choice.choice([b"", b"", b"A", b"AB"])
    fixed = choice.random() < 0.5
    count = choice.randint(1, 12)
    topics = [key + b"T%d" % number for number in range(choice.randint(1, count))]
    index = [choice.randrange(len(topics)) for _ in range(count)]
    stride = choice.choice([0, 1, 8, 13])
    flags = wire.FIXED if fixed else 0
    if choice.random() < 0.1:
        count, index, stride, fixed = len(topics), list(range(len(topics))), 16, True
        key, flags = choice.choice([b"\0H", b"\0C12345678"]), wire.CONTROL | wire.FIXED
    sizes = [stride if fixed else choice.randrange(20) for _ in range(count)]
    payloads: list[bytes | None] = [choice.randbytes(size) for size in sizes]
    sequences: list[int] | None = None
    if not flags & wire.CONTROL and choice.random() < 0.2:
        sequences = sorted(choice.sample(range(1 << 40), count))
        flags |= wire.SEQUENCES
    if not fixed and choice.random() < 0.3:
        payloads = [choice.choice([None, payload]) for payload in payloads]
        flags |= wire.NULLS if None in payloads else 0
    same: list[int] | None = None
    if not flags & wire.CONTROL and choice.random() < 0.3:
        numbers = sequences or range(count)
        firsts = [number if choice.random() < 0.5 else -1 for number in numbers]
        for row in range(1, count):
            first = firsts[row - 1] if firsts[row] < 0 else firsts[row]
            firsts[row] = first if numbers[row] - first < 256 else numbers[row]
        same = [number - first if first >= 0 else 0 for number, first in zip(numbers, firsts, strict=True)]
        flags |= wire.SAME
    times = [choice.getrandbits(40) for _ in index]
    body = wire.body_of(times, index, topics, payloads, fixed, sequences, same)
    flags |= choice.choice([0, wire.CHECKSUM, wire.CHECKSUM]) | choice.choice([0, wire.LINE_B])
    sequence = sequences[0] if sequences else choice.getrandbits(30)
    previous = choice.randint(0, sequence)
    header, body = wire.sealed(
        body,
        flags=flags,
        count=count,
        topics=len(topics),
        topic_bytes=sum(map(len, topics)),
        stride=stride if fixed else 0,
        key_rule=8 if flags & wire.CONTROL else len(key),
        sequence=sequence,
        previous=previous,
        key_sequence=choice.randint(0, previous),
        ts_out=choice.getrandbits(60),
        ts_in=choice.getrandbits(60),
        epoch=choice.getrandbits(63) or 1,
    )
    return key, header, body


def damaged(choice: random.Random, frames: Frames) -> Frames:
    """Return the block damaged in one way; occasionally it is still valid."""
    way = choice.choice([_flip, _cut, _field, _field, _words, _columns, _columns, _junk, _key])
    return way(choice, *frames)


def cases(seed: int, count: int) -> Iterator[Frames]:
    choice = random.Random(seed)
    for _ in range(count):
        frames = valid(choice)
        yield damaged(choice, frames) if choice.random() < 0.95 else frames


def _flip(choice: random.Random, key: bytes, header: bytes, body: bytes) -> Frames:
    both = bytearray(header + body)
    for _ in range(choice.choice([1, 1, 2, 8])):
        bit = choice.randrange(8 * len(both))
        both[bit // 8] ^= 1 << bit % 8
    return key, bytes(both[: len(header)]), bytes(both[len(header) :])


def _cut(choice: random.Random, key: bytes, header: bytes, body: bytes) -> Frames:
    if choice.random() < 0.3:
        return key, header[: choice.randrange(len(header))], body
    size = choice.randrange(len(body) + 1)
    if choice.random() < 0.5:
        return key, header, body[:size]
    fields = wire.unpack(header)._replace(body_bytes=size, body_checksum=wire.checksum(body[:size]))
    return key, wire.pack(fields), body[:size]


def _field(choice: random.Random, key: bytes, header: bytes, body: bytes) -> Frames:
    fields = wire.unpack(header)
    name = choice.choice([*BITS, *WORDS, *WORDS])
    value = getattr(fields, name)
    hostile = choice.choice([value + 1, value - 1, choice.choice(HOSTILE), choice.getrandbits(64), (1 << 62) + 1])
    return key, wire.pack(fields._replace(**{name: hostile % (1 << BITS.get(name, 32))})), body


def _words(choice: random.Random, key: bytes, header: bytes, body: bytes) -> Frames:
    """Change all counts at once, so that one hostile value may compensate for another."""
    fields = wire.unpack(header)
    changed: dict[str, Any] = {name: choice.choice([*HOSTILE, getattr(fields, name)]) for name in WORDS}
    changed["body_bytes"] = choice.choice([len(body), changed["body_bytes"]])
    return key, wire.pack(fields._replace(**changed, flags=choice.randrange(512) | choice.choice([0, wire.SAME]))), body


def _columns(choice: random.Random, key: bytes, header: bytes, body: bytes) -> Frames:
    """Write wrong values to the body and correct the checksum."""
    changed = bytearray(body)
    for _ in range(choice.choice([1, 1, 3])):
        if len(changed) >= 4:
            place = choice.randrange(len(changed) // 4) * 4
            struct.pack_into("<I", changed, place, choice.choice([*HOSTILE, (1 << 32) - 2]))
    fields = wire.unpack(header)._replace(body_checksum=wire.checksum(bytes(changed)))
    return key, wire.pack(fields), bytes(changed)


def _junk(choice: random.Random, key: bytes, header: bytes, body: bytes) -> Frames:
    size = choice.choice([0, 8, 64, 200])
    junk = choice.randbytes(size)
    changed: dict[str, Any] = {name: choice.choice([0, 1, 2, size // 12, size]) for name in WORDS}
    fields = wire.Fields(**changed)._replace(
        body_bytes=size, flags=choice.randrange(512) | choice.choice([0, wire.SAME])
    )
    return key, wire.pack(fields._replace(body_checksum=wire.checksum(junk))), junk


def _key(choice: random.Random, key: bytes, header: bytes, body: bytes) -> Frames:
    return choice.choice([b"", b"\0", b"\0H", b"Z", b"AB", key + b"T", key + b"\xff", bytes(9)]), header, body
