"""Leave and enter epochs of a slice, live or in archives. Compiled decisions without I/O; `epochs` judges live ones.

::

      LIVE         -- a live epoch begins, archives do not answer: the rest of the last one is lost -->  LIVE
      LIVE         -- a live epoch begins, archives answer: the last one is kept as ended ------------>  CATCHING_UP
      CATCHING_UP  -- a live epoch begins: the last live one is kept as ended ------------------------>  CATCHING_UP
      CATCHING_UP  -- archives enter a later epoch: the rests of ended ones before it are lost ------->  CATCHING_UP

Archives may be ahead of a line. The epochs that they leave first are kept (`left_epoch`), to count messages that the
line sends later as lost.
"""

from __future__ import annotations

from blackbox.native.memory.intrinsics import inner, int64s_at
from blackbox.receive.order.epochs import epoch_state_at
from blackbox.receive.order.keys import forget_keys
from blackbox.receive.order.losses import begins, end_of, has_losses, lose, lose_range
from blackbox.receive.order.repair import can_repair, catch_up
from blackbox.receive.order.state import (
    MOST_ENDED,
    UNKNOWN,
    OrderAt,
    OrderState,
    Phase,
    is_catching_up,
    key_state,
    order_state_at,
)


@inner
def lose_left(at: OrderAt, epoch: int, end: int) -> None:
    """Count messages as lost that a delayed line sends later, in an epoch that archives have left.

    If only some keys are wanted, the count may include messages of others.
    """
    state = order_state_at(at.state)
    place = _left_place(state, epoch)
    if place != UNKNOWN and epoch < state.epoch and end > state.left_next[place]:
        lose_range(at, epoch, state.left_next[place], end)
        state.left_next[place] = end


@inner
def _left_place(state: OrderState, epoch: int) -> int:
    """Return the index of an epoch in the ring of those that archives left, or UNKNOWN."""
    found: int = UNKNOWN
    for place in range(MOST_ENDED):
        if state.left_epoch[place] == epoch:
            found = place
    return found


@inner
def _leave(state: OrderState, epoch: int, following: int) -> None:
    """Note that archives leave an epoch that the live line may still be in, or reach later."""
    if epoch != 0 and _left_place(state, epoch) == UNKNOWN:
        place = state.left % MOST_ENDED
        state.left_epoch[place] = epoch
        state.left_next[place] = following
        state.left += 1


@inner
def _enter_epoch(at: OrderAt, epoch: int) -> None:
    """Begin another epoch with sequence 0. Numbers of keys may change."""
    state = order_state_at(at.state)
    state.epoch = epoch
    state.end = state.proven = state.cursor = state.first = state.gone_before = state.lost_to = 0
    state.is_from_proven = 1
    state.is_counted = state.is_strict
    state.is_full = state.wants_full & state.is_strict
    for key in range(int64s_at(at.keys.used, 1)[0]):
        of_key = key_state(at, key)
        is_new = state.is_begun == 0 or (state.is_strict == 0 and of_key.end == 0 and of_key.count == UNKNOWN)
        of_key.end = of_key.is_late = 0
        of_key.began = 0 if state.is_strict != 0 else min(of_key.began, 0)
        of_key.count = UNKNOWN if is_new else 0
    if state.is_strict != 0:  # else keys of the earlier filters differ from new ones
        forget_keys(at)


@inner
def _lose_rest(at: OrderAt, following: int, told: int, is_over: bool) -> None:
    """Count the missing messages at the end of an epoch as lost.

    `following`: the known end of the slice. `told`: the sequence up to which the ends of keys are known; later messages
    may have unwanted keys. `is_over`: live blocks have shown the losses of keys.
    """
    state = order_state_at(at.state)
    if state.is_full == 0 and state.told_epoch == state.epoch:
        for key in range(int64s_at(at.keys.used, 1)[0]):
            of_key = key_state(at, key)
            is_told = of_key.heard_epoch == state.epoch and of_key.heard_end <= told
            if is_told and not begins(state, of_key) and of_key.heard_end > end_of(at, state, key):
                lose(at, key, of_key.heard_end, of_key.heard_count)
        state.proven = max(state.proven, told)
    first = state.end if state.is_full != 0 else state.proven
    is_passed = state.is_from_proven != 0 and following <= state.cursor
    if following > first and not is_passed and (not is_over or state.is_full != 0):
        lose_range(at, state.epoch, first, following)


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
    if state.phase != Phase.LIVE:
        _end_epoch(at, before)
        state.holds_from = UNKNOWN
        if state.begun_epoch < epoch < state.epoch:
            _leave(state, epoch, 0)
    elif state.is_begun == 0:
        _enter_epoch(at, epoch)
    elif can_repair(at):
        _end_epoch(at, before)
        catch_up(at, 1)
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
def _first_ended(state: OrderState, before: int) -> int:
    """Return the index of the lowest ended epoch before another, or UNKNOWN. The ring is not sorted."""
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
        state.end = state.proven = state.cursor = state.first = sequence
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
def note_told(at: OrderAt, epoch: int, following: int) -> None:
    """Store the end of an ended epoch from archives. `note_end` adds its keys."""
    state = order_state_at(at.state)
    if epoch != state.epoch:
        return
    is_kept = state.told_epoch == epoch
    if not is_kept:  # keys are already in a later epoch
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
