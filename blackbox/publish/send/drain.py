"""Compiled: send everything in a slice's ring, as blocks on its XPUB sockets, in shared memory and by multicast."""

from __future__ import annotations

from typing import Final

import numpy

from blackbox.block.form.encode import Rows, finish_header, number_header, plan_bytes
from blackbox.block.form.format import FLAG_LINE_B, HEADER_BYTES, block_header_at
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import copy_bytes, inner
from blackbox.native.memory.records import load_shared, store_shared
from blackbox.native.system.posix import monotonic_ns, now_ns, poke
from blackbox.publish.send.batcher import Encoder, encode_planned, group_by_key, plan_next
from blackbox.publish.send.control_blocks import send_heartbeat
from blackbox.publish.send.outbox import is_kept, is_noted
from blackbox.publish.send.ring import (
    AGAIN,
    BLOCK,
    NOTE,
    PAD,
    RECORD_BYTES,
    SHOW,
    UNWANTED,
    Closing,
    RingAt,
    ask,
    count_of,
    key_of,
    kind_of,
    record_bytes,
    release,
    ring_state_at,
)
from blackbox.publish.send.send_shared import place_to_encode, share
from blackbox.publish.send.sender_state import (
    BODY_AT,
    COPY_AT,
    HEADER_AT,
    KEY_AT,
    SHARED,
    TEMPLATE_AT,
    Sender,
    SenderState,
    sender_state_at,
)
from blackbox.transport.libzmq import (
    EAGAIN,
    SNDMORE,
    msg_close,
    msg_copy,
    msg_data,
    msg_init,
    msg_init_size,
    msg_send,
    wire_bytes,
    zmq_errno,
)
from blackbox.transport.shared_memory.writer import has_readers
from blackbox.transport.udp.sender import NO_CASTER, cast_block, casts, group_of

GATHER_ROWS: Final = 16_384
"""Most single messages taken out of the ring in one pass."""
_PRICE_NS: Final = 14_000
"""Cost of a block with one message at publisher, network and subscriber, with some margin."""
_MOST_OWED_NS: Final = 1_000_000


@inner
def _note_wait(sender: Sender) -> None:
    """Count a wait for a slow subscriber; have taps that cause it disconnected."""
    state = sender_state_at(sender.state)
    state.waits += 1
    if state.tap_bell != 0:
        poke(state.tap_bell, sender.state)


@inner
def _send_frame(sender: Sender, ring: RingAt, socket: int, message: int, flags: int) -> bool:
    """Send one frame, waiting for slow subscribers if the socket does. Return False if closing or on error."""
    while msg_send(message, socket, flags) < 0:
        error = zmq_errno()
        if error != EAGAIN:
            sender_state_at(sender.state).errno = error
            return False
        _note_wait(sender)
        if load_shared(ring_state_at(ring.state), "closing") == Closing.ENDING:
            return False
    return True


@inner
def _send_on(
    sender: Sender,
    ring: RingAt,
    socket: int,
    key: int,
    header: int,
    body: int,
    flags: int,
) -> bool:
    key_message = sender.scratch.ctypes.data + KEY_AT
    header_message = sender.scratch.ctypes.data + HEADER_AT
    size = numpy.int64(sender.keys.sizes[key])
    msg_init_size(key_message, size)
    copy_bytes(msg_data(key_message), sender.keys.text.ctypes.data + sender.keys.offsets[key], size)
    # Wait for slow subscribers before the block is stamped: waiting must not count as lag.
    if not _send_frame(sender, ring, socket, key_message, numpy.int64(SNDMORE)):
        msg_close(key_message)
        return False
    finish_header(header, now_ns(), flags)
    msg_init_size(header_message, HEADER_BYTES)
    copy_bytes(msg_data(header_message), header, HEADER_BYTES)
    if not _send_frame(sender, ring, socket, header_message, numpy.int64(SNDMORE)):
        msg_close(header_message)
        return False
    return _send_frame(sender, ring, socket, body, numpy.int64(0))


@inner
def _count(sender: Sender, key: int, messages: int) -> None:
    """Advance the sequence of the slice and the end of a key by a number of messages."""
    state = sender_state_at(sender.state)
    state.sequence += messages
    sender.ends[key] = state.sequence
    sender.counts[key] += messages


@inner
def _cast(sender: Sender, key: int, header: int, body: int, body_bytes: int) -> None:
    """Send a block on every multicast line, once for all subscribers."""
    name, size = sender.keys.text.ctypes.data + sender.keys.offsets[key], numpy.int64(sender.keys.sizes[key])
    group = group_of(sender.caster, name, size)
    for line in range(2):
        if casts(sender.caster, line):
            finish_header(header, now_ns(), numpy.int64(FLAG_LINE_B if line else 0))
            cast_block(sender.caster, line, group, name, size, header, body, body_bytes)
            block_header_at(header).flags &= ~FLAG_LINE_B


@inner
def _send_block(sender: Sender, ring: RingAt, key: int, header: int, body: int, is_again: bool) -> bool:
    """Send a block on every line and count it. Takes ownership of the body message. `is_again`: keep its sequences."""
    count = numpy.int64(block_header_at(header).count)
    body_bytes = numpy.int64(block_header_at(header).body_bytes)
    state = sender_state_at(sender.state)
    if is_again:
        block = block_header_at(header)
        state.sequence = block.sequence + count
        sender.ends[key], sender.counts[key] = state.sequence, block.key_sequence + count
    else:
        number_header(header, state.sequence, sender.ends[key], sender.counts[key])
        if not is_kept(sender, header, body):
            msg_close(body)
            return False
        _count(sender, key, count)
    sent = True
    wanted = sender.wanted[key]
    if sender.caster != NO_CASTER:
        _cast(sender, key, header, msg_data(body), body_bytes)
    shared = wanted >= SHARED and has_readers(sender.shared)
    if sender.shared.state != 0:
        sent = share(sender, ring, key, header, body, shared, wanted % SHARED != 0)
    if wanted % SHARED and sent:
        if sender.socket_b != 0:
            second = sender.scratch.ctypes.data + COPY_AT
            msg_init(second)
            msg_copy(second, body)
            sent = _send_on(sender, ring, sender.socket_a, key, header, second, numpy.int64(0))
            msg_close(second)
        if sent:
            socket = sender.socket_b if sender.socket_b != 0 else sender.socket_a
            flags = numpy.int64(FLAG_LINE_B if sender.socket_b != 0 else 0)
            sent = _send_on(sender, ring, socket, key, header, body, flags)
        size = wire_bytes(numpy.int64(sender.keys.sizes[key])) + wire_bytes(numpy.int64(HEADER_BYTES))
        state.wire_bytes += size + wire_bytes(body_bytes)
        state.wire_bytes_b += size + wire_bytes(body_bytes)
    if shared or wanted % SHARED or sender.caster != NO_CASTER:
        if sent:
            state.messages += count
            state.blocks += 1
            state.body_bytes += body_bytes
    else:
        state.unwanted += count
    msg_close(body)
    return sent


@njit(nogil=True, cache=True)
def _gather(sender: Sender, ring: RingAt, encoder: Encoder, head: int, tail: int) -> tuple[int, int]:
    """List the single messages from `head` up to any other record; return the new head and their number."""
    selection = encoder.selection
    taken = 0
    while head != tail and taken < GATHER_ROWS:
        record = ring.memory + head
        kind = kind_of(record)
        if kind == PAD:
            head = 0
            continue
        if kind >= NOTE:
            break
        selection.order[taken] = taken
        selection.topics[taken] = kind
        sender.starts[taken] = head + RECORD_BYTES
        sender.lengths[taken] = count_of(record)
        sender.ts_event[taken] = key_of(record)
        head += record_bytes(record)
        taken += 1
    return head, taken


@inner
def _send_gathered(sender: Sender, ring: RingAt, encoder: Encoder, taken: int, ts_in: int) -> bool:
    state = sender_state_at(sender.state)
    groups = group_by_key(encoder.selection, taken, encoder.key_of_topic, load_shared(state, "keys"))
    rows = Rows(
        sender.ts_event.ctypes.data,
        ring.memory,
        sender.starts.ctypes.data,
        sender.lengths.ctypes.data,
        numpy.int64(0),
        numpy.int64(0),
        numpy.int64(0),
    )
    header = sender.scratch.ctypes.data + TEMPLATE_AT
    body = sender.scratch.ctypes.data + BODY_AT
    begin = 0
    for group in range(groups):
        key = numpy.int64(encoder.selection.keys[group])
        stop = numpy.int64(encoder.selection.stops[group])
        if not sender.wanted[key] and sender.outbox.function == 0:
            _count(sender, key, stop - begin)
            state.unwanted += stop - begin
            begin = stop
        while begin < stop:
            plan = plan_next(encoder, rows, begin, stop)
            place = numpy.int64(0)
            if sender.wanted[key] >= SHARED:
                place = place_to_encode(sender.shared, plan_bytes(plan))
            if not encode_planned(encoder, rows, plan, body, header, ts_in, place):
                state.errno = zmq_errno()
                return False
            if not _send_block(sender, ring, key, header, body, False):
                return False
            begin = plan.stop
    return True


@inner
def _leave_out(sender: Sender, messages: int) -> None:
    """Skip sequences of messages that the source lacks. With keys, each key counts one message as missing."""
    if messages > 0:
        state = sender_state_at(sender.state)
        state.sequence += messages
        sender.ends[:] = state.sequence
        sender.counts[:] += messages if sender.key_rule == 0 else 1


@inner
def _send_record(sender: Sender, ring: RingAt, record: int) -> bool:
    """Send or count a record that is not a single message. Return False if closing or on error."""
    kind, key = kind_of(record), key_of(record)
    if kind in (BLOCK, AGAIN):
        header = record + RECORD_BYTES
        body_bytes = numpy.int64(block_header_at(header).body_bytes)
        if not _send_block(sender, ring, key, header, header + HEADER_BYTES, kind == AGAIN):
            return False
        state = ring_state_at(ring.state)
        store_shared(state, "bodies_out", state.bodies_out + body_bytes)
        return True
    if kind == NOTE:
        return bool(is_noted(sender, record + RECORD_BYTES, numpy.int64(count_of(record)), key))
    if kind == SHOW:
        _leave_out(sender, numpy.int64(count_of(record)))
        while not send_heartbeat(sender, key, numpy.int64(0)):
            if (
                sender_state_at(sender.state).errno != 0
                or load_shared(ring_state_at(ring.state), "closing") == Closing.ENDING
            ):
                return False
            _note_wait(sender)
        return True
    _count(sender, key, numpy.int64(count_of(record)))
    if kind == UNWANTED:
        sender_state_at(sender.state).unwanted += count_of(record)
    return True


@inner
def drain(sender: Sender, ring: RingAt, encoder: Encoder) -> bool:
    """Send everything in the ring, and note when it was sent. Return False if closing or on error."""
    state = sender_state_at(sender.state)
    if state.errno != 0:
        return False  # a stand-in has failed
    ring_state = ring_state_at(ring.state)
    head = ring_state.head
    now = now_ns()
    ts_in = ask(ring, state.asked_at, state.asked_from)
    tail = load_shared(ring_state, "tail")
    state.asked_at, state.asked_from = now, tail
    while head != tail:
        head, taken = _gather(sender, ring, encoder, head, tail)
        if taken > 0:
            _pay(state, taken)
            before = state.messages + state.unwanted
            if not _send_gathered(sender, ring, encoder, taken, ts_in):
                state.handled = state.messages + state.unwanted - before
                return False
        elif head != tail:
            record = ring.memory + head
            size = record_bytes(record)
            if not _send_record(sender, ring, record):
                return False
            head += size
        release(ring, head)
    state.passes += 1
    state.sent_at = monotonic_ns()
    return True


@inner
def _pay(state: SenderState, messages: int) -> None:
    """Charge a number of single messages to the send budget."""
    now = monotonic_ns()
    state.paid_until = min(max(state.paid_until, now) + _PRICE_NS * messages, now + _MOST_OWED_NS)
