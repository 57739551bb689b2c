"""Where every byte of a slice's shared memory is, and how processes meet to share it. See `docs/shared-memory.md`.

One publisher writes it, up to READERS subscribers map it. It has no name in any file system: the publisher hands its
descriptor to each subscriber over a Unix socket, whose end tells each of the two that the other has gone.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import select
import socket
import struct
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple

import numpy

from blackbox.block.format import HEADER_BYTES, MAX_BODY_BYTES, VERSION
from blackbox.errors import ConfigError
from blackbox.native.intrinsics import inner
from blackbox.native.records import Field, Fields, SharedRecord, record_at

MAGIC: Final = int.from_bytes(b"BBOXSHM" + bytes([VERSION]), "little")
"""Processes of another version do not share memory."""
READERS: Final = 64
DESCRIPTORS: Final = 1024
SMALL_PLACES: Final = 1020
"""Places for bodies of usual size."""
LARGE_PLACES: Final = 4
"""Places for bodies up to the largest there is."""
PLACES: Final = SMALL_PLACES + LARGE_PLACES
PIN_WORDS: Final = PLACES // 64
MOST_WAITING: Final = 512
"""Blocks that may wait for a reader."""
MOST_PINNED: Final = 384
"""Places that readers may keep, all of them together; each one more for the moment in which it copies."""
MOST_PINNED_BY_ONE: Final = 64
assert DESCRIPTORS >= MOST_WAITING


class Head(SharedRecord):
    """The first page. Written by the publisher."""

    magic = Field()
    page_bytes = Field()
    """What a page has on this machine: every part begins a new one."""
    small_bytes = Field()
    """Bytes of each of the SMALL_PLACES."""
    tail = Field(own_line=True)
    """Blocks written so far: the position of the next one."""
    waiting = Field(own_line=True)
    """Unless 0 the publisher waits: for readers, who ring its bell when their cursor comes to this position; -1: for a
    place, and whoever gives one back rings."""
    place_positions = Fields(PLACES, own_line=True)
    """Of each place the position of the block that lies there; -1: none, or it is being overwritten."""


class Descriptor(SharedRecord):
    """One block, at `position % DESCRIPTORS`: what stands in its key and header frames, and where its body lies."""

    position = Field(own_line=True)
    """-1 while the rest is being written."""
    place = Field()
    body_bytes = Field()
    key_bytes = Field()
    key = Field()
    """Its first `key_bytes` bytes are the key."""
    header = Fields(HEADER_BYTES // 8)


class Slot(SharedRecord):
    """What one reader tells, in a page of its own. Written by the reader, but for `sleeping`."""

    cursor = Field()
    """The position of the next block that it will take; all before are taken, or given up."""
    sleeping = Field(own_line=True)
    """1: its bell is to be rung when a block comes. The publisher sets it back."""
    pins = Fields(PIN_WORDS, own_line=True)
    """A bit for each place that it is still reading."""


head_at = record_at(Head)
descriptor_at = record_at(Descriptor)
slot_at = record_at(Slot)
DESCRIPTOR_BYTES: Final = Descriptor.dtype.itemsize
KEY_AT: Final = 8 * Descriptor.key.start
HEADER_AT: Final = 8 * Descriptor.header.start
PINS_AT: Final = 8 * Slot.pins.start
PLACE_POSITIONS_AT: Final = 8 * Head.place_positions.start


class Layout(NamedTuple):
    """Where the parts begin. All follows from two numbers in the head."""

    page_bytes: int
    small_bytes: int
    descriptors: int
    slots: int
    small: int
    large: int
    end: int


def layout_of(page_bytes: int, small_bytes: int) -> Layout:
    """Return where the parts begin: head, descriptors, slots, small places, large places."""

    def pages(size: int) -> int:
        return -(-size // page_bytes) * page_bytes

    descriptors = pages(Head.dtype.itemsize)
    slots = descriptors + pages(DESCRIPTORS * DESCRIPTOR_BYTES)
    small = slots + READERS * page_bytes
    large = small + SMALL_PLACES * small_bytes
    return Layout(page_bytes, small_bytes, descriptors, slots, small, large, large + LARGE_PLACES * MAX_BODY_BYTES)


def small_bytes_of(block_bytes: int) -> int:
    """Return the size of a small place, in whole pages, of a feed with blocks of that size."""
    return -(-block_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


@inner
def place_offset(layout: Layout, place: int) -> int:
    """Where a place begins."""
    if place < SMALL_PLACES:
        return layout.small + place * layout.small_bytes
    return layout.large + (place - SMALL_PLACES) * MAX_BODY_BYTES


@inner
def bit_of(place: int) -> Any:
    """A place's bit in its word of a bitmap of all places."""
    return numpy.int64(1) << (place & 63)


@inner
def place_room(layout: Layout, place: int) -> int:
    """How many bytes a place has."""
    return layout.small_bytes if place < SMALL_PLACES else MAX_BODY_BYTES


HELLO: Final = struct.Struct("=q")
"""What a reader says first: MAGIC. With it go both ends of its bell, a pipe without blocking."""
WELCOME: Final = struct.Struct("=qqqqq")
"""The answer: MAGIC, page_bytes, small_bytes, the reader's slot, the places it may keep. With it go the memory, and
both ends of the publisher's bell."""
_SEALS: Final = getattr(fcntl, "F_SEAL_SHRINK", 2) | getattr(fcntl, "F_SEAL_GROW", 4) | getattr(fcntl, "F_SEAL_SEAL", 1)
_PEER: Final = struct.Struct("=iII")


def is_supported() -> bool:
    """Whether this system has what it takes: Linux."""
    return sys.platform == "linux"


def address_of(name: str) -> bytes:
    """Return the address at which a publisher of this user shares memory: one that goes with its process."""
    return b"\0blackbox/%d/%s" % (os.geteuid(), name.encode())


def open_socket() -> socket.socket:
    """Return a socket for `address_of`, without blocking."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)


def hang_up(end: socket.socket) -> None:
    """Close a socket for the other side, too, where a process that was forked has it open."""
    end.shutdown(socket.SHUT_RDWR)
    end.close()


def make_memory(layout: Layout) -> int:
    """Return the descriptor of new memory whose size nobody can change."""
    if sys.platform != "linux":
        raise ConfigError("shared memory was asked for on a system without memfd, expected Linux")
    fd = os.memfd_create("blackbox", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, layout.end)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(fd)
        raise
    return fd


def is_memory(fd: int, layout: Layout) -> bool:
    """Whether a descriptor is of memory of that layout, which stays."""
    if sys.platform != "linux":
        return False
    return os.fstat(fd).st_size == layout.end and fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS == _SEALS


def is_any_readable(descriptors: Iterable[int]) -> bool:
    """Whether something can be read on one of them now, an end among it."""
    poller = select.poll()
    for fd in descriptors:
        poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))


class Peer:
    """The process at the other end of a connection: whether it is of this user, and whether it still runs."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.process, user, _ = _PEER.unpack(
            connection.getsockopt(socket.SOL_SOCKET, getattr(socket, "SO_PEERCRED", 17), _PEER.size)
        )
        self.is_own = user == os.geteuid()
        self.watch = -1
        """Readable once the process has ended, though others inherited its end of the connection; -1: not to be had."""
        with suppress(OSError, AttributeError):  # of another PID namespace, or too many descriptors
            self.watch = os.pidfd_open(self.process) if sys.platform == "linux" else -1

    @property
    def descriptors(self) -> list[int]:
        """What becomes readable when it has gone."""
        return [self.connection.fileno(), *([self.watch] if self.watch >= 0 else [])]

    def is_gone(self) -> bool:
        """Whether it has ended, or hung up. Neither says anything once they have met."""
        return is_any_readable(self.descriptors)

    def hang_up(self) -> None:
        """End the connection, and watch no longer."""
        hang_up(self.connection)
        self.close_watch()

    def close_watch(self) -> None:
        """Watch its process no longer."""
        if self.watch >= 0:
            os.close(self.watch)
            self.watch = -1
