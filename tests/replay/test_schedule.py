"""The time at which each message of a replay is due, under any sequence of commands."""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from blackbox.replay.clock import ManualClock
from blackbox.replay.controls import Action, Controls, Grant
from blackbox.replay.schedule import NO_LIMIT
from tests.examples import examples

START = 1_700_000_000_000_000_000
S = 1_000_000_000
SPEEDS = (None, 0.5, 1.0, 2.0, 10.0)
UNIT = 100_000_000
"""Unit of random times in ns. After several speeds fractions of it are still whole ns, so nothing is rounded."""
Command = Callable[[Controls], None]


class NobodyWakesError(Exception):
    """A player is waiting and no command is left to wake it."""


class ScriptedClock(ManualClock):
    """Advances at once to the end of each wait, or to the time of the next scripted command if that is earlier."""

    def __init__(self, script: Sequence[tuple[int, Command]]) -> None:
        super().__init__()
        self.controls: Controls | None = None
        self._script = sorted(script, key=lambda entry: entry[0])

    def wait(self, condition: threading.Condition, until_ns: int | None) -> None:
        if self._script and (until_ns is None or self._script[0][0] <= until_ns):
            at_ns, command = self._script.pop(0)
            self.advance(max(0, at_ns - self.now_ns()))
            assert self.controls is not None
            command(self.controls)
        elif until_ns is None:
            raise NobodyWakesError
        else:
            self.advance(until_ns - self.now_ns())


class Delivery(NamedTuple):
    """A message's position in the recording, and the time of its delivery."""

    place: int
    at_ns: int


def play(
    times: list[int],
    script: Sequence[tuple[int, Command]] = (),
    *,
    speed: float | None = 1.0,
    max_silence_ns: int | None = None,
) -> list[Delivery]:
    """Play messages with these market times, in ns after START; stop after 1,000 deliveries."""
    clock = ScriptedClock(script)
    controls = clock.controls = Controls(speed, None if max_silence_ns is None else max_silence_ns / 1e9, clock)
    recording = [START + time for time in times]
    controls.begin(START, max(recording))
    deliveries: list[Delivery] = []
    place = 0
    try:
        while place < len(recording) and len(deliveries) < 1_000:
            grant = controls.wait(recording[place])
            if grant.action is Action.STOP:
                break
            if grant.action is Action.SEEK:
                place = place_of(recording, grant.seek_to_ns)
                continue
            first = place
            while place < len(recording) and recording[place] <= grant.until_ns and place - first < grant.messages:
                deliveries.append(Delivery(place, clock.now_ns()))
                place += 1
            assert place > first
            controls.played(place - first, max(recording[first:place]))
    except NobodyWakesError:
        pass
    controls.end()
    return deliveries


def place_of(recording: list[int], ts_ns: int) -> int:
    """Return the first position where the running maximum of the times reaches `ts_ns`."""
    return bisect_left(list(accumulate(recording, max)), ts_ns)


def command_of(word: str, value: int) -> Command:
    def command(controls: Controls) -> None:
        if word == "speed":
            controls.speed = SPEEDS[value % 5]
        elif word == "seek":
            controls.seek(START + value)
        elif word == "step":
            controls.step(value % 3 + 1)
        else:
            getattr(controls, word)()

    return command


def begun(speed: float | None = None, max_silence: float | None = None) -> tuple[Controls, ManualClock]:
    """Return controls of a replay of 10 s, and their clock, which does not wait."""
    clock = ManualClock(automatic=True)
    controls = Controls(speed, max_silence, clock)
    controls.begin(START, START + 10 * S)
    return controls, clock


def test_the_schedule_begins_with_the_first_wait() -> None:
    controls, clock = begun(1.0)
    clock.advance(50)
    controls.wait(START + 10)
    assert clock.now_ns() == 60


def test_steps_add_up_and_unavailable_messages_stay_owed() -> None:
    controls, _ = begun()
    assert controls.wait(START + S) == Grant(Action.PLAY, until_ns=NO_LIMIT, messages=NO_LIMIT)
    controls.step(2)
    controls.step(3)
    controls.played(100, START)  # a delivery that began before the steps
    assert controls.wait(START).messages == 5
    controls.played(1, START)
    assert controls.wait(START).messages == 4
    controls.pause()
    controls.played(1, START)
    controls.step()
    assert controls.wait(START).messages == 1


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
    controls, _ = begun(speed)
    controls.stop()
    controls.resume()
    assert [controls.wait(START).action for _ in range(2)] == [Action.STOP] * 2


def test_late_player_does_not_pass_a_silence_before_it_is_cut() -> None:
    controls, clock = begun(1.0, 100 / 1e9)
    controls.wait(START)
    clock.advance(1_000)
    assert controls.wait(START + 10).until_ns == START + 110
    controls.played(1, START + 10)
    controls.wait(START + 1_200)
    assert (clock.now_ns(), controls._schedule.due_ns()) == (1_000, 110)
    controls.played(1, START + 1_200)
    controls.wait(START + 2_110 + 10)
    assert (clock.now_ns(), controls._schedule.due_ns()) == (1_000, 210)


def test_times_that_go_back_are_not_late() -> None:
    controls, clock = begun(1.0)
    for time in (START + S, START):
        controls.wait(time)
        assert controls._schedule.due_ns() == clock.now_ns()
        controls.played(1, time)


def test_player_that_fell_behind_catches_up() -> None:
    controls, clock = begun(1.0)
    controls.wait(START)
    clock.advance(500)
    assert controls.wait(START + 100).until_ns == START + 500
    assert controls._schedule.due_ns() == 100
    controls.played(2, START + 490)
    controls.wait(START + 600)
    assert clock.now_ns() == 600


@pytest.mark.parametrize("command", [command_of("speed", 2), lambda controls: (controls.pause(), controls.resume())])
def test_a_command_forgives_the_delay_so_far(command: Command) -> None:
    controls, clock = begun(1_000.0)
    controls.wait(START)
    clock.advance(5_000_000)
    command(controls)
    controls.played(1, START)
    assert controls.wait(START + 100).until_ns == START + 100


def test_position_moves_through_a_silence() -> None:
    positions: list[int] = []
    script: list[tuple[int, Command]] = [
        (time, lambda controls: positions.append(controls.status().position_ns - START)) for time in (10, 60)
    ]
    play([0, 100], script)
    assert positions == [10, 60]


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
                    speed = SPEEDS[value % 5]
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


scripts = st.lists(
    st.tuples(
        st.integers(0, 20_000), st.sampled_from(["speed", "pause", "resume", "step", "seek"]), st.integers(0, 10_000)
    ),
    max_size=8,
)


@settings(max_examples=examples(400))
@given(
    times=st.lists(st.integers(0, 10_000), min_size=1, max_size=12),
    speed=st.sampled_from(SPEEDS),
    script=scripts,
    max_silence_ns=st.none() | st.integers(1, 5_000),
)
@example([0, 1_000, 2_000], 1.0, [(400, "speed", 4)], None)
@example([0, 1_000, 2_000], 1.0, [(400, "pause", 0), (5_000, "speed", 4), (9_000, "resume", 0)], None)
@example([0, 1_000, 2_000, 3_000], 1.0, [(400, "step", 0), (500, "step", 1), (600, "resume", 0)], None)
@example([0, 1_000, 2_000], 1.0, [(400, "pause", 0), (500, "seek", 2_000), (600, "resume", 0)], None)
@example([0, 1_000, 2_000], 1.0, [(1_500, "seek", 900)], None)
@example([0, 9_000], 1.0, [(100, "speed", 3), (200, "pause", 0), (1_200, "resume", 0), (1_300, "speed", 2)], 1_000)
@example([0, 1_000, 200, 500, 1_300], 1.0, [], None)
@example([0, 1_001, 1_002], 10.0, [], None)
def test_deliveries_match_a_slow_reference(
    times: list[int], speed: float | None, script: list[tuple[int, str, int]], max_silence_ns: int | None
) -> None:
    times = [time * UNIT for time in times]
    script = [(at * UNIT, word, value * UNIT if word == "seek" else value) for at, word, value in script]
    max_silence_ns = None if max_silence_ns is None else max_silence_ns * UNIT
    expected = Reference(times, max_silence_ns).play(speed, script)
    commands = [(at, command_of(word, value)) for at, word, value in script]
    found = play(times, commands, speed=speed, max_silence_ns=max_silence_ns)
    assert [delivery.place for delivery in found] == [place for place, _ in expected]
    for delivery, (_, due_ns) in zip(found, expected, strict=True):
        assert abs(delivery.at_ns - due_ns) <= 4 * (len(script) + 1), (found, expected)
        assert script or delivery.at_ns >= due_ns, "it was early"
