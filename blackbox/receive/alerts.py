"""Alerts of a process: their form, one JSON document in one frame; and sending them to log and operator console."""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
import zmq

from blackbox.documents import Decoder
from blackbox.errors import CallbackError, EndpointError, GapError, SlowSubscriberError
from blackbox.feed.feed import Feed
from blackbox.native.system.limits import Needs
from blackbox.receive.callbacks.callbacks import IN_SLICE
from blackbox.receive.slow_subscriber import NO_LIMIT_NS, SlowPolicy
from blackbox.receive.state import SliceState, Stopping
from blackbox.repeated_log import RepeatedLog
from blackbox.transport.context import allow_ipv6, new_context
from blackbox.transport.keep_alive import keep_alive

if TYPE_CHECKING:
    from blackbox.receive.slices.slice_status import SliceStatus

log = logging.getLogger("blackbox")

MOST_ALERT_BYTES: Final = 65_536
_MOST_TEXT: Final = 4_096
_FULL_DISK: Final = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)))
_ALERT_S: Final = 1.0
"""Least seconds between two alerts of one slice."""
_SAME_S: Final = 3 * _ALERT_S
"""Time within which another alert of a kind continues the earlier one."""
_QUEUE_FRAMES: Final = 100
_LINGER_MS: Final = 500

Severity = Literal["warning", "error"]
_Text = Annotated[str, msgspec.Meta(max_length=_MOST_TEXT)]


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One alert of one process."""

    kind: _Text
    """One word for the fault: `slow_callback`, `late_blocks`, `late_publisher`, `full_disk`, `disk_error`,
    `gap`, `failed_callback`, `failed`."""
    severity: Severity
    """"error": it has ended, or loses messages."""
    feed: _Text
    slice_id: Annotated[int, msgspec.Meta(ge=0, le=65_535)] | None = msgspec.field(name="slice", default=None)
    """None: not about one slice."""
    host: _Text
    pid: Annotated[int, msgspec.Meta(ge=0)]
    role: _Text
    """subscriber or recorder."""
    text: _Text
    """One sentence with the value and its limit."""
    since_ns: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
    """When it began, ns since 1970."""

    def encode(self) -> bytes:
        """Return the frame for the console."""
        text = self.text.encode(errors="backslashreplace").decode()  # a file name in it may be no text
        return msgspec.json.encode(msgspec.structs.replace(self, text=text[:_MOST_TEXT]))


ALERTS: Final = Decoder[Alert]("json", Alert, MOST_ALERT_BYTES)
"""Decodes frames from processes, which are untrusted. Raises DecodeError."""


def this_host() -> str:
    """Return the name of this host."""
    return socket.gethostname()


def kind_of(error: Exception) -> str:
    """Return the kind of an error that ends a subscriber."""
    if isinstance(error, GapError):
        return "gap"
    return "failed_callback" if isinstance(error, CallbackError) else "failed"


def kind_of_disk_error(text: str) -> str:
    """Return `full_disk` or `disk_error` for the error that ended a recording."""
    return "full_disk" if any(reason in text for reason in _FULL_DISK) else "disk_error"


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
        self._repeated = RepeatedLog(log)
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
        self._repeated.log(logging.CRITICAL, (kind, slice_id), "%s", text)
        self._to_console(kind, shown, slice_id, severity)
        if self._policy.on_alert is not None:
            try:
                self._policy.on_alert(text)
            except BaseException:  # noqa: BLE001 - logged; a broken hook must not stop the policy, even by SystemExit
                self._repeated.log(logging.ERROR, "", "on_alert raised", exc_info=True)

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
            text = "operator console %s did not take the alert"
            self._repeated.log(logging.ERROR, "", text, self._console)

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
