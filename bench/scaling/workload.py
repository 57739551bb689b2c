"""Workload of a large tree: message rates and interest by Zipf's law, and the resulting blocks."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

LETTERS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
TOPIC_BYTES: Final = 5
"""Length of a ticker: with this many `key_bytes`, each topic is a key."""
BLOCK_OVERHEAD_BYTES: Final = 100
"""Overhead of a block: its header, its key, and ZMTP and TCP for its three frames."""
ROW_BYTES: Final = 12
"""Overhead of a message in addition to its payload: time, topic index and its share of padding."""
NAME_BYTES: Final = TOPIC_BYTES + 8
"""Bytes of each topic in a block: name, end offset and id."""


class Market(NamedTuple):
    """Published topics and their subscribers."""

    topics: list[bytes]
    """Distinct topics, the most popular first."""
    rates: NDArray[numpy.float64]
    """Messages per second of each topic."""
    wants: NDArray[numpy.int32]
    """int32[subscribers, topics per subscriber]: indexes into `topics`, distinct in each row."""
    payload_bytes: int


class Keys(NamedTuple):
    """Traffic of each key, for one choice of `key_bytes`."""

    of_topic: NDArray[numpy.int64]
    blocks_per_s: NDArray[numpy.float64]
    bytes_per_s: NDArray[numpy.float64]


def zipf_shares(count: int, exponent: float = 1.0) -> NDArray[numpy.float64]:
    """Return the shares of `count` ranks by Zipf's law; their sum is 1."""
    weights: NDArray[numpy.float64] = 1 / numpy.arange(1, count + 1) ** exponent
    weights /= weights.sum()
    return weights


def make_market(
    rng: numpy.random.Generator,
    subscribers: int,
    topics: int,
    topics_each: int,
    messages_per_s: float,
    payload_bytes: int,
) -> Market:
    """Draw a market. More popular topics also have more messages."""
    numbers = rng.choice(len(LETTERS) ** TOPIC_BYTES, topics, replace=False)
    names = [_ticker(int(number)) for number in numbers]
    shares = zipf_shares(topics)
    return Market(names, shares * messages_per_s, draw(rng, shares, subscribers, topics_each), payload_bytes)


def draw(rng: numpy.random.Generator, shares: NDArray[numpy.float64], rows: int, each: int) -> NDArray[numpy.int32]:
    """Draw `each` distinct topics for every row, redrawing duplicates."""
    bounds = numpy.cumsum(shares)
    drawn = numpy.searchsorted(bounds, rng.random((rows, each)), side="right").astype(numpy.int32)
    while True:
        drawn.sort(axis=1)
        again = numpy.zeros(drawn.shape, bool)
        again[:, 1:] = drawn[:, 1:] == drawn[:, :-1]
        if not again.any():
            return numpy.minimum(drawn, len(shares) - 1)
        drawn[again] = numpy.searchsorted(bounds, rng.random(int(again.sum())), side="right")


def keys_of(market: Market, key_bytes: int, window_s: float) -> Keys:
    """Return the traffic of each key if a publisher gathers messages for `window_s` before sending."""
    _, of_topic = numpy.unique([topic[:key_bytes] for topic in market.topics], return_inverse=True)
    rates = numpy.bincount(of_topic, market.rates)
    # In a Poisson stream, the share of windows with a message: one block, or one topic in a block, each.
    blocks_per_s = -numpy.expm1(-rates * window_s) / window_s
    names_per_s = numpy.bincount(of_topic, -numpy.expm1(-market.rates * window_s) / window_s)
    bytes_per_s = (
        blocks_per_s * BLOCK_OVERHEAD_BYTES + rates * (market.payload_bytes + ROW_BYTES) + names_per_s * NAME_BYTES
    )
    return Keys(of_topic.astype(numpy.int64), blocks_per_s, bytes_per_s)


def _ticker(number: int) -> bytes:
    letters = bytearray()
    for _ in range(TOPIC_BYTES):
        number, letter = divmod(number, len(LETTERS))
        letters.append(LETTERS[letter])
    return bytes(letters)
