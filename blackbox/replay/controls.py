"""Control a replay: any thread gives commands, and the playing thread waits until the next message is due.

READY  --begin-->  PLAYING  PAUSED  STEPPING  STOPPING  --end-->  ENDED  --begin--> ...
                   resume   pause   step      stop
"""

from __future__ import annotations

import logging
import math
import threading
from datetime import timedelta
from enum import Enum
from operator import index
from typing import Final

import msgspec

from blackbox.arguments import duration_ns
from blackbox.errors import ControlError
from blackbox.life import Life
from blackbox.replay.clock import Clock
from blackbox.replay.progress import Progress
from blackbox.replay.schedule import NO_LIMIT, Schedule
from blackbox.replay.status import ReplayState, ReplayStatus

log = logging.getLogger("blackbox")


class Action(Enum):
    """Next step of the playing thread."""

    PLAY = "play"
    SEEK = "seek"
    STOP = "stop"


class Grant(msgspec.Struct, frozen=True, gc=False):
    """Permission returned by `Controls.wait`."""

    action: Action
    until_ns: int = NO_LIMIT
    """PLAY: deliver the next messages, in order, up to and including this time."""
    messages: int = NO_LIMIT
    """PLAY: maximum number of messages."""
    seek_to_ns: int = 0
    """SEEK: continue with the first message at or after this time."""


class ControlsLife(Life):
    """Life cycle of a replay. While it is BEGUN, the last command decides what it does."""

    NEW = "new", "begun"
    """BEGUN by `begin`."""
    BEGUN = "begun", "ended"
    """ENDED by `end`."""
    ENDED = "ended", "begun"
    """BEGUN for the next replay."""


_ALL: Final = Grant(Action.PLAY)
_STOP: Final = Grant(Action.STOP)


class Controls:
    """Controls one replay at a time, from `begin` to `end`. See `ReplayState` for its states.

    Only the playing thread calls `begin`, `rewind`, `wait`, `played` and `end`. Any thread may call the rest at any
    time. Commands before `begin` apply from the start, so a replay can begin paused, or at a time. Steps and seeks
    after the end are ignored; `stop` is final.

    A late player catches up: the schedule is fixed. A command resets the delay.
    """

    def __init__(
        self, speed: float | None = None, max_silence: float | timedelta | None = None, clock: Clock | None = None
    ) -> None:
        """Settings.

        Args:
            speed: seconds of market time per second; None: unlimited.
            max_silence: longest market time between two messages, in seconds or a `timedelta`. Longer silences are
                shortened to it.
            clock: clock that paces the replay. Default: the machine's clock.

        Raises:
            ValueError: `speed` is not a finite number above 0, or `max_silence` is less than 1 ns.
        """
        _check_speed(speed)
        max_silence_ns = NO_LIMIT if max_silence is None else duration_ns("max_silence", max_silence, 1e-9)
        self._clock = clock or Clock()
        self._changed = threading.Condition()
        self._schedule = Schedule(speed, max_silence_ns)
        self._life = ControlsLife.NEW
        self._progress = Progress(self._schedule)
        self._is_unlimited = False  # no wait and no pending command; read without the lock
        # Requested by commands.
        self._command = ReplayState.PLAYING
        self._steps_left = self._steps_granted = 0
        self._seek_to: int | None = None

    # Commands

    @property
    def speed(self) -> float | None:
        """Seconds of market time per second; None: unlimited.

        Set it at any time. Raises ValueError unless it is None or a finite number above 0.
        """
        return self._schedule.speed

    @speed.setter
    def speed(self, value: float | None) -> None:
        _check_speed(value)
        with self._changed:
            self._progress.settle(self._clock.now_ns())
            self._schedule.speed = value
            self._notify()

    def pause(self) -> None:
        """Pause after the current delivery. Steps not yet delivered are dropped."""
        with self._changed:
            self._change(command=ReplayState.PAUSED)

    def resume(self) -> None:
        """Resume at the current speed."""
        with self._changed:
            self._change(command=ReplayState.PLAYING)

    def step(self, messages: int = 1) -> None:
        """Deliver this number of messages at once, then pause. Steps add up.

        Raises ValueError if `messages` is less than 1.
        """
        if messages < 1:
            raise ValueError(f"messages was {messages}, expected 1 or more")
        with self._changed:
            if self._life is ControlsLife.ENDED:
                self._change(command=ReplayState.PAUSED)
            else:
                self._steps_left = min(self._steps_left + messages, NO_LIMIT)
                self._change(command=ReplayState.STEPPING)

    def seek(self, ts_ns: int) -> None:
        """Continue with the first message at or after this market time. A paused replay stays paused there.

        A time outside the replay means its nearest end. The last of several seeks wins. Raises TypeError unless it is
        an integer, ns since 1970.
        """
        try:
            ts_ns = index(ts_ns)
        except TypeError:
            raise TypeError(f"ts_ns was {ts_ns!r}, expected an integer, ns since 1970") from None
        with self._changed:
            if self._life is not ControlsLife.ENDED:
                self._seek_to = self._progress.within(ts_ns) if self._life is ControlsLife.BEGUN else ts_ns
            self._notify()

    def stop(self) -> None:
        """End the replay after the current delivery."""
        with self._changed:
            self._change(command=ReplayState.STOPPING)

    def is_held_up(self) -> bool:
        """Return True if a pause, seek or stop is pending. The player must call `wait` before it continues."""
        return self._command in (ReplayState.PAUSED, ReplayState.STOPPING) or self._seek_to is not None

    def is_called_off(self) -> bool:
        """Return True if a seek or stop is pending, so that work before the next message is useless."""
        return self._command is ReplayState.STOPPING or self._seek_to is not None

    def status(self) -> ReplayStatus:
        """Return the current status."""
        with self._changed:
            now_ns, progress = self._clock.now_ns(), self._progress
            position_ns = progress.position_ns(now_ns) if self._seek_to is None else self._seek_to
            is_begun, seconds_left = self._life is ControlsLife.BEGUN, None
            if is_begun or self._life is ControlsLife.ENDED:
                seconds_left = progress.seconds_left(now_ns, position_ns) if is_begun else 0.0
            return ReplayStatus(
                state=self._state,
                speed=self._schedule.speed,
                position_ns=position_ns,
                messages=progress.messages,
                start_ns=progress.start_ns,
                stop_ns=progress.stop_ns,
                messages_per_second=progress.rate.per_second(now_ns) if is_begun else 0.0,
                seconds_left=seconds_left,
            )

    # Playing

    def begin(self, start_ns: int, stop_ns: int) -> None:
        """Begin a replay of a range of market time. The schedule starts with the first `wait`.

        Raises ValueError if `stop_ns` is before `start_ns`, ControlError during another replay.
        """
        if stop_ns < start_ns:
            raise ValueError(f"stop_ns was {stop_ns}, expected start_ns, {start_ns}, or later")
        with self._changed:
            if self._life is ControlsLife.BEGUN:
                raise ControlError("these controls are used by a replay that has not ended")
            self._change(life=ControlsLife.BEGUN)
            self._progress.begin(start_ns, stop_ns, self._clock.now_ns())
            if self._seek_to is not None:
                self._seek_to = self._progress.within(self._seek_to)

    def rewind(self) -> None:
        """Begin the same range again. The schedule starts with the next `wait`."""
        with self._changed:
            self._progress.go_to(self._progress.start_ns, self._clock.now_ns())

    def wait(self, next_ns: int) -> Grant:
        """Wait until the next message, of market time `next_ns`, is due, or a command changes the state.

        Returns at once without a speed, or if `next_ns` is not after the last delivered time; such times do not move
        the schedule. After PLAY call `played`, after SEEK `wait` with the message found, after STOP `end`.
        """
        if self._is_unlimited:
            return _ALL
        with self._changed:
            self._schedule.expect(next_ns, self._clock.now_ns())
            self._progress.next_ns = next_ns
            try:
                return self._wait(next_ns)
            finally:
                self._progress.next_ns = NO_LIMIT

    def played(self, messages: int, last_ns: int) -> None:
        """Count delivered messages; `last_ns` is the highest time among them."""
        progress, schedule = self._progress, self._schedule
        progress.messages += messages
        if last_ns > schedule.position_ns:
            schedule.position_ns = last_ns
        progress.rate.add(self._clock.now_ns(), messages)
        if self._steps_granted:
            with self._changed:
                granted, self._steps_granted = self._steps_granted, 0
                self._steps_left = min(self._steps_left + max(0, granted - messages), NO_LIMIT)
                if granted and not self._steps_left:  # no command in between
                    self._change(command=ReplayState.PAUSED)

    def end(self) -> None:
        """End the replay."""
        with self._changed:
            self._seek_to = None
            steps_are_void = self._command is ReplayState.STEPPING
            self._change(life=ControlsLife.ENDED, command=ReplayState.PAUSED if steps_are_void else None)

    def _wait(self, next_ns: int) -> Grant:
        schedule = self._schedule
        while True:
            if self._command is ReplayState.STOPPING:
                return _STOP
            if self._seek_to is not None:
                seek_to_ns, self._seek_to = self._seek_to, None
                self._progress.go_to(seek_to_ns, self._clock.now_ns())
                self._notify()
                return Grant(Action.SEEK, seek_to_ns=seek_to_ns)
            if self._steps_left:
                self._steps_granted, self._steps_left = self._steps_left, 0
                return Grant(Action.PLAY, messages=self._steps_granted)
            if schedule.is_paused:
                self._clock.wait(self._changed, None)
                continue
            if schedule.speed is None:
                return _ALL
            due_ns = schedule.due_ns()
            now_ns = self._clock.now_ns()
            if now_ns >= due_ns:
                return Grant(Action.PLAY, until_ns=schedule.until_ns(next_ns, now_ns))
            self._clock.wait(self._changed, due_ns)

    # States

    @property
    def _state(self) -> ReplayState:
        if self._life is ControlsLife.BEGUN:
            return self._command
        return ReplayState.READY if self._life is ControlsLife.NEW else ReplayState.ENDED

    def _change(self, *, life: ControlsLife | None = None, command: ReplayState | None = None) -> None:
        """Change the state and wake the player. This is the only method that does; STOPPING is final.

        Raises RuntimeError for an invalid transition.
        """
        before = self._state
        if life is not None:
            self._life = self._life.enter(life, "controls")
        if command is not None:
            self._progress.settle(self._clock.now_ns())
            if self._command is not ReplayState.STOPPING:
                self._command = command
            if command is not ReplayState.STEPPING:
                self._steps_left = self._steps_granted = 0
            self._schedule.is_paused = self._command in (ReplayState.PAUSED, ReplayState.STEPPING)
        if self._state is not before:
            log.debug("replay: %s, was %s", self._state.value, before.value)
        self._notify()

    def _notify(self) -> None:
        """Wake the player, and let it skip the lock if nothing is pending."""
        self._is_unlimited = (
            self._state is ReplayState.PLAYING and self._schedule.speed is None and self._seek_to is None
        )
        self._changed.notify_all()


def _check_speed(speed: object) -> None:
    if speed is not None and not (isinstance(speed, int | float) and 0 < speed < math.inf):
        raise ValueError(f"speed was {speed!r}, expected a finite number above 0, or None for as fast as possible")
