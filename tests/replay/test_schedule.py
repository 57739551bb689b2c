"""The time at which each message of a replay is due, under any sequence of commands."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox.replay.clock import ManualClock
from blackbox.replay.controls import Action, Controls, Grant
from blackbox.replay.schedule import NO_LIMIT
from tests.replay.scripted import (
    START,
    Command,
    S,
    place_of,
    play,
    speed_of,
    times_of,
)


@pytest.mark.parametrize(("speed", "expected"), [(1.0, [0, 10, 30]), (10.0, [0, 1, 3]), (0.5, [0, 20, 60])])
def test_due_times_scale_with_the_speed(speed: float, expected: list[int]) -> None:
    assert times_of(play([0, 10, 30], speed=speed)) == expected


def test_without_a_speed_everything_is_due_at_once() -> None:
    controls = Controls()
    controls.begin(START, START + S)
    assert controls.wait(START + S) == Grant(Action.PLAY, until_ns=NO_LIMIT, messages=NO_LIMIT)


def test_the_schedule_begins_with_the_first_wait() -> None:
    clock = ManualClock(automatic=True)
    controls = Controls(1.0, clock=clock)
    controls.begin(START, START + S)
    clock.advance(50)
    controls.wait(START + 10)
    assert clock.now_ns() == 60


def test_speed_changed_while_waiting_does_not_jump() -> None:
    # 40 of the 100 ns have passed; the remaining 60 take 6.
    assert times_of(play([0, 100, 200], [(40, speed_of(10.0))])) == [0, 46, 56]


def test_speed_removed_while_waiting_delivers_at_once() -> None:
    assert times_of(play([0, 100, 200], [(40, speed_of(None))])) == [0, 40, 40]


def test_pause_costs_no_market_time() -> None:
    script = [(40, Controls.pause), (1_000, Controls.resume)]
    assert times_of(play([0, 100, 200], script)) == [0, 1_060, 1_160]


def test_speed_set_while_paused_holds_from_the_resume() -> None:
    script: list[tuple[int, Command]] = [(40, Controls.pause), (500, speed_of(10.0)), (1_000, Controls.resume)]
    assert times_of(play([0, 100, 200], script)) == [0, 1_006, 1_016]


def test_step_delivers_exactly_its_messages_and_pauses() -> None:
    script: list[tuple[int, Command]] = [(40, lambda controls: controls.step(2))]
    assert play([0, 100, 200, 300], script) == [(0, 0), (1, 40), (2, 40)]


def test_resume_after_steps_continues_from_there() -> None:
    script: list[tuple[int, Command]] = [(40, Controls.step), (50, Controls.step), (60, Controls.resume)]
    assert times_of(play([0, 100, 200, 300], script)) == [0, 40, 50, 160]


def test_steps_add_up_and_unavailable_messages_stay_owed() -> None:
    controls = Controls(1.0, clock=ManualClock())
    controls.begin(START, START + S)
    controls.step(2)
    controls.step(3)
    assert controls.wait(START).messages == 5
    controls.played(1, START)
    assert controls.wait(START).messages == 4
    controls.pause()
    controls.played(1, START)
    controls.step()
    assert controls.wait(START).messages == 1


def test_step_during_a_delivery_adds_to_it() -> None:
    controls = Controls()
    controls.begin(START, START + S)
    assert controls.wait(START).messages == NO_LIMIT
    controls.step()
    controls.played(100, START)
    assert controls.wait(START).messages == 1


def test_seek_moves_the_schedule() -> None:
    script: list[tuple[int, Command]] = [(40, lambda controls: controls.seek(START + 1_000))]
    assert play([0, 100, 1_005, 1_100], script) == [(0, 0), (2, 45), (3, 140)]


def test_seek_back_delivers_again() -> None:
    script: list[tuple[int, Command]] = [(150, lambda controls: controls.seek(START + 90))]
    assert play([0, 100, 200], script) == [(0, 0), (1, 100), (1, 160), (2, 260)]


def test_seek_while_paused_stays_paused() -> None:
    script: list[tuple[int, Command]] = [
        (40, Controls.pause),
        (50, lambda controls: controls.seek(START + 200)),
        (60, Controls.resume),
    ]
    assert play([0, 100, 200], script) == [(0, 0), (2, 60)]


def test_seek_to_an_invalid_time_is_refused() -> None:
    with pytest.raises(TypeError, match="ts_ns was '09:31', expected an integer, ns since 1970"):
        Controls().seek("09:31")  # type: ignore[arg-type]


def test_seek_outside_of_the_replay_is_clamped() -> None:
    controls = Controls()
    controls.seek(START - S)
    assert controls.status().position_ns == START - S
    controls.begin(START, START + S)
    assert controls.wait(START).seek_to_ns == START
    controls.seek(START + 5 * S)
    controls.seek(START + 3 * S)
    assert controls.status().position_ns == START + S
    assert controls.wait(START) == Grant(Action.SEEK, seek_to_ns=START + S)
    assert controls.wait(START + S).action is Action.PLAY


@pytest.mark.parametrize("speed", [1.0, None])
def test_stop_is_for_good(speed: float | None) -> None:
    controls = Controls(speed, clock=ManualClock())
    controls.begin(START, START + S)
    controls.stop()
    controls.resume()
    assert [controls.wait(START).action for _ in range(2)] == [Action.STOP] * 2


def test_long_silences_are_cut() -> None:
    assert times_of(play([0, 500, 510, 5_000, 5_001], max_silence_ns=100)) == [0, 100, 110, 210, 211]


def test_silence_is_cut_once_under_any_commands() -> None:
    script = [(10, speed_of(2.0)), (20, Controls.pause), (120, Controls.resume), (130, speed_of(1.0))]
    # 10 at 1x, 10 at 2x, 100 of pause, 10 at 2x, and the remaining 50 at 1x.
    assert times_of(play([0, 5_000], script, max_silence_ns=100)) == [0, 180]


def test_late_player_does_not_pass_a_silence_before_it_is_cut() -> None:
    clock = ManualClock(automatic=True)
    controls = Controls(1.0, 100 / 1e9, clock)
    controls.begin(START, START + S)
    controls.wait(START)
    clock.advance(1_000)
    assert controls.wait(START + 10).until_ns == START + 110
    controls.played(1, START + 10)
    controls.wait(START + 1_200)
    assert clock.now_ns() == 1_000  # due at 110
    controls.played(1, START + 1_200)
    controls.wait(START + 2_110 + 10)
    assert clock.now_ns() == 1_000  # due at 210
    assert controls.lateness().max_ns >= 890


def test_times_that_go_back_are_due_at_once_and_delay_no_others() -> None:
    assert times_of(play([0, 100, 20, 50, 130])) == [0, 100, 100, 100, 130]


def test_times_that_go_back_are_not_late() -> None:
    clock = ManualClock(automatic=True)
    controls = Controls(1.0, clock=clock)
    controls.begin(START, START + S)
    for time in (START + S, START):
        controls.wait(time)
        controls.played(1, time)
    assert controls.lateness().max_ns == 0


def test_player_that_fell_behind_catches_up() -> None:
    clock = ManualClock(automatic=True)
    controls = Controls(1.0, clock=clock)
    controls.begin(START, START + S)
    controls.wait(START)
    clock.advance(500)
    grant = controls.wait(START + 100)
    assert grant.until_ns == START + 500
    controls.played(2, START + 490)
    controls.wait(START + 600)
    assert clock.now_ns() == 600
    late = controls.lateness()
    assert (late.count, late.p50_ns) == (3, 0)
    assert 400 <= late.max_ns <= 413


@pytest.mark.parametrize("command", [speed_of(1.0), lambda controls: (controls.pause(), controls.resume())])
def test_a_command_forgives_the_delay_so_far(command: Command) -> None:
    clock = ManualClock(automatic=True)
    controls = Controls(1_000.0, clock=clock)
    controls.begin(START, START + 10 * S)
    controls.wait(START)
    clock.advance(5_000_000)
    command(controls)
    controls.played(1, START)
    assert controls.wait(START + 100).until_ns == START + 100


class Reference(NamedTuple):
    """A slow schedule: counts down the market time to the next message at the current speed, in fractions."""

    times: list[int]
    max_silence_ns: int | None

    def play(self, speed: float | None, script: list[tuple[int, str, int]]) -> list[tuple[int, Fraction]]:
        now, high, place, paused = Fraction(0), 0, 0, False
        needed: Fraction | float
        script = sorted(script, key=lambda entry: entry[0])
        deliveries: list[tuple[int, Fraction]] = []
        left = self._left(0, high)
        while place < len(self.times) and len(deliveries) < 1_000:
            needed = math.inf if paused else left / Fraction(speed) if speed and left else Fraction(0)
            due = now + needed
            # A command in the same ns as a due message is applied first.
            if needed > 0 and script and script[0][0] <= (due if due == math.inf else math.ceil(due)):
                at_ns, word, value = script.pop(0)
                at = max(Fraction(at_ns), now)
                if not paused and speed:
                    left = max(Fraction(0), left - (at - now) * Fraction(speed))
                now = at
                if word == "speed":
                    speed = (None, 0.5, 1.0, 2.0, 10.0)[value % 5]
                elif word in ("pause", "resume"):
                    paused = word == "pause"
                elif word == "seek":
                    high = min(value, max(self.times))
                    place = place_of(self.times, high)
                    left = self._left(place, high)
                elif word == "step":
                    paused = True
                    for _ in range(value % 3 + 1):
                        if place < len(self.times):
                            deliveries.append((place, now))
                            high, place = max(high, self.times[place]), place + 1
                            left = self._left(place, high)
            elif due == math.inf:
                break
            else:
                now = Fraction(due)
                deliveries.append((place, now))
                high, place = max(high, self.times[place]), place + 1
                left = self._left(place, high)
        return deliveries

    def _left(self, place: int, high: int) -> Fraction:
        if place >= len(self.times):
            return Fraction(0)
        gap = max(0, self.times[place] - high)
        return Fraction(gap if self.max_silence_ns is None else min(gap, self.max_silence_ns))


def command_of(word: str, value: int) -> Command:
    def command(controls: Controls) -> None:
        if word == "speed":
            controls.speed = (None, 0.5, 1.0, 2.0, 10.0)[value % 5]
        elif word == "seek":
            controls.seek(START + value)
        elif word == "step":
            controls.step(value % 3 + 1)
        else:
            getattr(controls, word)()

    return command


scripts = st.lists(
    st.tuples(
        st.integers(0, 20_000), st.sampled_from(["speed", "pause", "resume", "step", "seek"]), st.integers(0, 10_000)
    ),
    max_size=8,
)


@given(
    times=st.lists(st.integers(0, 10_000), min_size=1, max_size=12),
    speed=st.sampled_from([None, 0.5, 1.0, 2.0, 10.0]),
    script=scripts,
    max_silence_ns=st.none() | st.integers(1, 5_000),
)
def test_deliveries_match_a_slow_reference(
    times: list[int], speed: float | None, script: list[tuple[int, str, int]], max_silence_ns: int | None
) -> None:
    expected = Reference(times, max_silence_ns).play(speed, script)
    found = play(
        times,
        [(at, command_of(word, value)) for at, word, value in script],
        speed=speed,
        max_silence_ns=max_silence_ns,
    )
    assert [delivery.place for delivery in found] == [place for place, _ in expected]
    for delivery, (_, due_ns) in zip(found, expected, strict=True):
        assert abs(delivery.at_ns - due_ns) <= 4 * (len(script) + 1), (found, expected)
