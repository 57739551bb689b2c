"""Arguments of puts, checked: a put or rows of puts, ready to be sent."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.arguments import Duration, all_as_bytes, as_bytes, seconds
from blackbox.block.form.rows import as_integers, as_topic_index
from blackbox.block.position import Place
from blackbox.errors import ConfigError, HubError
from blackbox.feed.feed import Feed
from blackbox.feed.schema.schema import load_schema
from blackbox.services.hub.client.condition_columns import INT64, as_if_at, as_revision, as_ttl_ns
from blackbox.services.hub.client.put_queue import Columns, Put, parts_of
from blackbox.services.hub.protocol import (
    MOST_BYTES,
    MOST_COPIES_BYTES,
    MOST_ID_BYTES,
    MOST_TOPIC_BYTES,
    MOST_TOPICS,
    MOST_TTL_NS,
    Stored,
    check_topic_of,
    misfits,
    why_too_large,
)

Topics = str | bytes | Sequence[str | bytes]
"""Topic of a message, or its topics."""


class Rows(NamedTuple):
    """Puts in columns."""

    topics: list[bytes]
    topic_index: NDArray[numpy.int32]
    """Topic of each row."""
    offsets: NDArray[numpy.int64]
    data: NDArray[numpy.uint8]
    times: NDArray[numpy.int64] = numpy.zeros(0, numpy.int64)
    ids: Sequence[bytes] = ()
    if_at: NDArray[Any] | None = None
    ttl_ns: NDArray[numpy.int64] | None = None

    def having(self, ts_event: Any, ids: Sequence[bytes], if_at: Any, ttl: Any) -> Rows:
        """Return these puts with further columns, as in `HubClient.put_many`. Raises as it does."""
        count = len(self.topic_index)
        times = numpy.full(count, time.time_ns(), numpy.int64)
        if ts_event is not None:
            times = as_integers(ts_event, numpy.int64, "ts_event")
        _check_ids(ids)
        if len(times) != count or len(ids) not in (0, count):
            raise ValueError(f"ts_event and ids were of other lengths, expected {count}")
        return self._replace(times=times, ids=ids, if_at=as_if_at(if_at, count), ttl_ns=as_ttl_ns(ttl, count))

    def requests(self) -> Iterator[tuple[Columns, Future[Stored]]]:
        """Return each part as a request, and its answer."""
        numbers = numpy.empty(len(self.topics), numpy.int32)
        for part in parts_of(self.offsets):
            index, future = self.topic_index[part], Future[Stored]()
            rows = numpy.arange(len(index), dtype=numpy.int32)
            numbers[index] = rows
            used = index[numbers[index] == rows]  # topics of these rows, each once
            numbers[used] = rows[: len(used)]
            offsets = self.offsets[part.start : part.stop + 1]
            columns = Columns(
                [self.topics[each] for each in used.tolist()],
                numbers[index].tobytes(),
                (offsets - offsets[0]).tobytes(),
                self.data[offsets[0] : offsets[-1]].tobytes(),
                self.times[part].tobytes(),
                b"",
                list(self.ids[part]),
                len(index),
                _teller(future),
                b"" if self.if_at is None else self.if_at[part].tobytes(),
                b"" if self.ttl_ns is None else self.ttl_ns[part].tobytes(),
            )
            yield columns, future


def _teller(future: Future[Stored]) -> Callable[[Stored | HubError], None]:
    def tell(result: Stored | HubError) -> None:
        if isinstance(result, HubError):
            future.set_exception(result)
        else:
            future.set_result(result)

    return tell


class PutChecks:
    """Checks puts of a feed before they are sent."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._takes_all = not any(part.prefixes for part in feed.slices)
        """True if each topic has a slice: by share, or the only one."""
        self._known = set[bytes]()
        """Topics that were checked."""
        self._schema = load_schema(feed.schema)
        self._record_bytes = {kind.encode("latin-1"): each.itemsize for kind, each in self._schema.records.items()}

    def single(
        self,
        topic: Topics,
        payload: bytes | None,
        put_id: bytes | None,
        ts_event: int | None,
        if_at: Place | None,
        ttl: Duration | None,
    ) -> Put:
        """Return a put. Raises ConfigError, TypeError, ValueError."""
        ttl = seconds("ttl", ttl)
        more: Sequence[bytes] = ()
        if type(topic) is not bytes or topic not in self._known:
            topic, *more = as_topics(topic)
            for each in (topic, *more):
                self._check_topic(each)
        if payload is not None:
            self._check_payload(payload, 1 + len(more))
        put = Put(topic, payload, time.time_ns() if ts_event is None else _as_time(ts_event))
        if more:
            put.more = tuple(more)
        if put_id is not None:
            _check_ids((put_id,))
            put.id = put_id
        if if_at is not None:
            put.if_at = as_revision(if_at)
        if ttl is not None:
            if payload is None or not 0 < ttl * 1e9 <= MOST_TTL_NS:
                what = "without a value" if payload is None else f"of {ttl} s"
                most = MOST_TTL_NS // 10**9
                raise ValueError(f"ttl was {what}, expected a put with a value, above 0 and up to {most} s")
            put.ttl_ns = math.ceil(ttl * 1e9)
        return put

    def _check_payload(self, payload: bytes, topics: int) -> None:
        if type(payload) is not bytes:
            raise TypeError(f"payload was {payload!r:.80}, expected bytes")
        if len(payload) > MOST_BYTES:
            raise ConfigError(f"payload had {len(payload)} bytes, expected at most {MOST_BYTES}")
        if topics * len(payload) > MOST_COPIES_BYTES:
            raise ConfigError(why_too_large(topics, len(payload)))
        if self._record_bytes:
            offset = self._schema.type_offset
            if self._record_bytes.get(payload[offset : offset + 1]) != len(payload):
                ends = numpy.array([0]), numpy.array([len(payload)])
                for _, why in misfits(self._schema, *ends, numpy.frombuffer(payload, "u1")):
                    raise ConfigError(why)

    def rows(self, topics: Sequence[str | bytes], topic_index: Any, payloads: Any, offsets: Any) -> Rows:
        """Return puts in columns, without times, ids and conditions. Raises ConfigError, TypeError, ValueError."""
        index = as_topic_index(topic_index, topics)
        names = all_as_bytes("topics", topics)
        if not (self._takes_all and self._are_whole(names)):
            for topic in names:
                self._check_topic(topic)
        data = numpy.ascontiguousarray(numpy.frombuffer(payloads, numpy.uint8) if offsets is not None else payloads)
        count, flat = len(index), data.view(numpy.uint8).reshape(-1)
        if offsets is None and (data.ndim != 2 or len(data) != count):
            raise ValueError(f"payloads had shape {data.shape}, expected ({count}, size)")
        given = numpy.arange(count + 1) * (len(flat) // max(1, count)) if offsets is None else offsets
        stops = as_integers(given, numpy.int64, "offsets")
        if len(stops) != count + 1 or stops[0] < 0 or stops[-1] > len(flat) or (numpy.diff(stops) < 0).any():
            raise ValueError(f"offsets were {stops[:1]} to {stops[-1:]}, expected {count + 1} within {len(flat)}")
        if count and (largest := int(numpy.diff(stops).max())) > MOST_BYTES:
            raise ConfigError(f"payload had {largest} bytes, expected at most {MOST_BYTES}")
        return Rows(names, index, stops, flat)

    @staticmethod
    def _are_whole(topics: list[bytes]) -> bool:
        """Return True if a slice without prefixes takes all of these topics."""
        return min(topics, default=b"\1") >= b"\1" and max(map(len, topics), default=0) <= MOST_TOPIC_BYTES

    def _check_topic(self, topic: bytes) -> None:
        if topic not in self._known:
            check_topic_of(self._feed, topic)
            if len(self._known) < self._feed.max_topics:
                self._known.add(topic)


def as_topics(topic: Topics) -> tuple[bytes, ...]:
    """Return the topics of a message. Raises TypeError, or ValueError for none, or for the same one twice."""
    if not isinstance(topic, tuple | list):
        return (as_bytes("topic", topic),)
    topics = tuple(all_as_bytes("topics", topic))
    if not 1 <= len(topics) <= MOST_TOPICS or len(set(topics)) < len(topics):
        raise ValueError(f"topics were {topics!r:.80} ({len(topics)}), expected 1 to {MOST_TOPICS}, each once")
    return topics


def _check_ids(ids: Sequence[bytes]) -> None:
    for each in ids:
        if type(each) is not bytes:
            raise TypeError(f"id was {each!r:.80}, expected bytes")
        if len(each) > MOST_ID_BYTES:
            raise ConfigError(f"id had {len(each)} bytes, expected at most {MOST_ID_BYTES}")


def _as_time(ts_event: object) -> int:
    try:
        time_ns = operator.index(ts_event)  # type: ignore[arg-type]  # it checks the type
    except TypeError:
        raise TypeError(f"ts_event was {ts_event!r:.80}, expected an integer: ns since 1970") from None
    if not -INT64 <= time_ns < INT64:
        raise ValueError(f"ts_event was {ts_event!r}, expected an int64")
    return time_ns
