"""What bridges to a system that keeps messages share: all of a feed, in order, however long that system is away."""

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

from blackbox.arguments import all_as_bytes
from blackbox.block.batch import Batch
from blackbox.block.gap import Gap
from blackbox.block.position import Position
from blackbox.bridge.bridge import Say
from blackbox.errors import BridgeError
from blackbox.feed.feed import Feed, check_is_feed
from blackbox.feed.prefixes import Prefixes, common_prefix, covering
from blackbox.feed.symbol_choice import TopicChoice
from blackbox.subscribe.slow_subscriber import PATIENT
from blackbox.subscribe.supervisor import SubscriberLife
from blackbox.subscriber import Subscriber

log = logging.getLogger("blackbox")

_REPAIR_WAIT_S: Final = 10.0
_AGAIN_S: Final = 0.05
_MOST_AGAIN_S: Final = 2.0
_LAST_S: Final = 2.0
"""How long a system that is away is waited for once the bridge is to end."""
GAP_TOPIC: Final = b"blackbox.gap"
"""What tells of a gap comes under it."""
AWAY: Final = "%s is away, and asked again until it is back: %s"
MOST_AT_ONCE: Final = 1_000
"""Messages that share a round trip."""

Done = TypeVar("Done")


class Away(Exception):  # noqa: N818  # it is waited for
    """The other system does not answer now; the text says why."""


class CarrierStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a bridge has done so far."""

    added: int
    """Messages that the other system has taken."""
    known: int
    """Those that it had already."""
    missing: int
    """Messages that were lost on their way to the bridge; the other system is told where."""


class Carrier(ABC):
    """Carries the messages of a feed under some prefixes to a system that keeps them.

    Life: NEW, `start` (or `with`), then until `close`, a signal or an error. Each slice has a thread in which all of it
    is carried, in order.
    """

    def __init__(
        self, feed: Feed, url: str, prefix: Prefixes, symbols: Iterable[str | bytes] | None, **subscriber: Any
    ) -> None:
        """Settings; nothing is opened. `url`: as it may be shown. Raises ConfigError."""
        check_is_feed(feed)
        self.feed, self.url = feed, url
        symbols = None if symbols is None else all_as_bytes("symbols", symbols)
        self._topics = TopicChoice.of(feed, prefix, symbols)
        self._counts = dict.fromkeys(CarrierStatistics.__struct_fields__, 0)
        self._counting = threading.Lock()
        self._subscriber = Subscriber(
            feed,
            workers=1,
            slow=PATIENT,
            on_gap="repair" if feed.archives else "tell",
            repair_wait=_REPAIR_WAIT_S,
            **subscriber,
        )
        self._subscriber._on_batch_of(self._topics, self._add)  # one call per block: messages stay in order
        self._subscriber.on_gap(common_prefix(covering(prefix)), symbols=symbols)(self._add_gap)  # each gap once

    def start(self, timeout: float | None = None) -> Self:
        """Go on where it was, as soon as the other system and publishers are there.

        Raises BridgeError when the other system refuses, or is not there within `timeout` seconds; as
        `Subscriber.start`.
        """
        until = math.inf if timeout is None else time.monotonic() + timeout

        def give_up(error: Away) -> None:
            if time.monotonic() >= until:
                raise BridgeError(f"{self.url}: {error}") from error

        since = self._until_there(self._open, give_up)
        left = None if timeout is None else max(0.0, until - time.monotonic())
        self._subscriber.start(left, since=since or None)
        return self

    def run(self, *, until_end: bool = False) -> None:
        """Wait until it ends: a signal, `close`, an error; `until_end`: also when the publisher has closed."""
        self._subscriber.run(until_end=until_end)

    def carry(self, say: Say) -> None:
        """Start as soon as publishers and the other system are there, and run until a signal: see `Bridge`."""
        say(f"feed {self.feed.name!r}: waits for its publishers, to carry it to {self.url}")
        with self.start():
            say(f"feed {self.feed.name!r} is carried to {self.url}")
            try:
                self.run()
            finally:
                done = self.statistics()
                say(f"{done.added} messages added, {done.known} known before, {done.missing} missing")
        raise KeyboardInterrupt  # it was: whatever else ends it is an error

    def close(self) -> None:
        """End: what has come is carried, unless the other system is away and does not come back at once."""
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
        """Return what `attempt` does, however long the other system is away, unless `give_up` raises."""
        pause_s = _AGAIN_S
        while True:
            try:
                return attempt()
            except Away as error:
                why = error
            if pause_s == _AGAIN_S:
                log.warning(AWAY, self.url, why)
            give_up(why)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _MOST_AGAIN_S)

    def _until_taken(self, attempt: Callable[[], Done], count: int) -> Done:
        """As `_until_there`, until a while after the end; `count` messages are at stake."""
        ended_s = 0.0

        def give_up(_: Away) -> None:
            nonlocal ended_s
            if self._subscriber.state is not SubscriberLife.RUNNING:
                ended_s = ended_s or time.monotonic()
                if time.monotonic() - ended_s >= _LAST_S:
                    raise BridgeError(f"{self.url} was away as the bridge ended: {count} messages are not there")

        return self._until_there(attempt, give_up)

    @abstractmethod
    def _open(self) -> Mapping[int, Position]:
        """See that the other system is there; return where to go on. Raises Away, BridgeError."""

    @abstractmethod
    def _hang_up(self) -> None:
        """Close connections; nothing comes any more."""

    # In the workers, one for each slice.

    @abstractmethod
    def _add(self, batch: Batch) -> None:
        """Carry messages. Raises BridgeError."""

    @abstractmethod
    def _add_gap(self, gap: Gap) -> None:
        """Tell where messages are missing. Raises BridgeError."""
