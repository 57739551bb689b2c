"""Sources made for tests of imports, and the contents of a recording."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy

from blackbox import Feed, Recording, Source
from blackbox.feed.schema.schema import RAW, Schema
from blackbox.feed.source import Chunk

DAY = datetime.date(2026, 1, 5)
NOON = 1_767_614_400 * 10**9
DAY_NS = 86_400 * 10**9


def feed_of(schema: str = "itch50", name: str = "imported", slices: int = 2, **settings: Any) -> Feed:
    return msgspec.structs.replace(Feed.local(name, slices), schema=schema, **settings)


class Made(Source):
    """The given messages, one chunk per list, and an optional error at the end."""

    schema = RAW

    def __init__(
        self,
        *chunks: list[tuple[bytes, bytes, int]],
        date: datetime.date | None = None,
        error: Exception | None = None,
        schema: Schema = RAW,
    ) -> None:
        self._chunks, self.date, self._error = chunks, date, error
        self.schema = schema

    def chunks(self) -> Iterator[Chunk]:
        topics: tuple[bytes, ...] = ()
        for rows in self._chunks:
            topics += tuple(dict.fromkeys(topic for topic, _, _ in rows if topic not in topics))
            sizes = numpy.array([len(payload) for _, payload, _ in rows], numpy.int32)
            yield Chunk(
                topics,
                numpy.array([topics.index(topic) for topic, _, _ in rows], numpy.int32),
                numpy.array([time for _, _, time in rows], numpy.int64),
                numpy.frombuffer(b"".join(payload for _, payload, _ in rows) or b"\0", numpy.uint8),
                numpy.cumsum(sizes, dtype=numpy.int64) - sizes,
                sizes,
            )
        if self._error is not None:
            raise self._error


def told(recording: Recording) -> list[tuple[bytes, bytes, int]]:
    return [(message.topic, message.payload, message.ts_event) for batch in recording.batches() for message in batch]
