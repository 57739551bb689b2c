"""Lag is corrected for the publisher's clock, also when clocks drift or are stepped; age includes the wait."""

from __future__ import annotations

import math
import re
import time
from pathlib import Path
from typing import Any

import numpy
import pytest
from numba import njit

from blackbox import Feed, SlowPolicy, Subscriber
from blackbox.receive.clocks import WINDOW_NS, ClockState, clock_state_at, note_clocks, note_own_clock
from blackbox.receive.state import SliceCounters, slice_counters_at
from blackbox.testing import RawPublisher, wait_until
from tests.clock_steps import STEP_CLOCK, words_before
from tests.gate import Gate
from tests.receive.subscribers import (
    _PATIENT_NS,
    LATE_NS,
    PATIENT,
    SECOND_NS,
    late,
    one_slice,
    publishing,
    subscribed,
)
from tests.support import Script

S = 1_000_000_000
START = 1_700_000_000 * S


def test_a_clock_ahead_is_subtracted_and_never_ends_a_subscriber() -> None:
    subscriber, got = subscribed(feed := one_slice(), slow=SlowPolicy(max_lag=_PATIENT_NS / 1e9, start_grace=0))
    with publishing(feed, subscriber) as publisher:
        for number in range(10):
            late(publisher, b"%d" % number, lag_ns=-LATE_NS)
        got.wait(10)
        lag = subscriber.statistics().lag
        assert (lag.negative, lag.slow_blocks) == (10, 0)
        assert 0.9 * LATE_NS < lag.clock_offset_ns <= LATE_NS
        assert lag.max_ns < _PATIENT_NS
        for hours in (1, 24, 24 * 365 * 50):
            late(publisher, b"%d" % hours, lag_ns=-hours * 3_600 * SECOND_NS)
        got.wait(13)
    assert subscriber.statistics().lag.negative == 13


def test_a_block_that_waits_for_a_full_queue_is_counted_as_negative_lag_once_and_its_age_does_not_grow() -> None:
    subscriber, gate = Subscriber(feed := one_slice(), workers=1, queue_blocks=1, slow=PATIENT), Gate()
    subscriber.on(b"")(gate.message)
    with publishing(feed, subscriber) as publisher:
        for _ in range(10):
            late(publisher, b"", lag_ns=-3_600 * SECOND_NS)
            assert gate.entered.wait(200)  # a worker that arrives later takes everything that waits
        wait_until(lambda: subscriber.statistics().delivery.waits > 5)
        lag = subscriber.statistics().lag
        gate.open.set()
    assert lag.last_age_ns == lag.last_ns
    assert subscriber.statistics().lag.negative == 10


def test_lag_percentiles_are_over_messages() -> None:
    subscriber, _ = subscribed(feed := one_slice(), slow=SlowPolicy("warn", start_grace=0))
    with publishing(feed, subscriber) as publisher:
        for lag_s, messages in ((10_000, 1), (4_000, 9), (2_000, 190)):
            ts_out = time.time_ns() - lag_s * SECOND_NS
            publisher.send(publisher.encode([(b"T", b"")] * messages, ts_out=ts_out))
    lag = subscriber.statistics().lag
    assert 2_000 * SECOND_NS <= lag.p50_ns < 2_400 * SECOND_NS
    assert 4_000 * SECOND_NS <= lag.p99_ns < 4_500 * SECOND_NS
    assert 10_000 * SECOND_NS <= lag.max_ns < 11_000 * SECOND_NS


@pytest.mark.parametrize("max_age", [None, _PATIENT_NS / 1e9])
def test_old_messages_that_were_just_sent_are_late_only_if_age_is_limited(max_age: float | None) -> None:
    feed = one_slice(max_lag_ns=3_600 * SECOND_NS)
    alerts: list[str] = []
    slow = SlowPolicy("drop", max_age=max_age, on_alert=alerts.append, start_grace=0)
    subscriber, got = subscribed(feed, slow=slow)
    with publishing(feed, subscriber) as publisher:
        publisher.send(publisher.encode([(b"T", b"old")], ts_in=time.time_ns() - LATE_NS))
        publisher.send(publisher.encode([(b"T", b"young")]))
        got.wait(1 if max_age else 2)
        wait_until(lambda: bool(alerts) == bool(max_age), what="the alert")
    lag, dropped = subscriber.statistics().lag, subscriber.statistics().delivery.dropped
    if max_age:
        assert re.search(r"messages 5\d\d\.\d+ s old, limit 100\.000 s, policy drop", alerts[0])
        assert (got.payloads, dropped, lag.slow_blocks) == ([b"young"], 1, 1)
    else:
        assert (got.payloads, dropped, lag.slow_blocks) == ([b"old", b"young"], 0, 0)
        assert lag.max_ns < LATE_NS <= lag.age_max_ns


@njit(nogil=True)
def drive(clock_at: int, counters_at: int, blocks: Any, lags: Any) -> None:
    """Note blocks (epoch, ts_out, now, tick); `lags` gets the corrected lag of each."""
    clock, counters = clock_state_at(clock_at), slice_counters_at(counters_at)
    for i in range(len(blocks)):
        epoch, ts_out, now, tick = blocks[i]
        note_own_clock(clock, counters, now, tick)
        note_clocks(clock, counters, epoch, 0, ts_out, now)
        lags[i] = now - ts_out - counters.clock_offset_ns


def corrected(
    blocks: list[tuple[float, float, float]], restart: float = float("inf")
) -> tuple[list[float], SliceCounters]:
    """Return corrected lags in seconds of blocks: (time, error of the publisher's clock, error of ours).

    At `restart` the publisher begins a new epoch.
    """
    clock, counters = ClockState(), SliceCounters()
    delay = 0.001
    rows = [
        (1 + (at >= restart), START + (at + theirs) * S, START + (at + delay + ours) * S, at * S)
        for at, theirs, ours in blocks
    ]
    lags = numpy.zeros(len(rows), numpy.int64)
    drive(clock.address, counters.address, numpy.array(rows, numpy.int64), lags)
    return (lags / S).tolist(), counters


def every(seconds: range, theirs: float = 0, ours: float = 0) -> list[tuple[float, float, float]]:
    return [(float(at), theirs, ours) for at in seconds]


def test_one_block_ahead_changes_nothing_for_the_next() -> None:
    lags, counters = corrected([*every(range(10)), (9.5, 3, 0), *every(range(10, 20))])
    assert max(lags) == pytest.approx(0.001, abs=1e-6)
    assert (counters.clock_offset_ns, counters.clock_steps) == (0, 2)


def test_an_estimate_is_forgotten_if_no_block_of_two_windows_confirms_it() -> None:
    window = WINDOW_NS // S
    drift = [(float(at), max(0.0, 2 - 0.05 * at), 0.0) for at in range(200)]
    lags, counters = corrected(drift)
    assert counters.clock_offset_ns == 0
    assert lags[-1] == pytest.approx(0.001, abs=1e-6)
    assert max(lags) <= 2 * window * 0.05 + 0.01
    assert counters.clock_steps == 1  # when it was first found to be ahead


@pytest.mark.parametrize("restart", [math.inf, 100])
@pytest.mark.parametrize("step", [-30, 30])
def test_a_step_of_our_own_clock_changes_no_lag_also_after_a_restart_of_the_publisher(
    step: int, restart: float
) -> None:
    lags, counters = corrected([*every(range(50)), *every(range(50, 300), ours=step)], restart)
    assert max(map(abs, lags)) < 0.002
    assert counters.clock_offset_ns == pytest.approx(step * S, abs=0.002 * S)
    assert restart == 100 or counters.clock_steps == 1


def test_a_backward_step_of_the_publishers_clock_is_reported_and_looks_like_lag() -> None:
    lags, counters = corrected([*every(range(5)), *every(range(5, 10), theirs=-30)])
    assert max(map(abs, lags[:5])) < 0.002
    assert lags[5:] == pytest.approx([30.001] * 5)
    assert (counters.clock_offset_ns, counters.clock_steps) == (0, 1)


def test_messages_and_ticks_continue_after_steps_of_the_clock(tmp_path: Path) -> None:
    feed = Feed.local("clock", slices=1)
    code = f"""
        {STEP_CLOCK.strip()}
        import queue
        subscriber = Subscriber(feed, slow=SlowPolicy(max_lag=600))
        got, ticks = Collector(), queue.Queue()
        subscriber.on(b"")(got.message)
        subscriber.every(0.02)(ticks.put)
        subscriber.every(600)(lambda ts_ns: None)
        subscriber.start(60)
        say("started")
        for count, seconds in ((2, -3_600), (4, 7_200)):
            got.wait(count)
            before = ticks.get(timeout=200)
            step_clock(seconds)
            while abs(ticks.get(timeout=200) - before - seconds * 10**9) > 600 * 10**9:
                pass
            after = [ticks.get(timeout=200) for _ in range(3)]
            say(count, *(after[n + 1] > after[n] for n in range(2)))
        subscriber.run(until_end=True)
        lag = subscriber.statistics().lag
        say(len(got), lag.slow_blocks, lag.clock_steps, lag.clock_offset_ns // 10**9)
    """
    with RawPublisher(feed) as publisher, Script(code, feed, words_before(tmp_path)) as script:
        script.expect("started")
        for expected in ("2 True True", "4 True True", None):
            for _ in range(2):
                publisher.send(publisher.encode([(b"T", b"")]))
            if expected:
                script.expect(expected)
        publisher.heartbeat(end=True)
        said = script.read().split()
    assert said[:3] == ["6", "0", "2"]
    assert abs(int(said[3]) + 3_600) <= 1  # how far this clock was set forward, negative
