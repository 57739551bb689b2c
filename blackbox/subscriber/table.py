"""Keep the newest payload of each topic under a prefix: the image first, then all later messages."""

from __future__ import annotations

import hashlib
import struct
import threading
import time
from collections.abc import Callable, Collection, ItemsView, Iterator, Mapping, ValuesView
from itertools import chain
from math import inf
from typing import Final, Protocol, TypeVar, Unpack

import numpy

from blackbox.archive.data_frames import Frames
from blackbox.archive.read.filter import Selection
from blackbox.archive.serve.newest import Entry, NewestRows
from blackbox.arguments import Duration, as_bytes, check_function, seconds
from blackbox.block.batch.batch import Batch
from blackbox.block.batch.first_rows import Row, first_rows
from blackbox.block.batch.received_block import BatchFeed, ReceivedBlock
from blackbox.block.position import NOWHERE, Place, Position
from blackbox.errors import ConfigError, JournalError, SubscriberError
from blackbox.feed.feed import Feed
from blackbox.feed.schema.schema import load_schema
from blackbox.feed.symbol_choice import SymbolChoice
from blackbox.notebook import Cell, view
from blackbox.receive.slices.catching_up import Since

At = Mapping[int, Position]
"""Position after the last message, by slice."""
OnChange = TypeVar("OnChange", bound=Callable[[bytes, bytes | None], object])
_LOOK_S: Final = 0.1
"""Interval between checks whether the subscriber has ended."""
_SIZES: Final = struct.Struct("<QQ")


class Puts(Protocol):
    """The writer of a table: a `HubClient` of the feed's hub."""

    feed: Feed

    def put(
        self,
        topic: bytes,
        payload: bytes | None,
        id: bytes | None,  # noqa: A002
        *,
        ts_event: int | None,
        timeout: Duration,
        if_at: Place | None,
        ttl: Duration | None,
    ) -> Place:
        """Put a message; see `HubClient.put`."""


class _Progress:
    """Positions that a table has reached, and how much of its image is missing. Its lock is that of the table.

    Attributes: `changed`, the lock; `at`, the position after the last message, by slice; `synced`, set once the image
    is complete; `waiting`, the number of waiting threads.
    """

    def __init__(self, check_life: Callable[[], None]) -> None:
        self._check_life = check_life
        self.changed = threading.Condition(threading.Lock())
        self.at: dict[int, Position] = {}
        self.synced = threading.Event()
        self.waiting = 0
        self._left = -1
        """Messages of the image not received yet; -1: unknown."""

    def begin(self, at: dict[int, Position], left: int) -> None:
        """Expect an image of `left` messages."""
        self.at, self._left = at, left
        self.take_image(0)

    def take_image(self, count: int) -> None:
        """Note messages of the image."""
        self._left -= count
        if self._left == 0:
            self.synced.set()
            self.changed.notify_all()

    def has(self, until: At) -> bool:
        """Return True if the table is synced and has reached these positions."""
        return self.synced.is_set() and all(self.at.get(each, (0, 0)) >= position for each, position in until.items())

    def wait(self, is_so: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until it is so. Return False at the timeout. Raises SubscriberError if the subscriber has ended."""
        end = time.monotonic() + (inf if timeout is None else timeout)
        with self.changed:
            self.waiting += 1
            try:
                while not is_so():
                    if (left := end - time.monotonic()) <= 0:
                        return False
                    self._check_life()
                    self.changed.wait(min(left, _LOOK_S))
                return True
            finally:
                self.waiting -= 1


class Table(Frames, Mapping[bytes, bytes]):
    """The newest payload of each topic that begins with `prefix`. Created by `Subscriber.table`.

    A message without a value removes its topic. Any thread may read it. Consecutive reads may see different states;
    `snapshot` returns one state. Lost messages (see `on_gap`) leave topics unchanged.

    As a frame (`to_arrow`, `to_pandas`, `to_polars`) it has the columns of a `Recording` and one row per topic, ordered
    by slice and newest message. Options are `message_type`, `prices`, `times` and `zone`.

    Attributes: `prefix`, `feed`, `schema`.
    """

    def __init__(
        self,
        feed: Feed,
        prefix: bytes,
        client: Puts | None = None,
        check_life: Callable[[], None] = lambda: None,
        wait_complete: Callable[[Collection[int], float], bool] = lambda _slices, _timeout: True,
        symbols: SymbolChoice | None = None,
    ) -> None:
        """Start empty and not synced. `client` writes to it. `check_life` raises once no more messages can arrive.

        `wait_complete` waits until nothing is missing before the last message of some slices. `symbols` limits the
        topics.
        """
        self._symbols = symbols
        self._client, self._wait_complete = client, wait_complete
        self.prefix, self.feed, self.schema = prefix, feed, load_schema(feed.schema)
        self._rows = NewestRows(
            f"table {prefix!r}", feed.key_rule, feed.max_topics * max(1, len(feed.slices_for(prefix)))
        )
        self._progress = _Progress(check_life)
        self._changed = self._progress.changed
        self._on_change: list[Callable[[bytes, bytes | None], object]] = []

    @property
    def synced(self) -> bool:
        """True if the image is complete. From then on the table is as of `at`."""
        return self._progress.synced.is_set()

    def wait_synced(self, timeout: Duration | None = None) -> bool:
        """Wait until the image is complete. Return False at the timeout. Raises SubscriberError if it has ended."""
        timeout = seconds("timeout", timeout)
        return self._progress.wait(self._progress.synced.is_set, timeout)

    @property
    def at(self) -> dict[int, Position]:
        """Position after the last message in the table, by slice."""
        with self._changed:
            return dict(self._progress.at)

    def wait(self, until: Place | At, timeout: Duration = 10.0) -> bool:
        """Wait until the table is synced and has a message, or has reached another table's `at`. Return False if late.

        For a table of some keys of a slice this may take until the next heartbeat, which shows that nothing is missing.

        Args:
            until: place of a message whose topic begins with `prefix`, as returned by `put`; or `at` of another table
                of this prefix.
            timeout: in seconds.

        Raises as `wait_synced`, and in a callback as `Subscriber.checkpoint`.
        """
        timeout = seconds("timeout", timeout)
        end, place = time.monotonic() + timeout, until if isinstance(until, Place) else None
        at = {until.slice_id: Position(until.epoch, until.sequence + 1)} if isinstance(until, Place) else until
        if not self._progress.wait(lambda: self._progress.has(at), timeout):
            return False
        with self._changed:
            has_all = self.feed.key_rule == 0 or (place is not None and self._rows.has(place))
        return has_all or self._wait_complete(at.keys(), end - time.monotonic())

    def on_change(self, function: OnChange) -> OnChange:
        """Decorate `f(topic, payload)`, called for each topic that has changed; payload None: it was removed.

        A worker of the topic's slice calls it after applying a block. If a topic has several messages in a block, it is
        called only with the newest. Topics are in the order of these messages; those of two slices may come at the same
        time. The image counts as a change of all its topics. Exceptions are handled as in a callback: see `on_error`.
        """
        check_function(function, "topic", "payload")
        self._on_change.append(function)
        return function

    def entry(self, topic: str | bytes) -> Entry | None:
        """Return the newest message of a topic and its place, consistently; None if it has no value."""
        name = as_bytes("topic", topic)
        with self._changed:
            return self._rows.entry(name)

    def revision(self, topic: str | bytes) -> Place:
        """Return the place of a topic's newest message; NOWHERE for a topic without a value."""
        found = self.entry(topic)
        return NOWHERE if found is None else found.place

    def put(
        self,
        topic: str | bytes,
        payload: bytes,
        *,
        id: bytes | None = None,  # noqa: A002
        if_at: Place | None = None,
        ttl: Duration | None = None,
        ts_event: int | None = None,
        timeout: Duration = 10.0,
    ) -> Place:
        """Put a value through the hub and return its place. The table has it soon after: see `wait`.

        `if_at`: only if this is the place of the topic's newest message, as returned by `revision` before you read the
        value; NOWHERE: only if it has none. `ttl`: seconds until the hub deletes it, unless it is put again.
        `ts_event`: ns since 1970; None: now. A put that is repeated with the same `id`, as after NotStoredError, is
        stored once. Raises as `HubClient.put`, ConflictError if another client put first; ConfigError without a client,
        and for a topic without the prefix.
        """
        return self._put(topic, payload, id, if_at, ttl, ts_event, timeout)

    def delete(
        self,
        topic: str | bytes,
        *,
        id: bytes | None = None,  # noqa: A002
        if_at: Place | None = None,
        timeout: Duration = 10.0,
    ) -> Place:
        """Remove a topic through the hub by a message without a value, as `put`. Return its place."""
        return self._put(topic, None, id, if_at, None, None, timeout)

    def _put(
        self,
        topic: str | bytes,
        payload: bytes | None,
        put_id: bytes | None,
        if_at: Place | None,
        ttl: Duration | None,
        ts_event: int | None,
        timeout: Duration,
    ) -> Place:
        if self._client is None:
            raise ConfigError(f"table {self.prefix!r} had no client, expected one: table(prefix, client=client)")
        topic = as_bytes("topic", topic)
        if not self._may_have(topic):
            raise ConfigError(f"topic was {topic!r}, expected one of table {self.prefix!r}")
        return self._client.put(topic, payload, put_id, ts_event=ts_event, timeout=timeout, if_at=if_at, ttl=ttl)

    def snapshot(self) -> tuple[dict[bytes, bytes], dict[int, Position]]:
        """Return all payloads by topic, and `at`, in one consistent state."""
        with self._changed:
            copy, at = self._rows.copy(), dict(self._progress.at)
        return copy.as_dict(), at

    def digest(self) -> str:
        """Return a SHA-256, in hexadecimal, of all topics and payloads. Equal tables have the same digest."""
        payloads, found = self.snapshot()[0], hashlib.sha256()
        for topic, payload in sorted(payloads.items()):
            found.update(_SIZES.pack(len(topic), len(payload)) + topic + payload)
        return found.hexdigest()

    def batches(self, prefix: str | bytes = b"", **selection: Unpack[Selection]) -> Iterator[Batch]:
        """Yield the newest messages of the topics that start with `prefix`, in one consistent state, block by block.

        Raises ConfigError for a selection, because the table has one message per topic.
        """
        if selection:
            raise ConfigError(f"options were {sorted(selection)}, expected none of these for a table")
        feed = BatchFeed(self.feed.name, self.schema if self.schema.records else None, self.feed.symbol_rule)
        with self._changed:
            blocks = self._rows.blocks([as_bytes("prefix", prefix)])
        for block in blocks:
            yield Batch(block, None, ReceivedBlock.of_block(block, feed, 0, is_image=True))

    def __getitem__(self, topic: str | bytes) -> bytes:
        found = self.entry(topic)
        if found is None:
            raise KeyError(topic)
        return found.payload

    def __len__(self) -> int:
        return self._rows.with_value

    def __iter__(self) -> Iterator[bytes]:
        with self._changed:
            copy = self._rows.copy()
        return iter(copy.topics())

    def items(self) -> ItemsView[bytes, bytes]:
        """Return topics and payloads in one consistent state: topics may be removed during iteration."""
        return self.snapshot()[0].items()

    def values(self) -> ValuesView[bytes]:
        """Return payloads, as `items`."""
        return self.snapshot()[0].values()

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.prefix!r}, {len(self)} topics, {'synced' if self.synced else 'not synced'})"
        )

    def _repr_html_(self) -> str:
        with self._changed:
            names = self._rows.names()
        facts: dict[str, Cell] = {
            "feed": self.feed.name,
            "prefix": self.prefix or "all",
            "topics": len(self),
            "synced": "yes" if self.synced else "no",
        }
        schema = self.schema if self.schema.records else None
        entries = filter(None, map(self.entry, names))
        newest = (Row(each.ts_event, each.topic, each.payload, schema) for each in entries)
        return view("Table", facts, first_rows(newest, len(self), self.feed.time_zone))

    def _begin(self, images: Mapping[int, Since | None]) -> None:
        """Empty the table and expect the image of each slice. Called before any of it arrives."""
        at, left = dict[int, Position](), 0
        for slice_id, since in images.items():
            if since is not None:
                topics = chain.from_iterable(block.topics for block in since.image or ())
                found = [topic for topic in topics if topic.startswith(self.prefix)]
                left += len(found) if self._symbols is None else sum(map(self._symbols.has, found))
                if since.position is not None:
                    at[slice_id] = since.position
        with self._changed:
            self._rows.clear()
            self._progress.begin(at, left)

    def _take(self, batch: Batch) -> None:
        """Add messages: the callback. Raises SubscriberError above the maximum size of a table."""
        block, progress = batch.block, self._progress
        last = block.count - 1 if batch.rows is None else int(batch.rows[-1])
        with self._changed:
            try:
                self._rows.take_batch(batch)
            except JournalError as error:
                raise SubscriberError(str(error)) from None
            if batch.is_image:
                progress.take_image(len(batch))
            else:
                at, reached = progress.at.get(block.slice_id), Position(block.epoch, block.number_of(last) + 1)
                # Repaired messages of a key may follow higher sequences of other keys.
                progress.at[block.slice_id] = max(at, reached) if at and at.epoch == reached.epoch else reached
                if progress.waiting:
                    self._changed.notify_all()
        if self._on_change:
            newest = _newest_of(batch)
            for topic, payload in zip(newest.topics_per_message(), newest.payload_list(), strict=True):
                for function in tuple(self._on_change):
                    function(topic, payload)

    def _may_have(self, topic: bytes) -> bool:
        return topic.startswith(self.prefix) and (self._symbols is None or self._symbols.has(topic))


def _newest_of(batch: Batch) -> Batch:
    """Return the last message of each topic, in order."""
    last = numpy.full(len(batch.topics), -1, numpy.int64)
    last[batch.topic_index] = numpy.arange(len(batch))  # the last of equal indexes wins
    places = numpy.sort(last[last >= 0]).astype(numpy.int32)
    return Batch(batch.block, places if batch.rows is None else batch.rows[places], batch._received_block)
