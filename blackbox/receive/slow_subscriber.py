"""Policy for a subscriber that cannot keep up: alerts, action, and the compiled half."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from datetime import timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Literal

import msgspec
import numpy
import zmq

from blackbox.arguments import LONGEST_S, check_function, duration_ns
from blackbox.errors import EndpointError, SlowSubscriberError
from blackbox.feed.feed import Feed
from blackbox.native.memory.intrinsics import inner
from blackbox.native.memory.records import load_shared, store_shared
from blackbox.native.system.limits import Needs
from blackbox.native.system.posix import exit_process, monotonic_ns, poke, write_file
from blackbox.receive.alert import Alert, Severity, this_host
from blackbox.receive.callbacks.callbacks import IN_SLICE
from blackbox.receive.slice_memory import SliceAt
from blackbox.receive.state import (
    IDLE_MS,
    WORKER_COUNTERS_BYTES,
    SliceState,
    Stopping,
    slice_counters_at,
    slice_state_at,
    worker_counters_at,
)
from blackbox.transport.context import allow_ipv6, new_context
from blackbox.transport.keep_alive import keep_alive
from blackbox.transport.libzmq import wait_readable

if TYPE_CHECKING:
    from blackbox.receive.slices.slice_status import SliceStatus

log = logging.getLogger("blackbox")


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
_ALERT_S = 1.0
"""Least seconds between two alerts of one slice."""
_SAME_S: Final = 3 * _ALERT_S
"""Time within which another alert of a kind continues the earlier one."""
NO_LIMIT_NS: Final = (1 << 63) - 1
_LONGEST_GRACE_S = 1_000_000.0
_QUEUE_FRAMES = 100
_LINGER_MS = 500


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
    JSON in one frame, see `blackbox.receive.alert`. Default: `console` of the feed's `[monitor]`, if any."""
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


class Alerts:
    """Send alerts to the log, the policy's function and the operator's console. Used by one thread.

    Sending never waits: a missing console must not delay the end of a slow subscriber.
    """

    def __init__(self, feed: Feed, policy: SlowPolicy, role: str = "subscriber") -> None:
        self._feed, self._policy, self._role = feed, policy, role
        of_feed = "" if feed.monitor is None else feed.monitor.console
        self._console = policy.console or of_feed
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._next: dict[int, float] = {}
        self._since_ns: dict[tuple[str, int], tuple[int, float]] = {}
        """By kind and slice: when it began, and until when another alert continues it."""

    def open(self) -> None:
        """Connect to the console in advance, so that the first alert does not wait for a connection.

        Raises EndpointError if the console's endpoint is unusable.
        """
        endpoint = self._console
        if endpoint:
            self._context = new_context("operator console", Needs(descriptors=2))
            self._socket = self._context.socket(zmq.PUSH)
            self._socket.sndhwm = _QUEUE_FRAMES
            self._socket.linger = _LINGER_MS
            allow_ipv6(self._socket, endpoint)
            keep_alive(self._socket, must_take=True)
            try:
                self._socket.connect(endpoint)
            except zmq.ZMQError as error:
                self.close()
                text = f"cannot connect to operator console {endpoint}: {error.strerror}"
                raise EndpointError(error.errno, text) from error

    def check(self, status: SliceStatus, running: Callable[[], list[str]] = list) -> SlowSubscriberError | None:
        """Send an alert if a slice lags, at most once a second; return the error if the subscriber must end.

        Also if a callback blocks the slice thread itself. `running` describes the callbacks that run now.
        """
        if time.monotonic() < self._next.get(status.slice_id, 0.0):
            return None
        lag_ns, age_ns = self._take_worst_ns(status)
        if not lag_ns and not age_ns:
            return None
        limit_ns = self._policy._limit_ns(self._feed)
        how = f"lags {lag_ns / 1e9:.3f} s, limit {limit_ns / 1e9:.3f} s"
        if lag_ns <= limit_ns:
            how = f"gets messages {age_ns / 1e9:.3f} s old, limit {self._policy._age_limit_ns / 1e9:.3f} s"
        self._next[status.slice_id] = time.monotonic() + _ALERT_S
        text = f"slow subscriber: feed {self._feed.name!r} slice {status.slice_id} {how}, policy {self._policy.action}"
        callbacks = running()
        waits = any(each.sent != each.blocks for each in status.counters.workers)
        kind = "late_publisher" if lag_ns <= limit_ns else "slow_callback" if callbacks or waits else "late_blocks"
        shown = "; ".join([text, *callbacks])
        self._send(kind, text, shown, status.slice_id, "error" if self._policy._ends else "warning")
        return SlowSubscriberError(text) if self._policy._ends else None

    def report(self, kind: str, text: str, slice_id: int | None = None) -> None:
        """Send an alert about an error that ends the process's work. The log has it already."""
        self._to_console(kind, text, slice_id, "error")

    def _take_worst_ns(self, status: SliceStatus) -> tuple[int, int]:
        """Return and reset the worst lag and age (ns) for which the policy applied; 0, 0: it did not."""
        state, busy_ns = status.state, status.counters.busy_ns(IN_SLICE)
        acts = time.monotonic_ns() >= state.acts_from_ns and state.stopping != Stopping.TERMINATE
        if acts and busy_ns > self._policy._limit_ns(self._feed):
            return busy_ns, 0
        if not state.alert:
            return 0, 0
        worst_ns = state.alert_lag_ns, state.alert_age_ns
        state.alert_lag_ns = state.alert_age_ns = state.alert = 0
        return worst_ns

    def put_off(self, state: SliceState) -> None:
        """Delay the policy of a slice, since this process compiles."""
        if state.acts_from_ns != NO_LIMIT_NS:
            state.acts_from_ns = max(state.acts_from_ns, time.monotonic_ns() + self._policy._start_grace_ns)

    def _send(self, kind: str, text: str, shown: str, slice_id: int, severity: Severity) -> None:
        log.critical(text)
        self._to_console(kind, shown, slice_id, severity)
        if self._policy.on_alert is not None:
            try:
                self._policy.on_alert(text)
            except Exception:  # a broken hook must not stop the policy
                log.exception("on_alert raised")

    def _to_console(self, kind: str, text: str, slice_id: int | None, severity: Severity) -> None:
        if self._socket is None:
            return
        alert = Alert(
            kind=kind,
            severity=severity,
            feed=self._feed.name,
            slice_id=slice_id,
            host=this_host(),
            pid=os.getpid(),
            role=self._role,
            text=text,
            since_ns=self._began_ns(kind, -1 if slice_id is None else slice_id),
        )
        try:
            self._socket.send(alert.encode(), zmq.DONTWAIT)
        except zmq.Again:
            log.error("operator console %s did not take the alert", self._console)

    def _began_ns(self, kind: str, slice_id: int) -> int:
        """Return when a run of alerts of one kind began, ns since 1970."""
        now = time.monotonic()
        began_ns, until = self._since_ns.get((kind, slice_id), (0, 0.0))
        began_ns = began_ns if now < until else time.time_ns()
        self._since_ns[kind, slice_id] = began_ns, now + _SAME_S
        return began_ns

    def close(self) -> None:
        """Close the console's connection; pending alerts get half a second to be sent."""
        if self._socket is not None and self._context is not None:
            self._socket.close()
            self._context.term()
            self._socket = None


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
