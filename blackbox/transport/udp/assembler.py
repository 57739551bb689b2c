"""Put blocks together from their parts, in compiled code without I/O.

A line has a ring of blocks in assembly, by number. Parts may come in any order. A part that came before, of a block
that is complete or given up, or of one too old for the ring, is ignored: so a replayed datagram changes nothing. A
block that leaves the ring incomplete is given up. Gaps are found later, by the sequences of the complete blocks.
"""

from __future__ import annotations

from typing import Any, Final

import numpy
from numpy.typing import NDArray

from blackbox.block.form.format import HEADER_BYTES, MAX_BODY_BYTES
from blackbox.native.compile.jit import njit
from blackbox.native.memory.arrays import fresh_array
from blackbox.native.memory.intrinsics import copy_bytes, inner, int64s_at
from blackbox.native.memory.records import Field, Fields, SharedRecord, record_at
from blackbox.transport.libzmq import MESSAGE_BYTES, close_messages, msg_close, msg_data, msg_init, msg_init_size
from blackbox.transport.security.group_key import NO_GROUP_KEY, GroupKey
from blackbox.transport.udp.datagram import DATAGRAM_BYTES, MOST_PARTS, DatagramFault, check_datagram, datagram_at

SLOTS: Final = 256
"""Blocks in assembly at once, and numbers for which a repeated part is recognised."""
MOST_BYTES: Final = 2 * MAX_BODY_BYTES
"""Memory of incomplete blocks of a line. For more, the oldest are given up."""
AHEAD_NS: Final = 24 * 3_600 * 1_000_000_000
"""A stream is its start time. Further in the future than this, beyond any clock error, it is rejected."""
_BITMAP_WORDS: Final = MOST_PARTS // 64 + 1


class DatagramCounts(SharedRecord):
    """Counters of one line's datagrams.

    `datagrams` is the sum of `parts`, `malformed`, `unauthentic`, `foreign`, `stale` and `repeated`.
    """

    datagrams = Field()
    """Datagrams received."""
    parts = Field()
    """Datagrams with a new part of a block."""
    malformed = Field()
    """Datagrams that are not of this format, or that contradict an earlier part of their block."""
    unauthentic = Field()
    """Datagrams with a wrong checksum; with a group key, with a wrong tag."""
    foreign = Field()
    """Datagrams of another slice."""
    stale = Field()
    """Datagrams of an earlier stream."""
    repeated = Field()
    """Datagrams with a part that came before, or is too late."""
    blocks = Field()
    """Complete blocks, with control blocks."""
    incomplete = Field()
    """Blocks given up because parts were missing."""
    unwanted = Field()
    """Complete blocks of keys without a callback."""
    dropped = Field()
    """Datagrams that the system dropped because the socket's buffer was full."""


class AssemblyState(SharedRecord):
    """State of one line's assembly."""

    slice_id = Field()
    hash_function = Field()
    """Address of the function for tags; 0: no group key."""
    group_key = Field()
    counts = Field()
    """Address of the `DatagramCounts`."""
    slots = Field()
    bitmaps = Field()
    stream = Field()
    """The newest stream; 0: none yet."""
    newest = Field()
    """Largest number of a block in it; -1: none yet."""
    held_bytes = Field()
    """Memory of incomplete blocks."""
    tag = Fields(2)
    """Scratch for a tag."""


class Slot(SharedRecord):
    """A block in assembly."""

    number = Field()
    """Number of the block; -1: none."""
    left = Field()
    """Missing parts; 0: complete or given up."""
    block_bytes = Field()
    part_bytes = Field()
    key_bytes = Field()
    key = Field()
    header = Fields(HEADER_BYTES // 8)
    body = Fields(MESSAGE_BYTES // 8)
    """The body's message."""


assembly_state_at = record_at(AssemblyState)
counts_at = record_at(DatagramCounts)
slot_at = record_at(Slot)
SLOT_BYTES: Final = Slot.dtype.itemsize
SLOT_KEY_AT: Final = 8 * Slot.key.start
SLOT_HEADER_AT: Final = 8 * Slot.header.start
SLOT_BODY_AT: Final = 8 * Slot.body.start
_TAG_AT: Final = 8 * AssemblyState.tag.start


@inner
def _slot_of(state: AssemblyState, number: int) -> Any:
    return state.slots + SLOT_BYTES * (number & (SLOTS - 1))


@inner
def _give_up(state: AssemblyState, slot_address: int) -> None:
    slot = slot_at(slot_address)
    if slot.left != 0:
        slot.left = 0
        state.held_bytes -= slot.block_bytes
        msg_close(slot_address + SLOT_BODY_AT)
        msg_init(slot_address + SLOT_BODY_AT)
        counts_at(state.counts).incomplete += 1


@inner
def _begin_stream(state: AssemblyState, stream: int) -> None:
    for place in range(SLOTS):
        _give_up(state, _slot_of(state, place))
        slot_at(_slot_of(state, place)).number = -1
    state.stream = stream
    state.newest = -1


@inner
def _advance(state: AssemblyState, number: int) -> None:
    """Make a number the newest, and give up the blocks that leave the ring."""
    for each in range(max(state.newest + 1, number - SLOTS + 1), number + 1):
        _give_up(state, _slot_of(state, each))
    state.newest = number


@inner
def _make_room(state: AssemblyState, block_bytes: int) -> None:
    """Give up the oldest blocks until a further one fits."""
    number = state.newest - SLOTS + 1
    while state.held_bytes + block_bytes > MOST_BYTES and number <= state.newest:
        _give_up(state, _slot_of(state, number))
        number += 1


@inner
def _begin_block(state: AssemblyState, slot_address: int, datagram: Any) -> bool:
    """Begin a block in its slot. Return False if out of memory: the block is given up."""
    slot = slot_at(slot_address)
    slot.number = datagram.block
    slot.block_bytes = datagram.block_bytes
    slot.part_bytes = datagram.part_bytes
    slot.key_bytes = datagram.key_bytes
    slot.left = 0
    _make_room(state, slot.block_bytes)
    body = slot_address + SLOT_BODY_AT
    msg_close(body)
    if msg_init_size(body, slot.block_bytes - slot.key_bytes - HEADER_BYTES) != 0:
        msg_init(body)
        counts_at(state.counts).incomplete += 1
        return False
    parts = (slot.block_bytes + slot.part_bytes - 1) // slot.part_bytes
    slot.left = parts
    state.held_bytes += slot.block_bytes
    place = numpy.int64(datagram.block) & (SLOTS - 1)
    int64s_at(state.bitmaps + 8 * _BITMAP_WORDS * place, parts // 64 + 1)[:] = 0
    return True


@inner
def _is_new_part(state: AssemblyState, place: int, part: int) -> bool:
    """Note a part; return False if it came before."""
    words = int64s_at(state.bitmaps + 8 * _BITMAP_WORDS * place, _BITMAP_WORDS)
    bit = numpy.int64(1) << (part & 63)
    is_new = words[part >> 6] & bit == 0
    words[part >> 6] |= bit
    return bool(is_new)


@inner
def _copy_part(slot_address: int, part: int, data: int, size: int) -> None:
    slot = slot_at(slot_address)
    body = msg_data(slot_address + SLOT_BODY_AT)
    before = slot.key_bytes + HEADER_BYTES
    if part == 0:
        copy_bytes(slot_address + SLOT_KEY_AT, data, slot.key_bytes)
        copy_bytes(slot_address + SLOT_HEADER_AT, data + slot.key_bytes, numpy.int64(HEADER_BYTES))
        copy_bytes(body, data + before, size - before)
    else:
        copy_bytes(body + part * slot.part_bytes - before, data, size)


@inner
def _is_in_stream(state: AssemblyState, stream: int, now: int) -> bool:
    """Note the stream of a datagram. Return False, counted, if it is not the newest."""
    if stream < state.stream:
        counts_at(state.counts).stale += 1
        return False
    if stream > state.stream:
        if stream > now + AHEAD_NS:
            counts_at(state.counts).malformed += 1
            return False
        _begin_stream(state, stream)
    return True


@njit(nogil=True, cache=True)
def take_datagram(assembly: int, address: int, size: int, now: int) -> int:
    """Take a datagram; return the address of the `Slot` of a block that is now complete, else 0.

    `assembly`: address of an `AssemblyState`. `now`: ns since 1970. The caller moves or closes the slot's body.
    """
    state = assembly_state_at(assembly)
    counts = counts_at(state.counts)
    counts.datagrams += 1
    fault = check_datagram(address, size, state.slice_id, state.hash_function, state.group_key, assembly + _TAG_AT)
    if fault != 0:
        counts.malformed += fault == DatagramFault.FORM
        counts.unauthentic += fault == DatagramFault.TAG
        counts.foreign += fault == DatagramFault.SLICE
        return 0
    datagram = datagram_at(address)
    number, part = datagram.block, numpy.int64(datagram.part)
    if not _is_in_stream(state, datagram.stream, now):
        return 0
    if number <= state.newest - SLOTS:
        counts.repeated += 1
        return 0
    if number > state.newest:
        _advance(state, number)
    slot_address: int = _slot_of(state, number)
    slot = slot_at(slot_address)
    if slot.number != number:
        if not _begin_block(state, slot_address, datagram):
            counts.parts += 1
            return 0
    elif slot.left == 0:
        counts.repeated += 1
        return 0
    elif (
        slot.block_bytes != datagram.block_bytes
        or slot.part_bytes != datagram.part_bytes
        or slot.key_bytes != datagram.key_bytes
    ):
        counts.malformed += 1
        return 0
    if not _is_new_part(state, number & (SLOTS - 1), part):
        counts.repeated += 1
        return 0
    counts.parts += 1
    _copy_part(slot_address, part, address + DATAGRAM_BYTES, size - DATAGRAM_BYTES)
    slot.left -= 1
    if slot.left != 0:
        return 0
    state.held_bytes -= slot.block_bytes
    counts.blocks += 1
    return slot_address


class Assembly:
    """Blocks in assembly of one line. Used by one thread; `address` is for `take_datagram`."""

    def __init__(self, slice_id: int, counts: DatagramCounts, key: GroupKey = NO_GROUP_KEY) -> None:
        self._key = numpy.frombuffer(key.key or b"\0", numpy.uint8)
        self._slots: NDArray[numpy.void] = fresh_array((SLOTS,), Slot.dtype)
        self._slots["number"] = -1
        self._bitmaps: NDArray[numpy.int64] = fresh_array((SLOTS * _BITMAP_WORDS,), numpy.int64)
        self._counts = counts
        self._state = AssemblyState()
        self._state.slice_id, self._state.newest, self._state.counts = slice_id, -1, counts.address
        self._state.hash_function, self._state.group_key = key.function, self._key.ctypes.data
        self._state.slots, self._state.bitmaps = self._slots.ctypes.data, self._bitmaps.ctypes.data
        self.address = self._state.address
        init_slots(self._state.slots)

    def close(self) -> None:
        """Free the bodies of incomplete blocks."""
        for place in range(SLOTS):
            close_messages(self._state.slots + SLOT_BYTES * place + SLOT_BODY_AT, 1)


@njit(nogil=True, cache=True)
def init_slots(slots: int) -> None:
    """Initialise the messages of all slots."""
    for place in range(SLOTS):
        msg_init(slots + SLOT_BYTES * place + SLOT_BODY_AT)
