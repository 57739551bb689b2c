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
from blackbox.envelope import FIRST_ROW, PART_WORDS, PARTS, TOPICS_AT, TS_RECV, VERSION, WORDS, WORDS_AT, parts_at
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
RAISED: Final = 1
"""How many compiled callbacks raised in the burst: they stand in `raised`, in the order in which they first did."""
ROWS_NEEDED: Final = 2
ERRNO: Final = 3
PENDING: Final = 4
"""1: a block has been received that no burst holds yet."""
BLOCKS: Final = 5
"""Blocks in the burst; what is in it when `collect` is called is freed first."""
DELIVERIES: Final = 6
BURST: Final = 7
"""Address of the burst: Python puts a fresh one there when it keeps the old."""
LAST: Final = 8
"""1: the slice thread has said that nothing follows."""
STATE_WORDS: Final = 9

BURST_BLOCKS: Final = 32
_READ_AHEAD_BYTES: Final = 256
"""Of a message, its time and topic included: of larger ones a callback may well look at the beginning only."""
_LINE_BYTES: Final = 64
"""Of the processor's cache."""
PLACE_WORDS: Final = 3
"""Words of a slot's places: of the envelope, of the body, and the body's size."""
SLOT_BYTES: Final = 2 * MESSAGE_BYTES
"""A burst's slot: the envelope's and the body's message."""

# Words of a delivery: which block of the burst, which callback, where its row numbers are, and how many.
SLOT: Final = 0
CALLBACK: Final = 1
ROWS: Final = 2
COUNT: Final = 3
DELIVERY_WORDS: Final = 4
ALL_ROWS: Final = 0
"""In place of an address: every row that was not delivered before."""
MERGE: Final = -1

# Words that a compiled callback gets.
ROWS_AT: Final = 0
ROW_COUNT: Final = 1
BLOCK_COUNT: Final = 2
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
    places: int
    touched: int
    raised: int
    raises: int
    call: int
    slots: int
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
_ERRORS = int(WorkerCount.ERRORS)
_FAILED = int(WorkerCount.FAILED)
_UNWANTED = int(WorkerCount.UNWANTED)
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
    return 1


@inner
def _add_delivery(at: WorkerAt, slot: int, callback: int, rows: int, count: int) -> None:
    state = int64s_at(at.state, STATE_WORDS)
    delivery = int64s_at(at.deliveries + 8 * DELIVERY_WORDS * state[DELIVERIES], DELIVERY_WORDS)
    delivery[SLOT] = slot
    delivery[CALLBACK] = callback
    delivery[ROWS] = rows
    delivery[COUNT] = count
    state[DELIVERIES] += 1


@inner
def select(at: WorkerAt, table: WorkerTableAt, slot: int, rows_used: int) -> int:
    """List the rows of every callback that wants part of the block in `slot`, as deliveries.

    Rows that are one match set are used where the slice thread has put them. Returns how many of `rows` are in use now;
    -1: what must be merged does not fit, `state[ROWS_NEEDED]` would.
    """
    envelope = msg_data(int64s_at(at.state, STATE_WORDS)[BURST] + SLOT_BYTES * slot)
    header = read_header(envelope)
    words = int64s_at(envelope + WORDS_AT, WORDS)
    wanted = header.count - words[FIRST_ROW]
    starts = int64s_at(table.starts, table.sets + 1)
    callbacks = int32s_at(table.callbacks, table.total)
    if words[PARTS] == 0:
        only = int32s_at(envelope + TOPICS_AT + 4 * header.topics, 1)[0]
        for place in range(starts[only], starts[only + 1]):
            _add_delivery(at, slot, numpy.int64(callbacks[place]), ALL_ROWS, wanted)
        return rows_used
    parts = int32s_at(envelope + parts_at(header.topics), PART_WORDS * words[PARTS])
    rows = envelope + parts_at(header.topics) + 4 * PART_WORDS * words[PARTS]
    counts = int64s_at(at.counts, table.total)
    places = int64s_at(at.places, table.total)
    touched = int32s_at(at.touched, table.total)
    reached = 0
    for part in range(words[PARTS]):
        which, start, stop = parts[PART_WORDS * part], parts[PART_WORDS * part + 1], parts[PART_WORDS * part + 2]
        if start == stop:
            continue
        for place in range(starts[which], starts[which + 1]):
            callback = callbacks[place]
            if counts[callback] == 0:
                touched[reached] = callback
                reached += 1
                places[callback] = rows + 4 * start
            else:
                places[callback] = MERGE
            counts[callback] += stop - start
    merged = _decide(at, touched, reached, wanted)
    if rows_used + merged > at.max_rows:
        int64s_at(at.state, STATE_WORDS)[ROWS_NEEDED] = merged
        for i in range(reached):
            counts[touched[i]] = 0
        return -1
    used = rows_used
    delivered = 0
    for i in range(reached):
        callback = numpy.int64(touched[i])
        count = counts[callback]
        place = places[callback]
        counts[callback] = 0
        delivered += count
        if place == MERGE:
            place = at.rows + 4 * used
            _merge(table, envelope, callback, place)
            used += count
        _add_delivery(at, slot, callback, place, count)
    body = int64s_at(at.state, STATE_WORDS)[BURST] + SLOT_BYTES * slot + MESSAGE_BYTES
    if reached > 1 and 4 * delivered > wanted and msg_size(body) < _READ_AHEAD_BYTES * header.count:
        _read_ahead(msg_data(body), msg_size(body))
    return used


@inner
def _read_ahead(address: int, size: int) -> None:
    """Bring a body near, from end to end: callbacks that take turns on its rows would wait for each by itself.

    Five callbacks that share messages of 100 bytes take 20 instead of 36 ns of each so.
    """
    for place in range(numpy.uint64(0), numpy.uint64(size & -8), numpy.uint64(_LINE_BYTES)):
        load_acquire(address + numpy.int64(place))


@inner
def _decide(at: WorkerAt, touched: NDArray[numpy.int32], reached: int, wanted: int) -> int:
    """Find the callbacks that want all rows, now that they are counted; returns the rows that must be merged."""
    merged = 0
    for i in range(reached):
        callback = touched[i]
        count = int64s_at(at.counts + 8 * callback, 1)[0]
        place = int64s_at(at.places + 8 * callback, 1)
        if count == wanted:
            place[0] = ALL_ROWS
        elif place[0] == MERGE:
            merged += count
    return merged


@inner
def _merge(table: WorkerTableAt, envelope: int, callback: int, target: int) -> None:
    """Write a callback's rows of several match sets, ascending: mark them block-wide, then list the marks."""
    header = read_header(envelope)
    words = int64s_at(envelope + WORDS_AT, WORDS)
    starts = int64s_at(table.starts, table.sets + 1)
    callbacks = int32s_at(table.callbacks, table.total)
    parts = int32s_at(envelope + parts_at(header.topics), PART_WORDS * words[PARTS])
    rows = int32s_at(envelope + parts_at(header.topics) + 4 * PART_WORDS * words[PARTS], header.count)
    out = int32s_at(target, header.count)
    used = 0
    for part in range(words[PARTS]):
        which, start, stop = parts[PART_WORDS * part], parts[PART_WORDS * part + 1], parts[PART_WORDS * part + 2]
        for place in range(starts[which], starts[which + 1]):
            if callbacks[place] == callback:
                used = _merge_part(out, used, rows, start, stop)
                break


@inner
def _merge_part(out: NDArray[numpy.int32], used: int, rows: NDArray[numpy.int32], start: int, stop: int) -> int:
    """Merge ascending `rows[start:stop]` into ascending `out[:used]`, from the back; returns the new length."""
    total = used + stop - start
    left, right = used - 1, stop - 1
    for place in range(total - 1, -1, -1):
        if right < start:
            break
        if left >= 0 and out[left] > rows[right]:
            out[place] = out[left]
            left -= 1
        else:
            out[place] = rows[right]
            right -= 1
    return total


@inner
def _call(at: WorkerAt, table: WorkerTableAt, delivery: int) -> None:
    """Run a compiled callback on its rows."""
    words = int64s_at(delivery, DELIVERY_WORDS)
    slot = int64s_at(at.state, STATE_WORDS)[BURST] + SLOT_BYTES * words[SLOT]
    envelope = msg_data(slot)
    body_message = slot + MESSAGE_BYTES
    header = read_header(envelope)
    fixed = header.flags & FLAG_FIXED != 0
    layout = body_layout(header.count, header.topics, header.topic_bytes, 0, fixed)
    call = int64s_at(at.call, CALL_WORDS)
    first = int64s_at(envelope + WORDS_AT, WORDS)[FIRST_ROW]
    call[ROWS_AT] = at.identity + 4 * first if words[ROWS] == ALL_ROWS else words[ROWS]
    call[ROW_COUNT] = words[COUNT]
    call[BLOCK_COUNT] = header.count
    call[BODY] = msg_data(body_message)
    call[TOPIC_COUNT] = header.topics
    call[NUMBERS_AT] = envelope + TOPICS_AT
    call[TOPIC_BYTES] = header.topic_bytes
    call[PAYLOAD_BYTES] = msg_size(body_message) - layout.payloads
    call[STRIDE] = header.stride if fixed else -1
    call[TS_OUT] = header.ts_out
    call[TS_RECV_AT] = int64s_at(envelope + WORDS_AT, WORDS)[TS_RECV]
    call[SEQUENCE] = header.sequence
    call[STATE_AT] = int64s_at(table.states, words[CALLBACK] + 1)[words[CALLBACK]]
    call[ERROR] = 0
    call_with_address(int64s_at(table.functions, words[CALLBACK] + 1)[words[CALLBACK]], at.call)
    counters = int64s_at(at.counters, _SIZE)
    if call[ERROR] != 0:
        state = int64s_at(at.state, STATE_WORDS)
        raises = int64s_at(at.raises + 8 * words[CALLBACK], 1)
        if raises[0] == 0:
            int32s_at(at.raised + 4 * state[RAISED], 1)[0] = words[CALLBACK]
            state[RAISED] += 1
        raises[0] += 1
        counters[_ERRORS] += 1
        counters[_FAILED] += call[ROW_COUNT]
        return
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
    used = select(at, table, state[BLOCKS], rows_used)
    if used < 0:
        for part in range(0, SLOT_BYTES, MESSAGE_BYTES):
            msg_move(at.scratch + SLOT_AT + part, slot + part)
            msg_close(slot + part)
        state[DELIVERIES] = before
        return -1
    places = int64s_at(at.slots + 8 * PLACE_WORDS * state[BLOCKS], PLACE_WORDS)
    places[0] = msg_data(slot)
    places[1] = msg_data(slot + MESSAGE_BYTES)
    places[2] = msg_size(slot + MESSAGE_BYTES)
    _note_lag(at, state[BLOCKS])
    state[BLOCKS] += 1
    state[PENDING] = 0
    state[ROWS_NEEDED] = 0
    store_release(at.counters + 8 * _WORKER_BLOCKS, int64s_at(at.counters, _SIZE)[_WORKER_BLOCKS] + 1)
    return used


@inner
def run_compiled(at: WorkerAt, table: WorkerTableAt, first: int) -> int:
    """Run the compiled callbacks of the deliveries from `first` on; leave those of Python ones, return their number."""
    state = int64s_at(at.state, STATE_WORDS)
    functions = int64s_at(table.functions, table.total + 1)
    left = first
    for i in range(first, state[DELIVERIES]):
        delivery = at.deliveries + 8 * DELIVERY_WORDS * i
        callback = int64s_at(delivery, DELIVERY_WORDS)[CALLBACK]
        if functions[callback] == 0:
            kept = int64s_at(at.deliveries + 8 * DELIVERY_WORDS * left, DELIVERY_WORDS)
            for word in range(DELIVERY_WORDS):
                kept[word] = int64s_at(delivery, DELIVERY_WORDS)[word]
            left += 1
        elif functions[callback] > 0:
            store_release(at.counters + 8 * _BUSY_SINCE, now_ns())
            _call(at, table, delivery)
        else:
            int64s_at(at.counters, _SIZE)[_UNWANTED] += int64s_at(delivery, DELIVERY_WORDS)[COUNT]
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
        close_messages(state[BURST], 2 * state[BLOCKS])
        status = _fill_burst(at, table)
        # An end mark that came behind the burst is kept until the burst has been delivered.
        state[LAST] = status == ENDED
        taken = state[BLOCKS]
        if taken > 0:
            if run_compiled(at, table, numpy.int64(0)) > 0 or state[RAISED] != 0:
                return DELIVER
            close_messages(state[BURST], 2 * taken)
            state[BLOCKS] = 0
        if status < 0:
            state[ERRNO] = zmq_errno()
            return FAILED
        if status == 0:
            if wait_readable(at.dealer, numpy.int64(0), numpy.int64(-1), numpy.int64(IDLE_MS), at.scratch) < 0:
                return ENDED
        elif status == 1 and state[NEXT_VERSION] != table.version:
            return SWITCH
        elif status == 1 and taken == 0:
            return GROW
    return ENDED
