"""The feeds of a replay, with slices numbered consecutively over all feeds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy
from numpy.typing import NDArray

from blackbox.archive.recordings import Recordings, by_feed
from blackbox.block.batch.received_block import BatchFeed
from blackbox.errors import ConfigError

if TYPE_CHECKING:
    from blackbox.archive.files.segment import SegmentFile
    from blackbox.archive.read.reader import RecordRun
    from blackbox.archive.recording import Recording

SEVERAL_SLICES: Final = 65_535
"""Slice of a block gathered from several slices. It is out of range, so that using it as an index raises."""
ONE_FEED: Final = -1
"""Feed number if there is only one feed: its topics need no mark."""


class ReplayedFeeds:
    """The feeds of some recordings, in the order of the recordings.

    Attributes: `names` of the feeds; `of_slice`, name and schema of the feed of each slice, or of the only feed; and
    for each slice `numbers`, its feed's index in `names`, `recorded`, its number in its feed, and `max_topics`.
    """

    def __init__(self, recordings: Iterable[Recording]) -> None:
        """Number the slices. Raises ConfigError if there are too many."""
        days = by_feed(recordings)
        self.names = recordings.feeds if isinstance(recordings, Recordings) else tuple(days)
        self.of_slice: list[BatchFeed] = []
        self.max_topics: list[int] = []
        self._first: dict[Path, int] = {}
        numbers: list[int] = []
        recorded: list[int] = []
        for number, (name, mine) in enumerate((name, days[name]) for name in self.names):
            self._first |= {recording.path: len(numbers) for recording in mine}
            schema = mine[-1].schema
            slices = max(len(recording.feed.slices) for recording in mine)
            rule = mine[-1].feed.symbol_rule
            self.of_slice += [BatchFeed(name, schema if schema.schema_id else None, rule)] * slices
            self.max_topics += [mine[-1].feed.max_topics] * slices
            numbers += [number] * slices
            recorded += range(slices)
        if len(numbers) >= SEVERAL_SLICES:
            raise ConfigError(f"the feeds {self.names} have {len(numbers)} slices, expected less than {SEVERAL_SLICES}")
        if len(self.names) == 1:
            del self.of_slice[1:]
        self.numbers = numpy.array(numbers, numpy.int64)
        self.recorded = numpy.array(recorded, numpy.int64)
        self.places = [(self.names[number], slice_id) for number, slice_id in zip(numbers, recorded, strict=True)]

    def number(self, segment: SegmentFile) -> int:
        """Return the number of a segment's feed, or ONE_FEED."""
        return ONE_FEED if len(self.names) == 1 else int(self.numbers[self._first_slice(segment)])

    def slices(self, run: RecordRun) -> NDArray[numpy.int64]:
        """int64[n]: slice of each record of a run."""
        slices: NDArray[numpy.int64] = run.heads["slice"].astype(numpy.int64)
        if len(self.names) > 1:
            slices += numpy.array([self._first_slice(each) for each in run.segments], numpy.int64)[run.segment_of]
        return slices

    def first_slice(self, recording: Recording) -> int:
        """Return the number of a recording's first slice."""
        return self._first[recording.path]

    def _first_slice(self, segment: SegmentFile) -> int:
        return self._first[segment.path.parent.parent]
