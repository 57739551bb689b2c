"""Write a recording back to the venue's own file format, as its source would read it.

The feed's module knows this format. It registers an exporter under the schema's name in the entry-point group
`blackbox.exporters`: a function that turns messages into the bytes of the file.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol, cast, runtime_checkable

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.archive.export.time_order import Messages, Order, in_order_of_time
from blackbox.archive.files.day import as_journal_error
from blackbox.archive.read.filter import Time, filter_of
from blackbox.archive.recording import Recording
from blackbox.errors import ConfigError, JournalError
from blackbox.feed.schema.schema import load_registered

EXPORTER_GROUP: Final = "blackbox.exporters"
"""The entry-point group of exporters, which are registered by the names of their schemas."""

Exporter = Callable[[Iterable[Messages]], Iterable[NDArray[numpy.uint8]]]
"""Yields the bytes of a file in pieces. Called once with all messages, many at a time."""


@runtime_checkable
class WantsHead(Protocol):
    """An exporter for files that start with a head, which was published as a message.

    It gets that message first, even outside the time range, and once more at its own position.
    """

    def head_topic(self, template: str) -> bytes:
        """Return the head's topic, made from `template` (see `Feed.topic`)."""


_GZIP_LEVEL: Final = 6
_ZSTD_LEVEL: Final = 3


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an export."""

    messages: int
    file_bytes: int
    ties: int
    """Messages of different slices or keys with equal times, whose order of publication is unknown. Always 0 for a
    feed of one slice without keys."""
    late: int
    """Messages with an earlier time than the one before in their slice and key. They are written after that
    one; their position among other slices and keys is unknown. Always 0 for a feed of one slice without keys."""


def load_exporter(schema: str) -> Exporter:
    """Return the exporter for payloads of a schema.

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
    """Write a recording's messages with times in `[start, stop)` to a new file, compressed for `.gz` and `.zst`.

    The messages of a slice and key are written in sequence order, epoch by epoch; those of several slices and keys are
    merged by `ts_event`. Parts of the venue's file that are no messages, such as a capture's headers or a session's end
    mark, were not recorded and are not written. Memory does not grow with the recording.

    Args:
        recording: the recording to write; its `damage` lists what could not be read.
        path: of the file. It is renamed into place once complete.
        start: the first time, see `Recording.time`. Default: from the beginning.
        stop: the end of the times, exclusive. Default: to the end.
        symbols: only messages of exactly these symbols. Default: all.
        progress: called with the number of messages so far.

    Raises ConfigError if the feed's schema has no exporter, JournalError if the file exists or cannot be written,
    ValueError for an invalid time.
    """
    target = Path(path)
    exporter = load_exporter(recording.feed.schema_name)
    if target.exists():
        raise JournalError(f"{target} exists, expected the name of a new file")
    wanted = filter_of(recording.feed, recording.time, b"", {"start": start, "stop": stop, "symbols": symbols})
    order = Order()
    found = in_order_of_time(recording, wanted, order)
    messages: Iterable[Messages] = _told(found, progress)
    wants: object = exporter
    if isinstance(wants, WantsHead):
        messages = chain(_head(recording, wants.head_topic(recording.feed.topic)), messages)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(".new", f".{target.name}.", target.parent, ignore_cleanup_errors=True) as own:
            fresh = Path(own) / target.name
            _write(fresh, target.suffix, exporter(messages))
            size = fresh.stat().st_size
            fresh.rename(target)
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
    """Yield the first message of a topic."""
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
            # Without name and time, the same messages give the same file.
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
