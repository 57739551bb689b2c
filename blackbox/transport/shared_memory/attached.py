"""The publisher's memory that a subscriber reads: attach to it, map it, leave it."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import socket
from typing import Final

import numpy
from numpy.typing import NDArray

from blackbox.transport.shared_memory.layout import (
    HELLO,
    MAGIC,
    READERS,
    WELCOME,
    Head,
    Layout,
    Peer,
    Slot,
    address_of,
    is_any_readable,
    is_memory,
    is_supported,
    layout_of,
    open_socket,
)
from blackbox.transport.shared_memory.reader import (
    NO_READER,
    RECORD_BYTES,
    ReaderAt,
    ReaderState,
    close_reader,
    released,
)
from blackbox.transport.wakeup import Pipe

log = logging.getLogger("blackbox")

_ANSWER_S = 1.0
"""Longest wait for a publisher's answer, in seconds; a stopped publisher does not answer."""
_TRIES: Final = 5
"""Control blocks to wait for shared memory that was there before: the first may be of the old publisher."""
_GONE: Final = (1 << 63) - 1
"""Cursor of a reader that takes no more blocks."""
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
            own = _map(-1, RECORD_BYTES, _TO_WRITE, 0)
            mapped.append((own, RECORD_BYTES))
            if _libc.madvise(own, RECORD_BYTES, _WIPE_ON_FORK) != 0:
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
        self.state.release = released.address
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
        close_reader(self.at.state)


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
