"""Conflation: a lagging subscriber keeps the newest message of each topic, then delivers them as one block."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.block.batch.worker_envelope import TOPICS_AT
from blackbox.block.form.encode import (
    NO_VALUE,
    Distinct,
    Origin,
    Rows,
    TopicTable,
    finish_header,
    number_header,
    plan_block,
    plan_bytes,
    write_body,
    write_template,
)
from blackbox.block.form.format import (
    FLAG_FIXED,
    FLAG_RECORDED,
    FLAG_SAME,
    has_value,
    layout_of,
    read_header,
    sequence_of,
)
from blackbox.feed.routing.compiled_routing import find_key
from blackbox.native.memory.intrinsics import bytes_at, copy_bytes, inner, int32s_at, int64s_at
from blackbox.native.memory.records import Field, SharedRecord, record_at
from blackbox.native.tables.name_table import FULL
from blackbox.native.tables.prefix_trie import Trie
from blackbox.receive.deliver.dispatch import DueBlock, any_full, dispatch, match_topics
from blackbox.receive.deliver.worker_queues import fail, tell_losses
from blackbox.receive.order.losses import has_losses, number_key
from blackbox.receive.slice_memory import ENVELOPE_AT, NEWEST_AT, NEWEST_HEAD_AT, ConflationAt, SliceAt, TableAt
from blackbox.receive.state import slice_counters_at, slice_state_at
from blackbox.transport.libzmq import msg_close, msg_data, msg_init_size

ARENA_BYTES: Final = 64 << 20
"""Most payload bytes that one slice keeps while it conflates."""
_BLOCK_BYTES: Final = 256 << 10
_YES = numpy.int64(1)


class ConflationState(SharedRecord):
    """State of a slice thread that conflates."""

    pending = Field()
    """Topics with a waiting message."""
    arena_end = Field()
    ts_out = Field()
    """`ts_out` of the newest block."""
    ts_in = Field()
    """`ts_in` of the oldest block since the last delivery."""
    schema_id = Field()
    epoch = Field()
    has_same = Field()
    """1: some messages had several topics."""
    recorded = Field()
    """1: some of the waiting messages are from an archive."""


_state_at = record_at(ConflationState)


class Conflation:
    """Newest payload of each topic of one slice, by topic number. `at` is the argument for compiled code."""

    def __init__(self, max_topics: int) -> None:
        self._starts = numpy.zeros(max_topics, numpy.int64)
        self._rooms = numpy.zeros(max_topics, numpy.int32)
        self._lengths = numpy.zeros(max_topics, numpy.int32)
        self._ts_event = numpy.zeros(max_topics, numpy.int64)
        self._sequences = numpy.zeros(max_topics, numpy.int64)
        self._same = numpy.zeros(max_topics, numpy.uint8)
        self._topic_sizes = numpy.zeros(max_topics, numpy.int32)
        self._pending = numpy.zeros(max_topics, numpy.int32)
        self._seen = numpy.zeros(max_topics, numpy.int64)
        self._order = numpy.zeros(max_topics + 1, numpy.int32)
        self._generation = numpy.zeros(1, numpy.int64)
        self._arena = numpy.zeros(ARENA_BYTES, numpy.uint8)
        self._state = ConflationState()
        self.at = ConflationAt(
            self._starts.ctypes.data,
            self._rooms.ctypes.data,
            self._lengths.ctypes.data,
            self._ts_event.ctypes.data,
            self._sequences.ctypes.data,
            self._same.ctypes.data,
            self._topic_sizes.ctypes.data,
            self._pending.ctypes.data,
            self._seen.ctypes.data,
            self._order.ctypes.data,
            self._generation.ctypes.data,
            self._arena.ctypes.data,
            ARENA_BYTES,
            self._state.address,
        )


NO_CONFLATION: Final = ConflationAt(*[0] * len(ConflationAt._fields))
"""Used with other policies."""


@inner
def pending(at: SliceAt) -> int:
    """Return the number of topics with a waiting message."""
    return _state_at(at.conflation.state).pending


@inner
def _count_matched(at: SliceAt, callbacks: int) -> None:
    """Count a message that is replaced by a newer one, without matching it again."""
    counters = slice_counters_at(at.counters)
    counters.matched += 1
    counters.due += callbacks


class _Message(NamedTuple):
    payload: int
    size: int
    ts_event: int
    sequence: int
    same: int


@inner
def _keep(at: SliceAt, topic: int, topic_bytes: int, message: _Message, callbacks: int) -> bool:
    """Store this as the newest message of `topic`; return False if the arena is full."""
    newest = at.conflation
    state = _state_at(newest.state)
    length = message.size
    start = int64s_at(newest.starts + 8 * topic, 1)
    room = int32s_at(newest.rooms + 4 * topic, 1)
    waiting = int32s_at(newest.topic_sizes + 4 * topic, 1)
    if length > room[0]:
        size = (length + 7) & -8
        if state.arena_end + size > newest.arena_bytes:
            return False
        start[0] = state.arena_end
        room[0] = size
        state.arena_end += size
    if waiting[0] == 0:
        # The size of a topic, never 0, is set only while its message waits.
        waiting[0] = topic_bytes
        int32s_at(newest.pending + 4 * state.pending, 1)[0] = topic
        state.pending += 1
    else:
        _count_matched(at, callbacks)
        slice_counters_at(at.counters).conflated += callbacks
    copy_bytes(newest.arena + start[0], message.payload, max(length, numpy.int64(0)))
    int32s_at(newest.lengths + 4 * topic, 1)[0] = length
    int64s_at(newest.ts_event + 8 * topic, 1)[0] = message.ts_event
    int64s_at(newest.sequences + 8 * topic, 1)[0] = message.sequence
    bytes_at(newest.same + topic, 1)[0] = message.same
    return True


@inner
def _sort_by(topics: NDArray[numpy.int32], numbers: NDArray[numpy.int64]) -> None:
    """Sort topics by sequence; equal ones keep their order."""
    before = topics.copy()
    places = numpy.argsort(numbers, kind="mergesort")
    for i in range(len(topics)):
        topics[i] = before[places[i]]


@inner
def _key_of(at: SliceAt, sizes: NDArray[numpy.int32], topic: int) -> int:
    """Return the number of a topic's key."""
    if at.key_rule == 0:
        return numpy.int64(0)
    start = int64s_at(at.topics.starts + 8 * topic, 1)[0]
    key, size = find_key(at.key_rule, at.topics.text + start, numpy.int64(sizes[topic]))
    return number_key(at.order, key, size)


@inner
def _put_in_order(
    at: SliceAt, topics: NDArray[numpy.int32], sequences: NDArray[numpy.int64], sizes: NDArray[numpy.int32]
) -> None:
    """Sort waiting topics by key and by the sequences of their newest messages, as they were published."""
    numbers = numpy.empty(len(topics), numpy.int64)
    for i in range(len(topics)):
        numbers[i] = sequences[topics[i]]
    _sort_by(topics, numbers)
    if at.key_rule > 0:
        for i in range(len(topics)):
            numbers[i] = _key_of(at, sizes, numpy.int64(topics[i]))
        _sort_by(topics, numbers)


@inner
def flush(at: SliceAt, table: TableAt, trie: Trie, now: int, may_wait: int) -> int:
    """Deliver the newest message of every waiting topic. Unless it `may_wait`, keep those without room in a queue.

    Return 0 or FAILED.
    """
    newest = at.conflation
    state = _state_at(newest.state)
    if may_wait == 0 and any_full(at):
        return 0
    if has_losses(at.order):
        told = tell_losses(at, table, state.ts_out)
        if told != 0:
            return told
    count = state.pending
    topics = at.topics.capacity
    order = int32s_at(newest.pending, count)
    sizes = int32s_at(newest.topic_sizes, topics)
    _put_in_order(at, order, int64s_at(newest.sequences, topics), sizes)
    same = newest.same if state.has_same != 0 else numpy.int64(0)
    rows = Rows(newest.ts_event, newest.arena, newest.starts, newest.lengths, numpy.int64(0), newest.sequences, same)
    text = TopicTable(
        bytes_at(at.topics.text, at.topics.text_bytes),
        int64s_at(at.topics.starts, topics),
        sizes,
    )
    distinct = Distinct(
        int64s_at(newest.seen, topics),
        int32s_at(newest.order, topics + 1),
        int64s_at(newest.generation, 1),
    )
    origin = Origin(state.schema_id, at.slice_id, at.key_rule, state.epoch)
    message, head = at.scratch + NEWEST_AT, at.scratch + NEWEST_HEAD_AT
    slice_state = slice_state_at(at.state)
    excused_ns = slice_state.excused_ns
    if state.recorded != 0:
        slice_state.excused_ns = max(excused_ns, now - min(state.ts_out, state.ts_in))
    done = numpy.int64(0)
    result = 0
    stop = numpy.int64(0)
    while done < count and result == 0 and (may_wait != 0 or not any_full(at)):
        key = _key_of(at, sizes, numpy.int64(order[done]))
        while stop < count and _key_of(at, sizes, numpy.int64(order[stop])) == key:
            stop += 1
        plan = plan_block(rows, order, order, done, stop, numpy.int64(_BLOCK_BYTES), text, distinct)
        if msg_init_size(message, plan_bytes(plan)) != 0:
            return fail(at)
        write_body(msg_data(message), plan, rows, order, order, text, distinct)
        write_template(head, plan, msg_data(message), False, origin, state.ts_in)
        first = int64s_at(newest.sequences + 8 * order[done], 1)[0]
        number_header(head, first, first, numpy.int64(0))
        finish_header(head, state.ts_out, FLAG_RECORDED * state.recorded)
        result = dispatch(at, table, trie, DueBlock(head, message, numpy.int64(0), now, _YES), numpy.int64(0))
        msg_close(message)
        done = plan.stop
    slice_state.excused_ns = excused_ns
    if result != 0:
        done = count
    for i in range(done):
        int32s_at(newest.topic_sizes + 4 * order[i], 1)[0] = 0
    for i in range(done, count):
        order[i - done] = order[i]
    state.pending = count - done
    if state.pending == 0 and 2 * state.arena_end > newest.arena_bytes:
        int32s_at(newest.rooms, topics)[: int64s_at(at.topics.used, 1)[0]] = 0
        state.arena_end = 0
    return result


@inner
def absorb(at: SliceAt, table: TableAt, trie: Trie, block: DueBlock) -> int:
    """Store the newest messages of a block; if the arena is full, deliver the waiting ones first.

    Return 0 or FAILED.
    """
    header = read_header(block.head)
    newest = at.conflation
    state = _state_at(newest.state)
    if state.pending > 0 and state.epoch != header.epoch:  # of an untracked key: others begin an epoch themselves
        result = flush(at, table, trie, block.ts_recv, _YES)
        if result != 0:
            return result
    envelope_message = at.scratch + ENVELOPE_AT
    if msg_init_size(envelope_message, TOPICS_AT + 8 * header.topics) != 0:
        return fail(at)
    body = msg_data(block.body_message)
    envelope = msg_data(envelope_message)
    fixed = header.flags & FLAG_FIXED != 0
    layout = layout_of(header)
    match_topics(at, table, trie, header, body, envelope)
    # A flush of the arena reuses the envelope's message, so copy the match result.
    matched = int32s_at(envelope + TOPICS_AT, 2 * header.topics).copy()
    msg_close(envelope_message)
    ts_event = int64s_at(body, header.count)
    topic_index = int32s_at(body + layout.topic_index, header.count)
    topic_offsets = int32s_at(body + layout.topic_offsets, header.topics + 1)
    offsets = int32s_at(body + layout.payload_offsets, 0 if fixed else header.count + 1)
    callbacks = int64s_at(table.callbacks_of_set, table.sets)
    state.ts_out = header.ts_out
    state.ts_in = header.ts_in if state.pending == 0 else min(state.ts_in, header.ts_in)
    recorded = numpy.int64(header.flags & FLAG_RECORDED != 0)
    state.recorded = recorded if state.pending == 0 else state.recorded | recorded
    state.schema_id = header.schema_id
    state.epoch = header.epoch
    has_same = header.flags & FLAG_SAME != 0
    state.has_same |= numpy.int64(has_same)
    for row in range(block.first_row, header.count):
        topic = topic_index[row]
        number = numpy.int64(matched[topic])
        wanted = callbacks[matched[header.topics + topic]]
        if wanted == 0:
            continue
        if number == FULL:
            _count_matched(at, wanted)
            slice_counters_at(at.counters).dropped += wanted
            continue
        start = row * header.stride if fixed else numpy.int64(offsets[row])
        length = header.stride if fixed else numpy.int64(offsets[row + 1]) - start
        if not has_value(header, layout, body, row):
            length = numpy.int64(NO_VALUE)
        same = numpy.int64(bytes_at(body + layout.same, header.count)[row]) if has_same else numpy.int64(0)
        payload, sequence = body + layout.payloads + start, sequence_of(header, layout, body, row)
        message = _Message(payload, length, ts_event[row], sequence, same)
        size = numpy.int64(topic_offsets[topic + 1] - topic_offsets[topic])
        if not _keep(at, number, size, message, wanted):
            result = flush(at, table, trie, block.ts_recv, _YES)
            if result != 0:
                return result
            if not _keep(at, number, size, message, wanted):
                _count_matched(at, wanted)
                slice_counters_at(at.counters).dropped += wanted
    return 0
