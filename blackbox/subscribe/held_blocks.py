"""Blocks that wait for the other line, compiled: by key in the order of their numbers, and all in the order they came.

Both are lists through numbered places; the blocks themselves lie in messages of the same numbers. Bounded by a number
of places, and by bytes.
"""

from __future__ import annotations

from typing import Final

from blackbox.native.intrinsics import inner
from blackbox.native.records import Field, SharedRecord, record_at

NONE: Final = 0
"""No place."""
HELD_BLOCKS: Final = 1 << 16
"""Blocks of one slice that may wait for the other line. Places 1 to HELD_BLOCKS are theirs."""


class HeldState(SharedRecord):
    """All blocks of a slice that wait."""

    oldest = Field()
    newest = Field()
    free = Field()
    """The first place that has been given back; they are linked by `behind`."""
    used = Field()
    """The highest place that was ever taken."""
    taken = Field()
    """Places that are taken now, also by blocks that have yet to be dropped."""
    held_bytes = Field()
    doubted = Field()
    """Blocks that are kept, but not in these lists: nobody has yet told their numbers once more."""
    doubted_bytes = Field()
    refuted = Field()
    """The first place of such a block that turned out not to be true; they are linked by `behind`."""


class HeldBlock(SharedRecord):
    """A block that waits, by place."""

    key = Field()
    sequence = Field()
    count = Field()
    held_bytes = Field()
    since_ns = Field()
    came_ns = Field()
    """When it came, ns since the epoch, if what it waited is no lag: it was doubted, or archives were asked. Else 0."""
    before = Field()
    """The place before, of the same key."""
    behind = Field()
    older = Field()
    """The place that came before, of any key."""
    newer = Field()


class KeyQueue(SharedRecord):
    """The places of one key's blocks that wait, by sequence number."""

    first = Field()
    last = Field()


HELD_BYTES: Final = HeldBlock.dtype.itemsize
_held_at = record_at(HeldBlock)


@inner
def held_at(blocks: int, place: int) -> HeldBlock:
    """Return the block at a place."""
    return _held_at(blocks + HELD_BYTES * place)


@inner
def take_place(state: HeldState, blocks: int) -> int:
    """Return a free place; there must be one."""
    place = state.free
    state.taken += 1
    if place == NONE:
        state.used += 1
        return state.used
    state.free = held_at(blocks, place).behind
    return place


@inner
def give_place(state: HeldState, blocks: int, place: int) -> None:
    """Give a place back."""
    held_at(blocks, place).behind = state.free
    state.free = place
    state.taken -= 1


@inner
def enqueue(state: HeldState, queue: KeyQueue, blocks: int, place: int) -> None:
    """Put a block into its key's queue, where its number belongs, and behind all that came before."""
    block = held_at(blocks, place)
    state.held_bytes += block.held_bytes
    before = queue.last
    while before != NONE and held_at(blocks, before).sequence > block.sequence:
        before = held_at(blocks, before).before
    behind = queue.first if before == NONE else held_at(blocks, before).behind
    block.before = before
    block.behind = behind
    if before == NONE:
        queue.first = place
    else:
        held_at(blocks, before).behind = place
    if behind == NONE:
        queue.last = place
    else:
        held_at(blocks, behind).before = place
    block.older = state.newest
    block.newer = NONE
    if state.newest == NONE:
        state.oldest = place
    else:
        held_at(blocks, state.newest).newer = place
    state.newest = place


@inner
def dequeue(state: HeldState, queue: KeyQueue, blocks: int, place: int) -> None:
    """Take a block out of both lists and give its place back."""
    block = held_at(blocks, place)
    state.held_bytes -= block.held_bytes
    if block.before == NONE:
        queue.first = block.behind
    else:
        held_at(blocks, block.before).behind = block.behind
    if block.behind == NONE:
        queue.last = block.before
    else:
        held_at(blocks, block.behind).before = block.before
    if block.older == NONE:
        state.oldest = block.newer
    else:
        held_at(blocks, block.older).newer = block.newer
    if block.newer == NONE:
        state.newest = block.older
    else:
        held_at(blocks, block.newer).older = block.older
    give_place(state, blocks, place)
