"""Replay callbacks that raise, stop the replay, start another, or add and remove callbacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest

from blackbox import Batch, CallbackError, Feed, Message, Recording, Replay, Subscriber
from blackbox.errors import SubscriberError
from blackbox.replay.clock import ManualClock
from blackbox.replay.controls import Controls
from tests.journals import Day, Put, Row, feed_of
from tests.replay.audience import START, fingerprint, simple_day


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


@pytest.mark.parametrize(
    ("on_error", "error", "raised"),
    [
        ("stop", ValueError("five"), CallbackError),
        ("stop", StopIteration("five"), CallbackError),
        ("log", KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_no_message_is_delivered_after_an_error_that_stops_and_another_replay_can_run(
    tmp_path: Path, on_error: Any, error: BaseException, raised: type[BaseException]
) -> None:
    day = simple_day(tmp_path, range(START, START + 12), rows=2)
    subscriber, came = failing(day.feed, on_error, error)
    replay = Replay(Recording.open(tmp_path))
    with pytest.raises(raised) as caught:
        subscriber.replay(replay)
    assert isinstance(caught.value.__cause__ or caught.value, type(error))
    assert came == [b"%d" % i for i in range(6)]
    assert replay.controls.status().state == "ended"
    assert subscriber.replay(Recording.open(tmp_path), stop=START + 5).messages == 5
    assert subscriber.replay(Recording.open(tmp_path), start=START + 6).messages == 6


def test_an_error_that_is_logged_costs_one_message(tmp_path: Path) -> None:
    day = simple_day(tmp_path, range(START, START + 12), rows=2)
    subscriber, came = failing(day.feed, "log", ValueError("five"))
    assert subscriber.replay(Recording.open(tmp_path)).messages == 12
    assert [each for each in came if each != b"batch"] == [b"%d" % i for i in range(12)]
    assert subscriber.statistics().delivery.callback_errors == 1


def test_callbacks_are_added_and_removed_in_a_callback(tmp_path: Path) -> None:
    day = simple_day(tmp_path, range(START, START + 400))
    subscriber = Subscriber(day.feed)
    came: list[bytes] = []
    late: list[bytes] = []
    compiled = subscriber.on_compiled(b"", state=numpy.zeros(2, numpy.int64))(fingerprint)

    @subscriber.on(b"")
    def first(message: Message) -> None:
        came.append(message.payload)
        if message.payload == b"10":
            subscriber.remove(first)
            subscriber.remove(compiled)
            subscriber.on(b"A.1")(lambda m: late.append(m.payload))

    subscriber.replay(Recording.open(tmp_path))
    assert came == [b"%d" % i for i in range(11)]
    assert compiled.total()[0] == 11  # as many messages as the other callback has seen
    assert late == [b"%d" % i for i in range(32, 400) if i % 3 == 1]
    assert subscriber.statistics().delivery.delivered == len(came) + 11 + len(late)


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


def test_wrong_uses_of_a_subscriber_are_refused(tmp_path: Path) -> None:
    day = simple_day(tmp_path, [START])
    recording, subscriber = Recording.open(tmp_path), Subscriber(day.feed)
    with pytest.raises(TypeError, match=r"option was 'spede', expected one of: books, .*did you mean 'speed'\?"):
        subscriber.replay(recording, spede=10.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="speed was given with a Replay, pass it when the Replay is created"):
        subscriber.replay(Replay(recording), speed=10.0)
    with pytest.raises(TypeError, match=r"a replay was given '.*', expected Recording.open\(path\)"):
        subscriber.replay(str(tmp_path))  # type: ignore[arg-type]
    subscriber.stop()
    with pytest.raises(SubscriberError, match="ended"):
        subscriber.replay(recording)


def test_topic_numbers_and_states_continue_across_replays(tmp_path: Path) -> None:
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
    assert subscriber.statistics().received.messages == 4_007


@pytest.mark.parametrize("order", ["sent", "event"])
def test_blocks_with_topics_above_the_limit_are_counted(tmp_path: Path, order: Any) -> None:
    day = Day(tmp_path, feed_of(2, max_topics=4))
    for n in range(2):  # every block's times lie between those of a block of the other slice
        topics = [Row(b"S%d.%d" % (n, number % 7), b"", START + 2 * number + n) for number in range(24)]
        day.put(n, *(Put(tuple(topics[first : first + 6]), first, ts_recv=START) for first in range(0, 24, 6)))
    subscriber, numbers = Subscriber(day.feed), list[list[int]]()

    @subscriber.on_batch(b"")
    def keep(batch: Batch) -> None:
        numbers.append(batch.topic_numbers.tolist())

    for _ in range(3):
        subscriber.replay(Recording.open(tmp_path), order=order)
    statistics = subscriber.statistics()
    assert statistics.received.messages == 3 * 48
    assert statistics.delivery.unnumbered == sum(-1 in batch for batch in numbers) >= 3


@pytest.mark.parametrize("on_error", ["log", "stop"])
def test_a_hook_for_a_reset_that_raises_is_an_error_of_a_callback(tmp_path: Path, on_error: Any) -> None:
    day = simple_day(tmp_path, range(START, START + 12), rows=2)
    subscriber = Subscriber(day.feed, on_error=on_error)
    subscriber.on(b"")(lambda message: None)

    @subscriber.on_reset
    def fail() -> None:
        raise ValueError("no reset")

    if on_error == "log":
        assert subscriber.replay(Recording.open(tmp_path), loops=2).messages == 24
    else:
        with pytest.raises(CallbackError, match="on_reset raised ValueError: no reset"):
            subscriber.replay(Recording.open(tmp_path), loops=2)
    subscriber.remove(fail)
    assert subscriber.replay(Recording.open(tmp_path), loops=2).messages == 24
    with pytest.raises(ValueError, match="was not registered"):
        subscriber.remove(fail)
