"""The subscriber's side of shared memory: read blocks in place, and release their places."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import socket
from typing import Any, Final, NamedTuple

import numpy
from numba import types
from numpy.typing import NDArray

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
    HELLO,
    KEY_AT,
    MAGIC,
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
    head_at,
    is_any_readable,
    is_memory,
    is_supported,
    layout_of,
    open_socket,
    place_offset,
    place_room,
    slot_at,
)
from blackbox.transport.wakeup import Pipe

log = logging.getLogger("blackbox")

_ANSWER_S = 1.0
"""Longest wait for a publisher's answer, in seconds; a stopped publisher does not answer."""
_SOCKET_EVERY: Final = 8
"""Blocks taken from memory between two checks of the sockets."""
_TRIES: Final = 5
"""Control blocks to wait for shared memory that was there before: the first may be of the old publisher."""
_GONE: Final = (1 << 63) - 1
_RECORD_BYTES: Final = 4096
"""Size and alignment of a ReaderState: the lower bits of its address can hold the number of a place."""
assert PLACES <= _RECORD_BYTES

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


assert ReaderState.dtype.itemsize <= _RECORD_BYTES
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
        _munmap(address, numpy.int64(_RECORD_BYTES))


def _release(_body: int, hint: int) -> None:
    """Release a place: libzmq calls this in any thread when the last copy of a message is closed.

    Does nothing in a forked child, which closes its copies while the parent still reads: its record is zeroed.
    """
    address = hint & -_RECORD_BYTES
    if load_acquire(address + _REFERENCES_AT) == 0:
        return
    _unpin(reader_state_at(address), hint & (_RECORD_BYTES - 1))
    _drop_reference(address)


_released: Any = cfunc(types.void(types.int64, types.int64), nogil=True, cache=True)(_release)
"""The callback whose address libzmq calls; it must live as long as the process."""


@njit(nogil=True, cache=True)
def _close_reader(address: int) -> None:
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


_TO_WRITE: Final = mmap.PROT_READ | mmap.PROT_WRITE
_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_int64
_libc.mmap.argtypes = (ctypes.c_int64, ctypes.c_int64, *[ctypes.c_int] * 3, ctypes.c_int64)
_libc.munmap.argtypes = (ctypes.c_int64, ctypes.c_int64)
_libc.madvise.argtypes = (ctypes.c_int64, ctypes.c_int64, ctypes.c_int)
_WIPE_ON_FORK: Final = 18
"""MADV_WIPEONFORK, missing in Python's mmap."""


def _map(fd: int, size: int, access: int, start: int) -> int:
    """Map memory that Python must not unmap, since messages may outlive the reader. -1: anonymous memory."""
    how = mmap.MAP_SHARED if fd >= 0 else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address: int = _libc.mmap(0, size, access, how, fd, start)
    if address == -1:
        raise OSError(ctypes.get_errno(), f"{size >> 20} MiB could not be mapped")
    return address


def _array_at(address: int, size: int) -> NDArray[numpy.uint8]:
    return numpy.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


class SharedReader:
    """A slot in a publisher's memory. Used by one thread; messages taken from it may be closed in any."""

    def __init__(self, peer: Peer, layout: Layout, fds: list[int], slot: int, kept: int) -> None:
        """Map the memory. Takes ownership of the connection and the descriptors, unless it raises OSError."""
        memory_fd, bell_reader, bell = fds
        start = layout.slots + slot * layout.page_bytes
        mapped: list[tuple[int, int]] = []
        try:
            mapped.append((_map(memory_fd, layout.end, mmap.PROT_READ, 0), layout.end))
            mapped.append((_map(memory_fd, layout.page_bytes, _TO_WRITE, start), layout.page_bytes))
            own = _map(-1, _RECORD_BYTES, _TO_WRITE, 0)
            mapped.append((own, _RECORD_BYTES))
            if _libc.madvise(own, _RECORD_BYTES, _WIPE_ON_FORK) != 0:
                raise OSError(ctypes.get_errno(), "memory that forked processes do not inherit could not be allocated")
        except OSError:
            for address, size in mapped:
                _libc.munmap(address, size)
            raise
        self._peer = peer
        self.state = ReaderState(_array_at(own, ReaderState.dtype.itemsize))
        self.state.memory, self.state.slot = mapped[0][0], mapped[1][0]
        self.state.memory_bytes, self.state.page_bytes = layout.end, layout.page_bytes
        self.state.references, self.state.kept_most = 1, kept
        self.state.cursor = Slot(_array_at(self.state.slot, Slot.dtype.itemsize)).cursor
        self.state.release = _released.address
        self.state.connection = peer.connection.detach()
        self.state.bell_reader, self.state.bell = bell_reader, bell
        os.close(memory_fd)
        self.at = ReaderAt(own, layout)

    def has_more(self) -> bool:
        """Return True if blocks, or a message from a socket that waits for them, are available."""
        written = Head(_array_at(self.state.memory, Head.dtype.itemsize)).tail
        return bool(self.state.frames or self.state.cursor < written)

    def is_gone(self) -> bool:
        """Return True if the publisher has ended."""
        watched = [fd for fd in (self.state.connection, self._peer.watch) if fd >= 0]
        return bool(self.state.is_over) or is_any_readable(watched)

    def close(self) -> None:
        """Stop taking blocks. Bodies in use stay valid until their messages are closed."""
        self._peer.close_watch()
        Slot(_array_at(self.state.slot, Slot.dtype.itemsize)).cursor = _GONE
        _close_reader(self.at.state)


def attach(name: str, bell: Pipe) -> SharedReader:
    """Become a reader of a publisher of this user on this host.

    Raises:
        ConnectionRefusedError: there is no publisher now.
        OSError: it rejects this process, or this system is not Linux.
    """
    if not is_supported():
        raise OSError("no shared memory: this system is not Linux")
    connection, fds = open_socket(), list[int]()
    peer: Peer | None = None
    try:
        connection.settimeout(_ANSWER_S)
        connection.connect(address_of(name))
        peer = Peer(connection)
        if not peer.is_own:
            raise OSError(f"no shared memory: {name} is of another user")
        socket.send_fds(connection, [HELLO.pack(MAGIC)], [bell.reader, bell.writer])
        said, fds, *_ = socket.recv_fds(connection, WELCOME.size, 3, socket.MSG_CMSG_CLOEXEC)
        if len(said) != WELCOME.size or len(fds) != 3:
            raise OSError(f"no shared memory: {name} has no free slot")
        magic, page_bytes, small_bytes, slot, kept = WELCOME.unpack(said)
        if magic != MAGIC or page_bytes != mmap.PAGESIZE or small_bytes <= 0 or not 0 <= slot < READERS:
            raise OSError(f"no shared memory: {name} has another version")
        layout = layout_of(page_bytes, small_bytes)
        if not is_memory(fds[0], layout):
            raise OSError(f"no shared memory: the memory of {name} has another size, or can be truncated")
        return SharedReader(peer, layout, fds, slot, kept)
    except BaseException:
        connection.close()
        if peer is not None:
            peer.close_watch()
        for fd in fds:
            os.close(fd)
        raise


class SharedSource:
    """A slice's source of shared memory, chosen for each publisher.

    `is_asked`: data is subscribed to in memory and not on sockets, which would duplicate it. Before the first publisher
    answers, the choice is open.
    """

    def __init__(self, name: str, bell: Pipe, what: str) -> None:
        """`name` of the memory; empty: none. The publisher rings `bell`. `what`: name of the reader in the log."""
        self._name, self._bell, self._what = name, bell, what
        self._reader: SharedReader | None = None
        self._tries_left = 1 if name else 0

    @property
    def at(self) -> ReaderAt:
        """Reader of the current memory."""
        return NO_READER if self._reader is None else self._reader.at

    @property
    def is_asked(self) -> bool:
        """True if data is subscribed to in memory."""
        return self._tries_left > 0

    @property
    def is_open(self) -> bool:
        """True if memory is subscribed to but no publisher's memory is mapped."""
        return self.is_asked and self._reader is None

    def attach(self) -> bool:
        """Attach to the current publisher's memory; return True on success."""
        try:
            self._reader = attach(self._name, self._bell)
        except ConnectionRefusedError:
            return False
        except OSError as error:
            log.info("%s: data is read from sockets: %s", self._what, error)
            self._tries_left = 0
            return False
        self._tries_left = _TRIES
        return True

    def decide(self) -> bool:
        """Attach to the memory of a publisher just heard; return True on success.

        Falls back to sockets after some tries.
        """
        self._tries_left -= 1
        return self.attach()

    def leave_gone(self) -> bool:
        """Detach from a publisher that has ended, once all its blocks are taken; return True if detached."""
        if self._reader is None or not self._reader.is_gone() or self._reader.has_more():
            return False
        self.close()
        return True

    def close(self) -> None:
        """Detach from shared memory."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
