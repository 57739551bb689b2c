"""Play blocks to callbacks in compiled code, like a slice thread and its workers, without sockets."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

import numpy

from blackbox.archive.read.reader import UNCHECKED
from blackbox.block.batch.received_block import ORIGINS
from blackbox.block.batch.worker_envelope import TOPICS_AT, envelope_at, envelope_bytes
from blackbox.block.form.format import HEADER_BYTES, Header, block_header_at, layout_of, read_header
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import copy_bytes, inner, int32s_at, int64s_at
from blackbox.native.memory.records import load_shared
from blackbox.native.tables.name_table import FULL, NumberingAt, number_of
from blackbox.native.tables.prefix_trie import Trie, longest_prefix
from blackbox.receive.deliver.call_compiled import run_compiled
from blackbox.receive.deliver.dispatch import due_of, group_by_set, match_topics
from blackbox.receive.deliver.select_rows import SLOT_BYTES, add_entry, entry_at, select
from blackbox.receive.deliver.worker_loop import BURST_BLOCKS, keep_place
from blackbox.receive.deliver.worker_state import ALL_ROWS, WorkerAt, WorkerTableAt, worker_state_at
from blackbox.receive.slice_memory import TableAt
from blackbox.receive.state import slice_counters_at, slice_state_at, worker_counters_at
from blackbox.replay.tables.measure_blocks import (
    BLOCK_ROW_BYTES,
    BlockRow,
    BlockTableAt,
    Wanted,
    block_row_at,
    measure_one,
)
from blackbox.transport.libzmq import MESSAGE_BYTES, close_messages, msg_data, msg_init_on, msg_init_size


class PlayerReason(IntEnum):
    """Reason for `play` to return."""

    DONE = 0
    """The table is played, or `stopping` of the slice state was set, which ends all workers."""
    DELIVER = 1
    """The burst has deliveries for Python callbacks, or a compiled one raised."""
    GROW = 2
    """`rows` must hold `rows_needed` for the next block."""
    NO_MEMORY = 3
    """There was no memory for a block's envelope."""


_NO_MEMORY: Final = -1


class PlayedSlice(NamedTuple):
    """A slice's topics, for `match_topics`."""

    topics: NumberingAt
    set_of_topic: int
    counters: int
    hints: int
    """As in `number_by_hint`."""


def slice_words(
    topics: NumberingAt, set_of_topic: int, counters: int, hints: int, table: TableAt, worker_table: WorkerTableAt
) -> list[int]:
    """Return a slice's row of the int64[slices, SLICE_WORDS] that `play` takes."""
    return [*topics, set_of_topic, counters, hints, *table, *worker_table]


_TABLE: Final = len(NumberingAt._fields) + 3
_WORKER_TABLE: Final = _TABLE + len(TableAt._fields)
SLICE_WORDS: Final = _WORKER_TABLE + len(WorkerTableAt._fields)


@inner
def _played_slice(words: int) -> PlayedSlice:
    w = int64s_at(words, SLICE_WORDS)
    return PlayedSlice(NumberingAt(w[0], w[1], w[2], w[3], w[4], w[5]), w[6], w[7], w[8])


@inner
def _table(words: int) -> TableAt:
    w = int64s_at(words + 8 * _TABLE, 6)
    return TableAt(w[0], w[1], w[2], w[3], w[4], w[5])


@inner
def _worker_table(words: int) -> WorkerTableAt:
    w = int64s_at(words + 8 * _WORKER_TABLE, 13)
    return WorkerTableAt(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11], w[12])


@inner
def _match(slices: int, trie: Trie, header: Header, block: BlockRow, frame: int) -> int:
    """Number a block's topics and write their match sets to the envelope. Return the workers that want it; 0: none."""
    words = slices + 8 * SLICE_WORDS * block.slice_id
    if block.origins == 0:
        return match_topics(_played_slice(words), _table(words), trie, header, block.body, frame)
    # Gathered from several slices: each topic is numbered in its own slice.
    layout = layout_of(header)
    offsets = int32s_at(block.body + layout.topic_offsets, header.topics + 1)
    numbers = int32s_at(frame + TOPICS_AT, header.topics)
    sets = int32s_at(frame + TOPICS_AT + 4 * header.topics, header.topics)
    slice_of = int64s_at(block.origins + 8 * ORIGINS * header.count, header.topics)
    matched = int64s_at(block.origins + 8 * (ORIGINS * header.count + header.topics), header.topics)
    wanted = unnumbered = 0
    for topic in range(header.topics):
        played = _played_slice(slices + 8 * SLICE_WORDS * slice_of[topic])
        set_of_topic = int32s_at(played.set_of_topic, played.topics.capacity)
        # Its slice and number, plus 1: most topics are in the previous block too.
        kept = int64s_at(matched[topic], 1)
        if kept[0] > 0 and (kept[0] - 1) >> 32 == slice_of[topic]:
            number = (kept[0] - 1) & 0xFFFFFFFF
            found = set_of_topic[number]
        else:
            start = numpy.int64(offsets[topic])
            size = numpy.int64(offsets[topic + 1]) - start
            text = block.body + layout.topics + start
            before = int64s_at(played.topics.used, 1)[0]
            number = number_of(played.topics, text, size)
            if number == FULL:
                found = longest_prefix(trie, text, size)
                unnumbered = 1
            else:
                if number >= before:
                    set_of_topic[number] = longest_prefix(trie, text, size)
                found = set_of_topic[number]
                kept[0] = (slice_of[topic] << 32 | number) + 1
        numbers[topic] = number
        sets[topic] = found
        wanted |= found
    slice_counters_at(_played_slice(words).counters).unnumbered += unnumbered
    return wanted


@inner
def _fill(slices: int, trie: Trie, slot: int, row: int) -> int:
    """Match a block and put it into a slot. Return how many rows a callback wants; 0: the slot is empty.

    Returns _NO_MEMORY if there is none for the envelope.
    """
    block = block_row_at(row)
    table = _table(slices + 8 * SLICE_WORDS * block.slice_id)
    header = read_header(block.header)
    if msg_init_size(slot, envelope_bytes(header.topics, header.count)) != 0:
        return _NO_MEMORY
    frame = msg_data(slot)
    copy_bytes(frame, block.header, HEADER_BYTES)
    if block.origins == 0:
        block_header_at(frame).slice = block.slice_id  # differs from the recorded one with several feeds
    envelope = envelope_at(frame)
    envelope.version = table.version
    envelope.first_row = block.first_row
    envelope.ts_recv = block.ts_recv
    envelope.conflated = 0
    envelope.recorded = 0
    envelope.image = 0
    envelope.late = 0
    envelope.groups = 0
    if _match(slices, trie, header, block, frame) == 0:
        close_messages(slot, 1)
        return 0
    matched = group_by_set(table, header, block.body, frame, block.first_row, block.stop_row)
    if matched == 0:  # topics match, but no played row has them
        close_messages(slot, 1)
        return 0
    msg_init_on(slot + MESSAGE_BYTES, block.body, header.body_bytes)
    return matched


@inner
def _count(words: int, row: int, matched: int, slot: int) -> None:
    block = block_row_at(row)
    header = read_header(block.header)
    counters = slice_counters_at(_played_slice(words).counters)
    counters.received += block.stop_row - block.first_row
    counters.blocks += 1
    counters.body_bytes += header.body_bytes
    counters.matched += matched
    if matched > 0:
        counters.due += due_of(_table(words), header, msg_data(slot), block.first_row, numpy.int64(0))


@inner
def _keep(at: WorkerAt, slot: int, row: int) -> None:
    """Keep the block of the next slot in the burst for Python callbacks."""
    keep_place(at, read_header(msg_data(slot)).body_bytes, block_row_at(row).origins)
    worker_state_at(at.state).blocks += 1


@inner
def _split_by_slice(at: WorkerAt, slices: int, many: int, block: BlockRow, first: int, used: int) -> int:
    """Split a gathered block for compiled callbacks: each slice's rows, with the state of that slice.

    `first` is the block's first batch, `many` the number of slices. Returns how many of `rows` are in use; -1 if they
    do not fit and `rows_needed` would.
    """
    state = worker_state_at(at.state)
    table = _worker_table(slices)
    functions = int64s_at(table.functions, table.total + 1)
    count = read_header(block.header).count
    slice_of = int64s_at(block.origins + 24 * count, count)
    end = state.entries
    needed = 0
    for number in range(first, end):
        entry = entry_at(at, number)
        needed += entry.count if functions[entry.callback] != 0 else 0
    if used + needed > state.max_rows:
        state.rows_needed = used + needed
        return -1
    to = int32s_at(state.rows, state.max_rows)
    for number in range(first, end):
        entry = entry_at(at, number)
        if functions[entry.callback] == 0:
            continue
        whole = entry.count
        rows = int32s_at(at.identity + 4 * (count - whole) if entry.rows == ALL_ROWS else entry.rows, whole)
        begun = used
        for slice_id in range(many):
            start = used
            for place in range(whole):
                if slice_of[rows[place]] == slice_id:
                    to[used] = rows[place]
                    used += 1
            if used == start:
                continue
            mine = int64s_at(_worker_table(slices + 8 * SLICE_WORDS * slice_id).states, entry.callback + 1)
            address = mine[entry.callback]
            if start == begun:
                entry.rows, entry.count, entry.state = state.rows + 4 * start, used - start, address
            else:
                add_entry(at, entry.slot, entry.callback, state.rows + 4 * start, used - start, address)
    return used


@inner
def _select(at: WorkerAt, slices: int, many: int, block: BlockRow, rows_used: int) -> int:
    """List the rows of a block in the burst's next slot for every callback, as `select`."""
    state = worker_state_at(at.state)
    before = state.entries
    used = select(at, _worker_table(slices + 8 * SLICE_WORDS * block.slice_id), state.blocks, rows_used)
    if used < 0 or block.origins == 0:
        return used
    return _split_by_slice(at, slices, many, block, before, used)


@inner
def _most_batches(block: BlockRow, table: WorkerTableAt, many: int) -> int:
    """Return the maximum number of batches of a block: one per callback, for a gathered block also per slice."""
    return table.total * (many if block.origins != 0 else 1)


@inner
def _has_messages(row: int, wanted: Wanted) -> bool:
    """Return True if a block is valid and has messages to play. Checks an unchecked block."""
    block = block_row_at(row)
    if block.fault == UNCHECKED:
        measure_one(row, wanted)
    return bool(block.fault == 0 and block.count > 0)


@inner
def _stop(index: int, reason: PlayerReason) -> tuple[int, int]:
    """Return two plain integers: a member of an enum in a tuple costs Python 4 µs at each return."""
    return index, numpy.int64(reason)


@njit(nogil=True, cache=True)
def play(
    at: WorkerAt,
    slices: int,
    many: int,
    trie: Trie,
    blocks: BlockTableAt,
    start: int,
    worker: int,
    workers: int,
    in_turn: bool,
) -> tuple[int, int]:
    """Play a table from block `start` on until Python is needed. Return where to continue, and the reason.

    `workers` threads share a table; this one plays every slice that is `worker` modulo `workers`. `many` is the number
    of slices. With `in_turn`, compiled and Python callbacks take turns, so compiled batches are left in the burst too.

    Without `in_turn`, compiled callbacks have run for every block before that. The burst has the batches of Python
    callbacks, of at most BURST_BLOCKS blocks; its previous content is freed first. Unchecked blocks are checked just
    before they are played, so that they are read from memory once. Damaged blocks, and those without messages to play,
    are skipped.
    """
    state = worker_state_at(at.state)
    slice_state = slice_state_at(at.slice_state)
    close_messages(state.burst, 2 * state.blocks)
    state.blocks = 0
    state.entries = 0
    rows_used = numpy.int64(0)
    for i in range(start, blocks.count):
        row = blocks.address + BLOCK_ROW_BYTES * i
        block = block_row_at(row)
        if block.slice_id % workers != worker:
            continue
        if load_shared(slice_state, "stopping") != 0:
            return _stop(i, PlayerReason.DONE)
        if not _has_messages(row, blocks.wanted):
            continue
        words = slices + 8 * SLICE_WORDS * block.slice_id
        table = _worker_table(words)
        if state.blocks == BURST_BLOCKS or at.max_entries - state.entries < _most_batches(block, table, many):
            return _stop(i, PlayerReason.DELIVER)
        slot = state.burst + SLOT_BYTES * state.blocks
        matched = _fill(slices, trie, slot, row)
        if matched < 0:
            return _stop(i, PlayerReason.NO_MEMORY)
        if matched == 0:
            _count(words, row, matched, slot)
            continue
        before = state.entries
        used = _select(at, slices, many, block, rows_used)
        if used < 0:
            close_messages(slot, 2)
            state.entries = before
            return _stop(i, PlayerReason.DELIVER if state.blocks > 0 else PlayerReason.GROW)
        _count(words, row, matched, slot)
        worker_counters_at(at.counters).unwanted += state.left_out
        if not in_turn:
            run_compiled(at, table, before, block.origins)
        if state.entries > before:
            _keep(at, slot, row)
            rows_used = used
        else:
            close_messages(slot, 2)
        if state.raised != 0:
            return _stop(i + 1, PlayerReason.DELIVER)
    return _stop(blocks.count, PlayerReason.DELIVER if state.blocks > 0 else PlayerReason.DONE)
