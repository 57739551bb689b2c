"""Replay controls: status, wrong values, and commands that wake a waiting player."""

from __future__ import annotations

import math
import threading

import pytest

from blackbox.errors import ControlError
from blackbox.replay.clock import Clock, ManualClock
from blackbox.replay.controls import Action, Controls, Grant
from blackbox.replay.schedule import NO_LIMIT
from blackbox.replay.status import MessageRate
from blackbox.testing import wait_until
from tests.replay.scripted import (
    START,
    Command,
    S,
    play,
    speed_of,
)


def test_status_of_a_paced_replay() -> None:
    clock = ManualClock(automatic=True)
    controls = Controls(2.0, clock=clock)
    assert (controls.status().state, controls.status().seconds_left) == ("ready", None)
    controls.begin(START, START + 100 * S)
    controls.wait(START + 20 * S)
    controls.played(7, START + 20 * S)
    status = controls.status()
    assert (status.state, status.speed, status.messages) == ("playing", 2.0, 7)
    assert (status.start_ns, status.stop_ns) == (START, START + 100 * S)
    assert (status.position_ns, status.seconds_left) == (START + 20 * S, 40.0)
    controls.pause()
    assert controls.status().state == "paused"
    controls.end()
    assert (controls.status().state, controls.status().seconds_left) == ("ended", 0.0)


def test_status_without_a_speed_estimates_the_time_left() -> None:
    clock = ManualClock()
    controls = Controls(clock=clock)
    controls.begin(START, START + 100 * S)
    assert controls.status().seconds_left is None
    clock.advance(2 * S)
    controls.played(1_000, START + 20 * S)
    assert controls.status().seconds_left == 8.0


def test_position_moves_through_a_silence() -> None:
    positions: list[int] = []
    script: list[tuple[int, Command]] = [
        (time, lambda controls: positions.append(controls.status().position_ns - START)) for time in (10, 60)
    ]
    play([0, 100], script)
    assert positions == [10, 60]


def test_commands_after_the_end_change_nothing() -> None:
    controls = Controls()
    controls.begin(START, START + S)
    controls.end()
    controls.seek(START)
    controls.step()
    controls.resume()
    assert controls.status().state == "ended"
    controls.begin(START, START + S)
    assert controls.wait(START) == Grant(Action.PLAY)


def test_a_second_replay_is_refused_and_the_first_continues() -> None:
    controls = Controls()
    with pytest.raises(RuntimeError, match="controls was to be ended when it was new, expected begun"):
        controls.end()
    controls.begin(START, START + S)
    with pytest.raises(ControlError, match="used by a replay that has not ended"):
        controls.begin(0, S)
    assert (controls.status().state, controls.status().start_ns) == ("playing", START)
    controls.end()


def test_rate_is_that_of_the_last_second() -> None:
    rate = MessageRate(0)
    for tenth in range(30):
        rate.add(tenth * S // 10, 100 if tenth < 10 else 1_000)
    assert rate.per_second(29 * S // 10) == pytest.approx(11_000)
    assert rate.per_second(10 * S) == 0.0
    assert MessageRate(5).per_second(5) == 0.0


@pytest.mark.parametrize("speed", [0, -1.0, math.nan, math.inf])
def test_wrong_speed(speed: float) -> None:
    text = f"speed was {speed}, expected a finite number above 0, or None"
    with pytest.raises(ValueError, match=text):
        Controls(speed)
    controls = Controls(3.0)
    with pytest.raises(ValueError, match=text):
        controls.speed = speed
    assert controls.speed == 3.0


def test_other_wrong_values() -> None:
    with pytest.raises(ValueError, match="max_silence was 0, expected 1e-09 to"):
        Controls(max_silence=0)
    with pytest.raises(ValueError, match="messages was 0, expected 1 or more"):
        Controls().step(0)
    with pytest.raises(ValueError, match=f"stop_ns was {START - 1}, expected start_ns, {START}, or later"):
        Controls().begin(START, START - 1)
    with pytest.raises(ValueError, match="ns was -1, expected 0 or more"):
        ManualClock().advance(-1)


@pytest.mark.parametrize("speed", [5e-324, 1e-9, 1e300])
def test_extreme_speeds_do_not_overflow(speed: float) -> None:
    clock = ManualClock(automatic=True)
    controls = Controls(speed, clock=clock)
    controls.begin(START, START + 100_000 * S)
    controls.wait(START)
    clock.advance(S)
    grant = controls.wait(START + 100_000 * S)
    assert START + 100_000 * S <= grant.until_ns <= NO_LIMIT


class Player:
    """Waits for one message in its own thread."""

    def __init__(self, controls: Controls, next_ns: int) -> None:
        self.grant: Grant | None = None
        self._controls = controls
        self._next_ns = next_ns
        self._thread = threading.Thread(target=self._wait, daemon=True)

    def _wait(self) -> None:
        self.grant = self._controls.wait(self._next_ns)

    def __enter__(self) -> Player:
        self._thread.start()
        wait_until(lambda: self._controls._next_ns == self._next_ns, what="the player's waiting")
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive(), "the player was not woken"


@pytest.mark.parametrize("clock", [Clock(), ManualClock()])
@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (Controls.stop, Grant(Action.STOP)),
        (Controls.step, Grant(Action.PLAY, messages=1)),
        (lambda controls: controls.seek(START), Grant(Action.SEEK, seek_to_ns=START)),
        (lambda controls: (speed_of(None)(controls), controls.resume()), Grant(Action.PLAY)),
    ],
)
def test_a_command_wakes_a_waiting_player(command: Command, expected: Grant, paused: bool, clock: Clock) -> None:
    controls = Controls(1.0, clock=clock)
    controls.begin(START, START + 10_000 * S)
    if paused:
        controls.pause()
    with Player(controls, START + 3_600 * S) as player:
        command(controls)
    assert player.grant == expected


def test_advancing_the_clock_wakes_a_waiting_player() -> None:
    clock = ManualClock()
    controls = Controls(1.0, clock=clock)
    controls.begin(START, START + S)
    with Player(controls, START + S) as player:
        clock.advance(S - 1)
        assert player.grant is None
        clock.advance(1)
    assert player.grant == Grant(Action.PLAY, until_ns=START + S)


def test_the_machine_s_clock_never_wakes_early() -> None:
    controls = Controls(1.0)
    controls.begin(START, START + S)
    clock = Clock()
    controls.wait(START)
    began_ns = clock.now_ns()
    for part in range(1, 11):
        controls.wait(START + part * S // 1_000)
        controls.played(1, START + part * S // 1_000)
    assert clock.now_ns() - began_ns >= 9 * S // 1_000
    assert controls.lateness().count == 11


def test_a_player_that_never_sleeps_can_be_stopped() -> None:
    controls = Controls(1e6)
    controls.begin(START, START + 10**6 * S)
    began, ended = threading.Event(), threading.Event()

    def play_on() -> None:
        time_ns = START
        while controls.wait(time_ns).action is Action.PLAY:
            controls.played(1, time_ns)
            time_ns += 1
            began.set()
        ended.set()

    threading.Thread(target=play_on, daemon=True).start()
    assert began.wait(60)
    controls.stop()
    assert ended.wait(10.0)
