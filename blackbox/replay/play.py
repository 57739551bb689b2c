"""Play blocks to callbacks, compiled, in the caller's thread: what slice thread and workers do, without sockets."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy
from numba import njit

from blackbox.atoms import copy_bytes, inner, int64s_at, load_acquire
from blackbox.check import read_header
from blackbox.collect import (
    BLOCKS,
    BURST,
    BURST_BLOCKS,
    DELIVERIES,
    PLACE_WORDS,
    RAISED,
    SLOT_BYTES,
    STATE_WORDS,
    WorkerAt,
    WorkerTableAt,
    run_compiled,
    select,
)
from blackbox.counters import Count
from blackbox.envelope import (
    CONFLATED,
    FIRST_ROW,
    PARTS,
    TS_RECV,
    VERSION,
    WORDS,
    WORDS_AT,
    envelope_bytes,
)
from blackbox.handover import due_of, group_by_set, match_topics
from blackbox.layout import HEADER_BYTES
from blackbox.replay.look import BODY, COUNT, FAULT, FIRST, HEAD, RECEIVED, SLICE, UNSEEN, Reel, column, look_at
from blackbox.slice_memory import TableAt
from blackbox.topics import NumberingAt, Trie
from blackbox.zmqlib import MESSAGE_BYTES, close_messages, msg_data, msg_init_on, msg_init_size

# Why `play` returned.
DONE: Final = 0
DELIVER: Final = 1
"""The burst holds deliveries of Python callbacks, or compiled ones that raised."""
HALTED: Final = 3
"""The word at `slice_words` was set: it ends here."""
NO_MEMORY: Final = -1
"""There was none for what goes beside a block."""
GROW: Final = 2
"""`rows` must hold `state[ROWS_NEEDED]` for the block at hand."""

_RECEIVED = int(Count.RECEIVED)
_BLOCKS_COUNT = int(Count.BLOCKS)
_BODY_BYTES = int(Count.BODY_BYTES)
_MATCHED = int(Count.MATCHED)
_DUE = int(Count.DUE)
_SIZE = int(Count.SIZE)


class Part(NamedTuple):
    """One slice's topics and wishes, as words; `part_words` lays them out."""

    topics: NumberingAt
    set_of_topic: int
    counters: int


def part_words(
    topics: NumberingAt, set_of_topic: int, counters: int, table: TableAt, worker_table: WorkerTableAt
) -> list[int]:
    """A slice's row of the int64[slices, PART_WORDS] that `play` takes."""
    return [*topics, set_of_topic, counters, *table, *worker_table]


_TABLE: Final = len(NumberingAt._fields) + 2
_WORKER_TABLE: Final = _TABLE + len(TableAt._fields)
PART_WORDS: Final = _WORKER_TABLE + len(WorkerTableAt._fields)


@inner
def _part(words: int) -> Part:
    w = int64s_at(words, PART_WORDS)
    return Part(NumberingAt(w[0], w[1], w[2], w[3], w[4], w[5]), w[6], w[7])


@inner
def _table(words: int) -> TableAt:
    w = int64s_at(words + 8 * _TABLE, 5)
    return TableAt(w[0], w[1], w[2], w[3], w[4])


@inner
def _worker_table(words: int) -> WorkerTableAt:
    w = int64s_at(words + 8 * _WORKER_TABLE, 7)
    return WorkerTableAt(w[0], w[1], w[2], w[3], w[4], w[5], w[6])


@inner
def _fill(words: int, trie: Trie, slot: int, head: int, body: int, first: int, received: int) -> int:
    """Match the block and put it into a slot; returns how many rows some callback wants. 0: the slot is empty."""
    table = _table(words)
    header = read_header(head)
    if msg_init_size(slot, envelope_bytes(header.topics, header.count)) != 0:
        return NO_MEMORY
    envelope = msg_data(slot)
    copy_bytes(envelope, head, HEADER_BYTES)
    told = int64s_at(envelope + WORDS_AT, WORDS)
    told[VERSION] = table.version
    told[FIRST_ROW] = first
    told[TS_RECV] = received
    told[CONFLATED] = 0
    told[PARTS] = 0
    if match_topics(_part(words), table, trie, header, body, envelope) == 0:
        close_messages(slot, 1)
        return 0
    matched = group_by_set(table, header, body, envelope, first)
    if matched == 0:  # topics match, but none of the rows that are left
        close_messages(slot, 1)
        return 0
    msg_init_on(slot + MESSAGE_BYTES, body, header.body_bytes)
    return matched


@inner
def _count(words: int, head: int, first: int, matched: int, slot: int) -> None:
    header = read_header(head)
    counters = int64s_at(_part(words).counters, _SIZE)
    counters[_RECEIVED] += header.count - first
    counters[_BLOCKS_COUNT] += 1
    counters[_BODY_BYTES] += header.body_bytes
    counters[_MATCHED] += matched
    if matched > 0:
        counters[_DUE] += due_of(_table(words), header, msg_data(slot), first, numpy.int64(0))


@inner
def _keep(at: WorkerAt, slot: int) -> None:
    """Let the block in the next slot stay in the burst: Python callbacks want it."""
    state = int64s_at(at.state, STATE_WORDS)
    places = int64s_at(at.slots + 8 * PLACE_WORDS * state[BLOCKS], PLACE_WORDS)
    places[0] = msg_data(slot)
    places[1] = msg_data(slot + MESSAGE_BYTES)
    places[2] = read_header(places[0]).body_bytes
    state[BLOCKS] += 1


@njit(nogil=True, cache=True)
def play(at: WorkerAt, parts: int, trie: Trie, reel: Reel, start: int, lane: int, lanes: int) -> tuple[int, int]:
    """Play the reel from block `start` on until Python is needed; returns where to go on, and why.

    Of `lanes` that share a reel, each in its own thread, this one takes every slice that is `lane` modulo `lanes`.

    Compiled callbacks have then run for every block before that; a burst, of what Python callbacks want, holds at most
    BURST_BLOCKS. What it held when this is called is freed first. Blocks that nobody has looked at are looked at when
    it is their turn: their bytes are then read from memory once. Those that are not valid, or have no message that is
    wanted, are passed over.
    """
    state = int64s_at(at.state, STATE_WORDS)
    heads, bodies, firsts = column(reel, HEAD), column(reel, BODY), column(reel, FIRST)
    received, slices = column(reel, RECEIVED), column(reel, SLICE)
    faults, counts = column(reel, FAULT), column(reel, COUNT)
    close_messages(state[BURST], 2 * state[BLOCKS])
    state[BLOCKS] = 0
    state[DELIVERIES] = 0
    rows_used = numpy.int64(0)
    for i in range(start, reel.count):
        if slices[i] % lanes != lane:
            continue
        if load_acquire(at.slice_words) != 0:
            return i, HALTED
        if faults[i] == UNSEEN:
            look_at(reel, i)
        if faults[i] != 0 or counts[i] == 0:
            continue
        words = parts + 8 * PART_WORDS * slices[i]
        table = _worker_table(words)
        if state[BLOCKS] == BURST_BLOCKS or at.max_deliveries - state[DELIVERIES] < table.total:
            return i, DELIVER
        slot = state[BURST] + SLOT_BYTES * state[BLOCKS]
        matched = _fill(words, trie, slot, heads[i], bodies[i], firsts[i], received[i])
        if matched < 0:
            return i, NO_MEMORY
        if matched == 0:
            _count(words, heads[i], firsts[i], matched, slot)
            continue
        before = state[DELIVERIES]
        used = select(at, table, state[BLOCKS], rows_used)
        if used < 0:
            close_messages(slot, 2)
            state[DELIVERIES] = before
            return (i, DELIVER) if state[BLOCKS] > 0 else (i, GROW)
        _count(words, heads[i], firsts[i], matched, slot)
        if run_compiled(at, table, before) > before:
            _keep(at, slot)
            rows_used = used
        else:
            close_messages(slot, 2)
        if state[RAISED] != 0:
            return i + 1, DELIVER
    return reel.count, DELIVER if state[BLOCKS] > 0 else DONE
