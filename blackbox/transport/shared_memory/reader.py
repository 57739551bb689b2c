"""The subscriber's side of shared memory, compiled: read blocks in place, and release their places."""

from __future__ import annotations

import socket
from typing import Any, Final, NamedTuple

import numpy
from numba import types

from blackbox.block.form.format import HEADER_BYTES
from blackbox.feed.routing.key_rule import MAX_KEY_BYTES
from blackbox.native.compile.jit import cfunc, njit
from blackbox.native.memory.intrinsics import copy_bytes, fence, fetch_add, fetch_and, fetch_or, inner, load_acquire
from blackbox.native.memory.records import Field, Fields, SharedRecord, load_shared, record_at, store_shared
from blackbox.native.system.posix import external, poke
from blackbox.native.tables.prefix_trie import Trie, longest_prefix
from blackbox.transport.libzmq import (
    DONTWAIT,
    EAGAIN,
    MESSAGE_BYTES,
    msg_close,
    msg_data,
    msg_init_on,
    msg_init_shared,
    msg_init_size,
    msg_more,
    msg_move,
    msg_recv,
    zmq_errno,
)
from blackbox.transport.shared_memory.layout import (
    DESCRIPTOR_BYTES,
    DESCRIPTORS,
    HEADER_AT,
    KEY_AT,
    PINS_AT,
    PLACE_POSITIONS_AT,
    PLACES,
    SMALL_PLACES,
    Layout,
    bit_of,
    descriptor_at,
    head_at,
    place_offset,
    place_room,
    slot_at,
)

_SOCKET_EVERY: Final = 8
"""Blocks taken from memory between two checks of the sockets."""
RECORD_BYTES: Final = 4096
"""Size and alignment of a ReaderState: the lower bits of its address can hold the number of a place."""
assert PLACES <= RECORD_BYTES

_munmap = external("munmap", types.int32, types.int64, types.int64)
_close = external("close", types.int32, types.int32)
_shutdown = external("shutdown", types.int32, types.int32, types.int32)


class ReaderState(SharedRecord):
    """State of a reader, in its own memory, freed with the last message that uses a place."""

    references = Field()
    """One per pinned place, plus one until `close`; the memory is freed at 0."""
    memory = Field()
    """Address of the publisher's memory, mapped read-only."""
    memory_bytes = Field()
    slot = Field()
    """Address of the page of its slot, mapped for writing."""
    page_bytes = Field()
    kept_most = Field()
    """Places that it may pin; further bodies are copied."""
    connection = Field()
    """Descriptors to close at the end: the connection, and both ends of the publisher's bell."""
    bell_reader = Field()
    bell = Field()
    release = Field()
    """Address of the C function that releases a place."""
    cursor = Field(own_line=True)
    """Position of the next block to take."""
    copied = Field()
    """Bodies copied because too many places were pinned."""
    frames = Field()
    """Frames received on a socket that wait until earlier blocks are taken."""
    frames_after = Field()
    """Position up to which these blocks must be taken first."""
    turn = Field()
    is_over = Field()
    """1 once the publisher has ended."""
    descriptor = Fields(DESCRIPTOR_BYTES // 8, own_line=True)
    """Copy of the current block's descriptor."""


assert ReaderState.dtype.itemsize <= RECORD_BYTES
reader_state_at = record_at(ReaderState)
_DESCRIPTOR_AT: Final = 8 * ReaderState.descriptor.start
_REFERENCES_AT: Final = 8 * ReaderState.references.start


class ReaderAt(NamedTuple):
    """Addresses of a reader, for compiled code. `state` 0: none."""

    state: int
    layout: Layout


NO_READER: Final = ReaderAt(0, Layout(0, 0, 0, 0, 0, 0, 0))


@inner
def _unpin(state: ReaderState, place: int) -> None:
    fetch_and(state.slot + PINS_AT + 8 * (place >> 6), ~bit_of(place))
    if load_shared(head_at(state.memory), "waiting") < 0:
        poke(state.bell, state.memory)


@inner
def _drop_reference(address: int) -> None:
    """Remove a reference; free memory and descriptors with the last one."""
    if fetch_add(address + _REFERENCES_AT, -1) == 1:
        state = reader_state_at(address)
        _shutdown(state.connection, numpy.int64(socket.SHUT_RDWR))  # a forked process may have inherited it
        _close(state.connection)
        _close(state.bell_reader)
        _close(state.bell)
        _munmap(state.memory, state.memory_bytes)
        _munmap(state.slot, state.page_bytes)
        _munmap(address, numpy.int64(RECORD_BYTES))


def _release(_body: int, hint: int) -> None:
    """Release a place: libzmq calls this in any thread when the last copy of a message is closed.

    Does nothing in a forked child, which closes its copies while the parent still reads: its record is zeroed.
    """
    address = hint & -RECORD_BYTES
    if load_acquire(address + _REFERENCES_AT) == 0:
        return
    _unpin(reader_state_at(address), hint & (RECORD_BYTES - 1))
    _drop_reference(address)


released: Any = cfunc(types.void(types.int64, types.int64), nogil=True, cache=True)(_release)
"""The callback whose address libzmq calls; it must live as long as the process."""


@njit(nogil=True, cache=True)
def close_reader(address: int) -> None:
    """Free a reader's memory once no message uses it."""
    _drop_reference(address)


@inner
def _advance(state: ReaderState, cursor: int) -> None:
    state.cursor = cursor
    store_shared(slot_at(state.slot), "cursor", cursor)
    fence()  # the publisher sets `waiting`, then checks the cursors again
    waiting = load_shared(head_at(state.memory), "waiting")
    if waiting != 0 and cursor >= waiting:
        poke(state.bell, state.memory)


@inner
def _pin(at: ReaderAt, position: int) -> bool:
    """Pin the place of the copied descriptor. Return False if its block was overwritten."""
    state = reader_state_at(at.state)
    copy = descriptor_at(at.state + _DESCRIPTOR_AT)
    place = copy.place
    sane = 0 <= place < PLACES and 0 <= copy.key_bytes <= MAX_KEY_BYTES
    if not sane or copy.body_bytes < 0 or copy.body_bytes > place_room(at.layout, place):
        return False
    fetch_or(state.slot + PINS_AT + 8 * (place >> 6), bit_of(place))
    fence()  # the publisher invalidates a place, then checks the pins
    if load_acquire(state.memory + PLACE_POSITIONS_AT + 8 * place) == position:
        return True
    _unpin(state, place)
    return False


@inner
def _find(at: ReaderAt, keys: Trie) -> bool:
    """Advance to the next available block with a subscribed key and pin it; return False if no block is available."""
    state = reader_state_at(at.state)
    tail = load_shared(head_at(state.memory), "tail")
    cursor = max(state.cursor, tail - DESCRIPTORS)
    copy = descriptor_at(at.state + _DESCRIPTOR_AT)
    found = False
    while cursor < tail and not found:
        there = state.memory + at.layout.descriptors + DESCRIPTOR_BYTES * (cursor % DESCRIPTORS)
        descriptor = descriptor_at(there)
        if load_shared(descriptor, "position") == cursor:
            copy_bytes(at.state + _DESCRIPTOR_AT, there, numpy.int64(DESCRIPTOR_BYTES))
            fence()
            if load_shared(descriptor, "position") == cursor:
                size = min(max(copy.key_bytes, 0), MAX_KEY_BYTES)
                wanted = longest_prefix(keys, at.state + _DESCRIPTOR_AT + KEY_AT, size) != 0
                found = wanted and _pin(at, cursor)
        cursor += 1
    if cursor != state.cursor:
        _advance(state, cursor)
    return found


@inner
def take_block(at: ReaderAt, keys: Trie, key_message: int, header_message: int, body_message: int) -> int:
    """Take the next block as three messages. Return 3; 0 if no block is available, -1 if out of memory.

    Key and header are valid until the next call, the body as long as its message. Overwritten blocks are skipped; their
    sequences are then missing.
    """
    if not _find(at, keys):
        return 0
    state = reader_state_at(at.state)
    copy = descriptor_at(at.state + _DESCRIPTOR_AT)
    place, size = copy.place, copy.body_bytes
    body = state.memory + place_offset(at.layout, place)
    msg_close(body_message)
    if place < SMALL_PLACES and load_acquire(at.state + _REFERENCES_AT) <= state.kept_most:
        fetch_add(at.state + _REFERENCES_AT, 1)
        made = msg_init_shared(body_message, body, size, state.release, at.state | place)
        if made != 0:
            _unpin(state, place)
            fetch_add(at.state + _REFERENCES_AT, -1)
    else:
        made = msg_init_size(body_message, size)
        if made == 0:
            copy_bytes(msg_data(body_message), body, size)
            state.copied += 1
        _unpin(state, place)
    if made != 0:
        return -1
    msg_close(key_message)
    msg_init_on(key_message, at.state + _DESCRIPTOR_AT + KEY_AT, copy.key_bytes)
    msg_close(header_message)
    msg_init_on(header_message, at.state + _DESCRIPTOR_AT + HEADER_AT, numpy.int64(HEADER_BYTES))
    return 3


@inner
def receive_from_socket(socket: int, first: int) -> Any:
    """Receive one block into three messages; return its number of frames, 0 if no block is available, -1 on error."""
    message = first
    if msg_recv(message, socket, DONTWAIT) < 0:
        return 0 if zmq_errno() == EAGAIN else -1
    frames = 1
    while msg_more(message):
        # Further frames overwrite the third: the caller rejects the block.
        message = first + min(frames, 2) * MESSAGE_BYTES
        if msg_recv(message, socket, DONTWAIT) < 0:
            return -1
        frames += 1
    return frames


@inner
def receive_both(at: ReaderAt, keys: Trie, socket: int, first: int, waiting: int) -> Any:
    """Do the same as `receive_from_socket`, for data in shared memory. `waiting`: address of three more messages.

    A block from a socket was sent after all blocks then in memory: it waits until those are taken.
    """
    state = reader_state_at(at.state)
    if state.frames == 0 and (state.turn % _SOCKET_EVERY == 0 or written(at) == state.cursor):
        state.frames = receive_from_socket(socket, waiting)
        if state.frames < 0:
            state.frames = 0
            return -1
        state.frames_after = written(at)
    state.turn += 1
    if state.frames == 0 or state.cursor < state.frames_after:
        taken = take_block(at, keys, first, first + MESSAGE_BYTES, first + 2 * MESSAGE_BYTES)
        if taken != 0 or state.frames == 0:
            return taken
    frames = state.frames
    state.frames = 0
    for frame in range(3):
        msg_move(first + frame * MESSAGE_BYTES, waiting + frame * MESSAGE_BYTES)
    return frames


@inner
def connection_of(at: ReaderAt) -> int:
    """Return the descriptor that becomes readable when the publisher ends."""
    connection: int = reader_state_at(at.state).connection
    return connection


@inner
def written(at: ReaderAt) -> int:
    """Return the number of blocks written so far."""
    tail: int = load_shared(head_at(reader_state_at(at.state).memory), "tail")
    return tail


@inner
def may_sleep(at: ReaderAt) -> Any:
    """Request a ring of the bell; return False if a block has arrived meanwhile."""
    state = reader_state_at(at.state)
    store_shared(slot_at(state.slot), "sleeping", 1)
    fence()  # the publisher writes a block, then checks which readers sleep
    return written(at) == state.cursor


@inner
def wake_up(at: ReaderAt) -> None:
    """Cancel the request of `may_sleep`."""
    store_shared(slot_at(reader_state_at(at.state).slot), "sleeping", 0)
