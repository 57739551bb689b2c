"""Back-test a strategy over three symbols of real days: ours, nautilus_trader and hftbacktest.

    ours               recording, 4 slices ==held==> interleaved by ts_event --a call a trade, or blocks--> strategy
    nautilus_trader    tick objects in memory, sorted --a call a trade--> on_trade_tick
    hftbacktest        one array per asset in memory ==> simulated exchange and local side ==> compiled feed loop

The trades of SPY, IBM and BAC of 2013-10-07; compiled strategies replay three days. Each round is checked: every engine
must make the decisions of a plain loop. The other two also keep accounts and clocks and match orders for each trade.
Ours reads a recording in each round; the others read from memory.
"""

from __future__ import annotations

import importlib
import time
from typing import TYPE_CHECKING, Any, Final

import numpy
import pytest
from numba import njit

from bench.measure.contest import Contest
from bench.rivals.pair_strategy import (
    TOPICS,
    expect_decisions,
    fresh_state,
    record_tape,
    see,
    see_compiled,
    tape_trades,
)
from bench.rivals.rival import need
from bench.rivals.servers import Missing
from blackbox import Batch, Message, Recording, Subscriber

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

_SLICES: Final = 4
_CALL_DAYS: Final = 1
_COLUMN_DAYS: Final = 3
_S, _I = b"SI"


def _rate(subscriber: Subscriber, recording: Recording, trades: int) -> float:
    started = time.perf_counter()
    subscriber.replay(recording)
    return trades / (time.perf_counter() - started) / 1e6


def _calls(slices: int) -> float:
    """Run a Python callback per symbol, with a call for each trade."""
    recording = record_tape(_CALL_DAYS, slices)
    state = fresh_state().tolist()
    subscriber = Subscriber(recording.feed)

    def register(symbol: int) -> None:
        @subscriber.on(TOPICS[symbol])
        def trade(message: Message) -> None:
            see(symbol, message.record.price, state)

    for symbol in range(len(TOPICS)):
        register(symbol)
    rate = _rate(subscriber, recording, len(tape_trades(_CALL_DAYS)[0]))
    expect_decisions(state, _CALL_DAYS)
    return rate


def _batches(slices: int) -> float:
    """Run the compiled strategy on columns."""
    recording = record_tape(_COLUMN_DAYS, slices)
    state = fresh_state()
    subscriber = Subscriber(recording.feed)

    @subscriber.on_batch(b"")
    def trades(batch: Batch) -> None:
        symbols = numpy.array([TOPICS.index(topic) for topic in batch.topics])
        _see_columns(symbols, batch.topic_index, batch.records("T")["price"], state)

    rate = _rate(subscriber, recording, len(tape_trades(_COLUMN_DAYS)[0]))
    expect_decisions(state, _COLUMN_DAYS)
    return rate


@njit(nogil=True)
def _see_columns(symbols: Any, topic_index: Any, prices: Any, state: Any) -> None:
    for row in range(len(prices)):
        see_compiled(symbols[topic_index[row]], prices[row], state)


def _compiled() -> float:
    """Run one compiled callback on one slice: each slice has its own state, and the strategy needs one."""
    recording = record_tape(_COLUMN_DAYS, 1)
    subscriber = Subscriber(recording.feed)
    callback = subscriber.on_compiled(b"", state=fresh_state())(_see_rows)
    rate = _rate(subscriber, recording, len(tape_trades(_COLUMN_DAYS)[0]))
    expect_decisions(callback.total(), _COLUMN_DAYS)
    return rate


def _see_rows(batch: Any, state: Any) -> None:
    for row in batch.rows:
        letter = batch.topic_text[batch.topic_offsets[batch.topic_index[row]]]
        at = row * batch.stride + 24
        price = batch.payloads[at : at + 8].view(numpy.int64)[0]
        see_compiled(0 if letter == _S else 1 if letter == _I else 2, price, state)


def _contest(days: int, how: str) -> Contest:
    try:
        trades = len(tape_trades(days)[0])
    except Missing as why:
        pytest.skip(str(why))
    return Contest(f"Back-testing a strategy on {trades:,} trades of the tape, {how}", "M trades/s", topology=__doc__)


def test_engines_calls(benchmark: BenchmarkFixture) -> None:
    """M trades/s, a Python call a trade."""
    contest = _contest(_CALL_DAYS, "in Python")
    in_slices = f"on(prefix), {_SLICES} slices"
    contest.add(in_slices, lambda: _calls(_SLICES))
    contest.add("on(prefix), one slice", lambda: _calls(1))
    try:
        need("nautilus_trader")
    except Missing as why:
        contest.skip("nautilus_trader", str(why))
    else:
        engine: Any = importlib.import_module("bench.rivals.nautilus_loop").Engine(_CALL_DAYS)
        contest.add("nautilus_trader, on_trade_tick", engine.rate, "rival", versus=in_slices)
    contest.bound("an empty Python call")
    contest.run(benchmark)


def test_engines_compiled(benchmark: BenchmarkFixture) -> None:
    """M trades/s, the strategy compiled."""
    contest = _contest(_COLUMN_DAYS, "compiled")
    in_slices = f"on_batch, {_SLICES} slices"
    contest.add(in_slices, lambda: _batches(_SLICES))
    contest.add("on_batch, one slice", lambda: _batches(1))
    contest.add("on_compiled, one slice", _compiled)
    try:
        need("hftbacktest")
    except Missing as why:
        contest.skip("hftbacktest", str(why))
    else:
        loops: Any = importlib.import_module("bench.rivals.hftbacktest_loop")
        contest.add("hftbacktest, wait_next_feed", lambda: loops.pair_loop(_COLUMN_DAYS), "rival", versus=in_slices)
    contest.run(benchmark)
