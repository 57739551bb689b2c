"""The demo's callbacks of each kind: compiled (trades, message mix), per batch (last price), per message (watched)."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.block.batch.batch import Batch, Message
from blackbox.cli.demo.results import Results, SymbolResult
from blackbox.cli.demo.trades import (
    MAX_TOPICS,
    PRICE_SCALE,
    iex_trades,
    itch_trades,
    new_state,
    sums_of,
    trades_by_topic,
)
from blackbox.errors import ConfigError
from blackbox.native.compile.jit import njit
from blackbox.native.system.posix import now_ns
from blackbox.receive.callbacks.compiled_callback import CompiledBatch
from blackbox.subscriber.subscriber import Subscriber


class Trading(NamedTuple):
    """How a schema represents trades."""

    add_up: Callable[..., None]
    trade_type: str
    """The message type with the last price, in its field `price`."""


TRADING: Final = {
    "itch50": Trading(itch_trades, "P"),
    "iex_tops16": Trading(iex_trades, "T"),
    "iex_deep10": Trading(iex_trades, "T"),
}
_MOST_ORDERS: Final = 1 << 20

# The state of the message mix: when the first block came, when the last one was done, a count for each type.
_FIRST_NS: Final = 0
_LAST_NS: Final = 1
_COUNTS: Final = 8


@njit(nogil=True, cache=True)
def message_mix(batch: CompiledBatch, state: NDArray[numpy.int64]) -> None:
    """Count the messages of a batch by type, the first byte of the payload."""
    if state[_FIRST_NS] == 0:
        state[_FIRST_NS] = batch.ts_recv
    for row in batch.rows:
        start = row * batch.stride if batch.stride >= 0 else numpy.int64(batch.offsets[row])
        state[_COUNTS + batch.payloads[start]] += 1
    state[_LAST_NS] = now_ns()


class DemoCallbacks:
    """Registers the callbacks, holds their states, and combines them afterwards.

    Raises ConfigError if the demo does not support the feed's schema.
    """

    def __init__(self, subscriber: Subscriber, orders: Sequence[int], watched: Sequence[bytes]) -> None:
        """`orders`: most resting orders of each slice; `watched`: symbols whose messages go to Python one by one."""
        feed = subscriber.feed
        add_up, self._trade_type = trading_of(feed.schema_name)
        self._subscriber = subscriber
        self._last = numpy.zeros((len(feed.slices), MAX_TOPICS), numpy.int64)
        self._done_ns = 0
        self.watched = {symbol: [0] * 256 for symbol in watched}
        # These callbacks are independent, so a replay in market order uses large batches for them.
        books, counts = new_state(min(max(orders), _MOST_ORDERS)), numpy.zeros(_COUNTS + 256, numpy.int64)
        self._trades = subscriber.on_compiled(b"", state=books, independent=True)(add_up)
        self._mix = subscriber.on_compiled(b"", state=counts, independent=True)(message_mix)
        subscriber.on_batch(b"", independent=True)(self._last_price)
        for symbol, mix in self.watched.items():
            prefix, _ = feed.symbol_rule.topics_of(symbol)[0]
            subscriber.on(prefix, independent=True)(self._watch(mix))

    def _last_price(self, batch: Batch) -> None:
        trades = batch.indices(self._trade_type)
        numbers = batch.topic_numbers[batch.topic_index[trades]]
        # If a topic occurs twice, the later price is kept.
        self._last[batch.slice_ids[trades], numbers] = batch.records(self._trade_type)["price"]
        self._done_ns = time.time_ns()

    def _watch(self, mix: list[int]) -> Callable[[Message], None]:
        def count_message(message: Message) -> None:
            mix[message.payload[0]] += 1
            if message.end_of_batch:
                self._done_ns = time.time_ns()

        return count_message

    def results(self) -> Results:
        """Return the results of all callbacks."""
        watched = {symbol: tuple(mix) for symbol, mix in self.watched.items()}
        return Results(self.symbols(), self.mix(), watched, self.unpriced())

    def mix(self) -> dict[str, int]:
        """Return the number of messages of each type, from the compiled callback."""
        counts = self._mix.total()[_COUNTS:]
        return {chr(kind): int(counts[kind]) for kind in numpy.flatnonzero(counts)}

    def seconds(self) -> float:
        """Return the seconds from the first delivery to the last one, over all callbacks."""
        states = [state for state in self._mix.states.values() if state[_FIRST_NS]]
        if not states:
            return 0.0
        last = max(self._done_ns, *(int(state[_LAST_NS]) for state in states))
        return (last - min(int(state[_FIRST_NS]) for state in states)) / 1e9

    def unpriced(self) -> int:
        """Return the number of executions of unknown orders: added before the source began, or beyond the limit."""
        return sum(sums_of(state).unpriced for state in self._trades.states.values())

    def symbols(self) -> list[SymbolResult]:
        """Return the result of every traded symbol, by decreasing volume."""
        symbol_of = self._subscriber.feed.symbol_rule.symbol_of
        totals: dict[bytes, Any] = defaultdict(lambda: numpy.zeros(3, object))
        last: dict[bytes, int] = {}
        for slice_id, state in self._trades.states.items():
            topics = self._subscriber.topics(slice_id)
            for topic, columns in zip(topics, trades_by_topic(state), strict=False):
                totals[symbol_of(topic)] += columns
            prices = self._last[slice_id]
            last.update({symbol_of(topics[n]): int(prices[n]) for n in numpy.flatnonzero(prices[: len(topics)])})
        return sorted(
            (
                SymbolResult(
                    symbol.decode(errors="backslashreplace"),
                    shares,
                    trades,
                    value / shares / PRICE_SCALE,
                    last[symbol] / PRICE_SCALE if symbol in last else None,
                )
                for symbol, (value, shares, trades) in totals.items()
                if shares
            ),
            key=lambda result: (-result.shares, result.symbol),
        )


def trading_of(schema: str) -> Trading:
    """Return how a schema represents trades.

    Raises:
        ConfigError: the demo does not support it.
    """
    if schema not in TRADING:
        raise ConfigError(f"the demo's source had schema {schema!r}, expected one of: {', '.join(TRADING)}")
    return TRADING[schema]
