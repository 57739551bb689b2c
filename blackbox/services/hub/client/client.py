"""Client of a hub: puts each message once, and gets messages of durable subscriptions."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Literal, Self, TypedDict

import numpy

from blackbox.arguments import Duration, check_integers, seconds
from blackbox.block.batch.batch import Message
from blackbox.block.position import Place
from blackbox.errors import ConfigError
from blackbox.feed.feed import Feed
from blackbox.feed.routing.prefixes import Prefixes
from blackbox.native.system.waits import is_done_in
from blackbox.services.hub.client.condition_columns import as_place, error_of
from blackbox.services.hub.client.durable_subscription import Subscription, check_client_name
from blackbox.services.hub.client.put_checks import PutChecks
from blackbox.services.hub.client.put_queue import parts_of
from blackbox.services.hub.client.put_sender import Sender
from blackbox.services.hub.client.subscriptions import Subscriptions
from blackbox.services.hub.protocol import (
    PLACE,
    Places,
    Stored,
    Welcome,
    unpack_places,
)
from blackbox.services.hub.settings import feed_of_hub


class HubClientSettings(TypedDict, total=False):
    """Keyword arguments of `HubClient` and `AsyncHubClient`."""

    acknowledged: Literal["recorded", "synced"]
    in_flight: int
    queue: int
    keep: bool


class HubClient:
    """Client that puts to a hub and gets from it. Any thread may put; each subscription has one reader.

    A put is stored once, even if it is sent again or a process is killed. A put with an `id` is stored once even if
    this client or another one puts it again. Without an `id`, a second put is another message: wait with `flush`.
    """

    def __init__(
        self,
        feed: Feed | str | os.PathLike[str],
        name: str | None = None,
        directory: str | os.PathLike[str] | None = None,
        *,
        acknowledged: Literal["recorded", "synced"] = "recorded",
        in_flight: int = 16_384,
        queue: int = 10_000,
        keep: bool = False,
    ) -> None:
        """Store the settings; nothing is opened before `start` or `with`. Raises ConfigError or ValueError.

        Args:
            feed: feed of the hub, or path of its hub file.
            name: name of the client: `published_count` continues where the last process stopped. One process has the
                name at a time; a later one takes it over. Default: a new name.
            directory: directory of the subscriptions, for clients with a name.
            acknowledged: what a put waits for. "recorded": the put is in the hub's page cache and survives killed
                processes. "synced": it is on the hub's disk and also survives a power cut.
            in_flight: maximum number of puts without an answer.
            queue: maximum number of messages of a subscription that wait here for `get`; the hub keeps all.
            keep: write received messages next to the positions, up to 64 MiB for each subscription, until they are
                committed. A client that restarts while the hub is away gets them from there.
        """
        self.feed = feed_of_hub(feed)
        self.name = f"unnamed-{secrets.token_hex(8)}" if name is None else name
        check_client_name(self.name)
        if directory is not None and name is None:
            raise ConfigError("directory was given without a name: subscriptions need both")
        if keep and directory is None:
            raise ConfigError("keep was given without a directory: give the directory of the positions")
        if acknowledged not in ("recorded", "synced"):
            raise ValueError(f"acknowledged was {acknowledged!r}, expected recorded or synced")
        check_integers(("in_flight", in_flight, 1, 1 << 20), ("queue", queue, 1, 1 << 30))
        self._checks = PutChecks(self.feed)
        self._durable = Subscriptions(self.feed, self.name, directory, queue, keep=keep)
        self._sender = Sender(self.feed, self.name, synced=acknowledged == "synced", most=in_flight)
        self._is_started = False

    def start(self) -> Self:
        """Connect, even if the hub is away. Raises EndpointError, ConfigError, LimitError, PositionError."""
        if not self._is_started:
            self._durable.read()
            self._sender.start()
            try:
                self._durable.report()
            except BaseException:
                self.end()
                raise
            self._is_started = True
        return self

    def close(self, timeout: Duration = 10.0) -> None:
        """Wait until the hub has answered all puts, and end. Raises NotStoredError if some have no answer in time."""
        timeout = seconds("timeout", timeout)
        try:
            if self._is_started:
                self.flush(timeout)
        finally:
            self.end()

    def end(self) -> None:
        """End now. Puts without an answer fail, but may still be stored."""
        self._durable.end()
        self._sender.close()
        self._durable.end_reports()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.end()

    def __repr__(self) -> str:
        return f"HubClient({self.feed!r}, {self.name!r})"

    # Put

    def put(
        self,
        topic: str | bytes | Sequence[str | bytes],
        payload: bytes | None,
        id: bytes | None = None,  # noqa: A002
        *,
        ts_event: int | None = None,
        timeout: Duration = 10.0,
        if_at: Place | None = None,
        ttl: Duration | None = None,
    ) -> Place:
        """Put a message, and return its place once the hub has it. Payload None removes the topic's value.

        Args:
            topic: topic of the message, or a tuple of up to 255 topics: all get the message, or none. The result is its
                place under the first one. `if_at` must hold for each topic, and `ttl` applies to each.
            payload: payload of the message.
            id: id of the message; the hub stores one message per id.
            ts_event: time of the event, ns since 1970. None: now. 0: unknown.
            timeout: in seconds.
            if_at: store it only if the topic's newest message is at this place, see `Table.revision`; NOWHERE: only if
                the topic has no value. Raises ConflictError otherwise. The hub judges puts in their order.
            ttl: seconds after which the hub deletes the topic, unless it is put again before. None: it stays.

        Raises NotStoredError after `timeout` seconds. The open client keeps sending the put, so it may still be
        stored; if it is put again with the same `id`, it is stored once. Raises ConfigError if no slice has the topic,
        or the payload is too large or no record of the feed's schema; RefusedError, such as ConflictError, if the hub
        refuses it; HubError if the client has ended.
        """
        until = time.monotonic() + seconds("timeout", timeout)
        put = self._checks.single(topic, payload, id, ts_event, if_at, ttl)
        self._sender.put(put, until)
        if not is_done_in(put, until - time.monotonic()):
            raise self._sender.not_stored(f"the put of {topic!r}")
        return put.result()

    def put_soon(
        self,
        topic: str | bytes | Sequence[str | bytes],
        payload: bytes | None,
        id: bytes | None = None,  # noqa: A002
        *,
        ts_event: int | None = None,
        timeout: Duration = 10.0,
        if_at: Place | None = None,
        ttl: Duration | None = None,
    ) -> Future[Place]:
        """Queue a message, and return at once if there is room. `flush` waits for all queued messages.

        The future returns its place, or raises HubError, such as RefusedError. Raises as `put`; NotStoredError if
        there is no room in time.
        """
        put = self._checks.single(topic, payload, id, ts_event, if_at, ttl)
        self._sender.put_soon(put, seconds("timeout", timeout))
        return put

    def put_many(
        self,
        topics: Sequence[str | bytes],
        topic_index: Any,
        payloads: Any,
        ts_event: Any = None,
        offsets: Any = None,
        ids: Sequence[bytes] = (),
        timeout: Duration = 60.0,
        *,
        if_at: Place | Sequence[Place | None] | Places | None = None,
        ttl: Duration | Any = None,
    ) -> Places:
        """Put n messages in columns, as `Publisher.publish_many`; return their places: `slice`, `epoch`, `sequence`.

        Args:
            topics: topics of the messages, each once.
            topic_index: int[n], index into `topics` of each message.
            payloads: as in `Publisher.publish_many`, like `ts_event` and `offsets`.
            ts_event: int64[n], ns since 1970; 0: unknown. None: now for all.
            offsets: int64[n + 1].
            ids: id of each message, as in `put`; b"": none.
            timeout: in seconds.
            if_at: as in `put`: one for all, such as NOWHERE; or a column, with a Place or None for each message; or
                places that `put_many` has returned.
            ttl: as in `put`: one for all, or a column of seconds; None or NaN: the topic stays.

        Messages are judged one by one, in order, so the second message of a topic follows the first. Messages of a key
        are judged together. RefusedError, such as ConflictError, reports the first refused message; the messages that
        are not refused are stored, as its `places` shows.

        Raises as `put`; some messages may then be stored, and with `ids` all can be put again. Raises ValueError for a
        column that does not fit.
        """
        until = time.monotonic() + seconds("timeout", timeout)
        rows = self._checks.rows(topics, topic_index, payloads, offsets).having(ts_event, ids, if_at, ttl)
        futures = list[Future[Stored]]()
        for request, future in rows.requests():
            self._sender.put_columns(request, until)
            futures.append(future)
        if not all(is_done_in(future, until - time.monotonic()) for future in futures):
            raise self._sender.not_stored(f"the put of {len(rows.topic_index)} messages")
        answers = [future.result() for future in futures]
        places = numpy.concatenate([unpack_places(each.places) for each in answers] or [numpy.empty(0, PLACE)])
        for row in numpy.flatnonzero(places["is_refused"])[:1].tolist():
            place = places[row].item()
            expected = None if rows.if_at is None else as_place(place[0], *rows.if_at[row].tolist())
            why = next(each.why for each, part in zip(answers, parts_of(rows.offsets), strict=True) if row < part.stop)
            raise error_of(rows.topics[rows.topic_index[row]], expected, place, why.split("\n"), places)
        return places

    def flush(self, timeout: Duration = 60.0) -> None:
        """Wait until the hub has answered all puts. Futures of refused puts raise.

        Raises NotStoredError after `timeout` seconds; HubError if the client has ended.
        """
        self._sender.flush(time.monotonic() + seconds("timeout", timeout))

    def published_count(self, timeout: Duration = 10.0) -> int:
        """Return the number of puts that the hub has judged, in order, from all processes with this client's name.

        A process that restarts after a kill continues with the next put. Call it before the first put.
        Raises NotStoredError, HubError.
        """
        return self._ask(seconds("timeout", timeout)).last

    # Get

    def subscribe(
        self,
        prefix: Prefixes | None = None,
        timeout: Duration | None = None,
        *,
        symbols: Iterable[str | bytes] | None = None,
    ) -> None:
        """Keep all messages from now on for `get`, until `unsubscribe`; subscribing again changes nothing.

        Each prefix or symbol is a separate subscription. `symbols=["AAPL"]` selects topics of exactly this symbol.

        Raises NotStoredError if the hub does not answer within `timeout` seconds, ConfigError, PositionError.
        """
        timeout = seconds("timeout", timeout)
        self._durable.subscribe(prefix, symbols, lambda prefix: self._ask(timeout, prefix))

    def unsubscribe(self, prefix: Prefixes | None = None, *, symbols: Iterable[str | bytes] | None = None) -> None:
        """End subscriptions, and forget their positions; the hub no longer keeps days for them.

        If the hub is away, this client or the next one of this name reports it later. Raises HubError for an unknown
        subscription, PositionError.
        """
        self._durable.unsubscribe(prefix, symbols)

    @property
    def subscriptions(self) -> list[Subscription]:
        """The subscriptions of this client."""
        return self._durable.names

    def get(
        self,
        prefix: Prefixes | None = None,
        timeout: Duration | None = None,
        *,
        symbols: Iterable[str | bytes] | None = None,
    ) -> Message:
        """Return the next message of a subscription, or of any of several, even while the hub is away.

        Several subscriptions take turns. Messages returned since the last `commit` are returned again after a crash.

        Raises TimeoutError if none arrives in `timeout` seconds (None: no limit), HubError if it is not subscribed to
        or the client has ended, SubscriberError if the subscriber fails: the next call resumes at the last commit.
        """
        return self._durable.get(prefix, symbols, seconds("timeout", timeout))

    def commit(self, timeout: Duration = 10.0) -> None:
        """Commit the messages that `get` has returned, of all subscriptions: a crash does not repeat them.

        Call it in the thread that gets. Raises PositionError, SubscriberError, TimeoutError, HubError if the client
        is closed.
        """
        self._durable.commit(seconds("timeout", timeout))

    def _ask(self, timeout: float | None, prefix: bytes | None = None) -> Welcome:
        answer = self._sender.ask(prefix)
        if not is_done_in(answer, timeout):
            self._sender.ask_no_more(answer)
            raise self._sender.not_stored("this client")
        return answer.result()
