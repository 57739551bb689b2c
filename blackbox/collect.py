"""The compiled half of a worker: take blocks off the queue, pick each callback's rows, run the compiled callbacks."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy
from numba import njit
from numpy.typing import NDArray

from blackbox.atoms import (
    call_with_address,
    inner,
    int32s_at,
    int64s_at,
    load_acquire,
    store_release,
)
from blackbox.check import read_header
from blackbox.counters import WorkerCount
from blackbox.envelope import FIRST_ROW, TOPICS_AT, TS_RECV, VERSION, WORDS, WORDS_AT
from blackbox.lag_histogram import record
from blackbox.layout import FLAG_FIXED, body_layout
from blackbox.slice_memory import IDLE_MS, STOPPING, TERMINATE
from blackbox.zmqlib import (
    DONTWAIT,
    EAGAIN,
    EVENTS_SCRATCH_WORDS,
    MESSAGE_BYTES,
    close_messages,
    msg_close,
    msg_data,
    msg_init,
    msg_move,
    msg_recv,
    msg_size,
    now_ns,
    wait_readable,
    zmq_errno,
)

# Why `collect` returned to Python.
DELIVER: Final = 1
"""There are batches for Python callbacks."""
SWITCH: Final = 2
"""The next block was matched with another version of the table: `state[NEXT_VERSION]`."""
ENDED: Final = 3
"""The slice thread has said that nothing follows, or the end is now."""
GROW: Final = 4
"""`rows` must hold `state[ROWS_NEEDED]` for the block at hand."""
FAILED: Final = 5
"""libzmq refused something; `state[ERRNO]` says what."""

NEXT_VERSION: Final = 0
RAISED_BY: Final = 1
"""The compiled callback that raised last, plus 1; 0: none."""
ROWS_NEEDED: Final = 2
ERRNO: Final = 3
PENDING: Final = 4
"""1: a block has been received that no burst holds yet."""
BLOCKS: Final = 5
"""Blocks in the burst."""
DELIVERIES: Final = 6
BURST: Final = 7
"""Address of the burst: Python puts a fresh one there when it keeps the old."""
LAST: Final = 8
"""1: the slice thread has said that nothing follows."""
STATE_WORDS: Final = 9

BURST_BLOCKS: Final = 32
SLOT_BYTES: Final = 2 * MESSAGE_BYTES
"""A burst's slot: the envelope's and the body's message."""

# Words of a delivery: which block of the burst, which callback, its rows (start < 0: all from -start - 1 on).
DELIVERY_WORDS: Final = 4

# Words that a compiled callback gets.
ROWS_AT: Final = 0
ROW_COUNT: Final = 1
COUNT: Final = 2
BODY: Final = 3
TOPIC_COUNT: Final = 4
NUMBERS_AT: Final = 5
TOPIC_BYTES: Final = 6
PAYLOAD_BYTES: Final = 7
STRIDE: Final = 8
TS_OUT: Final = 9
TS_RECV_AT: Final = 10
SEQUENCE: Final = 11
STATE_AT: Final = 12
ERROR: Final = 13
CALL_WORDS: Final = 16


class WorkerAt(NamedTuple):
    """What a worker owns, as addresses."""

    dealer: int
    slice_words: int
    counters: int
    histogram: int
    state: int
    scratch: int
    deliveries: int
    max_deliveries: int
    rows: int
    max_rows: int
    identity: int
    counts: int
    touched: int
    call: int
    smallest_lag: int


class WorkerTableAt(NamedTuple):
    """One worker's part of a table: the callbacks of each match set, and where compiled ones and their states are."""

    version: int
    starts: int
    sets: int
    callbacks: int
    functions: int
    states: int
    total: int


_WORKER_BLOCKS = int(WorkerCount.BLOCKS)
_DELIVERED = int(WorkerCount.DELIVERED)
_BATCHES = int(WorkerCount.BATCHES)
_BUSY_SINCE = int(WorkerCount.BUSY_SINCE)
_SIZE = int(WorkerCount.SIZE)
SCRATCH_WORDS: Final = EVENTS_SCRATCH_WORDS + SLOT_BYTES // 8
SLOT_AT: Final = EVENTS_SCRATCH_WORDS * 8


@inner
def _receive(at: WorkerAt) -> int:
    """Receive envelope and body into scratch: 1; 0: nothing there; ENDED; -1: libzmq failed."""
    envelope = at.scratch + SLOT_AT
    if msg_recv(envelope, at.dealer, DONTWAIT) < 0:
        return 0 if zmq_errno() == EAGAIN else -1
    if msg_recv(envelope + MESSAGE_BYTES, at.dealer, DONTWAIT) < 0:
        return -1
    if msg_size(envelope) == 0:
        return ENDED
    store_release(at.counters + 8 * _WORKER_BLOCKS, int64s_at(at.counters, _SIZE)[_WORKER_BLOCKS] + 1)
    return 1


@inner
def _only_set(sets: NDArray[numpy.int32]) -> int:
    """The match set that all topics of a block share, or -1."""
    for topic in range(1, len(sets)):
        if sets[topic] != sets[0]:
            return -1
    return numpy.int64(sets[0])


@inner
def _select(at: WorkerAt, table: WorkerTableAt, slot: int, rows_used: int) -> int:
    """List the rows of every callback that wants part of the block in `slot`, as deliveries.

    Returns how many row numbers are in use now; -1: the rows do not fit, `state[ROWS_NEEDED]` would.
    """
    burst = int64s_at(at.state, STATE_WORDS)[BURST]
    envelope = msg_data(burst + SLOT_BYTES * slot)
    body = msg_data(burst + SLOT_BYTES * slot + MESSAGE_BYTES)
    header = read_header(envelope)
    first = int64s_at(envelope + WORDS_AT, WORDS)[FIRST_ROW]
    sets = int32s_at(envelope + TOPICS_AT + 4 * header.topics, header.topics)
    starts = int64s_at(table.starts, table.sets + 1)
    callbacks = int32s_at(table.callbacks, table.total)
    state = int64s_at(at.state, STATE_WORDS)
    made = state[DELIVERIES]
    one_set = _only_set(sets)
    if one_set >= 0:
        for place in range(starts[one_set], starts[one_set + 1]):
            delivery = int64s_at(at.deliveries + 8 * DELIVERY_WORDS * made, DELIVERY_WORDS)
            delivery[0] = slot
            delivery[1] = callbacks[place]
            delivery[2] = -first - 1
            delivery[3] = header.count
            made += 1
        state[DELIVERIES] = made
        return rows_used
    topic_index = int32s_at(body + 8 * header.count, header.count)
    counts = int64s_at(at.counts, table.total + 1)
    touched = int32s_at(at.touched, table.total + 1)
    reached = 0
    needed = 0
    for row in range(first, header.count):
        which = sets[topic_index[row]]
        for place in range(starts[which], starts[which + 1]):
            callback = callbacks[place]
            if counts[callback] == 0:
                touched[reached] = callback
                reached += 1
            counts[callback] += 1
            needed += 1
    fits = rows_used + needed <= at.max_rows
    place_of = rows_used
    for i in range(reached):
        callback = touched[i]
        size = counts[callback]
        counts[callback] = place_of if fits else 0
        if fits:
            delivery = int64s_at(at.deliveries + 8 * DELIVERY_WORDS * (made + i), DELIVERY_WORDS)
            delivery[0] = slot
            delivery[1] = callback
            delivery[2] = place_of
            delivery[3] = place_of + size
        place_of += size
    if not fits:
        state[ROWS_NEEDED] = needed
        return -1
    rows = int32s_at(at.rows, at.max_rows)
    for row in range(first, header.count):
        which = sets[topic_index[row]]
        for place in range(starts[which], starts[which + 1]):
            callback = callbacks[place]
            rows[counts[callback]] = row
            counts[callback] += 1
    for i in range(reached):
        counts[touched[i]] = 0
    state[DELIVERIES] = made + reached
    return place_of


@inner
def _call(at: WorkerAt, table: WorkerTableAt, delivery: int) -> None:
    """Run a compiled callback on its rows."""
    words = int64s_at(delivery, DELIVERY_WORDS)
    slot = int64s_at(at.state, STATE_WORDS)[BURST] + SLOT_BYTES * words[0]
    envelope = msg_data(slot)
    body_message = slot + MESSAGE_BYTES
    header = read_header(envelope)
    fixed = header.flags & FLAG_FIXED != 0
    layout = body_layout(header.count, header.topics, header.topic_bytes, 0, fixed)
    call = int64s_at(at.call, CALL_WORDS)
    if words[2] < 0:
        call[ROWS_AT] = at.identity + 4 * (-words[2] - 1)
        call[ROW_COUNT] = words[3] + words[2] + 1
    else:
        call[ROWS_AT] = at.rows + 4 * words[2]
        call[ROW_COUNT] = words[3] - words[2]
    call[COUNT] = header.count
    call[BODY] = msg_data(body_message)
    call[TOPIC_COUNT] = header.topics
    call[NUMBERS_AT] = envelope + TOPICS_AT
    call[TOPIC_BYTES] = header.topic_bytes
    call[PAYLOAD_BYTES] = msg_size(body_message) - layout.payloads
    call[STRIDE] = header.stride if fixed else -1
    call[TS_OUT] = header.ts_out
    call[TS_RECV_AT] = int64s_at(envelope + WORDS_AT, WORDS)[TS_RECV]
    call[SEQUENCE] = header.sequence
    call[STATE_AT] = int64s_at(table.states, words[1] + 1)[words[1]]
    call[ERROR] = 0
    call_with_address(int64s_at(table.functions, words[1] + 1)[words[1]], at.call)
    if call[ERROR] != 0:
        int64s_at(at.state, STATE_WORDS)[RAISED_BY] = words[1] + 1
        return
    counters = int64s_at(at.counters, _SIZE)
    counters[_DELIVERED] += call[ROW_COUNT]
    counters[_BATCHES] += 1


@inner
def _note_lag(at: WorkerAt, slot: int) -> None:
    envelope = msg_data(int64s_at(at.state, STATE_WORDS)[BURST] + SLOT_BYTES * slot)
    header = read_header(envelope)
    first = int64s_at(envelope + WORDS_AT, WORDS)[FIRST_ROW]
    ahead = min(0, int64s_at(at.smallest_lag, 1)[0])
    record(at.histogram, now_ns() - header.ts_out - ahead, header.count - first)


@inner
def _take(at: WorkerAt, table: WorkerTableAt, rows_used: int) -> int:
    """Put the pending block into the burst: the rows then in use; -1: it waits for the next burst, SWITCH or GROW."""
    state = int64s_at(at.state, STATE_WORDS)
    envelope = msg_data(at.scratch + SLOT_AT)
    state[NEXT_VERSION] = int64s_at(envelope + WORDS_AT, WORDS)[VERSION]
    room = at.max_deliveries - state[DELIVERIES] >= table.total
    if state[NEXT_VERSION] != table.version or state[BLOCKS] == BURST_BLOCKS or not room:
        return -1
    slot = state[BURST] + SLOT_BYTES * state[BLOCKS]
    for part in range(0, SLOT_BYTES, MESSAGE_BYTES):
        msg_init(slot + part)
        msg_move(slot + part, at.scratch + SLOT_AT + part)
    before = state[DELIVERIES]
    used = _select(at, table, state[BLOCKS], rows_used)
    if used < 0:
        for part in range(0, SLOT_BYTES, MESSAGE_BYTES):
            msg_move(at.scratch + SLOT_AT + part, slot + part)
            msg_close(slot + part)
        state[DELIVERIES] = before
        return -1
    _note_lag(at, state[BLOCKS])
    state[BLOCKS] += 1
    state[PENDING] = 0
    state[ROWS_NEEDED] = 0
    return used


@inner
def _run_compiled(at: WorkerAt, table: WorkerTableAt) -> int:
    """Run the compiled callbacks of the burst; leave the deliveries of Python ones and return their number."""
    state = int64s_at(at.state, STATE_WORDS)
    functions = int64s_at(table.functions, table.total + 1)
    left = 0
    for i in range(state[DELIVERIES]):
        delivery = at.deliveries + 8 * DELIVERY_WORDS * i
        callback = int64s_at(delivery, DELIVERY_WORDS)[1]
        if functions[callback] == 0:
            kept = int64s_at(at.deliveries + 8 * DELIVERY_WORDS * left, DELIVERY_WORDS)
            for word in range(DELIVERY_WORDS):
                kept[word] = int64s_at(delivery, DELIVERY_WORDS)[word]
            left += 1
        elif functions[callback] > 0:
            store_release(at.counters + 8 * _BUSY_SINCE, now_ns())
            _call(at, table, delivery)
    store_release(at.counters + 8 * _BUSY_SINCE, 0)
    state[DELIVERIES] = left
    return left


@inner
def _fill_burst(at: WorkerAt, table: WorkerTableAt) -> int:
    """Take off the queue what is there, up to a burst: the last `_receive`; 1 when a block is left pending."""
    state = int64s_at(at.state, STATE_WORDS)
    state[BLOCKS] = 0
    state[DELIVERIES] = 0
    rows_used = numpy.int64(0)
    while True:
        if state[PENDING] == 0:
            status = _receive(at)
            if status != 1:
                return status
            state[PENDING] = 1
        rows_used = _take(at, table, rows_used)
        if rows_used < 0:
            return 1


@njit(nogil=True, cache=True)
def collect(at: WorkerAt, table: WorkerTableAt) -> int:
    """Work until Python is needed; returns why. Bursts without Python callbacks never come back.

    A burst is what was in the queue at once, up to BURST_BLOCKS: its last batch for a callback is that callback's
    `end_of_batch`.
    """
    state = int64s_at(at.state, STATE_WORDS)
    while load_acquire(at.slice_words + 8 * STOPPING) != TERMINATE and state[LAST] == 0:
        status = _fill_burst(at, table)
        # An end mark that came behind the burst is kept until the burst has been delivered.
        state[LAST] = status == ENDED
        if state[BLOCKS] > 0:
            if _run_compiled(at, table) > 0 or state[RAISED_BY] != 0:
                return DELIVER
            close_messages(state[BURST], 2 * state[BLOCKS])
        if status < 0:
            state[ERRNO] = zmq_errno()
            return FAILED
        if status == 0:
            if wait_readable(at.dealer, numpy.int64(0), numpy.int64(-1), numpy.int64(IDLE_MS), at.scratch) < 0:
                return ENDED
        elif status == 1 and state[NEXT_VERSION] != table.version:
            return SWITCH
        elif status == 1 and state[BLOCKS] == 0:
            return GROW
    return ENDED
