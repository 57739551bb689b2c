"""Put the blocks of a slice in order, hold those that came early, and deliver those whose turn has come.

Compiled; runs in the slice thread. What the numbers mean is in `gaps`.
"""

from __future__ import annotations

import numpy

from blackbox.block.format import FLAG_LINE_B, FLAG_SEQUENCES, HEADER_BYTES, Header, read_header, row_from, span_of
from blackbox.native.intrinsics import copy_bytes, inner
from blackbox.native.jit import njit
from blackbox.native.name_table import FULL, number_of
from blackbox.native.posix import now_ns
from blackbox.native.prefix_trie import Trie
from blackbox.subscribe.addresses import BODY_AT, HEAD_AT, HELD_MESSAGE_BYTES, KEY_AT, PARKED, SliceAt, TableAt
from blackbox.subscribe.conflation import absorb, flush, pending
from blackbox.subscribe.dispatch import any_full, dispatch
from blackbox.subscribe.gaps import (
    DUPLICATE,
    HOLD,
    MAKE_ROOM,
    NEW,
    STALE,
    enter_epoch,
    held_place,
    hold,
    judge,
    key_at,
    next_ready,
    release,
    settle,
)
from blackbox.subscribe.slow_subscriber import CONFLATE, DROP, PROCEED, act_on_lag, is_over, lag_of
from blackbox.subscribe.state import slice_counters_at
from blackbox.transport.libzmq import msg_close, msg_data, msg_init, msg_move, msg_size

# As arguments these are int64 rather than literals: numba would compile the callee once for each literal.
_ALL_KEYS = numpy.int64(-1)
_NO = numpy.int64(0)
_YES = numpy.int64(1)
_END = numpy.int64(numpy.iinfo(numpy.int64).max)


@inner
def _deliver(at: SliceAt, table: TableAt, trie: Trie, first_row: int, now: int) -> int:
    """Deliver the block at hand as the slow-subscriber policy has it: 0 or FAILED."""
    head, body_message = at.scratch + HEAD_AT, at.scratch + BODY_AT
    if is_over(at):
        return dispatch(at, table, trie, head, body_message, first_row, now, _NO, _NO)
    action = act_on_lag(at, lag_of(at, read_header(head).ts_out, now))
    if action != PROCEED:
        slice_counters_at(at.counters).slow += 1
    if action == DROP:
        return dispatch(at, table, trie, head, body_message, first_row, now, _NO, _YES)
    if at.action == CONFLATE:
        if action == CONFLATE or any_full(at):
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
def _row_of(at: SliceAt, first: int) -> int:
    """Return the first row to deliver of the block at hand, from what was judged by its numbers.

    What was counted as duplicates are numbers: those that the block leaves out are taken off.
    """
    header = read_header(at.scratch + HEAD_AT)
    if header.flags & FLAG_SEQUENCES == 0:
        return first
    body = msg_data(at.scratch + BODY_AT)
    counters = slice_counters_at(at.counters)
    if first == DUPLICATE:
        counters.duplicates += header.count - span_of(header, body)
        return first
    row = row_from(header, body, first)
    counters.duplicates += row - first
    return row


@inner
def _deliver_held(at: SliceAt, table: TableAt, trie: Trie, key: int, force: int, until: int) -> int:
    """Deliver the held blocks of a key, before sequence `until`, whose turn has come: 0 or FAILED."""
    now = now_ns()
    while True:
        place = next_ready(at.sequences, key, now, force, until)
        if place < 0:
            settle(at.sequences, key, now, until)
            return 0
        first = release(at.sequences, place)
        _take_back(at, place)
        first_row = _row_of(at, first)
        if first_row != DUPLICATE:
            result = _deliver(at, table, trie, first_row, now)
            if result != 0:
                return result


@njit(nogil=True, cache=True)
def deliver_all_held(at: SliceAt, table: TableAt, trie: Trie, force: int) -> int:
    """The same for every key. `force`: all of them, gaps or not."""
    place = held_place(at.sequences, 0)
    while place >= 0:
        result = _deliver_held(at, table, trie, key_at(at.sequences, place), force, _END)
        if result != 0:
            return result
        place = held_place(at.sequences, place + 1)
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
    if slice_counters_at(at.counters).held == 0:
        return 0
    return _held_first(at, table, trie, _ALL_KEYS, force, _END)


@inner
def line_of(at: SliceAt, header: Header) -> int:
    """The line that a block came on."""
    return 1 if header.flags & FLAG_LINE_B and at.sequences.lines > 1 else 0


@inner
def order(at: SliceAt, table: TableAt, trie: Trie, now: int) -> int:
    """Judge the checked block at hand by its sequence; deliver what may go: 0 or FAILED."""
    counters = slice_counters_at(at.counters)
    header = read_header(at.scratch + HEAD_AT)
    epoch = header.epoch
    line = line_of(at, header)
    key = number_of(at.sequences.keys, msg_data(at.scratch + KEY_AT), msg_size(at.scratch + KEY_AT))
    if key == FULL:
        counters.untracked += header.count
        return _deliver(at, table, trie, _NO, now)
    entered = enter_epoch(at.sequences, epoch, line, now)
    if entered == STALE:
        counters.stale += header.count
        return 0
    if entered == NEW and counters.held > 0:
        result = _held_first(at, table, trie, _ALL_KEYS, _YES, _END)
        if result != 0:
            return result
    span = span_of(header, msg_data(at.scratch + BODY_AT))
    verdict = judge(at.sequences, key, line, epoch, header.sequence, span, now, _NO)
    if verdict == MAKE_ROOM:
        result = _held_first(at, table, trie, key, _NO, header.sequence)
        if result != 0:
            return result
        verdict = judge(at.sequences, key, line, epoch, header.sequence, span, now, _NO)
    if verdict == MAKE_ROOM:
        result = _held_first(at, table, trie, key, _YES, header.sequence)
        if result != 0:
            return result
        verdict = judge(at.sequences, key, line, epoch, header.sequence, span, now, _YES)
    result = 0
    if verdict == HOLD:
        _put_aside(at, hold(at.sequences, key, header.sequence, span, now))
    else:
        first_row = _row_of(at, verdict)
        if first_row != DUPLICATE:
            result = _deliver(at, table, trie, first_row, now)
    if result == 0 and counters.held > 0:
        result = _deliver_held(at, table, trie, key, _NO, _END)
    return result
