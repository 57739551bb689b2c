"""Report begun and ended subscriptions to the hub's archives, which keep messages for them until they end."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable
from typing import Final

from blackbox.archive.consumer_positions import PositionFile, consumers, secret_of
from blackbox.archive.serve.client import ArchiveClient
from blackbox.errors import BlackBoxError, PositionError
from blackbox.feed.feed import Feed
from blackbox.native.system.limits import start_thread
from blackbox.native.system.waits import join
from blackbox.services.hub.client.durable_subscription import Subscription

log = logging.getLogger("blackbox")

_AGAIN_S: Final = 5.0
_ANSWER_S: Final = 1.0


class SubscriptionReports:
    """Subscriptions of a client that began or ended and are not reported to archives yet.

    In: arguments of `report`, and notes of ended subscriptions in the client's directory, see `PositionFile.end`.
    Out: reports to all archives, repeated until each has answered; then the note is deleted. From the first report on,
    a separate thread sends them, as archives may be away.
    """

    def __init__(self, feed: Feed, directory: str | os.PathLike[str], client: str) -> None:
        self._archives = ArchiveClient(feed, timeout=_ANSWER_S)
        self._feed, self._directory, self._client = feed, directory, client
        self._begun: dict[str, list[bytes]] = {}
        """Prefixes of a subscription's topics, by name of the consumer."""
        self._wake = threading.Event()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def report(self, begun: Iterable[Subscription] = ()) -> None:
        """Report subscriptions until archives have answered. Raises PositionError. Not for two threads at once.

        `begun`: subscriptions that archives may not know yet. Their readers report later positions.
        """
        for each in begun:
            self._begun[each.consumer(self._client)] = [start for start, _ in each.choice(self._feed).starts]
        if not self._begun and not self._notes():
            return
        self._wake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="blackbox-ended", daemon=True)
            start_thread(self._thread)

    def close(self) -> None:
        """Try once more, and end. The next start reports the rest."""
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
        """Report each note; return True if none is left. Once closed, stop at a failure, as each may take long."""
        is_all = True
        try:
            for file in [*self._notes(), *(PositionFile(self._directory, name) for name in list(self._begun))]:
                is_all &= self._report(file)
                if self._is_closed and not is_all:
                    break
        except PositionError as error:
            log.warning("%s", error)
            return False
        return is_all

    def _report(self, file: PositionFile) -> bool:
        try:
            secret = secret_of(self._directory)
            if (kept := file.read()) is not None:
                self._archives.tell(file.name, kept.slices, secret, self._begun.get(file.name, ()))
            else:
                self._report_end(file, secret)
            self._begun.pop(file.name, None)
        except BlackBoxError as error:
            log.info("%s", error)
            return False
        return True

    def _report_end(self, file: PositionFile, secret: bytes) -> None:
        file.own(0.0)  # until archives have answered: a new subscription of this name must be later
        try:
            if file.has_ended:
                self._archives.tell(file.name, {}, secret)
                file.forget()
        finally:
            file.close()

    def _notes(self) -> list[PositionFile]:
        found = consumers(self._directory)
        return [each for each in found if Subscription.of_consumer(self._client, each.name) and each.has_ended]
