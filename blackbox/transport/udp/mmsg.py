"""Many datagrams in one system call: `recvmmsg` and `sendmmsg`, compiled."""

from __future__ import annotations

import socket
from typing import Any, Final

import numpy
from numba import types
from numpy.typing import NDArray

from blackbox.native.memory.arrays import fresh_array
from blackbox.native.memory.intrinsics import inner, int32s_at, int64s_at
from blackbox.native.system.posix import external

BATCH: Final = 32
"""Most datagrams of one call."""
ROOM: Final = 65_536
"""Bytes of each buffer; only used pages take memory."""
CONTROL_BYTES: Final = 32
_MESSAGE_WORDS: Final = 8
"""int64 words of a `struct mmsghdr` on 64-bit Linux: name, its size, pieces, their number, control, its size, flags,
and the size of the datagram.
"""
_NAME_BYTES: Final = 16
"""Size of a `struct sockaddr_in`."""
_DROPPED_BYTES: Final = 20
"""Size of the control message of SO_RXQ_OVFL: a head of 16 bytes, and a number of 4."""
_MASK: Final = 0xFFFFFFFF
RXQ_OVFL: Final = 40
"""SO_RXQ_OVFL in asm-generic/socket.h."""

_recvmmsg = external("recvmmsg", types.int32, types.int32, types.int64, types.uint32, types.int32, types.int64)
_sendmmsg = external("sendmmsg", types.int32, types.int32, types.int64, types.uint32, types.int32)
_DONTWAIT: Final = int(socket.MSG_DONTWAIT)


class Datagrams:
    """Buffers of a batch of datagrams. `messages` and `buffers` are addresses for the functions of this module."""

    def __init__(self) -> None:
        self._messages: NDArray[numpy.int64] = numpy.zeros(BATCH * _MESSAGE_WORDS, numpy.int64)
        self._pieces: NDArray[numpy.int64] = numpy.zeros(BATCH * 2, numpy.int64)
        self._control: NDArray[numpy.uint8] = numpy.zeros(BATCH * CONTROL_BYTES, numpy.uint8)
        self._buffers: NDArray[numpy.uint8] = fresh_array((BATCH * ROOM,), numpy.uint8)
        self.messages, self.buffers = self._messages.ctypes.data, self._buffers.ctypes.data
        self._pieces[0::2] = self.buffers + ROOM * numpy.arange(BATCH)
        self._pieces[1::2] = ROOM
        words = self._messages.reshape(BATCH, _MESSAGE_WORDS)
        words[:, 2] = self._pieces.ctypes.data + 16 * numpy.arange(BATCH)
        words[:, 3] = 1
        words[:, 4] = self._control.ctypes.data + CONTROL_BYTES * numpy.arange(BATCH)


@inner
def receive_batch(fd: int, messages: int) -> int:
    """Receive up to BATCH datagrams without waiting. Return their number; -1 on error, see `zmq_errno`."""
    words = int64s_at(messages, BATCH * _MESSAGE_WORDS)
    for place in range(BATCH):
        words[_MESSAGE_WORDS * place + 5] = CONTROL_BYTES
    received: int = _recvmmsg(fd, messages, BATCH, _DONTWAIT, numpy.int64(0))
    return received


@inner
def received_size(messages: int, place: int) -> Any:
    """Return the size of a received datagram."""
    return int64s_at(messages, BATCH * _MESSAGE_WORDS)[_MESSAGE_WORDS * place + 7] & _MASK


@inner
def dropped_before(messages: int, place: int) -> Any:
    """Return the datagrams that the system dropped on this socket before a received one, modulo 2**32; 0: unknown."""
    words = int64s_at(messages, BATCH * _MESSAGE_WORDS)
    if words[_MESSAGE_WORDS * place + 5] < _DROPPED_BYTES:
        return numpy.int64(0)
    return numpy.int64(int32s_at(words[_MESSAGE_WORDS * place + 4] + 16, 1)[0]) & _MASK


@inner
def put_datagram(messages: int, place: int, size: int, address: int) -> None:
    """Prepare a datagram, written to its buffer, to be sent to the `struct sockaddr_in` at `address`."""
    words = int64s_at(messages, BATCH * _MESSAGE_WORDS)
    words[_MESSAGE_WORDS * place] = address
    words[_MESSAGE_WORDS * place + 1] = _NAME_BYTES
    words[_MESSAGE_WORDS * place + 4] = words[_MESSAGE_WORDS * place + 5] = 0
    int64s_at(words[_MESSAGE_WORDS * place + 2], 2)[1] = size


@inner
def send_batch(fd: int, messages: int, first: int, count: int) -> int:
    """Send prepared datagrams. Return how many were sent; -1 on error, see `zmq_errno`."""
    sent: int = _sendmmsg(fd, messages + 8 * _MESSAGE_WORDS * first, count, 0)
    return sent
