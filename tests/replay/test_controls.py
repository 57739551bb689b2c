"""Replay controls: status, refused values, and commands that wake a waiting player."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

from blackbox.errors import ControlError
from blackbox.replay.clock import Clock, ManualClock
from blackbox.replay.controls import Action, Controls, Grant
from blackbox.replay.progress import MessageRate
from blackbox.replay.schedule import NO_LIMIT
from blackbox.testing import wait_until

START = 1_700_000_000_000_000_000
S = 1_000_000_000


def begun(speed: float | None = None, clock: Clock | None = None, seconds: int = 1) -> Controls:
    controls = Controls(speed, clock=clock)
    controls.begin(START, START + seconds * S)
    return controls


def test_status_of_a_paced_replay() -> None:
    controls = Controls(2.0, clock=ManualClock(automatic=True))
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
    controls = begun(clock=clock, seconds=100)
    assert controls.status().seconds_left is None
    clock.advance(2 * S)
    controls.played(1_000, START + 20 * S)
    assert controls.status().seconds_left == 8.0


def test_commands_after_the_end_change_nothing() -> None:
    controls = begun()
    controls.end()
    controls.seek(START)
    controls.step()
    controls.resume()
    assert controls.status().state == "ended"
    controls.begin(START, START + S)
    assert controls.wait(START) == Grant(Action.PLAY)


def test_a_second_replay_is_refused_and_the_first_continues() -> None:
    with pytest.raises(RuntimeError, match="controls was to be ended when it was new, expected begun"):
        Controls().end()
    controls = begun()
    with pytest.raises(ControlError, match="used by a replay that has not ended"):
        controls.begin(0, S)
    assert (controls.status().state, controls.status().start_ns) == ("playing", START)


def test_rate_is_that_of_the_last_second() -> None:
    rate = MessageRate(0)
    for tenth in range(30):
        rate.add(tenth * S // 10, 100 if tenth < 10 else 1_000)
    assert rate.per_second(29 * S // 10) == pytest.approx(11_000)
    assert rate.per_second(10 * S) == 0.0
    assert MessageRate(5).per_second(5) == 0.0


def set_speed(value: Any) -> Callable[[Controls], None]:
    return lambda controls: setattr(controls, "speed", value)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (set_speed(0), ValueError, "speed was 0, expected a finite number above 0, or None"),
        (set_speed(-1.0), ValueError, "speed was -1.0, expected a finite"),
        (set_speed(math.nan), ValueError, "speed was nan, expected a finite"),
        (set_speed(math.inf), ValueError, "speed was inf, expected a finite"),
        (lambda _: Controls("fast"), ValueError, "speed was 'fast', expected a finite"),  # type: ignore[arg-type]
        (lambda _: Controls(max_silence=0), ValueError, "max_silence was 0, expected 1e-09 to"),
        (lambda controls: controls.step(0), ValueError, "messages was 0, expected 1 or more"),
        (lambda controls: controls.seek("09:31"), TypeError, "ts_ns was '09:31', expected an integer, ns since 1970"),
        (lambda controls: controls.begin(5, 4), ValueError, "stop_ns was 4, expected start_ns, 5, or later"),
        (lambda _: ManualClock().advance(-1), ValueError, "ns was -1, expected 0 or more"),
    ],
)
def test_wrong_values_are_refused(call: Callable[[Any], object], error: type[Exception], text: str) -> None:
    controls = Controls(3.0)
    with pytest.raises(error, match=text):
        call(controls)
    assert (controls.speed, controls.status().state) == (3.0, "ready")


@pytest.mark.parametrize("speed", [5e-324, 1e300])
def test_extreme_speeds_do_not_overflow(speed: float) -> None:
    clock = ManualClock(automatic=True)
    controls = begun(speed, clock, 100_000)
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
        wait_until(lambda: self._controls._progress.next_ns == self._next_ns, what="the player's waiting")
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(200)
        assert not self._thread.is_alive(), "the player was not woken"


@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (Controls.stop, Grant(Action.STOP)),
        (Controls.step, Grant(Action.PLAY, messages=1)),
        (lambda controls: controls.seek(START), Grant(Action.SEEK, seek_to_ns=START)),
        (lambda controls: (set_speed(None)(controls), controls.resume()), Grant(Action.PLAY)),
    ],
)
def test_a_command_wakes_a_waiting_player(command: Callable[[Controls], object], expected: Grant, paused: bool) -> None:
    for clock in (Clock(), ManualClock()):
        controls = begun(1.0, clock, 10_000)
        if paused:
            controls.pause()
        with Player(controls, START + 3_600 * S) as player:
            command(controls)
        assert player.grant == expected


def test_advancing_the_clock_wakes_a_waiting_player() -> None:
    clock = ManualClock()
    controls = begun(1.0, clock)
    with Player(controls, START + S) as player:
        clock.advance(S - 1)
        assert player.grant is None
        clock.advance(1)
    assert player.grant == Grant(Action.PLAY, until_ns=START + S)


def test_the_machine_s_clock_never_wakes_early() -> None:
    controls, clock = begun(1.0), Clock()
    controls.wait(START)
    began_ns = clock.now_ns()
    for part in range(1, 11):
        controls.wait(START + part * S // 1_000)
        controls.played(1, START + part * S // 1_000)
    assert clock.now_ns() - began_ns >= 9 * S // 1_000


def test_a_player_that_never_sleeps_can_be_stopped() -> None:
    controls = begun(1e6, seconds=10**6)
    began, ended = threading.Event(), threading.Event()

    def play_on() -> None:
        time_ns = START
        while controls.wait(time_ns).action is Action.PLAY:
            controls.played(1, time_ns)
            time_ns += 1
            began.set()
        ended.set()

    threading.Thread(target=play_on, daemon=True).start()
    assert began.wait(200)
    controls.stop()
    assert ended.wait(200)
