"""Control a replay: any thread gives commands, and the thread that plays asks when the next message is due.

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
import numpy

from blackbox.arguments import duration_ns
from blackbox.errors import ControlError
from blackbox.life import Life
from blackbox.native.histogram import BUCKETS, percentiles_ns, record_one
from blackbox.native.jit import warm_up
from blackbox.replay.clock import Clock
from blackbox.replay.schedule import NO_LIMIT, Schedule
from blackbox.replay.status import Lateness, MessageRate, ReplayState, ReplayStatus

log = logging.getLogger("blackbox")


class Action(Enum):
    """What the player is to do."""

    PLAY = "play"
    SEEK = "seek"
    STOP = "stop"


class Grant(msgspec.Struct, frozen=True, gc=False):
    """What `Controls.wait` lets the player do now."""

    action: Action
    until_ns: int = NO_LIMIT
    """PLAY: deliver the next messages, in order, up to the first one of a later time than this."""
    messages: int = NO_LIMIT
    """PLAY: at most so many."""
    seek_to_ns: int = 0
    """SEEK: go on with the first message of this time or later."""


class ControlsLife(Life):
    """Whether there is a replay. What it does once it has begun, the last command says."""

    NEW = "new", "begun"
    """BEGUN by `begin`."""
    BEGUN = "begun", "ended"
    """ENDED by `end`."""
    ENDED = "ended", "begun"
    """BEGUN when there is another replay."""


_ALL: Final = Grant(Action.PLAY)
_STOP: Final = Grant(Action.STOP)


class Controls:
    """Controls one replay at a time; `begin` begins it, `end` ends it. See `ReplayState` for its states.

    `begin`, `rewind`, `wait`, `played` and `end` are called by the one thread that plays; everything else by any
    thread, at any time. What is set before `begin` holds from the start: a replay can begin paused, or at a time. Steps
    and seeks after the end are ignored; `stop` is for good.

    A late player catches up: the schedule is fixed. A command forgives the delay so far.
    """

    def __init__(
        self, speed: float | None = None, max_silence: float | timedelta | None = None, clock: Clock | None = None
    ) -> None:
        """Settings.

        Args:
            speed: seconds of market time in a second; None: as fast as the consumer takes it.
            max_silence: market time that may pass between two messages, in seconds or a `timedelta`; a longer silence
                is cut to this.
            clock: what paces it. Default: the machine's clock.

        Raises:
            ValueError: `speed` is not a finite number above 0, or `max_silence` is below 1 ns.
        """
        _check_speed(speed)
        max_silence_ns = NO_LIMIT if max_silence is None else duration_ns("max_silence", max_silence, 1e-9)
        self._clock = clock or Clock()
        self._changed = threading.Condition()
        self._schedule = Schedule(speed, max_silence_ns)
        self._histogram = numpy.zeros(BUCKETS, numpy.int64)
        # What was asked for.
        self._command = ReplayState.PLAYING
        self._steps_left = 0
        self._seek_to: int | None = None
        # What is played.
        self._life = ControlsLife.NEW
        self._is_unlimited = False  # nothing to wait for and no command to obey: read without the lock
        self._start_ns = 0
        self._stop_ns = 0
        self._messages = 0
        self._next_ns = NO_LIMIT
        self._steps_granted = 0
        self._rate = MessageRate(0)
        self._measured_from = (0, 0)

    # Commands

    @property
    def speed(self) -> float | None:
        """Seconds of market time in a second; None: as fast as the consumer takes it.

        Set it at any time. Raises ValueError unless it is None or a finite number above 0.
        """
        return self._schedule.speed

    @speed.setter
    def speed(self, value: float | None) -> None:
        _check_speed(value)
        with self._changed:
            self._settle()
            self._schedule.speed = value
            self._notify()

    def pause(self) -> None:
        """Stand still after what the player delivers just now. Steps not yet delivered are forgotten."""
        with self._changed:
            self._change(command=ReplayState.PAUSED)

    def resume(self) -> None:
        """Go on from where it stands, at the speed that is set."""
        with self._changed:
            self._change(command=ReplayState.PLAYING)

    def step(self, messages: int = 1) -> None:
        """Deliver exactly so many messages more, at once, and stand still. Steps add up.

        Raises ValueError when `messages` is below 1.
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
        """Go on with the first message of this market time or later. Paused, it stands still there.

        A time outside of the replay means its nearest end. The last of several seeks wins. Raises TypeError unless it
        is an integer, ns since 1970.
        """
        try:
            ts_ns = index(ts_ns)
        except TypeError:
            raise TypeError(f"ts_ns was {ts_ns!r}, expected an integer, ns since 1970") from None
        with self._changed:
            if self._life is not ControlsLife.ENDED:
                self._seek_to = self._within(ts_ns) if self._life is ControlsLife.BEGUN else ts_ns
            self._notify()

    def stop(self) -> None:
        """End the replay after what the player delivers just now."""
        with self._changed:
            self._change(command=ReplayState.STOPPING)

    def is_held_up(self) -> bool:
        """Return whether a pause, a seek or the end was asked for: the player is to `wait` before it goes on."""
        return self._command in (ReplayState.PAUSED, ReplayState.STOPPING) or self._seek_to is not None

    def is_called_off(self) -> bool:
        """Return whether a seek or the end was asked for: what is done before the next message is in vain."""
        return self._command is ReplayState.STOPPING or self._seek_to is not None

    def status(self) -> ReplayStatus:
        """Return what it does now."""
        with self._changed:
            now_ns = self._clock.now_ns()
            position_ns = self._position(now_ns)
            return ReplayStatus(
                state=self._state,
                speed=self._schedule.speed,
                position_ns=position_ns,
                messages=self._messages,
                start_ns=self._start_ns,
                stop_ns=self._stop_ns,
                messages_per_second=self._rate.per_second(now_ns) if self._life is ControlsLife.BEGUN else 0.0,
                seconds_left=self._seconds_left(now_ns, position_ns),
            )

    def lateness(self) -> Lateness:
        """Return how late paced deliveries began: the schedule's error, when the consumer keeps up."""
        p50_ns, p99_ns, max_ns = percentiles_ns(self._histogram, 50, 99, 100)
        return Lateness(count=int(self._histogram.sum()), p50_ns=p50_ns, p99_ns=p99_ns, max_ns=max_ns)

    # Playing

    def begin(self, start_ns: int, stop_ns: int) -> None:
        """Begin a replay of a range of market time. The schedule starts with the first `wait`.

        Raises ValueError when `stop_ns` is before `start_ns`, ControlError while another replay goes on.
        """
        if stop_ns < start_ns:
            raise ValueError(f"stop_ns was {stop_ns}, expected start_ns, {start_ns}, or later")
        warm_up(record_one, 0, 0)
        with self._changed:
            if self._life is ControlsLife.BEGUN:
                raise ControlError("controls were given to a replay while another one goes on, expected its end first")
            self._change(life=ControlsLife.BEGUN)
            self._start_ns, self._stop_ns = start_ns, stop_ns
            self._messages = 0
            self._rate = MessageRate(self._clock.now_ns())
            self._go_to(start_ns)
            if self._seek_to is not None:
                self._seek_to = self._within(self._seek_to)

    def rewind(self) -> None:
        """Begin the same range once more. The schedule starts with the next `wait`."""
        with self._changed:
            self._go_to(self._start_ns)

    def wait(self, next_ns: int) -> Grant:
        """Wait until the next message, of market time `next_ns`, may be delivered, or a command wants something else.

        Returns at once when no speed is set, or `next_ns` is not after what was delivered before: such times do not
        move the schedule. After PLAY call `played`, after SEEK `wait` with the message found, after STOP `end`.
        """
        if self._is_unlimited:
            return _ALL
        with self._changed:
            self._schedule.expect(next_ns, self._clock.now_ns())
            self._next_ns = next_ns
            try:
                return self._wait(next_ns)
            finally:
                self._next_ns = NO_LIMIT

    def played(self, messages: int, last_ns: int) -> None:
        """Count delivered messages; `last_ns` is the highest time among them."""
        self._messages += messages
        schedule = self._schedule
        if last_ns > schedule.position_ns:
            schedule.position_ns = last_ns
        self._rate.add(self._clock.now_ns(), messages)
        if self._steps_granted:
            with self._changed:
                granted, self._steps_granted = self._steps_granted, 0
                self._steps_left = min(self._steps_left + max(0, granted - messages), NO_LIMIT)
                if granted and not self._steps_left:  # no command has come meanwhile
                    self._change(command=ReplayState.PAUSED)

    def end(self) -> None:
        """Say that nothing more will be played."""
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
                self._go_to(seek_to_ns)
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
            late_ns = self._clock.now_ns() - due_ns
            if late_ns >= 0:
                record_one(self._histogram.ctypes.data, late_ns)
                return Grant(Action.PLAY, until_ns=schedule.until_ns(next_ns, due_ns + late_ns))
            self._clock.wait(self._changed, due_ns)

    # States

    @property
    def _state(self) -> ReplayState:
        if self._life is ControlsLife.BEGUN:
            return self._command
        return ReplayState.READY if self._life is ControlsLife.NEW else ReplayState.ENDED

    def _change(self, *, life: ControlsLife | None = None, command: ReplayState | None = None) -> None:
        """Change the state, and wake the player. This is the only place that does; STOPPING is final.

        Raises RuntimeError when `life` may not follow.
        """
        before = self._state
        if life is not None:
            self._life = self._life.enter(life, "controls")
        if command is not None:
            self._settle()
            if self._command is not ReplayState.STOPPING:
                self._command = command
            if command is not ReplayState.STEPPING:
                self._steps_left = self._steps_granted = 0
            self._schedule.is_paused = self._command in (ReplayState.PAUSED, ReplayState.STEPPING)
        if self._state is not before:
            log.debug("replay: %s, was %s", self._state.value, before.value)
        self._notify()

    def _notify(self) -> None:
        """Wake the player, and let it read without the lock if nothing is asked of it."""
        self._is_unlimited = (
            self._state is ReplayState.PLAYING and self._schedule.speed is None and self._seek_to is None
        )
        self._changed.notify_all()

    def _settle(self) -> None:
        now_ns = self._clock.now_ns()
        self._measured_from = (now_ns, self._schedule.position_ns)
        self._schedule.settle(now_ns)

    def _go_to(self, ts_ns: int) -> None:
        self._schedule.go_to(ts_ns)
        self._measured_from = (self._clock.now_ns(), ts_ns)

    def _within(self, ts_ns: int) -> int:
        return min(max(ts_ns, self._start_ns), self._stop_ns)

    def _position(self, now_ns: int) -> int:
        if self._seek_to is not None:
            return self._seek_to
        reached_ns = self._schedule.position_ns
        if self._next_ns == NO_LIMIT:
            return reached_ns
        return max(reached_ns, min(self._schedule.market_ns(now_ns), self._next_ns))

    def _seconds_left(self, now_ns: int, position_ns: int) -> float | None:
        if self._life is not ControlsLife.BEGUN:
            return 0.0 if self._life is ControlsLife.ENDED else None
        left_ns = max(0, self._stop_ns - position_ns)
        if self._schedule.speed is not None:
            return left_ns / self._schedule.speed / 1e9
        wall_ns, market_ns = self._measured_from
        done_ns = position_ns - market_ns
        if done_ns <= 0 or self._schedule.is_paused:
            return None
        return left_ns * ((now_ns - wall_ns) / done_ns) / 1e9


def _check_speed(speed: object) -> None:
    if speed is not None and not (isinstance(speed, int | float) and 0 < speed < math.inf):
        raise ValueError(f"speed was {speed!r}, expected a finite number above 0, or None for as fast as possible")
