"""Only compiled callbacks: slices are played in parallel, compared with plain Python."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from blackbox import CallbackError, Feed, Publisher, Recorder, Recording, Replay, Subscriber
from blackbox.replay.measure_blocks import measure
from blackbox.replay.worker_loop import play
from blackbox.subscribe.callbacks import CompiledCallback
from blackbox.subscribe.compiled_callback import payload
from tests.archive.written_days import days, made
from tests.damaged import damage_body
from tests.journals import Day, Put, Row, Told, feed_of
from tests.replay.audience import (
    PREFIXES,
    SCRIPTS,
    START,
    TIMES,
    Scripted,
    by_slice,
    chosen,
    few,
    fingerprint,
    fingerprint_of,
    plainly,
)


def compiled(feed: Feed, function: Callable[..., None] = fingerprint, **options: Any) -> tuple[Subscriber, Any]:
    subscriber = Subscriber(feed, **options)
    return subscriber, subscriber.on_compiled(b"", state=numpy.zeros(2, numpy.int64))(function)


def assert_got(callback: CompiledCallback, expected: list[Told]) -> None:
    found = {slice_id: state.tolist() for slice_id, state in callback.states.items() if state.any()}
    assert found == {slice_id: fingerprint_of(messages) for slice_id, messages in by_slice(expected).items()}


def two_slices(path: Path, blocks: int = 6, **settings: Any) -> Day:
    """Write two slices of three-message blocks, with times that rise in step."""
    day = Day(path, feed_of(2))
    for slice_id in range(2):
        puts = [
            Put(
                tuple(Row(b"%c" % (65 + slice_id), b"%d" % (3 * at + row), START + at) for row in range(3)),
                sequence=3 * at,
                ts_out=START + at,
                **settings,
            )
            for at in range(blocks)
        ]
        day.put(slice_id, *puts)
    return day


@few
@given(days(least_time=1), PREFIXES, TIMES, TIMES, st.sampled_from(["ts_event", "ts_out"]))
def test_each_slice_receives_the_messages_that_plain_python_selects(
    day: Any, prefix: bytes, start: int | None, stop: int | None, by: Literal["ts_event", "ts_out"]
) -> None:
    assume(start is None or stop is None or start <= stop)
    with TemporaryDirectory() as path:
        wanted = chosen(made(path, day).told(), prefix, start, stop, None, by)
        recording = Recording.open(path)
        subscriber, callback = compiled(recording.feed)
        done = subscriber.replay(recording, prefix=prefix, start=start, stop=stop, pace_by=by)
        assert_got(callback, wanted)
        told = subscriber.statistics()
        assert {done.messages, told.delivery.matched, told.delivery.due, told.delivery.delivered} == {len(wanted)}
        assert told.delivery.topics == sum(
            len(subscriber.topics(number)) for number in range(len(recording.feed.slices))
        )


@few
@given(days(least_time=1), st.sampled_from([b"", b"AX", b"AY."]), TIMES, SCRIPTS)
def test_steps_and_seeks_deliver_exactly_their_messages(
    day: Any, prefix: bytes, start: int | None, script: list[tuple[str, int]]
) -> None:
    with TemporaryDirectory() as path:
        everything = chosen(made(path, day).told(), prefix, start)
        recording = Recording.open(path)
        first = max(recording.time_range("ts_event")[0], -(1 << 63) if start is None else start)
        subscriber, callback = compiled(recording.feed)
        replay = Replay(recording, prefix=prefix, start=start, controls=Scripted(script), pace_by="ts_event")
        expected, _, since, _ = plainly(everything, first, script)
        assert subscriber.replay(replay).messages == len(expected)
        assert_got(callback, since)


@pytest.mark.parametrize("codec", [0, 1, 2])
@pytest.mark.parametrize("speed", [None, 1e9])
@pytest.mark.parametrize("bad", [(0,), (5,), (0, 1, 2), (4, 5), tuple(range(6))])
def test_damaged_blocks_are_skipped_reported_and_counted(
    tmp_path: Path, codec: int, speed: float | None, bad: tuple[int, ...]
) -> None:
    day = two_slices(tmp_path, codec=codec)
    for block in bad:
        damage_body(day.segments[0], block)
    recording = Recording.open(tmp_path)
    subscriber, callback = compiled(day.feed)
    done = subscriber.replay(recording, speed=speed)
    wanted = [m for m in day.told() if not (m.slice_id == 0 and m.sequence // 3 in bad)]
    assert_got(callback, wanted)
    assert (done.messages, done.damaged, done.blocks) == (len(wanted), 3 * len(bad), 12 - len(bad))
    assert len(recording.damage) == len(bad)


def out_of_range(batch: Any, state: Any) -> None:
    """Fail on message 3 of topic A's slice."""
    for row in batch.rows:
        text = payload(batch, row)
        if batch.topic_text[0] == 65 and text[0] == 51:  # A, "3"
            state[batch.sequence + 1_000] = 1
        state[0] += 1


def test_an_error_ends_the_replay(tmp_path: Path) -> None:
    day = two_slices(tmp_path)
    subscriber, callback = compiled(day.feed, out_of_range)
    with pytest.raises(CallbackError, match="out_of_range .* raised an exception"):
        subscriber.replay(Recording.open(tmp_path))
    assert callback.states[0].tolist() == [3, 0]
    assert subscriber.statistics().delivery.callback_errors == 1


def test_errors_that_are_logged_end_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    day = two_slices(tmp_path)
    subscriber, callback = compiled(day.feed, out_of_range, on_error="log")
    assert subscriber.replay(Recording.open(tmp_path)).messages == 36
    assert {number: int(state[0]) for number, state in callback.states.items()} == {0: 15, 1: 18}
    assert "out_of_range" in caplog.text


def spin(batch: Any, state: Any) -> None:
    """Compute for some hundredths of a second per batch."""
    word = numpy.int64(1)
    for turn in range(10_000_000):
        word = (word * 31) ^ (word >> 7) ^ turn
    state[1] = word
    state[0] += len(batch.rows)


def test_ctrl_c_ends_the_replay_and_its_threads(tmp_path: Path) -> None:
    day = two_slices(tmp_path, 2_000)
    recording = Recording.open(tmp_path)
    subscriber, callback = compiled(day.feed, spin)

    def interrupt() -> None:
        while not any(state[0] for state in callback.states.values()):
            threading.Event().wait(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        subscriber.replay(recording)
    left = {number: int(state[0]) for number, state in callback.states.items()}
    assert 0 < sum(left.values()) < 12_000
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("blackbox-replay")]


def test_callbacks_are_added_and_removed_between_replays(tmp_path: Path) -> None:
    day = two_slices(tmp_path)
    recording = Recording.open(tmp_path)
    subscriber, first = compiled(day.feed)
    subscriber.replay(recording)
    second = subscriber.on_compiled(b"A", state=numpy.zeros(2, numpy.int64))(fingerprint)
    subscriber.remove(first)
    subscriber.replay(recording)
    assert_got(first, day.told())
    assert_got(second, [m for m in day.told() if m.slice_id == 0])


def test_an_added_batch_callback_restores_one_order(tmp_path: Path) -> None:
    day = two_slices(tmp_path)
    subscriber, callback = compiled(day.feed)
    came: list[int] = []
    subscriber.on_batch(b"")(lambda batch: came.extend(batch.slice_ids.tolist()))
    subscriber.replay(Recording.open(tmp_path))
    assert_got(callback, day.told())
    assert came == [0, 0, 0, 1, 1, 1] * 6


def test_everything_is_compiled_before_it_plays(tmp_path: Path) -> None:
    day = two_slices(tmp_path)
    subscriber, _ = compiled(day.feed)
    subscriber.replay(Recording.open(tmp_path))
    assert (len(play.signatures), len(measure.signatures)) == (1, 1)


def count_by_topic(batch: Any, state: Any) -> None:
    """Fill a row per topic number with the last byte of the topic and its message count."""
    for row in batch.rows:
        place = batch.topic_index[row]
        state[batch.topic_numbers[place], 0] = batch.topic_text[batch.topic_offsets[place + 1] - 1]
        state[batch.topic_numbers[place], 1] += 1


def test_two_publishers_that_number_topics_differently_share_one_numbering(tmp_path: Path) -> None:
    feed = Feed.local("two", slices=1)
    topics = [b"a.long.topic.of.many.bytes.%c" % letter for letter in b"ABCDEF"]
    for order in (topics, topics[::-1]):
        recorder = Recorder(feed, tmp_path)
        with Publisher(feed, when_full="wait") as publisher:
            recorder.start()
            for _ in range(3):
                publisher.publish_many(order, numpy.arange(6), numpy.zeros((6, 8), numpy.uint8), numpy.arange(1, 7))
                publisher.flush()
        recorder.run(until_end=True, timeout=60)
    (day,) = recorder.directory.glob("*-*-*")
    subscriber = Subscriber(feed)
    callback = subscriber.on_compiled(b"", state=numpy.zeros((8, 2), numpy.int64))(count_by_topic)
    for times in (1, 2):
        subscriber.replay(Recording.open(day))
        names = [topic[-1] for topic in subscriber.topics(0)]
        assert sorted(names) == list(b"ABCDEF")
        assert callback.states[0].tolist() == [[name, 6 * times] for name in names] + [[0, 0]] * 2
