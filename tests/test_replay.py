"""Replays to callbacks in this process: what comes, in which order and when, each against plain Python."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox import Batch, CallbackError, ConfigError, Feed, Message, Recording, Replay, Subscriber, SubscriberError
from blackbox.compiled import CompiledBatch, payload
from blackbox.replay.clock import ManualClock
from blackbox.replay.controls import ANY, Controls, Grant, Kind
from tests.damaged import damage_body
from tests.journals import Day, Put, Row, Told, feed_of
from tests.test_recording import days, made

few = settings(max_examples=60)
PREFIXES = st.sampled_from([b"", b"A", b"AX", b"AXYZ.", b"AY.trade.of", b"B", b"BXYZ", b"CY", b"Z"])
TIMES = st.none() | st.integers(-1, 8)
START = 1_700_000_000_000_000_000


def fingerprint(batch: CompiledBatch, state: Any) -> None:
    """Compiled: what came, in order."""
    for row in batch.rows:
        text = payload(batch, row)
        state[0] += 1
        state[1] = state[1] * 31 + (batch.sequence + row) * 7 + batch.ts_event[row] + len(text)
        for byte in text:
            state[1] = state[1] * 31 + byte


def fingerprint_of(messages: Iterable[Told]) -> list[int]:
    """What `fingerprint` leaves in its state."""
    count, value = 0, 0
    for m in messages:
        count += 1
        value = value * 31 + m.sequence * 7 + m.ts_event + len(m.payload)
        for byte in m.payload:
            value = value * 31 + byte
    value &= (1 << 64) - 1
    return [count, value - (1 << 64) if value >> 63 else value]


def told_of(batch: Batch) -> list[Told]:
    block = batch.block
    return [
        Told(block.slice_id, block.epoch, sequence, batch.ts_out, batch.ts_recv, m.topic, m.payload, m.ts_event)
        for m, sequence in zip(batch, batch.sequence.tolist(), strict=True)
    ]


class Audience:
    """A subscriber with a callback of each kind, and what they got."""

    def __init__(self, feed: Feed, prefix: bytes = b"") -> None:
        self.subscriber = Subscriber(feed)
        self.by_message: list[Told] = []
        self.by_batch: list[Told] = []
        self.resets: list[int] = []
        """How many messages had come before each."""
        self.calls: list[tuple[str, int]] = []
        if feed.slices_for(prefix):
            self.subscriber.on(prefix)(self._message)
            self.subscriber.on_batch(prefix)(self._batch)
            self.compiled = self.subscriber.on_compiled(prefix, state=numpy.zeros(2, numpy.int64))(fingerprint)
        self.subscriber.on_reset(lambda: self.resets.append(len(self.by_message)))

    def _message(self, message: Message) -> None:
        block = message.batch.block
        self.by_message.append(
            Told(
                block.slice_id,
                block.epoch,
                message.sequence,
                message.ts_out,
                message.ts_recv,
                message.topic,
                message.payload,
                message.ts_event,
            )
        )
        self.calls.append(("message", message.sequence))

    def _batch(self, batch: Batch) -> None:
        self.by_batch += told_of(batch)
        self.calls.append(("batch", len(batch)))

    def assert_got(self, expected: list[Told]) -> None:
        """All three kinds got just these."""
        assert self.by_message == expected
        assert by_slice(self.by_batch) == by_slice(expected)
        self.assert_compiled_got(expected)

    def assert_compiled_got(self, expected: list[Told]) -> None:
        """Since the last reset."""
        for slice_id, messages in by_slice(expected).items():
            assert self.compiled.states[slice_id].tolist() == fingerprint_of(messages)


def by_slice(messages: Iterable[Told]) -> dict[int, list[Told]]:
    found = defaultdict(list)
    for message in messages:
        found[message.slice_id].append(message)
    return dict(found)


def chosen(
    messages: list[Told],
    prefix: bytes = b"",
    start: int | None = None,
    stop: int | None = None,
    slices: Sequence[int] | None = None,
    by: str = "ts_event",
) -> list[Told]:
    return [
        m
        for m in messages
        if m.topic.startswith(prefix)
        and (start is None or getattr(m, by) >= start)
        and (stop is None or getattr(m, by) < stop)
        and (slices is None or m.slice_id in slices)
    ]


def simple_day(path: Path, times: Sequence[int], rows: int = 1, **settings: Any) -> Day:
    """One slice; messages at these times, so many in a block."""
    day = Day(path, feed_of())
    puts = [
        Put(
            tuple(Row(b"A.%d" % (i % 3), b"%d" % i, times[i]) for i in range(at, min(at + rows, len(times)))),
            sequence=at,
            ts_out=START + at,
            **settings,
        )
        for at in range(0, len(times), rows)
    ]
    day.put(0, *puts)
    return day


# What comes


@few
@given(days(), PREFIXES, PREFIXES, TIMES, TIMES, st.none() | st.lists(st.integers(0, 2), max_size=2), st.data())
def test_callbacks_get_what_plain_python_takes(
    day: Any,
    prefix: bytes,
    wish: bytes,
    start: int | None,
    stop: int | None,
    slices: list[int] | None,
    data: st.DataObject,
) -> None:
    slices = None if slices is None else [number for number in slices if number < day[0]]
    by: Any = data.draw(st.sampled_from(["ts_event", "ts_out"]))
    with TemporaryDirectory() as path:
        written = made(path, day)
        wanted = chosen(written.told(), prefix, start, stop, slices, by)
        recording = Recording.open(path)
        audience = Audience(recording.feed, wish)
        done = audience.subscriber.replay(recording, prefix=prefix, start=start, stop=stop, slices=slices, pace_by=by)
        audience.assert_got([m for m in wanted if m.topic.startswith(wish)] if recording.feed.slices_for(wish) else [])
        assert (done.messages, done.damaged, recording.damage) == (len(wanted), 0, [])


class Scripted(Controls):
    """Grants so many messages, or a seek, one after the other; then everything."""

    def __init__(self, script: Iterable[tuple[str, int]]) -> None:
        super().__init__()
        self._script = list(script)
        self._left = 0

    def wait(self, next_ns: int) -> Grant:
        if not self._left:
            kind, value = self._script.pop(0) if self._script else ("go", ANY)
            if kind == "seek":
                return Grant(Kind.SEEK, seek_to_ns=value)
            if kind == "until":
                return Grant(Kind.GO, until_ns=max(next_ns, value))
            self._left = value
        return Grant(Kind.GO, messages=self._left)

    def played(self, messages: int, last_ns: int) -> None:
        if self._left:
            self._left -= messages if self._left != ANY else 0


SCRIPTS = st.lists(
    st.tuples(st.just("go"), st.integers(1, 5)) | st.tuples(st.just("seek"), st.integers(0, 8)), max_size=8
)


@few
@given(days(), st.sampled_from([b"", b"AX", b"AY."]), TIMES, SCRIPTS)
def test_steps_and_seeks_give_just_the_messages(
    day: Any, prefix: bytes, start: int | None, script: list[tuple[str, int]]
) -> None:
    with TemporaryDirectory() as path:
        written = made(path, day)
        recording = Recording.open(path)
        everything = chosen(written.told(), prefix, start)
        first = max(recording.time_range("ts_event")[0], -(1 << 63) if start is None else start)
        audience = Audience(recording.feed)
        replay = Replay(recording, prefix=prefix, start=start, controls=Scripted(script), pace_by="ts_event")
        expected, resets, since, left = plainly(everything, first, script)
        done = audience.subscriber.replay(replay)
        assert audience.by_message == expected
        assert audience.resets == resets
        assert done.messages == len(expected)
        audience.assert_compiled_got(since)
        assert left == []


def plainly(
    everything: list[Told], first: int, script: list[tuple[str, int]]
) -> tuple[list[Told], list[int], list[Told], list[Told]]:
    """What is given, how many messages before each reset, those since the last one, and those that are left."""
    left, expected, since = list(everything), list[Told](), list[Told]()
    resets = []
    for kind, value in script:
        if not left:
            break
        if kind == "go":
            expected += left[:value]
            since += left[:value]
            left = left[value:]
            continue
        if since and value <= max(m.ts_event for m in since):
            resets.append(len(expected))
            since = []
        left = list(everything) if value <= first else [m for m in everything if m.ts_event >= value]
    return expected + left, resets, since + left, []


@few
@given(days(), st.lists(st.integers(0, 8), max_size=6))
def test_pieces_that_are_due_add_up(day: Any, times: list[int]) -> None:
    with TemporaryDirectory() as path:
        written = made(path, day)
        recording = Recording.open(path)
        audience = Audience(recording.feed)
        replay = Replay(recording, controls=Scripted(("until", time) for time in times), pace_by="ts_event")
        done = audience.subscriber.replay(replay)
        audience.assert_got(written.told())
        blocks = [put for segment in written.segments for put in segment.puts]
        assert (done.messages, done.blocks) == (len(written.told()), len(blocks))


@few
@given(days())
def test_two_runs_are_the_same_call_by_call(day: Any) -> None:
    with TemporaryDirectory() as path:
        made(path, day)
        calls = []
        for _ in range(2):
            audience = Audience(Recording.open(path).feed)
            audience.subscriber.replay(Recording.open(path))
            calls.append((audience.calls, audience.by_message, audience.by_batch))
        assert calls[0] == calls[1]


def test_several_days_are_played_as_one_whatever_their_order(tmp_path: Path) -> None:
    days = []
    for number in range(3):
        day = Day(tmp_path / str(number), feed_of(2), date=f"2026-11-{20 + number}")
        for slice_id in range(2):
            rows = [Row(b"%c.x" % (65 + slice_id), b"%d-%d" % (number, i), 100 * (number + 1) + i) for i in range(5)]
            puts = [Put((row,), i, ts_out=START + 100 * number + i, epoch=number + 1) for i, row in enumerate(rows)]
            day.put(slice_id, *puts)
        days.append(day)
    recordings = [Recording.open(tmp_path / name) for name in "201"]
    audience = Audience(recordings[0].feed)
    done = audience.subscriber.replay(recordings)
    assert [m.payload for m in audience.by_message if m.slice_id == 0] == [
        b"%d-%d" % (number, i) for number in range(3) for i in range(5)
    ]
    assert done.messages == 30
    assert done.market_seconds == 204 / 1e9


def test_loops_reset_and_count_each_time(tmp_path: Path) -> None:
    day = simple_day(tmp_path, [START + 10 * i for i in range(6)], rows=2)
    clock = ManualClock(automatic=True)
    audience = Audience(day.feed)
    done = audience.subscriber.replay(Replay(Recording.open(tmp_path), loops=3, controls=Controls(1.0, clock=clock)))
    assert audience.by_message == day.told() * 3
    assert audience.resets == [6, 12]
    audience.assert_compiled_got(day.told())
    assert (done.messages, done.market_seconds) == (18, 150 / 1e9)
    assert clock.now_ns() == 150


def test_a_loop_over_nothing_ends(tmp_path: Path) -> None:
    day = simple_day(tmp_path, [START])
    audience = Audience(day.feed)
    assert audience.subscriber.replay(Recording.open(tmp_path), loops=0, prefix=b"nothing").messages == 0


# When it comes


def paced(path: Path, controls: Controls, clock: ManualClock) -> list[tuple[bytes, int]]:
    """Payloads, and the clock's time when they came."""
    subscriber = Subscriber(feed_of())
    came: list[tuple[bytes, int]] = []
    subscriber.on(b"")(lambda m: came.append((m.payload, clock.now_ns())))
    subscriber.replay(Replay(Recording.open(path), controls=controls))
    return came


@pytest.mark.parametrize("rows", [1, 4, 100])
@pytest.mark.parametrize(("speed", "scale"), [(1.0, 1), (10.0, 10)])
def test_messages_come_when_they_are_due(tmp_path: Path, rows: int, speed: float, scale: int) -> None:
    offsets = [0, 0, 10, 10, 20, 50, 40, 70, 500, 500, 1_000]
    simple_day(tmp_path, [START + offset for offset in offsets], rows)
    clock = ManualClock(automatic=True)
    latest = [max(offsets[: i + 1]) // scale for i in range(len(offsets))]
    assert paced(tmp_path, Controls(speed, clock=clock), clock) == [(b"%d" % i, at) for i, at in enumerate(latest)]


def test_without_times_of_the_venue_blocks_come_by_their_sending(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of())
    day.put(0, *(Put((Row(b"A", b"%d" % i),), i, ts_out=START + 100 * i) for i in range(4)))
    clock = ManualClock(automatic=True)
    assert paced(tmp_path, Controls(1.0, clock=clock), clock) == [(b"%d" % i, 100 * i) for i in range(4)]


def test_steered_from_a_callback(tmp_path: Path) -> None:
    simple_day(tmp_path, [START + 100 * i for i in range(6)], rows=3)
    clock = ManualClock(automatic=True)
    controls = Controls(1.0, clock=clock)
    subscriber = Subscriber(feed_of())
    came = []

    @subscriber.on(b"")
    def steer(message: Message) -> None:
        came.append((message.payload, clock.now_ns()))
        if message.payload == b"1":
            controls.speed = 10.0
        if message.payload == b"3":
            controls.step(2)
        if message.payload == b"5":
            assert clock.now_ns() == 120

    subscriber.replay(Replay(Recording.open(tmp_path), controls=controls))
    assert came == [(b"0", 0), (b"1", 100), (b"2", 110), (b"3", 120), (b"4", 120), (b"5", 120)]


def test_a_damaged_block_does_not_cost_a_step(tmp_path: Path) -> None:
    day = simple_day(tmp_path, [START + i for i in range(12)], rows=3)
    damage_body(day.segments[0], 1)
    controls = Controls()
    controls.step(5)
    subscriber = Subscriber(day.feed)
    came: list[bytes] = []

    @subscriber.on(b"")
    def collect(message: Message) -> None:
        came.append(message.payload)
        if len(came) == 5:
            controls.stop()

    done = subscriber.replay(Replay(Recording.open(tmp_path), controls=controls))
    assert came == [b"0", b"1", b"2", b"6", b"7"]
    assert (done.messages, done.damaged) == (5, 3)


# Damage


@pytest.mark.parametrize("codec", [0, 1, 2])
@pytest.mark.parametrize("speed", [None, 1.0])
def test_damaged_blocks_are_left_out_told_and_counted(tmp_path: Path, codec: int, speed: float | None) -> None:
    day = simple_day(tmp_path, [START + i for i in range(40)], rows=4, codec=codec)
    for block in (0, 4, 5, 9):
        damage_body(day.segments[0], block)
    recording = Recording.open(tmp_path)
    audience = Audience(day.feed)
    controls = Controls(speed, clock=ManualClock(automatic=True))
    done = audience.subscriber.replay(Replay(recording, controls=controls))
    audience.assert_got([m for m in day.told() if m.sequence // 4 not in (0, 4, 5, 9)])
    assert (done.messages, done.damaged, done.blocks) == (24, 16, 6)
    told = list(recording.damage)
    assert [damage.messages for damage in told] == [4] * 4
    assert sorted(told) == recording.verify()


# Batches that are kept


@pytest.mark.parametrize("codec", [0, 2])
@pytest.mark.parametrize("start", [None, START + 7])
def test_kept_batches_outlive_replay_and_recording(tmp_path: Path, codec: int, start: int | None) -> None:
    day = simple_day(tmp_path, [START + i for i in range(3_000)], rows=10, codec=codec)
    subscriber = Subscriber(day.feed)
    kept: list[Batch] = []
    subscriber.on_batch(b"A.1")(kept.append)
    recording = Recording.open(tmp_path)
    subscriber.replay(recording, start=start, controls=Scripted([("go", 3)] * 9))
    del recording, subscriber
    gc.collect()
    expected = list(chosen(day.told(), b"A.1", start))
    assert [m for batch in kept for m in told_of(batch)] == expected


# Callbacks that raise, come and go


def failing(feed: Feed, on_error: Any, error: BaseException) -> tuple[Subscriber, list[bytes]]:
    subscriber = Subscriber(feed, on_error=on_error)
    came: list[bytes] = []

    @subscriber.on(b"")
    def fail(message: Message) -> None:
        came.append(message.payload)
        if message.payload == b"5":
            raise error

    subscriber.on_batch(b"")(lambda batch: came.extend(b"batch" for _ in [batch] if b"6" in batch.payload_list()))
    return subscriber, came


def test_nothing_comes_after_an_error_that_stops(tmp_path: Path) -> None:
    day = simple_day(tmp_path, range(START, START + 12), rows=2)
    subscriber, came = failing(day.feed, "stop", ValueError("five"))
    replay = Replay(Recording.open(tmp_path))
    with pytest.raises(CallbackError, match="five") as raised:
        subscriber.replay(replay)
    assert isinstance(raised.value.__cause__, ValueError)
    assert came == [b"%d" % i for i in range(6)]
    assert replay.controls.status().state == "ended"
    assert subscriber.replay(Recording.open(tmp_path), stop=START + 5).messages == 5


def test_an_error_that_is_logged_costs_one_message(tmp_path: Path) -> None:
    day = simple_day(tmp_path, range(START, START + 12), rows=2)
    subscriber, came = failing(day.feed, "log", ValueError("five"))
    assert subscriber.replay(Recording.open(tmp_path)).messages == 12
    assert [each for each in came if each != b"batch"] == [b"%d" % i for i in range(12)]
    assert subscriber.statistics().callback_errors == 1


def test_ctrl_c_in_a_callback_ends_it_and_it_can_be_run_again(tmp_path: Path) -> None:
    day = simple_day(tmp_path, range(START, START + 12), rows=2)
    subscriber, came = failing(day.feed, "log", KeyboardInterrupt())
    replay = Replay(Recording.open(tmp_path), stop=START + 9)
    with pytest.raises(KeyboardInterrupt):
        subscriber.replay(replay)
    assert came == [b"%d" % i for i in range(6)]
    came.clear()
    assert subscriber.replay(Recording.open(tmp_path), start=START + 6).messages == 6


def test_callbacks_come_and_go_in_a_callback(tmp_path: Path) -> None:
    day = simple_day(tmp_path, range(START, START + 400))
    subscriber = Subscriber(day.feed)
    came: list[bytes] = []
    late: list[bytes] = []
    compiled = subscriber.on_compiled(b"", state=numpy.zeros(2, numpy.int64))(fingerprint)

    @subscriber.on(b"")
    def first(message: Message) -> None:
        came.append(message.payload)
        if message.payload == b"10":
            subscriber.off(first)
            subscriber.off(compiled)
            subscriber.on(b"A.1")(lambda m: late.append(m.payload))

    subscriber.replay(Recording.open(tmp_path))
    assert came == [b"%d" % i for i in range(11)]
    assert compiled.total()[0] == 32  # a burst: compiled callbacks are ahead of the others by that
    assert late == [b"%d" % i for i in range(32, 400) if i % 3 == 1]


def test_stop_in_a_callback_ends_the_replay(tmp_path: Path) -> None:
    day = simple_day(tmp_path, [START + 10 * i for i in range(50)])
    subscriber = Subscriber(day.feed)
    came: list[bytes] = []

    @subscriber.on(b"")
    def stop(message: Message) -> None:
        came.append(message.payload)
        if len(came) == 3:
            subscriber.stop()

    subscriber.replay(Replay(Recording.open(tmp_path), controls=Controls(1.0, clock=ManualClock(automatic=True))))
    assert came == [b"0", b"1", b"2"]
    assert subscriber.replay(Recording.open(tmp_path)).messages == 50


def test_a_replay_within_a_replay_is_refused(tmp_path: Path) -> None:
    day = simple_day(tmp_path, [START])
    subscriber = Subscriber(day.feed)
    refused: list[str] = []

    @subscriber.on(b"")
    def nest(_message: Message) -> None:
        for call in (lambda: subscriber.replay(Recording.open(tmp_path)), subscriber.start):
            with pytest.raises(SubscriberError) as error:
                call()
            refused.append(str(error.value))

    subscriber.replay(Recording.open(tmp_path))
    assert len(refused) == 2


def test_a_replay_on_a_subscriber_that_runs_is_refused(tmp_path: Path) -> None:
    day = simple_day(tmp_path, [START])
    subscriber = Subscriber(day.feed)
    subscriber.stop()
    with pytest.raises(SubscriberError, match="ended"):
        subscriber.replay(Recording.open(tmp_path))


def test_topics_are_numbered_on_and_states_go_on(tmp_path: Path) -> None:
    small = Day(tmp_path / "small", feed_of(max_topics=4))
    small.put(0, Put(tuple(Row(b"S%d" % i, b"") for i in range(3))))
    large = Day(tmp_path / "large", feed_of(2, max_topics=4_096))
    large.put(0, *(Put((Row(b"A%d" % i, b""),), i) for i in range(4_000)))
    large.put(1, Put((Row(b"B", b""),)))
    subscriber = Subscriber(small.feed)
    compiled = subscriber.on_compiled(b"", state=numpy.zeros(2, numpy.int64))(fingerprint)
    for path in ("small", "large", "small"):
        subscriber.replay(Recording.open(tmp_path / path))
    assert compiled.total()[0] == 3 + 4_001 + 3
    assert subscriber.topics(0)[:4] == [b"S0", b"S1", b"S2", b"A0"]
    assert subscriber.statistics().received == 4_007


# What is refused


def test_recordings_of_two_schemas_are_refused(tmp_path: Path) -> None:
    Day(tmp_path / "a", feed_of())
    Day(tmp_path / "b", feed_of(schema="itch50"))
    with pytest.raises(ConfigError, match="schema"):
        Replay([Recording.open(tmp_path / "a"), Recording.open(tmp_path / "b")])


@pytest.mark.parametrize(
    "wrong",
    [
        {"loops": -1},
        {"speed": 0.0},
        {"speed": 1.0, "controls": Controls()},
        {"pace_by": "ts_recv"},
        {"start": "noon"},
        {"slices": [1]},
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    simple_day(tmp_path, [START])
    with pytest.raises(ValueError, match="was|were|had"):
        Replay(Recording.open(tmp_path), **wrong)
