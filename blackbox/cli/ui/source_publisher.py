"""The publisher of `publish` and `replay`: it records its topics, and reports slices that lack subscribers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from blackbox.arguments import all_as_bytes
from blackbox.cli.ui.feeds import feed_text
from blackbox.errors import NoSubscriberError
from blackbox.numbers import counted
from blackbox.publish.publisher import Publisher

_TICK_S: Final = 0.25


class SourcePublisher(Publisher):
    """A publisher for a command's sources, one after another."""

    missing: int = 0
    """Messages that the sources lack after their first one."""
    _has_begun: bool = False
    """True once a message was published."""
    _topics: Sequence[str | bytes] = ()
    """Topics of the current source."""
    _earlier: frozenset[bytes] = frozenset()
    """Topics of earlier sources."""

    @property
    def seen(self) -> frozenset[bytes]:
        """Topics so far, of all sources."""
        return self._earlier | frozenset(all_as_bytes("topics", self._topics))

    def end_source(self) -> None:
        """Record the topics of the published source, before the next one."""
        self._earlier, self._topics = self.seen, ()

    def publish_many(self, topics: Sequence[str | bytes], *columns: Any, **more_columns: Any) -> int:
        """As `Publisher.publish_many`."""
        self._topics = topics
        self._has_begun = True
        return super().publish_many(topics, *columns, **more_columns)

    def skip(self, count: int, ts_event: int = 0) -> None:
        """As `Publisher.skip`."""
        self.missing += count if self._has_begun else 0
        super().skip(count, ts_event)

    def wait_for_each_slice(self, count: int, timeout: float | None, report: Callable[[str], object]) -> None:
        """Wait until every slice has `count` subscribers. Call `report` when the slices with too few change.

        Raises NoSubscriberError after `timeout` seconds (None: never), naming those slices.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        reported: dict[int, int] = {}
        while lacking := self.lacking(count):
            which = ", ".join(f"slice {slice_id} has {found}" for slice_id, found in lacking.items())
            if time.monotonic() >= deadline:
                raise NoSubscriberError(
                    f"{feed_text(self.feed)}: too few subscribers after {timeout:g} s: {which}, expected {count}; "
                    "to publish without them: --wait-for 0"
                )
            if lacking != reported:
                reported = lacking
                report(
                    f"waiting for {counted(count, 'subscriber')} to each slice of {feed_text(self.feed)}: "
                    f"{which}; to publish without them: --wait-for 0"
                )
            with suppress(NoSubscriberError):
                self.wait_for_subscribers(b"", min(_TICK_S, max(0.0, deadline - time.monotonic())), count)

    def lacking(self, count: int) -> dict[int, int]:
        """Return the number of subscribers of each slice that has fewer than `count`."""
        found = {}
        for each in self._running():
            subscriptions = each.sender.subscriptions
            with subscriptions.changed:
                found[each.sender.slice_id] = subscriptions.subscribers(b"")
        return {slice_id: number for slice_id, number in found.items() if number < count}
