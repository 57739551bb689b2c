"""Doubt sequence numbers that are too far ahead to be believed at once; compiled.

A line has to bring such a number twice. Until then its block is kept, in part of the room for blocks that wait.
"""

from __future__ import annotations

from typing import Final

from blackbox.native.intrinsics import inner, int64s_at
from blackbox.subscribe.held_blocks import (
    HELD_BLOCKS,
    NONE,
    enqueue,
    give_place,
    take_place,
)
from blackbox.subscribe.sequences import (
    KeyState,
    SequencesAt,
    held_block,
    held_state_at,
    key_state,
)
from blackbox.subscribe.state import slice_counters_at

PLAUSIBLE_JUMP: Final = 1 << 24
"""How far ahead a key's number is believed at once. One further ahead is believed when its line brings it again."""


@inner
def _leave_doubt(at: SequencesAt, state: KeyState, line: int) -> int:
    """End the doubt about a line's number; return the place of its block, or NONE."""
    place = state.doubted_place[line]
    state.doubted[line] = 0
    state.doubted_place[line] = NONE
    if place != NONE:
        held_state = held_state_at(at.held_state)
        held_state.doubted -= 1
        held_state.doubted_bytes -= held_block(at, place).held_bytes
    return place


@inner
def refute(at: SequencesAt, state: KeyState, line: int) -> None:
    """Take a line's number, which nothing has confirmed, for untrue: its block will be dropped."""
    place = _leave_doubt(at, state, line)
    if place != NONE:
        held_state = held_state_at(at.held_state)
        held_block(at, place).behind = held_state.refuted
        held_state.refuted = place


@inner
def believe(at: SequencesAt, state: KeyState, line: int, now_ns: int) -> None:
    """Let the block that was doubted wait for its turn."""
    place = _leave_doubt(at, state, line)
    if place != NONE:
        held_block(at, place).since_ns = now_ns
        enqueue(held_state_at(at.held_state), state, at.held, place)
        slice_counters_at(at.counters).held += 1


@inner
def is_plausible(at: SequencesAt, state: KeyState, line: int, sequence: int, end: int, now_ns: int) -> bool:
    """Whether to believe this number of a line: one far ahead of all that is known, only when it comes again."""
    if sequence - max(state.expected, state.line_next[line]) <= PLAUSIBLE_JUMP:
        if state.doubted[line] != 0:
            refute(at, state, line)
        return True
    doubted = state.doubted[line]
    if doubted != 0 and doubted <= sequence and sequence - state.doubted_end[line] <= PLAUSIBLE_JUMP:
        believe(at, state, line, now_ns)
        return True
    refute(at, state, line)
    state.doubted[line] = sequence
    state.doubted_end[line] = end
    return False


@inner
def place_for(at: SequencesAt, key: int, sequence: int, count: int, body_bytes: int) -> int:
    """Take a place for a block that waits; return its number."""
    place = take_place(held_state_at(at.held_state), at.held)
    held = held_block(at, place)
    held.key = key
    held.sequence = sequence
    held.count = count
    held.held_bytes = body_bytes
    return place


@inner
def keep_doubted(at: SequencesAt, key: int, line: int, sequence: int, count: int, body_bytes: int, now: int) -> int:
    """Take a place for a block that `judge` said to be IMPLAUSIBLE; return its number, or NONE: there is no room.

    Half of the room may be taken so, or one block.
    """
    held_state = held_state_at(at.held_state)
    blocks, size = held_state.doubted, held_state.doubted_bytes + body_bytes
    if blocks > 0 and (2 * blocks >= HELD_BLOCKS or 2 * size > at.held_limit):
        return NONE
    if held_state.taken >= HELD_BLOCKS:
        return NONE
    place = place_for(at, key, sequence, count, body_bytes)
    held_block(at, place).came_ns = now
    held_state.doubted = blocks + 1
    held_state.doubted_bytes = size
    key_state(at, key).doubted_place[line] = place
    return place


@inner
def next_refuted(at: SequencesAt) -> int:
    """Give back the place of a kept block that is not believed; return its number, or NONE."""
    held_state = held_state_at(at.held_state)
    place = held_state.refuted
    if place != NONE:
        held_state.refuted = held_block(at, place).behind
        give_place(held_state, at.held, place)
    return place


@inner
def refute_all(at: SequencesAt) -> None:
    """Take all that is still doubted for untrue."""
    for key in range(int64s_at(at.keys.used, 1)[0]):
        for line in range(2):
            refute(at, key_state(at, key), line)
