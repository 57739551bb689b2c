"""One durable subscription of a client: a named consumer of one prefix, whose position lies in a file."""

from __future__ import annotations

import logging
import math
import os
import re
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Final, NoReturn

from blackbox.archive.consumer_positions import PositionFile, consumers
from blackbox.block.batch import Message
from blackbox.block.gap import Gap
from blackbox.block.position import Position
from blackbox.errors import ConfigError, HubError, NotConfirmedError, RightsError, SubscriberError
from blackbox.feed.feed import Feed
from blackbox.hub.arrivals import Arrivals
from blackbox.hub.protocol import Welcome
from blackbox.native.limits import start_thread
from blackbox.native.waits import is_done_in, join
from blackbox.subscribe.slow_subscriber import PATIENT
from blackbox.subscribe.stream import Stream
from blackbox.subscriber import Subscriber

log = logging.getLogger("blackbox")

_REPAIR_WAIT_S: Final = 60.0
"""How long a hub that is being started again is waited for, behind what it had written and not sent."""
_START_S: Final = 10.0
_PLAIN: Final = re.compile(rb"[A-Za-z0-9.-]")
_MARK: Final = "_"


def name_of(client: str, prefix: bytes) -> str:
    """Return the name of the consumer: a client's subscription to a prefix, so that each can be read from the other."""
    text = "".join(chr(byte) if _PLAIN.match(bytes([byte])) else f"{_MARK}{byte:02x}" for byte in prefix)
    return f"{client}{_MARK}{text}"


def prefix_of(client: str, name: str) -> bytes | None:
    """Return the prefix that a consumer's name tells; None: it is of another client."""
    if not name.startswith(client + _MARK):
        return None
    text = name[len(client) + 1 :]
    return re.sub(rb"_([0-9a-f]{2})", lambda match: bytes([int(match[1], 16)]), text.encode())


def prefixes_of(directory: str | os.PathLike[str], client: str) -> list[bytes]:
    """Return what a client has subscribed to. Raises PositionError when the directory has files that are none."""
    if not Path(directory).is_dir():
        return []
    found = (prefix_of(client, file.name) for file in consumers(directory))
    return [prefix for prefix in found if prefix is not None]


class _Opening:
    """A subscriber that is being started, in a thread of its own."""

    def __init__(self, subscriber: Subscriber, stream: Stream) -> None:
        self.subscriber, self.stream = subscriber, stream
        self.started: Future[None] = Future()
        """Has what `start` raised."""
        self.has_started = False
        self._thread = threading.Thread(target=self._run, name="blackbox-inbox", daemon=True)
        start_thread(self._thread)

    def _run(self) -> None:
        try:
            self.subscriber.start(_START_S)
        except Exception as error:  # noqa: BLE001 - whatever it is, who waits for it hears of it
            self.started.set_exception(error)
        else:
            self.has_started = True
            self.started.set_result(None)

    def end(self) -> None:
        """End the subscriber, whether it has started or not."""
        self.subscriber.terminate()
        join(self._thread)


class Inbox:
    """What has come, and will come, of a prefix. Its reader is one thread, or one task.

    The subscriber starts when something is asked for, and begins at the position in the file.
    """

    def __init__(
        self,
        feed: Feed,
        directory: str | os.PathLike[str],
        client: str,
        prefix: bytes,
        limit: int,
        arrivals: Arrivals,
    ) -> None:
        self.prefix = prefix
        self._arrivals = arrivals
        self._feed, self._directory, self._limit = feed, directory, limit
        self._file = PositionFile(directory, name_of(client, prefix))
        self._opening: _Opening | None = None
        self._changes = threading.Lock()
        """Held where another one begins, or none: who ends it may be another thread than its reader."""
        self._is_ended = False

    def subscribe(self, welcome: Welcome) -> None:
        """Begin where the hub has said that it is, durably. Raises PositionError, RightsError."""
        if not welcome.following:
            raise RightsError(f"the key has no right to topics that begin with {self.prefix!r}")
        positions = {each: Position(welcome.epoch, number) for each, number in enumerate(welcome.following)}
        self._file.own(0)
        try:
            self._file.keep(self._feed.name, positions)
        finally:
            self._file.close()

    def unsubscribe(self) -> None:
        """End it, durably. Raises PositionError."""
        self.end()
        self._file.forget()

    def get(self, timeout: float | None) -> Message:
        """Return the next message.

        Raises TimeoutError; HubError when it was ended; SubscriberError, and begins anew at the next call.
        """
        until = math.inf if timeout is None else time.monotonic() + timeout
        stream = self.open(until)
        left = None if timeout is None else max(0.0, until - time.monotonic())
        try:
            message: Message = stream.get(left)
        except TimeoutError:
            raise TimeoutError(f"nothing of {self.prefix!r} came in {timeout} s") from None
        except SubscriberError as error:
            self.fail(error)
        return message

    @property
    def is_confirmed(self) -> bool:
        """True if the hub has confirmed the subscription since this process asked for messages."""
        opening = self._opening
        return opening is not None and opening.has_started

    def fail(self, why: SubscriberError) -> NoReturn:
        """Raise what has ended its subscriber, or HubError as it was ended itself; the next call begins anew."""
        self.close()
        self._check_open(why)
        raise why

    def open(self, until: float) -> Stream:
        """Return its stream, once the hub has confirmed it. Raises TimeoutError when it has not until then.

        It is being started on meanwhile: who asks again and again for a moment each gets it all the same.
        """
        nothing = f"nothing of {self.prefix!r} has come, and the hub is away"
        while not (opening := self._opening or self._begin()).has_started:
            if not is_done_in(opening.started, until - time.monotonic()):
                raise TimeoutError(f"{nothing}: feed {self._feed.name!r} has not confirmed the subscription yet")
            if (error := opening.started.exception()) is not None:
                self._let_go(opening)
                self._check_open(error)
                if not isinstance(error, NotConfirmedError):
                    raise error
                if time.monotonic() >= until:
                    raise TimeoutError(f"{nothing}: {error}") from error
        return opening.stream

    def _begin(self) -> _Opening:
        with self._changes:
            self._check_open()
            self._opening = self._opening or self._new()
            return self._opening

    def _check_open(self, why: BaseException | None = None) -> None:
        """Raise HubError when it was ended."""
        if self._is_ended:
            raise HubError(f"subscription {self.prefix!r} was closed, expected one of a client that is open") from why

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
        stream = subscriber.stream(self.prefix, limit=self._limit)
        stream._on_change = self._arrivals.add
        subscriber.on_gap(self.prefix)(self._tell)
        opening = _Opening(subscriber, stream)
        opening.started.add_done_callback(lambda _: self._arrivals.add())
        return opening

    def commit(self, timeout: float) -> None:
        """Keep the position behind the message that was got last. Raises HubError, PositionError, SubscriberError."""
        self._check_open()
        opening = self._opening
        if opening is not None and opening.has_started:
            with opening.subscriber.checkpoint(timeout):
                pass

    def close(self) -> None:
        """End the subscriber; what was got since the last commit comes again."""
        opening = self._opening
        self._let_go(opening)
        if opening is not None:
            opening.end()

    def end(self) -> None:
        """As `close`, for good."""
        with self._changes:
            self._is_ended = True
        self.close()
        self._arrivals.add()

    def _tell(self, gap: Gap) -> None:
        log.warning("subscription %r has lost %d messages of slice %d", self.prefix, gap.count, gap.slice_id)


def check_client_name(name: str) -> None:
    """Raise ConfigError unless a client can have this name."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]{0,31}", name):
        raise ConfigError(f"name was {name!r}, expected 1 to 32 letters, digits, '.' or '-', the first no '.' or '-'")


def not_subscribed(prefix: bytes, known: list[bytes]) -> HubError:
    """Return the error for a prefix that is not among those subscribed to."""
    return HubError(f"prefix was {prefix!r}, expected one that is subscribed to: {known}")
