"""Send blocks as datagrams to the multicast groups of a slice, in compiled code, at a limited rate."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import Any, Final

import numpy
from numpy.typing import NDArray

from blackbox.block.form.format import HEADER_BYTES
from blackbox.feed.endpoint import groups_of
from blackbox.feed.feed import Feed
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import bytes_at, copy_bytes, inner
from blackbox.native.memory.records import Field, Fields, SharedRecord, load_shared, record_at
from blackbox.native.system.posix import monotonic_ns, sleep_microseconds
from blackbox.transport.libzmq import EINTR, zmq_errno
from blackbox.transport.security.group_key import GroupKey
from blackbox.transport.udp.datagram import DATAGRAM_BYTES, MAGIC, VERSION, datagram_at, write_tag
from blackbox.transport.udp.mmsg import (
    ADDRESS_BYTES,
    BATCH,
    ROOM,
    Datagrams,
    packed_address,
    put_datagram,
    send_batch,
)

_BURST_NS: Final = 1_000_000
"""Time that the sender may be ahead of its rate after a pause."""
_MOST_SLEEP_NS: Final = 1_000_000


class CasterState(SharedRecord):
    """State of a slice's multicast sender."""

    slice_id = Field()
    stream = Field()
    """Start time of the sender in ns since 1970."""
    first_line = Field()
    """Number of the first multicast line; the lines before it are ZeroMQ sockets."""
    lines = Field()
    fds = Fields(2)
    """Socket of each multicast line."""
    blocks = Fields(2)
    """Number of the next block of each multicast line."""
    addresses = Field()
    groups = Field()
    """Groups of each line."""
    part_bytes = Field()
    rate_bytes = Field()
    """Bytes per second."""
    free_at = Field()
    """Time at which all datagrams have left at that rate, monotonic."""
    messages = Field()
    buffers = Field()
    hash_function = Field()
    group_key = Field()
    errno = Field()
    """Error number of the last datagram that the system refused; 0: none."""
    datagrams = Field()
    """Datagrams sent."""
    failed = Field()
    """Datagrams that the system refused, or that were left at the end."""
    ending = Field(own_line=True)
    """1: send nothing more; written by Python."""


caster_state_at = record_at(CasterState)
NO_CASTER: Final = 0


@inner
def casts(caster: int, line: int) -> bool:
    """Return True if a line is sent by a caster, whose address may be NO_CASTER."""
    if caster == NO_CASTER:
        return False
    state = caster_state_at(caster)
    return bool(state.first_line <= line < state.first_line + state.lines)


@inner
def group_of(caster: int, key: int, key_bytes: int) -> Any:
    """Return the group of a key, that of its channel; 0 without channels; -1 if there is no such group."""
    groups = caster_state_at(caster).groups
    channel = numpy.int64(bytes_at(key, 1)[0]) if groups > 1 and key_bytes > 0 else numpy.int64(0)
    return channel if channel < groups else numpy.int64(-1)


@inner
def _pace(state: CasterState, size: int) -> bool:
    """Wait until `size` bytes may be sent. Return False if the sender ends first."""
    now = monotonic_ns()
    while state.free_at > now:
        if load_shared(state, "ending") != 0:
            return False
        sleep_microseconds(min(state.free_at - now, _MOST_SLEEP_NS) // 1000 + 1)
        now = monotonic_ns()
    state.free_at = max(state.free_at, now - _BURST_NS) + size * 1_000_000_000 // state.rate_bytes
    return True


@inner
def _send(state: CasterState, fd: int, count: int, size: int) -> None:
    """Send a batch of prepared datagrams of `size` bytes together; count those that the system refuses."""
    done: Any = numpy.int64(0)
    if not _pace(state, size):
        state.failed += count
        return
    while done < count:
        sent: int = send_batch(fd, state.messages, done, count - done)
        if sent > 0:
            done += sent
            state.datagrams += sent
        elif zmq_errno() != EINTR:
            state.errno = zmq_errno()
            state.failed += 1
            done += 1


@inner
def _copy(target: int, key: int, key_bytes: int, header: int, body: int, start: int, size: int) -> None:
    """Copy `size` bytes from offset `start` of a block: its key, its header, its body."""
    before = key_bytes + HEADER_BYTES
    if start == 0:
        copy_bytes(target, key, key_bytes)
        copy_bytes(target + key_bytes, header, numpy.int64(HEADER_BYTES))
        copy_bytes(target + before, body, size - before)
    else:
        copy_bytes(target, body + start - before, size)


@njit(nogil=True, cache=True)
def cast_block(
    caster: int, line: int, group: int, key: int, key_bytes: int, header: int, body: int, body_bytes: int
) -> None:
    """Send a block on a line to one of its groups, 0 being that of heartbeats. Waits as the rate demands."""
    state = caster_state_at(caster)
    place = line - state.first_line
    address = state.addresses + ADDRESS_BYTES * (place * state.groups + group)
    number = state.blocks[place]
    state.blocks[place] = number + 1
    block_bytes, part_bytes = key_bytes + HEADER_BYTES + body_bytes, state.part_bytes
    zero: Any = numpy.int64(0)
    start, part, count, batch_bytes = zero, zero, zero, zero
    while start < block_bytes:
        size: int = min(part_bytes, block_bytes - start)
        buffer = state.buffers + ROOM * count
        datagram = datagram_at(buffer)
        datagram.magic, datagram.version, datagram.zero = MAGIC, VERSION, 0
        datagram.key_bytes, datagram.slice = key_bytes, state.slice_id
        datagram.stream, datagram.block = state.stream, number
        datagram.block_bytes, datagram.part_bytes, datagram.part = block_bytes, part_bytes, part
        _copy(buffer + DATAGRAM_BYTES, key, key_bytes, header, body, start, size)
        write_tag(buffer, buffer, DATAGRAM_BYTES + size, state.hash_function, state.group_key)
        put_datagram(state.messages, count, DATAGRAM_BYTES + size, address)
        start += size
        part += 1
        count += 1
        batch_bytes += DATAGRAM_BYTES + size
        if count == BATCH or start == block_bytes:
            _send(state, state.fds[place], count, batch_bytes)
            count, batch_bytes = zero, zero


class Caster:
    """Sends the blocks of a slice to its multicast lines. Owns the sockets.

    Attributes: `state`; `address`, its address for compiled code.
    """

    def __init__(self, feed: Feed, slice_id: int, sockets: Sequence[socket.socket], key: GroupKey) -> None:
        """`sockets`: one for each multicast line of the slice."""
        part = feed.slices[slice_id]
        groups = [groups_of(each, feed.channels) for each in part.multicast]
        self._sockets = sockets
        self._key = numpy.frombuffer(key.key or b"\0", numpy.uint8)
        self._datagrams = Datagrams()
        packed = [packed_address(*each) for line in groups for each in line]
        self._addresses: NDArray[numpy.uint8] = numpy.frombuffer(b"".join(packed), numpy.uint8)
        state = self.state = CasterState()
        state.slice_id, state.stream, state.first_line = slice_id, time.time_ns(), len(part.sockets)
        state.lines = len(sockets)
        for place, each in enumerate(sockets):
            state.fds[place] = each.fileno()
        state.addresses, state.groups = self._addresses.ctypes.data, len(groups[0])
        state.part_bytes, state.rate_bytes = feed.udp_payload_bytes - DATAGRAM_BYTES, feed.udp_rate_bytes
        state.messages, state.buffers = self._datagrams.messages, self._datagrams.buffers
        state.hash_function, state.group_key = key.function, self._key.ctypes.data
        self.address = state.address

    def close(self) -> None:
        """Close the sockets."""
        for each in self._sockets:
            each.close()
