"""Progress of a replay: its position, its rate and the time left."""

from __future__ import annotations

from typing import Final

from blackbox.replay.schedule import NO_LIMIT, Schedule

_TICK_NS: Final = 100_000_000
_TICKS: Final = 10
_SLOTS: Final = 16


class MessageRate:
    """Messages per second over the last second, counted in tenths. One thread counts; any may read.

    Counting is cheap, so the playing thread can do it.
    """

    def __init__(self, now_ns: int) -> None:
        self._start_ns = now_ns
        self._ticks = [-1] * _SLOTS
        self._counts = [0] * _SLOTS

    def add(self, now_ns: int, count: int) -> None:
        """Count messages delivered now."""
        tick = now_ns // _TICK_NS
        slot = tick % _SLOTS
        if self._ticks[slot] == tick:
            self._counts[slot] += count
        else:
            self._counts[slot] = count
            self._ticks[slot] = tick

    def per_second(self, now_ns: int) -> float:
        """Return messages per second over the last second, or since the beginning if that is shorter."""
        tick = now_ns // _TICK_NS
        first = tick - _TICKS
        count = sum(c for t, c in zip(self._ticks, self._counts, strict=True) if first <= t <= tick)
        span_ns = now_ns - max(self._start_ns, first * _TICK_NS)
        return count * 1e9 / span_ns if span_ns > 0 else 0.0


class Progress:
    """Progress of a replay of a range of market time. It has no lock: `Controls` holds one, except to count messages.

    Attributes: the range, `start_ns` and `stop_ns`; `messages` delivered, and their `rate`; `next_ns`, market time of
    the message that the player waits for, or NO_LIMIT.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.start_ns = self.stop_ns = self.messages = 0
        self.next_ns = NO_LIMIT
        self.rate = MessageRate(0)
        self._measured_from = (0, 0)
        """Wall and market time of the last command, from which the time left is estimated without a speed."""

    def begin(self, start_ns: int, stop_ns: int, now_ns: int) -> None:
        """Begin a range."""
        self.start_ns, self.stop_ns = start_ns, stop_ns
        self.messages = 0
        self.rate = MessageRate(now_ns)
        self.go_to(start_ns, now_ns)

    def go_to(self, ts_ns: int, now_ns: int) -> None:
        """Continue from a market time."""
        self._schedule.go_to(ts_ns)
        self._measured_from = (now_ns, ts_ns)

    def settle(self, now_ns: int) -> None:
        """Note the present before a command changes the schedule."""
        self._measured_from = (now_ns, self._schedule.position_ns)
        self._schedule.settle(now_ns)

    def within(self, ts_ns: int) -> int:
        """Return the nearest market time of the range."""
        return min(max(ts_ns, self.start_ns), self.stop_ns)

    def position_ns(self, now_ns: int) -> int:
        """Return the market time reached."""
        reached_ns = self._schedule.position_ns
        if self.next_ns == NO_LIMIT:
            return reached_ns
        return max(reached_ns, min(self._schedule.market_ns(now_ns), self.next_ns))

    def seconds_left(self, now_ns: int, position_ns: int) -> float | None:
        """Return the seconds to `stop_ns`; None: unknown."""
        left_ns = max(0, self.stop_ns - position_ns)
        if self._schedule.speed is not None:
            return left_ns / self._schedule.speed / 1e9
        wall_ns, market_ns = self._measured_from
        done_ns = position_ns - market_ns
        if done_ns <= 0 or self._schedule.is_paused:
            return None
        return left_ns * ((now_ns - wall_ns) / done_ns) / 1e9
