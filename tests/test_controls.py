"""The controls of a replay: when each message is due, however it is steered, and that steering wakes the player."""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox.replay.clock import Clock, ManualClock
from blackbox.replay.controls import ANY, Controls, Grant, Kind
from blackbox.replay.rate import Rate
from blackbox.testing import wait_until

START = 1_700_000_000_000_000_000
S = 1_000_000_000

Steering = Callable[[Controls], None]


class NobodyWakesError(Exception):
    """A player waits, and nobody will ever wake it."""


class ScriptedClock(ManualClock):
    """Each wait ends at once: at its time, or at the next of some times at which the controls are steered."""

    def __init__(self, script: Sequence[tuple[int, Steering]]) -> None:
        super().__init__()
        self.controls: Controls | None = None
        self._script = sorted(script, key=lambda entry: entry[0])

    def wait(self, condition: threading.Condition, until_ns: int | None) -> None:
        if self._script and (until_ns is None or self._script[0][0] <= until_ns):
            at_ns, steer = self._script.pop(0)
            self.advance(max(0, at_ns - self.now_ns()))
            assert self.controls is not None
            steer(self.controls)
        elif until_ns is None:
            raise NobodyWakesError
        else:
            self.advance(until_ns - self.now_ns())


class Delivery(NamedTuple):
    """A message's place in the recording, and when it was delivered."""

    place: int
    at_ns: int


def play(
    times: list[int],
    script: Sequence[tuple[int, Steering]] = (),
    *,
    speed: float | None = 1.0,
    max_silence_ns: int | None = None,
) -> list[Delivery]:
    """Play messages of these market times after START; at most 1,000 deliveries."""
    clock = ScriptedClock(script)
    controls = clock.controls = Controls(speed, max_silence_ns, clock)
    recording = [START + time for time in times]
    controls.begin(START, max(recording))
    deliveries: list[Delivery] = []
    place = 0
    try:
        while place < len(recording) and len(deliveries) < 1_000:
            grant = controls.wait(recording[place])
            if grant.kind is Kind.STOP:
                break
            if grant.kind is Kind.SEEK:
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
    """The first message from which on none is before a time: what an index of running maxima finds."""
    return bisect_left(list(accumulate(recording, max)), ts_ns)


def times_of(deliveries: list[Delivery]) -> list[int]:
    return [delivery.at_ns for delivery in deliveries]


def speed_of(value: float | None) -> Steering:
    def steer(controls: Controls) -> None:
        controls.speed = value

    return steer


# When a message is due


@pytest.mark.parametrize(("speed", "expected"), [(1.0, [0, 10, 30]), (10.0, [0, 1, 3]), (0.5, [0, 20, 60])])
def test_messages_are_due_by_the_speed(speed: float, expected: list[int]) -> None:
    assert times_of(play([0, 10, 30], speed=speed)) == expected


def test_without_a_speed_everything_is_due_at_once() -> None:
    controls = Controls()
    controls.begin(START, START + S)
    assert controls.wait(START + S) == Grant(Kind.GO, until_ns=ANY, messages=ANY)


def test_the_schedule_begins_with_the_first_wait() -> None:
    clock = ManualClock(automatic=True)
    controls = Controls(1.0, clock=clock)
    controls.begin(START, START + S)
    clock.advance(50)
    controls.wait(START + 10)
    assert clock.now_ns() == 60


def test_speed_changed_while_waiting_does_not_jump() -> None:
    # 40 of the 100 ns have passed; the 60 that are left take 6.
    assert times_of(play([0, 100, 200], [(40, speed_of(10.0))])) == [0, 46, 56]


def test_speed_taken_off_while_waiting_delivers_at_once() -> None:
    assert times_of(play([0, 100, 200], [(40, speed_of(None))])) == [0, 40, 40]


def test_pause_costs_no_market_time() -> None:
    script = [(40, Controls.pause), (1_000, Controls.resume)]
    assert times_of(play([0, 100, 200], script)) == [0, 1_060, 1_160]


def test_speed_set_while_paused_holds_from_the_resume() -> None:
    script: list[tuple[int, Steering]] = [(40, Controls.pause), (500, speed_of(10.0)), (1_000, Controls.resume)]
    assert times_of(play([0, 100, 200], script)) == [0, 1_006, 1_016]


def test_step_delivers_exactly_so_many_and_pauses() -> None:
    script: list[tuple[int, Steering]] = [(40, lambda controls: controls.step(2))]
    assert play([0, 100, 200, 300], script) == [(0, 0), (1, 40), (2, 40)]


def test_resume_after_steps_goes_on_from_there() -> None:
    script: list[tuple[int, Steering]] = [(40, Controls.step), (50, Controls.step), (60, Controls.resume)]
    assert times_of(play([0, 100, 200, 300], script)) == [0, 40, 50, 160]


def test_steps_add_up_and_what_was_not_at_hand_stays_owed() -> None:
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


def test_step_during_a_delivery_comes_on_top_of_it() -> None:
    controls = Controls()
    controls.begin(START, START + S)
    assert controls.wait(START).messages == ANY
    controls.step()
    controls.played(100, START)
    assert controls.wait(START).messages == 1


def test_seek_moves_the_schedule() -> None:
    script: list[tuple[int, Steering]] = [(40, lambda controls: controls.seek(START + 1_000))]
    assert play([0, 100, 1_005, 1_100], script) == [(0, 0), (2, 45), (3, 140)]


def test_seek_back_delivers_again() -> None:
    script: list[tuple[int, Steering]] = [(150, lambda controls: controls.seek(START + 90))]
    assert play([0, 100, 200], script) == [(0, 0), (1, 100), (1, 160), (2, 260)]


def test_seek_while_paused_stands_still_there() -> None:
    script: list[tuple[int, Steering]] = [
        (40, Controls.pause),
        (50, lambda controls: controls.seek(START + 200)),
        (60, Controls.resume),
    ]
    assert play([0, 100, 200], script) == [(0, 0), (2, 60)]


def test_seek_outside_of_the_replay_means_its_end() -> None:
    controls = Controls()
    controls.seek(START - S)
    assert controls.status().position_ns == START - S
    controls.begin(START, START + S)
    assert controls.wait(START).seek_to_ns == START
    controls.seek(START + 5 * S)
    controls.seek(START + 3 * S)
    assert controls.status().position_ns == START + S
    assert controls.wait(START) == Grant(Kind.SEEK, seek_to_ns=START + S)
    assert controls.wait(START + S).kind is Kind.GO


@pytest.mark.parametrize("speed", [1.0, None])
def test_stop_is_for_good(speed: float | None) -> None:
    controls = Controls(speed, clock=ManualClock())
    controls.begin(START, START + S)
    controls.stop()
    controls.resume()
    assert [controls.wait(START).kind for _ in range(2)] == [Kind.STOP] * 2


def test_long_silences_are_cut() -> None:
    assert times_of(play([0, 500, 510, 5_000, 5_001], max_silence_ns=100)) == [0, 100, 110, 210, 211]


def test_silence_is_cut_once_however_often_it_is_steered() -> None:
    script = [(10, speed_of(2.0)), (20, Controls.pause), (120, Controls.resume), (130, speed_of(1.0))]
    # 10 at 1x, 10 at 2x, 100 of pause, 10 at 2x, and the 50 that are left at 1x.
    assert times_of(play([0, 5_000], script, max_silence_ns=100)) == [0, 180]


def test_late_player_is_not_let_beyond_a_silence_that_is_to_be_cut() -> None:
    clock = ManualClock(automatic=True)
    controls = Controls(1.0, 100, clock)
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


def test_times_that_go_back_are_due_at_once_and_push_nothing() -> None:
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


@pytest.mark.parametrize("steer", [speed_of(1.0), lambda controls: (controls.pause(), controls.resume())])
def test_steering_lets_off_what_the_player_was_behind(steer: Steering) -> None:
    clock = ManualClock(automatic=True)
    controls = Controls(1_000.0, clock=clock)
    controls.begin(START, START + 10 * S)
    controls.wait(START)
    clock.advance(5_000_000)
    steer(controls)
    controls.played(1, START)
    assert controls.wait(START + 100).until_ns == START + 100


class Reference(NamedTuple):
    """How far a message is, in market time: counted down at whatever speed holds, by fractions."""

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
            # What waits until a whole ns is steered at that ns first.
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


def steering_of(word: str, value: int) -> Steering:
    def steer(controls: Controls) -> None:
        if word == "speed":
            controls.speed = (None, 0.5, 1.0, 2.0, 10.0)[value % 5]
        elif word == "seek":
            controls.seek(START + value)
        elif word == "step":
            controls.step(value % 3 + 1)
        else:
            getattr(controls, word)()

    return steer


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
def test_deliveries_are_those_of_a_slow_reference(
    times: list[int], speed: float | None, script: list[tuple[int, str, int]], max_silence_ns: int | None
) -> None:
    expected = Reference(times, max_silence_ns).play(speed, script)
    found = play(
        times,
        [(at, steering_of(word, value)) for at, word, value in script],
        speed=speed,
        max_silence_ns=max_silence_ns,
    )
    assert [delivery.place for delivery in found] == [place for place, _ in expected]
    for delivery, (_, due_ns) in zip(found, expected, strict=True):
        assert abs(delivery.at_ns - due_ns) <= 4 * (len(script) + 1), (found, expected)


# How it does


def test_status_of_a_paced_replay() -> None:
    clock = ManualClock(automatic=True)
    controls = Controls(2.0, clock=clock)
    assert (controls.status().state, controls.status().seconds_left) == ("running", None)
    controls.begin(START, START + 100 * S)
    controls.wait(START + 20 * S)
    controls.played(7, START + 20 * S)
    status = controls.status()
    assert (status.state, status.speed, status.messages) == ("running", 2.0, 7)
    assert (status.start_ns, status.stop_ns) == (START, START + 100 * S)
    assert (status.position_ns, status.seconds_left) == (START + 20 * S, 40.0)
    controls.pause()
    assert controls.status().state == "paused"
    controls.end()
    assert (controls.status().state, controls.status().seconds_left) == ("ended", 0.0)


def test_status_without_a_speed_tells_the_time_left_from_what_it_did() -> None:
    clock = ManualClock()
    controls = Controls(clock=clock)
    controls.begin(START, START + 100 * S)
    assert controls.status().seconds_left is None
    clock.advance(2 * S)
    controls.played(1_000, START + 20 * S)
    assert controls.status().seconds_left == 8.0


def test_position_moves_through_a_silence() -> None:
    positions: list[int] = []
    script: list[tuple[int, Steering]] = [
        (time, lambda controls: positions.append(controls.status().position_ns - START)) for time in (10, 60)
    ]
    play([0, 100], script)
    assert positions == [10, 60]


def test_steering_after_the_end_changes_nothing() -> None:
    controls = Controls()
    controls.begin(START, START + S)
    controls.end()
    controls.seek(START)
    controls.step()
    controls.resume()
    assert controls.status().state == "ended"
    controls.begin(START, START + S)
    assert controls.wait(START) == Grant(Kind.GO)


def test_rate_is_that_of_the_last_second() -> None:
    rate = Rate(0)
    for tenth in range(30):
        rate.add(tenth * S // 10, 100 if tenth < 10 else 1_000)
    assert rate.per_second(29 * S // 10) == pytest.approx(11_000)
    assert rate.per_second(10 * S) == 0.0
    assert Rate(5).per_second(5) == 0.0


# Wrong values


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
    with pytest.raises(ValueError, match="max_silence_ns was 0, expected 1 or more"):
        Controls(max_silence_ns=0)
    with pytest.raises(ValueError, match="messages was 0, expected 1 or more"):
        Controls().step(0)
    with pytest.raises(ValueError, match=f"stop_ns was {START - 1}, expected start_ns, {START}, or later"):
        Controls().begin(START, START - 1)
    with pytest.raises(ValueError, match="ns was -1, expected 0 or more"):
        ManualClock().advance(-1)


@pytest.mark.parametrize("speed", [5e-324, 1e-9, 1e300])
def test_any_speed_can_be_reckoned_with(speed: float) -> None:
    clock = ManualClock(automatic=True)
    controls = Controls(speed, clock=clock)
    controls.begin(START, START + 100_000 * S)
    controls.wait(START)
    clock.advance(S)
    grant = controls.wait(START + 100_000 * S)
    assert START + 100_000 * S <= grant.until_ns <= ANY


# Two threads


class Player:
    """Waits for one message in a thread of its own."""

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
        self._thread.join(10.0)
        assert not self._thread.is_alive(), "the player was not woken"


@pytest.mark.parametrize("clock", [Clock(), ManualClock()])
@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize(
    ("steer", "expected"),
    [
        (Controls.stop, Grant(Kind.STOP)),
        (Controls.step, Grant(Kind.GO, messages=1)),
        (lambda controls: controls.seek(START), Grant(Kind.SEEK, seek_to_ns=START)),
        (lambda controls: (speed_of(None)(controls), controls.resume()), Grant(Kind.GO)),
    ],
)
def test_steering_wakes_a_player_that_waits(steer: Steering, expected: Grant, paused: bool, clock: Clock) -> None:
    controls = Controls(1.0, clock=clock)
    controls.begin(START, START + 10_000 * S)
    if paused:
        controls.pause()
    with Player(controls, START + 3_600 * S) as player:
        steer(controls)
    assert player.grant == expected


def test_advancing_the_clock_wakes_a_player_that_waits() -> None:
    clock = ManualClock()
    controls = Controls(1.0, clock=clock)
    controls.begin(START, START + S)
    with Player(controls, START + S) as player:
        clock.advance(S - 1)
        assert player.grant is None
        clock.advance(1)
    assert player.grant == Grant(Kind.GO, until_ns=START + S)


def test_the_machine_s_clock_waits_until_the_time_and_no_less() -> None:
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
        while controls.wait(time_ns).kind is Kind.GO:
            controls.played(1, time_ns)
            time_ns += 1
            began.set()
        ended.set()

    threading.Thread(target=play_on, daemon=True).start()
    assert began.wait(10.0)
    controls.stop()
    assert ended.wait(10.0)
