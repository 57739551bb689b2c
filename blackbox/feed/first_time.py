"""Order several sources by the times of their first messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Final, NamedTuple

import numpy

from blackbox.feed.source import Chunk, Source

_CHUNKS_WITHOUT_TIME: Final = 16
"""Chunks of messages that are searched for a time."""


class FirstTime(NamedTuple):
    """A source whose first messages were read."""

    source: Source
    first_ns: int | None
    """Time of the first message that has one, ns since 1970. 0: the first messages have none; None: no messages."""
    chunks: Iterator[Chunk] | None
    """All chunks, if this is the only source; else it is closed again, as open sources take memory and files."""


def by_first_time(sources: Iterable[Source], earliest_ns: int = 1) -> list[FirstTime]:
    """Return sources in the order of the times of their first messages; equal times keep the order given.

    Sources without times come first, sources without messages last. Times before `earliest_ns` are ignored. Raises as
    `Source.chunks`.
    """
    given = tuple(sources)
    found = [_first_time(source, earliest_ns, stays_open=len(given) == 1) for source in given]
    return sorted(found, key=lambda each: (each.first_ns is None, each.first_ns or 0))


def _first_time(source: Source, earliest_ns: int, *, stays_open: bool) -> FirstTime:
    chunks, seen, first_ns = source.chunks(), list[Chunk](), None
    for chunk in islice(chunks, _CHUNKS_WITHOUT_TIME):
        seen.append(chunk)
        timed = numpy.flatnonzero(chunk.ts_event >= earliest_ns)
        if len(timed):
            first_ns = int(chunk.ts_event[timed[0]])
            break
    if first_ns is None and any(len(chunk.ts_event) for chunk in seen):
        first_ns = 0
    return FirstTime(source, first_ns, chain(seen, chunks) if stays_open else None)
