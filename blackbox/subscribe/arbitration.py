"""Judge what comes to a slice, live and from archives: deliver it, or let it wait for its turn.

Compiled; runs in the slice thread. What the numbers mean is in `gaps`.
"""

from __future__ import annotations

import numpy

from blackbox.block.format import (
    FLAG_IMAGE,
    HEADER_BYTES,
    Header,
    read_header,
    span_of,
)
from blackbox.native.intrinsics import inner, int64s_at
from blackbox.native.jit import njit
from blackbox.native.name_table import FULL
from blackbox.native.posix import monotonic_ns, now_ns
from blackbox.native.prefix_trie import Trie, longest_prefix
from blackbox.subscribe.clocks import clock_state_at, note_clocks
from blackbox.subscribe.doubt import keep_doubted, refute_all
from blackbox.subscribe.epochs import DOUBTED, NEW, SAME, STALE, epoch_before, epoch_state_at
from blackbox.subscribe.gaps import (
    DUPLICATE,
    HOLD,
    IMPLAUSIBLE,
    MAKE_ROOM,
    can_fall_back,
    enter_epoch,
    fall_back,
    has_room,
    hold,
    judge,
    lose_rests,
    note_ends,
    pass_by,
)
from blackbox.subscribe.held_blocks import NONE
from blackbox.subscribe.join_live import (
    go_over,
    go_over_with_gap,
    note_reached,
    order_joining,
    order_replayed,
    pass_gone,
    pass_quiet,
)
from blackbox.subscribe.join_state import (
    ANSWERS,
    BEGIN,
    FALLEN_BACK,
    GIVE_UP,
    GONE,
    LACKED,
    LIVE,
    PASSED,
    QUIET,
    REACHED,
    SWITCHING,
    is_joining,
    join_state_at,
)
from blackbox.subscribe.release import (
    ALL_KEYS,
    END,
    NO,
    YES,
    deliver_all_held,
    deliver_block,
    deliver_held,
    deliver_held_before,
    deliver_recorded,
    drop_refuted,
    leave_shared_buffer,
    let_all_go,
    line_of,
    look_at_held,
    note_late,
    put_aside,
    row_of,
    take_back,
    tell_shown_losses,
)
from blackbox.subscribe.sequences import (
    ARCHIVE,
    end_run,
    forget_live,
    has_losses,
    is_current,
    is_wanted,
    key_state,
    note_live,
    number_key,
)
from blackbox.subscribe.slice_memory import (
    AT_BEGIN,
    BODY_AT,
    DOUBTED_AT,
    HEAD_AT,
    HELD_MESSAGE_BYTES,
    KEY_AT,
    SliceAt,
    TableAt,
)
from blackbox.subscribe.state import FAILED, slice_counters_at, slice_state_at
from blackbox.subscribe.worker_queues import fail, tell_losses
from blackbox.transport.libzmq import msg_close, msg_data, msg_size

_FAILED = -7
_FELL_BACK = -8


@njit(nogil=True, cache=True)
def deliver_held_first(at: SliceAt, table: TableAt, trie: Trie, force: int) -> int:
    """Do as `deliver_all_held` while a received block is at hand: it is put aside, and comes back.

    Before that it tells of what the block shows to be missing.
    """
    drop_refuted(at)
    if is_joining(at.sequences.join):
        return go_over(at, table)
    result = tell_shown_losses(at, table)
    if result != 0:
        return result
    if slice_counters_at(at.counters).held == 0:
        return 0
    return deliver_held_before(at, table, trie, ALL_KEYS, force, END)


@inner
def drop_all_doubted(at: SliceAt) -> None:
    """Drop all that is not believed yet."""
    for line in range(2):
        drop_doubted(at, line)
    refute_all(at.sequences)
    drop_refuted(at)


@njit(nogil=True, cache=True)
def drop_doubted(at: SliceAt, line: int) -> None:
    """Drop the block that a line brought of an epoch that turned out not to be true, if there is one."""
    state = epoch_state_at(at.sequences.state)
    if state.doubted_key[line] != 0:
        state.doubted_key[line] = 0
        held = at.held_messages + HELD_MESSAGE_BYTES * (DOUBTED_AT + line)
        slice_counters_at(at.counters).implausible += read_header(held).count
        msg_close(held + HEADER_BYTES)


@inner
def _judge(at: SliceAt, table: TableAt, trie: Trie, key: int, header: Header, span: int, tick: int) -> int:
    """Judge the numbers of the block at hand; make room for it, if need be, by delivering held ones. Or _FAILED."""
    line, size = line_of(at, header), header.body_bytes
    verdict = judge(at.sequences, key, line, header.epoch, header.sequence, span, size, tick, NO)
    is_full = verdict == MAKE_ROOM and line != ARCHIVE and not has_room(at.sequences, size)
    if is_full and can_fall_back(at.sequences, at.key_bytes != 0):
        let_all_go(at)
        forget_live(at.sequences)
        fall_back(at.sequences, key_state(at.sequences, key).epoch)
        return _FELL_BACK
    for force in range(2):
        if verdict != MAKE_ROOM:
            return verdict
        if deliver_held_before(at, table, trie, key, force, header.sequence) != 0:
            return _FAILED
        verdict = judge(at.sequences, key, line, header.epoch, header.sequence, span, size, tick, force)
    return verdict


@inner
def _doubt(at: SliceAt, key: int, header: Header, span: int, now: int) -> int:
    """Keep the block at hand until its number is believed, if there is room: 0 or FAILED."""
    line, size = line_of(at, header), header.body_bytes
    place = keep_doubted(at.sequences, key, line, header.sequence, span, size, now)
    if place == NONE:
        slice_counters_at(at.counters).implausible += header.count
        return 0
    if not leave_shared_buffer(at):
        return fail(at)
    put_aside(at, place)
    return 0


@inner
def _key_recorded(at: SliceAt, filters: Trie) -> int:
    """Return the number of the key at hand, which archives have brought; FULL: there is no room, or nobody wants it."""
    key, size = msg_data(at.scratch + KEY_AT), msg_size(at.scratch + KEY_AT)
    if longest_prefix(filters, key, size) == 0:
        return numpy.int64(FULL)
    number: int = number_key(at.sequences, key, size)
    return number


@inner
def _deliver_image(at: SliceAt, table: TableAt, trie: Trie, header: Header, now: int) -> int:
    """Deliver the block at hand, which is of the image: before all that its numbers are judged with. 0 or FAILED."""
    slice_counters_at(at.counters).repaired += header.count
    state = slice_state_at(at.state)
    state.excused_ns = now - header.ts_out
    result = deliver_block(at, table, trie, numpy.int64(0), now)
    state.excused_ns = 0
    return result


@inner
def order_recorded(at: SliceAt, table: TableAt, trie: Trie, filters: Trie, now: int, tick: int) -> int:
    """Deliver what is missing of the block at hand, which an archive has brought, and what waited for it: 0 or FAILED.

    One of another epoch is of no use any more.
    """
    header = read_header(at.scratch + HEAD_AT)
    if header.flags & FLAG_IMAGE:
        return _deliver_image(at, table, trie, header, now)
    key = _key_recorded(at, filters)
    if key != FULL and is_joining(at.sequences.join):
        if join_state_at(at.sequences.join).phase == FALLEN_BACK:
            return 0  # archives bring it once more
        return order_replayed(at, table, trie, key, header, now, tick)
    if join_state_at(at.sequences.join).has_left_over != 0:
        return 0  # it comes live; and archives were not asked for what is before it
    if key == FULL or not is_wanted(at.sequences, key, header.epoch):
        slice_counters_at(at.counters).stale += header.count
        return 0
    if slice_counters_at(at.counters).held > 0:
        # Archives have nothing more before it: what waited for that goes first, of which it may be a copy.
        pass_by(at.sequences, key, header.epoch, header.sequence)
        if deliver_held_before(at, table, trie, key, NO, END) != 0:
            return FAILED
    span = span_of(header, msg_data(at.scratch + BODY_AT))
    verdict = _judge(at, table, trie, key, header, span, tick)
    if verdict == _FAILED:
        return FAILED
    if verdict == HOLD:  # a line that is alive may bring what is missing here
        put_aside(at, hold(at.sequences, key, header.sequence, span, header.body_bytes, tick, now))
        return 0
    return deliver_recorded(at, table, trie, key, verdict, now)


@inner
def take_note(at: SliceAt, table: TableAt, trie: Trie, filters: Trie) -> int:
    """Take the note at hand, which comes between what archives have brought: 0 or FAILED."""
    key = _key_recorded(at, filters)
    note = int64s_at(msg_data(at.scratch + BODY_AT), 3)
    what, epoch, number = note[0], note[1], note[2]
    join = join_state_at(at.sequences.join)
    result = 0
    if join.phase == FALLEN_BACK:
        if what == BEGIN and number == join.falls:
            join.phase = SWITCHING
    elif join.phase == LIVE:
        if what == ANSWERS and number == join.falls:
            join.has_left_over = 0
        elif what == PASSED and key != FULL and join.has_left_over == 0:
            pass_by(at.sequences, key, epoch, number)
            result = deliver_held(at, table, trie, key, NO, END)
    elif key != FULL and (what == GONE or (what == LACKED and is_current(at.sequences, epoch))):
        result = pass_gone(at, table, trie, key, epoch, number)
    elif key != FULL and what == QUIET and is_current(at.sequences, epoch):
        result = pass_quiet(at, table, trie, key, epoch, number)
    elif what == REACHED:
        result = note_reached(at, table, trie, epoch)
    elif what == GIVE_UP:
        result = go_over_with_gap(at, table, trie)
    return result


@inner
def _order_live(at: SliceAt, table: TableAt, trie: Trie, key: int, header: Header, now: int, tick: int) -> int:
    """Judge the block at hand, whose epoch goes on; deliver what may go: 0 or FAILED."""
    counters = slice_counters_at(at.counters)
    span = span_of(header, msg_data(at.scratch + BODY_AT))
    verdict = _judge(at, table, trie, key, header, span, tick)
    if verdict == _FAILED:
        return FAILED
    if verdict == _FELL_BACK:
        note_live(at.sequences, key, header.sequence + span)
        counters.let_go += span
        return 0
    result = 0
    if verdict == HOLD:
        if not leave_shared_buffer(at):
            return fail(at)
        came = now if at.sequences.asks != 0 else 0
        put_aside(at, hold(at.sequences, key, header.sequence, span, header.body_bytes, tick, came))
    elif verdict == IMPLAUSIBLE:
        result = _doubt(at, key, header, span, now)
    else:
        first_row = row_of(at, verdict)
        if first_row != DUPLICATE:
            note_late(at, key)
            result = deliver_block(at, table, trie, first_row, now)
    drop_refuted(at)
    if result == 0 and counters.held > 0:
        result = deliver_held(at, table, trie, key, NO, END)
    if result == 0:
        result = look_at_held(at, table, trie, tick)
    return result


@inner
def _deliver_doubted(at: SliceAt, table: TableAt, trie: Trie, line: int) -> int:
    """Deliver the block of the epoch that has begun which a line brought before it was believed: 0 or FAILED."""
    state = epoch_state_at(at.sequences.state)
    place = DOUBTED_AT + line
    key, came = state.doubted_key[line] - 1, state.doubted_ns[line]
    if key < 0 or read_header(at.held_messages + HELD_MESSAGE_BYTES * place).epoch != state.epoch:
        drop_doubted(at, line)
        return 0
    state.doubted_key[line] = 0
    take_back(at, place)
    slice_state_at(at.state).excused_ns = now_ns() - came
    header, tick = read_header(at.scratch + HEAD_AT), monotonic_ns()
    if is_joining(at.sequences.join):
        result = order_joining(at, table, trie, key, header, came, tick)
    else:
        result = _order_live(at, table, trie, key, header, came, tick)
    slice_state_at(at.state).excused_ns = 0
    return result


@inner
def _line_of_first_doubted(at: SliceAt) -> int:
    """Return the line whose doubted block goes before that of the other: the numbers of a new key begin with it."""
    state = epoch_state_at(at.sequences.state)
    if state.doubted_key[0] == 0 or state.doubted_key[1] == 0:
        return 0
    first = read_header(at.held_messages + HELD_MESSAGE_BYTES * DOUBTED_AT)
    second = read_header(at.held_messages + HELD_MESSAGE_BYTES * (DOUBTED_AT + 1))
    return numpy.int64(second.sequence < first.sequence)


@inner
def _falls_back_from(at: SliceAt) -> int:
    """Return the run with which archives are to go on, now that another one has begun; 0: they cannot, or do already.

    Without keys what is missing may be of a run before the last one, which has sent nothing.
    """
    if is_joining(at.sequences.join) or not can_fall_back(at.sequences, at.key_bytes != 0):
        return 0
    epochs = epoch_state_at(at.sequences.state)
    before = epoch_before(epochs) if at.key_bytes != 0 else key_state(at.sequences, 0).epoch
    return before if 0 < before < epochs.epoch else 0


@inner
def _leave_to_archives(at: SliceAt, before: int) -> None:
    """Leave a run to archives that has ended."""
    let_all_go(at)
    end_run(at.sequences, before)
    forget_live(at.sequences)


@njit(nogil=True, cache=True)
def begin_epoch(at: SliceAt, table: TableAt, trie: Trie) -> int:
    """Deliver what is held of the epoch before, then the doubted blocks of this one: 0 or FAILED.

    Archives do the first when they can: they have the rest of the one before, and the ones between that nobody heard.
    """
    put_aside(at, numpy.int64(AT_BEGIN))
    before, result = _falls_back_from(at), numpy.int64(0)
    if before != 0:
        note_ends(at.sequences, before)
        _leave_to_archives(at, before)
        fall_back(at.sequences, before)
    elif is_joining(at.sequences.join):
        _leave_to_archives(at, epoch_before(epoch_state_at(at.sequences.state)))
    else:
        result = deliver_all_held(at, table, trie, YES)
        if result == 0:
            lose_rests(at.sequences)
    if result == 0 and has_losses(at.sequences):
        result = tell_losses(at, table, now_ns())
    first = _line_of_first_doubted(at)
    for line in (first, 1 - first):
        if result == 0:
            result = _deliver_doubted(at, table, trie, line)
    take_back(at, numpy.int64(AT_BEGIN))
    return result


@inner
def _enter(at: SliceAt, table: TableAt, trie: Trie, key: int, header: Header, tick: int) -> int:
    """Judge the epoch of the block at hand: SAME or NEW; FAILED; or STALE or DOUBTED, and it is done with."""
    line = line_of(at, header)
    entered = enter_epoch(at.sequences, header.epoch, line, NO, tick)
    state = slice_state_at(at.state)
    if entered == SAME:
        return SAME
    if entered == NEW:
        state.confirmed_lines = 0  # its next heartbeat goes to Python, which asks it to confirm
        result = begin_epoch(at, table, trie)
        return NEW if result == 0 else result
    drop_doubted(at, line)
    if entered == STALE:
        slice_counters_at(at.counters).stale += header.count
        return STALE
    if entered == DOUBTED:
        put_aside(at, DOUBTED_AT + line)
        epochs = epoch_state_at(at.sequences.state)
        epochs.doubted_key[line] = key + 1
        epochs.doubted_ns[line] = now_ns()
        return DOUBTED
    return SAME


@inner
def order(at: SliceAt, table: TableAt, trie: Trie, now: int, tick: int) -> int:
    """Judge the checked block at hand by its sequence; deliver what may go: 0 or FAILED."""
    counters = slice_counters_at(at.counters)
    header = read_header(at.scratch + HEAD_AT)
    epoch = header.epoch
    line = line_of(at, header)
    key = number_key(at.sequences, msg_data(at.scratch + KEY_AT), msg_size(at.scratch + KEY_AT))
    if key == FULL:
        epoch_state_at(at.sequences.state).heard_ns[line] = tick
        counters.untracked += header.count
        note_late(at, key)
        return deliver_block(at, table, trie, NO, now)
    entered = _enter(at, table, trie, key, header, tick)
    if entered in (STALE, DOUBTED):
        return 0
    if entered == FAILED:
        return FAILED
    state = slice_state_at(at.state)
    untrue_end = state.finished_lines & (1 << line)
    if untrue_end != 0:
        state.finished_lines &= ~untrue_end
        state.confirmed_lines &= ~untrue_end  # the end has withdrawn our acceptance: the next heartbeat asks again
    note_clocks(clock_state_at(at.clock), counters, epoch, line, header.ts_out, now)
    if is_joining(at.sequences.join):
        return order_joining(at, table, trie, key, header, now, tick)
    return _order_live(at, table, trie, key, header, now, tick)
