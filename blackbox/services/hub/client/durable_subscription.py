"""One durable subscription of a client: a named consumer of a prefix or symbol, with its position in a file."""

from __future__ import annotations

import logging
import math
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Final, Literal, NamedTuple, NoReturn, Self

from blackbox.archive.consumer_positions import PositionFile, consumers
from blackbox.arguments import all_as_bytes
from blackbox.block.batch.batch import Message
from blackbox.block.gap import Gap
from blackbox.block.position import Position
from blackbox.errors import ConfigError, HubError, NotConfirmedError, RightsError, SubscriberError
from blackbox.feed.feed import Feed
from blackbox.feed.routing.prefixes import Prefixes
from blackbox.feed.symbol_choice import TopicChoice, starts_by_slice
from blackbox.native.system.limits import start_thread
from blackbox.native.system.waits import is_done_in, join
from blackbox.receive.slow_subscriber import PATIENT
from blackbox.receive.stream import Stream
from blackbox.services.hub.client.arrivals import Arrivals
from blackbox.services.hub.client.kept_messages import KeptMessages
from blackbox.services.hub.protocol import Welcome
from blackbox.subscriber.subscriber import Subscriber

log = logging.getLogger("blackbox")

_REPAIR_WAIT_S: Final = 60.0
"""Time to wait for messages that a restarting hub has written but not sent."""
_START_S: Final = 10.0
_REPORT_S: Final = 10.0
"""Time to wait for a report that the last subscription of this name has ended."""
_PLAIN: Final = re.compile(rb"[A-Za-z0-9.-]")
_MARK: Final = "_"
_KEPT: Final = ".kept"
_SYMBOL: Final = "_symbol"
"""Suffix after a symbol. No prefix ends like this, since `_sy` is not a byte in hexadecimal digits."""


class Subscription(NamedTuple):
    """Topics of a durable subscription: those with a prefix, or those of exactly one symbol."""

    kind: Literal["prefix", "symbol"]
    text: bytes

    @classmethod
    def chosen(cls, prefix: Prefixes | None, symbols: Iterable[str | bytes] | None) -> list[Self]:
        """Return one subscription for each prefix or symbol. Raises ConfigError unless exactly one kind is given."""
        if (prefix is None) is (symbols is None):
            raise ConfigError(f"prefix was {prefix!r} and symbols {symbols!r}, expected one of them")
        if symbols is not None:
            found = [cls("symbol", each) for each in all_as_bytes("symbols", symbols)]
        else:
            assert prefix is not None
            prefixes = (prefix,) if isinstance(prefix, str | bytes) else prefix
            found = [cls("prefix", each) for each in all_as_bytes("prefix", prefixes)]
        if not found:
            raise ValueError("subscriptions were none, expected at least one prefix or symbol")
        return list(dict.fromkeys(found))

    @classmethod
    def of_consumer(cls, client: str, name: str) -> Self | None:
        """Return the subscription in a consumer's name; None: it belongs to another client."""
        if not name.startswith(client + _MARK):
            return None
        text = name[len(client) + 1 :]
        plain = text.removesuffix(_SYMBOL)
        data = re.sub(rb"_([0-9a-f]{2})", lambda match: bytes([int(match[1], 16)]), plain.encode())
        return cls("prefix" if plain == text else "symbol", data)

    def consumer(self, client: str) -> str:
        """Return the name of the consumer, from which client and subscription can be read."""
        text = "".join(chr(byte) if _PLAIN.match(bytes([byte])) else f"{_MARK}{byte:02x}" for byte in self.text)
        return f"{client}{_MARK}{text}{_SYMBOL if self.kind == 'symbol' else ''}"

    def choice(self, feed: Feed) -> TopicChoice:
        """Return its topics. Raises ConfigError if no slice can hold them."""
        choice = TopicChoice.of(feed, self.prefix, self.symbols)
        if not starts_by_slice(feed, choice.starts):
            raise ConfigError(f"feed {feed.name!r}: no slice can hold topics of {self}")
        return choice

    @property
    def prefix(self) -> bytes:
        """Prefix argument of a callback, next to `symbols`."""
        return self.text if self.kind == "prefix" else b""

    @property
    def symbols(self) -> list[bytes] | None:
        """Argument `symbols` of a callback."""
        return [self.text] if self.kind == "symbol" else None

    def __str__(self) -> str:
        return f"{self.kind} {self.text!r}"


def subscriptions_of(directory: str | os.PathLike[str], client: str) -> list[Subscription]:
    """Return a client's subscriptions. Raises PositionError if there are other files among theirs."""
    if not Path(directory).is_dir():
        return []
    found = ((Subscription.of_consumer(client, file.name), file) for file in consumers(directory))
    return [each for each, file in found if each is not None and file.read() is not None]


class _Opening:
    """A subscriber that starts in its own thread."""

    def __init__(self, subscriber: Subscriber, stream: Stream) -> None:
        self.subscriber, self.stream = subscriber, stream
        self.started: Future[None] = Future()
        """Done when `start` has ended; it has the error that `start` raised."""
        self.has_started = False
        self._thread = threading.Thread(target=self._run, name="blackbox-inbox", daemon=True)
        start_thread(self._thread)

    def _run(self) -> None:
        try:
            self.subscriber.start(_START_S)
        except Exception as error:  # noqa: BLE001 - any error must reach the waiting thread
            self.started.set_exception(error)
        else:
            self.has_started = True
            self.started.set_result(None)

    def end(self) -> None:
        """End the subscriber, whether it has started or not."""
        self.subscriber.terminate()
        join(self._thread)


class Inbox:
    """Messages of a subscription, for one thread or task that reads them.

    The subscriber starts when a message is requested, at the position in the file.
    """

    def __init__(
        self,
        feed: Feed,
        directory: str | os.PathLike[str],
        client: str,
        subscription: Subscription,
        limit: int,
        arrivals: Arrivals,
        keep: bool,
    ) -> None:
        self.subscription = subscription
        self._arrivals = arrivals
        self._feed, self._directory, self._limit = feed, directory, limit
        self._file = PositionFile(directory, subscription.consumer(client))
        self._kept: KeptMessages | None = None
        if keep:
            place = Path(directory) / f"{self._file.name}{_KEPT}"
            self._kept = KeptMessages(feed, place, subscription.prefix, subscription.symbols)
        self._here: Iterator[Message] | None = None
        """Kept messages, which are delivered before those of the hub; None: not read yet."""
        self._opening: _Opening | None = None
        self._changes = threading.Lock()
        """Guards `_opening` and `_is_ended`, since another thread than the reader may end it."""
        self._is_ended = False

    def subscribe(self, welcome: Welcome) -> None:
        """Store the hub's position as the start, durably. Raises PositionError, RightsError."""
        if not welcome.following:
            raise RightsError(f"the key has no right to topics of {self.subscription}")
        positions = {each: Position(welcome.epoch, number) for each, number in enumerate(welcome.following)}
        self._file.own(_REPORT_S)
        try:
            self._file.keep(self._feed.name, positions)
        finally:
            self._file.close()
        if self._kept is not None:
            self._kept.discard()

    def unsubscribe(self) -> None:
        """End the subscription durably. Raises PositionError while another process reads it."""
        self.end()
        try:
            self._file.own(0)
            self._file.end(self._feed.name)
        except BaseException:
            self._is_ended = False  # it goes on
            raise
        finally:
            self._file.close()
        if self._kept is not None:
            self._kept.discard()

    def get(self, timeout: float | None) -> Message:
        """Return the next message.

        Raises TimeoutError; HubError if it was ended; SubscriberError, after which the next call starts again.
        """
        until = math.inf if timeout is None else time.monotonic() + timeout
        if (here := self._next_here()) is not None:
            return here
        stream = self.open(until)
        message: Message | None = None
        try:
            while message is None or (self._kept is not None and self._kept.was_delivered(message)):
                message = stream.get(None if timeout is None else max(0.0, until - time.monotonic()))
        except TimeoutError:
            raise TimeoutError(f"no message of {self.subscription} arrived in {timeout} s") from None
        except SubscriberError as error:
            self.fail(error)
        return message

    def _next_here(self) -> Message | None:
        """Return the next kept message; None if none is left."""
        if self._kept is None:
            return None
        self._check_open()
        if self._here is None:
            kept = self._file.read()
            self._here = self._kept.messages({} if kept is None else kept.slices)
        return next(self._here, None)

    @property
    def is_confirmed(self) -> bool:
        """True if the hub has confirmed the subscription since this process asked for messages."""
        opening = self._opening
        return opening is not None and opening.has_started

    def fail(self, why: SubscriberError) -> NoReturn:
        """Raise the subscriber's error, or HubError if the inbox was ended. The next call starts again."""
        self.close()
        self._check_open(why)
        raise why

    def open(self, until: float) -> Stream:
        """Return its stream, once the hub has confirmed it. Raises TimeoutError if it has not by `until`.

        The start continues in the background, so that repeated calls with short timeouts succeed, too.
        """
        nothing = f"no message of {self.subscription} has arrived, and the hub is away"
        while not (opening := self._opening or self._begin()).has_started:
            if not is_done_in(opening.started, until - time.monotonic()):
                raise TimeoutError(f"{nothing}: feed {self._feed.name!r} has not confirmed the subscription yet")
            if (error := opening.started.exception()) is not None:
                self._let_go(opening)
                self._check_open(error)
                if not isinstance(error, NotConfirmedError):
                    raise error
                if time.monotonic() >= until:
                    self._begin()  # its end wakes tasks, and readers of several subscriptions
                    raise TimeoutError(f"{nothing}: {error}") from error
        return opening.stream

    def _begin(self) -> _Opening:
        with self._changes:
            self._check_open()
            self._opening = self._opening or self._new()
            return self._opening

    def _check_open(self, why: BaseException | None = None) -> None:
        """Raise HubError if it was ended."""
        if self._is_ended:
            raise HubError(f"subscription of {self.subscription} was closed, expected an open client") from why

    def _let_go(self, opening: _Opening | None) -> None:
        with self._changes:
            if self._opening is opening:
                self._opening = None

    def _new(self) -> _Opening:
        subscriber = Subscriber(
            self._feed,
            workers=1,
            on_gap="repair",
            repair_wait=_REPAIR_WAIT_S,
            slow=PATIENT,
            name=self._file.name,
            positions=self._directory,
        )
        prefix, symbols = self.subscription.prefix, self.subscription.symbols
        if self._kept is not None:
            subscriber.on_batch(prefix, symbols=symbols)(self._kept.put)
        stream = subscriber.stream(prefix, symbols=symbols, limit=self._limit)
        stream._queue.on_change = self._arrivals.add
        subscriber.on_gap(prefix, symbols=symbols)(self._tell)
        opening = _Opening(subscriber, stream)
        opening.started.add_done_callback(lambda _: self._arrivals.add())
        return opening

    def take_over(self) -> None:
        """Make the caller its reader."""
        if (opening := self._opening) is not None:
            opening.stream._take_over()

    def commit(self, timeout: float) -> None:
        """Store the position after the last returned message. Raises HubError, PositionError, SubscriberError."""
        self._check_open()
        if self._kept is not None:
            self._kept.commit()
        opening = self._opening
        if opening is not None and opening.has_started:
            with opening.subscriber.checkpoint(timeout) as positions:
                pass
            if self._kept is not None:
                self._kept.advance(positions)

    def close(self) -> None:
        """End the subscriber; messages returned since the last commit are returned again."""
        opening = self._opening
        self._let_go(opening)
        if opening is not None:
            opening.end()
        if self._kept is not None:
            self._kept.close()
            self._here = None

    def end(self) -> None:
        """Close it for good."""
        with self._changes:
            self._is_ended = True
        self.close()
        self._arrivals.add()

    def _tell(self, gap: Gap) -> None:
        log.warning("subscription of %s has lost %d messages of slice %d", self.subscription, gap.count, gap.slice_id)


def check_client_name(name: str) -> None:
    """Raise ConfigError unless a client can have this name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]{0,31}", name):
        raise ConfigError(f"name was {name!r}, expected a letter or digit, and up to 31 letters, digits, '.' or '-'")


def not_subscribed(subscription: Subscription, known: Iterable[Subscription]) -> HubError:
    """Return the error for a subscription that a client does not have."""
    return HubError(
        f"client had no subscription of {subscription}, expected one of: {', '.join(map(str, known)) or 'none'}"
    )
