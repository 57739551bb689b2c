"""The subscriber's side of shared memory: take blocks where they lie, and give their places back."""

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

from blackbox.block.format import HEADER_BYTES
from blackbox.feed.key_rule import MAX_KEY_BYTES
from blackbox.native.intrinsics import copy_bytes, fence, fetch_add, fetch_and, fetch_or, inner, load_acquire
from blackbox.native.jit import cfunc, njit
from blackbox.native.posix import external, poke
from blackbox.native.prefix_trie import Trie, longest_prefix
from blackbox.native.records import Field, Fields, SharedRecord, load_shared, record_at, store_shared
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
from blackbox.transport.shared_memory import (
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
"""How long a publisher may take to answer; one that is stopped does not."""
_SOCKET_EVERY: Final = 8
"""Blocks taken from memory between two looks at the sockets."""
_TRIES: Final = 5
"""Control blocks to wait for shared memory where there was some: the first may be of the publisher that is gone."""
_GONE: Final = (1 << 63) - 1
_RECORD_BYTES: Final = 4096
"""Room, and alignment, of a ReaderState: the lower bits of its address take the number of a place."""
assert PLACES <= _RECORD_BYTES

_munmap = external("munmap", types.int32, types.int64, types.int64)
_close = external("close", types.int32, types.int32)
_shutdown = external("shutdown", types.int32, types.int32, types.int32)


class ReaderState(SharedRecord):
    """What a reader knows, in memory of its own that goes with the last message whose body lies in a place."""

    references = Field()
    """One for each place that it keeps, and one until it is closed: who takes the last one off gives all back."""
    memory = Field()
    """Where the publisher's memory is mapped, to be read alone."""
    memory_bytes = Field()
    slot = Field()
    """Where the page of its slot is mapped, to be written."""
    page_bytes = Field()
    kept_most = Field()
    """Places that it may keep: a body beyond is copied."""
    connection = Field()
    """Descriptors to be closed at the end: of the connection, and both ends of the publisher's bell."""
    bell_reader = Field()
    bell = Field()
    release = Field()
    """The C function that gives a place back."""
    cursor = Field(own_line=True)
    """The position of the next block to take."""
    copied = Field()
    """Bodies copied, as too many places were kept."""
    frames = Field()
    """Frames of what came on a socket, and waits until the blocks before it are taken."""
    frames_after = Field()
    """The position to which they are to be taken."""
    turn = Field()
    is_over = Field()
    """1 once the publisher has gone."""
    descriptor = Fields(DESCRIPTOR_BYTES // 8, own_line=True)
    """A copy of that of the block at hand."""


assert ReaderState.dtype.itemsize <= _RECORD_BYTES
reader_state_at = record_at(ReaderState)
_DESCRIPTOR_AT: Final = 8 * ReaderState.descriptor.start
_REFERENCES_AT: Final = 8 * ReaderState.references.start


class ReaderAt(NamedTuple):
    """Where a reader is, for compiled code. `state` is 0: there is none."""

    state: int
    layout: Layout


NO_READER: Final = ReaderAt(0, Layout(0, 0, 0, 0, 0, 0, 0))


@inner
def _unpin(state: ReaderState, place: int) -> None:
    fetch_and(state.slot + PINS_AT + 8 * (place >> 6), ~bit_of(place))
    if load_shared(head_at(state.memory), "waiting") < 0:
        poke(state.bell, state.memory)


@inner
def _let_go(address: int) -> None:
    """Take a reference off; without any left, give memory and descriptors back."""
    if fetch_add(address + _REFERENCES_AT, -1) == 1:
        state = reader_state_at(address)
        _shutdown(state.connection, numpy.int64(socket.SHUT_RDWR))  # a process that was forked may have it, too
        _close(state.connection)
        _close(state.bell_reader)
        _close(state.bell)
        _munmap(state.memory, state.memory_bytes)
        _munmap(state.slot, state.page_bytes)
        _munmap(address, numpy.int64(_RECORD_BYTES))


def _release(_body: int, hint: int) -> None:
    """Give a place back: libzmq calls this when the last copy of a message goes, in whatever thread that happens.

    Not in a process that was forked, whose copies go while this one still reads: there the record is empty.
    """
    address = hint & -_RECORD_BYTES
    if load_acquire(address + _REFERENCES_AT) == 0:
        return
    _unpin(reader_state_at(address), hint & (_RECORD_BYTES - 1))
    _let_go(address)


_released: Any = cfunc(types.void(types.int64, types.int64), nogil=True, cache=True)(_release)
"""Whose address libzmq calls: it stays for as long as this process does."""


@njit(nogil=True, cache=True)
def _close_reader(address: int) -> None:
    _let_go(address)


@inner
def _advance(state: ReaderState, cursor: int) -> None:
    state.cursor = cursor
    store_shared(slot_at(state.slot), "cursor", cursor)
    fence()  # the publisher says that it waits and then looks once more who has taken what
    waiting = load_shared(head_at(state.memory), "waiting")
    if waiting != 0 and cursor >= waiting:
        poke(state.bell, state.memory)


@inner
def _pin(at: ReaderAt, position: int) -> bool:
    """Take hold of the place of the descriptor that was copied. False: its block is not there any more."""
    state = reader_state_at(at.state)
    copy = descriptor_at(at.state + _DESCRIPTOR_AT)
    place = copy.place
    sane = 0 <= place < PLACES and 0 <= copy.key_bytes <= MAX_KEY_BYTES
    if not sane or copy.body_bytes < 0 or copy.body_bytes > place_room(at.layout, place):
        return False
    fetch_or(state.slot + PINS_AT + 8 * (place >> 6), bit_of(place))
    fence()  # the publisher takes a place away and then looks who has pinned it
    if load_acquire(state.memory + PLACE_POSITIONS_AT + 8 * place) == position:
        return True
    _unpin(state, place)
    return False


@inner
def _find(at: ReaderAt, keys: Trie) -> bool:
    """Go on to the next block whose key is wanted and that is still there, and pin it. False: there is none."""
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
    """Take the next block, if there is one, as three messages: 3; 0: there is none; -1: no memory.

    Key and header are valid until the next is taken, the body as long as its message. What was overwritten is passed
    over: its sequence numbers are then missing.
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
    """Receive one block into three messages; returns its frames, 0 when there is none, -1 when libzmq failed."""
    message = first
    if msg_recv(message, socket, DONTWAIT) < 0:
        return 0 if zmq_errno() == EAGAIN else -1
    frames = 1
    while msg_more(message):
        # Frames behind the third overwrite it: the caller refuses the block.
        message = first + min(frames, 2) * MESSAGE_BYTES
        if msg_recv(message, socket, DONTWAIT) < 0:
            return -1
        frames += 1
    return frames


@inner
def receive_both(at: ReaderAt, keys: Trie, socket: int, first: int, waiting: int) -> Any:
    """As `receive_from_socket`, where data lies in shared memory. `waiting`: three more messages.

    What comes on a socket was sent after all that had been written to memory by then: it waits until that is taken.
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
    """The descriptor that becomes readable when the publisher goes."""
    connection: int = reader_state_at(at.state).connection
    return connection


@inner
def written(at: ReaderAt) -> int:
    """How many blocks there were so far."""
    tail: int = load_shared(head_at(reader_state_at(at.state).memory), "tail")
    return tail


@inner
def may_sleep(at: ReaderAt) -> Any:
    """Ask for the bell to be rung; False: a block has come meanwhile."""
    state = reader_state_at(at.state)
    store_shared(slot_at(state.slot), "sleeping", 1)
    fence()  # the publisher writes a block and then looks who sleeps
    return written(at) == state.cursor


@inner
def wake_up(at: ReaderAt) -> None:
    """Ask for the bell no more."""
    store_shared(slot_at(reader_state_at(at.state).slot), "sleeping", 0)


_TO_WRITE: Final = mmap.PROT_READ | mmap.PROT_WRITE
_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_int64
_libc.mmap.argtypes = (ctypes.c_int64, ctypes.c_int64, *[ctypes.c_int] * 3, ctypes.c_int64)
_libc.munmap.argtypes = (ctypes.c_int64, ctypes.c_int64)
_libc.madvise.argtypes = (ctypes.c_int64, ctypes.c_int64, ctypes.c_int)
_WIPE_ON_FORK: Final = 18
"""MADV_WIPEONFORK, which Python does not know."""


def _map(fd: int, size: int, access: int, start: int) -> int:
    """Map memory that Python does not unmap: messages may need it for longer. -1: memory of no file."""
    how = mmap.MAP_SHARED if fd >= 0 else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address: int = _libc.mmap(0, size, access, how, fd, start)
    if address == -1:
        raise OSError(ctypes.get_errno(), f"{size >> 20} MiB could not be mapped")
    return address


def _array_at(address: int, size: int) -> NDArray[numpy.uint8]:
    return numpy.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


class SharedReader:
    """A slot in a publisher's memory. Used by one thread; messages taken from it may go in any."""

    def __init__(self, peer: Peer, layout: Layout, fds: list[int], slot: int, kept: int) -> None:
        """Map the memory. Takes the connection and the descriptors over, unless it raises OSError."""
        memory_fd, bell_reader, bell = fds
        start = layout.slots + slot * layout.page_bytes
        mapped: list[tuple[int, int]] = []
        try:
            mapped.append((_map(memory_fd, layout.end, mmap.PROT_READ, 0), layout.end))
            mapped.append((_map(memory_fd, layout.page_bytes, _TO_WRITE, start), layout.page_bytes))
            own = _map(-1, _RECORD_BYTES, _TO_WRITE, 0)
            mapped.append((own, _RECORD_BYTES))
            if _libc.madvise(own, _RECORD_BYTES, _WIPE_ON_FORK) != 0:
                raise OSError(ctypes.get_errno(), "memory that processes do not inherit could not be had")
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
        """Whether there are blocks to take, or something that came on a socket waits until they are."""
        written = Head(_array_at(self.state.memory, Head.dtype.itemsize)).tail
        return bool(self.state.frames or self.state.cursor < written)

    def is_gone(self) -> bool:
        """Whether the publisher has ended."""
        watched = [fd for fd in (self.state.connection, self._peer.watch) if fd >= 0]
        return bool(self.state.is_over) or is_any_readable(watched)

    def close(self) -> None:
        """Take no more blocks. Bodies that are still kept stay where they are until they are let go."""
        self._peer.close_watch()
        Slot(_array_at(self.state.slot, Slot.dtype.itemsize)).cursor = _GONE
        _close_reader(self.at.state)


def attach(name: str, bell: Pipe) -> SharedReader:
    """Become a reader of a publisher of this user on this host.

    Raises:
        ConnectionRefusedError: there is none now.
        OSError: it does not take this process; or this is no Linux.
    """
    if not is_supported():
        raise OSError("no shared memory: this system is no Linux")
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
            raise OSError(f"no shared memory: {name} has no slot for another reader")
        magic, page_bytes, small_bytes, slot, kept = WELCOME.unpack(said)
        if magic != MAGIC or page_bytes != mmap.PAGESIZE or small_bytes <= 0 or not 0 <= slot < READERS:
            raise OSError(f"no shared memory: {name} has another version of it")
        layout = layout_of(page_bytes, small_bytes)
        if not is_memory(fds[0], layout):
            raise OSError(f"no shared memory: that of {name} has another size, or could be cut")
        return SharedReader(peer, layout, fds, slot, kept)
    except BaseException:
        connection.close()
        if peer is not None:
            peer.close_watch()
        for fd in fds:
            os.close(fd)
        raise


class SharedSource:
    """What a slice reads of its publisher's shared memory, if it does: decided anew with each publisher.

    `is_asked`: data is asked for in memory, and not on sockets, where it would come twice. Without a publisher it is
    decided when one is heard.
    """

    def __init__(self, name: str, bell: Pipe, what: str) -> None:
        """`name` of the memory; empty: there is none. `bell` is rung by who writes it. `what` reads, for the log."""
        self._name, self._bell, self._what = name, bell, what
        self._reader: SharedReader | None = None
        self._tries_left = 1 if name else 0

    @property
    def at(self) -> ReaderAt:
        """Where data is read."""
        return NO_READER if self._reader is None else self._reader.at

    @property
    def is_asked(self) -> bool:
        """Whether data is asked for in memory."""
        return self._tries_left > 0

    @property
    def is_open(self) -> bool:
        """Whether it is asked for there, and no publisher's memory is read."""
        return self.is_asked and self._reader is None

    def attach(self) -> bool:
        """Attach to the memory of the publisher that is there; return whether there is one that takes us."""
        try:
            self._reader = attach(self._name, self._bell)
        except ConnectionRefusedError:
            return False
        except OSError as error:
            log.info("%s: data comes on sockets: %s", self._what, error)
            self._tries_left = 0
            return False
        self._tries_left = _TRIES
        return True

    def decide(self) -> bool:
        """Attach to the memory of the publisher just heard, and return whether that is done; at last use sockets."""
        self._tries_left -= 1
        return self.attach()

    def leave_gone(self) -> bool:
        """Detach from a publisher that has gone, once all its blocks are taken; return whether it was so."""
        if self._reader is None or not self._reader.is_gone() or self._reader.has_more():
            return False
        self.close()
        return True

    def close(self) -> None:
        """Give shared memory back."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
