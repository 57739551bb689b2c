"""The durable subscriptions of a client, each with its own position."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from blackbox.block.batch.batch import Message
from blackbox.errors import ConfigError
from blackbox.feed.feed import Feed
from blackbox.feed.routing.prefixes import Prefixes
from blackbox.services.hub.client.arrivals import Arrivals
from blackbox.services.hub.client.durable_subscription import Inbox, Subscription, not_subscribed, subscriptions_of
from blackbox.services.hub.client.subscription_reports import SubscriptionReports
from blackbox.services.hub.protocol import Welcome


class Subscriptions:
    """All durable subscriptions of a client with a directory; a client without one has none."""

    def __init__(
        self, feed: Feed, client: str, directory: str | os.PathLike[str] | None, queue: int, *, keep: bool
    ) -> None:
        self._feed, self._client, self._directory = feed, client, directory
        self._queue, self._keep = queue, keep
        self._inboxes: dict[Subscription, Inbox] = {}
        self._changing = threading.Lock()
        """Held while a subscription begins or is reported."""
        self.arrivals = Arrivals()
        self.looks = 0
        """Number of checks of several subscriptions. Each check begins at another one."""
        self._reports = None if directory is None else SubscriptionReports(feed, directory, client)

    @property
    def names(self) -> list[Subscription]:
        """All subscriptions."""
        return sorted(self._inboxes)

    def read(self) -> None:
        """Read the subscriptions in the directory. Raises PositionError."""
        for each in subscriptions_of(self._directory, self._client) if self._directory is not None else ():
            self._inboxes[each] = self._new_inbox(each)

    def report(self) -> None:
        """Report all subscriptions to the hub's archives."""
        if self._reports is not None:
            self._reports.report(self._inboxes)

    def subscribe(
        self,
        prefix: Prefixes | None,
        symbols: Iterable[str | bytes] | None,
        ask: Callable[[bytes], Welcome],
    ) -> None:
        """Begin each subscription at the positions that the hub returns. `ask`: ask the hub about a prefix."""
        for each in Subscription.chosen(prefix, symbols):
            if each not in self._inboxes:
                inbox, welcome = self._new_inbox(each), ask(each.choice(self._feed).prefix)
                with self._changing:
                    if each in self._inboxes:
                        continue  # another thread was faster: its caller relies on that position
                    inbox.subscribe(welcome)
                    self._inboxes[each] = inbox
                    if self._reports is not None:
                        self._reports.report([each])

    def unsubscribe(self, prefix: Prefixes | None, symbols: Iterable[str | bytes] | None) -> None:
        """End subscriptions, and forget their positions. Raises HubError, PositionError."""
        for inbox in self.chosen(prefix, symbols):
            inbox.unsubscribe()
            self._inboxes.pop(inbox.subscription, None)
        if self._reports is not None:
            with self._changing:
                self._reports.report()

    def get(self, prefix: Prefixes | None, symbols: Iterable[str | bytes] | None, timeout: float | None) -> Message:
        """Return the next message of any of these subscriptions. Raises as `HubClient.get`."""
        inboxes = self.chosen(prefix, symbols)
        if len(inboxes) == 1:
            return inboxes[0].get(timeout)
        until = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            seen = self.arrivals.count
            if (message := self.look(inboxes)) is not None:
                return message
            if (left := until - time.monotonic()) <= 0:
                names = ", ".join(str(each.subscription) for each in inboxes)
                is_known = all(each.is_confirmed for each in inboxes)
                why = f": the hub of feed {self._feed.name!r} has not confirmed all subscriptions yet"
                raise TimeoutError(f"no message of {names} arrived in {timeout} s{'' if is_known else why}")
            self.arrivals.wait(seen, left)

    def look(self, inboxes: Sequence[Inbox]) -> Message | None:
        """Return the next message of any of several subscriptions, in turn; None if no message is there."""
        self.looks += 1
        for index in range(len(inboxes)):
            with suppress(TimeoutError):
                return inboxes[(self.looks + index) % len(inboxes)].get(0.0)
        return None

    def take_over(self) -> None:
        """Make the caller the reader of all subscriptions."""
        for inbox in list(self._inboxes.values()):
            inbox.take_over()

    def commit(self, timeout: float) -> None:
        """Commit the messages that `get` has returned, of all subscriptions."""
        for inbox in list(self._inboxes.values()):
            inbox.commit(timeout)

    def end(self) -> None:
        """End all subscriptions for this process."""
        for inbox in list(self._inboxes.values()):
            inbox.end()

    def end_reports(self) -> None:
        """End the thread that reports subscriptions."""
        if self._reports is not None:
            self._reports.close()

    def chosen(self, prefix: Prefixes | None, symbols: Iterable[str | bytes] | None) -> list[Inbox]:
        """Return subscriptions. Raises HubError for an unknown one."""
        inboxes = []
        for each in Subscription.chosen(prefix, symbols):
            inbox = self._inboxes.get(each)  # one step: another thread may unsubscribe meanwhile
            if inbox is None:
                raise not_subscribed(each, self.names)
            inboxes.append(inbox)
        return inboxes

    def _new_inbox(self, subscription: Subscription) -> Inbox:
        if self._directory is None:
            why = f"directory was None, expected a directory of the subscriptions of client {self._client!r}"
            raise ConfigError(why)
        return Inbox(self._feed, self._directory, self._client, subscription, self._queue, self.arrivals, self._keep)
