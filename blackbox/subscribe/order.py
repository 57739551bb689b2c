"""Put the blocks of a slice in order, hold those that came early, and deliver those whose turn has come.

Compiled; runs in the slice thread. What the numbers mean is in `gaps`.
"""

from __future__ import annotations

import numpy

from blackbox.block.format import (
    FLAG_LINE_B,
    FLAG_RECORDED,
    FLAG_SEQUENCES,
    HEADER_BYTES,
    Header,
    read_header,
    row_from,
    span_of,
)
from blackbox.native.intrinsics import copy_bytes, inner, int64s_at
from blackbox.native.jit import njit
from blackbox.native.name_table import FULL, number_of
from blackbox.native.posix import monotonic_ns, now_ns, poke
from blackbox.native.prefix_trie import Trie
from blackbox.native.records import store_shared
from blackbox.subscribe.addresses import (
    BODY_AT,
    COPY_AT,
    DOUBTED_AT,
    HEAD_AT,
    HELD_MESSAGE_BYTES,
    KEY_AT,
    PARKED,
    SliceAt,
    TableAt,
)
from blackbox.subscribe.clocks import clock_state_at, note_clocks
from blackbox.subscribe.conflation import absorb, flush, pending
from blackbox.subscribe.dispatch import any_full, dispatch
from blackbox.subscribe.epochs import DOUBTED, NEW, SAME, STALE, epoch_before, epoch_state_at
from blackbox.subscribe.gaps import (
    ARCHIVE,
    DUPLICATE,
    HOLD,
    IMPLAUSIBLE,
    MAKE_ROOM,
    begin_recorded,
    came_at,
    can_fall_back,
    come_to,
    enter_epoch,
    fall_back,
    has_losses,
    has_room,
    hold,
    is_behind,
    is_wanted,
    judge,
    keep_doubted,
    key_at,
    known_end,
    let_go,
    lose_before,
    lose_rests,
    next_of_another_key,
    next_ready,
    next_refuted,
    oldest_held,
    pass_by,
    reaches,
    refute_all,
    release,
    settle,
)
from blackbox.subscribe.hand_over import fail, tell_live, tell_losses
from blackbox.subscribe.held import NONE
from blackbox.subscribe.join import (
    BEGIN,
    FALLEN_BACK,
    GIVE_UP,
    GONE,
    LIVE,
    MOST_ENDED,
    PASSED,
    REACHED,
    REPLAYING,
    SWITCHING,
    end_run,
    forget_live,
    is_joining,
    join_state_at,
    note_live,
)
from blackbox.subscribe.slow_subscriber import CONFLATE, DROP, PROCEED, act_on_lag, age_of, is_over, lag_of
from blackbox.subscribe.state import FAILED, HELD_MS, slice_counters_at, slice_state_at
from blackbox.transport.libzmq import msg_close, msg_data, msg_init, msg_init_size, msg_move, msg_size

# As arguments these are int64 rather than literals: numba would compile the callee once for each literal.
_ALL_KEYS = numpy.int64(-1)
_NO = numpy.int64(0)
_YES = numpy.int64(1)
_END = numpy.int64(numpy.iinfo(numpy.int64).max)
_FAILED = -7
_FELL_BACK = -8
_SHARED_BYTES = 8_192
"""Bodies up to this size may lie in a buffer of libzmq's that others share; one that waits would keep all of it."""


@inner
def _deliver(at: SliceAt, table: TableAt, trie: Trie, first_row: int, now: int) -> int:
    """Deliver the block at hand as the slow-subscriber policy has it: 0 or FAILED."""
    head, body_message = at.scratch + HEAD_AT, at.scratch + BODY_AT
    if is_over(at):
        return dispatch(at, table, trie, head, body_message, first_row, now, _NO, _NO)
    header = read_header(head)
    action = PROCEED
    if header.flags & FLAG_RECORDED == 0:
        action = act_on_lag(at, lag_of(at, header.ts_out, now), age_of(at, header.ts_in, now))
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
    if has_losses(at.sequences):
        result = tell_losses(at, table, header.ts_out)
        if result != 0:
            return result
    return dispatch(at, table, trie, head, body_message, first_row, now, _NO, _NO)


@inner
def _tell_losses(at: SliceAt, table: TableAt) -> int:
    """Tell of what the block at hand shows to be missing, unless older messages still wait: 0 or FAILED."""
    if not has_losses(at.sequences) or (at.action == CONFLATE and pending(at) > 0):
        return 0
    return tell_losses(at, table, read_header(at.scratch + HEAD_AT).ts_out)


@inner
def _put_aside(at: SliceAt, place: int) -> None:
    held = at.held_messages + HELD_MESSAGE_BYTES * place
    copy_bytes(held, at.scratch + HEAD_AT, HEADER_BYTES)
    msg_init(held + HEADER_BYTES)
    msg_move(held + HEADER_BYTES, at.scratch + BODY_AT)


@inner
def _leave_shared_buffer(at: SliceAt) -> bool:
    """Move a small body into memory of its own."""
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
    now, tick = now_ns(), monotonic_ns()
    while True:
        place = next_ready(at.sequences, key, tick, force, until)
        if place == NONE:
            settle(at.sequences, key, tick, until)
            return _tell_losses(at, table)
        came = came_at(at.sequences, place)
        first = release(at.sequences, place)
        _take_back(at, place)
        first_row = _row_of(at, first)
        if first_row != DUPLICATE:
            state = slice_state_at(at.state)
            state.excused_ns = now - came if came != 0 else 0
            result = _deliver(at, table, trie, first_row, came if came != 0 else now)
            state.excused_ns = 0
            if result != 0:
                return result


@njit(nogil=True, cache=True)
def deliver_all_held(at: SliceAt, table: TableAt, trie: Trie, force: int) -> int:
    """The same for every key. `force`: all of them, gaps or not."""
    place = oldest_held(at.sequences)
    while place != NONE:
        key = key_at(at.sequences, place)
        place = next_of_another_key(at.sequences, place)  # before blocks of this key go
        result = _deliver_held(at, table, trie, key, force, _END)
        if result != 0:
            return result
    return 0


@inner
def look_at_held(at: SliceAt, table: TableAt, trie: Trie, tick: int) -> int:
    """Now and then deliver of every key what has waited long enough, or for a line that is dead: 0 or FAILED."""
    state = slice_state_at(at.state)
    if slice_counters_at(at.counters).held == 0 or tick < state.look_at_held_ns:
        return 0
    state.look_at_held_ns = tick + HELD_MS * 1_000_000
    return deliver_all_held(at, table, trie, _NO)


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
    """As `deliver_all_held`, for when a received block is still being read: it comes back.

    Before that it tells of what the block shows to be missing.
    """
    _drop_refuted(at)
    if is_joining(at.sequences.join):
        return _go_over(at, table, 0)
    result = _tell_losses(at, table)
    if result != 0:
        return result
    if slice_counters_at(at.counters).held == 0:
        return 0
    return _held_first(at, table, trie, _ALL_KEYS, force, _END)


@inner
def line_of(at: SliceAt, header: Header) -> int:
    """The line that a block came on, or ARCHIVE."""
    if header.flags & FLAG_RECORDED:
        return ARCHIVE
    return 1 if header.flags & FLAG_LINE_B and at.sequences.lines > 1 else 0


@inner
def _drop_refuted(at: SliceAt) -> None:
    """Drop kept blocks of numbers that turned out not to be true."""
    place = next_refuted(at.sequences)
    while place != NONE:
        held = at.held_messages + HELD_MESSAGE_BYTES * place
        slice_counters_at(at.counters).implausible += read_header(held).count
        msg_close(held + HEADER_BYTES)
        place = next_refuted(at.sequences)


@njit(nogil=True, cache=True)
def drop_all_doubted(at: SliceAt) -> None:
    """Drop all that is not believed yet."""
    drop_doubted(at)
    refute_all(at.sequences)
    _drop_refuted(at)


@njit(nogil=True, cache=True)
def drop_doubted(at: SliceAt) -> None:
    """Drop the block of an epoch that turned out not to be true, if there is one."""
    state = epoch_state_at(at.sequences.state)
    if state.doubted_key != 0:
        state.doubted_key = 0
        held = at.held_messages + HELD_MESSAGE_BYTES * DOUBTED_AT
        slice_counters_at(at.counters).implausible += read_header(held).count
        msg_close(held + HEADER_BYTES)


@inner
def _deliver_doubted(at: SliceAt, table: TableAt, trie: Trie) -> int:
    """Deliver the first block of the epoch that has begun, if it came before the epoch was believed: 0 or FAILED."""
    state = epoch_state_at(at.sequences.state)
    key = state.doubted_key - 1
    header = read_header(at.held_messages + HELD_MESSAGE_BYTES * DOUBTED_AT)
    if key < 0 or header.epoch != state.epoch:
        drop_doubted(at)
        return 0
    state.doubted_key = 0
    _take_back(at, numpy.int64(DOUBTED_AT))
    line, size, tick = line_of(at, header), header.body_bytes, monotonic_ns()
    span = span_of(header, msg_data(at.scratch + BODY_AT))
    judge(at.sequences, key, line, header.epoch, header.sequence, span, size, tick, _YES)
    return _deliver(at, table, trie, _NO, now_ns())


@njit(nogil=True, cache=True)
def begin_epoch(at: SliceAt, table: TableAt, trie: Trie) -> int:
    """Deliver what is held of the epoch before, then the doubted block of this one: 0 or FAILED.

    Archives do both when they can: they have the rest of the one before.
    """
    joins = is_joining(at.sequences.join)
    if joins or (at.key_bytes == 0 and can_fall_back(at.sequences, 0)):
        drop_doubted(at)
        _let_all_go(at)
        before = epoch_before(epoch_state_at(at.sequences.state))
        if joins:
            end_run(at.sequences.join, before, join_state_at(at.sequences.join).live_next)
            forget_live(at.sequences.join)
        else:
            end_run(at.sequences.join, before, known_end(at.sequences, 0))
            fall_back(at.sequences, 0)
        return 0
    _put_aside(at, numpy.int64(PARKED))
    result = deliver_all_held(at, table, trie, _YES)
    if result == 0:
        lose_rests(at.sequences)
        result = tell_losses(at, table, now_ns()) if has_losses(at.sequences) else 0
    if result == 0:
        result = _deliver_doubted(at, table, trie)
    _take_back(at, numpy.int64(PARKED))
    return result


@inner
def _enter(at: SliceAt, table: TableAt, trie: Trie, key: int, header: Header, tick: int) -> int:
    """Judge the epoch of the block at hand: SAME, NEW, STALE or DOUBTED, which is then done with; FAILED."""
    line = line_of(at, header)
    entered = enter_epoch(at.sequences, header.epoch, line, _NO, tick)
    state = slice_state_at(at.state)
    if entered == SAME:
        return SAME
    if entered == STALE:
        slice_counters_at(at.counters).stale += header.count
        return STALE
    if entered == NEW:
        state.confirmed_lines = 0  # its next heartbeat goes to Python, which asks it to confirm
        result = begin_epoch(at, table, trie)
        return NEW if result == 0 else result
    drop_doubted(at)
    if entered == DOUBTED:
        _put_aside(at, numpy.int64(DOUBTED_AT))
        epoch_state_at(at.sequences.state).doubted_key = key + 1
        return DOUBTED
    return SAME


@inner
def _judge(at: SliceAt, table: TableAt, trie: Trie, key: int, header: Header, span: int, tick: int) -> int:
    """Judge the numbers of the block at hand; make room for it, if need be, by delivering held ones. Or _FAILED."""
    line, size = line_of(at, header), header.body_bytes
    verdict = judge(at.sequences, key, line, header.epoch, header.sequence, span, size, tick, _NO)
    is_full = verdict == MAKE_ROOM and line != ARCHIVE and not has_room(at.sequences, size)
    if is_full and at.key_bytes == 0 and can_fall_back(at.sequences, key):
        _let_all_go(at)
        fall_back(at.sequences, key)
        return _FELL_BACK
    for force in range(2):
        if verdict != MAKE_ROOM:
            return verdict
        if _held_first(at, table, trie, key, force, header.sequence) != 0:
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
    if not _leave_shared_buffer(at):
        return fail(at)
    _put_aside(at, place)
    return 0


@inner
def _let_all_go(at: SliceAt) -> None:
    """Let go of all live blocks that wait: archives bring them."""
    place = oldest_held(at.sequences)
    while place != NONE:
        slice_counters_at(at.counters).let_go += let_go(at.sequences, place)
        msg_close(at.held_messages + HELD_MESSAGE_BYTES * place + HEADER_BYTES)
        place = oldest_held(at.sequences)


@inner
def _be_live(at: SliceAt, table: TableAt) -> int:
    """Take what comes live from now on, and tell who wants to know: 0 or FAILED."""
    join = join_state_at(at.sequences.join)
    join.lives += 1
    result: int = tell_live(at, table)
    store_shared(join, "phase", LIVE)
    poke(at.news_fd, at.state)
    return result


@inner
def _go_over(at: SliceAt, table: TableAt, key: int) -> int:
    """Go over to what comes live, if all before it has come: 0 or FAILED."""
    join = join_state_at(at.sequences.join)
    epoch = epoch_state_at(at.sequences.state).epoch
    if join.phase == LIVE or join.is_told == 0 or not reaches(at.sequences, key, epoch, join.live_next):
        return 0
    return _be_live(at, table)


@inner
def _order_joining(at: SliceAt, table: TableAt, trie: Trie, key: int, header: Header, now: int, tick: int) -> int:
    """Deliver the live block at hand if all before it has come; else let it wait, or go: 0 or FAILED."""
    join = join_state_at(at.sequences.join)
    span = span_of(header, msg_data(at.scratch + BODY_AT))
    note_live(at.sequences.join, header.sequence + span)
    result = 0
    if reaches(at.sequences, key, header.epoch, header.sequence):
        line, size = line_of(at, header), header.body_bytes
        verdict = judge(at.sequences, key, line, header.epoch, header.sequence, span, size, tick, _YES)
        first_row = _row_of(at, verdict)
        if first_row != DUPLICATE:
            result = _deliver(at, table, trie, first_row, now)
        if result == 0:
            result = _deliver_held(at, table, trie, key, _NO, _END)
    elif join.phase == SWITCHING and has_room(at.sequences, header.body_bytes):
        if not _leave_shared_buffer(at):
            return fail(at)
        _put_aside(at, hold(at.sequences, key, header.sequence, span, header.body_bytes, tick, now))
    else:
        _let_all_go(at)
        if join.phase == SWITCHING:
            join.phase = REPLAYING
        slice_counters_at(at.counters).let_go += span
    return result if result != 0 else _go_over(at, table, key)


@inner
def _pass_gone(at: SliceAt, table: TableAt, key: int, epoch: int, stop: int) -> int:
    """Lose what archives have no more before a number: 0 or FAILED."""
    if begin_recorded(at.sequences, key, epoch, 0):
        lose_before(at.sequences, key, stop)
    return tell_losses(at, table, now_ns()) if has_losses(at.sequences) else 0


@inner
def _end_runs(at: SliceAt, table: TableAt, key: int, epoch: int) -> int:
    """Lose what runs before an epoch are known to have sent, and archives have not brought: 0 or FAILED."""
    join = join_state_at(at.sequences.join)
    for number in range(max(0, join.ended - MOST_ENDED), join.ended):
        ended, following = join.ended_epoch[number % MOST_ENDED], join.ended_next[number % MOST_ENDED]
        if ended < epoch and is_behind(at.sequences, key, ended):
            result = _pass_gone(at, table, key, ended, following)
            if result != 0:
                return result
    return 0


@inner
def _order_replayed(at: SliceAt, table: TableAt, trie: Trie, key: int, header: Header, now: int, tick: int) -> int:
    """Deliver the block at hand, which an archive has brought to who joins: 0 or FAILED."""
    if _end_runs(at, table, key, header.epoch) != 0:
        return FAILED
    if not begin_recorded(at.sequences, key, header.epoch, header.sequence):
        slice_counters_at(at.counters).stale += header.count
        return 0
    span = span_of(header, msg_data(at.scratch + BODY_AT))
    verdict = MAKE_ROOM
    while verdict == MAKE_ROOM:
        verdict = judge(at.sequences, key, ARCHIVE, header.epoch, header.sequence, span, header.body_bytes, tick, _YES)
        if verdict == MAKE_ROOM and _held_first(at, table, trie, key, _YES, header.sequence) != 0:
            return FAILED
    result = 0
    first_row = _row_of(at, verdict)
    if first_row != DUPLICATE:
        slice_counters_at(at.counters).repaired += header.count - first_row
        state = slice_state_at(at.state)
        state.excused_ns = now - min(header.ts_out, header.ts_in)
        result = _deliver(at, table, trie, first_row, now)
        state.excused_ns = 0
    if result == 0:
        result = _deliver_held(at, table, trie, key, _NO, _END)
    return result if result != 0 else _go_over(at, table, key)


@inner
def note_reached(at: SliceAt, table: TableAt, heard: int) -> int:
    """Take note that archives have brought all that they have, and let what comes live wait: 0 or FAILED.

    `heard`: the last epoch that they have heard of.
    """
    join = join_state_at(at.sequences.join)
    if join.phase == REPLAYING:
        join.phase = SWITCHING
    epoch = epoch_state_at(at.sequences.state).epoch
    if join.is_told != 0 and join.live_next == 0 and epoch != 0 and heard == epoch:
        if _end_runs(at, table, numpy.int64(0), epoch) != 0:
            return FAILED
        begin_recorded(at.sequences, 0, epoch, 0)  # the publisher's run has not begun to send
        return _go_over(at, table, 0)
    return 0


@inner
def order_recorded(at: SliceAt, table: TableAt, trie: Trie, now: int, tick: int) -> int:
    """Deliver what is missing of the block at hand, which an archive has brought, and what waited for it: 0 or FAILED.

    One of another epoch is of no use any more.
    """
    header = read_header(at.scratch + HEAD_AT)
    key = number_of(at.sequences.keys, msg_data(at.scratch + KEY_AT), msg_size(at.scratch + KEY_AT))
    if key != FULL and is_joining(at.sequences.join):
        if join_state_at(at.sequences.join).phase == FALLEN_BACK:
            return 0  # archives bring it once more
        return _order_replayed(at, table, trie, key, header, now, tick)
    if key == FULL or not is_wanted(at.sequences, key, header.epoch):
        slice_counters_at(at.counters).stale += header.count
        return 0
    if slice_counters_at(at.counters).held > 0:
        # Archives have nothing more before it: what waited for that goes first, of which it may be a copy.
        pass_by(at.sequences, key, header.epoch, header.sequence)
        if _held_first(at, table, trie, key, _NO, _END) != 0:
            return FAILED
    verdict = _judge(at, table, trie, key, header, span_of(header, msg_data(at.scratch + BODY_AT)), tick)
    if verdict == _FAILED:
        return FAILED
    if verdict == HOLD:  # a line that is alive may bring what is missing here
        _put_aside(at, hold(at.sequences, key, header.sequence, header.count, header.body_bytes, tick, now))
        return 0
    result = 0
    first_row = _row_of(at, verdict)
    if first_row != DUPLICATE:
        slice_counters_at(at.counters).repaired += header.count - first_row
        state = slice_state_at(at.state)
        state.excused_ns = now - min(header.ts_out, header.ts_in)
        result = _deliver(at, table, trie, first_row, now)
        state.excused_ns = 0
    return result if result != 0 else _deliver_held(at, table, trie, key, _NO, _END)


@inner
def _go_over_with_gap(at: SliceAt, table: TableAt, trie: Trie) -> int:
    """Go over to what comes live though archives lack some of what was before: 0 or FAILED."""
    join, epoch = join_state_at(at.sequences.join), epoch_state_at(at.sequences.state).epoch
    if join.phase == LIVE or join.is_told == 0 or epoch == 0:
        return 0
    if _end_runs(at, table, numpy.int64(0), epoch) != 0:
        return FAILED
    begin_recorded(at.sequences, 0, epoch, join.live_next)
    come_to(at.sequences, 0, join.live_next)
    join.phase = LIVE  # from here on what is missing is lost
    result = _deliver_held(at, table, trie, numpy.int64(0), _YES, _END)
    return result if result != 0 else _be_live(at, table)


@inner
def take_pass(at: SliceAt, table: TableAt, trie: Trie) -> int:
    """Take the note at hand, which comes between what archives have brought: 0 or FAILED."""
    key = number_of(at.sequences.keys, msg_data(at.scratch + KEY_AT), msg_size(at.scratch + KEY_AT))
    note = int64s_at(msg_data(at.scratch + BODY_AT), 3)
    what, epoch, number = note[0], note[1], note[2]
    join = join_state_at(at.sequences.join)
    result = 0
    if join.phase == FALLEN_BACK:
        if what == BEGIN and number == join.falls:
            join.phase = REPLAYING
    elif join.phase == LIVE:
        if what == PASSED and key != FULL:
            pass_by(at.sequences, key, epoch, number)
            result = _deliver_held(at, table, trie, key, _NO, _END)
    elif what == GONE:
        result = _pass_gone(at, table, numpy.int64(0), epoch, number)
    elif what == REACHED:
        result = note_reached(at, table, epoch)
    elif what == GIVE_UP:
        result = _go_over_with_gap(at, table, trie)
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
        note_live(at.sequences.join, header.sequence + span)
        counters.let_go += span
        return 0
    result = 0
    if verdict == HOLD:
        if not _leave_shared_buffer(at):
            return fail(at)
        came = now if at.sequences.asks != 0 else 0
        _put_aside(at, hold(at.sequences, key, header.sequence, span, header.body_bytes, tick, came))
    elif verdict == IMPLAUSIBLE:
        result = _doubt(at, key, header, span, now)
    else:
        first_row = _row_of(at, verdict)
        if first_row != DUPLICATE:
            result = _deliver(at, table, trie, first_row, now)
    _drop_refuted(at)
    if result == 0 and counters.held > 0:
        result = _deliver_held(at, table, trie, key, _NO, _END)
    if result == 0:
        result = look_at_held(at, table, trie, tick)
    return result


@inner
def order(at: SliceAt, table: TableAt, trie: Trie, now: int, tick: int) -> int:
    """Judge the checked block at hand by its sequence; deliver what may go: 0 or FAILED."""
    counters = slice_counters_at(at.counters)
    header = read_header(at.scratch + HEAD_AT)
    epoch = header.epoch
    line = line_of(at, header)
    key = number_of(at.sequences.keys, msg_data(at.scratch + KEY_AT), msg_size(at.scratch + KEY_AT))
    if key == FULL:
        epoch_state_at(at.sequences.state).heard_ns[line] = tick
        counters.untracked += header.count
        return _deliver(at, table, trie, _NO, now)
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
        return _order_joining(at, table, trie, key, header, now, tick)
    return _order_live(at, table, trie, key, header, now, tick)
