"""Many datagrams in one system call: `recvmmsg` and `sendmmsg`, compiled."""

from __future__ import annotations

import socket
import sys
from typing import Any, Final

import numpy
from numba import types
from numpy.typing import NDArray

from blackbox.native.memory.arrays import fresh_array
from blackbox.native.memory.intrinsics import inner, int32s_at, int64s_at
from blackbox.native.system.posix import external

BATCH: Final = 32
"""Datagrams of one call, unless set."""
ROOM: Final = 65_536
"""Bytes of each buffer, unless set; only used pages take memory."""
CONTROL_BYTES: Final = 32
_MESSAGE_WORDS: Final = 8
"""int64 words of a `struct mmsghdr` on 64-bit Linux: name, its size, pieces, their number, control, its size, flags,
and the size of the datagram.
"""
_NAME_BYTES: Final = 16
"""Size of a `struct sockaddr_in`."""
_DROPPED_BYTES: Final = 20
"""Size of the control message of SO_RXQ_OVFL: a head of 16 bytes, and a number of 4."""
_DROPPED_KIND: Final = 1 | 40 << 32
"""Its level SOL_SOCKET and its type, as one word."""
_MASK: Final = 0xFFFFFFFF
RXQ_OVFL: Final = 40
"""SO_RXQ_OVFL in asm-generic/socket.h."""

_DONTWAIT: Final = int(socket.MSG_DONTWAIT)
_TRUNCATED: Final = int(socket.MSG_TRUNC)


class Datagrams:
    """Buffers of a batch of datagrams. `messages` and `buffers` are addresses for the functions of this module.

    Attribute `data`: uint8[batch * room], all buffers.
    """

    def __init__(self, batch: int = BATCH, room: int = ROOM) -> None:
        """`room`: bytes of each buffer."""
        places = numpy.arange(batch)
        self._messages: NDArray[numpy.int64] = numpy.zeros((batch, _MESSAGE_WORDS), numpy.int64)
        self._pieces: NDArray[numpy.int64] = numpy.empty((batch, 2), numpy.int64)
        self._control: NDArray[numpy.uint8] = numpy.zeros(batch * CONTROL_BYTES, numpy.uint8)
        self.data: NDArray[numpy.uint8] = fresh_array((batch * room,), numpy.uint8)
        self.messages, self.buffers = self._messages.ctypes.data, self.data.ctypes.data
        self._pieces[:, 0] = self.buffers + room * places
        self._pieces[:, 1] = room
        self._messages[:, 2] = self._pieces.ctypes.data + 16 * places
        self._messages[:, 3] = 1
        self._messages[:, 4] = self._control.ctypes.data + CONTROL_BYTES * places


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
    words[0], words[1] = address, _NAME_BYTES
    words[4] = words[5] = 0
    int64s_at(words[2], 2)[1] = size


@inner
def send_batch(fd: int, messages: int, first: int, count: int) -> int:
    """Send prepared datagrams. Return how many were sent; -1 on error, see `zmq_errno`."""
    sent: int = _sendmmsg(fd, messages + 8 * _MESSAGE_WORDS * first, count, 0)
    return sent
