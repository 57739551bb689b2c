"""Many datagrams in one system call: `recvmmsg` and `sendmmsg`, compiled."""

from __future__ import annotations

import socket
import struct
import sys
from ipaddress import IPv4Address
from typing import Any, Final

import numpy
from numba import types
from numpy.typing import NDArray

from blackbox.native.compile.jit import njit
from blackbox.native.memory.arrays import fresh_array
from blackbox.native.memory.intrinsics import inner, int32s_at, int64s_at
from blackbox.native.system.posix import external
from blackbox.transport.libzmq import zmq_errno

BATCH: Final = 32
"""Datagrams of one call, unless set."""
ROOM: Final = 65_536
"""Bytes of each buffer, unless set; only used pages take memory."""
CONTROL_BYTES: Final = 32
_MESSAGE_WORDS: Final = 8
"""int64 words of a `struct mmsghdr` on 64-bit Linux: name, its size, pieces, their number, control, its size, flags,
and the size of the datagram.
"""
_ADDRESS: Final = struct.Struct("=H2s4s8x")
"""A `struct sockaddr_in`: family, port and address."""
ADDRESS_BYTES: Final = _ADDRESS.size
_DROPPED_BYTES: Final = 20
"""Size of the control message of SO_RXQ_OVFL: a head of 16 bytes, and a number of 4."""
_DROPPED_KIND: Final = 1 | 40 << 32
"""Its level SOL_SOCKET and its type, as one word."""
_MASK: Final = 0xFFFFFFFF
RXQ_OVFL: Final = 40
"""SO_RXQ_OVFL in asm-generic/socket.h."""

_DONTWAIT: Final = int(socket.MSG_DONTWAIT)
_TRUNCATED: Final = int(socket.MSG_TRUNC)


def packed_address(address: IPv4Address, port: int) -> bytes:
    """Return a `struct sockaddr_in`."""
    return _ADDRESS.pack(socket.AF_INET, port.to_bytes(2, "big"), address.packed)


class Gathered:
    """A batch of datagrams, each of some pieces of memory. `messages` is an address for the functions of this module.

    Attributes: `words`, int64[batch, 8], each a `struct mmsghdr`; `pieces`, int64[batch, pieces, 2], address and size.
    """

    def __init__(self, batch: int, pieces: int, to: bytes | None = None) -> None:
        """`to`: the packed address to which all are sent; None: that of their socket."""
        self.words: NDArray[numpy.int64] = numpy.zeros((batch, _MESSAGE_WORDS), numpy.int64)
        self.pieces: NDArray[numpy.int64] = numpy.zeros((batch, pieces, 2), numpy.int64)
        self.messages = self.words.ctypes.data
        self.words[:, 2] = self.pieces.ctypes.data + 16 * pieces * numpy.arange(batch)
        self.words[:, 3] = pieces
        if to is not None:
            self._to = numpy.frombuffer(to, numpy.uint8)
            self.words[:, 0], self.words[:, 1] = self._to.ctypes.data, ADDRESS_BYTES


class Datagrams:
    """Buffers of a batch of datagrams. `messages` and `buffers` are addresses for the functions of this module.

    Attribute `data`: uint8[batch * room], all buffers.
    """

    def __init__(self, batch: int = BATCH, room: int = ROOM) -> None:
        """`room`: bytes of each buffer."""
        places = numpy.arange(batch)
        self._gathered = Gathered(batch, 1)
        self._control: NDArray[numpy.uint8] = numpy.zeros(batch * CONTROL_BYTES, numpy.uint8)
        self.data: NDArray[numpy.uint8] = fresh_array((batch * room,), numpy.uint8)
        self.messages, self.buffers = self._gathered.messages, self.data.ctypes.data
        self._gathered.pieces[:, 0, 0] = self.buffers + room * places
        self._gathered.pieces[:, 0, 1] = room
        self._gathered.words[:, 4] = self._control.ctypes.data + CONTROL_BYTES * places


@inner
def _message(messages: int, place: int) -> Any:
    """Return int64[8], the words of a datagram."""
    return int64s_at(messages + 8 * _MESSAGE_WORDS * place, _MESSAGE_WORDS)


if sys.platform == "linux":
    _recvmmsg = external("recvmmsg", types.int32, types.int32, types.int64, types.uint32, types.int32, types.int64)
    _sendmmsg = external("sendmmsg", types.int32, types.int32, types.int64, types.uint32, types.int32)

else:  # a slice with multicast lines is refused before

    @inner
    def _recvmmsg(fd: int, messages: int, batch: int, flags: int, timeout: int) -> int:
        return -1

    @inner
    def _sendmmsg(fd: int, messages: int, count: int, flags: int) -> int:
        return -1


@inner
def receive_batch(fd: int, messages: int, batch: int) -> int:
    """Receive up to `batch` datagrams without waiting. Return their number; -1 on error, see `zmq_errno`."""
    for place in range(batch):
        words = _message(messages, place)
        words[5], words[6] = CONTROL_BYTES, 0
    received: int = _recvmmsg(fd, messages, batch, _DONTWAIT, numpy.int64(0))
    return received


@inner
def received_size(messages: int, place: int) -> Any:
    """Return the size of a received datagram."""
    return _message(messages, place)[7] & _MASK


@inner
def is_cut(messages: int, place: int) -> Any:
    """Return True if a received datagram did not fit into its buffer."""
    return _message(messages, place)[6] & _TRUNCATED != 0


@inner
def dropped_before(messages: int, place: int) -> Any:
    """Return the datagrams that the system dropped on this socket before a received one, modulo 2**32; 0: unknown."""
    words = _message(messages, place)
    if words[5] < _DROPPED_BYTES or int64s_at(words[4], 2)[1] != _DROPPED_KIND:
        return numpy.int64(0)
    return numpy.int64(int32s_at(words[4] + 16, 1)[0]) & _MASK


@inner
def put_datagram(messages: int, place: int, size: int, address: int) -> None:
    """Prepare a datagram, written to its buffer, to be sent to the `struct sockaddr_in` at `address`."""
    words = _message(messages, place)
    words[0], words[1] = address, ADDRESS_BYTES
    words[4] = words[5] = 0
    int64s_at(words[2], 2)[1] = size


@inner
def send_batch(fd: int, messages: int, first: int, count: int) -> int:
    """Send prepared datagrams. Return how many were sent; -1 on error, see `zmq_errno`."""
    sent: int = _sendmmsg(fd, messages + 8 * _MESSAGE_WORDS * first, count, 0)
    return sent


@njit(nogil=True, cache=True)
def send_gathered(fd: int, messages: int, first: int, count: int) -> tuple[int, int]:
    """Do the same as `send_batch`, called from Python. Return how many were sent, and the error number; 0: none."""
    sent: Any = send_batch(fd, messages, first, count)
    return max(sent, 0), 0 if sent >= 0 else zmq_errno()
