"""Common part of bridges to Redis and RabbitMQ: a feed in order, through outages. WebSocket bridges do not use it."""

from __future__ import annotations

import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import msgspec

from blackbox.arguments import Duration, all_as_bytes, seconds
from blackbox.block.batch.batch import Batch
from blackbox.block.gap import Gap
from blackbox.block.position import Position
from blackbox.errors import BridgeError
from blackbox.feed.feed import Feed, check_is_feed
from blackbox.feed.routing.prefixes import Prefixes, common_prefix, covering
from blackbox.feed.symbol_choice import TopicChoice
from blackbox.receive.slow_subscriber import PATIENT
from blackbox.receive.supervise.supervisor import SubscriberLife
from blackbox.services.bridge.bridge import Say
from blackbox.subscriber.subscriber import Subscriber

log = logging.getLogger("blackbox")

_REPAIR_WAIT_S: Final = 10.0
AGAIN_S: Final = 0.05
MOST_AGAIN_S: Final = 2.0
LAST_S: Final = 2.0
"""Time to wait for an unreachable system when the bridge ends."""
GAP_TOPIC: Final = b"blackbox.gap"
"""Key under which gaps are reported."""
AWAY: Final = "%s is unreachable, retrying: %s"
MOST_AT_ONCE: Final = 1_000
"""Most messages in one round trip."""

Done = TypeVar("Done")


class Away(Exception):  # noqa: N818  # callers retry
    """The other system does not answer now; the text says why."""


class CarrierStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a bridge since its start."""

    added: int
    """Messages accepted by the other system."""
    known: int
    """Messages that it had already."""
    missing: int
    """Messages lost on the way to the bridge; the other system gets a notice."""


class Carrier(ABC):
    """Carries the messages of a feed under some prefixes to another system.

    Life: NEW, `start` (or `with`), then until `close`, a signal or an error. Each slice has a thread, which carries its
    messages in order.
    """

    def __init__(
        self, feed: Feed, url: str, prefix: Prefixes, symbols: Iterable[str | bytes] | None, **subscriber: Any
    ) -> None:
        """Store the settings; nothing is opened. `url`: without password. Raises ConfigError."""
        check_is_feed(feed)
        self.feed, self.url = feed, url
        symbols = None if symbols is None else all_as_bytes("symbols", symbols)
        self._topics = TopicChoice.of(feed, prefix, symbols)
        self._counts = dict.fromkeys(CarrierStatistics.__struct_fields__, 0)
        self._counting = threading.Lock()
        self.away = ""
        """Why the other system is unreachable; empty: it is reachable."""
        self._subscriber = Subscriber(
            feed,
            workers=1,
            slow=PATIENT,
            on_gap="repair" if feed.archives else "tell",
            repair_wait=_REPAIR_WAIT_S,
            **subscriber,
        )
        self._subscriber._on_batch_of(self._topics, self._add)  # one call per block keeps the order
        self._subscriber.on_gap(common_prefix(covering(prefix)), symbols=symbols)(self._add_gap)  # each gap once

    def start(self, timeout: Duration | None = None) -> Self:
        """Continue at the last position, once the other system and publishers are reachable.

        Raises BridgeError if the other system refuses, or is unreachable for `timeout` seconds; as `Subscriber.start`.
        """
        timeout = seconds("timeout", timeout)
        until = math.inf if timeout is None else time.monotonic() + timeout

        def give_up(error: Away) -> None:
            if time.monotonic() >= until:
                raise BridgeError(f"{self.url}: {error}") from error

        since = self._until_there(self._open, give_up)
        left = None if timeout is None else max(0.0, until - time.monotonic())
        self._subscriber.start(left, since=since or None)
        return self

    def run(self, *, until_end: bool = False) -> None:
        """Wait for a signal, `close` or an error; `until_end`: also for the end of the publisher."""
        self._subscriber.run(until_end=until_end)

    def carry(self, say: Say) -> None:
        """Start once publishers and the other system are reachable, and run until a signal: see `Bridge`."""
        say(f"feed {self.feed.name!r}: waits for its publishers, then carries it to {self.url}")
        with self.start():
            say(f"feed {self.feed.name!r} is carried to {self.url}")
            try:
                self.run()
            finally:
                done = self.statistics()
                say(f"{done.added} messages added, {done.known} known before, {done.missing} missing")
        raise KeyboardInterrupt  # a signal; any other end is an error

    def close(self) -> None:
        """Carry everything received, then end. An unreachable system is waited for only briefly."""
        try:
            self._subscriber.stop()
        finally:
            self._hang_up()

    def __enter__(self) -> Self:
        return self.start() if self._subscriber.state is SubscriberLife.NEW else self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.close()
            return
        self._subscriber.terminate()
        self._hang_up()

    def statistics(self) -> CarrierStatistics:
        """Return a snapshot of the counters."""
        with self._counting:
            return CarrierStatistics(**self._counts)

    def _count(self, **counts: int) -> None:
        with self._counting:
            for name, count in counts.items():
                self._counts[name] += count

    def _until_there(self, attempt: Callable[[], Done], give_up: Callable[[Away], None]) -> Done:
        """Retry `attempt` while the other system is unreachable, unless `give_up` raises; return its result."""
        pause_s = AGAIN_S
        while True:
            try:
                done = attempt()
            except Away as error:
                why = error
                self.away = str(error)
            else:
                self.away = ""
                return done
            if pause_s == AGAIN_S:
                log.warning(AWAY, self.url, why)
            give_up(why)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, MOST_AGAIN_S)

    def _until_taken(self, attempt: Callable[[], Done], count: int) -> Done:
        """Retry as `_until_there`, until some time after the end. `count`: messages at stake."""
        ended_s = 0.0

        def give_up(_: Away) -> None:
            nonlocal ended_s
            if self._subscriber.state is not SubscriberLife.RUNNING:
                ended_s = ended_s or time.monotonic()
                if time.monotonic() - ended_s >= LAST_S:
                    raise BridgeError(f"{self.url} was unreachable as the bridge ended: {count} messages are lost")

        return self._until_there(attempt, give_up)

    @abstractmethod
    def _open(self) -> Mapping[int, Position]:
        """Check that the other system is reachable; return the positions to continue at. Raises Away, BridgeError."""

    @abstractmethod
    def _hang_up(self) -> None:
        """Close connections; no more messages follow."""

    # In the workers, one for each slice.

    @abstractmethod
    def _add(self, batch: Batch) -> None:
        """Carry messages. Raises BridgeError."""

    @abstractmethod
    def _add_gap(self, gap: Gap) -> None:
        """Report a gap at its position. Raises BridgeError."""
