"""Put live messages of a slice in order: compiled decisions without I/O.

::

      block   -- its sequence is far ahead of all others ----------->  IMPLAUSIBLE: until the line repeats it
      block   -- everything in it was delivered or is lost --------->  DUPLICATE
      block   -- nothing is missing before it ---------------------->  delivered
      block   -- messages before it are missing, or archives deliver -->  HOLD
      no room -- archives can bring it again ----------------------->  LET_GO: `repair` begins, or goes on
      no room -- they cannot --------------------------------------->  MAKE_ROOM: what is missing before it is lost
      HOLD    -- the missing messages have come -------------------->  delivered
      HOLD    -- no line can bring them, or `line_wait` is over ---->  `repair` begins, or they are lost

A message of the slice is missing if all keys are wanted (`is_full`), else a message of the key, by the header's
`previous`. A heartbeat shows messages that are missing at the end (`settle`). Times are of the monotonic clock.
"""

from __future__ import annotations

from typing import Final

import numpy

from blackbox.block.form.format import MAX_SEQUENCE, Header, layout_of, read_header
from blackbox.feed.routing.key_rule import MAX_KEY_BYTES
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import inner, int32s_at, int64s_at, saturated
from blackbox.native.memory.records import load_shared
from blackbox.native.tables.name_table import FULL
from blackbox.native.tables.prefix_trie import Trie, longest_prefix
from blackbox.receive.order.epoch_changes import lose_left
from blackbox.receive.order.epochs import epoch_state_at
from blackbox.receive.order.held import dequeue_first, enqueue, fill_place, give_place, has_room
from blackbox.receive.order.losses import (
    end_of,
    is_missing_before,
    lose,
    lose_before,
    lose_messages,
    lose_range,
    number_key,
    take,
)
from blackbox.receive.order.repair import can_repair, catch_up, give_up
from blackbox.receive.order.state import (
    HELD_BLOCKS,
    NONE,
    UNKNOWN,
    Answers,
    OrderAt,
    OrderState,
    Phase,
    Verdict,
    held_block,
    is_alive,
    key_state,
    order_state_at,
)
from blackbox.receive.state import slice_counters_at

PLAUSIBLE_JUMP: Final = 1 << 24
"""Largest plausible step of a line's sequence. A larger one is accepted if the line repeats it."""


# Lines


@inner
def _can_come(at: OrderAt, state: OrderState, number: int, now_ns: int) -> bool:
    """Return True if a live line with data has not yet reached a sequence."""
    can = False
    for line in range(at.lines):
        carries = (at.data_lines >> line) & 1 != 0
        can |= carries and state.line_next[line] < number and is_alive(at, line, now_ns)
    return can


@inner
def _note_line(state: OrderState, line: int, first: int, end: int, in_force: int) -> None:
    """Note a line's progress. `in_force`: its publisher has confirmed the filters."""
    if in_force != 0 and state.holds != 0 and state.holds_from == UNKNOWN:
        state.holds_from = first
    state.line_next[line] = max(state.line_next[line], end)
    state.heard_next = max(state.heard_next, end)


# Numbers too far ahead


@inner
def _leave_doubt(state: OrderState, line: int) -> int:
    place: int = state.doubted_place[line]
    state.doubted[line] = 0
    state.doubted_place[line] = NONE
    return place


@inner
def refute(at: OrderAt, line: int) -> int:
    """Reject a line's implausible sequence; return the place of its block, or NONE."""
    state = order_state_at(at.state)
    place: int = _leave_doubt(state, line)
    if place != NONE:
        give_place(at, state, place)
    return place


@inner
def _is_plausible(state: OrderState, line: int, sequence: int, end: int) -> bool:
    """Return True if a line's sequence is plausible."""
    if sequence - max(state.end, state.line_next[line], state.heard_next) <= PLAUSIBLE_JUMP:
        return True
    state.doubted[line] = sequence
    state.doubted_end[line] = end
    return False


@inner
def believed(at: OrderAt, line: int, sequence: int, now_ns: int) -> bool:
    """Return True if a line has repeated its implausible sequence; its block is held from now on."""
    state = order_state_at(at.state)
    doubted, end = state.doubted[line], state.doubted_end[line]
    is_true = doubted != 0 and doubted <= sequence and sequence - end <= PLAUSIBLE_JUMP
    if is_true:
        _note_line(state, line, doubted, end, 0)
        place = _leave_doubt(state, line)
        if place != NONE:
            held_block(at, place).since_ns = now_ns
            enqueue(at, state, place)
    return is_true


@inner
def keep_doubted(at: OrderAt, key: int, line: int, header: Header, span: int, came_ns: int) -> int:
    """Return a place for a block with the verdict IMPLAUSIBLE, or NONE if there is no room."""
    state = order_state_at(at.state)
    if state.places >= HELD_BLOCKS or header.body_bytes > at.held_limit:
        return NONE
    place: int = fill_place(at, state, key, header, span)
    held_block(at, place).came_ns = came_ns
    state.doubted_place[line] = place
    return place


# LIVE


@inner
def judge(at: OrderAt, key: int, line: int, header: Header, span: int, in_force: int, force: int) -> int:
    """Return the offset of the first new sequence of a live block, or a verdict.

    `force`: do not hold it; missing messages before it are lost.
    """
    state, counters = order_state_at(at.state), slice_counters_at(at.counters)
    end = header.sequence + span
    if not _is_plausible(state, line, header.sequence, end):
        return Verdict.IMPLAUSIBLE
    _note_line(state, line, header.sequence, end, in_force)
    is_here = header.epoch == state.epoch
    if is_here and end <= end_of(at, state, key):
        counters.duplicates = saturated(counters.duplicates, header.count)
        return Verdict.DUPLICATE
    if state.phase != Phase.LIVE:
        if state.holds != 0 and header.epoch >= state.epoch and has_room(at, header.body_bytes):
            return Verdict.HOLD
        if state.lives != 0 and load_shared(state, "answers") != Answers.SOME and give_up(at, in_force):
            return Verdict.MAKE_ROOM
        lose_left(at, header.epoch, end)
        if header.epoch >= state.epoch:
            state.holds = 0
        state.holds_from = UNKNOWN
        return Verdict.LET_GO
    is_behind_held = state.first_held != NONE and header.sequence > held_block(at, state.first_held).sequence
    is_missing = is_missing_before(at, state, key, header.sequence, header.previous)
    if (is_behind_held or is_missing) and force == 0:
        if has_room(at, header.body_bytes):
            return Verdict.HOLD
        if can_repair(at):
            catch_up(at, 0)
            return Verdict.LET_GO
        return Verdict.MAKE_ROOM
    if is_missing:
        lose_before(at, key, header.sequence, header.previous, header.key_sequence)
    new: int = take(at, key, header.sequence, span, header.previous, header.key_sequence, header.count)
    counters.duplicates = saturated(counters.duplicates, new)
    return new


@inner
def next_ready(at: OrderAt, now_ns: int, before: int) -> int:
    """Return the place of the next deliverable held block, or NONE; `release` then frees it.

    `before`: if not 0, deliver only blocks with lower sequences, even if messages before them are missing.
    """
    state = order_state_at(at.state)
    place = state.first_held
    if place == NONE or (state.phase != Phase.LIVE and before == 0):
        return NONE
    block = held_block(at, place)
    if before != 0:
        return place if block.sequence < before else NONE
    end = end_of(at, state, block.key)
    is_over = block.sequence + block.count <= end
    if is_over or not is_missing_before(at, state, block.key, block.sequence, block.previous):
        return place
    waits_for = block.sequence if state.is_full != 0 else block.previous
    if now_ns - block.since_ns < at.line_wait_ns and _can_come(at, state, waits_for, now_ns):
        return NONE
    if waits_for > state.gone_before and can_repair(at):
        catch_up(at, 1)
        state.holds_from = block.sequence
        return NONE
    return place


@inner
def release(at: OrderAt, place: int) -> int:
    """Free the place from `next_ready`; return the same as `judge`. Missing messages before the block are lost."""
    block, counters = held_block(at, place), slice_counters_at(at.counters)
    state = order_state_at(at.state)
    key, sequence, count, key_sequence, messages = (
        block.key,
        block.sequence,
        block.count,
        block.key_sequence,
        block.messages,
    )
    previous = block.previous
    dequeue_first(at, state)
    if sequence + count <= end_of(at, state, key):
        counters.duplicates = saturated(counters.duplicates, messages)
        return Verdict.DUPLICATE
    if is_missing_before(at, state, key, sequence, previous):
        lose_before(at, key, sequence, previous, key_sequence)
    first: int = take(at, key, sequence, count, previous, key_sequence, messages)
    counters.duplicates = saturated(counters.duplicates, first)
    return first


@inner
def note_told_next(state: OrderState, epoch: int, following: int) -> bool:
    """Note the slice sequence of a heartbeat. Return False if its line is behind: the ends of a later one are known."""
    state.heard_told = max(state.heard_told, following)
    state.told_epoch = epoch
    if following < state.told_next and state.is_strict != 0:
        return False
    state.told_next = following
    return True


@njit(nogil=True, cache=True)
def note_ends(at: OrderAt, filters: Trie, header_at: int, body: int, line: int, in_force: int, is_answer: bool) -> bool:
    """Store the ends of keys in a control block of the live epoch. Return False if they are implausible.

    `is_answer`: it answers this subscriber's nonce, so its sequence is true.
    """
    state = order_state_at(at.state)
    header = read_header(header_at)
    if not is_answer and not _is_plausible(state, line, header.sequence, header.sequence):
        slice_counters_at(at.counters).implausible_control += 1
        return False
    _note_line(state, line, header.sequence, header.sequence, in_force)
    lose_left(at, header.epoch, header.sequence)
    is_newest = note_told_next(state, header.epoch, header.sequence)
    layout = layout_of(header)
    offsets = int32s_at(body + layout.topic_offsets, header.topics + 1)
    ends = int64s_at(body + layout.payloads, 2 * header.count)
    for row in range(header.count):
        start = numpy.int64(offsets[row])
        size = numpy.int64(offsets[row + 1]) - start
        name = body + layout.topics + start
        end, count = ends[2 * row], ends[2 * row + 1]
        if size <= MAX_KEY_BYTES and 0 <= count <= end <= MAX_SEQUENCE and longest_prefix(filters, name, size) != 0:
            key = number_key(at, name, size)
            if key != FULL:
                note_end(at, key, header.epoch, end, count)
                if is_newest:
                    note_told_end(at, key, header.sequence, end, count)
    return True


@inner
def note_end(at: OrderAt, key: int, epoch: int, end: int, count: int) -> None:
    """Store the end and count of a key from a control block."""
    of_key = key_state(at, key)
    if of_key.heard_epoch != epoch or of_key.heard_end < end:
        of_key.heard_epoch = epoch
        of_key.heard_end = end
        of_key.heard_count = count


@inner
def note_told_end(at: OrderAt, key: int, following: int, end: int, count: int) -> None:
    """Store the end and count of a key from the heartbeat with slice sequence `following`."""
    of_key = key_state(at, key)
    of_key.told_before = following
    of_key.told_end = end
    of_key.told_count = count


@inner
def _lacks(at: OrderAt, state: OrderState, following: int) -> bool:
    """Return True if messages before a heartbeat's sequence are missing."""
    if state.is_full != 0:
        return following > state.end
    is_missing = False
    for key in range(int64s_at(at.keys.used, 1)[0]):
        of_key = key_state(at, key)
        is_missing |= of_key.told_before == following and of_key.told_end > end_of(at, state, key)
    return is_missing


@inner
def _must_read(at: OrderAt, state: OrderState, following: int) -> bool:
    """Return True if archives may have the missing messages before a heartbeat's sequence; else they are lost."""
    must = False
    repairs = can_repair(at)
    if state.is_full != 0:
        if following > state.end and repairs and following > state.gone_before:
            must = True
        elif following > state.end:
            lose_range(at, state.epoch, state.end, following)
        return must
    for key in range(int64s_at(at.keys.used, 1)[0]):
        of_key, end = key_state(at, key), end_of(at, state, key)
        if of_key.told_before != following:
            continue
        if of_key.told_end > end and repairs and of_key.told_end > state.gone_before:
            must = True
        elif of_key.told_end > end:
            lose(at, key, of_key.told_end, of_key.told_count)
        elif of_key.end <= of_key.told_end:
            of_key.end, of_key.count = of_key.told_end, of_key.told_count
    return must


@njit(nogil=True, cache=True)
def settle(at: OrderAt, now_ns: int) -> None:
    """Find missing messages before the newest heartbeat if no block is held.

    Another live line may still deliver them.
    """
    state = order_state_at(at.state)
    following = state.told_next
    is_live = state.phase == Phase.LIVE and state.epoch == epoch_state_at(at.epochs).epoch
    if not is_live or state.is_strict == 0 or state.first_held != NONE:
        return
    if _lacks(at, state, following) and _can_come(at, state, following, now_ns):
        return
    if _must_read(at, state, following):
        catch_up(at, 1)
        state.holds_from = following
        return
    state.proven = max(state.proven, following)
    state.is_counted = 1
    is_clean = state.end <= following
    state.end = max(state.end, following)
    if is_clean and state.wants_full != 0:
        state.is_full = 1


@njit(nogil=True, cache=True)
def change_filters(at: OrderAt, filters: Trie, wants_full: int) -> None:
    """Change the filters. Keys outside them are forgotten; new keys begin with their first block."""
    state = order_state_at(at.state)
    starts = int64s_at(at.keys.starts, int64s_at(at.keys.used, 1)[0] + 1)
    for key in range(int64s_at(at.keys.used, 1)[0]):
        of_key = key_state(at, key)
        is_out = numpy.int64(longest_prefix(filters, at.keys.text + starts[key], starts[key + 1] - starts[key]) == 0)
        if is_out != 0 or of_key.is_out != 0:
            of_key.end = of_key.is_late = of_key.heard_epoch = 0
            of_key.count = UNKNOWN
        elif state.is_strict != 0 and (of_key.count == UNKNOWN or of_key.end < state.lost_to):
            of_key.end = max(of_key.end, state.proven)
            of_key.count = UNKNOWN
        if of_key.is_out != 0 or state.is_strict != 0:
            of_key.began = of_key.is_out and UNKNOWN
        of_key.is_out = is_out
    state.wants_full = wants_full
    state.is_full &= wants_full  # also while archives deliver: later only a part of the slice arrives
    if state.phase == Phase.LIVE:
        state.is_strict = state.is_counted = state.is_full = 0


@njit(nogil=True, cache=True)
def confirm(at: OrderAt, before: Trie, following: int) -> None:
    """Note the confirmation of the newest filters at a sequence, after `note_ends`.

    `before`: the earlier filters. Keys outside them begin here.
    """
    state = order_state_at(at.state)
    if state.is_strict != 0 or state.phase != Phase.LIVE:
        state.is_strict = 1
        return
    starts = int64s_at(at.keys.starts, int64s_at(at.keys.used, 1)[0] + 1)
    for key in range(int64s_at(at.keys.used, 1)[0]):
        of_key = key_state(at, key)
        if of_key.told_before != following:
            continue
        text, size = at.keys.text + starts[key], starts[key + 1] - starts[key]
        if longest_prefix(before, text, size) != 0 and of_key.began != UNKNOWN:
            if of_key.began > 0 and of_key.end > 0:  # it began too late: its earlier messages are lost
                lose_messages(at, key, state.proven, state.proven + of_key.began, of_key.began, of_key.began > 1)
            elif of_key.count == UNKNOWN and of_key.end == 0:
                of_key.count = 0
        elif of_key.end <= of_key.told_end:
            if of_key.count == UNKNOWN:
                of_key.is_late = numpy.int64(of_key.told_count > 0)
            of_key.end, of_key.count = of_key.told_end, of_key.told_count
    if state.is_begun == 0:
        state.end = state.proven = max(state.end, following)
    state.is_begun = state.is_strict = state.is_counted = 1
