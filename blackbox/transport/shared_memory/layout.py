"""Layout of a slice's shared memory, and the handshake to share it. See `shared-memory` in the docs.

One publisher writes it, up to READERS subscribers map it. It has no name in a file system: the publisher sends its
descriptor to each subscriber over a Unix socket, which also reports to each side the end of the other.
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

from blackbox.block.form.format import HEADER_BYTES, MAX_BODY_BYTES, VERSION
from blackbox.errors import ConfigError
from blackbox.native.memory.intrinsics import inner
from blackbox.native.memory.records import Field, Fields, SharedRecord, record_at

MAGIC: Final = int.from_bytes(b"BBOXSHM" + bytes([VERSION]), "little")
"""Processes of different versions do not share memory."""
READERS: Final = 64
DESCRIPTORS: Final = 1024
SMALL_PLACES: Final = 1020
"""Number of places for bodies of the usual size."""
LARGE_PLACES: Final = 4
"""Number of places for bodies of up to the largest size."""
PLACES: Final = SMALL_PLACES + LARGE_PLACES
PIN_WORDS: Final = PLACES // 64
MOST_WAITING: Final = 512
"""Most blocks waiting for one reader."""
MOST_PINNED: Final = 384
"""Most places pinned by all readers together; each may pin one more while it copies."""
MOST_PINNED_BY_ONE: Final = 64
assert DESCRIPTORS >= MOST_WAITING


class Head(SharedRecord):
    """First page. Written by the publisher."""

    magic = Field()
    page_bytes = Field()
    """Page size of this machine: every part begins on a page."""
    small_bytes = Field()
    """Size of each of the SMALL_PLACES in bytes."""
    tail = Field(own_line=True)
    """Blocks written so far, which is the position of the next one."""
    waiting = Field(own_line=True)
    """0: the publisher does not wait.

    -1: it waits for a place, and any reader that releases one rings its bell. Else: readers ring when their cursor
    reaches this position.
    """
    place_positions = Fields(PLACES, own_line=True)
    """Position of the block in each place; -1: none, or it is being overwritten."""


class Descriptor(SharedRecord):
    """One block, at `position % DESCRIPTORS`: its key and header frames, and the place of its body."""

    position = Field(own_line=True)
    """-1 while the other fields are being written."""
    place = Field()
    body_bytes = Field()
    key_bytes = Field()
    key = Field()
    """The key is its first `key_bytes` bytes."""
    header = Fields(HEADER_BYTES // 8)


class Slot(SharedRecord):
    """State of one reader, on its own page. Written by the reader, except for `sleeping`."""

    cursor = Field()
    """Position of the next block to take; all earlier ones are taken or skipped."""
    sleeping = Field(own_line=True)
    """1: the publisher must ring the reader's bell for the next block, and then resets this to 0."""
    pins = Fields(PIN_WORDS, own_line=True)
    """One bit per place that the reader is reading."""


head_at = record_at(Head)
descriptor_at = record_at(Descriptor)
slot_at = record_at(Slot)
DESCRIPTOR_BYTES: Final = Descriptor.dtype.itemsize
KEY_AT: Final = 8 * Descriptor.key.start
HEADER_AT: Final = 8 * Descriptor.header.start
PINS_AT: Final = 8 * Slot.pins.start
PLACE_POSITIONS_AT: Final = 8 * Head.place_positions.start


class Layout(NamedTuple):
    """Offsets of the parts, computed from two fields of the head."""

    page_bytes: int
    small_bytes: int
    descriptors: int
    slots: int
    small: int
    large: int
    end: int


def layout_of(page_bytes: int, small_bytes: int) -> Layout:
    """Return the offsets of the parts: head, descriptors, slots, small places, large places."""

    def pages(size: int) -> int:
        return -(-size // page_bytes) * page_bytes

    descriptors = pages(Head.dtype.itemsize)
    slots = descriptors + pages(DESCRIPTORS * DESCRIPTOR_BYTES)
    small = slots + READERS * page_bytes
    large = small + SMALL_PLACES * small_bytes
    return Layout(page_bytes, small_bytes, descriptors, slots, small, large, large + LARGE_PLACES * MAX_BODY_BYTES)


def small_bytes_of(block_bytes: int) -> int:
    """Return the size of a small place, in whole pages, for blocks of `block_bytes`."""
    return -(-block_bytes // mmap.PAGESIZE) * mmap.PAGESIZE


@inner
def place_offset(layout: Layout, place: int) -> int:
    """Return the offset of a place."""
    if place < SMALL_PLACES:
        return layout.small + place * layout.small_bytes
    return layout.large + (place - SMALL_PLACES) * MAX_BODY_BYTES


@inner
def bit_of(place: int) -> Any:
    """Return a place's bit in its word of a bitmap."""
    return numpy.int64(1) << (place & 63)


@inner
def place_room(layout: Layout, place: int) -> int:
    """Return the size of a place in bytes."""
    return layout.small_bytes if place < SMALL_PLACES else MAX_BODY_BYTES


HELLO: Final = struct.Struct("=q")
"""First message of a reader: MAGIC. Sent with both ends of its bell, a non-blocking pipe."""
WELCOME: Final = struct.Struct("=qqqqq")
"""The publisher's answer: MAGIC, page_bytes, small_bytes, the reader's slot, the places it may pin.

Sent with the memory and both ends of the publisher's bell.
"""
_SEALS: Final = getattr(fcntl, "F_SEAL_SHRINK", 2) | getattr(fcntl, "F_SEAL_GROW", 4) | getattr(fcntl, "F_SEAL_SEAL", 1)
_PEER: Final = struct.Struct("=iII")


def is_supported() -> bool:
    """Return True if this system is supported: Linux."""
    return sys.platform == "linux"


def address_of(name: str) -> bytes:
    """Return the address at which a publisher of this user shares memory; it disappears with the process."""
    return b"\0blackbox/%d/%s" % (os.geteuid(), name.encode())


def open_socket() -> socket.socket:
    """Return a non-blocking socket for `address_of`."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)


def hang_up(end: socket.socket) -> None:
    """Close a socket, also for a forked process that has inherited it."""
    end.shutdown(socket.SHUT_RDWR)
    end.close()


def make_memory(layout: Layout) -> int:
    """Return the descriptor of new memory with a sealed size."""
    if sys.platform != "linux":
        raise ConfigError("shared memory needs memfd, which this system lacks: expected Linux")
    fd = os.memfd_create("blackbox", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, layout.end)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except OSError:
        os.close(fd)
        raise
    return fd


def is_memory(fd: int, layout: Layout) -> bool:
    """Return True if a descriptor is memory of this layout with a sealed size."""
    if sys.platform != "linux":
        return False
    return os.fstat(fd).st_size == layout.end and fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS == _SEALS


def is_any_readable(descriptors: Iterable[int]) -> bool:
    """Return True if one of the descriptors is readable or closed."""
    poller = select.poll()
    for fd in descriptors:
        poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))


class Peer:
    """Process at the other end of a connection: checks its user, and whether it still runs."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.process, user, _ = _PEER.unpack(
            connection.getsockopt(socket.SOL_SOCKET, getattr(socket, "SO_PEERCRED", 17), _PEER.size)
        )
        self.is_own = user == os.geteuid()
        self.watch = -1
        """Pidfd, readable once the process has ended even if a child inherited its end of the connection; -1: none."""
        with suppress(OSError, AttributeError):  # another PID namespace, or too many descriptors
            self.watch = os.pidfd_open(self.process) if sys.platform == "linux" else -1

    @property
    def descriptors(self) -> list[int]:
        """Descriptors that become readable when the process is gone."""
        return [self.connection.fileno(), *([self.watch] if self.watch >= 0 else [])]

    def is_gone(self) -> bool:
        """Return True if the process has ended or closed the connection; neither sends anything after the handshake."""
        return is_any_readable(self.descriptors)

    def hang_up(self) -> None:
        """Close the connection and the pidfd."""
        hang_up(self.connection)
        self.close_watch()

    def close_watch(self) -> None:
        """Close the pidfd."""
        if self.watch >= 0:
            os.close(self.watch)
            self.watch = -1
