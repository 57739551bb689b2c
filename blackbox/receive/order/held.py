"""Hold live blocks of a slice, ordered by sequence. Compiled, without I/O.

Each held block has a place; the caller keeps its body. A place is free, in the order, or holds a block with an
implausible sequence.
"""

from __future__ import annotations

from blackbox.block.form.format import Header
from blackbox.native.memory.intrinsics import inner, saturated
from blackbox.receive.order.state import (
    HELD_BLOCKS,
    NONE,
    OrderAt,
    OrderState,
    held_block,
    order_state_at,
)
from blackbox.receive.state import slice_counters_at


@inner
def has_room(at: OrderAt, body_bytes: int) -> bool:
    """Return True if there is room for another held block."""
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
def give_place(at: OrderAt, state: OrderState, place: int) -> None:
    """Free a place."""
    held_block(at, place).behind = state.free
    state.free = place
    state.places -= 1


@inner
def enqueue(at: OrderAt, state: OrderState, place: int) -> None:
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
def dequeue_first(at: OrderAt, state: OrderState) -> None:
    """Remove the first held block, and free its place."""
    place = state.first_held
    block = held_block(at, place)
    state.first_held = block.behind
    if block.behind == NONE:
        state.last_held = NONE
    else:
        held_block(at, block.behind).before = NONE
    state.held_bytes -= block.held_bytes
    give_place(at, state, place)
    slice_counters_at(at.counters).held -= 1


@inner
def fill_place(at: OrderAt, state: OrderState, key: int, header: Header, span: int) -> int:
    """Return a place filled with a block's description, not yet in the order."""
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
    place: int = fill_place(at, state, key, header, span)
    held_block(at, place).since_ns = now_ns
    held_block(at, place).came_ns = came_ns
    enqueue(at, state, place)
    return place


@inner
def let_go(at: OrderAt) -> int:
    """Drop the first held block; return its place, or NONE if no block is held."""
    state = order_state_at(at.state)
    place: int = state.first_held
    if place != NONE:
        counters = slice_counters_at(at.counters)
        counters.let_go = saturated(counters.let_go, held_block(at, place).messages)
        dequeue_first(at, state)
    return place
