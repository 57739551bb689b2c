"""Datagrams to blocks, against a plain loop: loss, order, repetition, truncation, forgery, several streams."""

from __future__ import annotations

import ctypes
import random
import sys
import time
from collections import Counter
from ctypes import string_at
from functools import partial
from socket import AF_INET, SOCK_DGRAM, socket

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox.block.form.format import HEADER_BYTES
from blackbox.native.memory.arrays import foreign_array
from blackbox.native.tables.prefix_trie import build_trie
from blackbox.transport.libzmq import MESSAGE_BYTES, init_messages, message_bytes
from blackbox.transport.security.group_key import NO_GROUP_KEY, GroupKey
from blackbox.transport.udp.assembler import (
    AHEAD_NS,
    SLOT_BODY_AT,
    Assembly,
    DatagramCounts,
    Slot,
    take_datagram,
)
from blackbox.transport.udp.receiver import MulticastLines, receive_one
from blackbox.transport.wakeup import readable
from tests.transport.udp.slow_assembly import Part, SlowAssembly, damaged, parts_of

KEY = bytes(range(32))
NOW = 1_800_000_000_000_000_000
SLICE = 3
udp_socket = partial(socket, AF_INET, SOCK_DGRAM)


def group_key() -> GroupKey:
    from zmq.backend.cython import _zmq

    function = ctypes.CDLL(_zmq.__file__).crypto_generichash
    return GroupKey(ctypes.cast(function, ctypes.c_void_p).value or 0, KEY)


class Pair:
    """The compiled assembly and the plain loop, which take the same datagrams."""

    def __init__(self, *, is_keyed: bool = False) -> None:
        self.counts = DatagramCounts()
        self._assembly = Assembly(SLICE, self.counts, group_key() if is_keyed else NO_GROUP_KEY)
        self._model = SlowAssembly(SLICE, KEY if is_keyed else b"", NOW + AHEAD_NS)
        self._buffer = numpy.zeros(65_536, numpy.uint8)
        self.complete: list[tuple[int, int, bytes]] = []

    def take(self, datagram: bytes) -> None:
        self._buffer[: len(datagram)] = numpy.frombuffer(datagram, numpy.uint8)
        slot = take_datagram(self._assembly.address, self._buffer.ctypes.data, len(datagram), NOW)
        if slot:
            self.complete.append(_block_in(slot))
        self._model.take(datagram)

    def check(self) -> Counter[str]:
        """Compare everything; return the counters."""
        found = Counter({name: getattr(self.counts, name) for name in DatagramCounts.dtype.names or ()})
        assert +found == +self._model.counts
        assert self.complete == self._model.complete
        assert found["datagrams"] == sum(
            found[name] for name in ("parts", "malformed", "unauthentic", "foreign", "stale", "repeated")
        )
        return found

    def close(self) -> None:
        self._assembly.close()


def _block_in(address: int) -> tuple[int, int, bytes]:
    slot = Slot(foreign_array(None, address, Slot.dtype.itemsize).view(Slot.dtype))
    key = string_at(address + 8 * Slot.key.start, slot.key_bytes)
    header = string_at(address + 8 * Slot.header.start, HEADER_BYTES)
    return slot.number, slot.key_bytes, key + header + string_at(*message_bytes(address + SLOT_BODY_AT))


def blocks(choice: random.Random, stream: int, first: int, count: int, key: bytes) -> list[bytes]:
    """Datagrams of consecutive blocks of random sizes."""
    sent = []
    for number in range(first, first + count):
        key_bytes, body_bytes = choice.choice([0, 1, 8]), choice.choice([0, 7, 400, 600, 5_000])
        block = choice.randbytes(key_bytes + HEADER_BYTES + body_bytes)
        sent += [each.packed(key) for each in parts_of(block, key_bytes, choice.choice([512, 1_344]), stream, number)]
    return sent


@given(st.integers(0, 1 << 32), st.booleans())
def test_any_datagrams_give_the_same_blocks_and_counters_as_a_plain_loop(seed: int, is_keyed: bool) -> None:
    choice, pair, key = random.Random(seed), Pair(is_keyed=is_keyed), KEY if is_keyed else b""
    first = choice.choice([0, 1_000, 1 << 61])
    sent = blocks(choice, NOW, first, choice.randint(1, 20), key)
    sent += blocks(choice, NOW, first + choice.choice([30, 255, 256, 300, 1_000]), choice.randint(0, 4), key)
    sent = [each for each in sent if choice.random() < 0.95]  # loss
    sent += choice.choices(sent, k=5) if sent else []  # repetition
    sent += blocks(choice, choice.choice([NOW - 1, NOW + 1, NOW + AHEAD_NS + 1, 0, -5]), 0, 1, key)
    sent += [
        Part(SLICE, NOW, first, 9, 2_000, 512, 0, bytes(512)).packed(key),
        Part(SLICE + 1, NOW, first, 0, 512, 512, 0, bytes(512)).packed(key),
        Part(SLICE, NOW, first, 0, 1_600, 512, 3, bytes(64)).packed(key),
        Part(SLICE, NOW, first + 2, 0, 60 << 20, 1_344, 7, bytes(1_344)).packed(key),
        Part(SLICE, NOW, first + 3, 0, 61 << 20, 1_344, 7, bytes(1_344)).packed(key),
        Part(SLICE, NOW, first + 4, 0, 62 << 20, 1_344, 7, bytes(1_344)).packed(key),
        Part(SLICE, NOW, first, 0, 65 << 20, 1_344, 7, bytes(1_344)).packed(key),
        Part(SLICE, NOW, -1, 0, 512, 512, 0, bytes(512)).packed(key),
        Part(SLICE, NOW, first, 0, 100, 511, 0, bytes(100)).packed(key),
        Part(SLICE, NOW, first, 0, 512, 512, 0, bytes(512)).packed(b"" if is_keyed else KEY),
    ]
    sent += [bad for each in sent[:3] for bad in damaged(each, choice.randrange(1 << 16), choice.randrange(1 << 16))]
    size = choice.choice([1, 4, 10_000])  # how far the order differs
    for start in range(0, len(sent), size):
        some = sent[start : start + size]
        choice.shuffle(some)
        for datagram in some:
            pair.take(datagram)
    counts = pair.check()
    assert counts["unauthentic"] >= 1
    pair.close()


def test_a_block_number_above_the_largest_one_is_rejected() -> None:
    pair = Pair()
    pair.take(Part(SLICE, NOW, 255, 0, 1_024, 512, 0, bytes(512)).packed())  # incomplete, in the same slot
    pair.take(Part(SLICE, NOW, (1 << 63) - 1, 0, 512, 512, 0, bytes(512)).packed())
    assert pair.check()["malformed"] == 1
    pair.close()


@pytest.mark.skipif(sys.platform != "linux", reason="multicast lines are Linux's")
def test_the_body_of_an_unwanted_block_is_freed_at_once() -> None:
    counts, messages = DatagramCounts(), numpy.zeros(3 * MESSAGE_BYTES // 8, numpy.int64)
    init_messages(messages.ctypes.data, 3)
    with udp_socket() as ours, udp_socket() as theirs:
        ours.bind(("127.0.0.1", 0))
        lines = MulticastLines(SLICE, [ours], [counts], NO_GROUP_KEY)
        (part,) = parts_of(b"K" + bytes(HEADER_BYTES + 400), 1, 512, time.time_ns(), 0, SLICE)
        theirs.sendto(part.packed(), ours.getsockname())
        assert readable(ours.fileno(), timeout=200)
        assert receive_one(lines.at, build_trie([b"other"]), messages.ctypes.data) == 0
        assert counts.unwanted == 1
        body = lines._assemblies[0]._slots.ctypes.data + SLOT_BODY_AT
        assert message_bytes(body)[1] == 0
        lines.close()


@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_a_flood_of_hostile_datagrams_is_counted_and_harms_nothing(count: int) -> None:
    choice, pair = random.Random(2), Pair(is_keyed=True)
    true = blocks(choice, NOW, 0, 40, KEY)
    forged = blocks(choice, NOW, 0, 40, bytes(32)) + blocks(choice, NOW, 20, 40, b"")
    for datagram in true[: len(true) // 2]:
        pair.take(datagram)
    for number in range(count):
        kind = number % 4
        if kind == 0:
            pair.take(choice.randbytes(choice.choice([0, 15, 55, 56, 57, 300])))
        elif kind == 1:
            pair.take(choice.choice(forged))
        elif kind == 2:
            pair.take(choice.choice(true[: len(true) // 2]))  # a replay
        else:
            good = choice.choice(true)
            pair.take(good[: choice.randrange(len(good))])
    for datagram in true[len(true) // 2 :]:
        pair.take(datagram)
    counts = pair.check()
    assert counts["blocks"] == 40
    assert counts["repeated"] == count // 4
    assert counts["incomplete"] == 0
    pair.close()
