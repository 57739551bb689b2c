"""Judge blocks of a slice, live and from archives: deliver, hold or drop them.

Compiled; runs in the slice thread. The decisions are in `receive/order/`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy

from blackbox.block.form.format import FLAG_IMAGE, HEADER_BYTES, HEARTBEAT_KEY, Header, read_header, span_of
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import inner, int64s_at
from blackbox.native.system.posix import monotonic_ns, now_ns
from blackbox.native.tables.name_table import FULL
from blackbox.native.tables.prefix_trie import Trie, longest_prefix
from blackbox.receive.clocks import clock_state_at, note_clocks
from blackbox.receive.deliver.conflation import flush, pending
from blackbox.receive.deliver.deliver_in_order import (
    ALL,
    NO,
    YES,
    deliver_block,
    deliver_held,
    deliver_recorded,
    drop_refuted,
    go_on,
    leave_shared_buffer,
    let_all_go,
    line_of,
    live_row_of,
    look_at_held,
    note_late,
    put_aside,
    take_back,
)
from blackbox.receive.deliver.worker_queues import fail, tell_losses
from blackbox.receive.order.epoch_changes import begin_live_epoch, enter_archived, leaves_to_archives, note_told
from blackbox.receive.order.epochs import EpochVerdict, epoch_before, epoch_state_at, judge_epoch
from blackbox.receive.order.held import hold
from blackbox.receive.order.losses import has_losses, number_key
from blackbox.receive.order.order import believed, judge, keep_doubted, note_end, note_ends, settle
from blackbox.receive.order.repair import give_up, is_void, judge_recorded, note_gone, note_passed
from blackbox.receive.order.state import NONE, Verdict, order_state_at
from blackbox.receive.slice_memory import (
    AT_BEGIN,
    BODY_AT,
    DOUBTED_AT,
    HEAD_AT,
    HELD_MESSAGE_BYTES,
    KEY_AT,
    PARKED,
    SliceAt,
    TableAt,
)
from blackbox.receive.slow_subscriber import Action
from blackbox.receive.state import Reason, slice_counters_at, slice_state_at
from blackbox.transport.libzmq import msg_close, msg_data, msg_size


class Note(IntEnum):
    """Kind of a note between blocks from archives: the first of its four int64."""

    BEGIN = 0
    """The following blocks and notes belong to this request."""
    PASSED = 1
    """Archives have delivered an epoch up to a sequence."""
    ALL = 2
    """The same, and archives have no more at present."""
    GONE = 3
    """Archives lack the next messages, up to a sequence of an epoch."""
    TOLD = 4
    """End of an ended epoch, from archives."""
    END = 5
    """End of a key at that position: epoch, end and count."""
    GIVE_UP = 6
    """Archives lack messages or do not answer: switch to live messages with a gap."""


_BEGIN: Final = int(Note.BEGIN)
_PASSED: Final = int(Note.PASSED)
_ALL: Final = int(Note.ALL)
_GONE: Final = int(Note.GONE)
_TOLD: Final = int(Note.TOLD)
_END: Final = int(Note.END)
_GIVE_UP: Final = int(Note.GIVE_UP)


@inner
def in_force(at: SliceAt, line: int) -> int:
    """Return 1 if a line carries data and its publisher has confirmed the newest filters."""
    return ((slice_state_at(at.state).confirmed_lines & at.order.data_lines) >> line) & 1


@inner
def drop_all_doubted(at: SliceAt) -> None:
    """Drop all blocks of unconfirmed epochs and implausible sequences."""
    for line in range(2):
        drop_doubted(at, line)
        drop_refuted(at, line)


@njit(nogil=True, cache=True)
def drop_doubted(at: SliceAt, line: int) -> None:
    """Drop the block of a rejected epoch that a line has sent, if any."""
    state = epoch_state_at(at.order.epochs)
    if state.doubted_key[line] != 0:
        state.doubted_key[line] = 0
        held = at.held_messages + HELD_MESSAGE_BYTES * (DOUBTED_AT + line)
        slice_counters_at(at.counters).implausible += read_header(held).count
        msg_close(held + HEADER_BYTES)


@inner
def believe(at: SliceAt, line: int, sequence: int, tick: int) -> None:
    """Confirm or reject a line's earlier implausible sequence with its present one."""
    state = order_state_at(at.order.state)
    if state.doubted[line] != 0 and not believed(at.order, line, sequence, tick):
        drop_refuted(at, line)


@inner
def _order_live(at: SliceAt, table: TableAt, trie: Trie, key: int, header: Header, now: int, tick: int) -> int:
    """Judge the current block, of the live epoch, and deliver what is in order. Return 0 or FAILED."""
    line, counters = line_of(at, header), slice_counters_at(at.counters)
    span = span_of(header, msg_data(at.scratch + BODY_AT))
    believe(at, line, header.sequence, tick)
    verdict = judge(at.order, key, line, header, span, in_force(at, line), NO)
    if verdict == Verdict.MAKE_ROOM:
        put_aside(at, numpy.int64(PARKED))
        if go_on(at, table, trie, header.sequence) != 0:
            return Reason.FAILED
        take_back(at, numpy.int64(PARKED))
        verdict = judge(at.order, key, line, header, span, in_force(at, line), YES)
    result = numpy.int64(0)
    if verdict == Verdict.HOLD:
        if not leave_shared_buffer(at):
            return fail(at)
        came = now if at.order.repairs != 0 else 0
        put_aside(at, hold(at.order, key, header, span, tick, came))
    elif verdict == Verdict.LET_GO:
        let_all_go(at)
        counters.let_go += header.count
    elif verdict == Verdict.IMPLAUSIBLE:
        place = keep_doubted(at.order, key, line, header, span, now)
        if place == NONE:
            counters.implausible += header.count
        elif not leave_shared_buffer(at):
            return fail(at)
        else:
            put_aside(at, place)
    elif verdict != Verdict.DUPLICATE:
        note_late(at, key)
        result = deliver_block(at, table, trie, live_row_of(at, verdict), now)
    if result == 0:
        result = go_on(at, table, trie, NO)
    return result if result != 0 else look_at_held(at, table, trie, tick)


@inner
def _deliver_doubted(at: SliceAt, table: TableAt, trie: Trie, line: int) -> int:
    """Deliver a line's block of the new epoch that was kept until the epoch was confirmed. Return 0 or FAILED."""
    state = epoch_state_at(at.order.epochs)
    place = DOUBTED_AT + line
    key, came = state.doubted_key[line] - 1, state.doubted_ns[line]
    if key < 0 or read_header(at.held_messages + HELD_MESSAGE_BYTES * place).epoch != state.epoch:
        drop_doubted(at, line)
        return 0
    state.doubted_key[line] = 0
    take_back(at, place)
    slice_state_at(at.state).excused_ns = now_ns() - came
    result = _order_live(at, table, trie, key, read_header(at.scratch + HEAD_AT), came, monotonic_ns())
    slice_state_at(at.state).excused_ns = 0
    return result


@inner
def _line_of_first_doubted(at: SliceAt) -> int:
    """Return the line whose kept block comes first."""
    state = epoch_state_at(at.order.epochs)
    if state.doubted_key[0] == 0 or state.doubted_key[1] == 0:
        return 0
    first = read_header(at.held_messages + HELD_MESSAGE_BYTES * DOUBTED_AT)
    second = read_header(at.held_messages + HELD_MESSAGE_BYTES * (DOUBTED_AT + 1))
    return numpy.int64(second.sequence < first.sequence)


@njit(nogil=True, cache=True)
def _deliver_waiting(at: SliceAt, table: TableAt, trie: Trie) -> int:
    """Deliver conflated messages before another epoch begins, whose losses come after them. Return 0 or FAILED."""
    if at.action != Action.CONFLATE or pending(at) == 0:
        return 0
    result: int = flush(at, table, trie, now_ns(), YES)
    return result


@njit(nogil=True, cache=True)
def begin_epoch(at: SliceAt, table: TableAt, trie: Trie) -> int:
    """Leave the previous epoch, then deliver the kept blocks of this one. Return 0 or FAILED."""
    put_aside(at, numpy.int64(AT_BEGIN))
    epochs, result = epoch_state_at(at.order.epochs), numpy.int64(0)
    for line in range(2):
        drop_refuted(at, line)
    if leaves_to_archives(at.order):
        let_all_go(at)
    else:
        result = deliver_held(at, table, trie, ALL)
        if result == 0:
            result = _deliver_waiting(at, table, trie)
    if result == 0:
        begin_live_epoch(at.order, epoch_before(epochs))
        if has_losses(at.order):
            result = tell_losses(at, table, now_ns())
    first = _line_of_first_doubted(at)
    for line in (first, 1 - first):
        if result == 0:
            result = _deliver_doubted(at, table, trie, line)
    take_back(at, numpy.int64(AT_BEGIN))
    return result


@njit(nogil=True, cache=True)
def enter_epoch(at: SliceAt, epoch: int, line: int, proven: int, tick: int) -> int:
    """Note a block of an epoch on a line; return the verdict of `judge_epoch`."""
    return judge_epoch(epoch_state_at(at.order.epochs), slice_counters_at(at.counters), epoch, line, proven, tick)


@inner
def _enter(at: SliceAt, table: TableAt, trie: Trie, key: int, header: Header, tick: int) -> int:
    """Judge the epoch of the current block: SAME, NEW or FAILED; or STALE or DOUBTED, which ends its handling."""
    line = line_of(at, header)
    entered = enter_epoch(at, header.epoch, line, NO, tick)
    state = slice_state_at(at.state)
    if entered == EpochVerdict.SAME:
        return EpochVerdict.SAME
    if entered == EpochVerdict.NEW:
        state.confirmed_lines = 0  # Python then asks for a confirmation at the next heartbeat
        result = begin_epoch(at, table, trie)
        return EpochVerdict.NEW if result == 0 else result
    drop_doubted(at, line)
    if entered == EpochVerdict.STALE:
        slice_counters_at(at.counters).stale += header.count
        return EpochVerdict.STALE
    if entered == EpochVerdict.DOUBTED:
        put_aside(at, DOUBTED_AT + line)
        epochs = epoch_state_at(at.order.epochs)
        epochs.doubted_key[line] = key + 1
        epochs.doubted_ns[line] = now_ns()
        return EpochVerdict.DOUBTED
    return EpochVerdict.SAME


@inner
def order(at: SliceAt, table: TableAt, trie: Trie, now: int, tick: int) -> int:
    """Judge the current block, already checked, and deliver what is in order. Return 0 or FAILED."""
    counters = slice_counters_at(at.counters)
    header = read_header(at.scratch + HEAD_AT)
    epoch, line = header.epoch, line_of(at, header)
    key = number_key(at.order, msg_data(at.scratch + KEY_AT), msg_size(at.scratch + KEY_AT))
    if key == FULL:
        epoch_state_at(at.order.epochs).heard_ns[line] = tick
        counters.untracked += header.count
        note_late(at, key)
        return deliver_block(at, table, trie, NO, now)
    entered = _enter(at, table, trie, key, header, tick)
    if entered in (EpochVerdict.STALE, EpochVerdict.DOUBTED):
        return 0
    if entered == Reason.FAILED:
        return Reason.FAILED
    if entered == EpochVerdict.NEW:  # numbers of keys may have changed
        key = number_key(at.order, msg_data(at.scratch + KEY_AT), msg_size(at.scratch + KEY_AT))
    state = slice_state_at(at.state)
    untrue_end = state.finished_lines & (1 << line)
    if untrue_end != 0:
        state.finished_lines &= ~untrue_end
        state.confirmed_lines &= ~untrue_end  # the end has withdrawn our acceptance; ask again at the next heartbeat
    note_clocks(clock_state_at(at.clock), counters, epoch, line, header.ts_out, now)
    return _order_live(at, table, trie, key, header, now, tick)


@njit(nogil=True, cache=True)
def take_ends(at: SliceAt, filters: Trie, line: int, is_in_force: int, tick: int) -> bool:
    """Store the ends in the present control block of the live epoch. Return False if they are implausible."""
    head, body = at.scratch + HEAD_AT, msg_data(at.scratch + BODY_AT)
    believe(at, line, read_header(head).sequence, tick)
    is_answer = msg_size(at.scratch + KEY_AT) != len(HEARTBEAT_KEY)
    good: bool = note_ends(at.order, filters, head, body, line, is_in_force, is_answer)
    return good


@njit(nogil=True, cache=True)
def look_at_end(at: SliceAt, table: TableAt, trie: Trie, tick: int) -> int:
    """Find missing messages before the newest heartbeat of a line with confirmed filters. Return 0 or FAILED."""
    result = go_on(at, table, trie, NO)
    if result == 0:
        settle(at.order, tick)
        result = go_on(at, table, trie, NO)
    return result


# From archives


@inner
def _key_recorded(at: SliceAt, filters: Trie) -> int:
    """Return the number of the current block's key; FULL if there is no room or no callback wants it."""
    key, size = msg_data(at.scratch + KEY_AT), msg_size(at.scratch + KEY_AT)
    if longest_prefix(filters, key, size) == 0:
        return numpy.int64(FULL)
    number: int = number_key(at.order, key, size)
    return number


@inner
def _deliver_image(at: SliceAt, table: TableAt, trie: Trie, header: Header, now: int) -> int:
    """Deliver the current block, of an image, which precedes all sequences of the order. Return 0 or FAILED."""
    slice_counters_at(at.counters).repaired += header.count
    state = slice_state_at(at.state)
    state.excused_ns = now - header.ts_out
    result = deliver_block(at, table, trie, NO, now)
    state.excused_ns = 0
    return result


@inner
def _enter_archived(at: SliceAt, table: TableAt, trie: Trie, epoch: int, sequence: int) -> int:
    """Enter an epoch of archives, and report the losses before it. Return 0 or FAILED."""
    result = _deliver_waiting(at, table, trie) if epoch > order_state_at(at.order.state).epoch else 0
    while result == 0 and enter_archived(at.order, epoch, sequence):
        result = tell_losses(at, table, now_ns())
    return result


@inner
def order_recorded(at: SliceAt, table: TableAt, trie: Trie, filters: Trie, now: int) -> int:
    """Deliver the missing messages of the current block from an archive. Return 0 or FAILED."""
    header, state = read_header(at.scratch + HEAD_AT), order_state_at(at.order.state)
    if header.flags & FLAG_IMAGE:
        state.images -= 1
        return _deliver_image(at, table, trie, header, now)
    key = _key_recorded(at, filters)
    if key == FULL or header.epoch < state.epoch or is_void(at.order, state.answering):
        slice_counters_at(at.counters).stale += header.count
        return 0
    epoch = state.epoch
    if _enter_archived(at, table, trie, header.epoch, header.sequence) != 0:
        return Reason.FAILED
    if state.epoch != epoch:  # numbers of keys may have changed
        key = _key_recorded(at, filters)
    verdict = judge_recorded(at.order, key, header, span_of(header, msg_data(at.scratch + BODY_AT)))
    if verdict != Verdict.DUPLICATE and deliver_recorded(at, table, trie, key, verdict, now) != 0:
        return Reason.FAILED
    return go_on(at, table, trie, NO)


@inner
def take_note(at: SliceAt, table: TableAt, trie: Trie, filters: Trie) -> int:
    """Process the current note, sent between blocks of archives. Return 0 or FAILED."""
    note, state = int64s_at(msg_data(at.scratch + BODY_AT), 4), order_state_at(at.order.state)
    what, epoch, number = note[0], note[1], note[2]
    if what == _BEGIN:
        state.answering = number
        return 0
    if is_void(at.order, state.answering):
        return 0
    live = epoch_state_at(at.order.epochs).epoch
    result = numpy.int64(0)
    lines = slice_state_at(at.state).confirmed_lines & at.order.data_lines | slice_state_at(at.state).finished_lines
    if what in (_PASSED, _ALL):
        is_all = numpy.int64(what == _ALL)
        if note_passed(at.order, epoch, number, is_all, lines, monotonic_ns()):
            result = _enter_archived(at, table, trie, epoch, number)
            note_passed(at.order, epoch, number, NO, lines, monotonic_ns())
    elif what == _GONE:
        note_gone(at.order, epoch, number)
    elif what == _TOLD:
        note_told(at.order, epoch, number)
    elif what == _END:
        key = _key_recorded(at, filters)
        if key != FULL and epoch == state.epoch:
            note_end(at.order, key, epoch, number, note[3])
    elif what == _GIVE_UP and live != 0:
        result = _enter_archived(at, table, trie, live, NO)
        give_up(at.order, lines)
    return result if result != 0 else go_on(at, table, trie, NO)
