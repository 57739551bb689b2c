"""The publisher's side of shared memory: a place for each body, and a list of who reads."""

from __future__ import annotations

import errno
import mmap
import os
import socket
import time
from typing import Any, Final, NamedTuple

import numpy

from blackbox.block.format import HEADER_BYTES
from blackbox.errors import EndpointError, LimitError
from blackbox.native.intrinsics import copy_bytes, fence, inner, load_acquire, lowest_bit, store_release
from blackbox.native.jit import njit
from blackbox.native.posix import poke
from blackbox.native.records import Field, Fields, SharedRecord, load_shared, record_at, store_shared
from blackbox.transport.libzmq import wait_readable
from blackbox.transport.shared_memory import (
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
"""The large places, in the last word of a bitmap."""
OFFERED: Final = 16
"""Blocks that may be encoded ahead in places of their own: as many as fill up before a sender that is behind. What is
encoded elsewhere is copied by the sender, who has it in another core's cache."""
assert MOST_WAITING + MOST_PINNED + READERS + OFFERED <= SMALL_PLACES
_WAIT_MS: Final = numpy.int64(20)
_NO: Final = numpy.int64(0)
_PATIENCE_S: Final = 1.0
"""How long somebody who has connected may take to say who it is."""


class WriterState(SharedRecord):
    """What the publisher knows of its memory. Readers cannot write it."""

    memory = Field()
    """Its address."""
    places = Field()
    """Address of the small places."""
    following = Field()
    """The position of the next block."""
    kept_from = Field()
    """The first position whose place is not known to be free of readers that have yet to take it."""
    most_waiting = Field()
    """Blocks that may wait for a reader."""
    waits = Field()
    """1: wait for the slowest reader, 0: let it lose blocks."""
    idle = Fields(PIN_WORDS)
    """A bit for each place whose block nobody has yet to take."""
    place_of = Fields(DESCRIPTORS)
    """Of each of the last positions the place."""
    readers = Field(own_line=True)
    """How many there are."""
    slots_used = Field()
    """Slots from this one on were never used."""
    live = Fields(READERS)
    """1 for each slot whose reader is there; written by the thread that meets readers."""
    bells = Fields(READERS)
    """What to write to, to wake each reader."""
    ringing = Field(own_line=True)
    """1 while bells are rung: none may be closed."""
    offered = Fields(OFFERED)
    """Places for who encodes blocks before the writer gets them; after the last comes the first."""
    offered_to = Field(own_line=True)
    """How many were offered so far; written by the writer."""
    offered_from = Field(own_line=True)
    """How many of these were accepted; written by who encodes."""


class WriterAt(NamedTuple):
    """Where a writer is, for compiled code. `state` is 0: there is no shared memory."""

    state: int
    layout: Layout


NO_WRITER: Final = WriterAt(0, Layout(0, 0, 0, 0, 0, 0, 0))
writer_state_at = record_at(WriterState)


@inner
def _slot(at: WriterAt, number: int) -> Any:
    return writer_state_at(at.state).memory + at.layout.slots + number * at.layout.page_bytes


@inner
def _pinned(at: WriterAt, word: int) -> Any:
    """The places of one word of the bitmap that readers keep."""
    state = writer_state_at(at.state)
    pinned = numpy.int64(0)
    for number in range(state.slots_used):
        if state.live[number] != 0:
            pinned |= load_acquire(_slot(at, number) + PINS_AT + 8 * word)
    return pinned


@inner
def _let_go(at: WriterAt) -> None:
    """Note as idle the places of blocks that all readers have taken, or that no reader is waited for any more."""
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
    """Whether no reader is too far behind for one more block."""
    state = writer_state_at(at.state)
    _let_go(at)
    return state.following - state.kept_from < state.most_waiting


@inner
def claim_place(at: WriterAt, body_bytes: int) -> Any:
    """Take the first place that nobody reads, and let no reader begin to; NO_PLACE: there is none now."""
    state = writer_state_at(at.state)
    _let_go(at)
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
            fence()  # a reader pins a place and then looks whether its block is still there
            if _pinned(at, word) & bit == 0:
                state.idle[word] &= ~bit
                return place
            free &= ~bit
    return NO_PLACE


@inner
def find_place(at: WriterAt, own: int, body_bytes: int) -> Any:
    """Return a place for a body, its own if it lies in one; NO_PLACE: there is no room now."""
    if not has_room(at):
        return NO_PLACE
    return claim_place(at, body_bytes) if own == NO_PLACE else own


@inner
def await_place(at: WriterAt, own: int, body_bytes: int, wake_fd: int, scratch: int) -> Any:
    """As `find_place`, behind a moment in which slow readers may leave a place."""
    begin_to_wait(at)
    place = find_place(at, own, body_bytes)
    if place == NO_PLACE:
        wait_readable(_NO, _NO, wake_fd, _WAIT_MS, scratch)
        place = find_place(at, own, body_bytes)
    end_waiting(at)
    return place


@inner
def place_address(at: WriterAt, place: int) -> Any:
    """Where the body of a claimed place is to be written."""
    return writer_state_at(at.state).memory + place_offset(at.layout, place)


@inner
def place_of(at: WriterAt, body: int) -> Any:
    """The place that a body lies in; NO_PLACE: it lies elsewhere."""
    offset = body - writer_state_at(at.state).places
    return offset // at.layout.small_bytes if 0 <= offset < SMALL_PLACES * at.layout.small_bytes else NO_PLACE


@inner
def give_back(at: WriterAt, place: int) -> None:
    """Publish nothing in a place that was claimed."""
    writer_state_at(at.state).idle[place >> 6] |= bit_of(place)


@inner
def offer_places(at: WriterAt) -> None:
    """Claim places for who encodes the next blocks."""
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
    """The address of a place to encode a body in; 0: none is offered. For one thread at a time."""
    if at.state == 0:
        return numpy.int64(0)
    state = writer_state_at(at.state)
    if body_bytes > at.layout.small_bytes or load_shared(state, "offered_to") == state.offered_from:
        return numpy.int64(0)
    return state.places + state.offered[state.offered_from % OFFERED] * at.layout.small_bytes


@inner
def accept_place(at: WriterAt) -> None:
    """Take the place that was offered: a block in it goes to the writer."""
    state = writer_state_at(at.state)
    store_shared(state, "offered_from", state.offered_from + 1)


@inner
def publish_place(at: WriterAt, place: int, body_bytes: int, key: int, key_bytes: int, header: int) -> None:
    """Let readers take the block whose body was written to a claimed place."""
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
    """Wake the readers that sleep."""
    state = writer_state_at(at.state)
    store_shared(state, "ringing", 1)
    fence()  # a reader says that it sleeps and then looks once more whether a block has come
    for number in range(state.slots_used):
        if state.live[number] != 0:
            slot = slot_at(_slot(at, number))
            if load_shared(slot, "sleeping") != 0:
                store_shared(slot, "sleeping", 0)
                poke(state.bells[number], scratch)
    store_shared(state, "ringing", 0)


@inner
def has_readers(at: WriterAt) -> bool:
    """Whether anybody reads what is written."""
    return at.state != 0 and load_shared(writer_state_at(at.state), "readers") != 0


@inner
def begin_to_wait(at: WriterAt) -> None:
    """Ask readers to ring: when half of what waits for them is taken, or when they give a place back."""
    state = writer_state_at(at.state)
    waiting = -1 if has_room(at) else max(1, state.following - state.most_waiting // 2)
    store_shared(head_at(state.memory), "waiting", waiting)
    fence()  # readers move on and then look whether they are waited for


@inner
def end_waiting(at: WriterAt) -> None:
    """Ask readers to ring no more."""
    store_shared(head_at(writer_state_at(at.state).memory), "waiting", 0)


@njit(nogil=True, cache=True)
def _fence() -> None:
    fence()


class _Reader:
    """A connection: who is at its other end, and the slot and bell that it has once it has said hello."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.since = time.monotonic()
        self.slot = -1
        self.kept = 0
        self.bell: list[int] = []


class SharedWriter:
    """The shared memory of one slice, and those who read it.

    Made and closed by the sender's thread, which writes blocks. Another thread meets readers: whenever one of
    `descriptors` is readable it calls `attend`. `wake_pipe` is what readers ring when the publisher waits.
    """

    def __init__(self, name: str, what: str, block_bytes: int, wait: bool, hwm_blocks: int, wake_pipe: Pipe) -> None:
        """Take the name. Raises EndpointError naming `what`, if another process has it, and LimitError."""
        self._socket = open_socket()
        self._readers: dict[int, _Reader] = {}
        """By each descriptor that is watched for it."""
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
                f"{what}: {layout.end >> 20} MiB of shared memory could not be had: {error} (RLIMIT_AS, ulimit -v; "
                "RLIMIT_FSIZE, ulimit -f)"
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
        """What to watch."""
        return [] if self._is_paused else [self._socket.fileno(), *self._readers]

    def attend(self, readable: list[int]) -> None:
        """Meet those who knock, and forget those who have gone; call it every now and then with an empty list."""
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
            self._is_paused = True  # no descriptor is free: the next look may find one
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
        """Give a reader a slot that is free: it reads what comes from now on."""
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
        # The writer may not have seen it until now: what was written before this is not kept for it.
        its.cursor = self._head.tail
        words = WELCOME.pack(MAGIC, self._layout.page_bytes, self._layout.small_bytes, slot, kept)
        fds = [self._memory_fd, self._wake_pipe.reader, self._wake_pipe.writer]
        try:
            socket.send_fds(reader.peer.connection, [words], fds)
        except OSError:
            self._forget(reader)

    def _forget(self, reader: _Reader) -> None:
        """Take back all that a reader has: it has gone, or never came in."""
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
        """Close the bells of readers that have gone, unless one may be rung right now."""
        _fence()
        if self._old_bells and not self.state.ringing:
            for fd in self._old_bells:
                os.close(fd)
            self._old_bells.clear()

    def close(self) -> None:
        """Give everything back. Readers keep what they have mapped."""
        for reader in set(self._readers.values()):
            self._forget(reader)
        self._close_bells()
        hang_up(self._socket)
        if self._memory_fd >= 0:
            os.close(self._memory_fd)
            self._memory_fd = -1
