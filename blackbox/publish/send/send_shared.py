"""Compiled: write blocks to a slice's shared memory, in the sender's thread."""

from __future__ import annotations

from typing import Any, Final

import numpy

from blackbox.block.form.encode import finish_header
from blackbox.block.form.format import block_header_at
from blackbox.native.memory.intrinsics import copy_bytes, inner
from blackbox.native.memory.records import load_shared
from blackbox.native.system.posix import now_ns
from blackbox.publish.send.ring import Closing, RingAt, ring_state_at
from blackbox.publish.send.sender_state import COPY_AT, Sender, sender_state_at
from blackbox.transport.libzmq import msg_close, msg_data, msg_init_size, msg_move, msg_size, zmq_errno
from blackbox.transport.shared_memory.writer import (
    NO_PLACE,
    WriterAt,
    await_place,
    claim_place,
    find_place,
    give_back,
    has_readers,
    offer_places,
    place_address,
    place_of,
    publish_place,
    ring_bells,
    writer_state_at,
)

_NO: Final = numpy.int64(0)


@inner
def place_to_encode(shared: WriterAt, body_bytes: int) -> Any:
    """Return the address in shared memory to encode a body at; 0: encode it elsewhere."""
    if not has_readers(shared) or body_bytes > shared.layout.small_bytes:
        return _NO
    place = claim_place(shared, body_bytes)
    return _NO if place == NO_PLACE else place_address(shared, place)


@inner
def _wait_for_place(sender: Sender, ring: RingAt, own: int, body_bytes: int) -> Any:
    """Wait until slow readers free a place, and return it; NO_PLACE: the publisher ends first."""
    place = numpy.int64(NO_PLACE)
    while place == NO_PLACE and load_shared(ring_state_at(ring.state), "closing") != Closing.ENDING:
        sender_state_at(sender.state).waits += 1
        place = await_place(sender.shared, own, body_bytes, sender.wake_fd, sender.scratch.ctypes.data)
    return place


@inner
def _leave_place(sender: Sender, body: int) -> bool:
    """Copy a body out of shared memory, because sockets may keep it longer. Return False if out of memory."""
    size = msg_size(body)
    copy = sender.scratch.ctypes.data + COPY_AT
    if msg_init_size(copy, size) != 0:
        sender_state_at(sender.state).errno = zmq_errno()
        return False
    copy_bytes(msg_data(copy), msg_data(body), size)
    msg_move(body, copy)
    msg_close(copy)
    return True


@inner
def share(sender: Sender, ring: RingAt, key: int, header: int, body: int, is_wanted: bool, on_sockets: bool) -> bool:
    """Write a block for readers that want it; wait for slow ones if configured. False: the publisher ends or failed."""
    shared = sender.shared
    body_bytes = numpy.int64(block_header_at(header).body_bytes)
    own = place_of(shared, msg_data(body))
    if own != NO_PLACE and on_sockets and not _leave_place(sender, body):
        return False
    if not is_wanted:
        if own != NO_PLACE:
            give_back(shared, own)
        return True
    place = find_place(shared, own, body_bytes)
    if place == NO_PLACE:
        if writer_state_at(shared.state).waits == 0:
            sender_state_at(sender.state).shared_memory_dropped += block_header_at(header).count
            return True
        place = _wait_for_place(sender, ring, own, body_bytes)
        if place == NO_PLACE:
            return False
    if own == NO_PLACE:
        copy_bytes(place_address(shared, place), msg_data(body), body_bytes)
    finish_header(header, now_ns(), _NO)
    name = sender.keys.text.ctypes.data + sender.keys.offsets[key]
    publish_place(shared, place, body_bytes, name, numpy.int64(sender.keys.sizes[key]), header)
    ring_bells(shared, sender.scratch.ctypes.data)
    offer_places(shared)
    return True
