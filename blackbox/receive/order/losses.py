"""Count the delivered and the lost messages of a slice. Compiled, without I/O.

If all keys are wanted (`is_full`), the slice has one end: each sequence before it was delivered or is lost. Otherwise
each key has an end, and a block says by `previous` and `key_sequence` how many messages of its key are missing.

Lost messages are counted in `KeyState.lost` and `OrderState.lost`. The caller reports them (`next_loss`) before it
delivers the next message.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy

from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import inner, int64s_at, saturated
from blackbox.native.tables.name_table import number_of
from blackbox.receive.order.state import (
    UNKNOWN,
    KeyState,
    OrderAt,
    OrderState,
    key_state,
    order_state_at,
)
from blackbox.receive.state import slice_counters_at


@njit(nogil=True, cache=True)
def number_key(at: OrderAt, text: int, size: int) -> int:
    """Return the number of a key, which may be new; FULL if there is no room."""
    known = int64s_at(at.keys.used, 1)[0]
    number: int = number_of(at.keys, text, size)
    if number == known:
        key_state(at, number).count = UNKNOWN
    return number


@inner
def end_of(at: OrderAt, state: OrderState, key: int) -> int:
    """Return the end of a key: everything before it was delivered or reported as lost."""
    end: int = state.end if state.is_full != 0 else max(state.proven, key_state(at, key).end)
    return end


@inner
def _known_count(state: OrderState, key: KeyState) -> int:
    """Return the number of a key's messages before its end, or UNKNOWN."""
    count: int = key.count
    if key.end == 0 and state.is_counted != 0:
        count = 0
    return count


@inner
def begins(state: OrderState, key: KeyState) -> bool:
    """Return True if messages before a key's next block are no loss: its start is unknown, or filters exclude it."""
    is_first = state.is_strict == 0 and key.count == UNKNOWN and key.end == 0
    return state.is_full == 0 and (is_first or key.is_out != 0)


@inner
def lose(at: OrderAt, key: int, stop: int, count: int) -> None:
    """Count the missing messages of a key before `stop` as lost. `count`: its messages before `stop`."""
    state, of_key = order_state_at(at.state), key_state(at, key)
    first, known = end_of(at, state, key), _known_count(state, of_key)
    lost = min(stop - first, count) if known == UNKNOWN else count - known
    of_key.end = max(of_key.end, stop)
    of_key.count = count
    if lost > 0:
        lose_messages(at, key, first, stop, lost, known == UNKNOWN and lost > 1)


@inner
def lose_messages(at: OrderAt, key: int, first: int, stop: int, lost: int, is_upper_bound: bool) -> None:
    """Count messages of a key before `stop` as lost. `is_upper_bound`: there are at most `lost`."""
    state, of_key, counters = order_state_at(at.state), key_state(at, key), slice_counters_at(at.counters)
    counters.gaps = saturated(counters.gaps, lost)
    if of_key.lost == 0:
        of_key.lost_from = first
        of_key.next_lost = state.first_lost
        state.first_lost = key + 1
    of_key.lost += lost
    of_key.lost_to = stop
    of_key.lost_is_upper_bound |= numpy.int64(is_upper_bound)
    state.lost_epoch = state.epoch


@inner
def lose_range(at: OrderAt, epoch: int, first: int, stop: int) -> None:
    """Count a range of the slice as lost."""
    state, counters = order_state_at(at.state), slice_counters_at(at.counters)
    counters.gaps = saturated(counters.gaps, stop - first)
    if state.lost == 0:
        state.lost_from = first
        state.lost_epoch = epoch
    state.lost += stop - first
    if epoch == state.epoch:
        state.lost_to = stop


class Loss(NamedTuple):
    """Lost messages."""

    epoch: int
    sequence: int
    """Sequence of the first of them."""
    count: int  # type: ignore[assignment]  # hides an unused method of tuples
    key: int
    """Number of the key; UNKNOWN: any keys."""
    is_upper_bound: int
    """1: `count` is an upper bound."""
    stop: int
    """Sequence after the last of them. Messages of other keys may lie between; unlike `sequence` it is the same in
    each run."""


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
    stop = sequence + count
    is_upper_bound: int = 1 - state.wants_full
    if count != 0:
        state.lost = 0
    else:
        key = state.first_lost - 1
        of_key = key_state(at, key)
        sequence, count, is_upper_bound = of_key.lost_from, of_key.lost, of_key.lost_is_upper_bound
        stop = of_key.lost_to
        state.first_lost = of_key.next_lost
        of_key.lost = of_key.lost_is_upper_bound = 0
    return Loss(epoch, sequence, count, key, is_upper_bound, stop)


@inner
def take(at: OrderAt, key: int, sequence: int, span: int, previous: int, key_sequence: int, messages: int) -> int:
    """Note the delivery of a block; return the offset of its first new sequence."""
    state, of_key = order_state_at(at.state), key_state(at, key)
    end = sequence + span
    first: int = max(0, end_of(at, state, key) - sequence)
    if of_key.count == UNKNOWN and state.is_counted == 0:
        if of_key.began != UNKNOWN:
            of_key.began = min(key_sequence, max(0, previous - state.proven))
        of_key.is_late = numpy.int64(key_sequence > 0)
    of_key.end = max(of_key.end, end)
    of_key.count = key_sequence + messages
    state.end = max(state.end, end)
    if state.is_full != 0:
        state.proven = state.end
    return first


@inner
def is_missing_before(at: OrderAt, state: OrderState, key: int, sequence: int, previous: int) -> bool:
    """Return True if wanted messages before a block are missing."""
    number = sequence if state.is_full != 0 else previous
    return number > end_of(at, state, key) and not begins(state, key_state(at, key))


@inner
def lose_before(at: OrderAt, key: int, sequence: int, previous: int, key_sequence: int) -> None:
    """Count the missing messages before a block as lost."""
    state = order_state_at(at.state)
    if state.is_full != 0:
        lose_range(at, state.epoch, state.end, sequence)
        state.end = state.proven = sequence
    else:
        lose(at, key, previous, key_sequence)
