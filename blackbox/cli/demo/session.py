"""A session in memory, which can be published repeatedly, and a summary of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.errors import SourceError
from blackbox.feed.feed import Feed
from blackbox.feed.routing.symbol import MARKET_SYMBOL, SymbolRule
from blackbox.feed.source import Chunk, Source
from blackbox.publish.publisher import Publisher

WATCHED: Final = 3
_WATCHED_SHARE: Final = 0.01
_SECOND_NS: Final = 10**9


class SessionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of the session; also the reply that it is in memory."""

    messages: int
    payload_bytes: int
    by_type: dict[str, int]
    """Messages of each type, counted before publishing, to check the results."""
    orders: list[int]
    """Messages that add or replace an order, by slice."""
    watched: list[bytes]
    """Symbols with few messages, which are passed to Python one by one."""
    truncated: str | None
    seconds: float
    first_ns: int
    """Market time of the first message, ns since the epoch; 0 if unknown."""
    last_ns: int
    middle_ns: int
    """Market time of the median message, rounded down to seconds."""

    @property
    def market_seconds(self) -> float:
        """Duration of the session at the venue, in seconds."""
        return (self.last_ns - self.first_ns) / _SECOND_NS


class Session:
    """A source's messages in memory, as chunks that share one list of topics."""

    def __init__(self, source: Source, limit: int | None, report: Callable[[int], object]) -> None:
        """Read at most `limit` messages; `report` gets the number read so far, after each chunk.

        Raises SourceError if there are none.
        """
        started = time.monotonic()
        self.source = source
        self.chunks: list[Chunk] = []
        self.messages = 0
        for chunk in source.chunks():
            left = len(chunk.topic_index) if limit is None else limit - self.messages
            self.chunks.append(chunk if left >= len(chunk.topic_index) else _first(chunk, left))
            self.messages += len(self.chunks[-1].topic_index)
            report(self.messages)
            if limit is not None and self.messages >= limit:
                break
        if not self.messages:
            raise SourceError(source.truncated or f"{source!r} has no messages, expected at least one")
        # Append-only within one source: the last chunk has all topics.
        self.topics = self.chunks[-1].topics
        self.seconds = time.monotonic() - started

    def announce(self, publisher: Publisher) -> None:
        """Register all topics with the publisher, so that no run includes their first lookup."""
        nothing = numpy.empty(0, numpy.int32)
        publisher.publish_many(self.topics, nothing, numpy.empty((0, 1), numpy.uint8))

    def publish(self, publisher: Publisher) -> None:
        """Publish the whole session, including gaps."""
        latest_ns = 0
        for chunk in self.chunks:
            latest_ns = chunk._replace(topics=self.topics).publish(publisher, latest_ns)

    def summary(self, feed: Feed) -> SessionSummary:
        """Return the summary of the session on the given feed."""
        schema = self.source.schema
        by_type = numpy.zeros(256, numpy.int64)
        by_topic = numpy.zeros(len(self.topics), numpy.int64)
        octets = 0
        orders = numpy.zeros(len(feed.slices), numpy.int64)
        slice_of = numpy.array([feed.slice_of(topic) for topic in self.topics], numpy.int64)
        adds = numpy.isin(numpy.arange(256), list(b"AFU" if schema.name == "itch50" else b""))
        seconds: Counter[int] = Counter()
        first_ns, last_ns = 0, 0
        for chunk in self.chunks:
            kinds = chunk.payloads[chunk.starts + schema.type_offset]
            by_type += numpy.bincount(kinds, minlength=256)
            by_topic += numpy.bincount(chunk.topic_index, minlength=len(by_topic))
            orders += numpy.bincount(slice_of[chunk.topic_index[adds[kinds]]], minlength=len(orders))
            octets += int(chunk.lengths.sum(dtype=numpy.int64))
            known = chunk.ts_event[chunk.ts_event > 0]
            if len(known):
                first_ns = min(first_ns or int(known.min()), int(known.min()))
                last_ns = max(last_ns, int(known.max()))
                times, counts = numpy.unique(known // _SECOND_NS, return_counts=True)
                seconds.update(dict(zip(times.tolist(), counts.tolist(), strict=True)))
        return SessionSummary(
            messages=self.messages,
            payload_bytes=octets,
            by_type={chr(kind): int(by_type[kind]) for kind in numpy.flatnonzero(by_type)},
            orders=[int(each) for each in orders],
            watched=watched_symbols(self.topics, by_topic, feed.symbol_rule),
            truncated=self.source.truncated,
            seconds=self.seconds,
            first_ns=first_ns,
            last_ns=last_ns,
            middle_ns=_middle(seconds) * _SECOND_NS,
        )


def watched_symbols(topics: Sequence[bytes], messages: NDArray[numpy.int64], rule: SymbolRule) -> list[bytes]:
    """Return some busy symbols with few messages in all, so that Python calls do not limit the speed."""
    by_symbol: Counter[bytes] = Counter()
    for topic, number in zip(topics, messages.tolist(), strict=True):
        by_symbol[rule.symbol_of(topic)] += number
    del by_symbol[MARKET_SYMBOL]
    most = _WATCHED_SHARE * by_symbol.total() / WATCHED
    busiest = [symbol for symbol, _ in by_symbol.most_common()]
    return [symbol for symbol in busiest if by_symbol[symbol] <= most][:WATCHED] or busiest[-1:]


def _middle(counts: Counter[int]) -> int:
    """Return the median of the counted values; 0 without values."""
    left = counts.total() / 2
    for value in sorted(counts):
        left -= counts[value]
        if left <= 0:
            return value
    return 0


def _first(chunk: Chunk, messages: int) -> Chunk:
    return Chunk(
        chunk.topics,
        chunk.topic_index[:messages],
        chunk.ts_event[:messages],
        chunk.payloads,
        chunk.starts[:messages],
        chunk.lengths[:messages],
        tuple(gap for gap in chunk.gaps if gap[0] < messages),
    )
