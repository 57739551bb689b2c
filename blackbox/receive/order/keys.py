"""Forget keys of earlier epochs: a publisher has at most `max_keys` in each, and the table holds those of two epochs.

Compiled, without I/O.
"""

from __future__ import annotations

import numpy
from numpy.typing import NDArray

from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import bytes_at, copy_bytes, inner, int64s_at
from blackbox.native.tables.name_table import forget_names, number_of
from blackbox.receive.order.epochs import epoch_state_at
from blackbox.receive.order.state import (
    KEY_BYTES,
    NONE,
    OrderAt,
    Phase,
    held_block,
    key_state,
    order_state_at,
)


@njit(nogil=True, cache=True)
def forget_keys(at: OrderAt) -> None:
    """At the beginning of an epoch, if more than half of the table is used, remove keys that are as good as new.

    Numbers of the others change.
    """
    used = int64s_at(at.keys.used, 1)[0]
    if used <= at.keys.capacity // 2:
        return
    state, numbers = order_state_at(at.state), numpy.arange(used)
    is_needed = numpy.zeros(used, numpy.bool_)
    _renumber_held(at, numbers, is_needed)
    starts = int64s_at(at.keys.starts, used + 1).copy()
    names = bytes_at(at.keys.text, starts[used]).copy()
    forget_names(at.keys)
    for key in range(used):
        of_key = key_state(at, key)
        is_told = state.phase != Phase.LIVE and of_key.told_before > 0 and of_key.told_before == state.told_next
        if is_needed[key] or is_told or of_key.lost != 0 or of_key.heard_epoch >= state.epoch:
            name = numpy.int64(names.ctypes.data) + starts[key]
            numbers[key] = number_of(at.keys, name, starts[key + 1] - starts[key])
            copy_bytes(at.key_states + KEY_BYTES * numbers[key], at.key_states + KEY_BYTES * key, KEY_BYTES)
    kept = int64s_at(at.keys.used, 1)[0]
    bytes_at(at.key_states + KEY_BYTES * kept, KEY_BYTES * (used - kept))[:] = 0
    _renumber_held(at, numbers, is_needed)
    _renumber_lost(at, numbers)


@inner
def _renumber_held(at: OrderAt, numbers: NDArray[numpy.int64], is_needed: NDArray[numpy.bool_]) -> None:
    """Replace the keys of kept blocks by their new numbers, and note that these keys are needed."""
    state, epochs = order_state_at(at.state), epoch_state_at(at.epochs)
    place = state.first_held
    while place != NONE:
        block = held_block(at, place)
        is_needed[block.key] = True
        block.key = numbers[block.key]
        place = block.behind
    for line in range(2):
        if state.doubted_place[line] != NONE:
            block = held_block(at, state.doubted_place[line])
            is_needed[block.key] = True
            block.key = numbers[block.key]
        if epochs.doubted_key[line] != 0:
            is_needed[epochs.doubted_key[line] - 1] = True
            epochs.doubted_key[line] = numbers[epochs.doubted_key[line] - 1] + 1


@inner
def _renumber_lost(at: OrderAt, numbers: NDArray[numpy.int64]) -> None:
    """Do the same for the chain of keys with unreported losses."""
    state = order_state_at(at.state)
    if state.first_lost != 0:
        state.first_lost = numbers[state.first_lost - 1] + 1
    lost = state.first_lost
    while lost != 0:
        of_key = key_state(at, lost - 1)
        if of_key.next_lost != 0:
            of_key.next_lost = numbers[of_key.next_lost - 1] + 1
        lost = of_key.next_lost
