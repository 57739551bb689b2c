"""Timers: functions called between messages at multiples of an interval, on a live or a replayed clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from blackbox.arguments import name_of
from blackbox.errors import CallbackError
from blackbox.receive.callbacks.callbacks import callback_error
from blackbox.receive.deliver.worker_state import NEVER


class Timer:
    """A function to call at each multiple of an interval, ns since 1970; `active` until removed."""

    def __init__(self, interval_ns: int, function: Callable[[int], object], group: str | None) -> None:
        self.interval_ns = interval_ns
        self.function = function
        self.group = group
        self.active = True

    def first_after(self, ts_ns: int) -> int:
        """Return the first multiple after a time."""
        return (ts_ns // self.interval_ns + 1) * self.interval_ns


class Timers:
    """Calls timers when they are due. `on_error` gets their exceptions and returns whether to continue."""

    def __init__(self, timers: Sequence[Timer], on_error: Callable[[CallbackError], bool]) -> None:
        self._timers = tuple(timers)
        self._on_error = on_error
        self.next_ns = NEVER
        """Time of the next call; before the start, any time."""
        self.least_ns = NEVER
        """Shortest interval of a timer. If the next time is further away, a live clock was set back."""
        self.reset()

    def reset(self) -> None:
        """Start again at the next time."""
        self._due: list[int] = []
        self.next_ns = 1 if self._timers else NEVER

    def begin(self, ts_ns: int) -> None:
        """Start with the first multiples after a time."""
        self._due = [timer.first_after(ts_ns) if timer.active else NEVER for timer in self._timers]
        self._note_next()

    def advance(self, to_ns: int, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Call timers due up to a time, ordered by time, then by registration; return False to stop.

        `is_over` is called before each time; True leaves the rest for later.
        """
        if not self._due:
            self.begin(to_ns)
        while self.next_ns <= to_ns and not is_over():
            now_ns = self.next_ns
            for number, timer in enumerate(self._timers):
                if self._due[number] != now_ns:
                    continue
                self._due[number] = now_ns + timer.interval_ns if timer.active else NEVER
                if timer.active and not self._call(timer, now_ns):
                    return False
            self.next_ns = min(self._due)
        return True

    def is_due(self, now_ns: int) -> bool:
        """Return True if a timer is due at a time of a live clock."""
        return self.next_ns <= now_ns or self._was_set_back(now_ns)

    def _was_set_back(self, now_ns: int) -> bool:
        return self.next_ns != NEVER and self.next_ns - now_ns > self.least_ns

    def skip_to(self, to_ns: int) -> None:
        """Skip earlier due times except the last one of each timer. Start again if the clock was set back."""
        if self._was_set_back(to_ns):
            self.begin(to_ns)
        for number, timer in enumerate(self._timers):
            if self._due[number] <= to_ns:
                self._due[number] = timer.first_after(to_ns) - timer.interval_ns
        self._note_next()

    def _note_next(self) -> None:
        self.next_ns = min(self._due, default=NEVER)
        self.least_ns = min((timer.interval_ns for timer in self._timers if timer.active), default=NEVER)

    def _call(self, timer: Timer, now_ns: int) -> bool:
        try:
            timer.function(now_ns)
        except BaseException as error:  # noqa: BLE001 - a user's function may raise anything, even SystemExit
            return self._on_error(callback_error(f"callback {name_of(timer.function)} at {now_ns} ns", error))
        return True
