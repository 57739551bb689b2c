"""A sink takes every block of a slice, in order and once, in place of callbacks: a C function and its words.

The slice thread calls it with the address of the words, without the GIL, and goes on when it returns.
"""

from __future__ import annotations

from typing import Final, NamedTuple

KIND: Final = 0
"""BLOCK or IDLE."""
HEAD: Final = 1
"""Address of the block's header."""
BODY: Final = 2
BODY_BYTES: Final = 3
FIRST_ROW: Final = 4
"""Rows before this one were given before."""
TS_RECV: Final = 5
AGAIN: Final = 6
"""Set by a sink that was told IDLE: 1, tell it again within `AGAIN_MS`, if nothing comes."""
SINK_WORDS: Final = 8
AGAIN_MS: Final = 1

BLOCK: Final = 0
IDLE: Final = 1
"""Nothing more is there now."""


class SinkAt(NamedTuple):
    """Where a sink is: its C function `void f(int64_t words)`, 0 for none, and its words."""

    function: int
    words: int


NO_SINK: Final = SinkAt(0, 0)
