"""Client of a hub: puts each message once, and gets messages of durable subscriptions."""

from __future__ import annotations

import math
import operator
import os
import secrets
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Self, TypedDict

import numpy
from numpy.typing import NDArray

from blackbox.arguments import all_as_bytes, as_bytes, check_integers
from blackbox.block.batch import Message
from blackbox.block.block import as_topic_index
from blackbox.block.position import Place
from blackbox.errors import ConfigError, HubError
from blackbox.feed.feed import Feed
from blackbox.feed.prefixes import Prefixes
from blackbox.feed.schema import load_schema
from blackbox.hub.arrivals import Arrivals
from blackbox.hub.condition_columns import INT64, as_if_at, as_place, as_revision, as_ttl_ns, error_of
from blackbox.hub.inbox import Inbox, Subscription, check_client_name, not_subscribed, subscriptions_of
from blackbox.hub.protocol import (
    MOST_BYTES,
    MOST_ID_BYTES,
    MOST_PUTS,
    MOST_TTL_NS,
    PLACE,
    Places,
    Stored,
    Welcome,
    check_topic_of,
    misfits,
    unpack_places,
)
from blackbox.hub.sender import Columns, Sender
from blackbox.hub.settings import feed_of_hub
from blackbox.hub.subscription_reports import SubscriptionReports
from blackbox.native.waits import is_done_in


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
        self._directory, self._queue, self._keep = directory, queue, keep
        self._slices: dict[bytes, int] = {}
        self._schema = load_schema(self.feed.schema)
        self._record_bytes = {kind.encode("latin-1"): each.itemsize for kind, each in self._schema.records.items()}
        self._inboxes: dict[Subscription, Inbox] = {}
        self._arrivals = Arrivals()
        self._looks = 0
        """Number of checks of several subscriptions. Each check begins at another one."""
        self._reports = None if directory is None else SubscriptionReports(self.feed, directory, self.name)
        self._sender = Sender(self.feed, self.name, synced=acknowledged == "synced", most=in_flight)
        self._is_started = False

    def start(self) -> Self:
        """Connect, even if the hub is away. Raises EndpointError, ConfigError, LimitError, PositionError."""
        if not self._is_started:
            for each in subscriptions_of(self._directory, self.name) if self._directory is not None else ():
                self._inboxes[each] = self._new_inbox(each)
            self._sender.start()
            if self._reports is not None:
                self._reports.report(self._inboxes)
            self._is_started = True
        return self

    def close(self, timeout: float = 10.0) -> None:
        """Wait until the hub has answered all puts, and end. Raises NotStoredError if some have no answer in time."""
        try:
            if self._is_started:
                self.flush(timeout)
        finally:
            self.end()

    def end(self) -> None:
        """End now. Puts without an answer fail, but may still be stored."""
        for inbox in self._inboxes.values():
            inbox.end()
        self._sender.close()
        if self._reports is not None:
            self._reports.close()

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
        topic: str | bytes,
        payload: bytes | None,
        id: bytes | None = None,  # noqa: A002
        *,
        ts_event: int | None = None,
        timeout: float = 10.0,
        if_at: Place | None = None,
        ttl: float | None = None,
    ) -> Place:
        """Put a message, and return its place once the hub has it. Payload None removes the topic's value.

        Args:
            topic: topic of the message.
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
        until = time.monotonic() + timeout
        future = self._put(topic, payload, b"" if id is None else id, ts_event, until, if_at, ttl, waits=True)
        if not is_done_in(future, until - time.monotonic()):
            raise self._sender.not_stored(f"the put of {topic!r}")
        return future.result()

    def put_soon(
        self,
        topic: str | bytes,
        payload: bytes | None,
        id: bytes | None = None,  # noqa: A002
        *,
        ts_event: int | None = None,
        timeout: float = 10.0,
        if_at: Place | None = None,
        ttl: float | None = None,
    ) -> Future[Place]:
        """Queue a message, and return at once if there is room. `flush` waits for all queued messages.

        The future returns its place, or raises HubError, such as RefusedError. Raises as `put`; NotStoredError if
        there is no room in time.
        """
        return self._put(
            topic, payload, b"" if id is None else id, ts_event, time.monotonic() + timeout, if_at, ttl, waits=False
        )

    def _put(
        self,
        topic: str | bytes,
        payload: bytes | None,
        put_id: bytes,
        ts_event: int | None,
        until: float,
        if_at: Place | None,
        ttl: float | None,
        *,
        waits: bool,
    ) -> Future[Place]:
        topic = as_bytes("topic", topic)
        if topic not in self._slices:
            self._check_topic(topic)
        if payload is not None and (type(payload) is not bytes or len(payload) > MOST_BYTES):
            if type(payload) is not bytes:
                raise TypeError(f"payload was {payload!r:.80}, expected bytes")
            raise ConfigError(f"payload had {len(payload)} bytes, expected at most {MOST_BYTES}")
        if self._record_bytes and payload is not None:
            at = self._schema.type_offset
            if self._record_bytes.get(payload[at : at + 1]) != len(payload):
                for _, why in misfits(self._schema, numpy.array([0, len(payload)]), numpy.frombuffer(payload, "u1")):
                    raise ConfigError(why)
        _check_ids((put_id,))
        if ts_event is None:
            ts_event = time.time_ns()
        elif type(ts_event) is not int:
            ts_event = _as_integer(ts_event)
        if not -INT64 <= ts_event < INT64:
            raise ValueError(f"ts_event was {ts_event!r}, expected an int64")
        if if_at is not None:
            if_at = as_revision(if_at)
        if ttl is not None and (payload is None or not 0 < ttl * 1e9 <= MOST_TTL_NS):
            what = "without a value" if payload is None else f"of {ttl} s"
            raise ValueError(f"ttl was {what}, expected a put with a value, above 0 and up to {MOST_TTL_NS // 10**9} s")
        ttl_ns = 0 if ttl is None else math.ceil(ttl * 1e9)
        return self._sender.put(topic, payload, ts_event, put_id, until, if_at, ttl_ns, waits=waits)

    def _check_topic(self, topic: bytes) -> None:
        found = check_topic_of(self.feed, topic)
        if len(self._slices) < self.feed.max_topics:
            self._slices[topic] = found

    def put_many(
        self,
        topics: Sequence[str | bytes],
        topic_index: Any,
        payloads: Any,
        ts_event: Any = None,
        offsets: Any = None,
        ids: Sequence[bytes] = (),
        timeout: float = 60.0,
        *,
        if_at: Place | Sequence[Place | None] | Places | None = None,
        ttl: Any = None,
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
        index = as_topic_index(topic_index, topics)
        names = all_as_bytes("topics", topics)
        for topic in names:
            if topic not in self._slices:
                self._check_topic(topic)
        data = numpy.ascontiguousarray(numpy.frombuffer(payloads, numpy.uint8) if offsets is not None else payloads)
        count, flat = len(index), data.view(numpy.uint8).reshape(-1)
        if offsets is None and (data.ndim != 2 or len(data) != count):
            raise ValueError(f"payloads had shape {data.shape}, expected ({count}, size)")
        stops = numpy.arange(count + 1) * (len(flat) // max(1, count)) if offsets is None else numpy.asarray(offsets)
        stops = stops.astype(numpy.int64)
        if len(stops) != count + 1 or stops[0] < 0 or stops[-1] > len(flat) or (numpy.diff(stops) < 0).any():
            raise ValueError(f"offsets were {stops[:1]} to {stops[-1:]}, expected {count + 1} within {len(flat)}")
        if count and (largest := int(numpy.diff(stops).max())) > MOST_BYTES:
            raise ConfigError(f"payload had {largest} bytes, expected at most {MOST_BYTES}")
        times = numpy.full(count, time.time_ns(), numpy.int64) if ts_event is None else _as_times(ts_event)
        _check_ids(ids)
        if len(times) != count or len(ids) not in (0, count):
            raise ValueError(f"ts_event and ids were of other lengths, expected {count}")
        expected, ttl_ns = as_if_at(if_at, count), as_ttl_ns(ttl, count)
        until = time.monotonic() + timeout
        parts, numbers = _parts(stops), numpy.empty(len(names), numpy.int32)
        futures = [
            self._put_part(names, index[part], numbers, stops, part, flat, times, ids, expected, ttl_ns, until)
            for part in parts
        ]
        if not all(is_done_in(future, until - time.monotonic()) for future in futures):
            raise self._sender.not_stored(f"the put of {count} messages")
        answers = [future.result() for future in futures]
        places = numpy.concatenate([unpack_places(each.places) for each in answers] or [numpy.empty(0, PLACE)])
        for row in numpy.flatnonzero(places["is_refused"])[:1].tolist():
            place = places[row].item()
            at = None if expected is None else as_place(place[0], *expected[row].tolist())
            why = next(each.why for each, part in zip(answers, parts, strict=True) if row < part.stop)
            raise error_of(names[index[row]], at, place, why.split("\n"), places)
        return places

    def _put_part(
        self,
        topics: Sequence[bytes],
        index: NDArray[numpy.int32],
        numbers: NDArray[numpy.int32],
        stops: NDArray[numpy.int64],
        part: slice,
        data: NDArray[numpy.uint8],
        times: NDArray[numpy.int64],
        ids: Sequence[bytes],
        if_at: NDArray[Any] | None,
        ttl_ns: NDArray[numpy.int64] | None,
        until: float,
    ) -> Future[Stored]:
        future: Future[Stored] = Future()
        rows = numpy.arange(len(index), dtype=numpy.int32)
        numbers[index] = rows
        used = index[numbers[index] == rows]  # topics of these rows, each once
        numbers[used] = rows[: len(used)]
        offsets = stops[part.start : part.stop + 1]

        def tell(result: Stored | HubError) -> None:
            if isinstance(result, HubError):
                future.set_exception(result)
            else:
                future.set_result(result)

        columns = Columns(
            [topics[each] for each in used.tolist()],
            numbers[index].tobytes(),
            (offsets - offsets[0]).tobytes(),
            data[offsets[0] : offsets[-1]].tobytes(),
            times[part].tobytes(),
            b"",
            list(ids[part]),
            len(index),
            tell,
            b"" if if_at is None else if_at[part].tobytes(),
            b"" if ttl_ns is None else ttl_ns[part].tobytes(),
        )
        self._sender.put_columns(columns, until)
        return future

    def flush(self, timeout: float = 60.0) -> None:
        """Wait until the hub has answered all puts. Futures of refused puts raise.

        Raises NotStoredError after `timeout` seconds; HubError if the client has ended.
        """
        self._sender.flush(time.monotonic() + timeout)

    def published_count(self, timeout: float = 10.0) -> int:
        """Return the number of puts that the hub has judged, in order, from all processes with this client's name.

        A process that restarts after a kill continues with the next put. Call it before the first put.
        Raises NotStoredError, HubError.
        """
        return self._ask(timeout).last

    # Get

    def subscribe(
        self,
        prefix: Prefixes | None = None,
        timeout: float | None = None,
        *,
        symbols: Iterable[str | bytes] | None = None,
    ) -> None:
        """Keep all messages from now on for `get`, until `unsubscribe`; subscribing again changes nothing.

        Each prefix or symbol is a separate subscription. `symbols=["AAPL"]` selects topics of exactly this symbol.

        Raises NotStoredError if the hub does not answer within `timeout` seconds, ConfigError, PositionError.
        """
        for each in Subscription.chosen(prefix, symbols):
            if each not in self._inboxes:
                choice = each.choice(self.feed)
                inbox = self._new_inbox(each)
                inbox.subscribe(self._ask(timeout, choice.prefix))
                self._inboxes[each] = inbox
                if self._reports is not None:
                    self._reports.report([each])

    def unsubscribe(self, prefix: Prefixes | None = None, *, symbols: Iterable[str | bytes] | None = None) -> None:
        """End subscriptions, and forget their positions; the hub no longer keeps days for them.

        If the hub is away, this client or the next one of this name reports it later. Raises HubError for an unknown
        subscription, PositionError.
        """
        for inbox in self._chosen(prefix, symbols):
            inbox.unsubscribe()
            del self._inboxes[inbox.subscription]
        if self._reports is not None:
            self._reports.report()

    @property
    def subscriptions(self) -> list[Subscription]:
        """The subscriptions of this client."""
        return sorted(self._inboxes)

    def get(
        self,
        prefix: Prefixes | None = None,
        timeout: float | None = None,
        *,
        symbols: Iterable[str | bytes] | None = None,
    ) -> Message:
        """Return the next message of a subscription, or of any of several, even while the hub is away.

        Several subscriptions take turns. Messages returned since the last `commit` are returned again after a crash.

        Raises TimeoutError if none arrives in `timeout` seconds (None: no limit), HubError if it is not subscribed to
        or the client has ended, SubscriberError if the subscriber fails: the next call resumes at the last commit.
        """
        inboxes = self._chosen(prefix, symbols)
        if len(inboxes) == 1:
            return inboxes[0].get(timeout)
        until = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            seen = self._arrivals.count
            if (message := self._look(inboxes)) is not None:
                return message
            if (left := until - time.monotonic()) <= 0:
                names = ", ".join(str(each.subscription) for each in inboxes)
                is_known = all(each.is_confirmed for each in inboxes)
                away = (
                    "" if is_known else f": the hub of feed {self.feed.name!r} has not confirmed all subscriptions yet"
                )
                raise TimeoutError(f"no message of {names} arrived in {timeout} s{away}")
            self._arrivals.wait(seen, left)

    def _look(self, inboxes: Sequence[Inbox]) -> Message | None:
        """Return the next message of any of several subscriptions, in turn; None if no message is there."""
        self._looks += 1
        for at in range(len(inboxes)):
            with suppress(TimeoutError):
                return inboxes[(self._looks + at) % len(inboxes)].get(0.0)
        return None

    def commit(self, timeout: float = 10.0) -> None:
        """Commit the messages that `get` has returned, of all subscriptions: a crash does not repeat them.

        Call it in the thread that gets. Raises PositionError, SubscriberError, TimeoutError, HubError if the client
        is closed.
        """
        for inbox in self._inboxes.values():
            inbox.commit(timeout)

    def _chosen(self, prefix: Prefixes | None, symbols: Iterable[str | bytes] | None) -> list[Inbox]:
        """Return subscriptions. Raises HubError for an unknown one."""
        chosen = Subscription.chosen(prefix, symbols)
        for each in chosen:
            if each not in self._inboxes:
                raise not_subscribed(each, self.subscriptions)
        return [self._inboxes[each] for each in chosen]

    def _new_inbox(self, subscription: Subscription) -> Inbox:
        if self._directory is None:
            raise ConfigError(f"directory was None, expected a directory of the subscriptions of client {self.name!r}")
        return Inbox(self.feed, self._directory, self.name, subscription, self._queue, self._arrivals, self._keep)

    def _ask(self, timeout: float | None, prefix: bytes | None = None) -> Welcome:
        answer = self._sender.ask(prefix)
        if not is_done_in(answer, timeout):
            self._sender.ask_no_more(answer)
            raise self._sender.not_stored("this client")
        return answer.result()


def _check_ids(ids: Sequence[bytes]) -> None:
    for each in ids:
        if type(each) is not bytes:
            raise TypeError(f"id was {each!r:.80}, expected bytes")
        if len(each) > MOST_ID_BYTES:
            raise ConfigError(f"id had {len(each)} bytes, expected at most {MOST_ID_BYTES}")


def _as_integer(ts_event: object) -> int:
    try:
        return operator.index(ts_event)  # type: ignore[arg-type]  # it checks the type
    except TypeError:
        raise TypeError(f"ts_event was {ts_event!r:.80}, expected an integer: ns since 1970") from None


def _as_times(ts_event: Any) -> NDArray[numpy.int64]:
    times = numpy.asarray(ts_event)
    if len(times) and times.dtype.kind not in "iu":
        raise TypeError(f"ts_event was of {times.dtype}, expected integers: ns since 1970")
    return times.astype(numpy.int64)


def _parts(stops: NDArray[numpy.int64]) -> list[slice]:
    """Cut rows into parts that fit a request."""
    found, begin, count = [], 0, len(stops) - 1
    while begin < count:
        fits = int(numpy.searchsorted(stops, stops[begin] + MOST_BYTES, "right")) - 1
        stop = max(begin + 1, min(fits, begin + MOST_PUTS, count))
        found.append(slice(begin, stop))
        begin = stop
    return found
