"""The publisher's side of shared memory: places for bodies, and the list of readers."""

from __future__ import annotations

import errno
import mmap
import os
import socket
import time
from typing import Any, Final, NamedTuple

import numpy

from blackbox.block.form.format import HEADER_BYTES
from blackbox.errors import EndpointError, LimitError
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import copy_bytes, fence, inner, load_acquire, lowest_bit, store_release
from blackbox.native.memory.records import Field, Fields, SharedRecord, load_shared, record_at, store_shared
from blackbox.native.system.posix import poke
from blackbox.transport.libzmq import wait_readable
from blackbox.transport.shared_memory.layout import (
    DESCRIPTOR_BYTES,
    DESCRIPTORS,
    HEADER_AT,
    HELLO,
    KEY_AT,
    LARGE_PLACES,
    MAGIC,
    MOST_PINNED,
    MOST_PINNED_BY_ONE,
    MOST_WAITING,
    PIN_WORDS,
    PINS_AT,
    PLACE_POSITIONS_AT,
    PLACES,
    READERS,
    SMALL_PLACES,
    WELCOME,
    Head,
    Layout,
    Peer,
    Slot,
    address_of,
    bit_of,
    descriptor_at,
    hang_up,
    head_at,
    layout_of,
    make_memory,
    open_socket,
    place_offset,
    slot_at,
    small_bytes_of,
)
from blackbox.transport.wakeup import Pipe

NO_PLACE: Final = -1
_LARGE_BITS: Final = numpy.int64(-1 << (64 - LARGE_PLACES))
"""Bits of the large places in the last word of a bitmap."""
OFFERED: Final = 16
"""Blocks that may be encoded ahead directly into places, enough to fill up behind a slow sender.

Blocks encoded elsewhere are copied by the sender, from another core's cache.
"""
assert MOST_WAITING + MOST_PINNED + READERS + OFFERED <= SMALL_PLACES
_WAIT_MS: Final = numpy.int64(20)
_NO: Final = numpy.int64(0)
_PATIENCE_S: Final = 1.0
"""Seconds that a new connection may take to send HELLO."""


class WriterState(SharedRecord):
    """State of the publisher's memory. Readers cannot write it."""

    memory = Field()
    """Address of the memory."""
    places = Field()
    """Address of the small places."""
    following = Field()
    """Position of the next block."""
    kept_from = Field()
    """First position whose place may still be awaited by a reader."""
    most_waiting = Field()
    """Most blocks that may wait for a reader."""
    waits = Field()
    """1: wait for the slowest reader; 0: let it lose blocks."""
    idle = Fields(PIN_WORDS)
    """One bit per place whose block no reader has yet to take."""
    place_of = Fields(DESCRIPTORS)
    """Place of each of the last positions."""
    readers = Field(own_line=True)
    """Number of readers."""
    slots_used = Field()
    """Slots from this one on are unused so far."""
    live = Fields(READERS)
    """1 for each slot with a reader; written by the thread that accepts readers."""
    bells = Fields(READERS)
    """Descriptor of each reader's bell."""
    ringing = Field(own_line=True)
    """1 while bells are rung: no bell may be closed."""
    offered = Fields(OFFERED)
    """Places offered to the thread that encodes blocks for the writer; a ring."""
    offered_to = Field(own_line=True)
    """Places offered so far; written by the writer."""
    offered_from = Field(own_line=True)
    """Places accepted so far; written by the encoding thread."""


class WriterAt(NamedTuple):
    """Addresses of a writer, for compiled code. `state` 0: no shared memory."""

    state: int
    layout: Layout


NO_WRITER: Final = WriterAt(0, Layout(0, 0, 0, 0, 0, 0, 0))
writer_state_at = record_at(WriterState)


@inner
def _slot(at: WriterAt, number: int) -> Any:
    return writer_state_at(at.state).memory + at.layout.slots + number * at.layout.page_bytes


@inner
def _pinned(at: WriterAt, word: int) -> Any:
    """Return the places pinned by readers in one word of the bitmap."""
    state = writer_state_at(at.state)
    pinned = numpy.int64(0)
    for number in range(state.slots_used):
        if state.live[number] != 0:
            pinned |= load_acquire(_slot(at, number) + PINS_AT + 8 * word)
    return pinned


@inner
def _mark_idle(at: WriterAt) -> None:
    """Mark the places as idle whose blocks all readers have taken, or that no longer wait for a reader."""
    state = writer_state_at(at.state)
    oldest: Any = state.following
    for number in range(state.slots_used):
        if state.live[number] != 0:
            oldest = min(oldest, load_shared(slot_at(_slot(at, number)), "cursor"))
    if state.waits == 0:
        oldest = max(oldest, state.following + 1 - state.most_waiting)
    while state.kept_from < oldest:
        place = state.place_of[state.kept_from % DESCRIPTORS]
        state.idle[place >> 6] |= bit_of(place)
        state.kept_from += 1


@inner
def has_room(at: WriterAt) -> Any:
    """Return True if every reader has room for one more block."""
    state = writer_state_at(at.state)
    _mark_idle(at)
    return state.following - state.kept_from < state.most_waiting


@inner
def claim_place(at: WriterAt, body_bytes: int) -> Any:
    """Claim the first place that no reader uses; NO_PLACE: none is free now."""
    state = writer_state_at(at.state)
    _mark_idle(at)
    large = body_bytes > at.layout.small_bytes
    for word in range(PIN_WORDS - 1 if large else 0, PIN_WORDS):
        free: Any = state.idle[word]
        if word == PIN_WORDS - 1:
            free &= _LARGE_BITS if large else ~_LARGE_BITS
        if free != 0:
            free &= ~_pinned(at, word)
        while free != 0:
            bit = free & -free
            place = 64 * word + lowest_bit(free)
            store_release(state.memory + PLACE_POSITIONS_AT + 8 * place, -1)
            fence()  # a reader pins a place, then checks its block
            if _pinned(at, word) & bit == 0:
                state.idle[word] &= ~bit
                return place
            free &= ~bit
    return NO_PLACE


@inner
def find_place(at: WriterAt, own: int, body_bytes: int) -> Any:
    """Return a place for a body, or its own if it is in one; NO_PLACE: there is no room now."""
    if not has_room(at):
        return NO_PLACE
    return claim_place(at, body_bytes) if own == NO_PLACE else own


@inner
def await_place(at: WriterAt, own: int, body_bytes: int, wake_fd: int, scratch: int) -> Any:
    """Do the same as `find_place`, after a moment for slow readers to release a place."""
    begin_to_wait(at)
    place = find_place(at, own, body_bytes)
    if place == NO_PLACE:
        wait_readable(_NO, _NO, wake_fd, _WAIT_MS, scratch)
        place = find_place(at, own, body_bytes)
    end_waiting(at)
    return place


@inner
def place_address(at: WriterAt, place: int) -> Any:
    """Return the address of a claimed place."""
    return writer_state_at(at.state).memory + place_offset(at.layout, place)


@inner
def place_of(at: WriterAt, body: int) -> Any:
    """Return the place that a body is in; NO_PLACE: none."""
    offset = body - writer_state_at(at.state).places
    return offset // at.layout.small_bytes if 0 <= offset < SMALL_PLACES * at.layout.small_bytes else NO_PLACE


@inner
def give_back(at: WriterAt, place: int) -> None:
    """Return a claimed place without publishing a block."""
    writer_state_at(at.state).idle[place >> 6] |= bit_of(place)


@inner
def offer_places(at: WriterAt) -> None:
    """Claim places for the thread that encodes the next blocks."""
    state = writer_state_at(at.state)
    accepted = load_shared(state, "offered_from")
    while state.offered_to - accepted < OFFERED:
        place = claim_place(at, numpy.int64(0))
        if place == NO_PLACE:
            return
        state.offered[state.offered_to % OFFERED] = place
        store_shared(state, "offered_to", state.offered_to + 1)


@inner
def offered_place(at: WriterAt, body_bytes: int) -> Any:
    """Return the address of an offered place for a body; 0: none. One thread at a time."""
    if at.state == 0:
        return numpy.int64(0)
    state = writer_state_at(at.state)
    if body_bytes > at.layout.small_bytes or load_shared(state, "offered_to") == state.offered_from:
        return numpy.int64(0)
    return state.places + state.offered[state.offered_from % OFFERED] * at.layout.small_bytes


@inner
def accept_place(at: WriterAt) -> None:
    """Accept the offered place: the block in it goes to the writer."""
    state = writer_state_at(at.state)
    store_shared(state, "offered_from", state.offered_from + 1)


@inner
def publish_place(at: WriterAt, place: int, body_bytes: int, key: int, key_bytes: int, header: int) -> None:
    """Publish a block with its body in a claimed place."""
    state = writer_state_at(at.state)
    position = state.following
    slot = position % DESCRIPTORS
    address = state.memory + at.layout.descriptors + DESCRIPTOR_BYTES * slot
    descriptor = descriptor_at(address)
    store_shared(descriptor, "position", -1)
    fence()
    descriptor.place = place
    descriptor.body_bytes = body_bytes
    descriptor.key_bytes = key_bytes
    copy_bytes(address + KEY_AT, key, key_bytes)
    copy_bytes(address + HEADER_AT, header, HEADER_BYTES)
    store_release(state.memory + PLACE_POSITIONS_AT + 8 * place, position)
    store_shared(descriptor, "position", position)
    state.place_of[slot] = place
    state.following = position + 1
    store_shared(head_at(state.memory), "tail", position + 1)


@inner
def ring_bells(at: WriterAt, scratch: int) -> None:
    """Wake the sleeping readers."""
    state = writer_state_at(at.state)
    store_shared(state, "ringing", 1)
    fence()  # a reader sets `sleeping`, then checks again for a block
    for number in range(state.slots_used):
        if state.live[number] != 0:
            slot = slot_at(_slot(at, number))
            if load_shared(slot, "sleeping") != 0:
                store_shared(slot, "sleeping", 0)
                poke(state.bells[number], scratch)
    store_shared(state, "ringing", 0)


@inner
def has_readers(at: WriterAt) -> bool:
    """Return True if there are readers."""
    return at.state != 0 and load_shared(writer_state_at(at.state), "readers") != 0


@inner
def begin_to_wait(at: WriterAt) -> None:
    """Request a ring from readers: when half of the waiting blocks are taken, or when a place is released."""
    state = writer_state_at(at.state)
    waiting = -1 if has_room(at) else max(1, state.following - state.most_waiting // 2)
    store_shared(head_at(state.memory), "waiting", waiting)
    fence()  # readers advance, then check `waiting`


@inner
def end_waiting(at: WriterAt) -> None:
    """Cancel the request of `begin_to_wait`."""
    store_shared(head_at(writer_state_at(at.state).memory), "waiting", 0)


@njit(nogil=True, cache=True)
def _fence() -> None:
    fence()


class _Reader:
    """A connection from a reader: its peer and, after HELLO, its slot and bell."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.since = time.monotonic()
        self.slot = -1
        self.kept = 0
        self.bell: list[int] = []


class SharedWriter:
    """Shared memory of one slice, and its readers.

    Created and closed by the sender's thread, which writes blocks. Another thread accepts readers: it calls `attend`
    whenever one of `descriptors` is readable. Readers ring `wake_pipe` when the publisher waits.
    """

    def __init__(self, name: str, what: str, block_bytes: int, wait: bool, hwm_blocks: int, wake_pipe: Pipe) -> None:
        """Bind the name. Raises EndpointError naming `what` if another process has it, and LimitError."""
        self._socket = open_socket()
        self._readers: dict[int, _Reader] = {}
        """Readers by each of their watched descriptors."""
        self._is_paused = False
        self._old_bells: list[int] = []
        self._wake_pipe = wake_pipe
        self.state = WriterState()
        try:
            self._socket.bind(address_of(name))
        except OSError as error:
            self._socket.close()
            how = "is in use" if error.errno == errno.EADDRINUSE else f"could not be bound: {error.strerror}"
            raise EndpointError(error.errno or 0, f"{what} {how}") from error
        layout = layout_of(mmap.PAGESIZE, small_bytes_of(block_bytes))
        self._memory_fd = -1
        try:
            self._memory_fd = make_memory(layout)
            self._memory = mmap.mmap(self._memory_fd, layout.end)
        except (OSError, ValueError) as error:
            self.close()
            raise LimitError(
                f"{what}: {layout.end >> 20} MiB of shared memory could not be allocated: {error} (RLIMIT_AS, ulimit "
                "-v; RLIMIT_FSIZE, ulimit -f)"
            ) from error
        self._socket.listen(READERS)
        address = numpy.frombuffer(self._memory, numpy.uint8, 1).ctypes.data
        self._head = Head(numpy.frombuffer(self._memory, numpy.uint8, Head.dtype.itemsize))
        self._head.magic, self._head.page_bytes, self._head.small_bytes = MAGIC, mmap.PAGESIZE, layout.small_bytes
        self._head.place_positions[:] = numpy.full(PLACES, -1).data
        self.state.memory, self.state.places = address, address + layout.small
        self.state.most_waiting = min(hwm_blocks, MOST_WAITING)
        self.state.waits = wait
        self.state.idle[:] = numpy.full(PIN_WORDS, -1).data
        self._layout = layout
        self.at = WriterAt(self.state.address, layout)

    @property
    def descriptors(self) -> list[int]:
        """Descriptors to watch."""
        return [] if self._is_paused else [self._socket.fileno(), *self._readers]

    def attend(self, readable: list[int]) -> None:
        """Accept new readers and remove ended ones; also call it periodically with an empty list."""
        self._is_paused = False
        self._close_bells()
        for fd in readable:
            if fd == self._socket.fileno():
                self._accept()
            elif fd in self._readers:
                self._attend_reader(self._readers[fd])
        late = time.monotonic() - _PATIENCE_S
        for reader in {id(each): each for each in self._readers.values()}.values():
            if reader.slot < 0 and reader.since < late:
                self._forget(reader)

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:
            self._is_paused = True  # out of descriptors: a later call may find one
            return
        connection.setblocking(False)
        reader = _Reader(Peer(connection))
        self._readers.update(dict.fromkeys(reader.peer.descriptors, reader))
        if not reader.peer.is_own or len({id(each) for each in self._readers.values()}) > READERS:
            self._forget(reader)

    def _attend_reader(self, reader: _Reader) -> None:
        try:
            said, bell, *_ = socket.recv_fds(reader.peer.connection, HELLO.size, 2, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            if reader.peer.is_gone():
                self._forget(reader)
            return
        except OSError:
            said, bell = b"", []
        reader.bell += bell
        if reader.slot >= 0 or len(bell) != 2 or len(said) != HELLO.size or HELLO.unpack(said) != (MAGIC,):
            self._forget(reader)
            return
        self._welcome(reader)

    def _welcome(self, reader: _Reader) -> None:
        """Give a reader a free slot: it reads the blocks written from now on."""
        slot = list(self.state.live).index(0)
        kept = min(MOST_PINNED_BY_ONE, (MOST_PINNED - sum(each.kept for each in set(self._readers.values()))) // 2)
        start = self._layout.slots + slot * self._layout.page_bytes
        its = Slot(numpy.frombuffer(self._memory, numpy.uint8, Slot.dtype.itemsize, start))
        its.words[:] = numpy.zeros(len(its.words), numpy.int64).data
        its.cursor = self._head.tail
        reader.slot, reader.kept = slot, kept
        self.state.bells[slot] = reader.bell[1]
        self.state.slots_used = max(self.state.slots_used, slot + 1)
        self.state.live[slot] = 1
        self.state.readers += 1
        _fence()
        # The writer may have noticed it only now: earlier blocks are not kept for it.
        its.cursor = self._head.tail
        words = WELCOME.pack(MAGIC, self._layout.page_bytes, self._layout.small_bytes, slot, kept)
        fds = [self._memory_fd, self._wake_pipe.reader, self._wake_pipe.writer]
        try:
            socket.send_fds(reader.peer.connection, [words], fds)
        except OSError:
            self._forget(reader)

    def _forget(self, reader: _Reader) -> None:
        """Release all resources of a reader that has ended or never completed the handshake."""
        for fd in reader.peer.descriptors:
            self._readers.pop(fd, None)
        if reader.slot >= 0:
            self.state.live[reader.slot] = 0
            self.state.readers -= 1
            self._wake_pipe.poke()
        reader.peer.hang_up()
        self._old_bells += reader.bell
        self._close_bells()

    def _close_bells(self) -> None:
        """Close the bells of ended readers, unless one may be ringing now."""
        _fence()
        if self._old_bells and not self.state.ringing:
            for fd in self._old_bells:
                os.close(fd)
            self._old_bells.clear()

    def close(self) -> None:
        """Release everything. Readers keep their mappings."""
        for reader in set(self._readers.values()):
            self._forget(reader)
        self._close_bells()
        hang_up(self._socket)
        if self._memory_fd >= 0:
            os.close(self._memory_fd)
            self._memory_fd = -1
