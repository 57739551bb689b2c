"""Sources of messages: a file, a capture, a generator, read in columns that are ready to be published.

A source turns its input into chunks: topic, `ts_event` and payload bounds of many messages at a time, without moving
the payloads. Third parties register a source class in the entry-point group `blackbox.feeds`;
`open_source("name:argument")` makes one.
"""

from __future__ import annotations

import datetime
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar, cast

from blackbox.errors import ConfigError
from blackbox.feed.schema.schema import load_registered

if TYPE_CHECKING:
    from numpy import int32, int64, uint8
    from numpy.typing import NDArray

    from blackbox.feed.schema.schema import Schema

SOURCE_GROUP = "blackbox.feeds"
"""The entry-point group in which source classes are registered."""


class Chunk(NamedTuple):
    """Some consecutive messages of a source, in columns of length n.

    A chunk stays valid for as long as it is referenced. All arrays may be read-only.
    """

    topics: tuple[bytes, ...]
    """The distinct topics so far: append-only over one iteration, and the same tuple object until it grows."""
    topic_index: NDArray[int32]
    """(n,) index of each message's topic in `topics`."""
    ts_event: NDArray[int64]
    """(n,) time at the venue. Unit: ns since 1970-01-01 UTC."""
    payloads: NDArray[uint8]
    """The buffer that holds the payloads; it may be the memory-mapped file itself."""
    starts: NDArray[int64]
    """(n,) offset of each payload in `payloads`. Unit: bytes."""
    lengths: NDArray[int32]
    """(n,) the length of each payload. Unit: bytes."""
    gaps: tuple[tuple[int, int], ...] = ()
    """(row, count), sorted by row: `count` messages of the venue are missing before row `row`, 0 to n."""

    @classmethod
    def gap(cls, topics: tuple[bytes, ...], count: int) -> Self:
        """Return `count` missing messages and nothing else, between the chunks of a source with these topics."""
        import numpy

        few, many = numpy.zeros(0, numpy.int32), numpy.zeros(0, numpy.int64)
        return cls(topics, few, many, numpy.zeros(0, numpy.uint8), many, few, ((0, count),))

    def runs(self) -> Iterator[tuple[int, Chunk]]:
        """Yield the messages in runs without a gap inside, each with the number of messages missing before it.

        A run may be empty if messages are missing before it.
        """
        rows = [row for row, _ in self.gaps]
        missing = [0, *(count for _, count in self.gaps)]
        for count, start, stop in zip(missing, [0, *rows], [*rows, len(self.starts)], strict=True):
            if not count and start == stop:
                continue
            yield count, rows_of(self, slice(start, stop))._replace(gaps=())

    def publish(self, publisher: PublishesMany, latest_ns: int = 0) -> int:
        """Publish the messages and the gaps between them; return the latest `ts_event` so far, ns.

        `latest_ns`: that of the previous chunks. Raises as the publisher.
        """
        for missing, run in self.runs():
            if missing:
                publisher.skip(missing, latest_ns)
            if len(run.starts):
                latest_ns = max(latest_ns, int(run.ts_event.max()))
                publisher.publish_many(
                    run.topics,
                    run.topic_index,
                    run.payloads,
                    ts_event=run.ts_event,
                    offsets=run.starts,
                    lengths=run.lengths,
                    checks_records=False,  # a venue may append fields; and a file's metadata is not a record
                )
        return latest_ns


def rows_of(chunk: Chunk, rows: Any) -> Chunk:
    """Return some rows of a chunk, chosen by any index of numpy. Its gaps stay as they are."""
    return chunk._replace(
        topic_index=chunk.topic_index[rows],
        ts_event=chunk.ts_event[rows],
        starts=chunk.starts[rows],
        lengths=chunk.lengths[rows],
    )


class PublishesMany(Protocol):
    """The part of a publisher that a source uses."""

    source: Source | None
    """The source that it published last."""

    def skip(self, count: int, ts_event: int = 0) -> None:
        """Report that `count` messages are missing here; see `blackbox.Publisher.skip`."""

    def publish_many(
        self,
        topics: tuple[bytes, ...],
        topic_index: NDArray[int32],
        payloads: NDArray[uint8],
        *,
        ts_event: NDArray[int64],
        offsets: NDArray[int64],
        lengths: NDArray[int32],
        checks_records: bool,
    ) -> object:
        """Publish n messages given in columns; see `blackbox.Publisher.publish_many`."""


class Source(ABC):
    """A stream of messages that can be iterated, and published.

    Every call of `chunks` starts again from the beginning. One iteration at a time.
    """

    date: datetime.date | None = None
    """The trading day of the messages, if known before the input is read."""
    total: int | None = None
    """Number of messages, if known before the end."""
    truncated: str | None = None
    """After an iteration: None; or, if a part of the input was corrupt or missing, a sentence that names the file, the
    position and the problem. All other messages were delivered; in formats without a way to resynchronize, only those
    before that position."""
    notes: tuple[str, ...] = ()
    """After an iteration: one line for each warning, such as "sequence gaps: 3"."""
    head: Chunk | None = None
    """From the first chunk on: the message at the start of the input that every day needs, such as the metadata of a
    file. An import repeats it at the start of every later day."""

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """The schema of the payloads."""

    @abstractmethod
    def chunks(self) -> Iterator[Chunk]:
        """Yield the messages in order and in bounded memory, about a hundred thousand at a time.

        Raises:
            SourceError: the input cannot be opened, or has the wrong format.
        """

    def publish(self, publisher: PublishesMany, progress: Callable[[int], None] | None = None) -> int:
        """Publish every message; return their number. Messages missing in the input become gaps.

        Messages missing between the publisher's previous source and this one become gaps too, if this source can
        `follow` it. Otherwise messages before its first one are not a gap: the previous source may have had them.

        `progress` is called after each chunk with the number of messages so far. Check `truncated` and `notes`
        afterwards.
        """
        published = latest_ns = 0
        before, publisher.source = publisher.source, self
        is_first = before is not None and not self.follow(before)
        for chunk in self.chunks():
            gaps = tuple(gap for gap in chunk.gaps if gap[0]) if is_first else chunk.gaps
            latest_ns = chunk._replace(gaps=gaps).publish(publisher, latest_ns)
            is_first &= not len(chunk.topic_index)
            published += len(chunk.topic_index)
            if progress is not None:
                progress(published)
        return published

    def follow(self, before: Source) -> bool:  # noqa: ARG002 - for numbered sources
        """Continue after an earlier source that was already read.

        Return True if messages are numbered and their numbers known. Messages missing between the two are then a gap,
        and messages of the earlier source are skipped. A source that begins at or before the start of the earlier one
        is read in full.
        """
        return False

    def by_day(self) -> Sequence[Source]:
        """Return one source per trading day if the input is known, unread, to hold several; else [self]."""
        return [self]

    @classmethod
    def from_spec(cls, argument: str, **options: Any) -> Self:
        """Make a source from the part of a specification after the colon.

        `options` are keyword arguments of the class.

        Raises:
            ConfigError: the argument or an option is invalid for this source.
        """
        return make_source(cls, argument, options)


S = TypeVar("S", bound=Source)


def make_source(kind: type[S], argument: object, options: dict[str, Any]) -> S:
    """Return `kind(argument, **options)`.

    Raises:
        ConfigError: `kind` has no such option.
    """
    known = options_of(kind)
    for name in options:
        if name not in known:
            raise ConfigError(f"{kind.__name__}: option was {name!r}, expected one of: {', '.join(known)}")
    return cast("Callable[..., S]", kind)(argument, **options)


def open_source(spec: str, **options: Any) -> Source:
    """Return the source that `spec` names, e.g. "itch50:day.gz", "iex:day.pcap" or "synthetic:1000000".

    The part before the first colon is a name in the entry-point group `blackbox.feeds`. The rest, and `options`, are
    passed to that class's `from_spec`.

    Raises:
        ConfigError: the form, the name, the argument or an option is wrong.
    """
    kind, argument = source_kind(spec)
    return kind.from_spec(argument, **options)


def options_of(kind: type[Source]) -> list[str]:
    """Return the option names of a source class."""
    return list(inspect.signature(kind).parameters)[1:]


def source_kind(spec: str) -> tuple[type[Source], str]:
    """Return the class that a specification names, and the argument for it. Raises ConfigError as `open_source`."""
    name, colon, argument = spec.partition(":")
    if not colon or not name or not argument:
        raise ConfigError(f"source was {spec!r}, expected NAME:ARGUMENT, e.g. 'synthetic:1000000'")
    source = load_registered(SOURCE_GROUP, name, "source")
    if not (isinstance(source, type) and issubclass(source, Source)):
        raise ConfigError(f"source {name!r}: the entry point holds {source!r}, expected a Source")
    return source, argument
