"""Match a block's topics; pass the block to workers, to callbacks of the slice thread, or to the block handler.

Compiled; runs in the slice thread.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy

from blackbox.block.batch.block_handler import BLOCK, IDLE, handed_block_at
from blackbox.block.batch.worker_envelope import TOPICS_AT, envelope_at, envelope_bytes, row_group, rows_at
from blackbox.block.form.format import (
    FLAG_IMAGE,
    FLAG_LATE,
    FLAG_NUMBERS,
    FLAG_RECORDED,
    HEADER_BYTES,
    KNOWN_FLAGS,
    Header,
    block_header_at,
    layout_of,
    read_header,
)
from blackbox.block.form.sampling import is_traced
from blackbox.native.memory.intrinsics import (
    call_with_address,
    copy_bytes,
    inner,
    int32s_at,
    int64s_at,
    prefetch,
    uint64s_at,
    unsigned,
)
from blackbox.native.system.posix import now_ns
from blackbox.native.tables.name_table import FULL, HINT_BYTES, NO_HINT, number_by_hint
from blackbox.native.tables.prefix_trie import Trie, longest_prefix
from blackbox.receive.deliver.worker_loop import run_block
from blackbox.receive.deliver.worker_queues import (
    GIVEN_UP,
    fail,
    hand_over,
    leave_untold,
    tell_dropped,
    worker_counters,
)
from blackbox.receive.order.state import Phase, order_state_at
from blackbox.receive.slice_memory import ENVELOPE_AT, SliceAt, TableAt
from blackbox.receive.slow_subscriber import is_over
from blackbox.receive.state import slice_counters_at
from blackbox.transport.libzmq import msg_close, msg_data, msg_init_size, msg_size

_AHEAD = 8
"""Topics to prefetch ahead: of 100,000 topics most are not in the cache."""


class DueBlock(NamedTuple):
    """A block to deliver, as addresses."""

    head: int
    body_message: int
    first_row: int
    """First row to deliver."""
    ts_recv: int
    conflated: int
    """1: the newest messages of several blocks, from `conflation`."""


@inner
def match_topics(at: SliceAt, table: TableAt, trie: Trie, header: Header, body: int, envelope: int) -> int:
    """Write the numbers and match sets of the block's topics to the envelope; return the workers as bits."""
    layout = layout_of(header)
    offsets = int32s_at(body + layout.topic_offsets, header.topics + 1)
    numbers = int32s_at(envelope + TOPICS_AT, header.topics)
    sets = int32s_at(envelope + TOPICS_AT + 4 * header.topics, header.topics)
    set_of_topic = int32s_at(at.set_of_topic, at.topics.capacity)
    hints = int32s_at(body + layout.topic_numbers, header.topics if header.flags & FLAG_NUMBERS else 0)
    set_workers = uint64s_at(table.set_workers, table.sets)
    known = int64s_at(at.topics.used, 1)
    wanted = numpy.uint64(0)
    unnumbered = 0
    for topic in range(header.topics):
        start = numpy.int64(offsets[topic])
        size = numpy.int64(offsets[topic + 1]) - start
        before = known[0]
        if topic + _AHEAD < len(hints):
            prefetch(at.hints + HINT_BYTES * numpy.int64(hints[topic + _AHEAD]))
        hint = numpy.int64(hints[topic]) if len(hints) > 0 else NO_HINT
        number = number_by_hint(at.topics, at.hints, hint, body + layout.topics + start, size)
        if number == FULL:
            unnumbered = 1
            found = longest_prefix(trie, body + layout.topics + start, size)
        elif number >= before:
            found = longest_prefix(trie, body + layout.topics + start, size)
            set_of_topic[number] = found
        else:
            found = set_of_topic[unsigned(number)]
        numbers[topic] = number
        sets[topic] = found
        wanted |= set_workers[found]
    slice_counters_at(at.counters).unnumbered += unnumbered
    return numpy.int64(wanted)


@inner
def group_by_set(table: TableAt, header: Header, body: int, envelope: int, first_row: int, stop_row: int) -> int:
    """Group rows `[first_row, stop_row)` by match set in the envelope; return how many rows some callback wants."""
    sets = int32s_at(envelope + TOPICS_AT + 4 * header.topics, header.topics)
    counts = int64s_at(table.set_counts, table.sets)
    callbacks = int64s_at(table.callbacks_of_set, table.sets)
    made = 0
    for topic in range(header.topics):
        if counts[sets[topic]] == 0:
            counts[sets[topic]] = 1  # one too many, corrected below
            row_group(envelope, header.topics, made).match_set = sets[topic]
            made += 1
    if made == 1 and stop_row == header.count:
        counts[sets[0]] = 0
        return stop_row - first_row if callbacks[sets[0]] != 0 else 0
    topic_index = int32s_at(body + 8 * header.count, header.count)
    for row in range(numpy.uint64(first_row), numpy.uint64(stop_row)):
        counts[unsigned(sets[unsigned(topic_index[row])])] += 1
    place = 0
    unwanted = 0
    for number in range(made):
        group = row_group(envelope, header.topics, number)
        size = counts[group.match_set] - 1
        unwanted += size if callbacks[group.match_set] == 0 else 0
        group.start = place
        group.stop = place + size
        counts[group.match_set] = place
        place += size
    rows = int32s_at(envelope + rows_at(header.topics, made), header.count)
    for row in range(numpy.uint64(first_row), numpy.uint64(stop_row)):
        which = unsigned(sets[unsigned(topic_index[row])])
        rows[numpy.uint64(counts[which])] = row
        counts[which] += 1
    for number in range(made):
        counts[row_group(envelope, header.topics, number).match_set] = 0
    envelope_at(envelope).groups = made
    return stop_row - first_row - unwanted


@inner
def due_of(table: TableAt, header: Header, envelope: int, first_row: int, whose: int) -> int:
    """Count the deliveries of a grouped block, for all workers (`whose` 0) or for worker `whose` - 1."""
    callbacks = int64s_at(table.callbacks_of_set + 8 * table.sets * whose, table.sets)
    groups = envelope_at(envelope).groups
    if groups == 0:
        only = int32s_at(envelope + TOPICS_AT + 4 * header.topics, 1)[0]
        return (header.count - first_row) * callbacks[only]
    due = 0
    for number in range(groups):
        group = row_group(envelope, header.topics, number)
        due += (group.stop - group.start) * callbacks[group.match_set]
    return due


@inner
def _is_traced(at: SliceAt, header: Header, block: DueBlock) -> bool:
    """Return True if a block is traced: it is a live one, and all of it is due."""
    if not is_traced(header.sequence, header.count, at.trace_mask):
        return False
    is_live = header.flags & (FLAG_RECORDED | FLAG_IMAGE) == 0
    return is_live and block.first_row == 0 and block.conflated == 0


@inner
def hand_block(at: SliceAt, kind: int, head: int, body_message: int, first_row: int, now: int) -> None:
    """Call the block handler with a block. Its header is as the publisher sent it."""
    block = handed_block_at(at.handler.record)
    block_header_at(head).flags &= ~FLAG_RECORDED
    block.kind = kind
    block.head = head
    block.body = msg_data(body_message)
    block.body_bytes = msg_size(body_message)
    block.first_row = first_row
    block.ts_recv = now
    is_behind = numpy.int64(order_state_at(at.order.state).phase != Phase.LIVE)
    block.held = slice_counters_at(at.counters).held + is_behind
    call_with_address(at.handler.function, at.handler.record)


@inner
def hand_idle(at: SliceAt) -> bool:
    """Call the block handler, if any, with IDLE; return True if it wants to be called again."""
    if at.handler.function == 0:
        return False
    block = handed_block_at(at.handler.record)
    block.kind = IDLE
    call_with_address(at.handler.function, at.handler.record)
    return block.again != 0


@inner
def _leave_all_untold(at: SliceAt, table: TableAt, wanted: int, count: int) -> None:
    for worker in range(at.workers + 1):
        if (wanted >> worker) & 1:
            leave_untold(at, table, worker, count)


@inner
def dispatch(at: SliceAt, table: TableAt, trie: Trie, block: DueBlock, drop: int) -> int:
    """Pass a block to every worker that wants it, and call the slice thread's own callbacks.

    Return 0 or FAILED. The body's message stays open.

    `drop`: count its deliveries as dropped instead. After TERMINATE they are only counted as due.
    """
    head, body_message, first_row = block.head, block.body_message, block.first_row
    header = read_header(head)
    if at.handler.function != 0:
        hand_block(at, numpy.int64(BLOCK), head, body_message, first_row, block.ts_recv)
        slice_counters_at(at.counters).matched += header.count - first_row
        return 0
    envelope_message = at.scratch + ENVELOPE_AT
    if msg_init_size(envelope_message, envelope_bytes(header.topics, header.count)) != 0:
        return fail(at)
    frame = msg_data(envelope_message)
    copy_bytes(frame, head, HEADER_BYTES)
    envelope = envelope_at(frame)
    envelope.version = table.version
    envelope.first_row = first_row
    envelope.ts_recv = block.ts_recv
    envelope.conflated = block.conflated
    envelope.ts_match = 0
    envelope.groups = 0
    envelope.recorded = numpy.int64(header.flags & FLAG_RECORDED != 0)
    envelope.image = numpy.int64(header.flags & FLAG_IMAGE != 0)
    envelope.late = numpy.int64(header.flags & FLAG_LATE != 0)
    block_header_at(frame).flags &= KNOWN_FLAGS
    body = msg_data(body_message)
    wanted = match_topics(at, table, trie, header, body, frame)
    result = 0
    if wanted != 0:
        counters = slice_counters_at(at.counters)
        counters.matched += group_by_set(table, header, body, frame, first_row, header.count)
        due = due_of(table, header, frame, first_row, numpy.int64(0))
        counters.due += due
        if _is_traced(at, header, block):
            envelope.ts_match = now_ns()
        if drop != 0:
            counters.dropped += due
            _leave_all_untold(at, table, wanted, header.count - first_row)
            wanted = 0
        for worker in range(at.workers):
            if (wanted >> worker) & 1:
                result = tell_dropped(at, table, worker, header.epoch, header.ts_out)
                if result == 0:
                    result = hand_over(at, worker, header.ts_out, header.ts_in, envelope_message, body_message)
                if result == GIVEN_UP:
                    counters.dropped += due_of(table, header, frame, first_row, worker + 1)
                    leave_untold(at, table, worker, header.count - first_row)
                    result = 0
                elif result != 0:
                    break
        if result == 0 and (wanted >> at.workers) & 1 and not is_over(at):
            tell_dropped(at, table, at.workers, header.epoch, header.ts_out)
            run_block(at.own, at.own_table, at.ask, envelope_message, body_message)
    msg_close(envelope_message)
    return result


@inner
def any_full(at: SliceAt) -> bool:
    """Return True if a worker's queue is full."""
    for worker in range(at.workers):
        counters = worker_counters(at, worker)
        if counters.sent - counters.blocks >= at.queue_blocks:
            return True
    return False
