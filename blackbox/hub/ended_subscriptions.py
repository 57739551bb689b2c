"""Report ended subscriptions to the hub's archive, which then keeps no days for them."""

from __future__ import annotations

import logging
import os
import threading
from typing import Final

from blackbox.archive.consumer_positions import PositionFile, consumers, secret_of
from blackbox.archive.serve.client import ArchiveClient
from blackbox.errors import BlackBoxError, PositionError
from blackbox.feed.feed import Feed
from blackbox.hub.inbox import Subscription
from blackbox.native.limits import start_thread
from blackbox.native.waits import join

log = logging.getLogger("blackbox")

_AGAIN_S: Final = 5.0
_ANSWER_S: Final = 1.0


class EndedSubscriptions:
    """Subscriptions of a client that ended and are not reported to archives yet.

    In: notes in the client's directory, see `PositionFile.end`. Out: reports to all archives, repeated until each has
    answered; then the note is deleted. A thread of its own from the first `report` on, as archives may be away.
    """

    def __init__(self, feed: Feed, directory: str | os.PathLike[str], client: str) -> None:
        self._archives = ArchiveClient(feed, timeout=_ANSWER_S)
        self._directory, self._client = directory, client
        self._wake = threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def report(self) -> None:
        """Report what is not reported yet, now and until it is. Raises PositionError. Not for two threads at once."""
        if not self._notes():
            return
        self._wake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="blackbox-ended", daemon=True)
            start_thread(self._thread)

    def close(self) -> None:
        """Try once more, and end; what is left is reported at the next start."""
        self._is_closed = True
        self._wake.set()
        if self._thread is not None:
            join(self._thread)

    def _run(self) -> None:
        is_all = True
        while True:
            self._wake.wait(None if is_all else _AGAIN_S)
            self._wake.clear()
            is_last = self._is_closed
            is_all = self._report_all()
            if is_last:
                return

    def _report_all(self) -> bool:
        """Report each note; return True if none is left. Once closed, a failure ends it: each report may take long."""
        is_all = True
        try:
            for file in self._notes():
                is_all &= self._report(file)
                if self._is_closed and not is_all:
                    break
        except PositionError as error:
            log.warning("%s", error)
            return False
        return is_all

    def _report(self, file: PositionFile) -> bool:
        try:
            file.own(0.0)  # until the archives have answered: a new subscription of this name comes after it
            try:
                if file.has_ended:
                    self._archives.tell(file.name, {}, secret_of(self._directory))
                    file.forget()
            finally:
                file.close()
        except BlackBoxError as error:
            log.info("%s", error)
            return False
        return True

    def _notes(self) -> list[PositionFile]:
        found = consumers(self._directory)
        return [each for each in found if Subscription.of_consumer(self._client, each.name) and each.has_ended]
