"""Forward events to a webhook or a command, in a thread with a bounded queue."""

from __future__ import annotations

import logging
import queue
import shlex
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from typing import Final
from urllib.parse import urlsplit

import msgspec

from blackbox.errors import ConfigError
from blackbox.native.system.limits import start_thread
from blackbox.numbers import counted
from blackbox.repeated_log import RepeatedLog
from blackbox.services.monitor.console.history import Event

log = logging.getLogger("blackbox")

_QUEUE_EVENTS: Final = 1_000
_WEBHOOK_S: Final = 5.0
_COMMAND_S: Final = 10.0
_END_S: Final = 5.0


class Forwarded(msgspec.Struct, frozen=True):
    """Counts of events."""

    sent: int = 0
    failed: int = 0
    """Refused or not answered in time; they are not sent again."""
    dropped: int = 0
    """Left out because too many waited, or not sent in time at the end."""


class Forwarder:
    """Sends each event to one target. Events wait in a queue; a slow target delays nothing else."""

    def __init__(self, what: str, send: Callable[[bytes], None]) -> None:
        """`send` passes one JSON document on; it raises OSError or ValueError."""
        self._what, self._send = what, send
        self._queue: queue.Queue[bytes | None] = queue.Queue(_QUEUE_EVENTS)
        self._queued = self._sent = self._failed = self._dropped = 0
        self._repeated = RepeatedLog(log)
        self._give_up_at = float("inf")
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="blackbox-forward", daemon=True)
        start_thread(self._thread)

    def put(self, event: Event) -> None:
        """Queue an event, or count it as dropped."""
        try:
            self._queue.put_nowait(msgspec.json.encode(event))
            self._queued += 1
        except queue.Full:
            self._dropped += 1
            self._repeated.warning("", "%s is too slow, and an event was dropped", self._what)

    @property
    def counts(self) -> Forwarded:
        """Counts of the events so far."""
        return Forwarded(self._sent, self._failed, self._dropped)

    def close(self) -> None:
        """Send what waits, for at most five seconds; the rest counts as dropped, and is logged."""
        self._give_up_at = time.monotonic() + _END_S
        with suppress(queue.Full):
            self._queue.put(None, timeout=_END_S)
        self._thread.join(max(0.0, self._give_up_at - time.monotonic()))
        self._is_over = True  # what is being sent counts as dropped
        if left := self._queued - self._sent - self._failed:
            self._dropped += left
            log.warning("%s did not take the last %s in time", self._what, counted(left, "event"))

    def _run(self) -> None:
        while (data := self._queue.get()) is not None and time.monotonic() <= self._give_up_at:
            try:
                self._send(data)
                self._sent += not self._is_over
            except (OSError, ValueError, HTTPException, subprocess.SubprocessError) as error:
                self._failed += not self._is_over
                self._repeated.warning("", "%s did not take an event: %s", self._what, error)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Makes a redirect an error: following it would be a GET, without the event."""

    def redirect_request(self, *_: object, **__: object) -> None:
        """Return no request."""


def webhook(url: str) -> Forwarder:
    """Return a forwarder that posts each event as JSON. Raises ConfigError unless the URL is http or https."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"webhook was {parts.scheme}://..., expected http://HOST or https://HOST")
    if not url.isascii() or any(each.isspace() or not each.isprintable() for each in url):  # an error would show it all
        raise ConfigError(f"webhook on {parts.hostname} had a space or a letter beyond ASCII, expected them as %XX")

    opener = urllib.request.build_opener(_NoRedirect)

    def send(data: bytes) -> None:
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        with opener.open(request, timeout=_WEBHOOK_S):
            pass

    return Forwarder(f"webhook {parts.hostname}", send)


def command(text: str) -> Forwarder:
    """Return a forwarder that runs a command for each event, with JSON on its stdin. Raises ConfigError."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"command was {text!r}: {error}") from None
    if not words:
        raise ConfigError("command was empty, expected a program and its arguments")

    def send(data: bytes) -> None:
        subprocess.run(words, input=data, stdout=subprocess.DEVNULL, timeout=_COMMAND_S, check=True)

    return Forwarder(f"command {words[0]!r}", send)
