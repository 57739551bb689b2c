"""The compiled loop of a slice's sender: ring records in, blocks out on the slice's XPUB sockets, no GIL."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy

from blackbox.block.form.encode import (
    Origin,
    Rows,
    finish_header,
    number_header,
    plan_bytes,
    plan_ends,
    write_ends,
    write_template,
)
from blackbox.block.form.format import (
    FLAG_CONTROL,
    FLAG_END,
    FLAG_LINE_B,
    HEADER_BYTES,
    HEARTBEAT_KEY,
    block_header_at,
)
from blackbox.native.compile.jit import njit
from blackbox.native.compile.kept_arguments import kept_at
from blackbox.native.memory.intrinsics import bytes_at, copy_bytes, fence, inner
from blackbox.native.memory.records import load_shared, store_shared, swap_shared
from blackbox.native.system.posix import barrier_of_all_threads, monotonic_ns, now_ns, poke, sleep_microseconds
from blackbox.publish.send.batcher import Encoder, encode_planned, group_by_key, plan_next
from blackbox.publish.send.ring import (
    AGAIN,
    ASLEEP,
    AWAKE,
    BLOCK,
    DRAINING,
    ENDING,
    NOTE,
    OPEN,
    PAD,
    RECORD_BYTES,
    SHOW,
    STOOD_IN,
    SURE,
    UNWANTED,
    RingAt,
    answer,
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
from blackbox.publish.send.to_outbox import is_kept, is_noted, tell_outbox
from blackbox.transport.libzmq import (
    DONTWAIT,
    EAGAIN,
    POLLIN,
    SNDMORE,
    close_messages,
    msg_close,
    msg_copy,
    msg_data,
    msg_init,
    msg_init_size,
    msg_send,
    socket_events,
    wait_readable,
    zmq_errno,
)
from blackbox.transport.shared_memory.writer import has_readers

SUBSCRIPTIONS: Final = 1
"""`send_until` returned because subscriptions wait to be read."""
RETRY: Final = 2
"""`send_until` returned because its deadline has passed."""
CLOSED: Final = 3
"""`send_until` returned because the ring is closing and empty, or must end now."""
FAILED: Final = 4
"""`send_until` returned because libzmq refused a message, from this thread or a stand-in; see `SenderState.errno`."""
EPOCH: Final = 5
"""`send_until` returned because everything was sent and `SenderState.next_epoch` must begin."""

_HEARTBEAT = numpy.frombuffer(HEARTBEAT_KEY, numpy.uint8)

_IN_FLIGHT_NS: Final = 2_000
"""Ten times as long as a store takes to become visible to other processors."""
GATHER_ROWS: Final = 16_384
"""Most single messages taken out of the ring in one pass."""
_PRICE_NS: Final = 14_000
"""Cost of a block with one message at publisher, network and subscriber, with some margin."""
_CREDIT_NS: Final = 200_000
"""Messages that come faster than this price allows are sent at once for this long; then they share blocks."""
_MOST_OWED_NS: Final = 1_000_000
_SHARED_NS: Final = 100_000
"""Shortest time to fill a shared block."""


@inner
def _send_frame(sender: Sender, ring: RingAt, socket: int, message: int, flags: int) -> bool:
    """Send one frame, waiting for slow subscribers if the socket does. Return False if closing or on error."""
    while msg_send(message, socket, flags) < 0:
        error = zmq_errno()
        state = sender_state_at(sender.state)
        if error == EAGAIN:
            state.waits += 1
        else:
            state.errno = error
            return False
        if load_shared(ring_state_at(ring.state), "closing") == ENDING:
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
    if shared or wanted % SHARED:
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
    )
    header = sender.scratch.ctypes.data + TEMPLATE_AT
    body = sender.scratch.ctypes.data + BODY_AT
    at = 0
    for group in range(groups):
        key = numpy.int64(encoder.selection.keys[group])
        stop = numpy.int64(encoder.selection.stops[group])
        if not sender.wanted[key] and sender.outbox.function == 0:
            _count(sender, key, stop - at)
            state.unwanted += stop - at
            at = stop
        while at < stop:
            plan = plan_next(encoder, rows, at, stop)
            place = numpy.int64(0)
            if sender.wanted[key] >= SHARED:
                place = place_to_encode(sender.shared, plan_bytes(plan))
            if not encode_planned(encoder, rows, plan, body, header, ts_in, place):
                state.errno = zmq_errno()
                return False
            if not _send_block(sender, ring, key, header, body, False):
                return False
            at = plan.stop
    return True


@inner
def _make_control(sender: Sender, origin: Origin, line: int, flags: int, ts_event: int) -> int:
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
    origin = Origin(numpy.int64(0), origin.slice_id, origin.key_rule, origin.epoch)
    write_template(header, plan, msg_data(body), True, origin, ts_event)
    number_header(header, state.sequence, state.sequence, numpy.int64(0))
    finish_header(header, now_ns(), flags | FLAG_CONTROL | (FLAG_LINE_B if line else 0))
    return plan_bytes(plan)


@inner
def _send_made(sender: Sender, line: int, key_at: int, key_size: int, flags: int) -> bool:
    """Send the prepared control block under a key. Return False if a subscriber has no room for it.

    `flags`: DONTWAIT, or 0 to wait for room up to the socket's `sndtimeo`.
    """
    socket = sender.socket_b if line else sender.socket_a
    scratch = sender.scratch.ctypes.data
    key, header, copy = scratch + KEY_AT, scratch + HEADER_AT, scratch + COPY_AT
    msg_init_size(key, key_size)
    copy_bytes(msg_data(key), key_at, key_size)
    msg_init_size(header, HEADER_BYTES)
    copy_bytes(msg_data(header), scratch + TEMPLATE_AT, HEADER_BYTES)
    msg_init(copy)
    msg_copy(copy, scratch + BODY_AT)
    sent = (
        msg_send(key, socket, SNDMORE | flags) >= 0
        and msg_send(header, socket, SNDMORE | DONTWAIT) >= 0
        and msg_send(copy, socket, DONTWAIT) >= 0
    )
    if not sent:
        error = zmq_errno()
        if error != EAGAIN:
            sender_state_at(sender.state).errno = error
        close_messages(key, 3)
    return sent


@inner
def _send_heartbeat(sender: Sender, origin: Origin, ts_event: int, send_flags: int) -> bool:
    """Send a heartbeat on every line. Return False if a line had no room, or on error.

    `ts_event`: as in `_make_control`; `send_flags`: as in `send_control`.
    """
    all_sent = True
    for line in range(2 if sender.socket_b != 0 else 1):
        if _make_control(sender, origin, line, numpy.int64(0), ts_event) > 0:
            if line == 0:
                tell_outbox(sender)
            all_sent &= _send_made(sender, line, _HEARTBEAT.ctypes.data, numpy.int64(len(_HEARTBEAT)), send_flags)
            msg_close(sender.scratch.ctypes.data + BODY_AT)
        else:
            all_sent = False
    return all_sent


@inner
def _leave_out(sender: Sender, key_rule: int, messages: int) -> None:
    """Skip sequences of messages that the source lacks. With keys, each key counts one message as missing."""
    if messages > 0:
        state = sender_state_at(sender.state)
        state.sequence += messages
        sender.ends[:] = state.sequence
        sender.counts[:] += messages if key_rule == 0 else 1


@inner
def _send_record(sender: Sender, ring: RingAt, origin: Origin, record: int) -> bool:
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
        _leave_out(sender, origin.key_rule, numpy.int64(count_of(record)))
        while not _send_heartbeat(sender, origin, key, numpy.int64(0)):
            if sender_state_at(sender.state).errno != 0 or load_shared(ring_state_at(ring.state), "closing") == ENDING:
                return False
        return True
    _count(sender, key, numpy.int64(count_of(record)))
    if kind == UNWANTED:
        sender_state_at(sender.state).unwanted += count_of(record)
    return True


@inner
def _drain(sender: Sender, ring: RingAt, encoder: Encoder) -> bool:
    """Send everything in the ring. Return False if closing or on error."""
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
            if not _send_record(sender, ring, encoder.origin, record):
                return False
            head += size
        release(ring, head)
    return True


@inner
def _pay(state: SenderState, messages: int) -> None:
    """Charge a number of single messages to the send budget."""
    now = monotonic_ns()
    state.paid_until = min(max(state.paid_until, now) + _PRICE_NS * messages, now + _MOST_OWED_NS)


@inner
def _linger_ns(sender: Sender, now: int) -> int:
    """Return the least time between blocks of single messages: longer than configured if they come too fast for it."""
    is_fast = sender_state_at(sender.state).paid_until - now > _CREDIT_NS
    return max(sender.linger_ns, _SHARED_NS) if is_fast else sender.linger_ns


@inner
def _linger(sender: Sender, ring: RingAt, encoder: Encoder) -> None:
    """Let a block fill. A message after a pause is sent at once."""
    state = ring_state_at(ring.state)
    # Encoded blocks do not grow.
    while load_shared(state, "closing") == OPEN and load_shared(state, "bodies_in") == state.bodies_out:
        now = monotonic_ns()
        linger_ns = _linger_ns(sender, now)
        left_ns = sender_state_at(sender.state).sent_at + linger_ns - now
        filled = load_shared(state, "tail") - state.head
        if left_ns <= 0 or left_ns > linger_ns or filled < 0 or filled >= encoder.block_bytes:
            return
        sleep_microseconds(min(100, left_ns // 1000 + 1))


@inner
def _note_sent(sender: Sender) -> None:
    """Note that the ring was sent empty."""
    state = sender_state_at(sender.state)
    state.passes += 1
    state.sent_at = monotonic_ns()


@njit(nogil=True, cache=True)
def send_control(
    sender: Sender,
    origin: Origin,
    line: int,
    keys_at: int,
    key_size: int,
    count: int,
    sent_at: int,
    flags: int,
    send_flags: int,
) -> int:
    """Send one control block with the ends of all keys under each of `count` keys. Return the size of its body.

    The keys are concatenated, of `key_size` bytes each. Byte i at `sent_at` becomes 1 if the subscribers of key i had
    room for it. `send_flags`: DONTWAIT, or 0 to wait for room at each send, up to the socket's `sndtimeo`.
    """
    made = _make_control(sender, origin, line, flags, numpy.int64(0))
    if made > 0 and flags & FLAG_END:
        tell_outbox(sender)
    if made > 0:
        sent = bytes_at(sent_at, count)
        for number in range(count):
            sent[number] = _send_made(sender, line, keys_at + number * key_size, key_size, send_flags)
        msg_close(sender.scratch.ctypes.data + BODY_AT)
    return made


@inner
def _events(sender: Sender) -> int:
    """Return ZMQ_EVENTS of all lines; -1: the context is terminating."""
    scratch = sender.scratch.ctypes.data
    events_a = socket_events(sender.socket_a, scratch)
    events_b = socket_events(sender.socket_b, scratch) if sender.socket_b != 0 else 0
    return events_a | events_b


@inner
def _spin(sender: Sender, ring: RingAt) -> None:
    """Poll until a writer or a subscriber has something, or nothing was sent for `spin_ns`."""
    state = ring_state_at(ring.state)
    until = sender_state_at(sender.state).sent_at + sender.spin_ns
    while monotonic_ns() < until and load_shared(state, "tail") == state.head:
        events = _events(sender)
        if events < 0 or events & POLLIN or load_shared(state, "closing") != OPEN:
            return


@inner
def _fall_asleep(sender: Sender, ring: RingAt) -> bool:
    """Allow publishing threads to send for this one, and ask for the next message. Return False if one has come."""
    state, sent = ring_state_at(ring.state), sender_state_at(sender.state)
    now = now_ns()  # before the ring is checked: later messages are not older
    if load_shared(state, "tail") == state.head:
        ask(ring, now, state.head)
        sent.asked_at, sent.asked_from = now, state.head
    store_shared(state, "sleeping", ASLEEP)
    fence()
    # `publish` has no fence between its record and its look at `asked`, because that would take a lock. So this thread
    # issues a memory barrier on all threads. If the system has none, it waits for records put by writers that missed
    # the request.
    if not barrier_of_all_threads():
        until = monotonic_ns() + _IN_FLIGHT_NS
        while load_shared(state, "tail") == state.head and monotonic_ns() < until:
            pass
    is_empty: bool = load_shared(state, "tail") == state.head
    if is_empty:
        sent.asked_from = SURE
    return is_empty


@inner
def _sleep(sender: Sender, ring: RingAt, wait_ns: int) -> None:
    """Sleep until a writer or a subscriber has something, for at most `wait_ns`, if the ring is still empty."""
    if sender.spin_ns != 0:
        _spin(sender, ring)
    state = ring_state_at(ring.state)
    # libzmq signals its descriptor once: a heartbeat may have consumed the signal.
    if load_shared(state, "tail") != state.head or _events(sender) & POLLIN:
        return
    if _fall_asleep(sender, ring):
        wait_ms = wait_ns // 1_000_000 + 1
        wait_readable(sender.readable_a, sender.readable_b, sender.wake_fd, wait_ms, sender.sleep_scratch.ctypes.data)
    while not swap_shared(state, "sleeping", ASLEEP, AWAKE):
        sleep_microseconds(numpy.int64(10))


class StandIn(NamedTuple):
    """State with which a thread sends for a sleeping sender."""

    sender: Sender
    ring: RingAt
    encoder: Encoder


_stand_in_at = kept_at(StandIn)


@njit(nogil=True, cache=True)
def tell(kept: int, handed_over_ns: int) -> None:
    """Answer a sender that asks, see `ring.answer`. If it sleeps, have the ring sent.

    This thread sends if the line is idle and it may stand in for the sender; otherwise it wakes the sender. `kept`:
    address of a `StandIn`.
    """
    sender, ring, encoder = _stand_in_at(kept)
    if answer(ring, handed_over_ns):
        now = monotonic_ns()
        if sender.others_send and now - sender_state_at(sender.state).sent_at >= _linger_ns(sender, now):
            _stand_in(sender, ring, encoder)
        else:
            poke(ring.wake_fd, ring.state)


@inner
def _stand_in(sender: Sender, ring: RingAt, encoder: Encoder) -> None:
    """Send for a sleeping sender; wake it if more messages have come meanwhile.

    Any thread may call this after it has put a record into the ring: libzmq allows sockets to change threads behind a
    fence.
    """
    ring_state = ring_state_at(ring.state)
    if not swap_shared(ring_state, "sleeping", ASLEEP, STOOD_IN):
        return  # the thread that sends checks the ring once more
    state = sender_state_at(sender.state)
    done = load_shared(ring_state, "tail") == ring_state.head
    if not done and state.epoch == encoder.origin.epoch:
        done = _drain(sender, ring, encoder)
        _note_sent(sender)
        # libzmq may have consumed its descriptor's signal in this thread.
        done = done and not _events(sender) & POLLIN
    if not (_fall_asleep(sender, ring) and done):
        poke(ring.wake_fd, ring.state)


@njit(nogil=True, cache=True)
def send_until(sender: Sender, ring: RingAt, encoder: Encoder, retry_at_ns: int) -> int:
    """Send data and heartbeats until Python is needed; return why: SUBSCRIPTIONS, RETRY, CLOSED, FAILED or EPOCH.

    `retry_at_ns`: monotonic time at which to return RETRY, once everything now in the ring is sent.
    """
    state = sender_state_at(sender.state)
    ring_state = ring_state_at(ring.state)
    while True:
        events = _events(sender)
        closing = load_shared(ring_state, "closing")
        if events < 0 or closing == ENDING:
            return CLOSED
        now = monotonic_ns()
        if now >= state.heartbeat_at:
            state.heartbeat_at = now + sender.heartbeat_ns
            # A full line needs no heartbeat: the blocks in its queue carry the sequences.
            _send_heartbeat(sender, encoder.origin, numpy.int64(0), numpy.int64(DONTWAIT))
        is_empty = load_shared(ring_state, "tail") == ring_state.head
        if is_empty:
            state.passes += 1
            if closing == DRAINING or load_shared(state, "next_epoch") != 0:
                return CLOSED if closing == DRAINING else EPOCH
        if events & POLLIN and (is_empty or now >= state.read_at):
            return SUBSCRIPTIONS
        if not is_empty:
            _linger(sender, ring, encoder)
            if not _drain(sender, ring, encoder):
                return FAILED if state.errno != 0 else CLOSED
            _note_sent(sender)
        if now >= retry_at_ns:
            return RETRY
        if is_empty:
            _sleep(sender, ring, min(state.heartbeat_at, retry_at_ns) - now)
