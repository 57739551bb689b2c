"""Receive UDP datagrams in batches, and count those that the kernel dropped."""

from __future__ import annotations

from typing import Final

import numpy
from numpy.typing import NDArray

from blackbox.native.compile.jit import njit
from blackbox.transport.udp.mmsg import Datagrams, dropped_before, is_cut, receive_batch, received_size

SLOT_BYTES: Final = 9_216
"""Longest datagram received, that of a jumbo frame."""
BATCH: Final = 512
"""Most datagrams of a batch."""
TRUNCATED: Final = -1
"""Length of a datagram that did not fit into its slot."""
_LOW_HALF: Final = 0xFFFFFFFF


@njit(nogil=True, cache=True)
def _receive(fd: int, messages: int, lengths: NDArray[numpy.int32], drops: NDArray[numpy.int64]) -> tuple[int, int]:
    """Receive what has arrived; return (datagrams, bytes). `drops`: new drops, and the socket's count so far."""
    found = receive_batch(fd, messages, len(lengths))
    received = numpy.int64(0)
    for row in range(found):
        size = received_size(messages, row)
        received += size
        lengths[row] = TRUNCATED if is_cut(messages, row) else size
        count = dropped_before(messages, row)
        if count != 0:
            drops[0] += (count - drops[1]) & _LOW_HALF
            drops[1] = count
    return max(found, 0), received


class Receiver:
    """One batch of datagrams, in slots that the next call overwrites."""

    def __init__(self, batch: int = BATCH, slot_bytes: int = SLOT_BYTES) -> None:
        self.slot_bytes = slot_bytes
        self._datagrams = Datagrams(batch, slot_bytes)
        self.data = self._datagrams.data
        """The slots: datagram k starts at k * `slot_bytes`."""
        self.lengths = numpy.zeros(batch, numpy.int32)
        """(batch,) length of each datagram, or `TRUNCATED`. Unit: bytes."""
        self.packets = self.bytes = 0
        """Datagrams and bytes received so far."""
        self._drops: dict[int, NDArray[numpy.int64]] = {}

    def receive(self, fd: int) -> int:
        """Receive up to a batch of a socket's datagrams without waiting; return their number."""
        if fd not in self._drops:
            self._drops[fd] = numpy.zeros(2, numpy.int64)
        found, received = _receive(fd, self._datagrams.messages, self.lengths, self._drops[fd])
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
