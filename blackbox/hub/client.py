"""A client of a hub: put messages once, and get those of durable subscriptions."""

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
    """Keywords of `HubClient`, which `AsyncHubClient` takes, too."""

    acknowledged: Literal["recorded", "synced"]
    in_flight: int
    queue: int
    keep: bool


class HubClient:
    """Put to a hub, and get from it. Any thread may put; each subscription has one reader.

    A put is stored once, however often it is sent, and whoever is killed. One that has an `id` is stored once, too,
    if it is put again, by this client or another. Without one, put again is another message: wait with `flush`.
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
        """Settings; nothing is opened before `start`, or `with`. Raises ConfigError or ValueError.

        Args:
            feed: of the hub, or the hub file.
            name: of the client: `published_count` then continues where the last process stopped. One process has it at
                a time; a later one takes it over. Default: a new one.
            directory: where subscriptions are kept, of clients with a name.
            acknowledged: what a put waits for: the hub has it in the page cache ("recorded"), so that it survives
                whatever is killed; or on its disk ("synced"), so that it survives a power cut, too.
            in_flight: puts that may be on their way at once.
            queue: messages of a subscription that may wait here to be got; the hub keeps all.
            keep: write what is received next to the positions, up to 64 MiB for each subscription, until it is
                committed. A client that restarts while the hub is away gets it from there.
        """
        self.feed = feed_of_hub(feed)
        self.name = f"unnamed-{secrets.token_hex(8)}" if name is None else name
        check_client_name(self.name)
        if directory is not None and name is None:
            raise ConfigError("directory was given without a name, expected both to subscribe")
        if keep and directory is None:
            raise ConfigError("keep was given without a directory, expected the directory of the positions")
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
        """Number of times that several subscriptions were looked at: each time another one is the first."""
        self._reports = None if directory is None else SubscriptionReports(self.feed, directory, self.name)
        self._sender = Sender(self.feed, self.name, synced=acknowledged == "synced", most=in_flight)
        self._is_started = False

    def start(self) -> Self:
        """Connect, also while the hub is away. Raises EndpointError, ConfigError, LimitError, PositionError."""
        if not self._is_started:
            for each in subscriptions_of(self._directory, self.name) if self._directory is not None else ():
                self._inboxes[each] = self._new_inbox(each)
            self._sender.start()
            if self._reports is not None:
                self._reports.report(self._inboxes)
            self._is_started = True
        return self

    def close(self, timeout: float = 10.0) -> None:
        """Wait until the hub has what was put, and end. Raises NotStoredError for what it has not said to have."""
        try:
            if self._is_started:
                self.flush(timeout)
        finally:
            self.end()

    def end(self) -> None:
        """End now: what the hub has not answered fails, and may be stored all the same."""
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
        """Put a message, and return where it is once the hub has it; payload None: the topic has no value any more.

        Args:
            topic: of the message.
            payload: of the message.
            id: the message is stored once, however often something is put with this.
            ts_event: when it happened, ns since 1970. None: now. 0: the time is not known.
            timeout: in seconds.
            if_at: store it only if the newest message of the topic is there, see `Table.revision`; NOWHERE: only if
                the topic has no value. The hub judges that in the order of its puts; else it raises ConflictError.
            ttl: after so many seconds the hub deletes the topic, unless it is put anew meanwhile. None: it stays.

        Raises NotStoredError after `timeout` seconds: it stays on its way while this client lives, and may come to be
        stored. Put again with the same `id` it is stored once. Raises ConfigError for a topic of no slice, or a value
        that is too large, or no record of the feed's schema; RefusedError when the hub refuses it, as ConflictError;
        HubError when the client has ended.
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
        """Have a message on its way, and return at once, if there is room: `flush` waits for all of them.

        The future gives its place, or raises HubError, as RefusedError. Raises as `put`; NotStoredError when there is
        no room in time.
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
            topics: each once; `topic_index` tells of each message which is its own.
            topic_index: int[n].
            payloads: as of `Publisher.publish_many`, as `ts_event` and `offsets`.
            ts_event: int64[n], ns since 1970, 0 where the time is not known; None: now for all.
            offsets: int64[n + 1].
            ids: of each message, as of `put`; b"" for none.
            timeout: in seconds.
            if_at: as of `put`: one for all, such as NOWHERE, or a column, a Place or None for each message, or places
                that `put_many` has returned.
            ttl: as of `put`: one for all, or a column of seconds; None or NaN for a message whose topic stays.

        Each message is judged on its own, in their order, so of a topic that comes twice the second one follows the
        first; messages of one key come together. RefusedError, as ConflictError, tells of the first that
        was refused: all others are stored, and its `places` says which are.

        Raises as `put`. Of many some may then be stored; `ids` of each let them be put again. Raises ValueError for a
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
        used = index[numbers[index] == rows]  # each topic that these rows have, once: where its last one is
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
        """Wait until the hub has answered all that was put; what it refused, the futures tell.

        Raises NotStoredError after `timeout` seconds; HubError when the client has ended.
        """
        self._sender.flush(time.monotonic() + timeout)

    def published_count(self, timeout: float = 10.0) -> int:
        """Return how many puts of this client's name the hub has had, of all processes that had it, in their order.

        So one that was killed sees how far it came, and goes on with the next one. Call it before you put.
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

        Each prefix, or each symbol, is a subscription of its own. `symbols=["AAPL"]` are topics of exactly this symbol.

        Raises NotStoredError when the hub does not answer within `timeout` seconds, ConfigError, PositionError.
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
        """End subscriptions, and forget where they were: the hub keeps no days for them any more.

        A hub that is away is told later, by this client or the next one of this name. Raises HubError for an unknown
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
        """Return the next message of a subscription, or of any of several, also while the hub is away.

        Several take turns. Messages returned since the last `commit` come again after a crash.

        Raises TimeoutError when none came in `timeout` seconds (None: no bound), HubError when it is not subscribed to,
        or the client has ended, SubscriberError for what ended it: the next call begins anew at the last commit.
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
                raise TimeoutError(f"nothing of {names} came in {timeout} s{away}")
            self._arrivals.wait(seen, left)

    def _look(self, inboxes: Sequence[Inbox]) -> Message | None:
        """Return the next message of any of several subscriptions, in turn; None: none is here."""
        self._looks += 1
        for at in range(len(inboxes)):
            with suppress(TimeoutError):
                return inboxes[(self._looks + at) % len(inboxes)].get(0.0)
        return None

    def commit(self, timeout: float = 10.0) -> None:
        """Say that all that was got is done with, of all subscriptions: it does not come again, whatever crashes.

        Call it in the thread that gets. Raises PositionError, SubscriberError, TimeoutError, HubError when the client
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
            raise ConfigError(f"directory was None, expected one that keeps subscriptions of client {self.name!r}")
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
        return operator.index(ts_event)  # type: ignore[arg-type]  # which is what it looks at
    except TypeError:
        raise TypeError(f"ts_event was {ts_event!r:.80}, expected an integer: ns since 1970") from None


def _as_times(ts_event: Any) -> NDArray[numpy.int64]:
    times = numpy.asarray(ts_event)
    if len(times) and times.dtype.kind not in "iu":
        raise TypeError(f"ts_event was of {times.dtype}, expected integers: ns since 1970")
    return times.astype(numpy.int64)


def _parts(stops: NDArray[numpy.int64]) -> list[slice]:
    """Cut rows into parts that a request can have."""
    found, begin, count = [], 0, len(stops) - 1
    while begin < count:
        fits = int(numpy.searchsorted(stops, stops[begin] + MOST_BYTES, "right")) - 1
        stop = max(begin + 1, min(fits, begin + MOST_PUTS, count))
        found.append(slice(begin, stop))
        begin = stop
    return found
