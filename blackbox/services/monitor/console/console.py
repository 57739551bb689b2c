"""The operator console: receive alerts, watch, decide what is wrong, and report each change."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

import msgspec
import zmq

from blackbox.documents import DecodeError
from blackbox.native.system.limits import Needs
from blackbox.receive.alerts import ALERTS, MOST_ALERT_BYTES
from blackbox.repeated_log import RepeatedLog
from blackbox.services.monitor.console.forward import Forwarded, Forwarder
from blackbox.services.monitor.console.history import Event, History, HistoryError
from blackbox.services.monitor.watch.conditions import Condition, Finding, finding_of
from blackbox.services.monitor.watch.watch import Watch
from blackbox.services.monitor.watch.watcher import Watcher
from blackbox.transport.context import allow_ipv6, new_context
from blackbox.transport.keep_alive import keep_alive
from blackbox.transport.server_thread import bind

_LOOK_S: Final = 0.5
"""Time between two looks at the installation."""
_QUEUE_ALERTS: Final = 1_000
_MOST_TAKEN: Final = 1_000
"""Most alerts taken per look."""

log = logging.getLogger("blackbox")


class ConsoleReport(msgspec.Struct, frozen=True, kw_only=True):
    """State of a console."""

    conditions: tuple[Condition, ...]
    """Present conditions."""
    alerts: int
    """Alerts received."""
    malformed: int
    """Frames received that were no alerts."""
    left_out: int
    """Findings without room: there were too many conditions."""
    forwarded: tuple[Forwarded, ...]
    """By target: the webhook, then the command."""
    unwritten: int = 0
    """Events that the history lacks, as on a full disk."""


class Console:
    """Runs in a `with` block, in the thread that entered it: it owns the socket, the history and the forwarders."""

    def __init__(
        self,
        watcher: Watcher,
        endpoint: str = "",
        history: History | None = None,
        forwarders: Sequence[Forwarder] = (),
        say: Callable[[Event], None] = lambda _: None,
    ) -> None:
        """`endpoint`: where processes send alerts; empty: none. `say` is called for each change."""
        self.watch = Watch(watcher)
        self._endpoint, self._history, self._forwarders, self._say = endpoint, history, forwarders, say
        self._alerts = self._malformed = self._unwritten = 0
        self._repeated = RepeatedLog(log)
        self._socket: zmq.Socket[bytes] | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Bind, start to watch, and take the conditions of the last run. Raises EndpointError, HistoryError."""
        with ExitStack() as stack:
            if self._endpoint:
                context = stack.enter_context(new_context("operator console", Needs(descriptors=64)))
                self._socket = stack.enter_context(context.socket(zmq.PULL))
                self._socket.rcvhwm, self._socket.linger = _QUEUE_ALERTS, 0
                self._socket.setsockopt(zmq.MAXMSGSIZE, MOST_ALERT_BYTES)
                allow_ipv6(self._socket, self._endpoint)
                keep_alive(self._socket)
                bind(self._socket, self._endpoint, "operator console")
            stack.enter_context(self.watch.watcher)
            if self._history is not None:
                self.watch.conditions.restore(self._history.still_raised(), time.monotonic_ns())
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def run(self, seconds: float | None = None) -> None:
        """Look twice a second, for `seconds` or until an interrupt."""
        deadline = float("inf") if seconds is None else time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.look(min(_LOOK_S, max(0.0, deadline - time.monotonic())))

    def look(self, wait_s: float = 0.0) -> None:
        """Take alerts for `wait_s` seconds, then look at the installation once, and report changes."""
        changes = self.watch.look(self._take(wait_s))
        now_ns = self.watch.installation.now.now_ns
        for condition in changes.raised:
            self._report(Event(at_ns=now_ns, change="raised", condition=condition))
        for condition in changes.cleared:
            self._report(Event(at_ns=now_ns, change="cleared", condition=condition))

    def report(self) -> ConsoleReport:
        """Return the present state."""
        return ConsoleReport(
            conditions=tuple(self.watch.conditions.now),
            alerts=self._alerts,
            malformed=self._malformed,
            left_out=self.watch.conditions.left_out,
            forwarded=tuple(each.counts for each in self._forwarders),
            unwritten=self._unwritten,
        )

    def _report(self, event: Event) -> None:
        if self._history is not None:
            try:
                self._history.append(event)  # first, so that every event shown is also kept if this process is killed
            except HistoryError as error:  # people must still hear of it, above all of a full disk
                self._repeated.log(logging.ERROR, "", "an event is not in the history: %s", error)
                self._unwritten += 1
        self._say(event)
        for forwarder in self._forwarders:
            forwarder.put(event)

    def _take(self, wait_s: float) -> list[Finding]:
        """Receive alerts for `wait_s` seconds."""
        deadline, found = time.monotonic() + wait_s, list[Finding]()
        if self._socket is None:
            time.sleep(wait_s)
        while self._socket is not None and len(found) < _MOST_TAKEN:
            if not self._socket.poll(max(0, round(1e3 * (deadline - time.monotonic())))):
                break
            frames = self._socket.recv_multipart()
            try:
                (frame,) = frames
                found.append(finding_of(ALERTS.decode(frame)))
                self._alerts += 1
            except (DecodeError, ValueError):
                self._malformed += 1
        return found
