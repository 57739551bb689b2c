"""Compiled: receive UDP datagrams in batches by recvmmsg(2), and count those that the kernel dropped.

Linux on 64 bits: `struct mmsghdr` has eight words, `struct iovec` two. With the option SO_RXQ_OVFL, datagrams received
after the first drop carry the socket's count of dropped datagrams, 32 bits.
"""

from __future__ import annotations

from typing import Final

import numpy
from numba import types
from numpy.typing import NDArray

from blackbox.native.compile.jit import njit
from blackbox.native.memory.arrays import fresh_array
from blackbox.native.system.posix import external

SLOT_BYTES: Final = 9_216
"""Longest datagram received, that of a jumbo frame."""
BATCH: Final = 512
"""Most datagrams of a batch."""
TRUNCATED: Final = -1
"""Length of a datagram that did not fit into its slot."""

_MESSAGE_WORDS: Final = 8
_IOV, _IOV_COUNT, _CONTROL, _CONTROL_BYTES, _FLAGS, _LENGTH = 2, 3, 4, 5, 6, 7
_CONTROL_WORDS: Final = 4
_DROPS_KIND: Final = 1 | 40 << 32
"""Level SOL_SOCKET and type SO_RXQ_OVFL of a control message."""
_LOW_HALF: Final = 0xFFFFFFFF
_MSG_DONTWAIT: Final = 0x40
_MSG_TRUNC: Final = 0x20

_recvmmsg = external("recvmmsg", types.int32, types.int32, types.int64, types.uint32, types.int32, types.int64)


@njit(nogil=True, cache=True)
def _receive(
    fd: int,
    messages: NDArray[numpy.int64],
    control: NDArray[numpy.int64],
    lengths: NDArray[numpy.int32],
    drops: NDArray[numpy.int64],
) -> tuple[int, int]:
    """Receive what has arrived; return (datagrams, bytes). `drops`: new drops, and the socket's count so far."""
    for row in range(len(messages)):
        messages[row, _CONTROL_BYTES] = 8 * _CONTROL_WORDS
        messages[row, _FLAGS] = 0
    found = _recvmmsg(fd, messages.ctypes.data, len(messages), _MSG_DONTWAIT, 0)
    received = numpy.int64(0)
    for row in range(found):
        size = messages[row, _LENGTH] & _LOW_HALF
        received += size
        lengths[row] = TRUNCATED if messages[row, _FLAGS] & _MSG_TRUNC else size
        if messages[row, _CONTROL_BYTES] > 16 and control[row, 1] == _DROPS_KIND:
            count = control[row, 2] & _LOW_HALF
            drops[0] += (count - drops[1]) & _LOW_HALF
            drops[1] = count
    return max(found, 0), received


class Receiver:
    """One batch of datagrams, in slots that the next call overwrites."""

    def __init__(self, batch: int = BATCH, slot_bytes: int = SLOT_BYTES) -> None:
        self.slot_bytes = slot_bytes
        self.data = fresh_array((batch * slot_bytes,), numpy.uint8)
        """The slots: datagram k starts at k * `slot_bytes`."""
        self.lengths = numpy.zeros(batch, numpy.int32)
        """(batch,) length of each datagram, or `TRUNCATED`. Unit: bytes."""
        self.packets = self.bytes = 0
        """Datagrams and bytes received so far."""
        self._messages = numpy.zeros((batch, _MESSAGE_WORDS), numpy.int64)
        self._pieces = numpy.empty((batch, 2), numpy.int64)
        self._control = numpy.zeros((batch, _CONTROL_WORDS), numpy.int64)
        self._drops: dict[int, NDArray[numpy.int64]] = {}
        rows = numpy.arange(batch)
        self._pieces[:, 0] = self.data.ctypes.data + slot_bytes * rows
        self._pieces[:, 1] = slot_bytes
        self._messages[:, _IOV] = self._pieces.ctypes.data + self._pieces.strides[0] * rows
        self._messages[:, _IOV_COUNT] = 1
        self._messages[:, _CONTROL] = self._control.ctypes.data + self._control.strides[0] * rows

    def receive(self, fd: int) -> int:
        """Receive up to a batch of a socket's datagrams without waiting; return their number."""
        if fd not in self._drops:
            self._drops[fd] = numpy.zeros(2, numpy.int64)
        found, received = _receive(fd, self._messages, self._control, self.lengths, self._drops[fd])
        self.packets += found
        self.bytes += received
        return int(found)

    def take_drops(self) -> int:
        """Return the datagrams that the kernel dropped since the last call."""
        dropped = 0
        for drops in self._drops.values():
            dropped += int(drops[0])
            drops[0] = 0
        return dropped

    def forget(self, fd: int) -> None:
        """Forget a socket that is closed: its descriptor may be used again."""
        self._drops.pop(fd, None)
