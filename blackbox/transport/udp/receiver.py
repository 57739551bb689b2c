"""Receive blocks from the multicast lines of a slice, in compiled code, as three messages like those of a socket."""

from __future__ import annotations

import select
import socket
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.block.form.format import HEADER_BYTES
from blackbox.native.compile.jit import njit
from blackbox.native.memory.arrays import shared_array
from blackbox.native.memory.intrinsics import bytes_at, inner
from blackbox.native.memory.records import Field, SharedRecord, record_at
from blackbox.native.system.posix import now_ns
from blackbox.native.tables.prefix_trie import Trie, longest_prefix
from blackbox.transport.libzmq import (
    EAGAIN,
    EINTR,
    MESSAGE_BYTES,
    msg_close,
    msg_init,
    msg_init_on,
    msg_move,
    zmq_errno,
)
from blackbox.transport.security.group_key import GroupKey
from blackbox.transport.shared_memory.reader import receive_from_socket
from blackbox.transport.udp.assembler import (
    SLOT_BODY_AT,
    SLOT_HEADER_AT,
    SLOT_KEY_AT,
    Assembly,
    DatagramCounts,
    counts_at,
    slot_at,
    take_datagram,
)
from blackbox.transport.udp.mmsg import BATCH, ROOM, Datagrams, dropped_before, receive_batch, received_size

_SOCKET_EVERY: Final = 8
"""Blocks taken from datagrams between two looks at the ZeroMQ socket."""
_BATCHES: Final = 4
"""Most batches of datagrams in one call, so that a flood of useless ones cannot hold up the slice thread."""


class LineState(SharedRecord):
    """A multicast line: its socket, its buffers and its assembly."""

    fd = Field()
    messages = Field()
    buffers = Field()
    assembly = Field()
    counts = Field()
    next = Field()
    """Next datagram of the received batch."""
    count = Field()
    """Datagrams in it."""
    dropped = Field()
    """Datagrams dropped by the system, as last seen, modulo 2**32."""
    turn = Field()
    """Number of calls, in the first line's state."""


line_state_at = record_at(LineState)
LINE_BYTES: Final = LineState.dtype.itemsize


class LinesAt(NamedTuple):
    """Addresses of a slice's multicast lines, for compiled code. `lines` 0: none."""

    states: int
    lines: int
    readable: int
    """Descriptor that is readable if any line has a datagram."""


NO_LINES: Final = LinesAt(0, 0, 0)


@inner
def _note_dropped(line: LineState, place: int) -> None:
    dropped = dropped_before(line.messages, place)
    if dropped != 0:
        counts_at(line.counts).dropped += (dropped - line.dropped) & 0xFFFFFFFF
        line.dropped = dropped


@inner
def _is_wanted(slot_address: int, keys: Trie) -> bool:
    size = slot_at(slot_address).key_bytes
    key = slot_address + SLOT_KEY_AT
    if size > 0 and bytes_at(key, 1)[0] == 0:
        return True  # a control block
    return bool(longest_prefix(keys, key, size) != 0)


@inner
def _hand_over(slot_address: int, first: int) -> None:
    """Put a complete block into three messages. Key and header are valid until the slot is used again."""
    key, header = first, first + MESSAGE_BYTES
    msg_close(key)
    msg_init_on(key, slot_address + SLOT_KEY_AT, slot_at(slot_address).key_bytes)
    msg_close(header)
    msg_init_on(header, slot_address + SLOT_HEADER_AT, numpy.int64(HEADER_BYTES))
    msg_move(first + 2 * MESSAGE_BYTES, slot_address + SLOT_BODY_AT)


@inner
def _take(state: int, keys: Trie, first: int) -> Any:
    """Take the next block of a line. Return 3; 0 if none is complete, -1 on error."""
    line = line_state_at(state)
    batches = 0
    while True:
        now = now_ns()
        while line.next < line.count:
            place = line.next
            line.next += 1
            size = received_size(line.messages, place)
            slot = take_datagram(line.assembly, line.buffers + ROOM * place, size, now)
            if slot != 0:
                if _is_wanted(slot, keys):
                    _hand_over(slot, first)
                    return 3
                counts_at(line.counts).unwanted += 1
                msg_close(slot + SLOT_BODY_AT)
                msg_init(slot + SLOT_BODY_AT)
        if batches == _BATCHES:
            return 0
        batches += 1
        line.next = 0
        line.count = receive_batch(line.fd, line.messages, BATCH)
        if line.count <= 0:
            line.count = 0
            error = zmq_errno()
            return 0 if error in (EAGAIN, EINTR) else -1
        _note_dropped(line, line.count - 1)


@inner
def receive_datagrams(at: LinesAt, keys: Trie, first: int) -> Any:
    """Receive one block from the lines in turn. Return the same as `receive_from_socket`."""
    head = line_state_at(at.states)
    for _ in range(at.lines):
        head.turn += 1
        taken = _take(at.states + LINE_BYTES * (head.turn % at.lines), keys, first)
        if taken != 0:
            return taken
    return 0


@inner
def receive_lines(at: LinesAt, keys: Trie, socket: int, first: int) -> Any:
    """Receive one block from the multicast lines or from a ZeroMQ socket. Return as `receive_from_socket`."""
    if line_state_at(at.states).turn % _SOCKET_EVERY == 0:
        taken = receive_from_socket(socket, first)
        if taken != 0:
            return taken
    taken = receive_datagrams(at, keys, first)
    return receive_from_socket(socket, first) if taken == 0 else taken


class MulticastLines:
    """The multicast lines of a slice, received by one thread. `at` is for compiled code."""

    def __init__(
        self,
        slice_id: int,
        sockets: Sequence[socket.socket],
        counts: Sequence[DatagramCounts],
        key: GroupKey,
    ) -> None:
        """`counts`: one for each socket."""
        self._assemblies = [Assembly(slice_id, each, key) for each in counts]
        self._datagrams = [Datagrams() for _ in sockets]
        self._states: NDArray[numpy.void] = shared_array((len(sockets),), LineState.dtype)
        for place, (each, count) in enumerate(zip(sockets, counts, strict=True)):
            state = LineState(self._states[place : place + 1])
            state.fd, state.counts, state.assembly = each.fileno(), count.address, self._assemblies[place].address
            state.messages, state.buffers = self._datagrams[place].messages, self._datagrams[place].buffers
        self._poll: select.epoll | None = None
        readable = sockets[0].fileno()
        if len(sockets) > 1:
            self._poll = select.epoll()
            for each in sockets:
                self._poll.register(each, select.EPOLLIN)
            readable = self._poll.fileno()
        self.at = LinesAt(self._states.ctypes.data, len(sockets), readable)

    def close(self) -> None:
        """Free the memory of incomplete blocks; the sockets stay open."""
        if self._poll is not None:
            self._poll.close()
        for assembly in self._assemblies:
            assembly.close()


@njit(nogil=True, cache=True)
def receive_one(at: LinesAt, keys: Trie, first: int) -> int:
    """Do the same as `receive_datagrams`, called from Python."""
    taken: int = receive_datagrams(at, keys, first)
    return taken
