"""A strategy over two symbols of the consolidated tape sees no price before its time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from blackbox_feeds.tape import Tape

from blackbox import Batch, Feed, Message, Publisher, Recorder, Recording, Subscriber
from blackbox.replay.clock import ManualClock
from blackbox.replay.controls import Controls
from blackbox.replay.replay import Replay
from tests.examples import first_of

IBM_TRADES = 24_000
PACED_TRADES = 3_000
"""Paced replays are slow, so they play only this many IBM trades."""
DAY = "20131007"
Decisions = list[tuple[int, int, int]]
"""For each IBM trade: its time, and the number and time of the last SPY trade that the strategy knew."""


@pytest.fixture(scope="module", params=first_of([4, 1]))
def tape_day(request: pytest.FixtureRequest, shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Record the trades of SPY and IBM on one day, over the parametrized number of slices."""
    path = tmp_path_factory.mktemp("tape")
    feed = Feed.local("tape", slices=request.param, schema="tape")
    recorder = Recorder(feed, path)
    with Publisher(feed, when_full="wait") as publisher:
        recorder.start()
        Tape([shared_data / "lean" / f"{name}_{DAY}_trade.zip" for name in ("spy", "ibm")]).publish(publisher)
    recorder.run(until_end=True)
    (day,) = recorder.directory.glob("*-*-*")
    return Recording.open(day)


@pytest.fixture(scope="module")
def plain(tape_day: Recording) -> Decisions:
    """Return the strategy's decisions in a plain loop over all messages, sorted by time."""
    messages = [(m.ts_event, m.topic) for batch in tape_day.batches() for m in batch]
    decisions: Decisions = []
    spy = (0, 0)
    for ts_event, topic in sorted(messages, key=lambda message: message[0]):
        if topic == b"SPY.trade":
            spy = spy[0] + 1, ts_event
        else:
            decisions.append((ts_event, *spy))
    return decisions


def decided(recording: Recording, kind: str, speed: float | None, stop: int | None) -> Decisions:
    """Return the strategy's decisions in a replay up to `stop`."""
    subscriber = Subscriber(recording.feed)
    decisions: Decisions = []
    spy = [0, 0]

    def quote(times: list[int]) -> None:
        spy[:] = spy[0] + len(times), times[-1]

    def trade(times: list[int]) -> None:
        decisions.extend((time, spy[0], spy[1]) for time in times)

    for prefix, take in ((b"SPY.trade", quote), (b"IBM.trade", trade)):
        if kind == "message":
            subscriber.on(prefix)(lambda message, take=take: take([message.ts_event]))
        else:
            subscriber.on_batch(prefix)(lambda batch, take=take: take(batch.ts_event.tolist()))
    controls = Controls(speed, clock=ManualClock(automatic=True))
    subscriber.replay(Replay(recording, stop=stop, controls=controls))
    return decisions


@pytest.mark.parametrize(
    ("kind", "speed", "trades"),
    first_of(
        [
            ("message", None, IBM_TRADES),
            ("batch", None, IBM_TRADES),
            ("message", 1000.0, PACED_TRADES),
            ("batch", 1000.0, PACED_TRADES),
            *((kind, speed, PACED_TRADES) for speed in (100.0, 10.0) for kind in ("message", "batch")),
        ],
        keep=3,
    ),
)
def test_no_trade_sees_a_later_price(
    tape_day: Recording, plain: Decisions, kind: str, speed: float | None, trades: int
) -> None:
    stop = plain[trades][0] if speed else None
    found = decided(tape_day, kind, speed, stop)
    assert len(found) >= trades
    assert sum(spy_time > time for time, _, spy_time in found) == 0
    assert found == [each for each in plain if stop is None or each[0] < stop]


def test_an_independent_callback_may_see_ahead(tape_day: Recording) -> None:
    """Show the failure that `independent` permits, so that the other tests are known to detect it."""
    last = [0]
    ahead: list[Any] = []
    subscriber = Subscriber(tape_day.feed)

    @subscriber.on_batch(b"SPY.trade", independent=True)
    def quote(batch: Batch) -> None:
        last[0] = int(batch.ts_event[-1])

    @subscriber.on(b"IBM.trade", independent=True)
    def trade(message: Message) -> None:
        ahead.extend([message] if last[0] > message.ts_event else [])

    subscriber.replay(tape_day)
    assert ahead
