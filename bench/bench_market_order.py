"""Replay in process in time order, which merges several slices, compared with replay as sent.

    by time     4 slices ==held==> interleaved by ts_event ==gathered blocks==> callbacks
    as sent     4 slices ==blocks==> callbacks, block by block
    databento   DBN records in memory, already in order --an object a record--> DBNStore.replay(f)

The slices alternate at random, message by message, the hardest case for merging. Each round is checked: times must rise
in time order, and count, digest and sum of each instrument must be right in both.
"""

from __future__ import annotations

import importlib
import io
import time
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy
from numba import njit

from bench.measure.contest import Contest, expect
from bench.rivals.rival import need
from bench.rivals.servers import Missing
from bench.rivals.trades import dbn_file, expect_trades, record_trades, tally_trades
from bench.workload.messages import TOPICS
from bench.workload.recorded import read_whole
from blackbox import Batch, Message, Recording, Subscriber

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from pytest_benchmark.fixture import BenchmarkFixture

_SLICES: Final = 4
_CALLS: Final = 500_000
_TRADES: Final = 5_000_000
_BY_TIME: Final = "by time"

Order = Literal["event", "sent"]


class _Last:
    """Sums sizes and counts messages earlier than their predecessor."""

    def __init__(self) -> None:
        self.sizes = self.early = self.ts_event = self.messages = 0

    def take(self, message: Message) -> None:
        self.messages += 1
        self.early += message.ts_event < self.ts_event
        self.ts_event = message.ts_event
        self.sizes += message.payload[24]


def _calls(recording: Recording, order: Order, callbacks: int) -> float:
    """Return M messages/s with `callbacks` callbacks for each message."""
    subscriber = Subscriber(recording.feed)
    last = [_Last() for _ in range(callbacks)]
    for each in last:
        subscriber.on(b"")(each.take)
    statistics = subscriber.replay(recording, order=order)
    for each in last:
        expect("messages", each.messages, _CALLS)
        expect("messages out of time order", each.early > 0, order == "sent")
        expect("sum of sizes", each.sizes, last[0].sizes)
    return _CALLS / statistics.seconds / 1e6


def _store(store: Any) -> float:
    sizes = early = before = 0

    def take(record: Any) -> None:
        nonlocal sizes, early, before
        early += record.ts_event < before
        before = record.ts_event
        sizes += record.size

    started = time.perf_counter()
    store.replay(take)
    seconds = time.perf_counter() - started
    expect("messages out of time order", early, 0)
    expect("sum of sizes above 0", sizes > 0, True)
    return _CALLS / seconds / 1e6


def _batches(recording: Recording, order: Order, beside: int = 0) -> float:
    """Return M messages/s of a batch callback, next to `beside` others that receive few messages."""
    state = numpy.zeros((TOPICS, 3), numpy.int64)
    early = numpy.zeros(2, numpy.int64)
    subscriber = Subscriber(recording.feed)

    @subscriber.on_batch(b"")
    def count(batch: Batch) -> None:
        records = batch.records("trades")
        tally_trades(records["instrument_id"], records["size"], state)
        _count_early(batch.ts_event, early)

    for number in range(beside):
        subscriber.on_batch(b"S%04d." % number)(lambda batch: None)
    statistics = subscriber.replay(recording, order=order)
    expect_trades(state, _TRADES)
    expect("messages out of time order", early[1] > 0, order == "sent")
    return _TRADES / statistics.seconds / 1e6


@njit(nogil=True)
def _count_early(ts_event: NDArray[numpy.int64], early: NDArray[numpy.int64]) -> None:
    for time_ns in ts_event:
        early[1] += time_ns < early[0]
        early[0] = time_ns


def _read(recording: Recording) -> float:
    started = time.perf_counter()
    expect("bytes read above 0", read_whole(recording.path) > 0, True)
    return _TRADES / (time.perf_counter() - started) / 1e6


def _add(contest: Contest, name: str, run: Callable[[Order], float]) -> None:
    contest.add(f"{_BY_TIME}, {name}", lambda: run("event"))
    contest.add(f"as sent, {name}", lambda: run("sent"), versus=f"{_BY_TIME}, {name}")


def test_market_order_calls(benchmark: BenchmarkFixture) -> None:
    """M messages/s, a Python call per message and callback."""
    recording = record_trades(_CALLS, _SLICES)
    contest = Contest(f"Replay in time order, {_SLICES} slices, Python calls", "M messages/s", topology=__doc__)
    _add(contest, "one callback", lambda order: _calls(recording, order, 1))
    _add(contest, "two callbacks", lambda order: _calls(recording, order, 2))
    try:
        need("databento", "databento-dbn:databento_dbn")
        dbn: Any = importlib.import_module("databento_dbn")
        databento: Any = importlib.import_module("databento")
        store = databento.DBNStore.from_bytes(io.BytesIO(dbn_file(_CALLS, dbn)))
    except Missing as why:
        contest.skip("DBNStore.replay", str(why))
    else:
        contest.add("DBNStore.replay", lambda: _store(store), "rival", versus=f"{_BY_TIME}, one callback")
    contest.bound("an empty Python call")
    contest.run(benchmark)


def test_market_order_batches(benchmark: BenchmarkFixture) -> None:
    """M messages/s, batches."""
    recording = record_trades(_TRADES, _SLICES)
    contest = Contest(f"Replay in time order, {_SLICES} slices, batches", "M messages/s", topology=__doc__)
    _add(contest, "one batch callback", lambda order: _batches(recording, order))
    _add(contest, "with another of few messages", lambda order: _batches(recording, order, beside=1))
    contest.add("the same bytes, read once", lambda: _read(recording), "limit")
    contest.run(benchmark)
