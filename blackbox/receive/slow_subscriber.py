"""Policy for a subscriber that cannot keep up: its settings, and the compiled half that applies them."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from enum import IntEnum
from typing import Final, Literal

import msgspec
import numpy

from blackbox.arguments import LONGEST_S, check_function, duration_ns
from blackbox.feed.feed import Feed
from blackbox.native.memory.intrinsics import inner
from blackbox.native.memory.records import load_shared, store_shared
from blackbox.native.system.posix import exit_process, monotonic_ns, poke, write_file
from blackbox.receive.slice_memory import SliceAt
from blackbox.receive.state import (
    IDLE_MS,
    WORKER_COUNTERS_BYTES,
    Stopping,
    slice_counters_at,
    slice_state_at,
    worker_counters_at,
)
from blackbox.transport.libzmq import wait_readable


class Action(IntEnum):
    """Action of the policy; PROCEED: none is necessary for the current block."""

    PROCEED = 0
    END = 1
    """End the subscriber ("raise")."""
    CONFLATE = 2
    """Keep the newest message of each topic."""
    DROP = 3
    """Drop the block."""
    WARN = 4
    """Deliver the block."""
    EXIT = 5
    """End the subscriber, or the process if a callback hangs."""


ACTIONS = {
    "raise": Action.END,
    "exit_process": Action.EXIT,
    "conflate": Action.CONFLATE,
    "drop": Action.DROP,
    "warn": Action.WARN,
}

EXIT_SLOW: Final = 3
"""Exit status of a process, and of the command line, whose subscriber was too slow."""
NO_LIMIT_NS: Final = (1 << 63) - 1
_LONGEST_GRACE_S = 1_000_000.0


class SlowPolicy(msgspec.Struct, frozen=True):
    """Action of a subscriber when lag (now - `ts_out`) or age (now - `ts_in`) exceeds a limit.

    Each case is counted, and an alert is sent before the action. Durations are seconds or `timedelta`.

    Raises TypeError for a value of the wrong type, ValueError for one out of range.
    """

    action: Literal["raise", "exit_process", "conflate", "drop", "warn"] = "raise"
    """"raise": end the subscriber; `run`, `stop`, streams and waits raise SlowSubscriberError. "exit_process": the
    same, but end the process with status 3 if a callback hangs. "conflate": deliver only the newest message of each
    topic until the subscriber has caught up. "drop": drop late blocks. "warn": deliver them."""
    max_lag: float | timedelta | None = None
    """Lag above which the action applies. Default: `max_lag_ns` of the feed."""
    grace: float | timedelta = 5.0
    """Time for a running callback to return after the subscriber has ended. After that "raise" leaves its thread
    behind, and "exit_process" ends the process."""
    console: str | None = None
    """Endpoint (tcp or ipc) of an operator console, as of `blackbox console`: a PULL socket that gets each alert as
    JSON in one frame, see `blackbox.receive.alerts`. Default: `console` of the feed's `[monitor]`, if any."""
    on_alert: Callable[[str], object] | None = None
    """Called with the text of each alert, in the supervising thread, before the action."""
    max_age: float | timedelta | None = None
    """Age above which the action applies too, whether messages waited in the publisher or in this subscriber. Default:
    no limit."""
    start_grace: float | timedelta = 10.0
    """Time without action after a slice's publisher has confirmed, and after this process has compiled. 0: it acts at
    once, and does not wait for compilations."""

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise ValueError(f"action was {self.action!r}, expected one of {', '.join(ACTIONS)}")
        if self.max_lag is not None:
            duration_ns("max_lag", self.max_lag, 1e-9)
        if self.max_age is not None:
            duration_ns("max_age", self.max_age, 1e-9)
        duration_ns("grace", self.grace, 0, _LONGEST_GRACE_S)
        duration_ns("start_grace", self.start_grace, 0, _LONGEST_GRACE_S)
        if not isinstance(self.console, str | None):
            raise TypeError(f"console was {self.console!r}, expected an endpoint as text")
        if self.on_alert is not None:
            check_function(self.on_alert, "text")

    def _limit_ns(self, feed: Feed) -> int:
        """Return the lag in ns above which the action applies to a subscriber of `feed`."""
        return feed.max_lag_ns if self.max_lag is None else duration_ns("max_lag", self.max_lag, 1e-9)

    @property
    def _age_limit_ns(self) -> int:
        """Age in ns above which the action applies."""
        return NO_LIMIT_NS if self.max_age is None else duration_ns("max_age", self.max_age, 1e-9)

    @property
    def _grace_ns(self) -> int:
        """`grace` in ns."""
        return duration_ns("grace", self.grace, 0, _LONGEST_GRACE_S)

    @property
    def _start_grace_ns(self) -> int:
        """`start_grace` in ns."""
        return duration_ns("start_grace", self.start_grace, 0, _LONGEST_GRACE_S)

    @property
    def _ends(self) -> bool:
        """True if the subscriber ends when it is too slow."""
        return self.action in ("raise", "exit_process")


PATIENT: Final = SlowPolicy("warn", max_lag=LONGEST_S)
"""Policy of a subscriber that receives every message, however late."""


# The compiled half, which runs in the slice thread.

_LONG_NS: Final = 10_000_000
"""A callback that runs for longer may hang."""

_LAST_WORDS = numpy.frombuffer(
    b"blackbox: slow subscriber: a callback did not return in the grace time, the process ends itself\n",
    numpy.uint8,
)


@inner
def is_over(at: SliceAt) -> bool:
    """Return True if the subscriber must end now."""
    return load_shared(slice_state_at(at.state), "stopping") == Stopping.TERMINATE


@inner
def corrected(at: SliceAt, lag_ns: int) -> int:
    """Return a lag, corrected by the known difference of the two clocks."""
    return max(0, lag_ns - slice_counters_at(at.counters).clock_offset_ns)


@inner
def lag_of(at: SliceAt, ts_out: int, now: int) -> int:
    """Return the corrected lag of a block in ns, and record it."""
    counters = slice_counters_at(at.counters)
    lag = now - ts_out
    if lag < 0:
        counters.negative_lag += 1
    counters.last_lag_ns = corrected(at, lag)
    return counters.last_lag_ns


@inner
def age_of(at: SliceAt, ts_in: int, now: int) -> int:
    """Return the corrected age of a block in ns, and record it; 0: unknown."""
    age: int = 0 if ts_in == 0 else corrected(at, now - ts_in)
    slice_counters_at(at.counters).last_age_ns = age
    return age


@inner
def act_on_lag(at: SliceAt, lag_ns: int, age_ns: int) -> int:
    """Apply the policy: return PROCEED if lag and age are within limits or in the grace time, else the action.

    An alert is requested first. After END, further deliveries are only counted as due: see `dispatch`.
    """
    if lag_ns <= at.max_lag_ns and age_ns <= at.max_age_ns:
        return Action.PROCEED
    state = slice_state_at(at.state)
    if monotonic_ns() < load_shared(state, "acts_from_ns"):
        return Action.PROCEED
    state.alert_lag_ns = max(state.alert_lag_ns, lag_ns)
    state.alert_age_ns = max(state.alert_age_ns, age_ns)
    if state.alert == 0:
        store_shared(state, "alert", 1)
        poke(at.news_fd, at.state)
    if at.action == Action.EXIT:
        _await_release(at)
        return Action.END
    while at.action == Action.END and load_shared(state, "stopping") != Stopping.TERMINATE:
        wait_readable(numpy.int64(0), numpy.int64(0), at.wake_fd, numpy.int64(IDLE_MS), at.scratch)
    return at.action


@inner
def _await_release(at: SliceAt) -> None:
    """Wait for Python to end the workers; if it does not within the grace time, end the process from here."""
    deadline = monotonic_ns() + at.grace_ns
    last_words = _LAST_WORDS
    state = slice_state_at(at.state)
    while load_shared(state, "released") == 0:
        if monotonic_ns() > deadline:
            write_file(2, last_words.ctypes.data, len(last_words))
            exit_process(EXIT_SLOW)
        wait_readable(numpy.int64(0), numpy.int64(0), at.wake_fd, numpy.int64(IDLE_MS), at.scratch)
    store_shared(state, "stopping", Stopping.TERMINATE)  # already set if the workers were released


def end_process() -> None:
    """End the process for a slice thread whose own callback does not return."""
    os.write(2, _LAST_WORDS.tobytes())
    os._exit(EXIT_SLOW)


@inner
def may_call_python(at: SliceAt, tick: int) -> bool:
    """Return True unless a callback has been running for long, which may never release the GIL."""
    is_free = True
    for worker in range(at.workers):
        since = load_shared(worker_counters_at(at.worker_counters + WORKER_COUNTERS_BYTES * worker), "busy_since_ns")
        is_free &= since <= 0 or tick - since < _LONG_NS
    return is_free


@inner
def act_on_stuck(at: SliceAt, tick: int) -> bool:
    """Apply the policy to workers stuck in one callback while blocks wait; return True if the subscriber ended."""
    for worker in range(at.workers):
        counters = worker_counters_at(at.worker_counters + WORKER_COUNTERS_BYTES * worker)
        since = load_shared(counters, "busy_since_ns")
        waits = counters.sent != counters.blocks or load_shared(counters, "has_more") != 0
        if waits and since > 0 and act_on_lag(at, tick - since, 0) == Action.END:
            return True
    return False
