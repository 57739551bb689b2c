"""The times at which a replay calls callbacks in this process, and the market time that it reports as played."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from blackbox import Message, Recording, Replay, Subscriber
from blackbox.replay.clock import ManualClock
from blackbox.replay.controls import Controls
from tests.damaged import damage_body
from tests.journals import Day, Put, Row, feed_of
from tests.replay.audience import START, simple_day


def paced(path: Path, speed: float = 1.0) -> list[tuple[bytes, int]]:
    """Return the payloads, each with the clock's time at its delivery."""
    clock = ManualClock(automatic=True)
    subscriber = Subscriber(feed_of())
    came: list[tuple[bytes, int]] = []
    subscriber.on(b"")(lambda m: came.append((m.payload, clock.now_ns())))
    subscriber.replay(Replay(Recording.open(path), controls=Controls(speed, clock=clock)))
    return came


@pytest.mark.parametrize(("rows", "scale"), [(1, 1), (4, 10), (100, 1)])
def test_messages_are_delivered_when_they_are_due(tmp_path: Path, rows: int, scale: int) -> None:
    offsets = [0, 0, 10, 10, 20, 50, 40, 70, 500, 500, 1_000]
    simple_day(tmp_path, [START + offset for offset in offsets], rows)
    due = sorted((offset // scale, i) for i, offset in enumerate(offsets))
    assert paced(tmp_path, scale) == [(b"%d" % i, at) for at, i in due]


def test_without_venue_times_blocks_are_paced_by_sending_time(tmp_path: Path) -> None:
    day = Day(tmp_path, feed_of())
    day.put(0, *(Put((Row(b"A", b"%d" % i),), i, ts_out=START + 100 * i) for i in range(4)))
    assert paced(tmp_path) == [(b"%d" % i, 100 * i) for i in range(4)]


def test_commands_from_a_callback(tmp_path: Path) -> None:
    simple_day(tmp_path, [START + 100 * i for i in range(6)], rows=3)
    clock = ManualClock(automatic=True)
    controls = Controls(1.0, clock=clock)
    subscriber = Subscriber(feed_of())
    came = []

    @subscriber.on(b"")
    def command(message: Message) -> None:
        came.append((message.payload, clock.now_ns()))
        if message.payload == b"1":
            controls.speed = 10.0
        if message.payload == b"3":
            controls.step(2)

    subscriber.replay(Replay(Recording.open(tmp_path), controls=controls))
    assert came == [(b"0", 0), (b"1", 100), (b"2", 110), (b"3", 120), (b"4", 120), (b"5", 120)]


@pytest.mark.parametrize("rows", [1, 6])
def test_seek_from_the_callback_of_the_last_message(tmp_path: Path, rows: int) -> None:
    simple_day(tmp_path, [START + i for i in range(6)], rows)
    subscriber = Subscriber(feed_of())
    replay = Replay(Recording.open(tmp_path), loops=2)
    came: list[int] = []

    @subscriber.on(b"")
    def collect(message: Message) -> None:
        came.append(int(message.payload))
        if len(came) == 6:
            replay.controls.seek(START + 4)

    subscriber.replay(replay)
    assert came == [0, 1, 2, 3, 4, 5, 4, 5, 0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("start", [None, START])
@pytest.mark.parametrize("rows", [1, 3])
def test_message_at_the_end_of_all_times_is_played(tmp_path: Path, rows: int, start: int | None) -> None:
    simple_day(tmp_path, [START, START + 10, (1 << 63) - 1], rows)
    subscriber = Subscriber(feed_of())
    came: list[int] = []
    subscriber.on(b"")(lambda message: came.append(message.ts_event - START))
    controls = Controls(1.0, max_silence=1.0, clock=ManualClock(automatic=True))
    subscriber.replay(Replay(Recording.open(tmp_path), start=start, controls=controls))
    assert came == [0, 10, (1 << 63) - 1 - START]


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


@pytest.mark.parametrize("speed", [None, 1e6])
@pytest.mark.parametrize("rows_each", [1, 4, 8])
def test_market_time_starts_at_the_first_message(tmp_path: Path, speed: float | None, rows_each: int) -> None:
    """The time before the first message does not count as played."""
    simple_day(tmp_path, [START + number * 10**9 for number in range(8)], rows_each)
    replay = Replay(Recording.open(tmp_path), speed=speed, start=START - 60 * 10**9)
    played = replay.run(Mock(in_sequence=False, reads_ahead=False, checks_blocks=False))
    assert (played.messages, played.market_seconds) == (8, 7.0)
