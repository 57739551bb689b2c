"""Write a recording back to the venue's own file format, as its source would read it.

How messages stand in such a file is known to the feed's module. It registers an exporter under the schema's name in the
entry-point group `blackbox.exporters`: a function that turns messages into the bytes of the file.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, Final, Protocol, cast, runtime_checkable

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.archive.day import as_journal_error
from blackbox.archive.export.time_order import Messages, Order, in_order_of_time
from blackbox.archive.filter import Time
from blackbox.archive.recording import Recording
from blackbox.errors import ConfigError, JournalError
from blackbox.feed.schema import load_registered

EXPORTER_GROUP: Final = "blackbox.exporters"
"""The entry-point group in which exporters are registered, by the names of their schemas."""

Exporter = Callable[[Iterable[Messages]], Iterable[NDArray[numpy.uint8]]]
"""All bytes of a file, piece by piece, for all messages of it, many at a time."""


@runtime_checkable
class WantsHead(Protocol):
    """An exporter of a format whose files start with a head, which was published as a message of its own.

    It is handed that message first, whatever time range is asked for, and meets it again where it was published.
    """

    def head_topic(self, template: str) -> bytes:
        """The head's topic where topics are made from `template` (see `Feed.topic`)."""


_GZIP_LEVEL: Final = 6
_ZSTD_LEVEL: Final = 3


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """What was written."""

    messages: int
    file_bytes: int
    ties: int
    """Messages of different slices, or keys, with equal times: in which order they were published is not known. A feed
    of one slice without keys has none."""
    late: int
    """Messages whose time is before that of an earlier one of their slice and key, behind which they stay: their place
    among those of other slices and keys is not known. A feed of one slice without keys has none."""


def load_exporter(schema: str) -> Exporter:
    """The exporter for payloads of a schema.

    Raises:
        ConfigError: none is registered for it.
    """
    try:
        exporter = load_registered(EXPORTER_GROUP, schema, "schema to export")
    except ConfigError as error:
        raise ConfigError(
            f"{error}; exporters are registered as entry points of the group {EXPORTER_GROUP!r}"
        ) from None
    if not callable(exporter):
        raise ConfigError(f"exporter {schema!r}: the entry point holds {exporter!r}, expected a function")
    return cast("Exporter", exporter)


def export(
    recording: Recording,
    path: str | os.PathLike[str],
    start: Time | None = None,
    stop: Time | None = None,
    symbols: Sequence[str | bytes] | None = None,
    progress: Callable[[int], object] | None = None,
) -> Exported:
    """Write a recording's messages with times in `[start, stop)` to a new file, packed if it ends in `.gz` or `.zst`.

    The messages of a slice and key stand in the order of their sequence numbers, one run of the publisher after the
    other; those of several slices and keys are merged by `ts_event`. What is not a message is not recorded, so it is
    not written: the headers of a capture, or the end mark of a session. Memory does not grow with the recording.

    Args:
        recording: what to write; `damage` tells what of it could not be read.
        path: of the file. It has its name only once it is whole.
        start: the first time, see `Recording.time`; not given: from the beginning.
        stop: the end of the times, not wanted itself; not given: to the end.
        symbols: only messages of exactly these symbols; not given: all.
        progress: called with the number of messages so far.

    Raises ConfigError when the feed's schema has no exporter, JournalError when the file exists or cannot be written,
    ValueError for a time that is none.
    """
    target = Path(path)
    exporter = load_exporter(recording.feed.schema_name)
    if target.exists():
        raise JournalError(f"{target} exists, expected the name of a new file")
    wanted = recording._filter(b"", {"start": start, "stop": stop, "symbols": symbols})
    order = Order()
    found = in_order_of_time(recording, wanted, order)
    messages: Iterable[Messages] = _told(found, progress)
    wants: object = exporter
    if isinstance(wants, WantsHead):
        messages = chain(_head(recording, wants.head_topic(recording.feed.topic)), messages)
    fresh = target.with_name(f".{target.name}.{os.getpid()}.new")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write(fresh, target.suffix, exporter(messages))
            size = fresh.stat().st_size
            fresh.rename(target)
        finally:
            fresh.unlink(missing_ok=True)
    except OSError as error:
        raise as_journal_error(error, f"{target} cannot be written") from error
    uncertain = len(recording.feed.slices) > 1 or recording.feed.key_rule > 0
    return Exported(messages=order.messages, file_bytes=size, ties=order.ties, late=order.late if uncertain else 0)


def _told(parts: Iterable[Messages], progress: Callable[[int], object] | None) -> Iterator[Messages]:
    done = 0
    for part in parts:
        yield part
        done += len(part.ts_event)
        if progress is not None:
            progress(done)


def _head(recording: Recording, topic: bytes) -> Iterator[Messages]:
    """The first message of a topic."""
    for batch in recording.batches(topic):
        for message in batch:
            if message.topic == topic:
                payload = numpy.frombuffer(message.payload or b"", numpy.uint8)
                yield Messages(payload, numpy.array([0, len(payload)]), numpy.array([message.ts_event]))
                return


def _write(path: Path, suffix: str, pieces: Iterable[NDArray[numpy.uint8]]) -> None:
    with ExitStack() as stack:
        file: Any = stack.enter_context(path.open("xb"))
        if suffix == ".gz":
            # Neither name nor time in it: the same messages give the same file.
            file = stack.enter_context(gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0))
        elif suffix == ".zst":
            file = stack.enter_context(_zstd_compressor().stream_writer(file, closefd=False))
        for piece in pieces:
            file.write(piece.data)


def _zstd_compressor() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise ConfigError(
            "a .zst file needs zstandard, which is not installed: pip install 'blackbox-md[compression]'"
        ) from error
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True)
