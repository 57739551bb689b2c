"""What travels from a slice thread to its workers beside the body: the block's header, and who wants which topic.

An envelope is one frame: the 64 bytes of the header, the words below, then for each distinct topic of the block its
number (int32) and its match set (int32).
"""

from __future__ import annotations

from typing import Final

from blackbox.layout import HEADER_BYTES

VERSION: Final = 0
"""Which `Table` the match sets belong to."""
FIRST_ROW: Final = 1
"""Rows before this one were delivered before."""
TS_RECV: Final = 2
CONFLATED: Final = 3
"""1: newest per topic of several blocks; sequence numbers mean nothing."""
WORDS: Final = 4

WORDS_AT: Final = HEADER_BYTES
TOPICS_AT: Final = HEADER_BYTES + 8 * WORDS


def envelope_bytes(topics: int) -> int:
    """Size of the envelope of a block with that many distinct topics."""
    return TOPICS_AT + 8 * topics
