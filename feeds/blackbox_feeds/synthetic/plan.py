"""The plan of a synthetic session: its symbols, how active each is, and messages per second."""

from __future__ import annotations

from collections.abc import Iterator

import numpy
from numpy.typing import NDArray

from blackbox.native.compile.jit import njit
from blackbox_feeds.synthetic.random import below, draw, fraction

SESSION_SECONDS = 23_400
"""09:30 to 16:00."""
OPEN_NS = 34_200 * 1_000_000_000
"""09:30, in ns since midnight."""
BURST_FACTOR = 10
"""The rate in a burst, in multiples of the session's mean rate."""
_BURST_SHARE = 0.004

# fmt: off
_BUSIEST = [
    "NVDA", "TSLA", "AAPL", "AMD", "SPY", "QQQ", "MSFT", "AMZN", "META", "GOOG", "INTC", "PLTR",
    "SOFI", "AAL", "BAC", "F", "T", "CCL", "NIO", "RIVN", "UBER", "CSCO", "MU", "AVGO", "MARA",
    "COIN", "SNAP", "PFE", "XOM", "C", "WFC", "JPM", "DIS", "BA", "KO", "PEP", "NFLX", "ORCL",
    "CRM", "SBUX", "QCOM", "TXN",
]
# fmt: on
_LETTERS = 26
_SHORT_NAMES = 1_500


def _names() -> Iterator[str]:
    """Yield tickers, the busiest first: well-known ones, then made-up ones."""
    yield from _BUSIEST
    step = 0
    while True:
        letters = 3 if step < _SHORT_NAMES else 4
        # 7919 is coprime to 26, so all names differ.
        code = (step * 7919 + 1234) % _LETTERS**letters
        name = "".join(chr(65 + code // _LETTERS**place % _LETTERS) for place in range(letters))
        if name not in _BUSIEST:
            yield name
        step += 1


def ticker_names(count: int) -> list[str]:
    """Return `count` distinct tickers of one to four letters, the busiest first; up to 65,535."""
    names = _names()
    return [next(names) for _ in range(count)]


def locate_order(names: list[str]) -> NDArray[numpy.int64]:
    """Return the stock locate of each name: 1, 2, ... in alphabetical order."""
    locates = numpy.empty(len(names), numpy.int64)
    locates[sorted(range(len(names)), key=names.__getitem__)] = numpy.arange(1, len(names) + 1)
    return locates


@njit(nogil=True, cache=True)
def zipf_tables(count: int) -> tuple[NDArray[numpy.int64], NDArray[numpy.int64]]:
    """Return Vose's alias tables for drawing symbol k with weight 1 / (k + 3).

    Draw a row, and 32 random bits: below `keep[row]` it is the row itself, else `alias[row]`.
    """
    scaled = 1.0 / (numpy.arange(count) + 3.0)
    total = 0.0
    for row in range(count):
        total += scaled[row]
    scaled *= count / total
    keep = numpy.full(count, 1 << 32, numpy.int64)
    alias = numpy.arange(count)
    small = numpy.empty(count, numpy.int64)
    large = numpy.empty(count, numpy.int64)
    smalls = 0
    larges = 0
    for row in range(count):
        if scaled[row] < 1.0:
            small[smalls] = row
            smalls += 1
        else:
            large[larges] = row
            larges += 1
    while smalls and larges:
        smalls -= 1
        poor = small[smalls]
        rich = large[larges - 1]
        keep[poor] = numpy.int64(scaled[poor] * 4294967296.0)
        alias[poor] = rich
        scaled[rich] -= 1.0 - scaled[poor]
        if scaled[rich] < 1.0:
            larges -= 1
            small[smalls] = rich
            smalls += 1
    return keep, alias


@njit(nogil=True, cache=True)
def messages_before(random: NDArray[numpy.uint64], messages: int) -> NDArray[numpy.int64]:
    """Return the number of `messages` before each second of the session, and before its end.

    The rate is high at the open and the close and low at noon, uneven from second to second, and in some seconds
    exactly `BURST_FACTOR` times the mean.
    """
    weights = numpy.empty(SESSION_SECONDS)
    burst = numpy.zeros(SESSION_SECONDS, numpy.bool_)
    bursts = 0
    usual = 0.0
    for second in range(SESSION_SECONDS):
        if fraction(random) < _BURST_SHARE:
            burst[second] = True
            bursts += 1
        else:
            side = 2.0 * (second + 0.5) / SESSION_SECONDS - 1.0
            shape = 0.6 + 2.0 * side * side * side * side
            weights[second] = shape * (0.7 + 0.6 * fraction(random))
            usual += weights[second]
    # The mean includes the bursts, and each burst is a multiple of the mean.
    peak = BURST_FACTOR * usual / (SESSION_SECONDS - BURST_FACTOR * bursts)
    before = numpy.empty(SESSION_SECONDS + 1, numpy.int64)
    total = usual + bursts * peak
    so_far = 0.0
    for second in range(SESSION_SECONDS):
        before[second] = numpy.int64(messages * (so_far / total))
        so_far += peak if burst[second] else weights[second]
    before[SESSION_SECONDS] = messages
    return before


@njit(nogil=True, cache=True)
def some_row(keep: NDArray[numpy.int64], alias: NDArray[numpy.int64], random: NDArray[numpy.uint64]) -> int:
    """Return a symbol, by the tables of `zipf_tables`."""
    row = below(random, len(keep))
    low_bits = numpy.int64(draw(random) >> numpy.uint64(32))
    return row if low_bits < keep[row] else alias[row]


@njit(nogil=True, cache=True)
def time_of(
    before: NDArray[numpy.int64],
    clock: NDArray[numpy.int64],
    random: NDArray[numpy.uint64],
    index: int,
) -> int:
    """Return the time of message `index`: one in each of the equal parts of its second.

    `clock` holds the second of the last one; indices must not go back. Unit: ns since midnight.
    """
    second = clock[0]
    while before[second + 1] <= index:
        second += 1
    clock[0] = second
    part = (index - before[second]) * 1_000_000_000 + below(random, 1_000_000_000)
    return OPEN_NS + second * 1_000_000_000 + part // (before[second + 1] - before[second])
