"""Deliver the current block and due held blocks, under the slow-subscriber policy.

Compiled code of the slice thread. The decisions are in `receive/order/`.
"""

from __future__ import annotations

import numpy

from blackbox.block.form.format import (
    FLAG_LATE,
    FLAG_LINE_B,
    FLAG_RECORDED,
    FLAG_SEQUENCES,
    HEADER_BYTES,
    MAX_SEQUENCE,
    Header,
    block_header_at,
    read_header,
    row_from,
)
from blackbox.native.memory.intrinsics import copy_bytes, inner
from blackbox.native.system.posix import monotonic_ns, now_ns, poke
from blackbox.native.tables.name_table import FULL
from blackbox.native.tables.prefix_trie import Trie
from blackbox.receive.deliver.conflation import absorb, flush, pending
from blackbox.receive.deliver.dispatch import DueBlock, any_full, dispatch
from blackbox.receive.deliver.worker_queues import tell_live, tell_losses
from blackbox.receive.order.held import let_go
from blackbox.receive.order.losses import has_losses
from blackbox.receive.order.order import next_ready, refute, release, settle
from blackbox.receive.order.repair import goes_live
from blackbox.receive.order.state import NONE, Verdict, held_block, is_unsettled, key_state, order_state_at
from blackbox.receive.slice_memory import (
    BODY_AT,
    COPY_AT,
    HEAD_AT,
    HELD_MESSAGE_BYTES,
    SliceAt,
    TableAt,
)
from blackbox.receive.slow_subscriber import Action, act_on_lag, age_of, is_over, lag_of
from blackbox.receive.state import HELD_MS, slice_counters_at, slice_state_at
from blackbox.transport.libzmq import msg_close, msg_data, msg_init, msg_init_size, msg_move, msg_size

# Pass these as int64, not as literals: numba would compile the callee for each literal.
NO = numpy.int64(0)
YES = numpy.int64(1)
ALL = numpy.int64(MAX_SEQUENCE + 1)
"""A sequence after all others."""
ARCHIVE = 2
"""Instead of a line: blocks from archives."""
_SHARED_BYTES = 8_192
"""Smaller bodies may share a large buffer of libzmq's, and a held body would keep the whole buffer."""


@inner
def note_late(at: SliceAt, key: int) -> None:
    """Set FLAG_LATE in the current header if earlier messages of its key were not received."""
    if at.handler.function != 0:
        return  # it takes the header unchanged
    if key == FULL or key_state(at.order, key).is_late != 0:
        block_header_at(at.scratch + HEAD_AT).flags |= FLAG_LATE


@inner
def deliver_block(at: SliceAt, table: TableAt, trie: Trie, first_row: int, now: int) -> int:
    """Deliver the current block under the slow-subscriber policy. Return 0 or FAILED."""
    block = DueBlock(at.scratch + HEAD_AT, at.scratch + BODY_AT, first_row, now, NO)
    if is_over(at):
        return dispatch(at, table, trie, block, NO)
    header = read_header(block.head)
    action = Action.PROCEED
    if header.flags & FLAG_RECORDED == 0:
        action = act_on_lag(at, lag_of(at, header.ts_out, now), age_of(at, header.ts_in, now))
    if action != Action.PROCEED:
        slice_counters_at(at.counters).slow += 1
    if action == Action.DROP:
        return dispatch(at, table, trie, block, YES)
    if at.action == Action.CONFLATE:
        if action != Action.CONFLATE and pending(at) > 0:
            result = flush(at, table, trie, now, NO)
            if result != 0:
                return result
        if action == Action.CONFLATE or pending(at) > 0 or any_full(at):
            return absorb(at, table, trie, block)
    if has_losses(at.order):
        result = tell_losses(at, table, header.ts_out)
        if result != 0:
            return result
    return dispatch(at, table, trie, block, NO)


@inner
def tell_shown_losses(at: SliceAt, table: TableAt) -> int:
    """Report losses before the current block, unless older messages wait. Return 0 or FAILED."""
    if not has_losses(at.order) or (at.action == Action.CONFLATE and pending(at) > 0):
        return 0
    return tell_losses(at, table, read_header(at.scratch + HEAD_AT).ts_out)


@inner
def put_aside(at: SliceAt, place: int) -> None:
    """Move the current block to a place for held blocks."""
    held = at.held_messages + HELD_MESSAGE_BYTES * place
    copy_bytes(held, at.scratch + HEAD_AT, HEADER_BYTES)
    msg_init(held + HEADER_BYTES)
    msg_move(held + HEADER_BYTES, at.scratch + BODY_AT)


@inner
def leave_shared_buffer(at: SliceAt) -> bool:
    """Copy a small body into separate memory. Return False if out of memory."""
    body, fresh = at.scratch + BODY_AT, at.scratch + COPY_AT
    size = msg_size(body)
    if size > _SHARED_BYTES:
        return True
    if msg_init_size(fresh, size) != 0:
        return False
    copy_bytes(msg_data(fresh), msg_data(body), size)
    msg_move(body, fresh)
    msg_close(fresh)
    return True


@inner
def take_back(at: SliceAt, place: int) -> None:
    """Make a held block the current block."""
    held = at.held_messages + HELD_MESSAGE_BYTES * place
    copy_bytes(at.scratch + HEAD_AT, held, HEADER_BYTES)
    msg_move(at.scratch + BODY_AT, held + HEADER_BYTES)
    msg_close(held + HEADER_BYTES)


@inner
def _row_of(at: SliceAt, first: int) -> int:
    """Return the first row to deliver of the current block, by the offset of its first new sequence."""
    header = read_header(at.scratch + HEAD_AT)
    if header.flags & FLAG_SEQUENCES == 0:
        return first
    row: int = row_from(header, msg_data(at.scratch + BODY_AT), first)
    return row


@inner
def live_row_of(at: SliceAt, first: int) -> int:
    """Do the same for a live block. Sequences that it omits were counted as duplicates; subtract them."""
    row: int = _row_of(at, first)
    slice_counters_at(at.counters).duplicates += row - first
    return row


@inner
def deliver_held(at: SliceAt, table: TableAt, trie: Trie, before: int) -> int:
    """Deliver due held blocks, without a current block. Return 0 or FAILED. `before`: see `next_ready`.

    Then, unless `before` is set, find missing messages after them with the newest heartbeat.
    """
    now, tick = now_ns(), monotonic_ns()
    while True:
        place = next_ready(at.order, tick, before)
        if place == NONE:
            if before == 0 and is_unsettled(order_state_at(at.order.state)):
                settle(at.order, tick)
            return tell_shown_losses(at, table)
        key, came = held_block(at.order, place).key, held_block(at.order, place).came_ns
        first = release(at.order, place)
        take_back(at, place)
        if first != Verdict.DUPLICATE:
            first_row = live_row_of(at, first)
            state = slice_state_at(at.state)
            state.excused_ns = now - came if came != 0 else 0
            note_late(at, key)
            result = deliver_block(at, table, trie, first_row, came if came != 0 else now)
            state.excused_ns = 0
            if result != 0:
                return result


@inner
def go_on(at: SliceAt, table: TableAt, trie: Trie, before: int) -> int:
    """Switch to live if possible. Deliver held blocks as `deliver_held` does. Return 0 or FAILED."""
    if has_losses(at.order):
        result = tell_losses(at, table, now_ns())
        if result != 0:
            return result
    is_new = goes_live(at.order)
    if is_new:
        result = tell_live(at, table)
        poke(at.news_fd, at.state)
        if result != 0:
            return result
    if slice_counters_at(at.counters).held == 0 and not is_new:
        return 0
    return deliver_held(at, table, trie, before)


@inner
def deliver_recorded(at: SliceAt, table: TableAt, trie: Trie, key: int, verdict: int, now: int) -> int:
    """Deliver the current block, which is from an archive. Return 0 or FAILED."""
    header = read_header(at.scratch + HEAD_AT)
    first_row = _row_of(at, verdict)
    slice_counters_at(at.counters).repaired += header.count - first_row
    state = slice_state_at(at.state)
    state.excused_ns = now - min(header.ts_out, header.ts_in)
    note_late(at, key)
    result = deliver_block(at, table, trie, first_row, now)
    state.excused_ns = 0
    return result


@inner
def look_at_held(at: SliceAt, table: TableAt, trie: Trie, tick: int) -> int:
    """Periodically deliver blocks that were held long enough, or for a dead line. Return 0 or FAILED."""
    state = slice_state_at(at.state)
    if tick < state.look_at_held_ns or (
        slice_counters_at(at.counters).held == 0 and not is_unsettled(order_state_at(at.order.state))
    ):
        return 0
    state.look_at_held_ns = tick + HELD_MS * 1_000_000
    return deliver_held(at, table, trie, NO)


@inner
def line_of(at: SliceAt, header: Header) -> int:
    """Return the line of a block, or ARCHIVE."""
    if header.flags & FLAG_RECORDED:
        return ARCHIVE
    return 1 if header.flags & FLAG_LINE_B and at.order.lines > 1 else 0


@inner
def drop_refuted(at: SliceAt, line: int) -> None:
    """Drop a line's block with a rejected sequence, if any."""
    place = refute(at.order, line)
    if place != NONE:
        held = at.held_messages + HELD_MESSAGE_BYTES * place
        slice_counters_at(at.counters).implausible += read_header(held).count
        msg_close(held + HEADER_BYTES)


@inner
def let_all_go(at: SliceAt) -> None:
    """Drop all held blocks. They are read from archives later."""
    place = let_go(at.order)
    while place != NONE:
        msg_close(at.held_messages + HELD_MESSAGE_BYTES * place + HEADER_BYTES)
        place = let_go(at.order)
