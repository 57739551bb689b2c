"""What is played, in its order: a table of blocks, or of parts of blocks, for each run of recorded ones.

Players take tables one after the other, row by row. These here are in the order of sending, slices merged by `ts_out`;
`blackbox.replay.market_order` makes those in the order of the market.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, Final, NamedTuple, Self

import numpy
from numpy.typing import NDArray

from blackbox.archive.filter import Clock
from blackbox.archive.reader import RecordRun
from blackbox.archive.segment import Damage, SegmentFile
from blackbox.block.validate import Fault
from blackbox.feed.symbol_choice import TopicChoice
from blackbox.native.jit import warm_up
from blackbox.replay.feeds import ReplayedFeeds
from blackbox.replay.measure_blocks import (
    NO_BLOCKS,
    NO_TOPICS,
    BlockRow,
    BlockTableAt,
    Wanted,
    due_rows,
    measure,
    next_in_range,
)

BEGINNING: Final = -(1 << 63)
END: Final = (1 << 63) - 1


class Selection:
    """The messages that are played: of chosen topics, and with a time, by a clock, in `[start, stop)`."""

    def __init__(self, key_rule: int, topics: TopicChoice, by: Clock, start: int = BEGINNING, stop: int = END) -> None:
        self.by = by
        self.start, self.stop = start, stop
        trie = NO_TOPICS if topics.takes_all else topics.trie()
        self.wanted = Wanted(key_rule, trie, int(topics.takes_all), int(by == "ts_event"))

    @property
    def is_limited(self) -> bool:
        """Whether some times are not wanted."""
        return (self.start, self.stop) != (BEGINNING, END)


class BlockTable(NamedTuple):
    """Blocks to play one after the other. Addresses are good as long as this is kept."""

    rows: NDArray[Any]
    """BlockRow[n]."""
    run: RecordRun
    """The records that they came from."""
    selection: Selection
    in_sequence: bool = False
    """Whether these blocks must be played one after the other, those of different slices too."""
    played: tuple[tuple[SegmentFile, int, int], ...] = ()
    """Bytes `[start, stop)` of segments that the table before was of."""

    @classmethod
    def of(cls, run: RecordRun, selection: Selection, feeds: ReplayedFeeds) -> Self:
        """Return a table of the blocks of an unpacked run. None is checked yet."""
        rows = numpy.zeros(len(run.heads), BlockRow.dtype)
        rows["header"] = run.headers
        rows["body"] = run.bodies
        rows["body_bytes"] = run.heads["body_bytes"]
        rows["place"] = numpy.arange(len(rows))
        rows["slice_id"] = feeds.slices(run)
        rows["ts_recv"] = run.heads["ts_recv"]
        rows["first_row"] = run.heads["first_row"]
        rows["stop_row"] = run.heads["count"]
        rows["fault"] = run.faults
        if selection.by != "ts_event":
            for name in ("next_ns", "low_ns", "high_ns"):
                rows[name] = run.heads[selection.by]
        return cls(rows, run, selection)

    @property
    def heads(self) -> NDArray[Any]:
        """RECORD[n]: the head of each block's record."""
        heads: NDArray[Any] = self.run.heads[self.rows["place"]]
        return heads

    def release_played(self) -> None:
        """Give the memory of the table before back, sooner than the reader would: it can still be read."""
        for segment, start, stop in self.played:
            segment.release(start, stop)

    def at(self, start: int, stop: int) -> BlockTableAt:
        """Return blocks `[start, stop)` for compiled code."""
        return BlockTableAt(self.rows[start:].ctypes.data, stop - start, self.selection.wanted)

    def measure(self, start: int, stop: int) -> None:
        """Measure blocks `[start, stop)`, after a check of those that nobody has checked."""
        measure(self.at(start, stop))

    def damages(self, start: int, stop: int) -> Iterator[Damage]:
        """Yield what is wrong with which of blocks `[start, stop)`."""
        for block in (start + numpy.flatnonzero(self.rows["fault"][start:stop] > Fault.NONE)).tolist():
            place = int(self.rows["place"][block])
            self.run.faults[place] = self.rows["fault"][block]
            yield self.run.damage(place)

    def split(self, block: int, until_ns: int, messages: int) -> Self:
        """Take off a block what is due: rows up to a time, and at most so many messages; return a table of these.

        Where one time holds for the whole block, give `until_ns` as END.
        """
        due = self._replace(rows=self.rows[block : block + 1].copy())
        stop_row = due_rows(due.at(0, 1), until_ns, messages)
        due.rows["stop_row"] = stop_row
        due.measure(0, 1)
        self.rows["first_row"][block] = stop_row
        self.measure(block, block + 1)
        return due

    def in_range(self) -> Self:
        """Return the part of a measured table that is in the selection's range of times, and all damaged blocks."""
        rows, selection = self.rows, self.selection
        low_ns, high_ns = rows["low_ns"], rows["high_ns"]
        is_bad = rows["fault"] != Fault.NONE
        is_touched = ~is_bad & (rows["count"] > 0) & (high_ns >= selection.start) & (low_ns < selection.stop)
        is_inside = is_bad | (is_touched & (low_ns >= selection.start) & (high_ns < selection.stop))
        parts = []
        done = 0
        for block in numpy.flatnonzero(is_touched & ~is_inside).tolist():
            parts += [rows[done:block][is_inside[done:block]], self._rows_in_range(block)]
            done = block + 1
        parts.append(rows[done:][is_inside[done:]])
        return self._replace(rows=numpy.concatenate(parts))

    def _rows_in_range(self, block: int) -> NDArray[Any]:
        """Return a row for each run of messages of a block that is in the range."""
        selection = self.selection
        bounds = []
        end = int(self.rows["stop_row"][block])
        first, stop = 0, int(self.rows["first_row"][block])
        while stop < end:
            first, stop = next_in_range(self.at(block, block + 1), stop, selection.start, selection.stop)
            if first < stop:
                bounds.append((first, stop))
        parts = self._replace(rows=numpy.repeat(self.rows[block : block + 1], len(bounds)))
        if bounds:
            parts.rows["first_row"], parts.rows["stop_row"] = zip(*bounds, strict=True)
            parts.measure(0, len(bounds))
        return parts.rows[parts.rows["count"] > 0]


def block_tables(
    runs: Iterator[RecordRun], selection: Selection, feeds: ReplayedFeeds, *, is_measured: bool
) -> Generator[BlockTable, None, None]:
    """Yield tables of the selected messages, and of blocks that are damaged, as they are in unpacked runs.

    `is_measured`: check and measure the blocks here already.
    """
    played: tuple[tuple[SegmentFile, int, int], ...] = ()
    for run in runs:
        table = BlockTable.of(run, selection, feeds)._replace(played=played)
        if is_measured or selection.is_limited:
            table.measure(0, len(table.rows))
        if selection.is_limited:
            table = table.in_range()
        if len(table.rows):
            yield table
            played = tuple(run.ranges())


def warm_up_tables() -> None:
    """Compile what making tables runs, before there is something to play."""
    warm_up(measure, NO_BLOCKS)
    warm_up(due_rows, NO_BLOCKS, 0, 0)
    warm_up(next_in_range, NO_BLOCKS, 0, 0, 0)
