"""The demo's publishing process: a session into memory first, then onto the wire as fast as it is taken."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Final

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.cli.feeds import open_with_options
from blackbox.cli.symbols import NO_SYMBOL, SymbolOf
from blackbox.errors import BlackBoxError, SourceError
from blackbox.feed import Feed
from blackbox.publisher import Publisher, PublisherStatistics
from blackbox.source import Chunk, Source

BLOCK_BYTES: Final = 1_048_576
"""Large blocks: what a block costs is shared by some twenty thousand messages."""
QUEUE_BLOCKS: Final = 4
"""At every bound on the way: the lag of a session at full speed is the time in queues."""
WATCHED: Final = 3
_WATCHED_SHARE: Final = 0.01
_FLUSH_S: Final = 600.0


class Order(msgspec.Struct, frozen=True):
    """What the demo asks of its publishing process."""

    feed: Feed
    spec: str
    options: list[str]
    messages: int | None
    """At most so many of the source; None: all."""


class Prepared(msgspec.Struct, frozen=True):
    """The session lies in memory."""

    messages: int
    payload_bytes: int
    by_type: dict[str, int]
    """Messages of each type, counted before they are published: the demo checks its results against it."""
    orders: list[int]
    """Messages of each slice that add or replace an order, or could."""
    watched: list[bytes]
    """Some symbols that are a small part of the session."""
    truncated: str | None
    seconds: float


class Progress(msgspec.Struct, frozen=True):
    """Messages prepared so far."""

    messages: int


class Published(msgspec.Struct, frozen=True):
    """Everything has been handed to ZeroMQ."""

    statistics: PublisherStatistics
    seconds: float


class Failed(msgspec.Struct, frozen=True):
    """The process ends because of an error."""

    text: str


def run_publisher(order: Order, pipe: Connection) -> None:
    """Prepare the session, report, wait for word, publish, report. The process's main function."""
    try:
        source = open_with_options(order.spec, order.options, order.feed)
        session = Session(source, order.messages, pipe)
        with Publisher(order.feed, when_full="wait", hwm_blocks=QUEUE_BLOCKS) as publisher:
            session.announce(publisher)
            pipe.send(session.prepared(order.feed))
            pipe.recv()
            publisher.wait_for_subscribers(b"", timeout=60.0)
            started = time.monotonic()
            session.publish(publisher)
            publisher.flush(_FLUSH_S)
            seconds = time.monotonic() - started
            publisher.close(_FLUSH_S)
            pipe.send(Published(publisher.statistics(), seconds))
    except BlackBoxError as error:
        pipe.send(Failed(str(error)))
    except (EOFError, BrokenPipeError):
        pass  # the demo has ended


class Session:
    """A source's messages in memory, as chunks that share one list of topics."""

    def __init__(self, source: Source, limit: int | None, pipe: Connection) -> None:
        started = time.monotonic()
        self.source = source
        self.chunks: list[Chunk] = []
        self.messages = 0
        for chunk in source.chunks():
            left = len(chunk.topic_index) if limit is None else limit - self.messages
            self.chunks.append(chunk if left >= len(chunk.topic_index) else _first(chunk, left))
            self.messages += len(self.chunks[-1].topic_index)
            pipe.send(Progress(self.messages))
            if limit is not None and self.messages >= limit:
                break
        if not self.messages:
            raise SourceError(source.truncated or f"{source!r} holds no message, expected at least one")
        # Append-only over one source: the last chunk's topics are those of all.
        self.topics = self.chunks[-1].topics
        self.seconds = time.monotonic() - started

    def announce(self, publisher: Publisher) -> None:
        """Make the publisher know all topics, so that none is looked up for the first time on the way."""
        nothing = numpy.empty(0, numpy.int32)
        publisher.publish_many(self.topics, nothing, numpy.empty((0, 1), numpy.uint8))

    def publish(self, publisher: Publisher) -> None:
        """Publish everything."""
        for chunk in self.chunks:
            publisher.publish_many(
                self.topics,
                chunk.topic_index,
                chunk.payloads,
                ts_event=chunk.ts_event,
                offsets=chunk.starts,
                lengths=chunk.lengths,
            )

    def prepared(self, feed: Feed) -> Prepared:
        """What lies in memory."""
        schema = self.source.schema
        by_type = numpy.zeros(256, numpy.int64)
        by_topic = numpy.zeros(len(self.topics), numpy.int64)
        octets = 0
        orders = numpy.zeros(len(feed.slices), numpy.int64)
        slice_of = numpy.array([feed.slice_of(topic) for topic in self.topics], numpy.int64)
        adds = numpy.isin(numpy.arange(256), list(b"AFU" if schema.name == "itch50" else b""))
        for chunk in self.chunks:
            kinds = chunk.payloads[chunk.starts + schema.type_offset]
            by_type += numpy.bincount(kinds, minlength=256)
            by_topic += numpy.bincount(chunk.topic_index, minlength=len(by_topic))
            orders += numpy.bincount(slice_of[chunk.topic_index[adds[kinds]]], minlength=len(orders))
            octets += int(chunk.lengths.sum(dtype=numpy.int64))
        return Prepared(
            messages=self.messages,
            payload_bytes=octets,
            by_type={chr(kind): int(by_type[kind]) for kind in numpy.flatnonzero(by_type)},
            orders=[int(each) for each in orders],
            watched=watched_symbols(self.topics, by_topic, feed.topic),
            truncated=self.source.truncated,
            seconds=self.seconds,
        )


def watched_symbols(topics: Sequence[bytes], messages: NDArray[numpy.int64], template: str) -> list[bytes]:
    """A few busy symbols that together are a small share, so that Python calls for each message do not set the pace."""
    symbol_of = SymbolOf(template)
    by_symbol: Counter[bytes] = Counter()
    for topic, number in zip(topics, messages.tolist(), strict=True):
        by_symbol[symbol_of(topic)] += number
    del by_symbol[NO_SYMBOL]
    most = _WATCHED_SHARE * by_symbol.total() / WATCHED
    busiest = [symbol for symbol, _ in by_symbol.most_common()]
    return [symbol for symbol in busiest if by_symbol[symbol] <= most][:WATCHED] or busiest[-1:]


def _first(chunk: Chunk, messages: int) -> Chunk:
    return Chunk(
        chunk.topics,
        chunk.topic_index[:messages],
        chunk.ts_event[:messages],
        chunk.payloads,
        chunk.starts[:messages],
        chunk.lengths[:messages],
    )
