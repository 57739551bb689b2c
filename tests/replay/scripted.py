"""Helpers for tests of controls: a player, and a clock that sends commands at set times."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NamedTuple

from blackbox.replay.clock import ManualClock
from blackbox.replay.controls import Action, Controls

START = 1_700_000_000_000_000_000
S = 1_000_000_000
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


def times_of(deliveries: list[Delivery]) -> list[int]:
    return [delivery.at_ns for delivery in deliveries]


def speed_of(value: float | None) -> Command:
    def command(controls: Controls) -> None:
        controls.speed = value

    return command
