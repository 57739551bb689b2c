"""Messages that a replay delivers to callbacks in this process, compared with plain Python."""

from __future__ import annotations

import gc
import os
import signal
import threading
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from blackbox import Batch, CallbackError, ConfigError, Recording, Replay, Subscriber
from blackbox.receive.callbacks.compiled_callback import payload
from blackbox.replay.clock import ManualClock
from blackbox.replay.controls import Controls
from blackbox.replay.play.player_loop import play
from blackbox.replay.tables.measure_blocks import measure
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
    fingerprint,
    fingerprint_of,
    plainly,
    simple_day,
    told_of,
    two_slices,
)

with_or_without_python = pytest.mark.parametrize("only_compiled", [False, True])
"""With only compiled callbacks, slices are played in parallel."""


@with_or_without_python
@few
@given(
    days(least_time=1), PREFIXES, PREFIXES, TIMES, TIMES, st.none() | st.lists(st.integers(0, 2), max_size=2), st.data()
)
def test_callbacks_receive_the_messages_that_plain_python_selects(
    only_compiled: bool,
    day: Any,
    prefix: bytes,
    wish: bytes,
    start: int | None,
    stop: int | None,
    slices: list[int] | None,
    data: st.DataObject,
) -> None:
    slices = None if slices is None else [number for number in slices if number < day[0]]
    by, order = data.draw(st.sampled_from([("ts_event", None), ("ts_event", "sent"), ("ts_out", None)]))
    how: Any = {"prefix": prefix, "start": start, "stop": stop, "slices": slices, "pace_by": by, "order": order}
    assume(start is None or stop is None or start <= stop)
    with TemporaryDirectory() as path:
        wanted = chosen(made(path, day).told(), prefix, start, stop, slices, by, order)
        recording = Recording.open(path)
        audience = Audience(recording.feed, wish, only_compiled=only_compiled)
        subscriber = audience.subscriber
        done = subscriber.replay(recording, **how)
        assert (done.messages, done.damaged, recording.damage) == (len(wanted), 0, [])
        if recording.feed.slices_for(wish):
            heard = [m for m in wanted if m.topic.startswith(wish)]
            audience.assert_got(heard)
            delivery = subscriber.statistics().delivery
            calls = len(heard) * (1 if only_compiled else 3)
            assert (delivery.matched, delivery.due, delivery.delivered) == (len(heard), calls, calls)
            assert delivery.topics == sum(len(subscriber.topics(number)) for number in range(day[0]))


def test_a_time_range_cuts_blocks_in_the_order_of_sending(tmp_path: Path) -> None:
    day = simple_day(tmp_path, [START + offset for offset in (0, 3, 1, 4, 2, 5, 9, 6, 7)], rows=3)
    recording = Recording.open(tmp_path)
    for start, stop in combinations(range(START, START + 11), 2):
        audience = Audience(day.feed)
        audience.subscriber.replay(recording, order="sent", pace_by="ts_event", start=start, stop=stop)
        audience.assert_got(chosen(day.told(), start=start, stop=stop, order="sent"))


@with_or_without_python
@few
@given(days(least_time=1), st.sampled_from([b"", b"AX", b"AY."]), TIMES, SCRIPTS)
def test_steps_and_seeks_deliver_exactly_their_messages(
    only_compiled: bool, day: Any, prefix: bytes, start: int | None, script: list[tuple[str, int]]
) -> None:
    with TemporaryDirectory() as path:
        everything = chosen(made(path, day).told(), prefix, start)
        recording = Recording.open(path)
        first = max(recording.time_range("ts_event")[0], -(1 << 63) if start is None else start)
        audience = Audience(recording.feed, only_compiled=only_compiled)
        replay = Replay(recording, prefix=prefix, start=start, controls=Scripted(script), pace_by="ts_event")
        expected, resets, since = plainly(everything, first, script)
        assert audience.subscriber.replay(replay).messages == len(expected)
        audience.assert_compiled_got(since)
        assert only_compiled or (audience.by_message, audience.resets) == (expected, resets)


@few
@given(days(least_time=1), st.lists(st.integers(0, 8), max_size=6))
def test_grants_by_time_add_up_to_all_messages(day: Any, times: list[int]) -> None:
    with TemporaryDirectory() as path:
        written = made(path, day)
        recording = Recording.open(path)
        audience = Audience(recording.feed)
        replay = Replay(recording, controls=Scripted(("until", time) for time in times), pace_by="ts_event")
        audience.subscriber.replay(replay)
        audience.assert_got(chosen(written.told()))


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


@with_or_without_python
@pytest.mark.parametrize(
    ("codec", "speed", "bad", "first"), [(0, None, (0, 4, 5), 2), (1, 1e9, (0, 1, 2), 0), (2, None, tuple(range(6)), 0)]
)
def test_damaged_blocks_are_skipped_reported_and_counted(
    tmp_path: Path, only_compiled: bool, codec: int, speed: float | None, bad: tuple[int, ...], first: int
) -> None:
    """Blocks before the start are reported too, because the times of a damaged block are unknown."""
    day = two_slices(tmp_path, codec=codec)
    for block in bad:
        damage_body(day.segments[0], block)
    recording = Recording.open(tmp_path)
    audience = Audience(day.feed, only_compiled=only_compiled)
    done = audience.subscriber.replay(recording, speed=speed, start=START + first)
    wanted = [m for m in chosen(day.told(), start=START + first) if not (m.slice_id == 0 and m.sequence // 3 in bad)]
    audience.assert_got(wanted)
    blocks = len(wanted) // 3 if only_compiled else 1  # gathered from several
    assert (done.messages, done.damaged, done.blocks) == (len(wanted), 3 * len(bad), blocks)
    assert [damage.messages for damage in recording.damage] == [3] * len(bad)
    assert sorted(recording.damage) == recording.verify()


@pytest.mark.parametrize(("codec", "start"), [(0, START + 7), (2, None)])
def test_kept_batches_outlive_replay_and_recording(tmp_path: Path, codec: int, start: int | None) -> None:
    day = simple_day(tmp_path, [START + i for i in range(1_000)], rows=10, codec=codec)
    subscriber = Subscriber(day.feed)
    kept: list[Batch] = []
    subscriber.on_batch(b"A.1")(kept.append)
    recording = Recording.open(tmp_path)
    subscriber.replay(recording, start=start, controls=Scripted([("go", 3)] * 9))
    del recording, subscriber
    gc.collect()
    expected = list(chosen(day.told(), b"A.1", start))
    assert [m for batch in kept for m in told_of(batch)] == expected


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        ({"loops": -1}, ValueError, "loops was -1, expected 0 or more"),
        ({"speed": 0.0}, ValueError, "speed was 0.0"),
        ({"speed": 1.0, "controls": Controls()}, ValueError, "controls were given together with a speed"),
        ({"pace_by": "ts_recv"}, ValueError, "pace_by was"),
        ({"order": "topic"}, ValueError, "order was 'topic', expected 'event' or 'sent'"),
        ({"order": "event", "pace_by": "ts_out"}, ValueError, "pace_by was 'ts_out' with order 'event'"),
        ({"start": "noon"}, ValueError, "was 'noon'"),
        ({"slices": [1]}, ValueError, "slices had 1, expected 0 to 0"),
        ({"keep_gaps": True, "order": "event"}, ConfigError, "keep_gaps was set with order 'event', expected 'sent'"),
        ({"keep_gaps": True, "prefix": b"A"}, ConfigError, "keep_gaps was set with prefix b'A'"),
        ({"keep_gaps": True, "symbols": ["A"]}, ConfigError, "keep_gaps"),
        ({"symbols": "AAPL"}, TypeError, "symbols"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, wrong: Any, error: type[Exception], text: str) -> None:
    simple_day(tmp_path, [START])
    with pytest.raises(error, match=text):
        Replay(Recording.open(tmp_path), **wrong)


def test_no_recording_and_two_schemas_are_refused(tmp_path: Path) -> None:
    Day(tmp_path / "a", feed_of())
    Day(tmp_path / "b", feed_of(schema="itch50"))
    with pytest.raises(ConfigError, match="schema"):
        Replay([Recording.open(tmp_path / "a"), Recording.open(tmp_path / "b")])
    with pytest.raises(ConfigError, match="given no recording, expected at least one"):
        Replay([])


def out_of_range(batch: Any, state: Any) -> None:
    """Fail on message 3 of topic A's slice."""
    for row in batch.rows:
        text = payload(batch, row)
        if batch.topic_text[0] == 65 and text[0] == 51:  # A, "3"
            state[batch.sequence + 1_000] = 1
        state[0] += 1


def test_an_error_in_compiled_code_ends_the_replay_or_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    day = two_slices(tmp_path)
    for on_error, counts in (("stop", {0: 3}), ("log", {0: 15, 1: 18})):
        subscriber = Subscriber(day.feed, on_error=on_error)  # type: ignore[arg-type]
        callback = subscriber.on_compiled(b"", state=numpy.zeros(2, numpy.int64))(out_of_range)
        if on_error == "stop":
            with pytest.raises(CallbackError, match="out_of_range .* raised an exception"):
                subscriber.replay(Recording.open(tmp_path))
            assert subscriber.statistics().delivery.callback_errors == 1
        else:
            assert subscriber.replay(Recording.open(tmp_path)).messages == 36
            assert "out_of_range" in caplog.text
        found = {number: int(state[0]) for number, state in callback.states.items()}
        assert {number: found[number] for number in counts} == counts


def spin(batch: Any, state: Any) -> None:
    """Compute for some tenths of a second per batch."""
    word = numpy.int64(1)
    for turn in range(100_000_000):
        word = (word * 31) ^ (word >> 7) ^ turn
    state[1] = word
    state[0] += len(batch.rows)


def test_ctrl_c_ends_the_replay_and_its_threads(tmp_path: Path) -> None:
    day = two_slices(tmp_path, 300)
    recording, subscriber = Recording.open(tmp_path), Subscriber(day.feed)
    callback = subscriber.on_compiled(b"", state=numpy.zeros(2, numpy.int64))(spin)

    def interrupt() -> None:
        while not any(state[0] for state in callback.states.values()):
            threading.Event().wait(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        subscriber.replay(recording)
    assert 0 < sum(int(state[0]) for state in callback.states.values()) < 1_800
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("blackbox-replay")]


def test_callbacks_are_added_and_removed_between_replays(tmp_path: Path) -> None:
    day = two_slices(tmp_path)
    recording, audience = Recording.open(tmp_path), Audience(day.feed, only_compiled=True)
    subscriber = audience.subscriber
    subscriber.replay(recording)
    assert (len(play.signatures), len(measure.signatures)) == (1, 1), "it was compiled before it played"
    second = subscriber.on_compiled(b"A", state=numpy.zeros(2, numpy.int64))(fingerprint)
    subscriber.remove(audience.compiled)
    came: list[int] = []
    subscriber.on_batch(b"")(lambda batch: came.extend(batch.slice_ids.tolist()))
    subscriber.replay(recording)
    audience.assert_compiled_got(day.told())
    assert second.total().tolist() == fingerprint_of(m for m in day.told() if m.slice_id == 0)
    assert came == [0, 0, 0, 1, 1, 1] * 6, "a Python callback restores one order"


def count_by_topic(batch: Any, state: Any) -> None:
    """Fill a row per topic number with the last byte of the topic and its message count."""
    for row in batch.rows:
        place = batch.topic_index[row]
        state[batch.topic_numbers[place], 0] = batch.topic_text[batch.topic_offsets[place + 1] - 1]
        state[batch.topic_numbers[place], 1] += 1


def test_epochs_with_topics_in_another_order_share_one_numbering(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of())
    topics = [b"a.long.topic.of.many.bytes.%c" % letter for letter in b"ABCDEF"]
    for epoch, order in enumerate((topics, topics[::-1]), 1):
        rows = tuple(Row(topic, b"", START + place) for place, topic in enumerate(order))
        day.put(0, *(Put(rows, 6 * number, ts_out=START + number, epoch=epoch) for number in range(3)))
    subscriber = Subscriber(day.feed)
    callback = subscriber.on_compiled(b"", state=numpy.zeros((8, 2), numpy.int64))(count_by_topic)
    for times in (1, 2):
        subscriber.replay(Recording.open(tmp_path))
        names = [topic[-1] for topic in subscriber.topics(0)]
        assert sorted(names) == list(b"ABCDEF")
        assert callback.states[0].tolist() == [[name, 6 * times] for name in names] + [[0, 0]] * 2
