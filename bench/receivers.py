"""Subscribers of the topologies, in this process: each checks count, checksum and order, and tells what it cost."""

from __future__ import annotations

import multiprocessing
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Final, NamedTuple

import numpy
import zmq
from numba import njit
from numpy.typing import NDArray

from bench.child import Child
from bench.contest import Figure, Lost, Overloaded, Spent, expect
from bench.cost import Meter, cpu_seconds
from bench.loads import NUMBER_BYTES, Load, due_ns, order
from bench.loops import receive_blocks
from bench.workload import expected_sum, make_pool
from blackbox import Batch, Feed, Message, Subscriber
from blackbox.layout import CONFIRM_KEY, HEADER_BYTES, NONCE_BYTES
from blackbox.memory import shared_array
from blackbox.statistics import SliceStatistics
from blackbox.zmqlib import now_ns

FOREVER_NS: Final = 10**15
_LIMIT_S: Final = 60.0
_BARE_MS: Final = 30_000
"""Without anything for so long, a bare receiver takes it that the rest is lost."""
_LOOK_S: Final = 0.002
"""A look takes 30 µs of the cores that are measured."""
_FRAMING_BYTES: Final = 2 + 2 + 9
"""Of ZMTP for the three frames of a block: key, header, body."""
MOST_NOTED: Final = 200_000
"""Messages of a run that `compiled_delays` has room for: one size, compiled once."""
_QUIET_MS: Final = 500
"""Without a message for so long, the rival takes it that the rest is lost."""
PERCENTS: Final = (50.0, 90.0, 99.0, 99.9, 99.99, 100.0)
_LEAST_REACHED: Final = 0.9
"""Of a rate; a run that reaches less is void."""
_LEAST_ABOVE: Final = 10
"""Messages above a percentile, for it to be told."""


def work(batch: Any, state: Any) -> None:
    """Count, last and sum per topic, and how many messages came out of order."""
    for row in batch.rows:
        topic = batch.topic_numbers[batch.topic_index[row]]
        state[topic, 0] += 1
        state[topic, 3] += batch.ts_event[row] <= state[topic, 1]
        state[topic, 1] = batch.ts_event[row]
        state[topic, 2] += batch.payloads[row * batch.stride]


def work_together(batch: Any, state: Any) -> None:
    """The same for all topics together."""
    for row in batch.rows:
        state[0, 0] += 1
        state[0, 3] += batch.ts_event[row] <= state[0, 1]
        state[0, 1] = batch.ts_event[row]
        state[0, 2] += batch.payloads[row * batch.stride]


def wait_for(subscriber: Subscriber, messages: int, timeout: float = _LIMIT_S) -> None:
    """Wait until callbacks have got that many messages; raises Lost when they have not after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while (total := subscriber.statistics().total).delivered < messages:
        subscriber.wait_confirmed()  # raises when something went wrong
        if time.monotonic() > deadline:
            raise Lost(
                f"deliveries were {total.delivered:,} after {timeout:g} s, expected {messages:,}; received "
                f"{total.received:,}, gaps {total.gaps:,}, dropped {total.dropped:,}, malformed {total.malformed:,}"
            )
        time.sleep(_LOOK_S)


def delivered(
    remote: Child,
    load: Load,
    prefixes: Iterable[bytes] = (b"",),
    *,
    workers: int = 1,
    function: Callable[[Any, Any], None] = work,
    wanted: int | None = None,
) -> Figure:
    """M messages/s, from the publisher's first call to the last compiled callback; `wanted`: of how many, if not all.

    The rate is that of what is published. `work_together` needs no room for each topic, but one slice and no keys.
    """
    subscriber = Subscriber(load.feed, workers=workers, max_lag_ns=FOREVER_NS)
    state = numpy.zeros((load.topics if function is work else 1, 4), numpy.int64)
    callbacks = [subscriber.on_compiled(prefix, state=state)(function) for prefix in prefixes]
    figure = _run(subscriber, remote, load, load.messages if wanted is None else wanted)
    states = [state for callback in callbacks for state in callback.states.values()]
    totals = numpy.sum([state.sum(axis=0) for state in states], axis=0)
    _verify(load, totals, load.messages if wanted is None else wanted, wanted is None)
    return figure


def delivered_to_python(
    remote: Child, load: Load, prefixes: Sequence[bytes] = (b"",), *, workers: int = 1, processes: bool
) -> Figure:
    """The same to callbacks that handle each message in Python, in threads of this process or of one for each slice."""
    subscriber = Subscriber(load.feed, workers=workers, max_lag_ns=FOREVER_NS, processes=processes)
    totals = shared_array((len(prefixes), len(load.feed.slices), 4), numpy.int64)

    for place, prefix in enumerate(prefixes):

        @subscriber.on_batch(prefix)
        def count(batch: Batch, of_slice: NDArray[numpy.int64] = totals[place]) -> None:
            total = calls = 0
            for payload in batch.payload_list():
                calls += 1
                total += payload[0]
            times, mine = batch.ts_event, of_slice[batch.block.slice_id]
            mine += (calls, 0, total, int(times[0] <= mine[1]) + int((numpy.diff(times) <= 0).sum()))
            mine[1] = times[-1]

    figure = _run(subscriber, remote, load, load.messages)
    _verify(load, totals.sum(axis=(0, 1)), load.messages)
    return figure


def _run(subscriber: Subscriber, remote: Child, load: Load, wanted: int) -> Figure:
    with subscriber:
        children = [child.pid or 0 for child in multiprocessing.active_children()]  # of `processes=True`
        before = _cpu(remote, children)
        order(remote, load)
        wait_for(subscriber, wanted)
        ended, after = time.time_ns(), _cpu(remote, children)
        began = remote.answer()["began"]
    total = subscriber.statistics().total
    expect("gaps, dropped, malformed", (total.gaps, total.dropped, total.malformed), (0, 0, 0))
    spent = Spent(after[0] - before[0], after[1] - before[1], wire_bytes(total, load.feed.key_bytes), load.messages)
    return Figure(load.messages / (ended - began) * 1e3, spent)


def _cpu(remote: Child, children: Sequence[int]) -> tuple[float, float]:
    return cpu_seconds(remote.pid), cpu_seconds() + sum(map(cpu_seconds, children))


def wire_bytes(total: SliceStatistics, key_bytes: int) -> int:
    """What ZeroMQ wrote for the blocks that came: bodies, headers, keys, and its framing."""
    return total.body_bytes + total.blocks * (HEADER_BYTES + key_bytes + _FRAMING_BYTES)


@cache
def _checksum(load: Load) -> int:
    return expected_sum(make_pool(load.topics, load.payload_bytes), load.messages)


def _verify(load: Load, totals: NDArray[numpy.int64], wanted: int, is_all: bool = True) -> None:
    expect("count", int(totals[0]), wanted)
    expect("messages out of order", int(totals[3]), 0)
    if is_all:
        expect("checksum", int(totals[2]), _checksum(load))


def _subscribe_to_all(socket: zmq.Socket[bytes]) -> None:
    """Return when the publisher has answered: the first block will not be missed."""
    question = CONFIRM_KEY + secrets.token_bytes(NONCE_BYTES)
    socket.subscribe(b"")
    socket.subscribe(question)
    while socket.recv_multipart()[0] != question:
        pass


def received_only(remote: Child, load: Load) -> Figure:
    """The limit: M messages/s of a loop that receives the blocks of one slice and does nothing with them."""
    with bare_subscriber(load.feed) as socket:
        meter = Meter(remote.pid)
        order(remote, load)
        ended = receive_bare(socket, load.messages, load.payload_bytes)
        spent = meter.spent(load.messages)
    return Figure(load.messages / (ended - remote.answer()["began"]) * 1e3, spent._replace(wire_bytes=None))


@contextmanager
def bare_subscriber(feed: Feed) -> Iterator[zmq.Socket[bytes]]:
    """A plain SUB of all of a feed's first slice, whose subscription is in force."""
    context = zmq.Context()
    try:
        socket = context.socket(zmq.SUB)
        socket.rcvtimeo = _BARE_MS
        socket.connect(feed.slices[0].endpoints[0])
        try:
            _subscribe_to_all(socket)
        except zmq.Again:
            raise Lost(f"no answer to a subscription within {_BARE_MS} ms") from None
        yield socket
    finally:
        context.destroy(linger=0)


def receive_bare(socket: zmq.Socket[bytes], messages: int, payload_bytes: int) -> int:
    """Receive blocks until they held so many messages, and do nothing with them; returns when it was done, unix ns."""
    size = receive_blocks(socket.underlying, numpy.zeros(24, numpy.int64), messages)
    ended = time.time_ns()
    expect("bodies as large as their payloads", size > messages * payload_bytes, True)
    return ended


def percentiles_us(late_ns: NDArray[numpy.int64], lost: int = 0) -> dict[str, float]:
    """As `Contest.percentiles` takes them. Exact: of all messages, not of a histogram.

    What was lost is late without end. Left out is a percentile that is of the lost, or has fewer than 10 messages
    above it; p100 is the latest.
    """
    late = numpy.concatenate((late_ns / 1e3, numpy.full(lost, numpy.inf)))
    values = numpy.percentile(late, PERCENTS, method="higher").tolist()
    return {
        f"p{percent:g}": value
        for percent, value in zip(PERCENTS, values, strict=True)
        if numpy.isfinite(value) and (percent == 100 or round(len(late) * (100 - percent), 6) >= 100 * _LEAST_ABOVE)
    }


def expect_rate(load: Load, reached: float) -> None:
    """Raise Overloaded for a run that fell behind its rate: what is late then is late by its backlog."""
    if reached < _LEAST_REACHED * load.rate:
        raise Overloaded(f"overloaded: {reached:,.0f} messages/s were reached of {load.rate:,}")


class Delays(NamedTuple):
    """What became of a paced run."""

    late_ns: NDArray[numpy.int64]
    """Of each message that came, from when it was due until the callback had it: coordinated omission is in it."""
    lost: int
    rate: float
    """Messages a second that the run reached, until the last one came."""
    spent: Spent


@njit(nogil=True, boundscheck=True)
def _note_compiled(batch: Any, state: Any) -> None:
    """Row 0 of the state counts; then, for each message, when it came, when it was due, its first byte."""
    now = now_ns()
    for row in batch.rows:
        state[0, 0] += 1
        place = state[0, 0]
        state[place, 0] = now
        state[place, 1] = batch.ts_event[row]
        state[place, 2] = batch.payloads[row * batch.stride]


def delays(remote: Child, load: Load) -> Delays:
    """Of ours, to `on(prefix)`."""
    subscriber = Subscriber(load.feed, workers=1, max_lag_ns=FOREVER_NS)
    seen: list[int] = []
    dues: list[int] = []
    payloads: list[bytes] = []
    clock = time.time_ns

    @subscriber.on(b"")
    def note(message: Message) -> None:
        payloads.append(message.payload)
        dues.append(message.ts_event)
        seen.append(clock())

    began, spent = _run_paced(subscriber, remote, load)
    firsts = numpy.fromiter((payload[0] for payload in payloads), numpy.int64, len(payloads))
    return _judged(load, began, numpy.array(seen, numpy.int64), numpy.array(dues, numpy.int64), firsts, spent)


def compiled_delays(remote: Child, load: Load) -> Delays:
    """Of ours, to `on_compiled(prefix)`."""
    subscriber = Subscriber(load.feed, workers=1, max_lag_ns=FOREVER_NS)
    callback = subscriber.on_compiled(b"", state=numpy.zeros((MOST_NOTED + 1, 3), numpy.int64))(_note_compiled)
    began, spent = _run_paced(subscriber, remote, load)
    state = callback.total()
    seen, dues, firsts = state[1 : 1 + int(state[0, 0])].T
    return _judged(load, began, seen, dues, firsts, spent)


def stages(remote: Child, load: Load) -> dict[str, float]:
    """Median µs that a paced run's messages, one Python call a block, spend in each stage."""
    subscriber = Subscriber(load.feed, workers=1, max_lag_ns=FOREVER_NS)
    dues: list[NDArray[numpy.int64]] = []
    passed: list[tuple[int, int, int, int]] = []

    @subscriber.on_batch(b"")
    def note(batch: Batch) -> None:
        passed.append((batch.ts_out, batch.ts_recv, time.time_ns(), len(batch)))
        dues.append(batch.ts_event.copy())

    began, _ = _run_paced(subscriber, remote, load)
    due = numpy.concatenate([numpy.empty(0, numpy.int64), *dues])
    expect("messages lost", load.messages - len(due), 0)
    expect_rate(load, len(due) * 1e9 / (passed[-1][2] - began))
    *times, counts = numpy.array(passed, numpy.int64).T
    sent, received, called = (numpy.repeat(each, counts) for each in times)
    return {
        "due until its block is sent": float(numpy.median(sent - due)) / 1e3,
        "sent until received: two I/O threads, TCP": float(numpy.median(received - sent)) / 1e3,
        "received until the callback: slice thread to worker": float(numpy.median(called - received)) / 1e3,
    }


def _run_paced(subscriber: Subscriber, remote: Child, load: Load) -> tuple[int, Spent]:
    with subscriber:
        before = cpu_seconds()
        order(remote, load)
        began = remote.answer()["began"]
        settle(subscriber, load.messages)
        cpu_s = cpu_seconds() - before
    total = subscriber.statistics().total
    # The publisher spins until a message is due: its CPU time would tell nothing.
    return began, Spent(None, cpu_s, wire_bytes(total, load.feed.key_bytes), load.messages)


def settle(subscriber: Subscriber, messages: int) -> None:
    """Wait until all came, or nothing more comes."""
    quiet_since, last = time.monotonic(), -1
    while last < messages and time.monotonic() < quiet_since + 0.2:
        now = subscriber.statistics().total.delivered
        if now != last:
            quiet_since, last = time.monotonic(), now
        time.sleep(_LOOK_S)


def rival_delays(remote: Child, load: Load, hwm: int = 1_000) -> Delays:
    """Of plain pyzmq: `recv()` in a loop, a call for each frame."""
    context = zmq.Context()
    socket = context.socket(zmq.SUB)
    socket.rcvhwm = hwm
    socket.rcvtimeo = 5_000
    socket.connect(load.feed.slices[0].endpoints[0])
    socket.subscribe(b"")
    seen: list[int] = []
    frames: list[bytes] = []
    clock, receive = time.time_ns, socket.recv
    before = cpu_seconds()
    order(remote, load)
    with suppress(zmq.Again):
        while len(frames) < load.messages:
            frames.append(receive())
            seen.append(clock())
            if len(seen) == 1:
                socket.rcvtimeo = _QUIET_MS
    cpu_s = cpu_seconds() - before
    began = remote.answer()["began"]
    context.destroy(linger=0)
    texts = [frame.partition(b" ")[2] for frame in frames]
    numbers = numpy.array([int.from_bytes(text[:NUMBER_BYTES], "little") for text in texts], numpy.int64)
    firsts = numpy.array([text[NUMBER_BYTES] for text in texts], numpy.int64)
    dues = due_ns(load)[numbers] + began
    spent = Spent(subscriber_cpu_s=cpu_s, messages=load.messages)
    return _judged(load, began, numpy.array(seen, numpy.int64), dues, firsts, spent)


def _judged(
    load: Load,
    began: int,
    seen: NDArray[numpy.int64],
    dues: NDArray[numpy.int64],
    firsts: NDArray[numpy.int64],
    spent: Spent,
) -> Delays:
    """In order, and with the very payloads where the times tell the messages apart; else those of a whole run."""
    offsets = dues - began
    expect("messages out of order", int((numpy.diff(offsets) < 0).sum()), 0)
    if load.at_once == 1:
        pool = make_pool(load.topics, load.payload_bytes).payloads[:, 0]
        numbers = numpy.searchsorted(due_ns(load), offsets)
        expect("messages twice", int((numpy.diff(numbers) <= 0).sum()), 0)
        expect("checksum", int(firsts.sum()), int(pool[numbers % len(pool)].sum(dtype=numpy.int64)))
    elif len(firsts) == load.messages:
        expect("checksum", int(firsts.sum()), _checksum(load))
    rate = len(seen) * 1e9 / (int(seen.max()) - began) if len(seen) else 0.0
    return Delays(seen - dues, load.messages - len(seen), rate, spent)
