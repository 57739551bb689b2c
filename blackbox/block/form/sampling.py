"""Sample one message in many, for traces: every process chooses the same ones by their sequences."""

from __future__ import annotations

from typing import Final

from blackbox.native.memory.intrinsics import inner

_NONE: Final = (1 << 63) - 1


def trace_mask(every: int) -> int:
    """Return the mask for `is_traced`. `every`: a power of two; 0: no message is traced."""
    return every - 1 if every else _NONE


@inner
def is_traced(sequence: int, count: int, mask: int) -> bool:
    """Return True for a block of `count` messages from `sequence` on that holds the last one of a run of `every`."""
    left = ~sequence & mask  # messages from the first one to the end of its run
    return left < count
