"""Put live and archived messages of a slice in order: compiled decisions without I/O.

::

      LIVE  ---- a gap that no line can fill, another epoch, no room to hold ---->  CATCHING_UP
      LIVE  <--- archives have passed the number from which live blocks are held -  CATCHING_UP

LIVE delivers a block if nothing is missing before it: no message of the slice if all keys are wanted (`is_full`), else
no message of its key, by the header's `previous`. CATCHING_UP delivers blocks from archives in order, from `cursor` on.
It holds live blocks, or drops them if there is no room. A slice that begins in the past starts in CATCHING_UP.

Lost messages are counted in `KeyState.lost` and `OrderState.lost`. The caller reports them (`next_loss`) before it
delivers the next message. Times are of the monotonic clock.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy

from blackbox.block.format import MAX_KEY_BYTES, MAX_SEQUENCE, Header, layout_of, read_header
from blackbox.native.intrinsics import inner, int32s_at, int64s_at, saturated
from blackbox.native.jit import njit
from blackbox.native.name_table import FULL, number_of
from blackbox.native.posix import poke
from blackbox.native.prefix_trie import Trie, longest_prefix
from blackbox.native.records import load_shared, store_shared
from blackbox.subscribe.epochs import epoch_state_at
from blackbox.subscribe.order_state import (
    CATCHING_UP,
    HELD_BLOCKS,
    LIVE,
    MOST_ENDED,
    NONE,
    UNKNOWN,
    Answers,
    KeyState,
    OrderAt,
    OrderState,
    held_block,
    is_catching_up,
    key_state,
    order_state_at,
)
from blackbox.subscribe.state import slice_counters_at

NO_ANSWERS: Final = int(Answers.NONE)
SOME: Final = int(Answers.SOME)
DUPLICATE: Final = -1
HOLD: Final = -2
"""The caller must `hold` it."""
MAKE_ROOM: Final = -3
"""No room to hold it: go on, release all held blocks with their gaps, and judge again."""
LET_GO: Final = -4
"""Drop it and all held blocks. They are read from archives later."""
IMPLAUSIBLE: Final = -5
"""Its sequence is too far ahead: keep it with `keep_doubted`."""
PLAUSIBLE_JUMP: Final = 1 << 24
"""Largest plausible step of a line's sequence. A larger one is accepted if the line repeats it."""


# Lines


@inner
def is_alive(at: OrderAt, line: int, now_ns: int) -> bool:
    """Return True if a line is in the live epoch and was heard within `line_dead_ns`."""
    epochs = epoch_state_at(at.epochs)
    return now_ns - epochs.heard_ns[line] < at.line_dead_ns and (epochs.spoke >> line) & 1 != 0


@inner
def _any_alive(at: OrderAt, now_ns: int) -> bool:
    alive = False
    for line in range(at.lines):
        alive |= is_alive(at, line, now_ns)
    return alive


@inner
def _can_come(at: OrderAt, state: OrderState, number: int, now_ns: int) -> bool:
    """Return True if a line that is alive has not reached a sequence."""
    can = False
    for line in range(at.lines):
        can |= state.line_next[line] < number and is_alive(at, line, now_ns)
    return can


@inner
def _note_line(state: OrderState, line: int, first: int, end: int, in_force: int) -> None:
    """Note a line's progress. `in_force`: its publisher has confirmed the filters."""
    if in_force != 0 and state.holds != 0 and state.holds_from == UNKNOWN:
        state.holds_from = first
    state.line_next[line] = max(state.line_next[line], end)
    state.heard_next = max(state.heard_next, end)


# Held blocks


@inner
def has_room(at: OrderAt, body_bytes: int) -> bool:
    """Return True if there is room for one more held block."""
    state = order_state_at(at.state)
    return state.places < HELD_BLOCKS and body_bytes <= at.held_limit - state.held_bytes


@inner
def _take_place(at: OrderAt, state: OrderState) -> int:
    place: int = state.free
    state.places += 1
    if place == NONE:
        state.used += 1
        place = state.used
    else:
        state.free = held_block(at, place).behind
    return place


@inner
def _give_place(at: OrderAt, state: OrderState, place: int) -> None:
    held_block(at, place).behind = state.free
    state.free = place
    state.places -= 1


@inner
def _enqueue(at: OrderAt, state: OrderState, place: int) -> None:
    """Insert a block in the order of sequences."""
    block = held_block(at, place)
    before = state.last_held
    while before != NONE and held_block(at, before).sequence > block.sequence:
        before = held_block(at, before).before
    behind = state.first_held if before == NONE else held_block(at, before).behind
    block.before = before
    block.behind = behind
    if before == NONE:
        state.first_held = place
    else:
        held_block(at, before).behind = place
    if behind == NONE:
        state.last_held = place
    else:
        held_block(at, behind).before = place
    state.held_bytes += block.held_bytes
    slice_counters_at(at.counters).held += 1


@inner
def _dequeue_first(at: OrderAt, state: OrderState) -> None:
    place = state.first_held
    block = held_block(at, place)
    state.first_held = block.behind
    if block.behind == NONE:
        state.last_held = NONE
    else:
        held_block(at, block.behind).before = NONE
    state.held_bytes -= block.held_bytes
    _give_place(at, state, place)
    slice_counters_at(at.counters).held -= 1


@inner
def _fill_place(at: OrderAt, state: OrderState, key: int, header: Header, span: int) -> int:
    place: int = _take_place(at, state)
    block = held_block(at, place)
    block.key = key
    block.sequence = header.sequence
    block.count = span
    block.previous = header.previous
    block.key_sequence = header.key_sequence
    block.messages = header.count
    block.held_bytes = header.body_bytes
    return place


@inner
def hold(at: OrderAt, key: int, header: Header, span: int, now_ns: int, came_ns: int) -> int:
    """Return a place for a block with the verdict HOLD. `came_ns`: see `HeldBlock`."""
    state = order_state_at(at.state)
    place: int = _fill_place(at, state, key, header, span)
    held_block(at, place).since_ns = now_ns
    held_block(at, place).came_ns = came_ns
    _enqueue(at, state, place)
    return place


@inner
def let_go(at: OrderAt) -> int:
    """Drop the first held block; return its place, or NONE if no block is held."""
    state = order_state_at(at.state)
    place: int = state.first_held
    if place != NONE:
        counters = slice_counters_at(at.counters)
        counters.let_go = saturated(counters.let_go, held_block(at, place).messages)
        _dequeue_first(at, state)
    return place


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
        _give_place(at, state, place)
    return place


@inner
def _is_plausible(state: OrderState, line: int, sequence: int, end: int) -> bool:
    """Return True if a line's sequence is plausible."""
    if sequence - max(state.at, state.line_next[line], state.heard_next) <= PLAUSIBLE_JUMP:
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
            _enqueue(at, state, place)
    return is_true


@inner
def keep_doubted(at: OrderAt, key: int, line: int, header: Header, span: int, came_ns: int) -> int:
    """Return a place for a block with the verdict IMPLAUSIBLE, or NONE if there is no room."""
    state = order_state_at(at.state)
    if state.places >= HELD_BLOCKS or header.body_bytes > at.held_limit:
        return NONE
    place: int = _fill_place(at, state, key, header, span)
    held_block(at, place).came_ns = came_ns
    state.doubted_place[line] = place
    return place


# Delivered and lost messages


@njit(nogil=True, cache=True)
def number_key(at: OrderAt, text: int, size: int) -> int:
    """Return the number of a key, which may be new; FULL if there is no room."""
    known = int64s_at(at.keys.used, 1)[0]
    number: int = number_of(at.keys, text, size)
    if number == known:
        key_state(at, number).count = UNKNOWN
    return number


@inner
def _end_of(at: OrderAt, state: OrderState, key: int) -> int:
    """Return the end of a key: everything before it was delivered or reported as lost."""
    end: int = state.at if state.is_full != 0 else max(state.proven, key_state(at, key).end)
    return end


@inner
def _known_count(state: OrderState, key: KeyState) -> int:
    """Return the number of a key's messages before its end, or UNKNOWN."""
    count: int = key.count
    if key.end == 0 and state.is_counted != 0:
        count = 0
    return count


@inner
def _begins(state: OrderState, key: KeyState) -> bool:
    """Return True if nothing of a key is missing: its start is unknown, or it is not wanted any more."""
    is_first = state.is_strict == 0 and key.count == UNKNOWN and key.end == 0
    return state.is_full == 0 and (is_first or key.is_out != 0)


@inner
def _lose(at: OrderAt, key: int, stop: int, count: int) -> None:
    """Count the missing messages of a key before `stop` as lost. `count`: its messages before `stop`."""
    state, of_key = order_state_at(at.state), key_state(at, key)
    first, known = _end_of(at, state, key), _known_count(state, of_key)
    lost = min(stop - first, count) if known == UNKNOWN else count - known
    of_key.end = max(of_key.end, stop)
    of_key.count = count
    if lost <= 0:
        return
    counters = slice_counters_at(at.counters)
    counters.gaps = saturated(counters.gaps, lost)
    if of_key.lost == 0:
        of_key.lost_from = first
        of_key.next_lost = state.first_lost
        state.first_lost = key + 1
    of_key.lost += lost
    of_key.lost_is_bound |= numpy.int64(known == UNKNOWN and lost > 1)
    state.lost_epoch = state.epoch


@inner
def _lose_range(at: OrderAt, epoch: int, first: int, stop: int) -> None:
    """Count a range of the slice as lost."""
    state, counters = order_state_at(at.state), slice_counters_at(at.counters)
    counters.gaps = saturated(counters.gaps, stop - first)
    if state.lost == 0:
        state.lost_from = first
        state.lost_epoch = epoch
    state.lost += stop - first
    state.lost_to = stop


class Loss(NamedTuple):
    """Lost messages."""

    epoch: int
    sequence: int
    """Sequence of the first of them."""
    count: int  # type: ignore[assignment]  # it hides a method of tuples that nobody needs
    key: int
    """Number of their key; UNKNOWN: any keys."""
    is_bound: int
    """1: `count` is an upper bound."""


@inner
def has_losses(at: OrderAt) -> bool:
    """Return True if there are lost messages to report."""
    state = order_state_at(at.state)
    return state.lost != 0 or state.first_lost != 0


@inner
def next_loss(at: OrderAt) -> Loss:
    """Return the next lost messages to report. Call it only if `has_losses`."""
    state = order_state_at(at.state)
    epoch, sequence, count, key = state.lost_epoch, state.lost_from, state.lost, UNKNOWN
    is_bound: int = 1 - state.wants_full
    if count != 0:
        state.lost = 0
    else:
        key = state.first_lost - 1
        of_key = key_state(at, key)
        sequence, count, is_bound = of_key.lost_from, of_key.lost, of_key.lost_is_bound
        state.first_lost = of_key.next_lost
        of_key.lost = of_key.lost_is_bound = 0
    return Loss(epoch, sequence, count, key, is_bound)


@inner
def _take(at: OrderAt, key: int, sequence: int, span: int, previous: int, key_sequence: int, messages: int) -> int:
    """Note the delivery of a block; return the offset of its first new sequence."""
    state, of_key = order_state_at(at.state), key_state(at, key)
    end = sequence + span
    first: int = max(0, _end_of(at, state, key) - sequence)
    if of_key.count == UNKNOWN and state.is_counted == 0:
        if of_key.began != UNKNOWN:
            of_key.began = min(key_sequence, max(0, previous - state.proven))
        of_key.is_late = numpy.int64(key_sequence > 0)
    of_key.end = max(of_key.end, end)
    of_key.count = key_sequence + messages
    state.at = max(state.at, end)
    if state.is_full != 0:
        state.proven = state.at
    return first


@inner
def _is_missing_before(at: OrderAt, state: OrderState, key: int, sequence: int, previous: int) -> bool:
    number = sequence if state.is_full != 0 else previous
    return number > _end_of(at, state, key) and not _begins(state, key_state(at, key))


@inner
def _lose_before(at: OrderAt, key: int, sequence: int, previous: int, key_sequence: int) -> None:
    """Count the missing messages before a block as lost."""
    state = order_state_at(at.state)
    if state.is_full != 0:
        _lose_range(at, state.epoch, state.at, sequence)
        state.at = state.proven = sequence
    else:
        _lose(at, key, previous, key_sequence)


# LIVE


@inner
def judge(at: OrderAt, key: int, line: int, header: Header, span: int, in_force: int, force: int) -> int:
    """Return the offset of the first new sequence of a live block, or a verdict.

    `force`: do not hold it, and count the missing messages before it as lost.
    """
    state, counters = order_state_at(at.state), slice_counters_at(at.counters)
    end = header.sequence + span
    if not _is_plausible(state, line, header.sequence, end):
        return IMPLAUSIBLE
    _note_line(state, line, header.sequence, end, in_force)
    is_here = header.epoch == state.epoch
    if is_here and end <= _end_of(at, state, key):
        counters.duplicates = saturated(counters.duplicates, header.count)
        return DUPLICATE
    if state.phase != LIVE:
        if state.holds != 0 and header.epoch >= state.epoch and has_room(at, header.body_bytes):
            return HOLD
        if state.lives != 0 and load_shared(state, "answers") != SOME and give_up(at, in_force):
            return MAKE_ROOM
        _lose_left(at, header.epoch, end)
        if header.epoch >= state.epoch:
            state.holds = 0
        state.holds_from = UNKNOWN
        return LET_GO
    is_behind_held = state.first_held != NONE and header.sequence > held_block(at, state.first_held).sequence
    is_missing = _is_missing_before(at, state, key, header.sequence, header.previous)
    if (is_behind_held or is_missing) and force == 0:
        if has_room(at, header.body_bytes):
            return HOLD
        if can_repair(at):
            _catch_up(at, 0)
            return LET_GO
        return MAKE_ROOM
    if is_missing:
        _lose_before(at, key, header.sequence, header.previous, header.key_sequence)
    new: int = _take(at, key, header.sequence, span, header.previous, header.key_sequence, header.count)
    counters.duplicates = saturated(counters.duplicates, new)
    return new


@inner
def _lose_left(at: OrderAt, epoch: int, end: int) -> None:
    """Count messages as lost that a silent line sends later, in an epoch that archives have left.

    If only some keys are wanted, the count may include messages of others.
    """
    state = order_state_at(at.state)
    place = _left_place(state, epoch)
    if place != UNKNOWN and epoch < state.epoch and end > state.left_next[place]:
        _lose_range(at, epoch, state.left_next[place], end)
        state.left_next[place] = end


@inner
def _left_place(state: OrderState, epoch: int) -> int:
    """Return the place of an epoch in the ring of those that archives left, or UNKNOWN."""
    found: int = UNKNOWN
    for place in range(MOST_ENDED):
        if state.left_epoch[place] == epoch:
            found = place
    return found


@inner
def _leave(state: OrderState, epoch: int, following: int) -> None:
    """Note that archives leave an epoch which the live line may still be in, or come to."""
    if epoch != 0 and _left_place(state, epoch) == UNKNOWN:
        place = state.left % MOST_ENDED
        state.left_epoch[place] = epoch
        state.left_next[place] = following
        state.left += 1


@inner
def next_ready(at: OrderAt, now_ns: int, force: int) -> int:
    """Return the place of the next deliverable held block, or NONE; `release` then frees it.

    `force`: deliver it even if messages before it are missing.
    """
    state = order_state_at(at.state)
    place = state.first_held
    if place == NONE or (state.phase != LIVE and force == 0):
        return NONE
    block = held_block(at, place)
    end = _end_of(at, state, block.key)
    is_over = block.sequence + block.count <= end
    if force != 0 or is_over or not _is_missing_before(at, state, block.key, block.sequence, block.previous):
        return place
    waits_for = block.sequence if state.is_full != 0 else block.previous
    if now_ns - block.since_ns < at.line_wait_ns and _can_come(at, state, waits_for, now_ns):
        return NONE
    if waits_for > state.gone_before and can_repair(at):
        _catch_up(at, 1)
        state.holds_from = block.sequence
        return NONE
    return place


@inner
def release(at: OrderAt, place: int) -> int:
    """Free the place from `next_ready`; return as `judge`. Missing messages before the block are lost."""
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
    _dequeue_first(at, state)
    if sequence + count <= _end_of(at, state, key):
        counters.duplicates = saturated(counters.duplicates, messages)
        return DUPLICATE
    if _is_missing_before(at, state, key, sequence, previous):
        _lose_before(at, key, sequence, previous, key_sequence)
    first: int = _take(at, key, sequence, count, previous, key_sequence, messages)
    counters.duplicates = saturated(counters.duplicates, first)
    return first


@njit(nogil=True, cache=True)
def note_ends(at: OrderAt, filters: Trie, header_at: int, body: int, line: int, in_force: int, is_answer: bool) -> bool:
    """Note the ends of keys in a control block of the live epoch. Return False if they are implausible.

    `is_answer`: it answers the nonce of this subscriber, so its sequence is true.
    """
    state = order_state_at(at.state)
    header = read_header(header_at)
    if not is_answer and not _is_plausible(state, line, header.sequence, header.sequence):
        slice_counters_at(at.counters).implausible_control += 1
        return False
    _note_line(state, line, header.sequence, header.sequence, in_force)
    _lose_left(at, header.epoch, header.sequence)
    state.heard_told = max(state.heard_told, header.sequence)
    state.told_next = header.sequence
    state.told_epoch = header.epoch
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
                note_told_end(at, key, header.sequence, end, count)
    return True


@inner
def note_end(at: OrderAt, key: int, epoch: int, end: int, count: int) -> None:
    """Note the end and count of a key from a control block."""
    of_key = key_state(at, key)
    if of_key.heard_epoch != epoch or of_key.heard_end < end:
        of_key.heard_epoch = epoch
        of_key.heard_end = end
        of_key.heard_count = count


@inner
def note_told_end(at: OrderAt, key: int, following: int, end: int, count: int) -> None:
    """Note the end and count of a key from the heartbeat with slice sequence `following`."""
    of_key = key_state(at, key)
    of_key.told_before = following
    of_key.told_end = end
    of_key.told_count = count


@inner
def _lacks(at: OrderAt, state: OrderState, following: int) -> bool:
    """Return True if messages before a heartbeat's sequence are missing."""
    if state.is_full != 0:
        return following > state.at
    is_missing = False
    for key in range(int64s_at(at.keys.used, 1)[0]):
        of_key = key_state(at, key)
        is_missing |= of_key.told_before == following and of_key.told_end > _end_of(at, state, key)
    return is_missing


@inner
def _must_read(at: OrderAt, state: OrderState, following: int) -> bool:
    """Return True if archives may have the missing messages before a heartbeat's sequence; else these are lost."""
    must = False
    repairs = can_repair(at)
    if state.is_full != 0:
        if following > state.at and repairs and following > state.gone_before:
            must = True
        elif following > state.at:
            _lose_range(at, state.epoch, state.at, following)
        return must
    for key in range(int64s_at(at.keys.used, 1)[0]):
        of_key, end = key_state(at, key), _end_of(at, state, key)
        if of_key.told_before != following:
            continue
        if of_key.told_end > end and repairs and of_key.told_end > state.gone_before:
            must = True
        elif of_key.told_end > end:
            _lose(at, key, of_key.told_end, of_key.told_count)
        elif of_key.end <= of_key.told_end:
            of_key.end, of_key.count = of_key.told_end, of_key.told_count
    return must


@inner
def is_unsettled(at: OrderAt) -> bool:
    """Return True if messages before the newest heartbeat may be missing."""
    state = order_state_at(at.state)
    return state.phase == LIVE and state.is_strict != 0 and state.told_next > state.proven


@njit(nogil=True, cache=True)
def settle(at: OrderAt, now_ns: int) -> None:
    """Find missing messages before the newest heartbeat, if no block is held.

    Another line that is alive may still deliver them.
    """
    state = order_state_at(at.state)
    following = state.told_next
    is_live = state.phase == LIVE and state.epoch == epoch_state_at(at.epochs).epoch
    if not is_live or state.is_strict == 0 or state.first_held != NONE:
        return
    if _lacks(at, state, following) and _can_come(at, state, following, now_ns):
        return
    if _must_read(at, state, following):
        _catch_up(at, 1)
        state.holds_from = following
        return
    state.proven = max(state.proven, following)
    state.is_counted = 1
    is_clean = state.at <= following
    state.at = max(state.at, following)
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
        of_key.began = of_key.is_out and UNKNOWN
        of_key.is_out = is_out
    state.wants_full = wants_full
    if state.phase == LIVE:
        state.is_strict = state.is_counted = state.is_full = 0


@njit(nogil=True, cache=True)
def confirm(at: OrderAt, before: Trie, following: int) -> None:
    """Note the confirmation of the newest filters at a sequence, after `note_ends`.

    `before`: the earlier filters. Keys outside them begin here.
    """
    state = order_state_at(at.state)
    if state.is_strict != 0 or state.phase != LIVE:
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
                lost, of_key.began = of_key.began, numpy.int64(0)
                count = of_key.count
                of_key.count -= lost
                _lose(at, key, of_key.end, count)
            elif of_key.count == UNKNOWN and of_key.end == 0:
                of_key.count = 0
        elif of_key.end <= of_key.told_end:
            if of_key.count == UNKNOWN:
                of_key.is_late = numpy.int64(of_key.told_count > 0)
            of_key.end, of_key.count = of_key.told_end, of_key.told_count
    if state.is_begun == 0:
        state.at = state.proven = max(state.at, following)
    state.is_begun = state.is_strict = state.is_counted = 1


# CATCHING_UP


@inner
def can_repair(at: OrderAt) -> bool:
    """Return True if missing messages are read from archives and one of these answers."""
    state = order_state_at(at.state)
    return at.repairs != 0 and state.is_begun != 0 and load_shared(state, "answers") != NO_ANSWERS


@inner
def _catch_up(at: OrderAt, holds: int) -> None:
    """Start to read archives, from the first message that may be missing."""
    state = order_state_at(at.state)
    state.first = max(state.proven, state.gone_before)
    state.is_from_proven = 1 if state.first <= state.proven else 0
    state.cursor = state.first
    state.holds = holds
    state.holds_from = UNKNOWN
    state.request += 1
    store_shared(state, "phase", CATCHING_UP)
    poke(state.wake_fd, at.state)


@inner
def _pass(at: OrderAt, following: int) -> None:
    state = order_state_at(at.state)
    state.cursor = max(state.cursor, following)
    if state.is_from_proven != 0:
        state.proven = max(state.proven, state.cursor)
    state.at = max(state.at, state.cursor)


@inner
def _skip(at: OrderAt, following: int) -> None:
    """Pass messages that archives lack. If only some keys are wanted, their next blocks show the loss."""
    state = order_state_at(at.state)
    if following <= state.cursor:
        return
    if state.is_full != 0 and following > state.at:
        _lose_range(at, state.epoch, state.at, following)
        state.at = state.proven = following
    if state.is_full == 0:
        state.is_from_proven = 0
    state.gone_before = following
    _pass(at, following)


@inner
def _enter_epoch(at: OrderAt, epoch: int) -> None:
    """Begin another epoch with sequence 0."""
    state = order_state_at(at.state)
    state.epoch = epoch
    state.at = state.proven = state.cursor = state.first = state.gone_before = state.lost_to = 0
    state.is_from_proven = 1
    state.is_counted = state.is_strict
    state.is_full = state.wants_full & state.is_strict
    for key in range(int64s_at(at.keys.used, 1)[0]):
        of_key = key_state(at, key)
        is_new = state.is_begun == 0 or (state.is_strict == 0 and of_key.end == 0 and of_key.count == UNKNOWN)
        of_key.end = of_key.began = of_key.is_late = 0
        of_key.count = UNKNOWN if is_new else 0


@inner
def _lose_rest(at: OrderAt, following: int, told: int, is_over: bool) -> None:
    """Count the missing messages at the end of an epoch as lost.

    `following`: the known end of the slice. `told`: the end up to which the ends of keys are known; later messages may
    have unwanted keys. `is_over`: live blocks have shown the losses of keys.
    """
    state = order_state_at(at.state)
    if state.is_full == 0 and state.told_epoch == state.epoch:
        for key in range(int64s_at(at.keys.used, 1)[0]):
            of_key = key_state(at, key)
            is_told = of_key.heard_epoch == state.epoch and of_key.heard_end <= told
            if is_told and not _begins(state, of_key) and of_key.heard_end > _end_of(at, state, key):
                _lose(at, key, of_key.heard_end, of_key.heard_count)
        state.proven = max(state.proven, told)
    first = state.at if state.is_full != 0 else state.proven
    is_passed = state.is_from_proven != 0 and following <= state.cursor
    if following > first and not is_passed and (not is_over or state.is_full != 0):
        _lose_range(at, state.epoch, first, following)


@inner
def leaves_to_archives(at: OrderAt) -> bool:
    """Return True if archives deliver the rest of the earlier epoch, after a new one has begun."""
    leaves: bool = is_catching_up(at) or can_repair(at)
    return leaves


@inner
def begin_live_epoch(at: OrderAt, before: int) -> None:
    """Begin another live epoch. Drop held blocks first if `leaves_to_archives`, else release them."""
    state = order_state_at(at.state)
    epoch = epoch_state_at(at.epochs).epoch
    if state.phase != LIVE:
        _end_epoch(at, before)
        state.holds_from = UNKNOWN
        if state.begun_epoch < epoch < state.epoch:
            _leave(state, epoch, 0)
    elif state.is_begun == 0:
        _enter_epoch(at, epoch)
    elif can_repair(at):
        _end_epoch(at, before)
        _catch_up(at, 1)
    else:
        _lose_rest(at, state.heard_next, state.heard_told, True)
        _enter_epoch(at, epoch)
    state.heard_next = state.heard_told = state.told_next = 0
    for line in range(2):
        state.line_next[line] = 0
    for key in range(int64s_at(at.keys.used, 1)[0]):
        key_state(at, key).told_before = UNKNOWN


@inner
def _end_epoch(at: OrderAt, epoch: int) -> None:
    """Keep the known end of a live epoch until archives have passed it."""
    state = order_state_at(at.state)
    if epoch < state.epoch or epoch == 0:
        return
    last = (state.ended - 1) % MOST_ENDED
    if state.ended > 0 and state.ended_epoch[last] == epoch:
        state.ended_next[last] = max(state.ended_next[last], state.heard_next)
        state.ended_told[last] = max(state.ended_told[last], state.heard_told)
        return
    place = state.ended % MOST_ENDED
    state.ended_epoch[place] = epoch
    state.ended_next[place] = state.heard_next
    state.ended_told[place] = state.heard_told
    state.ended += 1


@inner
def is_void(at: OrderAt, request: int) -> bool:
    """Return True if a block or note from archives belongs to an earlier request."""
    state = order_state_at(at.state)
    return state.phase == LIVE or request != state.request


@inner
def _first_ended(state: OrderState, before: int) -> int:
    """Return the place of the lowest ended epoch before another, or UNKNOWN. They are not noted in order."""
    first: int = UNKNOWN
    for place in range(MOST_ENDED):
        ended = state.ended_epoch[place]
        if 0 < ended < before and (first == UNKNOWN or ended < state.ended_epoch[first]):
            first = place
    return first


@inner
def enter_archived(at: OrderAt, epoch: int, sequence: int) -> bool:
    """Enter an epoch of archives. Return True if the caller must report losses and call it again.

    Missing messages of earlier epochs are lost.
    """
    state = order_state_at(at.state)
    if state.opens != 0:
        _enter_epoch(at, epoch)
        state.at = state.proven = state.cursor = state.first = sequence
        state.begun_epoch = epoch
        state.opens = 0
        if sequence != 0:
            state.is_counted = 0
            for key in range(int64s_at(at.keys.used, 1)[0]):
                key_state(at, key).count = UNKNOWN
        return False
    if epoch <= state.epoch:
        return False
    live = epoch_state_at(at.epochs).epoch
    if state.epoch <= live < epoch and _left_place(state, live) == UNKNOWN:
        _end_epoch(at, live)
        _leave(state, live, max(state.heard_next, state.cursor) if state.epoch == live else state.heard_next)
    place = _first_ended(state, epoch)
    while place != UNKNOWN:
        ended = state.ended_epoch[place]
        if ended > state.epoch:
            _enter_epoch(at, ended)
        if ended == state.epoch:
            _lose_rest(at, state.ended_next[place], state.ended_told[place], False)
            state.cursor = max(state.cursor, state.ended_next[place])
        state.ended_epoch[place] = 0
        if has_losses(at):
            return True
        place = _first_ended(state, epoch)
    if state.epoch > live:
        _leave(state, state.epoch, state.cursor)
    _enter_epoch(at, epoch)
    return False


@inner
def judge_recorded(at: OrderAt, key: int, header: Header, span: int) -> int:
    """Judge the next block from archives, as `judge`. Its epoch was entered."""
    state = order_state_at(at.state)
    end = header.sequence + span
    first: int = DUPLICATE
    if header.epoch == state.epoch and end > _end_of(at, state, key):
        if _is_missing_before(at, state, key, header.sequence, header.previous):
            _lose_before(at, key, header.sequence, header.previous, header.key_sequence)
        first = _take(at, key, header.sequence, span, header.previous, header.key_sequence, header.count)
    if header.epoch == state.epoch:
        _pass(at, end)
    return first


@inner
def _begin_to_hold(state: OrderState, in_force: int) -> None:
    """Hold live blocks from now on. `in_force`: see `note_passed`."""
    if state.holds == 0:
        state.holds = 1
        state.holds_from = state.heard_next if in_force != 0 else UNKNOWN


@inner
def note_passed(at: OrderAt, epoch: int, following: int, is_all: int, in_force: int, now_ns: int) -> bool:
    """Note that archives have delivered an epoch up to a sequence. Return False if the epoch must wait.

    `is_all`: they have no more at present. `in_force`: a line has confirmed the filters in the live epoch, or ended it.
    """
    state = order_state_at(at.state)
    live = epoch_state_at(at.epochs).epoch
    is_ahead = epoch > live >= state.epoch > 0 and _any_alive(at, now_ns)
    if is_all != 0 or is_ahead:
        _begin_to_hold(state, in_force)
    if is_ahead and state.epoch == live:
        # A line is still in an epoch that archives have left.
        if state.holds_from != UNKNOWN:
            _skip(at, state.holds_from)
        return False
    if epoch == state.epoch:
        _pass(at, following)
    return True


@inner
def _live_from(at: OrderAt, state: OrderState) -> int:
    """Return the first live sequence that is held, whether or not filters are confirmed, or UNKNOWN."""
    if state.first_held != NONE:
        first = held_block(at, state.first_held).sequence
        state.holds_from = first if state.holds_from == UNKNOWN else min(first, state.holds_from)
    from_number: int = state.holds_from
    return from_number


@inner
def note_gone(at: OrderAt, epoch: int, following: int) -> None:
    """Note that archives lack the messages from the cursor to a sequence. Held blocks may have some of them."""
    state = order_state_at(at.state)
    if state.epoch != epoch:
        return
    if epoch == epoch_state_at(at.epochs).epoch and _live_from(at, state) != UNKNOWN:
        following = min(following, state.holds_from)
    _skip(at, following)


@inner
def note_told(at: OrderAt, epoch: int, following: int) -> None:
    """Note the end of an ended epoch as archives know it. `note_end` adds its keys."""
    state = order_state_at(at.state)
    if epoch != state.epoch:
        return
    is_kept = state.told_epoch == epoch
    if not is_kept:  # keys say how far they are in a later epoch
        state.told_epoch = epoch
        state.heard_told = 0
        for key in range(int64s_at(at.keys.used, 1)[0]):
            key_state(at, key).heard_epoch = 0
    for number in range(max(0, state.ended - MOST_ENDED), state.ended):
        place = number % MOST_ENDED
        if state.ended_epoch[place] == epoch:
            state.ended_next[place] = max(state.ended_next[place], following, state.cursor)
            state.ended_told[place] = max(state.ended_told[place], following) if is_kept else following
            return
    heard, told = state.heard_next, state.heard_told
    state.heard_next, state.heard_told = max(following, state.cursor), following
    _end_epoch(at, epoch)
    state.heard_next, state.heard_told = heard, told


@inner
def give_up(at: OrderAt, in_force: int) -> bool:
    """Give up the missing messages before the held blocks. Return False if there are no live blocks yet.

    `in_force`: see `note_passed`.
    """
    state = order_state_at(at.state)
    _begin_to_hold(state, in_force)
    if state.epoch != epoch_state_at(at.epochs).epoch or _live_from(at, state) == UNKNOWN:
        return False
    _skip(at, state.holds_from)
    return True


@inner
def goes_live(at: OrderAt) -> bool:
    """Switch to LIVE if archives have reached the held blocks; return True if it did."""
    state = order_state_at(at.state)
    is_here = state.phase != LIVE and state.epoch == epoch_state_at(at.epochs).epoch and state.images == 0
    if not is_here or state.holds_from == UNKNOWN or state.cursor < state.holds_from:
        return False
    state.gone_before = max(state.gone_before, state.cursor)
    state.holds = 0
    state.lives += 1
    state.request += 1
    store_shared(state, "phase", LIVE)
    return True
