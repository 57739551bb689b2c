"""Deliver missing or earlier messages of a slice from archives, then live ones again. Compiled decisions without I/O.

::

      LIVE         -- `catch_up`: a gap that no line can fill, another epoch, or no room to hold -->  CATCHING_UP
      start        -- `Order.begin`: at a position, or at a time that archives find (`opens`) ----->  CATCHING_UP
      CATCHING_UP  -- `judge_recorded`, `note_passed`: deliver new messages, move the cursor ------>  CATCHING_UP
      CATCHING_UP  -- `note_gone`, `give_up`: archives lack messages, which are lost -------------->  CATCHING_UP
      CATCHING_UP  -- `goes_live`: the cursor has reached the held live blocks -------------------->  LIVE

Joining in the past and repair are the same operation: deliver from `cursor` on, in order. Live blocks are held from
`holds_from` on, or dropped and read from archives later if there is no room.
"""

from __future__ import annotations

from blackbox.block.form.format import Header
from blackbox.native.memory.intrinsics import inner
from blackbox.native.memory.records import load_shared, store_shared
from blackbox.native.system.posix import poke
from blackbox.receive.order.epochs import epoch_state_at
from blackbox.receive.order.losses import end_of, is_missing_before, lose_before, lose_range, take
from blackbox.receive.order.state import (
    NONE,
    UNKNOWN,
    Answers,
    OrderAt,
    OrderState,
    Phase,
    Verdict,
    any_alive,
    held_block,
    order_state_at,
)


@inner
def can_repair(at: OrderAt) -> bool:
    """Return True if missing messages can be read from archives, and an archive answers."""
    state = order_state_at(at.state)
    return at.repairs != 0 and state.is_begun != 0 and load_shared(state, "answers") != Answers.NONE


@inner
def catch_up(at: OrderAt, holds: int) -> None:
    """Start to read archives, from the first message that may be missing."""
    state = order_state_at(at.state)
    state.first = max(state.proven, state.gone_before)
    state.is_from_proven = 1 if state.first <= state.proven else 0
    state.cursor = state.first
    state.holds = holds
    state.holds_from = UNKNOWN
    state.request += 1
    store_shared(state, "phase", Phase.CATCHING_UP)
    poke(state.wake_fd, at.state)


@inner
def _pass(at: OrderAt, following: int) -> None:
    state = order_state_at(at.state)
    state.cursor = max(state.cursor, following)
    if state.is_from_proven != 0:
        state.proven = max(state.proven, state.cursor)
    state.end = max(state.end, state.cursor)


@inner
def _skip(at: OrderAt, following: int) -> None:
    """Pass messages that archives lack. If only some keys are wanted, their next blocks show the loss."""
    state = order_state_at(at.state)
    if following <= state.cursor:
        return
    if state.is_full != 0 and following > state.end:
        lose_range(at, state.epoch, state.end, following)
        state.end = state.proven = following
    if state.is_full == 0:
        state.is_from_proven = 0
    state.gone_before = following
    _pass(at, following)


@inner
def is_void(at: OrderAt, request: int) -> bool:
    """Return True if a block or note from archives belongs to an earlier request."""
    state = order_state_at(at.state)
    return state.phase == Phase.LIVE or request != state.request


@inner
def judge_recorded(at: OrderAt, key: int, header: Header, span: int) -> int:
    """Judge the next block from archives, like `judge`. Its epoch was entered."""
    state = order_state_at(at.state)
    end = header.sequence + span
    first: int = Verdict.DUPLICATE
    if header.epoch == state.epoch and end > end_of(at, state, key):
        if is_missing_before(at, state, key, header.sequence, header.previous):
            lose_before(at, key, header.sequence, header.previous, header.key_sequence)
        first = take(at, key, header.sequence, span, header.previous, header.key_sequence, header.count)
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
    is_ahead = epoch > live >= state.epoch > 0 and any_alive(at, now_ns)
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
    """Return the first held live sequence, whether or not filters are confirmed, or UNKNOWN."""
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
    is_here = state.phase != Phase.LIVE and state.epoch == epoch_state_at(at.epochs).epoch and state.images == 0
    if not is_here or state.holds_from == UNKNOWN or state.cursor < state.holds_from:
        return False
    state.gone_before = max(state.gone_before, state.cursor)
    state.holds = 0
    state.lives += 1
    state.request += 1
    store_shared(state, "phase", Phase.LIVE)
    return True
