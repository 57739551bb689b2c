"""What travels from a slice thread to its workers beside the body: the block's header, and who wants which topic.

An envelope is one frame: the 64 bytes of the header; the words below; for each distinct topic of the block its number
(int32) and its match set (int32); and, when the topics have more than one match set, the rows of each: PARTS times
(set, start, stop, 0) as int32, then the rows as int32, grouped by set and ascending within each.
"""

from __future__ import annotations

from typing import Final

from numba import njit

from blackbox.layout import HEADER_BYTES

VERSION: Final = 0
"""Which `Table` the match sets belong to."""
FIRST_ROW: Final = 1
"""Rows before this one were delivered before."""
TS_RECV: Final = 2
CONFLATED: Final = 3
"""1: newest per topic of several blocks; sequence numbers mean nothing."""
PARTS: Final = 4
"""How many match sets the rows are grouped by; 0: all topics have the same."""
WORDS: Final = 5

WORDS_AT: Final = HEADER_BYTES
TOPICS_AT: Final = HEADER_BYTES + 8 * WORDS


PART_WORDS: Final = 4


@njit(inline="always")
def envelope_bytes(topics: int, rows: int) -> int:
    """Room that an envelope needs at most, for a block with that many distinct topics and rows."""
    return TOPICS_AT + 8 * topics + 4 * PART_WORDS * topics + 4 * rows


@njit(inline="always")
def parts_at(topics: int) -> int:
    """Where the parts start."""
    return TOPICS_AT + 8 * topics
