"""Messages that a replay delivers to callbacks in this process, compared with plain Python."""

from __future__ import annotations

import gc
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from blackbox import Batch, ConfigError, Recording, Replay, Subscriber
from blackbox.replay.clock import ManualClock
from blackbox.replay.controls import Controls
from tests.archive.written_days import days, made
from tests.damaged import damage_body
from tests.journals import Day, Put, Row, feed_of
from tests.replay.audience import (
    PREFIXES,
    SCRIPTS,
    START,
    TIMES,
    Audience,
    Scripted,
    chosen,
    few,
    plainly,
    simple_day,
    told_of,
)


@few
@given(
    days(least_time=1), PREFIXES, PREFIXES, TIMES, TIMES, st.none() | st.lists(st.integers(0, 2), max_size=2), st.data()
)
def test_callbacks_receive_the_messages_that_plain_python_selects(
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
    assume(start is None or stop is None or start <= stop)
    with TemporaryDirectory() as path:
        written = made(path, day)
        wanted = chosen(written.told(), prefix, start, stop, slices, by)
        recording = Recording.open(path)
        audience = Audience(recording.feed, wish)
        done = audience.subscriber.replay(recording, prefix=prefix, start=start, stop=stop, slices=slices, pace_by=by)
        audience.assert_got([m for m in wanted if m.topic.startswith(wish)] if recording.feed.slices_for(wish) else [])
        assert (done.messages, done.damaged, recording.damage) == (len(wanted), 0, [])


@few
@given(days(least_time=1), st.sampled_from([b"", b"AX", b"AY."]), TIMES, SCRIPTS)
def test_steps_and_seeks_deliver_exactly_their_messages(
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


@few
@given(days(least_time=1), st.lists(st.integers(0, 8), max_size=6))
def test_grants_by_time_add_up_to_all_messages(day: Any, times: list[int]) -> None:
    with TemporaryDirectory() as path:
        written = made(path, day)
        recording = Recording.open(path)
        audience = Audience(recording.feed)
        replay = Replay(recording, controls=Scripted(("until", time) for time in times), pace_by="ts_event")
        done = audience.subscriber.replay(replay)
        audience.assert_got(chosen(written.told()))
        assert done.messages == len(written.told())


@few
@given(days(least_time=1))
def test_two_runs_make_the_same_calls(day: Any) -> None:
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


def test_a_loop_over_no_messages_ends_and_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    day = simple_day(tmp_path, [START])
    audience = Audience(day.feed)
    assert audience.subscriber.replay(Recording.open(tmp_path), loops=0, prefix=b"nothing").messages == 0
    assert "nothing was played: no message from" in caplog.text


@pytest.mark.parametrize("codec", [0, 1, 2])
@pytest.mark.parametrize("speed", [None, 1.0])
def test_damaged_blocks_are_skipped_reported_and_counted(tmp_path: Path, codec: int, speed: float | None) -> None:
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


def test_errors_name_the_wrong_recording_or_speed(tmp_path: Path) -> None:
    subscriber = Subscriber(feed_of())
    given: Any = str(tmp_path)
    with pytest.raises(TypeError, match=r"a replay was given '.*', expected Recording.open\(path\)"):
        subscriber.replay(given)
    with pytest.raises(ValueError, match="speed was 'fast', expected a finite number above 0, or None"):
        Controls("fast")  # type: ignore[arg-type]
