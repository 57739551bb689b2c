"""Who wants what in a large tree: rates and interest by Zipf's law, and the blocks that messages make."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

LETTERS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"
TOPIC_BYTES: Final = 5
"""A ticker's length: the largest `key_bytes` that tells two topics apart."""
BLOCK_OVERHEAD_BYTES: Final = 100
"""Of each block: its header, its key, and what ZMTP and TCP add to its three frames."""
ROW_BYTES: Final = 12
"""Of each message beside its payload: its time, its topic's place, its share of what is padded."""
NAME_BYTES: Final = TOPIC_BYTES + 8
"""Of each topic of a block: its name, where that ends, and its number."""


class Market(NamedTuple):
    """What is published, and who wants it."""

    topics: list[bytes]
    """Distinct, the most wanted one first."""
    rates: NDArray[numpy.float64]
    """Messages a second of each."""
    wants: NDArray[numpy.int32]
    """int32[subscribers, topics a subscriber]: places in `topics`, distinct in each row."""
    payload_bytes: int


class Keys(NamedTuple):
    """What is sent under each key, for one choice of `key_bytes`."""

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
    """Draw a market. What is wanted more often has more messages, too."""
    numbers = rng.choice(len(LETTERS) ** TOPIC_BYTES, topics, replace=False)
    names = [_ticker(int(number)) for number in numbers]
    shares = zipf_shares(topics)
    return Market(names, shares * messages_per_s, draw(rng, shares, subscribers, topics_each), payload_bytes)


def draw(rng: numpy.random.Generator, shares: NDArray[numpy.float64], rows: int, each: int) -> NDArray[numpy.int32]:
    """Draw `each` distinct topics for every row; what is drawn twice is drawn anew."""
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
    """Return what is sent under each key, where a publisher gathers messages for `window_s` before it sends them."""
    _, of_topic = numpy.unique([topic[:key_bytes] for topic in market.topics], return_inverse=True)
    rates = numpy.bincount(of_topic, market.rates)
    # Of a Poisson stream: the share of windows in which something came, which is a block, or a topic in one.
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
