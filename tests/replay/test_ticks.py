"""Functions called at market times between the messages of a replay, compared with a plain loop."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox import Batch, Message, Recording, Subscriber
from blackbox.errors import CallbackError, SubscriberError
from blackbox.replay.clock import ManualClock
from blackbox.replay.controls import Controls
from blackbox.replay.replay import Replay
from tests.callbacks import count_rows
from tests.examples import examples
from tests.journals import feed_of
from tests.replay.test_market_order import Blocks, Recorded, in_order, write_day

Event = tuple[str, int]
"""("m", number of the message) or ("interval", time)."""


@st.composite
def timed_days(draw: st.DrawFn) -> tuple[int, Blocks]:
    """Draw a day in which every message has a time, and some are late."""
    slices = draw(st.integers(1, 3))
    sent = 1_000
    blocks: Blocks = []
    for _ in range(draw(st.integers(1, 10))):
        sent += draw(st.integers(1, 60))
        slice_id = draw(st.integers(0, slices - 1))
        steps = draw(st.lists(st.integers(-30, 0), min_size=1, max_size=6))
        blocks.append((slice_id, sent, [(b"ABC"[slice_id : slice_id + 1] + b".x", sent + step) for step in steps]))
    return slices, blocks


def expected(messages: list[Recorded], intervals: list[int]) -> list[Event]:
    """Return the expected events: loop over the messages, and over the times before each."""
    events: list[Event] = []
    now = None
    for message in in_order(messages):
        for time in range(message.time + 1 if now is None else now + 1, message.time + 1):
            events.extend((str(interval), time) for interval in intervals if time % interval == 0)
        now = max(message.time, now or 0)
        events.append(("m", int.from_bytes(message.payload, "little")))
    return events


def replayed(path: Path, intervals: list[int], kind: str = "message", **how: Any) -> list[Event]:
    recording = Recording.open(path)
    subscriber = Subscriber(feed_of())
    seen: list[Event] = []
    if kind == "message":
        subscriber.on(b"")(lambda message: seen.append(("m", int.from_bytes(message.payload, "little"))))
    else:
        subscriber.on_batch(b"")(
            lambda batch: seen.extend(("m", int.from_bytes(each, "little")) for each in batch.payload_list())
        )

    def register(interval: int) -> None:
        subscriber.every(interval / 1e9)(lambda ts_ns: seen.append((str(interval), ts_ns)))

    for interval in intervals:
        register(interval)
    subscriber.replay(Replay(recording, **how))
    return seen


@settings(deadline=None, max_examples=examples(50))
@given(
    timed_days(),
    st.lists(st.integers(1, 50), max_size=3),
    st.sampled_from(["message", "batch"]),
    st.sampled_from([None, 1000.0, 10.0]),
)
def test_ticks_are_called_between_the_messages(
    day: tuple[int, Blocks], intervals: list[int], kind: str, speed: float | None
) -> None:
    slices, blocks = day
    with TemporaryDirectory() as directory:
        messages = write_day(Path(directory), blocks, slices)
        controls = Controls(speed, clock=ManualClock(automatic=True))
        assert replayed(Path(directory), intervals, kind, controls=controls) == expected(messages, intervals)


def test_messages_without_times_cause_no_ticks(tmp_path: Path) -> None:
    write_day(tmp_path, [(0, 1_000, [(b"A.x", 0), (b"A.x", 1_000), (b"A.x", 0), (b"A.x", 1_010)])], 1)
    assert replayed(tmp_path, [5]) == [("m", 0), ("m", 1), ("m", 2), ("5", 1_005), ("5", 1_010), ("m", 3)]


def test_each_loop_repeats_its_ticks(tmp_path: Path) -> None:
    messages = write_day(tmp_path, [(0, 1_000, [(b"A.x", 1_000 + 7 * n) for n in range(5)])], 1)
    assert replayed(tmp_path, [10], loops=3) == 3 * expected(messages, [10])


def test_compiled_callbacks_have_seen_the_messages_before_a_tick(tmp_path: Path) -> None:
    write_day(tmp_path, [(n % 2, 1_000 + n, [(b"AB"[n % 2 : n % 2 + 1] + b".x", 1_000 + n)]) for n in range(40)], 2)
    subscriber = Subscriber(feed_of())
    counted = subscriber.on_compiled(b"", state=numpy.zeros(1, numpy.int64))(count_rows)
    seen: list[int] = []
    subscriber.every(1e-08)(lambda _: seen.append(int(counted.total()[0])))
    subscriber.replay(Recording.open(tmp_path))
    assert seen == [10, 20, 30]


def test_a_tick_that_raises_ends_the_replay(tmp_path: Path) -> None:
    write_day(tmp_path, [(0, 1_000, [(b"A.x", 1_000 + n) for n in range(50)])], 1)
    ways: list[tuple[Literal["stop", "log"], list[int]]] = [("stop", [1_010]), ("log", [1_010, 1_020, 1_030, 1_040])]
    for on_error, times in ways:
        subscriber = Subscriber(feed_of(), on_error=on_error)
        called: list[int] = []

        @subscriber.every(1e-08)
        def fail(ts_ns: int, called: list[int] = called) -> None:
            called.append(ts_ns)
            raise RuntimeError("no")

        if on_error == "stop":
            with pytest.raises(CallbackError, match=r"callback .*fail at 1010 ns raised RuntimeError: no"):
                subscriber.replay(Recording.open(tmp_path))
        else:
            subscriber.replay(Recording.open(tmp_path))
        assert called == times


def test_a_removed_ticker_is_not_called_again(tmp_path: Path) -> None:
    write_day(tmp_path, [(0, 1_000, [(b"A.x", 1_000 + n) for n in range(50)])], 1)
    subscriber = Subscriber(feed_of())
    called: list[int] = []

    @subscriber.every(1e-08)
    def tick(ts_ns: int) -> None:
        called.append(ts_ns)

    @subscriber.on(b"")
    def remove(message: Message) -> None:
        if message.ts_event == 1_025:
            subscriber.remove(tick)

    subscriber.replay(Recording.open(tmp_path))
    assert called == [1_010, 1_020]
    with pytest.raises(ValueError, match="was not registered"):
        subscriber.remove(tick)


def test_a_ticker_cannot_be_added_during_a_replay(tmp_path: Path) -> None:
    write_day(tmp_path, [(0, 1_000, [(b"A.x", 1_000)])], 1)
    subscriber = Subscriber(feed_of())
    subscriber.on(b"")(lambda message: subscriber.every(5e-09)(print))
    with pytest.raises(CallbackError) as caught:
        subscriber.replay(Recording.open(tmp_path))
    assert isinstance(caught.value.__cause__, SubscriberError)


@settings(deadline=None, max_examples=examples(50))
@given(timed_days(), st.integers(1, 60), st.booleans())
def test_no_batch_crosses_a_boundary(day: tuple[int, Blocks], interval: int, beside: bool) -> None:
    slices, blocks = day
    found: list[tuple[int, int]] = []
    with TemporaryDirectory() as directory:
        messages = write_day(Path(directory), blocks, slices)
        subscriber = Subscriber(feed_of())
        if beside:
            subscriber.on_batch(b"A")(lambda batch: None)

        @subscriber.on_batch(b"", interval=interval / 1e9)
        def take(batch: Batch) -> None:
            number = set((batch.ts_event // interval).tolist())
            assert len(number) == 1
            found.extend((number.copy().pop(), int.from_bytes(each, "little")) for each in batch.payload_list())

        subscriber.replay(Recording.open(directory))
        assert subscriber.statistics().delivery.failed == 0
    wanted = [(message.time // interval, int.from_bytes(message.payload, "little")) for message in in_order(messages)]
    assert found == wanted


@pytest.mark.parametrize("interval", [0, -1, 1e-10, float("nan"), "1s", True])
def test_intervals_are_durations_above_zero(interval: Any) -> None:
    subscriber = Subscriber(feed_of())
    for register in (subscriber.every, lambda value: subscriber.on_batch(b"", interval=value)):
        with pytest.raises((TypeError, ValueError), match="interval was"):
            register(interval)


def test_a_tick_ends_pauses_and_steers_a_replay_in_a_silence(tmp_path: Path) -> None:
    write_day(tmp_path, [(0, 1_000, [(b"A.x", 1_000), (b"A.x", 2_000), (b"A.x", 900_000)])], 1)
    controls = Controls()
    subscriber = Subscriber(feed_of())
    seen: list[Event] = []
    subscriber.on(b"")(lambda message: seen.append(("m", message.ts_event)))

    @subscriber.every(1e-08)
    def tick(ts_ns: int) -> None:
        seen.append(("10", ts_ns))
        if ts_ns == 1_010:
            controls.pause()
            controls.resume()
        if ts_ns == 1_020:
            controls.seek(1_999)
        if ts_ns == 2_020:
            controls.stop()

    subscriber.replay(Replay(Recording.open(tmp_path), controls=controls))
    assert seen == [("m", 1_000), ("10", 1_010), ("10", 1_020), ("m", 2_000), ("10", 2_010), ("10", 2_020)]


def test_steps_count_messages_but_not_ticks(tmp_path: Path) -> None:
    write_day(tmp_path, [(0, 1_000, [(b"A.x", 1_000 + 100 * n) for n in range(9)])], 1)
    controls = Controls()
    controls.step(2)
    subscriber = Subscriber(feed_of())
    seen: list[int] = []

    @subscriber.on(b"")
    def count(message: Message) -> None:
        seen.append(message.ts_event)
        if message.ts_event == 1_100:
            controls.stop()

    ticks: list[int] = []
    subscriber.every(3e-08)(ticks.append)
    subscriber.replay(Replay(Recording.open(tmp_path), controls=controls))
    assert (seen, ticks) == ([1_000, 1_100], [1_020, 1_050, 1_080])
