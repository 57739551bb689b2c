"""Match a block's topics and hand it to the workers that want it; what happens when they do not keep up.

Compiled; runs in the slice thread.
"""

from __future__ import annotations

from typing import Final

import numpy

from blackbox.atoms import (
    bytes_at,
    call_with_address,
    copy_bytes,
    inner,
    int32s_at,
    int64s_at,
    load_acquire,
    store_release,
    uint64s_at,
    unsigned,
)
from blackbox.check import Header, read_header
from blackbox.counters import Count, WorkerCount
from blackbox.envelope import (
    CONFLATED,
    FIRST_ROW,
    PART_WORDS,
    PARTS,
    TOPICS_AT,
    TS_RECV,
    VERSION,
    WORDS,
    WORDS_AT,
    envelope_bytes,
    parts_at,
)
from blackbox.layout import FLAG_FIXED, HEADER_BYTES, body_layout
from blackbox.sink import AGAIN, BLOCK, BODY, BODY_BYTES, HEAD, IDLE, KIND, SINK_WORDS
from blackbox.sink import FIRST_ROW as FIRST_ROW_WORD
from blackbox.sink import TS_RECV as TS_RECV_WORD
from blackbox.slice_memory import (
    COPY_AT,
    ENVELOPE_AT,
    ERRNO,
    EXIT_SLOW,
    FAILED,
    IDLE_MS,
    POLICY_DROP,
    POLICY_TERMINATE,
    RELEASED,
    STOPPING,
    TERMINATE,
    TROUBLE,
    TROUBLE_LAG,
    WORDS_SHARED,
    SliceAt,
    TableAt,
)
from blackbox.topics import FULL, Trie, longest_prefix, number_of
from blackbox.zmqlib import (
    EAGAIN,
    SNDMORE,
    exit_process,
    msg_close,
    msg_copy,
    msg_data,
    msg_init,
    msg_init_size,
    msg_send,
    msg_size,
    now_ns,
    poke,
    wait_readable,
    write_text,
    zmq_errno,
)

GIVEN_UP: Final = -1
_LAST_WORDS = numpy.frombuffer(
    b"blackbox: slow subscriber: a callback did not return in the grace time, the process ends itself\n",
    numpy.uint8,
)

_MATCHED = int(Count.MATCHED)
_DROPPED = int(Count.DROPPED)
_DUE = int(Count.DUE)
_UNNUMBERED = int(Count.UNNUMBERED)
_NEGATIVE_LAG = int(Count.NEGATIVE_LAG)
_SMALLEST_LAG = int(Count.SMALLEST_LAG)
_LAST_LAG = int(Count.LAST_LAG)
_WAITS = int(Count.WAITS)
_COUNTERS = int(Count.SIZE)
_WORKER_BLOCKS = int(WorkerCount.BLOCKS)
_WORKER_SENT = int(WorkerCount.SENT)
_WORKER_BUSY = int(WorkerCount.BUSY_SINCE)
_WORKER_SIZE = int(WorkerCount.SIZE)


@inner
def lag_of(at: SliceAt, ts_out: int, now: int) -> int:
    """Lag in ns, corrected by what the smallest lag so far proves of the two clocks."""
    counters = int64s_at(at.counters, _COUNTERS)
    lag = now - ts_out
    if lag < 0:
        counters[_NEGATIVE_LAG] += 1
    if lag < counters[_SMALLEST_LAG]:
        counters[_SMALLEST_LAG] = lag
    lag -= min(0, counters[_SMALLEST_LAG])
    counters[_LAST_LAG] = lag
    return lag


@inner
def squawk(at: SliceAt, lag: int) -> None:
    """Tell Python, which tells the operator, before any policy acts."""
    words = int64s_at(at.words, WORDS_SHARED)
    words[TROUBLE_LAG] = max(words[TROUBLE_LAG], lag)
    if words[TROUBLE] == 0:
        store_release(at.words + 8 * TROUBLE, 1)
        poke(at.trouble_fd, at.words)


@inner
def die(at: SliceAt) -> int:
    """Wait for Python to end the workers; if it cannot within the grace time, end the process from here. Returns 0.

    What is delivered afterwards is only counted: see `dispatch`.
    """
    deadline = now_ns() + at.grace_ns
    last_words = _LAST_WORDS
    while load_acquire(at.words + 8 * RELEASED) == 0:
        if now_ns() > deadline:
            write_text(2, last_words.ctypes.data, len(last_words))
            exit_process(EXIT_SLOW)
        wait_readable(numpy.int64(0), numpy.int64(0), at.wake_fd, numpy.int64(IDLE_MS), at.scratch)
    store_release(at.words + 8 * STOPPING, TERMINATE)  # it is so already, or nothing would have been released
    return 0


@inner
def is_over(at: SliceAt) -> bool:
    """Whether the subscriber has been told to end now."""
    return load_acquire(at.words + 8 * STOPPING) == TERMINATE


@inner
def stuck_ns(at: SliceAt, worker: int, now: int) -> int:
    """How long a worker with blocks waiting has been in one callback."""
    counters = int64s_at(at.worker_counters + 8 * _WORKER_SIZE * worker, _WORKER_SIZE)
    if counters[_WORKER_SENT] == counters[_WORKER_BLOCKS]:
        return 0
    since = load_acquire(at.worker_counters + 8 * (_WORKER_SIZE * worker + _WORKER_BUSY))
    return now - since if since > 0 else 0


@inner
def _hand_over(at: SliceAt, worker: int, ts_out: int, body_message: int) -> int:
    """Send copies of envelope and body to a worker, unless it is over: 0, FAILED or GIVEN_UP."""
    if is_over(at):
        return 0
    name = at.scratch + COPY_AT
    counters = int64s_at(at.counters, _COUNTERS)
    msg_init_size(name, 1)
    bytes_at(msg_data(name), 1)[0] = worker + 1
    while msg_send(name, at.router, SNDMORE) < 0:
        error = zmq_errno()
        counters[_WAITS] += 1
        if is_over(at):
            return 0
        if error != EAGAIN:
            int64s_at(at.words, WORDS_SHARED)[ERRNO] = error
            return FAILED
        lag = now_ns() - ts_out - min(0, counters[_SMALLEST_LAG])
        if lag > at.max_lag_ns:
            squawk(at, lag)
            if at.policy == POLICY_TERMINATE:
                return die(at)
            if at.policy == POLICY_DROP:
                return GIVEN_UP
    msg_init(name)
    msg_copy(name, at.scratch + ENVELOPE_AT)
    msg_send(name, at.router, SNDMORE)
    msg_init(name)
    msg_copy(name, body_message)
    msg_send(name, at.router, 0)
    int64s_at(at.worker_counters + 8 * _WORKER_SIZE * worker, _WORKER_SIZE)[_WORKER_SENT] += 1
    return 0


@inner
def match_topics(at: SliceAt, table: TableAt, trie: Trie, header: Header, body: int, envelope: int) -> int:
    """Number the block's topics and find their match sets, into the envelope; returns the workers, a bit each."""
    layout = body_layout(header.count, header.topics, header.topic_bytes, 0, header.flags & FLAG_FIXED != 0)
    offsets = int32s_at(body + layout.topic_offsets, header.topics + 1)
    numbers = int32s_at(envelope + TOPICS_AT, header.topics)
    sets = int32s_at(envelope + TOPICS_AT + 4 * header.topics, header.topics)
    set_of_topic = int32s_at(at.set_of_topic, at.topics.capacity)
    set_workers = uint64s_at(table.set_workers, table.sets)
    counters = int64s_at(at.counters, _COUNTERS)
    known = int64s_at(at.topics.used, 1)
    wanted = numpy.uint64(0)
    unnumbered = 0
    for topic in range(header.topics):
        start = numpy.int64(offsets[topic])
        size = numpy.int64(offsets[topic + 1]) - start
        before = known[0]
        number = number_of(at.topics, body + layout.topics + start, size)
        if number == FULL:
            unnumbered = 1
            found = longest_prefix(trie, body + layout.topics + start, size)
        elif number >= before:
            found = longest_prefix(trie, body + layout.topics + start, size)
            set_of_topic[number] = found
        else:
            found = set_of_topic[number]
        numbers[topic] = number
        sets[topic] = found
        wanted |= set_workers[found]
    counters[_UNNUMBERED] += unnumbered
    return numpy.int64(wanted)


@inner
def group_by_set(table: TableAt, header: Header, body: int, envelope: int, first_row: int) -> int:
    """Group the rows by match set, into the envelope; returns how many some callback wants."""
    sets = int32s_at(envelope + TOPICS_AT + 4 * header.topics, header.topics)
    parts = int32s_at(envelope + parts_at(header.topics), PART_WORDS * header.topics)
    counts = int64s_at(table.set_counts, table.sets)
    made = 0
    for topic in range(header.topics):
        if counts[sets[topic]] == 0:
            counts[sets[topic]] = 1  # one too many, taken off below
            parts[PART_WORDS * made] = sets[topic]
            made += 1
    if made == 1:
        counts[sets[0]] = 0
        return header.count - first_row if sets[0] != 0 else 0
    topic_index = int32s_at(body + 8 * header.count, header.count)
    for row in range(numpy.uint64(first_row), numpy.uint64(header.count)):
        counts[unsigned(sets[unsigned(topic_index[row])])] += 1
    place = 0
    unwanted = 0
    for part in range(made):
        which = parts[PART_WORDS * part]
        size = counts[which] - 1
        unwanted += size if which == 0 else 0
        parts[PART_WORDS * part + 1] = place
        parts[PART_WORDS * part + 2] = place + size
        counts[which] = place
        place += size
    rows = int32s_at(envelope + parts_at(header.topics) + 4 * PART_WORDS * made, header.count)
    for row in range(numpy.uint64(first_row), numpy.uint64(header.count)):
        which = unsigned(sets[unsigned(topic_index[row])])
        rows[numpy.uint64(counts[which])] = row
        counts[which] += 1
    for part in range(made):
        counts[parts[PART_WORDS * part]] = 0
    int64s_at(envelope + WORDS_AT, WORDS)[PARTS] = made
    return header.count - first_row - unwanted


@inner
def due_of(table: TableAt, header: Header, envelope: int, first_row: int, whose: int) -> int:
    """Deliveries that a grouped block means, for all workers (`whose` 0) or for worker `whose` - 1."""
    callbacks = int64s_at(table.callbacks_of_set + 8 * table.sets * whose, table.sets)
    made = int64s_at(envelope + WORDS_AT, WORDS)[PARTS]
    if made == 0:
        only = int32s_at(envelope + TOPICS_AT + 4 * header.topics, 1)[0]
        return (header.count - first_row) * callbacks[only]
    parts = int32s_at(envelope + parts_at(header.topics), PART_WORDS * made)
    due = 0
    for part in range(made):
        size = numpy.int64(parts[PART_WORDS * part + 2]) - parts[PART_WORDS * part + 1]
        due += size * callbacks[parts[PART_WORDS * part]]
    return due


@inner
def _sink_block(at: SliceAt, head: int, body_message: int, first_row: int, now: int) -> int:
    words = int64s_at(at.sink.words, SINK_WORDS)
    words[KIND] = BLOCK
    words[HEAD] = head
    words[BODY] = msg_data(body_message)
    words[BODY_BYTES] = msg_size(body_message)
    words[FIRST_ROW_WORD] = first_row
    words[TS_RECV_WORD] = now
    call_with_address(at.sink.function, at.sink.words)
    int64s_at(at.counters, _COUNTERS)[_MATCHED] += read_header(head).count - first_row
    return 0


@inner
def sink_idle(at: SliceAt) -> bool:
    """Tell the sink, if there is one, that nothing more is there now; returns whether it wants to be told again."""
    if at.sink.function == 0:
        return False
    words = int64s_at(at.sink.words, SINK_WORDS)
    words[KIND] = IDLE
    call_with_address(at.sink.function, at.sink.words)
    return words[AGAIN] != 0


@inner
def dispatch(
    at: SliceAt,
    table: TableAt,
    trie: Trie,
    head: int,
    body_message: int,
    first_row: int,
    now: int,
    conflated: int,
    drop: int,
) -> int:
    """Hand the block of header `head` to every worker that wants it: 0 or FAILED. The body stays.

    `drop`: count its deliveries as dropped instead. After TERMINATE they are counted as due, and nothing else.
    """
    if at.sink.function != 0:
        return _sink_block(at, head, body_message, first_row, now)
    header = read_header(head)
    envelope_message = at.scratch + ENVELOPE_AT
    if msg_init_size(envelope_message, envelope_bytes(header.topics, header.count)) != 0:
        int64s_at(at.words, WORDS_SHARED)[ERRNO] = zmq_errno()
        return FAILED
    envelope = msg_data(envelope_message)
    copy_bytes(envelope, head, HEADER_BYTES)
    words = int64s_at(envelope + WORDS_AT, WORDS)
    words[VERSION] = table.version
    words[FIRST_ROW] = first_row
    words[TS_RECV] = now
    words[CONFLATED] = conflated
    words[PARTS] = 0
    body = msg_data(body_message)
    wanted = match_topics(at, table, trie, header, body, envelope)
    result = 0
    if wanted != 0:
        counters = int64s_at(at.counters, _COUNTERS)
        counters[_MATCHED] += group_by_set(table, header, body, envelope, first_row)
        due = due_of(table, header, envelope, first_row, numpy.int64(0))
        counters[_DUE] += due
        if drop != 0:
            counters[_DROPPED] += due
            wanted = 0
        for worker in range(at.workers):
            if (wanted >> worker) & 1:
                result = _hand_over(at, worker, header.ts_out, body_message)
                if result == GIVEN_UP:
                    counters[_DROPPED] += due_of(table, header, envelope, first_row, worker + 1)
                    result = 0
                elif result != 0:
                    break
    msg_close(envelope_message)
    return result


@inner
def any_full(at: SliceAt) -> bool:
    """Whether some worker's queue has no room."""
    for worker in range(at.workers):
        counters = int64s_at(at.worker_counters + 8 * _WORKER_SIZE * worker, _WORKER_SIZE)
        if counters[_WORKER_SENT] - counters[_WORKER_BLOCKS] >= at.queue_blocks:
            return True
    return False
