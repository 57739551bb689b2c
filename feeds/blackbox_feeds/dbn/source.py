"""Databento Binary Encoding (DBN), versions 1 to 3: plain files, zstd as Databento delivers them, or gzip.

Payloads are the records. Definitions, statistics and messages of the gateway in version 1 or 2 are upgraded to version
3, with their metadata; all others are the bytes of the file. The metadata is the first message, of topic
`#system.metadata`, and the first of each later day of an import: with it an export is a DBN file again.

    Dbn("glbx-mdp3-20231225.mbo.dbn.zst").publish(publisher)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy
from numpy.typing import NDArray

from blackbox.errors import SourceError
from blackbox.feed.schema.schema import Schema
from blackbox.feed.source import Chunk, Source
from blackbox_feeds.dbn.records import METADATA, PRICE_SCALE, SCHEMA, SCHEMA_TS_OUT
from blackbox_feeds.io.open_window import open_window
from blackbox_feeds.io.template import DEFAULT_TOPIC, TopicForm

if TYPE_CHECKING:
    from blackbox.archive.export.time_order import Messages
    from blackbox_feeds.dbn.scan import RecordReader
    from blackbox_feeds.io.window import FileWindow

__all__ = ["PRICE_SCALE", "SCHEMA", "SCHEMA_TS_OUT", "Dbn", "export_dbn"]

_EXPECTED: Final = "a DBN file, plain, zstd or gzip"


class Dbn(Source):
    """The records of one DBN file after its metadata: in file order, except bars, which are at their end.

    `topic` is made from `{symbol}` and `{type}`. The symbol is that of the instrument's last symbol-mapping record, or
    else that of the metadata on the day of `ts_recv`, or else the instrument's number. The type is Databento's name of
    the record's type, such as `mbo`, `mbp-1`, `mbp-10`, `trades`, `tbbo`. `blackbox_feeds.dbn.scan` defines which time
    of a record is `ts_event`.

    Raises:
        ConfigError: `topic` is an invalid template.
    """

    def __init__(self, path: str | Path, topic: str = DEFAULT_TOPIC) -> None:
        self.path = Path(path)
        self._form = TopicForm(topic, locates=False)

    def __repr__(self) -> str:
        return f"<Dbn {self.path}>"

    @cached_property
    def schema(self) -> Schema:
        """`SCHEMA`, or `SCHEMA_TS_OUT` if the metadata says that each record ends with its send time.

        Raises:
            SourceError: the file cannot be read, or is no DBN.
            ConfigError: `databento-dbn` is not installed (extra `dbn`).
        """
        from blackbox_feeds.dbn.metadata import read_metadata

        with open_window(self.path, expected=_EXPECTED) as window:
            return SCHEMA_TS_OUT if read_metadata(window).ts_out else SCHEMA

    def chunks(self) -> Iterator[Chunk]:
        """Yield the metadata, then the records, up to 131,072 at a time.

        Raises:
            SourceError: the file cannot be read, or is no DBN.
            ConfigError: `databento-dbn` is not installed (extra `dbn`).
        """
        from blackbox_feeds.dbn.bar_order import in_order
        from blackbox_feeds.dbn.metadata import read_metadata
        from blackbox_feeds.dbn.scan import RecordReader

        self.truncated, self.notes, self.head = None, (), None
        with open_window(self.path, expected=_EXPECTED) as window:
            metadata = read_metadata(window)
            reader = RecordReader(self._form, metadata)
            records = in_order(self._records(window, reader, metadata.size), reader.delays)
            first = next(records, None)
            self.head = reader.head(first)
            yield self.head
            if first is not None:
                yield first
                yield from records
            self.notes = reader.notes()

    def _records(self, window: FileWindow, reader: RecordReader, position: int) -> Iterator[Chunk]:
        while True:
            for chunk in reader.chunks(window.data, position):
                yield chunk
                window.release(reader.position)
            complaint = reader.complaint(window.data)
            if complaint is not None:
                self.truncated = _stop_at(window, reader.position, complaint)
                return
            if window.last:
                self.truncated = window.ending(reader.position, "record")
                return
            window.slide(reader.position)
            position = 0


def _stop_at(window: FileWindow, position: int, complaint: str) -> str:
    """Return why reading ends at a position without a valid record."""
    place = window.start + position
    if not METADATA.startswith(window.data[position : position + len(METADATA)].tobytes()):
        return f"{window.path}: no valid record starts at byte {place}: {complaint}"
    while not window.last:
        window.slide(len(window.data))
    left = window.start + len(window.data) - place
    return (
        f"{window.path}: another DBN stream starts at byte {place}, and its {left:,} bytes are not read: files were "
        "joined, expected one: split them there"
    )


class _DbnExporter:
    """Exports the metadata, then the records."""

    def __call__(self, parts: Iterable[Messages]) -> Iterator[NDArray[numpy.uint8]]:
        """Yield the bytes of a DBN file of these messages, which must start with the metadata.

        Raises:
            SourceError: the first message is not metadata, or other metadata follows.
        """
        head: bytes | None = None
        for part in parts:
            starts, ends = part.offsets[:-1], part.offsets[1:]
            if not len(starts):
                continue
            if head is None:
                head = part.payloads[starts[0] : ends[0]].tobytes()
                if not head.startswith(METADATA):
                    raise SourceError("no DBN metadata was recorded, expected it as the first message of the feed")
                yield part.payloads[starts[0] : ends[0]]
                starts, ends = starts[1:], ends[1:]
            yield from _without(part.payloads, starts, ends, head)

    def head_topic(self, template: str) -> bytes:
        """Return the topic of the metadata for a template."""
        from blackbox_feeds.dbn.scan import metadata_topic

        return metadata_topic(TopicForm(template, locates=True))


export_dbn = _DbnExporter()
"""Export records as an uncompressed DBN file that starts with its metadata, byte for byte as published."""


def _without(
    payloads: NDArray[numpy.uint8], starts: NDArray[numpy.int64], ends: NDArray[numpy.int64], head: bytes
) -> Iterator[NDArray[numpy.uint8]]:
    """Yield all payloads except repetitions of `head`. Raises SourceError for other metadata."""
    done = 0 if not len(starts) else int(starts[0])
    may_be = numpy.flatnonzero(ends - starts >= len(METADATA))
    for offset, letter in enumerate(METADATA):
        may_be = may_be[payloads[starts[may_be] + offset] == letter]
    for row in may_be.tolist():
        start, end = int(starts[row]), int(ends[row])
        if payloads[start:end].tobytes() != head:
            raise SourceError("the metadata of several DBN files was recorded, expected one: record each separately")
        yield payloads[done:start]
        done = end
    yield payloads[done : int(ends[-1]) if len(ends) else done]
