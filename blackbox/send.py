"""The compiled loop of a line thread: ring records in, blocks out on the slice's XPUB sockets, no GIL."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy
from numba import njit
from numpy.typing import NDArray

from blackbox.atoms import (
    copy_bytes,
    fence,
    inner,
    int32s_at,
    int64s_at,
    load_acquire,
    store_release,
)
from blackbox.encode import (
    Distinct,
    Rows,
    TopicTable,
    finish_header,
    plan_block,
    plan_bytes,
    plan_sequences,
    write_body,
    write_sequences,
    write_template,
)
from blackbox.feeder import Selection, Target, group_by_key
from blackbox.layout import FLAG_CONTROL, FLAG_LINE_B, HEADER_BYTES, HEARTBEAT_KEY
from blackbox.ring import (
    BLOCK,
    BODIES_IN,
    BODIES_OUT,
    CLOSING,
    HEAD,
    PAD,
    RECORD_BYTES,
    SKIP,
    SLEEPING,
    TAIL,
    WAITING,
)
from blackbox.zmqlib import (
    DONTWAIT,
    EAGAIN,
    EVENTS_SCRATCH_WORDS,
    MESSAGE_BYTES,
    POLLIN,
    SNDMORE,
    close_messages,
    msg_close,
    msg_copy,
    msg_data,
    msg_init,
    msg_init_size,
    msg_recv,
    msg_send,
    msg_size,
    now_ns,
    poke,
    sleep_microseconds,
    socket_events,
    wait_readable,
    zmq_errno,
)

SUBSCRIPTIONS: Final = 1
"""`run_line` returned because a subscriber said something."""
RETRY: Final = 2
"""`run_line` returned because it was asked to by then."""
CLOSED: Final = 3
"""`run_line` returned because the ring is closing and empty, or must end now."""
FAILED: Final = 4
"""`run_line` returned because libzmq refused a message; `counters[ERRNO]` says why."""

MESSAGES: Final = 0
BLOCKS: Final = 1
BYTES: Final = 2
UNWANTED: Final = 3
WAITS: Final = 4
ERRNO: Final = 5
HANDLED: Final = 6
"""Messages that were sent, or not wanted, but are still in the ring: the pass that they belong to was given up."""
COUNTERS: Final = 8

_LONGEST_WISH: Final = 1024
_HEARTBEAT = numpy.frombuffer(HEARTBEAT_KEY, numpy.uint8)

GATHER_ROWS: Final = 16_384
"""Single messages taken out of the ring in one pass."""


class Sender(NamedTuple):
    """What a line thread owns. Sockets are addresses; `socket_b` is 0 without a second line."""

    socket_a: int
    socket_b: int
    wake_fd: int
    room_fd: int
    linger_ns: int
    heartbeat_ns: int
    keys: TopicTable
    key_of_topic: NDArray[numpy.int32]
    next_sequence: NDArray[numpy.int64]
    wanted: NDArray[numpy.uint8]
    words: NDArray[numpy.int64]
    counters: NDArray[numpy.int64]
    starts: NDArray[numpy.int64]
    lengths: NDArray[numpy.int32]
    ts_event: NDArray[numpy.int64]
    scratch: NDArray[numpy.int64]


KEYS: Final = 0
"""`Sender.words[KEYS]`: how many keys there are now; written by publishing threads."""
HEARTBEAT_AT: Final = 1
"""When the next heartbeat is due, ns."""
SENT_AT: Final = 2
"""When the ring was last sent empty, ns."""
SENDER_WORDS: Final = 3
_KEY_AT: Final = EVENTS_SCRATCH_WORDS * 8
_HEADER_AT: Final = _KEY_AT + MESSAGE_BYTES
_COPY_AT: Final = _HEADER_AT + MESSAGE_BYTES
_BODY_AT: Final = _COPY_AT + MESSAGE_BYTES
_TEMPLATE_AT: Final = _BODY_AT + MESSAGE_BYTES
SCRATCH_WORDS: Final = (_TEMPLATE_AT + HEADER_BYTES) // 8
"""int64 words of `Sender.scratch`: poll items, four messages, a header."""


@inner
def _send_frame(sender: Sender, target: Target, socket: int, message: int, flags: int) -> bool:
    """Send one frame, waiting for slow subscribers where the socket was told to. False: closing, or an error."""
    while msg_send(message, socket, flags) < 0:
        error = zmq_errno()
        if error == EAGAIN:
            sender.counters[WAITS] += 1
        else:
            sender.counters[ERRNO] = error
            return False
        if load_acquire(target.words.ctypes.data + 8 * CLOSING) == 2:
            return False
    return True


@inner
def _send_on(
    sender: Sender,
    target: Target,
    socket: int,
    key: int,
    header: int,
    body: int,
    sequence: int,
    flags: int,
) -> bool:
    key_message = sender.scratch.ctypes.data + _KEY_AT
    header_message = sender.scratch.ctypes.data + _HEADER_AT
    size = numpy.int64(sender.keys.sizes[key])
    msg_init_size(key_message, size)
    copy_bytes(msg_data(key_message), sender.keys.text.ctypes.data + sender.keys.offsets[key], size)
    # Subscribers that have fallen behind are waited for here, before the block is stamped: waiting is not lag.
    if not _send_frame(sender, target, socket, key_message, numpy.int64(SNDMORE)):
        msg_close(key_message)
        return False
    finish_header(header, sequence, now_ns(), flags)
    msg_init_size(header_message, HEADER_BYTES)
    copy_bytes(msg_data(header_message), header, HEADER_BYTES)
    if not _send_frame(sender, target, socket, header_message, numpy.int64(SNDMORE)):
        msg_close(header_message)
        return False
    return _send_frame(sender, target, socket, body, numpy.int64(0))


@inner
def _send_block(sender: Sender, target: Target, key: int, header: int, body: int) -> bool:
    """Send a block on every line and count it. Takes the body message over."""
    count = numpy.int64(int32s_at(header, 16)[3])
    body_bytes = numpy.int64(int32s_at(header, 16)[12])
    sequence = sender.next_sequence[key]
    sender.next_sequence[key] = sequence + count
    sent = True
    if sender.wanted[key]:
        if sender.socket_b != 0:
            second = sender.scratch.ctypes.data + _COPY_AT
            msg_init(second)
            msg_copy(second, body)
            sent = _send_on(sender, target, sender.socket_a, key, header, second, sequence, numpy.int64(0))
            msg_close(second)
        if sent:
            socket = sender.socket_b if sender.socket_b != 0 else sender.socket_a
            flags = numpy.int64(FLAG_LINE_B if sender.socket_b != 0 else 0)
            sent = _send_on(sender, target, socket, key, header, body, sequence, flags)
        if sent:
            sender.counters[MESSAGES] += count
            sender.counters[BLOCKS] += 1
            sender.counters[BYTES] += body_bytes
    else:
        sender.counters[UNWANTED] += count
    msg_close(body)
    return sent


@njit(nogil=True, cache=True)
def _gather(sender: Sender, target: Target, selection: Selection, head: int, tail: int) -> tuple[int, int]:
    """List the single messages from `head` on, up to anything else; returns the new head and their number."""
    memory = target.memory.ctypes.data
    taken = 0
    while head != tail and taken < GATHER_ROWS:
        halves = int32s_at(memory + head, 2)
        topic = numpy.int64(halves[1]) & 0xFFFFFFFF
        if topic == PAD:
            head = 0
            continue
        if topic >= SKIP:
            break
        length = halves[0]
        selection.order[taken] = taken
        selection.topics[taken] = topic
        sender.starts[taken] = head + RECORD_BYTES
        sender.lengths[taken] = length
        sender.ts_event[taken] = int64s_at(memory + head + 8, 1)[0]
        head += (RECORD_BYTES + numpy.int64(length) + 7) & -8
        taken += 1
    return head, taken


@inner
def _send_gathered(
    sender: Sender,
    target: Target,
    selection: Selection,
    taken: int,
    table: TopicTable,
    distinct: Distinct,
) -> bool:
    groups = group_by_key(selection, taken, sender.key_of_topic, sender.words[KEYS])
    rows = Rows(
        sender.ts_event.ctypes.data,
        target.memory.ctypes.data,
        sender.starts.ctypes.data,
        sender.lengths.ctypes.data,
        numpy.int64(0),
    )
    header = sender.scratch.ctypes.data + _TEMPLATE_AT
    body_message = sender.scratch.ctypes.data + _BODY_AT
    at = 0
    for group in range(groups):
        key = numpy.int64(selection.keys[group])
        stop = numpy.int64(selection.stops[group])
        if not sender.wanted[key]:
            sender.next_sequence[key] += stop - at
            sender.counters[UNWANTED] += stop - at
            at = stop
            continue
        while at < stop:
            plan = plan_block(
                rows,
                selection.order,
                selection.topics,
                at,
                stop,
                target.block_bytes,
                table,
                distinct,
            )
            if msg_init_size(body_message, plan_bytes(plan)) != 0:
                sender.counters[ERRNO] = zmq_errno()
                return False
            place = msg_data(body_message)
            write_body(place, plan, rows, selection.order, selection.topics, table, distinct)
            write_template(
                header,
                plan,
                place,
                target.checksum,
                target.schema_id,
                target.slice_id,
                target.epoch,
            )
            if not _send_block(sender, target, key, header, body_message):
                return False
            at = plan.stop
    return True


@inner
def _release(target: Target, room_fd: int, head: int) -> None:
    words = target.words.ctypes.data
    store_release(words + 8 * HEAD, head)
    fence()
    if load_acquire(words + 8 * WAITING) == 0:
        return
    # A writer is woken when half the ring and half the bodies are gone, not for each block: it then fills them at once.
    filled = load_acquire(words + 8 * TAIL) - head
    if filled < 0:
        filled += len(target.memory)
    pending = load_acquire(words + 8 * BODIES_IN) - target.words[BODIES_OUT]
    if 2 * filled <= len(target.memory) and 2 * pending <= target.bodies_limit:
        store_release(words + 8 * WAITING, 0)
        poke(room_fd, words)


@inner
def _drain(sender: Sender, target: Target, selection: Selection, table: TopicTable, distinct: Distinct) -> bool:
    """Send what is in the ring now. False: closing, or an error."""
    words = target.words.ctypes.data
    memory = target.memory.ctypes.data
    head = target.words[HEAD]
    tail = load_acquire(words + 8 * TAIL)
    while head != tail:
        head, taken = _gather(sender, target, selection, head, tail)
        if taken > 0:
            before = sender.counters[MESSAGES] + sender.counters[UNWANTED]
            if not _send_gathered(sender, target, selection, taken, table, distinct):
                sender.counters[HANDLED] = sender.counters[MESSAGES] + sender.counters[UNWANTED] - before
                return False
        elif head != tail:
            halves = int32s_at(memory + head, 2)
            topic = numpy.int64(halves[1]) & 0xFFFFFFFF
            key = int64s_at(memory + head + 8, 1)[0]
            if topic == SKIP:
                sender.next_sequence[key] += abs(numpy.int64(halves[0]))
                sender.counters[UNWANTED] += max(0, halves[0])
                head += RECORD_BYTES
            elif topic == BLOCK:
                header = memory + head + RECORD_BYTES
                body_bytes = numpy.int64(int32s_at(header, 16)[12])
                if not _send_block(sender, target, key, header, header + HEADER_BYTES):
                    return False
                store_release(words + 8 * BODIES_OUT, target.words[BODIES_OUT] + body_bytes)
                head += RECORD_BYTES + HEADER_BYTES + MESSAGE_BYTES
        _release(target, sender.room_fd, head)
    return True


@inner
def _linger(sender: Sender, target: Target) -> None:
    """Let a block fill, for at most `linger_ns` since the one before: what comes after a silence goes at once."""
    words = target.words.ctypes.data
    # Encoded blocks do not grow any more.
    while load_acquire(words + 8 * CLOSING) == 0 and load_acquire(words + 8 * BODIES_IN) == target.words[BODIES_OUT]:
        left_ns = sender.words[SENT_AT] + sender.linger_ns - now_ns()
        filled = load_acquire(words + 8 * TAIL) - target.words[HEAD]
        if left_ns <= 0 or left_ns > sender.linger_ns or filled < 0 or filled >= target.block_bytes:
            return
        sleep_microseconds(min(100, left_ns // 1000 + 1))


@njit(nogil=True, cache=True)
def hear(sender: Sender, line: int, target: int, room: int) -> int:
    """Read what subscribers said, as records of a uint32 size and that many bytes; returns bytes used, of `room`.

    All at once, so that a line thread needs the interpreter once, however busy others keep it.
    """
    socket = sender.socket_b if line else sender.socket_a
    message = sender.scratch.ctypes.data + _BODY_AT
    msg_init(message)
    used = 0
    while room - used >= _LONGEST_WISH and msg_recv(message, socket, DONTWAIT) >= 0:
        size = msg_size(message)
        if size <= _LONGEST_WISH - 4:  # a longer one matches no key
            int32s_at(target + used, 1)[0] = size
            copy_bytes(target + used + 4, msg_data(message), size)
            used += 4 + size
    msg_close(message)
    return used


@njit(nogil=True, cache=True)
def tell(sender: Sender, target: Target, line: int, key_at: int, key_size: int, flags: int, wait: int) -> bool:
    """Send a control block with the next sequence of every key; False when a subscriber has no room for it now.

    `wait` is 0, then the socket's own send timeout holds, or DONTWAIT.
    """
    socket = sender.socket_b if line else sender.socket_a
    scratch = sender.scratch.ctypes.data
    key, header, body = scratch + _KEY_AT, scratch + _HEADER_AT, scratch + _BODY_AT
    plan = plan_sequences(sender.keys, load_acquire(sender.words.ctypes.data + 8 * KEYS))
    if msg_init_size(body, plan_bytes(plan)) != 0:
        sender.counters[ERRNO] = zmq_errno()
        return False
    write_sequences(msg_data(body), plan, sender.keys, sender.next_sequence)
    msg_init_size(header, HEADER_BYTES)
    write_template(scratch + _TEMPLATE_AT, plan, msg_data(body), True, 0, target.slice_id, target.epoch)
    finish_header(scratch + _TEMPLATE_AT, 0, now_ns(), flags | FLAG_CONTROL | (FLAG_LINE_B if line else 0))
    copy_bytes(msg_data(header), scratch + _TEMPLATE_AT, HEADER_BYTES)
    msg_init_size(key, key_size)
    copy_bytes(msg_data(key), key_at, key_size)
    sent = (
        msg_send(key, socket, SNDMORE | wait) >= 0
        and msg_send(header, socket, SNDMORE | wait) >= 0
        and msg_send(body, socket, wait) >= 0
    )
    if not sent:
        error = zmq_errno()
        if error != EAGAIN:
            sender.counters[ERRNO] = error
        close_messages(key, 4)
    return sent


@inner
def _beat(sender: Sender, target: Target) -> None:
    """Send a heartbeat on every line. Where there is no room for it, what fills the line tells as much."""
    key = _HEARTBEAT.ctypes.data
    for line in range(2 if sender.socket_b != 0 else 1):
        tell(sender, target, line, key, numpy.int64(len(_HEARTBEAT)), numpy.int64(0), numpy.int64(DONTWAIT))


@njit(nogil=True, cache=True)
def discard(target: Target) -> int:
    """Free the blocks that were never sent; returns how many messages the ring still held."""
    memory = target.memory.ctypes.data
    head = target.words[HEAD]
    tail = target.words[TAIL]
    messages = 0
    while head != tail:
        halves = int32s_at(memory + head, 2)
        topic = numpy.int64(halves[1]) & 0xFFFFFFFF
        if topic == PAD:
            head = 0
        elif topic == BLOCK:
            header = memory + head + RECORD_BYTES
            messages += int32s_at(header, 16)[3]
            msg_close(header + HEADER_BYTES)
            head += RECORD_BYTES + HEADER_BYTES + MESSAGE_BYTES
        elif topic == SKIP:
            head += RECORD_BYTES
        else:
            messages += 1
            head += (RECORD_BYTES + numpy.int64(halves[0]) + 7) & -8
    target.words[HEAD] = tail
    return messages


@njit(nogil=True, cache=True)
def run_line(
    sender: Sender,
    target: Target,
    selection: Selection,
    table: TopicTable,
    distinct: Distinct,
    retry_at_ns: int,
) -> int:
    """Send, heartbeats too, until Python is needed; returns why: SUBSCRIPTIONS, RETRY, CLOSED or FAILED."""
    words = target.words.ctypes.data
    scratch = sender.scratch.ctypes.data
    while True:
        events_a = socket_events(sender.socket_a, scratch)
        events_b = socket_events(sender.socket_b, scratch) if sender.socket_b != 0 else 0
        if events_a < 0 or events_b < 0:
            return CLOSED
        if (events_a | events_b) & POLLIN:
            return SUBSCRIPTIONS
        closing = load_acquire(words + 8 * CLOSING)
        if closing == 2:
            return CLOSED
        now = now_ns()
        if now >= sender.words[HEARTBEAT_AT]:
            sender.words[HEARTBEAT_AT] = now + sender.heartbeat_ns
            _beat(sender, target)
        if now >= retry_at_ns:
            return RETRY
        if load_acquire(words + 8 * TAIL) != target.words[HEAD]:
            if sender.linger_ns > 0:
                _linger(sender, target)
            if not _drain(sender, target, selection, table, distinct):
                return FAILED if sender.counters[ERRNO] != 0 else CLOSED
            sender.words[SENT_AT] = now_ns()
            continue
        if closing == 1:
            return CLOSED
        store_release(words + 8 * SLEEPING, 1)
        fence()
        if load_acquire(words + 8 * TAIL) == target.words[HEAD]:
            wait_readable(
                sender.socket_a,
                sender.socket_b,
                sender.wake_fd,
                (min(sender.words[HEARTBEAT_AT], retry_at_ns) - now) // 1_000_000 + 1,
                scratch,
            )
        store_release(words + 8 * SLEEPING, 0)
