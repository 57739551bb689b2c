"""Compiled: control blocks, which carry the end of every key: heartbeats, confirmations, the end of an epoch."""

from __future__ import annotations

import numpy
from numpy.typing import NDArray

from blackbox.block.form.encode import (
    Origin,
    finish_header,
    number_header,
    plan_bytes,
    plan_ends,
    write_ends,
    write_template,
)
from blackbox.block.form.format import FLAG_CONTROL, FLAG_END, FLAG_LINE_B, HEADER_BYTES, HEARTBEAT_KEY
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import copy_bytes, inner
from blackbox.native.memory.records import load_shared
from blackbox.native.system.posix import now_ns
from blackbox.publish.send.outbox import tell_outbox
from blackbox.publish.send.sender_state import (
    BODY_AT,
    COPY_AT,
    HEADER_AT,
    KEY_AT,
    TEMPLATE_AT,
    Sender,
    sender_state_at,
)
from blackbox.transport.libzmq import (
    DONTWAIT,
    EAGAIN,
    SNDMORE,
    close_messages,
    msg_close,
    msg_copy,
    msg_data,
    msg_init,
    msg_init_size,
    msg_send,
    msg_size,
    wire_bytes,
    zmq_errno,
)
from blackbox.transport.udp.sender import cast_block, casts

_HEARTBEAT = numpy.frombuffer(HEARTBEAT_KEY, numpy.uint8)


@inner
def _make_control(sender: Sender, line: int, flags: int, ts_event: int) -> int:
    """Make a control block with the end of every key. Return the size of its body; 0: out of memory.

    `ts_event`: latest time before messages that the source lacks, if the block reports their loss; else 0.
    """
    state = sender_state_at(sender.state)
    body, header = sender.scratch.ctypes.data + BODY_AT, sender.scratch.ctypes.data + TEMPLATE_AT
    plan = plan_ends(sender.keys, load_shared(state, "keys"))
    if msg_init_size(body, plan_bytes(plan)) != 0:
        state.errno = zmq_errno()
        return 0
    write_ends(msg_data(body), plan, sender.keys, sender.ends, sender.counts)
    origin = Origin(numpy.int64(0), sender.slice_id, sender.key_rule, state.epoch)
    write_template(header, plan, msg_data(body), True, origin, ts_event)
    number_header(header, state.sequence, state.sequence, numpy.int64(0))
    finish_header(header, now_ns(), flags | FLAG_CONTROL | (FLAG_LINE_B if line else 0))
    return plan_bytes(plan)


@inner
def _send_made(sender: Sender, line: int, key_address: int, key_size: int, flags: int) -> bool:
    """Send the prepared control block under a key. Return False if a subscriber has no room for it.

    `flags`: DONTWAIT, or 0 to wait for room up to the socket's `sndtimeo`.
    """
    socket = sender.socket_b if line else sender.socket_a
    scratch = sender.scratch.ctypes.data
    key, header, copy = scratch + KEY_AT, scratch + HEADER_AT, scratch + COPY_AT
    msg_init_size(key, key_size)
    copy_bytes(msg_data(key), key_address, key_size)
    msg_init_size(header, HEADER_BYTES)
    copy_bytes(msg_data(header), scratch + TEMPLATE_AT, HEADER_BYTES)
    msg_init(copy)
    msg_copy(copy, scratch + BODY_AT)
    body_bytes = msg_size(copy)
    sent = (
        msg_send(key, socket, SNDMORE | flags) >= 0
        and msg_send(header, socket, SNDMORE | DONTWAIT) >= 0
        and msg_send(copy, socket, DONTWAIT) >= 0
    )
    state = sender_state_at(sender.state)
    size = wire_bytes(key_size) + wire_bytes(numpy.int64(HEADER_BYTES)) + wire_bytes(body_bytes)
    if sent:
        state.wire_bytes += 0 if line else size
        state.wire_bytes_b += size if line else 0
    else:
        error = zmq_errno()
        if error != EAGAIN:
            state.errno = error
        close_messages(key, 3)
    return sent


@inner
def send_heartbeat(sender: Sender, ts_event: int, send_flags: int) -> bool:
    """Send a heartbeat on every line. Return False if a line had no room, or on error.

    `ts_event`: as in `_make_control`; `send_flags`: as in `send_control`.
    """
    all_sent = True
    for line in range(2):
        is_cast = casts(sender.caster, line)
        if not is_cast and (sender.socket_b if line else sender.socket_a) == 0:
            continue
        if _make_control(sender, line, numpy.int64(0), ts_event) > 0:
            if line == 0:
                tell_outbox(sender)
            if is_cast:
                _cast_made(sender, line)
            else:
                all_sent &= _send_made(sender, line, _HEARTBEAT.ctypes.data, numpy.int64(len(_HEARTBEAT)), send_flags)
            msg_close(sender.scratch.ctypes.data + BODY_AT)
        else:
            all_sent = False
    return all_sent


@inner
def _cast_made(sender: Sender, line: int) -> None:
    """Send the prepared control block to the group of heartbeats."""
    body, header = sender.scratch.ctypes.data + BODY_AT, sender.scratch.ctypes.data + TEMPLATE_AT
    key, size = _HEARTBEAT.ctypes.data, numpy.int64(len(_HEARTBEAT))
    cast_block(sender.caster, line, numpy.int64(0), key, size, header, msg_data(body), msg_size(body))


@njit(nogil=True, cache=True)
def cast_heartbeat(sender: Sender, flags: int) -> None:
    """Send a heartbeat with more flags on every multicast line."""
    for line in range(2):
        if casts(sender.caster, line) and _make_control(sender, line, flags, numpy.int64(0)) > 0:
            if flags & FLAG_END and sender.socket_a == 0 and line == 0:
                tell_outbox(sender)
            _cast_made(sender, line)
            msg_close(sender.scratch.ctypes.data + BODY_AT)


@njit(nogil=True, cache=True)
def store_epoch(sender: Sender) -> None:
    """Write the epoch to the outbox, if there is one, before any subscriber hears of it."""
    if _make_control(sender, numpy.int64(0), numpy.int64(0), numpy.int64(0)) > 0:
        tell_outbox(sender)
        msg_close(sender.scratch.ctypes.data + BODY_AT)


@njit(nogil=True, cache=True)
def send_control(
    sender: Sender, line: int, keys: NDArray[numpy.uint8], sent: NDArray[numpy.uint8], flags: int, send_flags: int
) -> int:
    """Send one control block with the ends of all keys under each of `len(sent)` keys. Return the size of its body.

    `keys` are concatenated, of equal size. `sent[i]` becomes 1 if the subscribers of key i had room for it.
    `send_flags`: DONTWAIT, or 0 to wait for room at each send, up to the socket's `sndtimeo`.
    """
    made = _make_control(sender, line, flags, numpy.int64(0))
    if made > 0:
        if flags & FLAG_END:
            tell_outbox(sender)
        key_size = numpy.int64(len(keys) // len(sent))
        for number in range(len(sent)):
            sent[number] = _send_made(sender, line, keys.ctypes.data + number * key_size, key_size, send_flags)
        msg_close(sender.scratch.ctypes.data + BODY_AT)
    return made
