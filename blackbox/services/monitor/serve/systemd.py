"""Notifications to systemd: ready, alive, stopping, and the status as text. See sd_notify(3).

They are sent in a thread: `READY=1` once all parts have begun their work, even if they still wait for publishers, and
`WATCHDOG=1` while all parts are healthy. systemd restarts a process whose watchdog falls silent. A second `READY=1`
would mean the end of a reload, which no command has; later changes are in the status.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from blackbox.native.system.limits import start_thread
from blackbox.repeated_log import RepeatedLog
from blackbox.services.monitor.serve.watched import Watched

log = logging.getLogger("blackbox")

VARIABLE: Final = "NOTIFY_SOCKET"
_LOOK_S: Final = 1.0
_PER_WATCHDOG: Final = 3
"""Notifications within one time limit of the watchdog."""
_MOST_TEXT: Final = 500


class Notifier:
    """Notifies the service manager that started this process, from `start` until `stop`."""

    def __init__(self, watched: Watched, environment: Mapping[str, str] | None = None) -> None:
        """`environment`: of the process, by default. Without `NOTIFY_SOCKET` nothing is sent."""
        environment = os.environ if environment is None else environment
        self._watched = watched
        self._address = environment.get(VARIABLE, "")
        self._watchdog_s = _watchdog_s(environment)
        self._sent = ("", "")
        """The last notifications that arrived: READY, and the status."""
        self._repeated = RepeatedLog(log)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="blackbox-notify", daemon=True)

    def start(self) -> None:
        """Start the thread, if there is a service manager."""
        if self._address:
            start_thread(self._thread)

    def stop(self) -> None:
        """Send `STOPPING=1`, and end the thread."""
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
            self._send("STOPPING=1")

    def _run(self) -> None:
        pause_s = min(_LOOK_S, self._watchdog_s / _PER_WATCHDOG) if self._watchdog_s else _LOOK_S
        while True:
            try:
                self.look()
            except Exception:  # noqa: BLE001 - logged; the watchdog then ends the process
                text = "the state of the process could not be sent to systemd"
                self._repeated.log(logging.ERROR, "", text, exc_info=True)
            if self._over.wait(pause_s):
                return

    def look(self) -> None:
        """Send what has changed, and that the process is alive."""
        seen = self._watched.look()
        has_begun = bool(self._sent[0]) or all(each.has_begun for each in seen.observed)
        text = " ".join(seen.reasons)[:_MOST_TEXT].replace("\n", " ") or "ready"
        now = "READY=1" if has_begun else "", f"STATUS={text}"
        lines = [line for line, before in zip(now, self._sent, strict=True) if line != before]
        if self._watchdog_s and seen.is_healthy:
            lines.append("WATCHDOG=1")
        if lines and self._send("\n".join(lines)):  # else again at the next look: without READY=1 the start fails
            self._sent = now

    def _send(self, text: str) -> bool:
        """Return True if the service manager has got it."""
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(_LOOK_S)
            sender.sendto(text.encode(), address)
            return True
        return False


def _watchdog_s(environment: Mapping[str, str]) -> float:
    """Return the time limit of the watchdog, in seconds; 0.0 without a watchdog for this process."""
    limit, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", str(os.getpid()))
    return int(limit) / 1e6 if limit.isdigit() and pid == str(os.getpid()) else 0.0
