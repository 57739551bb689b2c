"""The compiled loop of a relay's slice: moves blocks from XSUB to XPUB sockets without the GIL.

A message is moved between sockets, never copied; for readers of shared memory it is also written there, and on
multicast lines it is sent as datagrams. The loop reads the ends of the slice and of all keys from control blocks,
since confirmations report them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy
from numpy.typing import NDArray

from blackbox.block.form.encode import seal_header
from blackbox.block.form.format import (
    CONFIRM_KEY,
    FLAG_CONTROL,
    FLAG_END,
    FLAG_LINE_B,
    FLAG_REFUSED,
    FLAG_SEQUENCES,
    HEADER_BYTES,
    HEARTBEAT_KEY,
    MAX_SEQUENCE,
    NONCE_BYTES,
    PATH_KEY,
    Header,
    block_header_at,
    layout_of,
    read_header,
)
from blackbox.block.form.sampling import is_traced
from blackbox.block.form.validate import Fault, check_body, check_header
from blackbox.feed.routing.key_rule import MAX_KEY_BYTES
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import bytes_at, copy_bytes, inner, int32s_at, int64s_at, load_word
from blackbox.native.memory.records import load_shared
from blackbox.native.system.posix import drain_pipe, monotonic_ns, now_ns, poke
from blackbox.native.tables.name_table import FULL, forget_names, number_of
from blackbox.native.tables.prefix_trie import Trie
from blackbox.services.relay.key_ranges import covers
from blackbox.services.relay.line_state import (
    BODY_AT,
    COPY_AT,
    EVENTS_AT,
    HEADER_AT,
    KEY_AT,
    OWN_HEADER_AT,
    UNWANTED_AT,
    WAITING_AT,
    LineAt,
    LineState,
    SliceRelayAt,
    line_state_at,
    slice_relay_state_at,
)
from blackbox.transport.libzmq import (
    EAGAIN,
    POLLIN,
    SNDMORE,
    is_item_readable,
    msg_close,
    msg_data,
    msg_init_size,
    msg_move,
    msg_send,
    msg_size,
    poll_items,
    socket_events,
    wire_bytes,
    zmq_errno,
)
from blackbox.transport.shared_memory.reader import may_sleep, receive_both, receive_from_socket, wake_up
from blackbox.transport.shared_memory.writer import (
    NO_PLACE,
    await_place,
    find_place,
    has_readers,
    place_address,
    publish_place,
    ring_bells,
    writer_state_at,
)
from blackbox.transport.udp.sender import NO_CASTER, cast_block, group_of

SUBSCRIPTIONS: Final = 1
"""`forward_until` returned because a peer below subscribed or unsubscribed."""
NEWS: Final = 2
"""... because Python must handle a change in the line's state: `answered`, `has_refusal`, `began`, `ended`,
`has_path`, `traced_in_ns`."""
CONNECTIONS: Final = 3
"""... because a connection towards the source was opened or closed."""
RETRY: Final = 4
"""... because its deadline has passed."""
CLOSED: Final = 5
FAILED: Final = 6
"""... because libzmq rejected a message; `errno` of the line's state is the reason."""

ITEMS_OF_LINE: Final = 3
_BURST: Final = 64
"""Most blocks of a line per turn."""
_HEARTBEAT: Final = HEARTBEAT_KEY[1]
_CONFIRM: Final = CONFIRM_KEY[1]
_PATH: Final = PATH_KEY[1]
_SMALLEST_SIZE: Final = len(HEARTBEAT_KEY)
_NONCE_SIZE: Final = len(CONFIRM_KEY) + NONCE_BYTES
_NONE: Final = int(Fault.NONE)
_NO: Final = numpy.int64(0)

_PASS: Final = 0
_KEEP: Final = 1
"""The block is for this relay only."""
_DROP: Final = 2
_DATA: Final = 3
"""The block is forwarded, also to readers of shared memory and of multicast lines."""
_BEAT: Final = 4
"""The block is a heartbeat: forwarded, also to multicast lines."""
_CAST_ENDS: Final = 3
"""Times that the end of an epoch is sent on multicast lines, where it may get lost."""


@inner
def _copy_frame(line: LineAt, message: int) -> bool:
    """Copy a frame out of memory that is valid only until the next block is taken. Return False if out of memory."""
    copy, size = line.scratch + COPY_AT, msg_size(message)
    if msg_init_size(copy, size) != 0:
        return False
    copy_bytes(msg_data(copy), msg_data(message), size)
    msg_move(message, copy)
    msg_close(copy)
    return True


@inner
def _receive(at: SliceRelayAt, line: LineAt, wanted: Trie) -> Any:
    """Receive a block into the scratch. Return 1; 0: none; -1: not a block, dropped; -2: libzmq is ending."""
    key, header = line.scratch + KEY_AT, line.scratch + HEADER_AT
    if at.above.state != 0:
        frames = receive_both(at.above, wanted, line.xsub, key, line.scratch + WAITING_AT)
        if frames == 3 and not (_copy_frame(line, key) and _copy_frame(line, header)):
            return -2
    else:
        frames = receive_from_socket(line.xsub, key)
    if frames <= 0:
        return 0 if frames == 0 else -2
    if frames == 3 and msg_size(header) == HEADER_BYTES:
        return 1
    line_state_at(line.state).no_blocks += 1
    return -1


@inner
def _send(at: SliceRelayAt, line: LineAt, message: int, flags: int) -> bool:
    """Send one frame, waiting for slow subscribers if the socket is set to. Return False if closing, or on an error."""
    state = line_state_at(line.state)
    while msg_send(message, line.xpub, flags) < 0:
        error = zmq_errno()
        if error != EAGAIN:
            state.errno = error
            return False
        state.waits += 1
        slice_state = slice_relay_state_at(at.state)
        if slice_state.tap_bell != 0:
            poke(slice_state.tap_bell, at.state)
        if load_shared(slice_state, "closing") != 0:
            return False
    return True


@inner
def _pass_on(at: SliceRelayAt, line: LineAt) -> bool:
    more = numpy.int64(SNDMORE)
    size = wire_bytes(msg_size(line.scratch + KEY_AT)) + wire_bytes(msg_size(line.scratch + HEADER_AT))
    line_state_at(line.state).wire_bytes += size + wire_bytes(msg_size(line.scratch + BODY_AT))
    passed: bool = (
        _send(at, line, line.scratch + KEY_AT, more)
        and _send(at, line, line.scratch + HEADER_AT, more)
        and _send(at, line, line.scratch + BODY_AT, _NO)
    )
    return passed


@inner
def _share(at: SliceRelayAt, line: LineAt) -> bool:
    """Write the current block to shared memory; wait for slow readers if set to. Return False if closing."""
    state, own_header = line_state_at(line.state), line.scratch + OWN_HEADER_AT
    key, body, scratch = line.scratch + KEY_AT, line.scratch + BODY_AT, line.scratch + EVENTS_AT
    size = msg_size(body)
    place = find_place(at.shared, numpy.int64(NO_PLACE), size)
    while place == NO_PLACE:
        if writer_state_at(at.shared.state).waits == 0:
            state.shared_memory_dropped += read_header(own_header).count
            return True
        if load_shared(slice_relay_state_at(at.state), "closing") != 0:
            return False
        state.waits += 1
        place = await_place(at.shared, numpy.int64(NO_PLACE), size, at.wake_fd, scratch)
    copy_bytes(place_address(at.shared, place), msg_data(body), size)
    publish_place(at.shared, place, size, msg_data(key), msg_size(key), own_header)
    ring_bells(at.shared, scratch)
    return True


@inner
def _share_wanted(at: SliceRelayAt, line: LineAt, readers: NDArray[numpy.int64]) -> bool:
    """Do the same if a reader subscribes to the block's key."""
    key, ranges = line.scratch + KEY_AT, numpy.int64(readers.ctypes.data)
    is_wanted = has_readers(at.shared) and covers(ranges, readers.shape[1], msg_data(key), msg_size(key))
    return not is_wanted or _share(at, line)


@inner
def _cast(at: SliceRelayAt, line: LineAt, is_data: bool) -> None:
    """Send the current block as datagrams: data to the group of its channel, heartbeats to the first one."""
    key, own_header, body = line.scratch + KEY_AT, line.scratch + OWN_HEADER_AT, line.scratch + BODY_AT
    group = group_of(at.caster, msg_data(key), msg_size(key)) if is_data else numpy.int64(0)
    if group < 0:
        line_state_at(line.state).faults += 1
        return
    header = block_header_at(own_header)
    header.flags = header.flags & ~FLAG_LINE_B | (FLAG_LINE_B if line.cast_line else 0)
    seal_header(own_header)
    for _ in range(_CAST_ENDS if header.flags & FLAG_END else 1):
        cast_block(
            at.caster, line.cast_line, group, msg_data(key), msg_size(key), own_header, msg_data(body), msg_size(body)
        )


@inner
def _enter_epoch(line: LineAt, state: LineState, epoch: int) -> None:
    """Reset the counters for another epoch, which may have other keys."""
    if epoch != state.epoch:
        forget_names(line.keys)
        state.keys = 0
        state.epoch = epoch
        state.sequence = 0
        state.began = 1
        state.ended = state.follows = 0


@inner
def _note_end(line: LineAt, state: LineState, name: int, size: int, end: int, count: int) -> None:
    """Store a key's end and its number of messages."""
    number = number_of(line.keys, name, size)
    if number == FULL:
        return
    if number >= state.keys:
        int32s_at(line.sizes, number + 1)[number] = size
        state.keys = number + 1
    int64s_at(line.ends, number + 1)[number] = end
    int64s_at(line.counts, number + 1)[number] = count


@inner
def _align_body(line: LineAt) -> bool:
    """Align the body to 8 bytes for reading. Return False if out of memory."""
    body = line.scratch + BODY_AT
    is_aligned: bool = msg_data(body) & 7 == 0 or _copy_frame(line, body)
    return is_aligned


@inner
def _note_ends(line: LineAt, state: LineState, header: Header) -> bool:
    """Store the ends of the slice and of every key in a control block. Return False if it is unreadable."""
    body, own_header = line.scratch + BODY_AT, line.scratch + OWN_HEADER_AT
    if header.flags & FLAG_CONTROL == 0 or not _align_body(line):
        return False
    data = msg_data(body)
    if check_body(own_header, data, msg_size(body), _NO, _NO, _NO, True) != _NONE:
        return False
    _enter_epoch(line, state, header.epoch)
    state.sequence = header.sequence
    layout = layout_of(header)
    offsets = int32s_at(data + layout.topic_offsets, header.topics + 1)
    ends = int64s_at(data + layout.payloads, 2 * header.count)
    for row in range(header.count):
        start = numpy.int64(offsets[row])
        size = numpy.int64(offsets[row + 1]) - start
        end, count = ends[2 * row], ends[2 * row + 1]
        if size <= MAX_KEY_BYTES and 0 <= count <= end <= MAX_SEQUENCE:
            _note_end(line, state, data + layout.topics + start, size, end, count)
    state.knows_ends = 1
    return True


@inner
def _take_control(line: LineAt, state: LineState, header: Header, key: int, size: int) -> int:
    """Process a control block; return what to do with it."""
    kind = bytes_at(key, 2)[1]
    if kind == _HEARTBEAT and size == _SMALLEST_SIZE:
        if not _note_ends(line, state, header):
            state.faults += 1
            return _PASS
        state.heartbeats += 1
        state.ended = header.flags & FLAG_END
        return _BEAT
    if kind == _CONFIRM:
        ours = size == _NONCE_SIZE and state.nonce != 0 and numpy.int64(load_word(key + 2)) == state.nonce
        if ours and header.flags & FLAG_REFUSED:
            state.has_refusal = 1
            return _KEEP
        if ours and _note_ends(line, state, header):
            state.answered = 1
            state.received = max(state.received, header.sequence)
            state.answer_flags = header.flags
        return _DROP
    if kind == _PATH and size == _SMALLEST_SIZE:
        state.has_path = 1
        return _KEEP
    return _PASS


@inner
def _count_gap(state: LineState, header: Header) -> None:
    """Count messages missing before a block without a key."""
    if state.follows == 1 and state.nonce == 0 and header.previous > state.received:
        state.gaps += header.previous - state.received
    state.follows = 1 if header.flags & FLAG_SEQUENCES == 0 else 0
    state.received = header.sequence + header.count


@inner
def _begin_trace(state: LineState, header: Header) -> None:
    """Note when a traced block was received."""
    state.traced_in_ns = now_ns()
    state.traced_end = header.sequence + header.count
    state.traced_flags = header.flags & FLAG_LINE_B


@inner
def _take(line: LineAt) -> Any:
    """Process the block in the scratch; return what to do with it."""
    state = line_state_at(line.state)
    key, own_header = line.scratch + KEY_AT, line.scratch + OWN_HEADER_AT
    size, name = msg_size(key), msg_data(key)
    copy_bytes(own_header, msg_data(line.scratch + HEADER_AT), numpy.int64(HEADER_BYTES))
    if check_header(own_header, numpy.int64(HEADER_BYTES)) != _NONE:
        state.faults += 1
        return _PASS
    header = read_header(own_header)
    if size >= _SMALLEST_SIZE and bytes_at(name, 1)[0] == 0:
        return _take_control(line, state, header, name, size)
    fate = _PASS
    if header.flags & FLAG_CONTROL == 0 and size <= MAX_KEY_BYTES:
        _enter_epoch(line, state, header.epoch)
        state.ended = state.knows_ends = 0
        fate = _DATA
        if is_traced(header.sequence, header.count, state.trace_mask):
            _begin_trace(state, header)
        if size == 0:
            _count_gap(state, header)
        if state.ranges != 0 and not covers(state.ranges, state.range_count, name, size):
            state.unwanted += header.count
            state.has_unwanted = size + 1
            copy_bytes(line.scratch + UNWANTED_AT, name, size)
    state.messages += header.count
    state.blocks += 1
    state.body_bytes += msg_size(line.scratch + BODY_AT)
    return fate


@inner
def _serve_line(at: SliceRelayAt, line: LineAt, readers: NDArray[numpy.int64], wanted: Trie, now: int) -> Any:
    """Forward the blocks of a line for one turn; return their number, or -NEWS, -CLOSED or -FAILED."""
    state = line_state_at(line.state)
    ended = state.ended
    count = 0
    while count < _BURST:
        received = _receive(at, line, wanted)
        if received == 0:
            break
        if received == -2:
            return -CLOSED
        count += 1
        state.heard_ns = now
        if received < 0:
            continue
        fate = _take(line)
        if state.traced_in_ns != 0:
            state.traced_out_ns = now_ns()  # before it is sent: a receiver may be faster than this thread afterwards
        if fate == _DATA and not _share_wanted(at, line, readers):
            return -CLOSED
        if at.caster != NO_CASTER and fate in (_DATA, _BEAT):
            _cast(at, line, fate == _DATA)
        if fate in (_PASS, _DATA, _BEAT) and not _pass_on(at, line):
            return -FAILED if state.errno != 0 else -CLOSED
        is_news = state.answered | state.began | state.has_path | state.has_refusal | state.traced_in_ns
        if is_news | (state.ended ^ ended) != 0:
            return -NEWS
    return count


@inner
def _sleep(at: SliceRelayAt, wait_ns: int) -> Any:
    """Sleep for a message, at most `wait_ns`; return CONNECTIONS if one was opened or closed, CLOSED, or 0."""
    count = 1 + ITEMS_OF_LINE * at.lines
    if at.above.state != 0 and not may_sleep(at.above):
        return 0
    polled = poll_items(at.polls, count, min(wait_ns // 1_000_000 + 1, 3_600_000))
    if at.above.state != 0:
        wake_up(at.above)
    if polled < 0:
        return CLOSED
    if is_item_readable(at.polls, 0):
        drain_pipe(at.wake_fd, at.first.scratch + EVENTS_AT)
    for place in range(ITEMS_OF_LINE, count, ITEMS_OF_LINE):
        if is_item_readable(at.polls, place):
            return CONNECTIONS
    return 0


@njit(nogil=True, cache=True)
def forward_until(at: SliceRelayAt, readers: NDArray[numpy.int64], wanted: Trie, retry_at_ns: int) -> int:
    """Forward blocks until Python is needed; return SUBSCRIPTIONS, NEWS, CONNECTIONS, RETRY, CLOSED or FAILED.

    `readers`: ranges of the subscriptions of readers of shared memory. `wanted`: prefixes of keys to read from the
    source's memory. `retry_at_ns`: when to return RETRY, by the monotonic clock.
    """
    slice_state = slice_relay_state_at(at.state)
    while load_shared(slice_state, "closing") == 0:
        now = monotonic_ns()
        passed = 0
        events = 0
        has_news = False
        for number in range(at.lines):
            line = at.first if number == 0 else at.second
            served: int = _serve_line(at, line, readers, wanted, now)
            if served < -NEWS:
                return -served
            has_news |= served < 0
            passed += 1 if served < 0 else served
            of_line = socket_events(line.xpub, line.scratch + EVENTS_AT)
            if of_line < 0:
                return CLOSED
            events |= of_line
        if events & POLLIN == 0:
            slice_state.passes += 1
        elif passed == 0 or now >= slice_state.read_at:
            return SUBSCRIPTIONS
        if passed > 0:
            slice_state.sent_at = now
        if has_news:
            return NEWS
        if now >= retry_at_ns:
            return RETRY
        if passed == 0 and now - slice_state.sent_at >= at.spin_ns:
            woken: int = _sleep(at, retry_at_ns - now)
            if woken != 0:
                return woken
    return CLOSED
