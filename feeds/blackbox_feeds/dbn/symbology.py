"""Symbol mappings of a recorded day from the metadata of its DBN streams."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from blackbox_feeds.dbn.metadata import DbnMetadata
from blackbox_feeds.dbn.source import export_dbn

if TYPE_CHECKING:
    from blackbox.archive.export.instruments import Mapping
    from blackbox.archive.recording import Recording


def mappings_of(recording: Recording) -> Iterator[Mapping]:
    """Yield symbol, instrument id, start and end of each mapping, and the time of its metadata.

    Raises:
        SourceError: metadata cannot be decoded.
        ConfigError: `databento-dbn` is not installed.
    """
    topic = export_dbn.head_topic(recording.feed.topic)
    found: dict[bytes, int] = {}
    for batch in recording.batches(topic):
        for message in batch:
            if message.topic == topic and message.payload:
                found.setdefault(message.payload, message.ts_event)
    for payload, known in found.items():
        for instrument, intervals in DbnMetadata(payload, str(recording.path)).intervals.items():
            for start, end, symbol in intervals:
                yield symbol, instrument, start, end, known
