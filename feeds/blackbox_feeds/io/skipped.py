"""Count messages that decoders skip, in compiled code; see `blackbox_feeds.io.statistics`."""

from __future__ import annotations

import numpy
from numpy.typing import NDArray

from blackbox.native.compile.jit import njit
from blackbox_feeds.io.statistics import FIRST_NO_SYMBOL, NO_SYMBOL, UNKNOWN, UNKNOWN_TYPES


@njit(nogil=True, cache=True)
def count_unknown(counts: NDArray[numpy.int64], kind: int) -> None:
    """Count a message of an unknown type: its byte, or NO_TYPE."""
    counts[UNKNOWN] += 1
    counts[UNKNOWN_TYPES + kind] += 1


@njit(nogil=True, cache=True)
def count_no_symbol(counts: NDArray[numpy.int64], symbol: int) -> None:
    """Count a message with a symbol that is rejected."""
    if counts[NO_SYMBOL] == 0:
        counts[FIRST_NO_SYMBOL] = symbol
    counts[NO_SYMBOL] += 1
