"""The compiled loop of a slice thread: receive, check, order, match, hand to workers. It never takes the GIL."""

from __future__ import annotations

import numpy
from numba import njit

from blackbox.atoms import bytes_at, copy_bytes, inner, int32s_at, int64s_at, load_acquire
from blackbox.check import Fault, Header, check_block, read_header
from blackbox.conflate import absorb, flush, pending
from blackbox.counters import Count
from blackbox.guards import (
    DUPLICATE,
    HOLD,
    MAKE_ROOM,
    NEW,
    STALE,
    enter_epoch,
    held_key,
    hold,
    is_current,
    judge,
    next_ready,
    note_sequences,
    release,
    settle,
)
from blackbox.handover import any_full, die, dispatch, is_over, lag_of, sink_idle, squawk, stuck_ns
from blackbox.layout import FLAG_CONTROL, FLAG_END, FLAG_LINE_B, HEADER_BYTES, HEARTBEAT_KEY, MAX_KEY_BYTES
from blackbox.sink import AGAIN_MS
from blackbox.slice_memory import (
    ASKED,
    BODY_AT,
    COMMAND,
    CONFIRMED_LINES,
    CONTROL,
    COPY_AT,
    DRAIN_LEFT,
    DRAINED,
    ERRNO,
    FAILED,
    FINISHED_LINES,
    HEAD_AT,
    HEADER_AT,
    HELD_MESSAGE_BYTES,
    HELD_MS,
    IDLE_MS,
    KEY_AT,
    LOOK_AGAIN_AT,
    PARKED,
    POLICY_CONFLATE,
    POLICY_DROP,
    POLICY_TERMINATE,
    STOPPING,
    TERMINATE,
    TERMINATED,
    WORDS_SHARED,
    SliceAt,
    TableAt,
)
from blackbox.topics import FULL, Trie, longest_prefix, number_of
from blackbox.zmqlib import (
    DONTWAIT,
    EAGAIN,
    MESSAGE_BYTES,
    msg_close,
    msg_data,
    msg_init,
    msg_init_size,
    msg_more,
    msg_move,
    msg_recv,
    msg_size,
    now_ns,
    wait_readable,
    zmq_errno,
)

_RECEIVED = int(Count.RECEIVED)
_BLOCKS = int(Count.BLOCKS)
_BODY_BYTES = int(Count.BODY_BYTES)
_MALFORMED = int(Count.MALFORMED)
_STALE_COUNT = int(Count.STALE)
_UNTRACKED = int(Count.UNTRACKED)
_HELD = int(Count.HELD)
_SLOW = int(Count.SLOW)
_LAST_RECEIVED = int(Count.LAST_RECEIVED)
_CONTROL_COUNT = int(Count.CONTROL)
_FAULTS = int(Count.FAULTS)
_BAD_FRAMES = int(Fault.FRAMES)
_BAD_KEY = int(Fault.RESERVED_KEY)
_BAD_SLICE = int(Fault.SLICE)
_COUNTERS = int(Count.SIZE)
# As arguments these are int64 rather than literals: numba would compile the callee once for each literal.
_ALL_KEYS = numpy.int64(-1)
_NO = numpy.int64(0)
_YES = numpy.int64(1)
_END = numpy.int64(numpy.iinfo(numpy.int64).max)


@inner
def _receive(at: SliceAt) -> int:
    """Receive one block into the scratch messages; returns its frames, 0 when there is none, -1 when libzmq failed."""
    message = at.scratch + KEY_AT
    if msg_recv(message, at.sub, DONTWAIT) < 0:
        return 0 if zmq_errno() == EAGAIN else -1
    frames = 1
    while msg_more(message):
        # Frames behind the third overwrite it: the caller refuses the block.
        message = at.scratch + KEY_AT + min(frames, 2) * MESSAGE_BYTES
        if msg_recv(message, at.sub, DONTWAIT) < 0:
            return -1
        frames += 1
    return frames


@inner
def _align(at: SliceAt) -> bool:
    """Copy the header to HEAD; copy the body where libzmq cut it out of a larger buffer, off its alignment."""
    header = at.scratch + HEADER_AT
    copy_bytes(at.scratch + HEAD_AT, msg_data(header), min(msg_size(header), HEADER_BYTES))
    body = at.scratch + BODY_AT
    place = msg_data(body)
    if place & 7 == 0:
        return True
    fresh = at.scratch + COPY_AT
    size = msg_size(body)
    if msg_init_size(fresh, size) != 0:
        return False
    copy_bytes(msg_data(fresh), place, size)
    msg_move(body, fresh)
    msg_close(fresh)
    return True


@inner
def _has_reserved_key(at: SliceAt) -> bool:
    key = at.scratch + KEY_AT
    size = msg_size(key)
    reserved = size > 0 and bytes_at(msg_data(key), 1)[0] == 0
    return reserved or size > MAX_KEY_BYTES


@inner
def _fault(at: SliceAt, frames: int) -> int:
    """What is wrong with the block at hand; 0: nothing."""
    if frames != 3:
        return _BAD_FRAMES
    key, body = at.scratch + KEY_AT, at.scratch + BODY_AT
    fault = check_block(
        at.scratch + HEAD_AT,
        msg_size(at.scratch + HEADER_AT),
        msg_data(body),
        msg_size(body),
        msg_data(key),
        msg_size(key),
    )
    if fault != 0:
        return fault
    header = read_header(at.scratch + HEAD_AT)
    if (header.flags & FLAG_CONTROL != 0) != _has_reserved_key(at):
        return _BAD_KEY
    return _BAD_SLICE if header.slice_id != at.slice_id else 0


@inner
def _deliver(at: SliceAt, table: TableAt, trie: Trie, first_row: int, now: int) -> int:
    """Deliver the block at hand as the slow-subscriber policy has it: 0 or FAILED."""
    head, body_message = at.scratch + HEAD_AT, at.scratch + BODY_AT
    if is_over(at):
        return dispatch(at, table, trie, head, body_message, first_row, now, _NO, _NO)
    counters = int64s_at(at.counters, _COUNTERS)
    header = read_header(head)
    lag = lag_of(at, header.ts_out, now)
    if lag > at.max_lag_ns:
        counters[_SLOW] += 1
        squawk(at, lag)
        if at.policy == POLICY_TERMINATE:
            die(at)
        if at.policy == POLICY_DROP:
            return dispatch(at, table, trie, head, body_message, first_row, now, _NO, _YES)
    if at.policy == POLICY_CONFLATE:
        if lag > at.max_lag_ns or any_full(at):
            return absorb(at, table, trie, head, body_message, first_row, now)
        if pending(at) > 0:
            result = flush(at, table, trie, now)
            if result != 0:
                return result
    return dispatch(at, table, trie, head, body_message, first_row, now, _NO, _NO)


@inner
def _put_aside(at: SliceAt, place: int) -> None:
    held = at.held_messages + HELD_MESSAGE_BYTES * place
    copy_bytes(held, at.scratch + HEAD_AT, HEADER_BYTES)
    msg_init(held + HEADER_BYTES)
    msg_move(held + HEADER_BYTES, at.scratch + BODY_AT)


@inner
def _take_back(at: SliceAt, place: int) -> None:
    held = at.held_messages + HELD_MESSAGE_BYTES * place
    copy_bytes(at.scratch + HEAD_AT, held, HEADER_BYTES)
    msg_move(at.scratch + BODY_AT, held + HEADER_BYTES)
    msg_close(held + HEADER_BYTES)


@inner
def _deliver_held(at: SliceAt, table: TableAt, trie: Trie, key: int, force: int, until: int) -> int:
    """Deliver the held blocks of a key, before sequence `until`, whose turn has come: 0 or FAILED."""
    now = now_ns()
    while True:
        place = next_ready(at.sequences, key, now, force, until)
        if place < 0:
            settle(at.sequences, key, now)
            return 0
        first_row = release(at.sequences, place)
        _take_back(at, place)
        if first_row != DUPLICATE:
            result = _deliver(at, table, trie, first_row, now)
            if result != 0:
                return result


@njit(nogil=True, cache=True)
def deliver_all_held(at: SliceAt, table: TableAt, trie: Trie, force: int) -> int:
    """The same for every key. `force`: all of them, gaps or not."""
    place = 0
    while int64s_at(at.counters, _COUNTERS)[_HELD] > 0:
        found = held_key(at.sequences, place)
        if found < 0:
            break
        place = (found >> 32) + 1
        result = _deliver_held(at, table, trie, found & 0xFFFFFFFF, force, _END)
        if result != 0:
            return result
    return 0


@inner
def _held_first(at: SliceAt, table: TableAt, trie: Trie, key: int, force: int, until: int) -> int:
    """Deliver held blocks (of all keys: _ALL_KEYS) before the one at hand, of sequence `until`, which comes back."""
    _put_aside(at, numpy.int64(PARKED))
    if key == _ALL_KEYS:
        result = deliver_all_held(at, table, trie, force)
    else:
        result = _deliver_held(at, table, trie, key, force, until)
    _take_back(at, numpy.int64(PARKED))
    return result


@njit(nogil=True, cache=True)
def deliver_held_first(at: SliceAt, table: TableAt, trie: Trie, force: int) -> int:
    """As `deliver_all_held`, for when a received block is still being read: it comes back."""
    if int64s_at(at.counters, _COUNTERS)[_HELD] == 0:
        return 0
    return _held_first(at, table, trie, _ALL_KEYS, force, _END)


@inner
def _line_of(at: SliceAt, header: Header) -> int:
    return 1 if header.flags & FLAG_LINE_B and at.sequences.lines > 1 else 0


@inner
def _order(at: SliceAt, table: TableAt, trie: Trie, now: int) -> int:
    """Judge the checked block at hand by its sequence; deliver what may go: 0 or FAILED."""
    counters = int64s_at(at.counters, _COUNTERS)
    header = read_header(at.scratch + HEAD_AT)
    epoch = numpy.int64(header.epoch)
    line = _line_of(at, header)
    key = number_of(at.sequences.keys, msg_data(at.scratch + KEY_AT), msg_size(at.scratch + KEY_AT))
    if key == FULL:
        counters[_UNTRACKED] += header.count
        return _deliver(at, table, trie, _NO, now)
    entered = enter_epoch(at.sequences, epoch, line, now)
    if entered == STALE:
        counters[_STALE_COUNT] += header.count
        return 0
    if entered == NEW and counters[_HELD] > 0:
        result = _held_first(at, table, trie, _ALL_KEYS, _YES, _END)
        if result != 0:
            return result
    verdict = judge(at.sequences, key, line, epoch, header.sequence, header.count, now, _NO)
    if verdict == MAKE_ROOM:
        result = _held_first(at, table, trie, key, _NO, header.sequence)
        if result != 0:
            return result
        verdict = judge(at.sequences, key, line, epoch, header.sequence, header.count, now, _NO)
    if verdict == MAKE_ROOM:
        result = _held_first(at, table, trie, key, _YES, header.sequence)
        if result != 0:
            return result
        verdict = judge(at.sequences, key, line, epoch, header.sequence, header.count, now, _YES)
    result = 0
    if verdict == HOLD:
        _put_aside(at, hold(at.sequences, key, header.sequence, header.count, now))
    elif verdict != DUPLICATE:
        result = _deliver(at, table, trie, verdict, now)
    if result == 0 and counters[_HELD] > 0:
        result = _deliver_held(at, table, trie, key, _NO, _END)
    return result


@inner
def _idle(at: SliceAt, table: TableAt, trie: Trie) -> int:
    """Nothing to receive: release what waited long enough, look for stuck workers, sleep."""
    counters = int64s_at(at.counters, _COUNTERS)
    now = now_ns()
    if counters[_HELD] > 0:
        result = deliver_all_held(at, table, trie, _NO)
        if result != 0:
            return result
    if at.policy == POLICY_CONFLATE and pending(at) > 0 and not any_full(at):
        result = flush(at, table, trie, now)
        if result != 0:
            return result
    for worker in range(at.workers):
        stuck = stuck_ns(at, worker, now)
        if stuck > at.max_lag_ns:
            squawk(at, stuck)
            if at.policy == POLICY_TERMINATE:
                return die(at)
    wait_ms = AGAIN_MS if sink_idle(at) else IDLE_MS
    if now > int64s_at(at.words, WORDS_SHARED)[LOOK_AGAIN_AT]:
        return COMMAND
    if counters[_HELD] > 0 or (at.policy == POLICY_CONFLATE and pending(at) > 0):
        wait_ms = min(wait_ms, HELD_MS)
    if wait_readable(at.sub, _NO, at.wake_fd, numpy.int64(wait_ms), at.scratch) < 0:
        int64s_at(at.words, WORDS_SHARED)[ERRNO] = zmq_errno()
        return FAILED
    return 0


@njit(nogil=True, cache=True)
def finish(at: SliceAt, table: TableAt, trie: Trie) -> None:
    """Deliver, gaps or not, whatever waits in the slice thread; after TERMINATE count it as due."""
    deliver_all_held(at, table, trie, _YES)
    if at.policy == POLICY_CONFLATE and pending(at) > 0:
        flush(at, table, trie, now_ns())


@inner
def _drained(at: SliceAt, table: TableAt, trie: Trie, nothing_left: bool) -> bool:
    """Whether everything received before the stop has been handed on."""
    words = int64s_at(at.words, WORDS_SHARED)
    words[DRAIN_LEFT] -= 1
    if not nothing_left and words[DRAIN_LEFT] > 0:
        return False
    finish(at, table, trie)
    return True


@inner
def _is_heartbeat(at: SliceAt, header: Header) -> bool:
    """Whether the control block at hand is a heartbeat that changes nothing but what the lines have told."""
    key = at.scratch + KEY_AT
    text = bytes_at(msg_data(key), 2)
    named = msg_size(key) == len(HEARTBEAT_KEY) and text[0] == HEARTBEAT_KEY[0] and text[1] == HEARTBEAT_KEY[1]
    words = int64s_at(at.words, WORDS_SHARED)
    ends = header.flags & FLAG_END != 0 or words[FINISHED_LINES] != 0
    line = _line_of(at, header)
    confirmed = words[CONFIRMED_LINES] >> line & 1 != 0
    return named and confirmed and not ends and is_current(at.sequences, numpy.int64(header.epoch))


@inner
def _heartbeat(at: SliceAt, table: TableAt, trie: Trie, keys: Trie, header: Header, now: int) -> int:
    line = _line_of(at, header)
    epoch = numpy.int64(header.epoch)
    enter_epoch(at.sequences, epoch, line, now)
    body = msg_data(at.scratch + BODY_AT)
    note_sequences(at.sequences, keys, at.scratch + HEAD_AT, body, line, epoch, _NO, now)
    return deliver_held_first(at, table, trie, _NO)


@inner
def _accept(at: SliceAt, table: TableAt, trie: Trie, keys: Trie, frames: int) -> int:
    """Check the block at hand, count it and order it: 0, CONTROL or FAILED."""
    counters = int64s_at(at.counters, _COUNTERS)
    now = now_ns()
    if not _align(at):
        int64s_at(at.words, WORDS_SHARED)[ERRNO] = zmq_errno()
        return FAILED
    fault = _fault(at, frames)
    if fault != 0:
        counters[_MALFORMED] += 1
        counters[_FAULTS + fault] += 1
        return 0
    header = read_header(at.scratch + HEAD_AT)
    counters[_LAST_RECEIVED] = now
    if header.flags & FLAG_CONTROL != 0:
        counters[_CONTROL_COUNT] += 1
        return _heartbeat(at, table, trie, keys, header, now) if _is_heartbeat(at, header) else CONTROL
    counters[_RECEIVED] += header.count
    counters[_BLOCKS] += 1
    counters[_BODY_BYTES] += header.body_bytes
    return _order(at, table, trie, now)


@njit(nogil=True, cache=True)
def run_slice(at: SliceAt, table: TableAt, trie: Trie, keys: Trie) -> int:
    """Receive and hand on until Python is needed; returns why: COMMAND, CONTROL, DRAINED, TERMINATED or FAILED."""
    result = numpy.int64(0)
    while result == 0:
        stopping = load_acquire(at.words + 8 * STOPPING)
        if stopping == TERMINATE:
            return TERMINATED
        if load_acquire(at.words + 8 * ASKED) != 0:
            return COMMAND
        frames = _receive(at)
        if frames < 0:
            int64s_at(at.words, WORDS_SHARED)[ERRNO] = zmq_errno()
            return FAILED
        if frames > 0:
            result = _accept(at, table, trie, keys, frames)
        if stopping != 0 and _drained(at, table, trie, frames == 0):
            return DRAINED
        if frames == 0:
            result = _idle(at, table, trie)
    return result


@njit(nogil=True, cache=True)
def renumber(at: SliceAt, trie: Trie) -> None:
    """Find the match set of every known topic anew, after the wishes changed."""
    known = int64s_at(at.topics.used, 1)[0]
    starts = int64s_at(at.topics.starts, known + 1)
    set_of_topic = int32s_at(at.set_of_topic, at.topics.capacity)
    for topic in range(known):
        size = starts[topic + 1] - starts[topic]
        set_of_topic[topic] = longest_prefix(trie, at.topics.text + starts[topic], size)
