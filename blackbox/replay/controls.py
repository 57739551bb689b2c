"""What steers a replay: any thread turns the knobs, and the one that plays asks when the next message is due.

schedule:  due = wall time + (message's time - market time) / speed     one pair of times, the anchor, is kept
steering:  the anchor moves to now, then the knob turns                 so the market time never jumps
"""

from __future__ import annotations

import math
import threading
from enum import Enum
from typing import Final

import msgspec
import numpy

from blackbox.lag_histogram import BUCKETS, percentiles_ns, record_one
from blackbox.replay.clock import Clock
from blackbox.replay.rate import Rate
from blackbox.replay.status import Lateness, ReplayStatus
from blackbox.warmup import warm_up

ANY: Final = (1 << 63) - 1
"""Without a limit: of messages, or of their times."""
_FAR_NS: Final = 1 << 62
_ROUNDING_NS: Final = 1


class Kind(Enum):
    """What the player is to do."""

    GO = "go"
    SEEK = "seek"
    STOP = "stop"


class Grant(msgspec.Struct, frozen=True, gc=False):
    """What `Controls.wait` lets the player do now."""

    kind: Kind
    until_ns: int = ANY
    """GO: deliver what is at hand, in order, up to the first message of a later time than this."""
    messages: int = ANY
    """GO: at most so many."""
    seek_to_ns: int = 0
    """SEEK: go on with the first message of this time or later."""


_ALL: Final = Grant(Kind.GO)
_STOP: Final = Grant(Kind.STOP)


class Controls:
    """Steers one replay. Its life: `begin`, RUNNING or PAUSED, `end`; a next `begin` replays the next recording.

    `begin`, `wait`, `played` and `end` are called by the one thread that plays; everything else by any thread, at any
    time. What is set before `begin` holds from the start: a replay can begin paused, or at a time. Steps and seeks
    after the end are ignored; `stop` is for good.

    A player that falls behind catches up, since the schedule stands; steering lets it off what it is behind by then.
    """

    def __init__(
        self, speed: float | None = None, max_silence_ns: int | None = None, clock: Clock | None = None
    ) -> None:
        """Settings.

        Args:
            speed: seconds of market time in a second; None: as fast as the consumer takes it.
            max_silence_ns: market time that may pass between two messages; a longer silence is cut to this.
            clock: what paces it. Default: the machine's clock.

        Raises:
            ValueError: `speed` is not a finite number above 0, or `max_silence_ns` is below 1.
        """
        _check_speed(speed)
        if max_silence_ns is not None and max_silence_ns < 1:
            raise ValueError(f"max_silence_ns was {max_silence_ns}, expected 1 or more, or None to cut no silence")
        self._clock = clock or Clock()
        self._changed = threading.Condition()
        self._max_silence_ns = max_silence_ns or ANY
        self._histogram = numpy.zeros(BUCKETS, numpy.int64)
        # The knobs.
        self._speed = speed
        self._paused = False
        self._stopping = False
        self._owed = 0
        self._seek_to: int | None = None
        # Where it is.
        self._playing = False
        self._ended = False
        self._free = False  # nothing to wait for and nothing to tell: read without the lock
        self._start_ns = 0
        self._stop_ns = 0
        self._position_ns = 0
        self._messages = 0
        self._next_ns = ANY
        self._granted_steps = 0
        self._rate = Rate(0)
        # The schedule. Without a wall time it begins at the next wait: opening a file, or a seek, takes its time.
        self._market_ns = 0
        self._wall_ns: int | None = None
        self._silent_since_ns = 0
        self._steered = False
        self._measured_from = (0, 0)

    # Steering

    @property
    def speed(self) -> float | None:
        """Seconds of market time in a second; None: as fast as the consumer takes it.

        Set it at any time. Raises ValueError unless it is None or a finite number above 0.
        """
        return self._speed

    @speed.setter
    def speed(self, value: float | None) -> None:
        _check_speed(value)
        with self._changed:
            self._settle()
            self._speed = value
            self._tell()

    def pause(self) -> None:
        """Stand still after what the player delivers just now. Steps that are still owed are forgotten."""
        with self._changed:
            self._settle()
            self._paused = True
            self._owed = self._granted_steps = 0
            self._tell()

    def resume(self) -> None:
        """Go on from where it stands, at the speed that is set."""
        with self._changed:
            self._settle()
            self._paused = False
            self._owed = self._granted_steps = 0
            self._tell()

    def step(self, messages: int = 1) -> None:
        """Deliver exactly so many messages more, at once, and stand still. Steps add up.

        Raises ValueError when `messages` is below 1.
        """
        if messages < 1:
            raise ValueError(f"messages was {messages}, expected 1 or more")
        with self._changed:
            self._settle()
            self._paused = True
            if not self._ended:
                self._owed = min(self._owed + messages, ANY)
            self._tell()

    def seek(self, ts_ns: int) -> None:
        """Go on with the first message of this market time or later. Paused, it stands still there.

        A time outside of the replay means its nearest end. The last of several seeks wins.
        """
        with self._changed:
            if not self._ended:
                self._seek_to = self._within(ts_ns) if self._playing else ts_ns
            self._tell()

    def stop(self) -> None:
        """End the replay after what the player delivers just now."""
        with self._changed:
            self._stopping = True
            self._tell()

    def status(self) -> ReplayStatus:
        """How it does."""
        with self._changed:
            now_ns = self._clock.now_ns()
            position_ns = self._position(now_ns)
            return ReplayStatus(
                state="ended" if self._ended else "paused" if self._paused else "running",
                speed=self._speed,
                position_ns=position_ns,
                messages=self._messages,
                start_ns=self._start_ns,
                stop_ns=self._stop_ns,
                messages_per_second=self._rate.per_second(now_ns) if self._playing else 0.0,
                seconds_left=self._seconds_left(now_ns, position_ns),
            )

    def lateness(self) -> Lateness:
        """How late paced deliveries began so far; what the schedule's error is, when the consumer keeps up."""
        p50_ns, p99_ns, max_ns = percentiles_ns(self._histogram, 50, 99, 100)
        return Lateness(count=int(self._histogram.sum()), p50_ns=p50_ns, p99_ns=p99_ns, max_ns=max_ns)

    # Playing

    def begin(self, start_ns: int, stop_ns: int) -> None:
        """Begin a replay of a range of market time. The schedule starts with the first `wait`.

        Raises ValueError when `stop_ns` is before `start_ns`.
        """
        if stop_ns < start_ns:
            raise ValueError(f"stop_ns was {stop_ns}, expected start_ns, {start_ns}, or later")
        warm_up(record_one, 0, 0)
        with self._changed:
            now_ns = self._clock.now_ns()
            self._playing, self._ended = True, False
            self._start_ns, self._stop_ns = start_ns, stop_ns
            self._messages = 0
            self._rate = Rate(now_ns)
            self._go_to(start_ns)
            if self._seek_to is not None:
                self._seek_to = self._within(self._seek_to)
            self._tell()

    def rewind(self) -> None:
        """Say that the same range is played once more, from its beginning. The schedule starts with the next `wait`."""
        with self._changed:
            self._go_to(self._start_ns)

    def wait(self, next_ns: int) -> Grant:
        """Wait until the next message, of market time `next_ns`, may be delivered; or something else is to be done.

        At once when no speed is set, or `next_ns` is not after what was delivered before: such times do not move the
        schedule. After GO call `played`, after SEEK `wait` with the message found, after STOP `end`.
        """
        if self._free:
            return _ALL
        with self._changed:
            self._prepare(next_ns)
            self._next_ns = next_ns
            try:
                return self._wait(next_ns)
            finally:
                self._next_ns = ANY

    def played(self, messages: int, last_ns: int) -> None:
        """Say how many messages were delivered, and the highest time among them, ns."""
        self._messages += messages
        if last_ns > self._position_ns:
            self._position_ns = last_ns
        self._rate.add(self._clock.now_ns(), messages)
        if self._granted_steps:
            with self._changed:
                self._owed = min(self._owed + max(0, self._granted_steps - messages), ANY)
                self._granted_steps = 0

    def end(self) -> None:
        """Say that nothing more will be played."""
        with self._changed:
            self._playing, self._ended = False, True
            self._owed, self._seek_to = 0, None
            self._tell()

    def _wait(self, next_ns: int) -> Grant:
        while True:
            if self._stopping:
                return _STOP
            if self._seek_to is not None:
                seek_to_ns, self._seek_to = self._seek_to, None
                self._go_to(seek_to_ns)
                self._tell()
                return Grant(Kind.SEEK, seek_to_ns=seek_to_ns)
            if self._owed:
                self._granted_steps, self._owed = self._owed, 0
                return Grant(Kind.GO, messages=self._granted_steps)
            if self._paused:
                self._clock.wait(self._changed, None)
                continue
            if self._speed is None:
                return _ALL
            due_ns = self._due_ns(self._silent_since_ns, self._speed)
            late_ns = self._clock.now_ns() - due_ns
            if late_ns >= 0:
                record_one(self._histogram.ctypes.data, late_ns)
                return Grant(Kind.GO, until_ns=self._until_ns(next_ns, due_ns + late_ns))
            self._clock.wait(self._changed, due_ns)

    # The schedule

    def _prepare(self, next_ns: int) -> None:
        """Set the schedule right, now that the next message's time is known."""
        now_ns = self._clock.now_ns()
        reached_ns = max(self._silent_since_ns, self._position_ns)
        ahead_ns = max(next_ns, reached_ns)
        market_ns = self._market(now_ns)
        if self._wall_ns is None or market_ns + _ROUNDING_NS < self._position_ns:
            # It begins here, or came here by steps or without a speed.
            self._market_ns, self._wall_ns = max(self._market_ns, self._position_ns), now_ns
        elif self._steered and self._market_ns > ahead_ns:
            # The player was behind when it was steered: it would go through all of that at once.
            self._market_ns, self._wall_ns = ahead_ns, now_ns
        self._steered = False
        self._market_ns += max(0, next_ns - reached_ns - self._max_silence_ns)
        self._silent_since_ns = ahead_ns

    def _settle(self) -> None:
        """Let the schedule begin anew from where it is now: what is steered next does not change the past."""
        now_ns = self._clock.now_ns()
        self._measured_from = (now_ns, self._position_ns)
        if self._wall_ns is not None:
            self._market_ns, self._wall_ns = self._market(now_ns), now_ns
            self._steered = True

    def _go_to(self, ts_ns: int) -> None:
        self._market_ns, self._wall_ns = ts_ns, None
        self._position_ns = self._silent_since_ns = ts_ns
        self._measured_from = (self._clock.now_ns(), ts_ns)

    def _market(self, now_ns: int) -> int:
        """Market time now."""
        if self._paused or self._wall_ns is None:
            return self._market_ns
        if self._speed is None:
            return max(self._market_ns, self._position_ns)
        return self._market_ns + int(min((now_ns - self._wall_ns) * self._speed, _FAR_NS))

    def _due_ns(self, ts_ns: int, speed: float) -> int:
        assert self._wall_ns is not None
        return self._wall_ns + math.ceil(min((ts_ns - self._market_ns) / speed, _FAR_NS))

    def _until_ns(self, next_ns: int, now_ns: int) -> int:
        """The market time now, but not beyond a silence to cut, which is seen at the next wait."""
        return max(next_ns, min(self._market(now_ns), self._silent_since_ns + self._max_silence_ns))

    def _position(self, now_ns: int) -> int:
        if self._seek_to is not None:
            return self._seek_to
        if self._next_ns == ANY:
            return self._position_ns
        return max(self._position_ns, min(self._market(now_ns), self._next_ns))

    def _seconds_left(self, now_ns: int, position_ns: int) -> float | None:
        if not self._playing:
            return 0.0 if self._ended else None
        left_ns = max(0, self._stop_ns - position_ns)
        if self._speed is not None:
            return left_ns / self._speed / 1e9
        wall_ns, market_ns = self._measured_from
        done_ns = position_ns - market_ns
        return left_ns * ((now_ns - wall_ns) / done_ns) / 1e9 if done_ns > 0 and not self._paused else None

    def _within(self, ts_ns: int) -> int:
        return min(max(ts_ns, self._start_ns), self._stop_ns)

    def _tell(self) -> None:
        self._free = (
            self._playing
            and self._speed is None
            and self._seek_to is None
            and not (self._paused or self._stopping or self._owed)
        )
        self._changed.notify_all()


def _check_speed(speed: float | None) -> None:
    if speed is not None and not 0 < speed < math.inf:
        raise ValueError(f"speed was {speed}, expected a finite number above 0, or None for as fast as possible")
