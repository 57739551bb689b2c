"""Process of our subscriber; the order chooses the form of its callbacks, see `forms`.

    "nothing"   SUB socket with a compiled loop that discards all: a limit

It answers an order when it has subscribed, and answers the start time of the run with its findings.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final

import msgspec
import numpy
import zmq
from numba import njit
from numpy.typing import NDArray

from bench.measure.contest import Lost, expect
from bench.measure.cost import cpu_seconds
from bench.processes.child import answer, orders
from bench.processes.forms import FORMS, LIMIT_S
from bench.processes.pair import Heard, Order, Work
from bench.workload.tally import wanted
from blackbox import Feed, SlowPolicy, SlowSubscriberError, Subscriber
from blackbox.block.form.format import CONFIRM_KEY, FLAG_CONTROL, HEADER_BYTES, NONCE_BYTES, read_header
from blackbox.services.monitor.serve.metrics import serve_metrics
from blackbox.transport.libzmq import MESSAGE_BYTES, init_messages, msg_data, msg_recv, msg_size

FOREVER_NS: Final = 10**15
MAX_LAG_NS: Final = 100_000_000
"""Lag limit of a slow subscriber."""
_BARE_MS: Final = 30_000
"""Time without a message after which a bare receiver counts the rest as lost."""
_QUIET_S: Final = 0.2
"""Time without a message after the sender's end, after which the rest of a paced run counts as lost."""
_LOOK_S: Final = 0.002
"""Minimum interval of polling: a poll with cold caches takes up to 400 µs of the measured cores."""
_LONGEST_LOOK_S: Final = 0.2
"""Maximum interval of polling, within which a failed subscriber is detected."""


def receive() -> None:
    """Receive the ordered runs."""
    logging.disable(logging.CRITICAL)  # a slow subscriber is expected to log that it is slow
    told = orders()
    for said in told:
        order = msgspec.convert(said, Order)
        try:
            heard = (_receive_bare if order.work.form == "nothing" else _receive)(order, told)
        except Lost as lost:
            heard = Heard(lost=str(lost))
        answer(**msgspec.structs.asdict(heard))


def _receive(order: Order, told: Iterator[Any]) -> Heard:
    load, work = order.load, order.work
    assert load.feed is not None
    slow = (
        SlowPolicy(work.on_slow, MAX_LAG_NS / 1e9, start_grace=0)
        if work.on_slow
        else SlowPolicy(max_lag=FOREVER_NS / 1e9, start_grace=0)
    )
    subscriber = Subscriber(load.feed, workers=work.workers, slow=slow)
    findings = FORMS[work.form](subscriber, order)
    due = wanted(load, work.prefixes)
    began = 0
    with serve_metrics(subscriber, work.metrics) if work.metrics else nullcontext():
        subscriber.start()
        before = cpu_seconds()
        answer()
        try:
            if load.rate:
                began = next(told)["began"]
                if not work.on_slow:
                    _settle(subscriber, due)
            else:
                wait_for(subscriber, due)
            ended, cpu_s = time.time_ns(), cpu_seconds() - before
        finally:
            has_terminated = _end(subscriber, work)
            if not load.rate:
                began = next(told)["began"]
    received, delivery = subscriber.statistics().received, subscriber.statistics().delivery
    if not load.rate:
        expect("gaps, dropped, malformed", (received.gaps, delivery.dropped, received.malformed), (0, 0, 0))
    found = {"ended": ended, "messages": load.messages, **findings(began)}
    return Heard(cpu_s=cpu_s, has_terminated=has_terminated, **found)


def _end(subscriber: Subscriber, work: Work) -> bool:
    """End the subscriber; return True if the slow-subscriber policy had ended it."""
    try:
        (subscriber.terminate if work.on_slow == "warn" else subscriber.stop)()
    except SlowSubscriberError:
        return True
    return False


def wait_for(subscriber: Subscriber, messages: int, timeout: float = LIMIT_S) -> None:
    """Wait until callbacks have received `messages` messages. Raises Lost after `timeout` seconds."""
    pace = _Pace(messages)
    deadline = time.monotonic() + timeout
    while (now := subscriber.statistics()).delivery.delivered < messages:
        subscriber.wait_confirmed()  # raises if the subscriber failed
        if time.monotonic() > deadline:
            raise Lost(
                f"deliveries were {now.delivery.delivered:,} after {timeout:g} s, expected {messages:,}; received "
                f"{now.received.messages:,}, gaps {now.received.gaps:,}, dropped {now.delivery.dropped:,}, malformed "
                f"{now.received.malformed:,}"
            )
        time.sleep(pace.next_look_s(now.delivery.delivered))


class _Pace:
    """Delivery rate, which sets the polling interval."""

    def __init__(self, messages: int) -> None:
        self._messages = messages
        self._since = self._first = 0.0

    def next_look_s(self, delivered: int) -> float:
        """Return a third of the remaining time at the current rate, at least `_LOOK_S`."""
        now = time.monotonic()
        if not self._first:
            self._since, self._first = now, delivered
        if delivered <= self._first:
            return _LOOK_S
        left_s = (self._messages - delivered) * (now - self._since) / (delivered - self._first)
        return max(_LOOK_S, min(_LONGEST_LOOK_S, left_s / 3))


def _settle(subscriber: Subscriber, messages: int) -> None:
    """Wait until all messages have arrived, or no more arrive."""
    quiet_since, last = time.monotonic(), -1
    while last < messages and time.monotonic() < quiet_since + _QUIET_S:
        now = subscriber.statistics().delivery.delivered
        if now != last:
            quiet_since, last = time.monotonic(), now
        time.sleep(_LOOK_S)


# Without work


@contextmanager
def _bare_subscriber(feed: Feed) -> Iterator[zmq.Socket[bytes]]:
    """Yield a plain SUB of a feed's first slice with a confirmed subscription, so that it misses no block."""
    context = zmq.Context()
    try:
        socket = context.socket(zmq.SUB)
        socket.rcvtimeo = _BARE_MS
        socket.connect(feed.slices[0].lines[0])
        question = CONFIRM_KEY + secrets.token_bytes(NONCE_BYTES)
        socket.subscribe(b"")
        socket.subscribe(question)
        try:
            while socket.recv_multipart()[0] != question:
                pass
        except zmq.Again:
            raise Lost(f"no confirmation of a subscription within {_BARE_MS} ms") from None
        yield socket
    finally:
        context.destroy(linger=0)


@njit(nogil=True, cache=True)
def receive_blocks(socket: int, scratch: NDArray[numpy.int64], messages: int) -> int:
    """Receive and discard blocks of `messages` messages in total; return the bytes of their bodies."""
    place = scratch.ctypes.data
    init_messages(place, 3)
    received = 0
    size = 0
    while received < messages:
        for part in range(3):
            if msg_recv(place + MESSAGE_BYTES * part, socket, 0) < 0:
                return -1
        if msg_size(place + MESSAGE_BYTES) == HEADER_BYTES:
            header = read_header(msg_data(place + MESSAGE_BYTES))
            if header.flags & FLAG_CONTROL == 0:
                received += header.count
                size += msg_size(place + 2 * MESSAGE_BYTES)
    return size


def _receive_bare(order: Order, told: Iterator[Any]) -> Heard:
    load = order.load
    assert load.feed is not None
    scratch = numpy.zeros(24, numpy.int64)
    with _bare_subscriber(load.feed) as socket:
        before = cpu_seconds()
        answer()
        size = receive_blocks(socket.underlying, scratch, load.messages)
        ended, cpu_s = time.time_ns(), cpu_seconds() - before
    next(told)
    expect("bodies as large as their payloads", size > load.messages * load.payload_bytes, True)
    return Heard(ended=ended, cpu_s=cpu_s, messages=load.messages)
