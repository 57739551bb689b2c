"""Common part of bridges from Redis and RabbitMQ: a thread that receives messages and reconnects."""

from __future__ import annotations

import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from blackbox.errors import BlackBoxError
from blackbox.feed.feed import Feed, check_is_feed
from blackbox.feed.routing.prefixes import Prefixes
from blackbox.feed.symbol_choice import TopicChoice
from blackbox.native.system.limits import start_thread
from blackbox.services.bridge.bridge import Say
from blackbox.services.bridge.carrier import AGAIN_S, AWAY, MOST_AGAIN_S, Away
from blackbox.transport.wakeup import Pipe, readable

log = logging.getLogger("blackbox")

_END_S: Final = 10.0
WAIT_S: Final = 1.0


class Inlet(ABC):
    """Receives messages from another system in its own thread.

    Life: NEW, `start`, then until `close`, or an error that `run` raises. It is used once.
    """

    def __init__(self, feed: Feed, url: str, prefix: Prefixes, symbols: Iterable[str | bytes] | None) -> None:
        """Store the settings; nothing is opened. `url`: without password. Raises ConfigError."""
        check_is_feed(feed)
        self.feed, self.url = feed, url
        self._topics = TopicChoice.of(feed, prefix, symbols)
        self._over = threading.Event()
        self._failure: BaseException | None = None
        self._pipe = Pipe()
        self._counts = {"refused": 0, "told missing": 0, "times away": 0}
        self._pause_s = AGAIN_S
        self.away = ""
        """Why the other system is unreachable; empty: it is reachable."""
        self._thread = threading.Thread(target=self._work, name="blackbox-bridge", daemon=True)

    def start(self) -> Self:
        """Begin, even if the other system is unreachable. Raises BridgeError if it refuses; LimitError.

        Errors of the feed.
        """
        with suppress(Away):  # the thread retries
            self._check()
        self._open()
        start_thread(self._thread)
        return self

    def run(self) -> None:
        """Wait until it ends. Raises the error that ended it."""
        while not self._over.wait(WAIT_S):
            pass
        if self._failure is not None:
            raise self._failure

    def carry(self, say: Say) -> None:
        """Run until a signal: see `Bridge`."""
        self.start()
        try:
            with self:
                say(f"{self.url} is carried into feed {self.feed.name!r}")
                self.run()
        finally:  # counts the last messages too
            say(", ".join(f"{count} {what}" for what, count in self.statistics().items()))

    def close(self) -> None:
        """Carry everything received, then end."""
        self._end()
        if self._thread.ident is not None:
            self._thread.join(_END_S)
        self._close()

    def statistics(self) -> Mapping[str, int]:
        """Return a snapshot of the counters."""
        return dict(self._counts)

    def __enter__(self) -> Self:
        return self if self._thread.ident is not None else self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.close()
            return
        with suppress(BlackBoxError):  # the block's own error is raised
            self.close()

    def _end(self) -> None:
        self._over.set()
        self._pipe.poke()

    @abstractmethod
    def _check(self) -> None:
        """Check if the other system accepts a connection. Raises Away, BridgeError."""

    @abstractmethod
    def _open(self) -> None:
        """Open the feed's side."""

    @abstractmethod
    def _close(self) -> None:
        """Close the feed's side, after the thread has ended."""

    @abstractmethod
    def _serve(self) -> None:
        """Connect and receive until `_over`, in the thread. Called again after Away."""

    # In the thread.

    def _work(self) -> None:
        try:
            while not self._over.is_set():
                try:
                    self._serve()
                except Away as error:
                    if self._pause_s == AGAIN_S:
                        log.warning(AWAY, self.url, error)
                    self.away = str(error) or "no connection"
                    self._over.wait(self._pause_s)
                    self._pause_s = min(2 * self._pause_s, MOST_AGAIN_S)
        except BaseException as error:  # noqa: BLE001 - `run` raises it
            self._failure = error
        finally:
            self._end()

    def _note_there(self, lost: str) -> None:
        """Note that the other system is reachable; `lost` says what happened to messages during the outage."""
        self.away = ""
        if self._pause_s != AGAIN_S:
            log.warning("%s is back: %s", self.url, lost)
            self._counts["times away"] += 1
            self._pause_s = AGAIN_S

    def _refuse(self, why: str) -> bool:
        """Count a message that the feed cannot have. Return False."""
        if not self._counts["refused"]:
            log.warning("%s: a message was refused; further ones are only counted: %s", self.url, why)
        self._counts["refused"] += 1
        return False

    def _note_missing(self, count: int, why: str = "were lost at the source") -> None:
        """Count lost messages, and log why."""
        log.warning("%s: %d messages %s", self.url, count, why)
        self._counts["told missing"] += count

    def _wait_for(self, socket: int, timeout: float = WAIT_S) -> bool:
        """Wait for input or a wake-up of the thread; return True for input."""
        ready = readable(socket, self._pipe.reader, timeout=timeout)
        if self._pipe.reader in ready:
            with suppress(BlockingIOError):
                os.read(self._pipe.reader, 1 << 16)
        return socket in ready


def time_of(ts_event: object) -> int:
    """Return the time of a received message, ns since 1970; 0 if it is missing or invalid."""
    return ts_event if type(ts_event) is int and -(1 << 63) <= ts_event < 1 << 63 else 0
