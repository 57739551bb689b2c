"""Tables of the blocks, or parts of blocks, to play, in order.

Players process table after table, row by row. The tables made here are in the order of sending, slices merged by
`ts_out`. `blackbox.replay.tables.market_order` makes tables in market order.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, Final, NamedTuple, Self

import numpy
from numpy.typing import NDArray

from blackbox.archive.files.segment import Damage, SegmentFile
from blackbox.archive.read.filter import Clock
from blackbox.archive.read.reader import RecordRun
from blackbox.block.form.validate import Fault
from blackbox.feed.symbol_choice import TopicChoice
from blackbox.native.compile.jit import warm_up
from blackbox.replay.slice_numbering import ReplayedFeeds
from blackbox.replay.tables.measure_blocks import (
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
    """The messages to play: of chosen topics, with a time in `[start, stop)` by a clock."""

    def __init__(self, key_rule: int, topics: TopicChoice, by: Clock, start: int = BEGINNING, stop: int = END) -> None:
        self.by = by
        self.start, self.stop = start, stop
        trie = NO_TOPICS if topics.takes_all else topics.trie()
        self.wanted = Wanted(key_rule, trie, int(topics.takes_all), int(by == "ts_event"), start, stop)

    @property
    def is_limited(self) -> bool:
        """True if some times are excluded."""
        return (self.start, self.stop) != (BEGINNING, END)


class BlockTable(NamedTuple):
    """Blocks to play in order. Addresses are valid while this is kept."""

    rows: NDArray[Any]
    """BlockRow[n]."""
    run: RecordRun
    """The run of records that contains them."""
    selection: Selection
    in_sequence: bool = False
    """True if blocks must be played in order, even those of different slices."""
    played: tuple[tuple[SegmentFile, int, int], ...] = ()
    """Bytes `[start, stop)` of segments that the previous table used."""

    @classmethod
    def of(cls, run: RecordRun, selection: Selection, feeds: ReplayedFeeds) -> Self:
        """Return a table of the blocks of a decompressed, unchecked run."""
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
        """RECORD[n]: head of each block's record."""
        heads: NDArray[Any] = self.run.heads[self.rows["place"]]
        return heads

    def release_played(self) -> None:
        """Release the memory of the previous table earlier than the reader would. It can still be read."""
        for segment, start, stop in self.played:
            segment.release(start, stop)

    def at(self, start: int, stop: int) -> BlockTableAt:
        """Return blocks `[start, stop)` for compiled code."""
        return BlockTableAt(self.rows[start:].ctypes.data, stop - start, self.selection.wanted)

    def measure(self, start: int, stop: int) -> None:
        """Measure blocks `[start, stop)`, after checking the unchecked ones."""
        measure(self.at(start, stop))

    def damages(self, start: int, stop: int) -> Iterator[Damage]:
        """Yield the damage of blocks `[start, stop)`."""
        for block in (start + numpy.flatnonzero(self.rows["fault"][start:stop] > Fault.NONE)).tolist():
            place = int(self.rows["place"][block])
            self.run.faults[place] = self.rows["fault"][block]
            yield self.run.damage(place)

    def split(self, block: int, until_ns: int, messages: int) -> Self:
        """Take the due rows off a block, up to a time and a number of messages. Return a table of these rows.

        If one time applies to the whole block, pass END as `until_ns`.
        """
        due = self._replace(rows=self.rows[block : block + 1].copy())
        stop_row = due_rows(due.at(0, 1), until_ns, messages)
        due.rows["stop_row"] = stop_row
        due.measure(0, 1)
        self.rows["first_row"][block] = stop_row
        self.measure(block, block + 1)
        return due

    def in_range(self) -> Self:
        """Return the part of a measured table within the selection's range of times, and all damaged blocks."""
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
        """Return a row for each sequence of consecutive messages of a block in the range."""
        bounds = []
        end = int(self.rows["stop_row"][block])
        first, stop = 0, int(self.rows["first_row"][block])
        while stop < end:
            first, stop = next_in_range(self.at(block, block + 1), stop)
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
    """Yield tables of the selected messages and damaged blocks of decompressed runs, in the runs' order.

    With `is_measured`, the blocks are checked and measured here.
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
    """Compile the code that makes tables, before a replay starts."""
    warm_up(measure, NO_BLOCKS)
    warm_up(due_rows, NO_BLOCKS, 0, 0)
    warm_up(next_in_range, NO_BLOCKS, 0)
