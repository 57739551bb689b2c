"""Replay a recorded day to callbacks in process: ours and Databento's DBNStore.

    ours            recording, memory-mapped ==blocks==> on(), on_batch(), on_compiled()
    four slices     recording ==held==> interleaved by time, message by message ==gathered blocks==> on()
    databento       DBN records in memory --an object a record--> DBNStore.replay(f)
                    DBN records in memory ==to_ndarray==> columns

The same trades of 5,000 instruments, the same work on each: count, digest and sum of sizes per instrument.
"""

from __future__ import annotations

import importlib
import io
import struct
import time
from typing import TYPE_CHECKING, Any, Final

import numpy

from bench.measure.contest import Contest
from bench.rivals.rival import optional
from bench.rivals.trades import dbn_file, expect_trades, record_trades, tally_trades
from bench.workload.messages import TOPICS
from bench.workload.tally import DIGEST_FACTOR, DIGEST_MASK, digest
from blackbox import Batch, Message, Recording, Subscriber

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from pytest_benchmark.fixture import BenchmarkFixture

_CALLS: Final = 500_000
_TRADES: Final = 5_000_000
_INSTRUMENT_AND_SIZE: Final = struct.Struct("<4xI16xI")
_FIELDS: Final = "on(prefix, fields=...)"
_BY_TIME: Final = "on(prefix), four slices by time"
_DATABENTO: Final = ("databento", "databento-dbn:databento_dbn")


class _Counts:
    """Counts, digests and sums per instrument, kept in Python."""

    def __init__(self) -> None:
        self.rows = [[0] * TOPICS, [0] * TOPICS, [0] * TOPICS]

    def state(self) -> NDArray[Any]:
        return numpy.array(self.rows, numpy.int64).T


def _rate(messages: int, run: Callable[[], object], state: Callable[[], NDArray[Any]]) -> float:
    started = time.perf_counter()
    run()
    seconds = time.perf_counter() - started
    expect_trades(state(), messages)
    return messages / seconds / 1e6


# Each callback does its work in one Python function: a further call would cost as much as the work.


def _each(recording: Recording, *, fields: bool = False) -> float:
    totals = _Counts()
    counts, digests, sums = totals.rows
    unpack = _INSTRUMENT_AND_SIZE.unpack_from
    subscriber = Subscriber(recording.feed)

    def unpacked(message: Message) -> None:
        number, size = unpack(message.payload)
        counts[number] += 1
        digests[number] = (digests[number] * DIGEST_FACTOR + size) & DIGEST_MASK
        sums[number] += size

    def by_field(number: int, size: int) -> None:
        counts[number] += 1
        digests[number] = (digests[number] * DIGEST_FACTOR + size) & DIGEST_MASK
        sums[number] += size

    if fields:
        subscriber.on(b"", fields=("instrument_id", "size"))(by_field)
    else:
        subscriber.on(b"")(unpacked)
    return _rate(_CALLS, lambda: subscriber.replay(recording), totals.state)


def _store_replay(store: Any) -> float:
    totals = _Counts()
    counts, digests, sums = totals.rows

    def count(record: Any) -> None:
        number, size = record.instrument_id, record.size
        counts[number] += 1
        digests[number] = (digests[number] * DIGEST_FACTOR + size) & DIGEST_MASK
        sums[number] += size

    return _rate(_CALLS, lambda: store.replay(count), totals.state)


def _batch(recording: Recording) -> float:
    state = numpy.zeros((TOPICS, 3), numpy.int64)
    subscriber = Subscriber(recording.feed)

    @subscriber.on_batch(b"")
    def count(batch: Batch) -> None:
        records = batch.records("trades")
        tally_trades(records["instrument_id"], records["size"], state)

    return _rate(_TRADES, lambda: subscriber.replay(recording), lambda: state)


def _compiled(recording: Recording) -> float:
    subscriber = Subscriber(recording.feed)
    callback = subscriber.on_compiled(b"", state=numpy.zeros((TOPICS, 3), numpy.int64))(_count)
    return _rate(_TRADES, lambda: subscriber.replay(recording), callback.total)


def _count(batch: Any, state: Any) -> None:
    for row in batch.rows:
        topic = batch.topic_numbers[batch.topic_index[row]]
        at = row * batch.stride + 24
        payloads = batch.payloads
        size = payloads[at] | payloads[at + 1] << 8 | payloads[at + 2] << 16 | payloads[at + 3] << 24
        state[topic, 0] += 1
        state[topic, 1] = digest(state[topic, 1], size)
        state[topic, 2] += size


def _to_ndarray(store: Any) -> float:
    state = numpy.zeros((TOPICS, 3), numpy.int64)

    def run() -> None:
        records = store.to_ndarray()
        tally_trades(records["instrument_id"], records["size"], state)

    return _rate(_TRADES, run, lambda: state)


def _dbn_store(messages: int) -> Any:
    dbn: Any = importlib.import_module("databento_dbn")
    databento: Any = importlib.import_module("databento")
    return databento.DBNStore.from_bytes(io.BytesIO(dbn_file(messages, dbn)))


def test_replay_calls(benchmark: BenchmarkFixture) -> None:
    """M calls/s, one Python call a message."""
    recording, sliced = record_trades(_CALLS), record_trades(_CALLS, slices=4)
    contest = Contest("Replay in process, a Python call a trade", "M calls/s", topology=__doc__)
    contest.add("on(prefix), payload unpacked", lambda: _each(recording))
    contest.add(_FIELDS, lambda: _each(recording, fields=True))
    contest.add(_BY_TIME, lambda: _each(sliced))
    with optional(contest, "DBNStore.replay", *_DATABENTO):
        store = _dbn_store(_CALLS)
        name = "DBNStore.replay, decoded records"
        contest.add(name, lambda: _store_replay(store), "rival", versus=(_FIELDS, _BY_TIME))
    contest.run(benchmark)


def test_replay_columns(benchmark: BenchmarkFixture) -> None:
    """M messages/s, all work compiled."""
    recording, batch = record_trades(_TRADES), "on_batch(prefix), batch.records"
    contest = Contest("Replay in process, compiled work on each trade", "M messages/s", topology=__doc__)
    contest.add("on_compiled(prefix)", lambda: _compiled(recording))
    contest.add(batch, lambda: _batch(recording))
    with optional(contest, "DBNStore.to_ndarray", *_DATABENTO):
        store = _dbn_store(_TRADES)
        contest.add("DBNStore.to_ndarray()", lambda: _to_ndarray(store), "rival", versus=batch)
    contest.run(benchmark)
