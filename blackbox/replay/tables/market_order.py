"""Tables of blocks in market order: by `ts_event`, over all slices.

Messages of equal times are ordered by feed, then by slice, and within a slice as recorded.

Slices are read in units by their lowest time (`blackbox.archive.read.read_by_time`). Blocks that were read are held,
and messages earlier than all unread ones are played. A long run of messages of one block is played in place. Short
runs, from slices that alternate, are gathered into new blocks, which keep the origin of each message.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from ctypes import string_at
from typing import Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.archive.files.format import OFFSET_BLOCK_HEADER, RECORD, RECORD_HEAD_BYTES
from blackbox.archive.read.read_by_time import ByTime, Unit
from blackbox.archive.read.reader import RecordRun
from blackbox.block.form.block import distinct_scratch
from blackbox.block.form.encode import Origin, TopicTable
from blackbox.block.form.validate import Fault
from blackbox.errors import ConfigError, JournalError
from blackbox.native.tables.name_table import Numbering
from blackbox.replay.slice_numbering import ReplayedFeeds
from blackbox.replay.tables.block_table import END, BlockTable, Selection
from blackbox.replay.tables.held_messages import FEED_MARK_BYTES, NO_ROOM, Arena, HeldMessages, hold
from blackbox.replay.tables.interleave import (
    BLOCK_BYTES,
    Gathered,
    Heap,
    Listed,
    Names,
    Target,
    gather,
    interleave,
    next_long_run,
    put_blocks,
    uncut,
)
from blackbox.replay.tables.measure_blocks import BlockRow

_ROWS: Final = 1 << 15
"""Messages ordered at a time. Many, because each call costs a third of a millisecond."""
_LONG_RUN: Final = 512
"""Minimum number of consecutive messages of a block that are played in place."""
_ROW_BYTES: Final = 72
"""Bytes per message besides the payload: time, topic, offset, sequence number and origin."""
_SPARE_BYTES: Final = 64 << 10
"""Bytes for topics, heads and padding. If they need more, more memory is allocated."""
_SPARE_BLOCKS: Final = 4
_MOST_HELD_BYTES: Final = 1 << 30
_MEAN_TOPIC_BYTES: Final = 64
_KEPT_ARRAYS: Final = 7
"""Number of memory buffers kept for reuse. Several are in use at a time, because tables are made ahead."""


class OutOfOrder:
    """Messages that were recorded after later ones of their slice.

    Attributes: `late`, their number; `misplaced`, messages that were also delivered after later ones, because the
    recording's index did not show them in time.
    """

    def __init__(self) -> None:
        self.late = 0
        self.misplaced = 0


def _references(arrays: list[NDArray[Any]], number: int) -> int:
    array = arrays[number]
    return sys.getrefcount(array)


_UNSHARED: Final = _references([numpy.empty(0)], 0)
"""Reference count of an array that only a list holds. It depends on the interpreter."""


class _Memory:
    """Memory for new blocks, reused when it has no more references: page faults cost more than writing the data."""

    def __init__(self) -> None:
        self._arrays: list[NDArray[numpy.int64]] = []

    def take(self, size: int) -> NDArray[numpy.int64]:
        """Return memory of at least `size` bytes."""
        for number in range(len(self._arrays)):
            if self._arrays[number].nbytes >= size and _references(self._arrays, number) == _UNSHARED:
                return self._arrays[number]
        fresh = numpy.empty(size // 8 + 1, numpy.int64)
        self._arrays = [*self._arrays[-_KEPT_ARRAYS:], fresh]
        return fresh


class _Topics:
    """The topics of all slices, numbered together."""

    def __init__(self, max_topics: int, mark_bytes: int) -> None:
        """`mark_bytes`: size of the mark after each name."""
        self.numbering = Numbering(max_topics, _MEAN_TOPIC_BYTES)
        self.max_topics = max_topics
        self.matched = numpy.zeros(max_topics, numpy.int64)
        """For the player: the match of each topic, plus 1."""
        self._mark_bytes = mark_bytes
        self._sizes = numpy.zeros(max_topics, numpy.int32)
        self._sized = 0
        self._distinct = distinct_scratch(max_topics)

    def names(self) -> Names:
        """Return the topics for compiled code."""
        numbering, many = self.numbering, len(self.numbering)
        self._sizes[self._sized : many] = numpy.diff(numbering.starts[self._sized : many + 1]) - self._mark_bytes
        self._sized = many
        text = TopicTable(numbering.text, numbering.starts, self._sizes)
        return Names(text, self._distinct, self.matched.ctypes.data)


class _Held(NamedTuple):
    """Blocks that were read together, and objects that must be kept while one of them is held."""

    table: BlockTable
    arena: Arena
    unit: Unit

    @property
    def bytes(self) -> int:
        """Maximum memory, without that of the recording."""
        unpacked = sum(body.nbytes for body in self.table.run.unpacked.values())
        return unpacked + sum(array.nbytes for array in self.arena)


class _HeldBlocks:
    """Blocks that wait for the times of their messages.

    Attributes: `rows`, HeldMessages[n]; `tables`, which they are of, by number.
    """

    def __init__(self) -> None:
        self.rows = numpy.zeros(0, HeldMessages.dtype)
        self.tables: dict[int, _Held] = {}
        self._made = self._bytes = 0

    def add(self, fresh: _Held, rows: NDArray[Any]) -> None:
        """Hold blocks of a table. Raises JournalError if there are too many."""
        rows["stream"], rows["table"] = fresh.unit.stream, self._made
        self.tables[self._made] = fresh
        self._made += 1
        self._bytes += fresh.bytes
        if self._bytes > _MOST_HELD_BYTES:
            raise JournalError(
                f"{self._bytes} bytes of blocks wait for the time of their messages, expected at most "
                f"{_MOST_HELD_BYTES}: its times are far out of order: use order='sent'"
            )
        self.rows = numpy.concatenate([self.rows, rows])

    def drop_played(self) -> None:
        """Release the blocks without further messages."""
        is_left = self.rows["next"] < self.rows["stop"]
        if is_left.all():
            return
        self.rows = self.rows[is_left]
        left = set(numpy.unique(self.rows["table"]).tolist())
        for number in [number for number in self.tables if number not in left]:
            played = self.tables.pop(number)
            self._bytes -= played.bytes
            played.unit.release()


class MarketOrder:
    """Makes tables of a selection of messages in market order. Used once."""

    def __init__(
        self, by_time: ByTime, selection: Selection, feeds: ReplayedFeeds, max_topics: int, out_of_order: OutOfOrder
    ) -> None:
        """`max_topics`: total of all slices."""
        self._by_time, self._selection, self._feeds = by_time, selection, feeds
        self._out_of_order = out_of_order
        self._topics = _Topics(max_topics, FEED_MARK_BYTES if len(feeds.names) > 1 else 0)
        self._held = _HeldBlocks()
        self._memory = _Memory()
        self._latest_ns = 0
        self._listed = Listed(*(numpy.empty(_ROWS, kind) for kind in (numpy.int32, numpy.int32, numpy.int64)))
        self._columns = Gathered(
            numpy.empty(_ROWS, numpy.int64),
            numpy.empty(_ROWS, numpy.int64),
            numpy.empty(_ROWS, numpy.int32),
            numpy.empty(_ROWS, numpy.int64),
            numpy.empty(_ROWS, numpy.int32),
            numpy.arange(_ROWS, dtype=numpy.int32),
            numpy.empty(_ROWS, numpy.uint8),
        )

    def tables(self) -> Generator[BlockTable, None, None]:
        """Yield the tables. Damaged blocks are yielded when they are read, in separate tables."""
        units = self._by_time.units
        for number, unit in enumerate(units):
            yield from self._read(unit)
            until_ns = units[number + 1].low_ns if number + 1 < len(units) else END
            yield from self._play_before(until_ns)

    def _read(self, unit: Unit) -> Generator[BlockTable, None, None]:
        """Read and hold the blocks of a unit."""
        latest_ns, latest_out = unit.latest_ns, unit.span.latest
        for run in self._by_time.read(unit):
            table = BlockTable.of(run, self._selection, self._feeds)
            table.measure(0, len(table.rows))
            if (bad := table.rows["fault"] != Fault.NONE).any():
                yield table._replace(rows=table.rows[bad])
            sent = numpy.maximum.accumulate(numpy.maximum(run.heads["ts_out"], latest_out))
            latest_out = int(sent[-1])
            latest_ns = self._hold(_Held(table, _arena_of(table), unit), sent, latest_ns)
        if all(held.unit is not unit for held in self._held.tables.values()):
            unit.release()

    def _hold(self, fresh: _Held, sent: NDArray[numpy.int64], latest_ns: int) -> int:
        """Hold a table's blocks. Return the latest time of their slice."""
        table, segment = fresh.table, fresh.unit.span.segment
        rows = numpy.zeros(len(table.rows), HeldMessages.dtype)
        blocks, latest_ns, late = hold(
            table.at(0, len(table.rows)),
            sent,
            table.run.addresses - segment.address + (segment.number << 40),
            latest_ns,
            self._topics.numbering.at,
            self._feeds.number(segment),
            fresh.arena,
            rows.ctypes.data,
        )
        if blocks == NO_ROOM:
            raise ConfigError(
                "the recordings have more topics than fit in the order of the market, expected at most "
                f"{self._topics.max_topics} (max_topics of all slices) of {_MEAN_TOPIC_BYTES} bytes on average"
            )
        self._out_of_order.late += late
        if blocks:
            self._held.add(fresh, rows[:blocks])
        return latest_ns

    def _play_before(self, until_ns: int) -> Generator[BlockTable, None, None]:
        """Yield the held messages before a time."""
        rows = self._held.rows
        room = len(rows) + 1
        places = numpy.empty((2, room), numpy.int64)
        heap = Heap(places[0].ctypes.data, places[1].ctypes.data, room)
        while True:
            count, misplaced, self._latest_ns = interleave(
                rows.ctypes.data, len(rows), until_ns, self._latest_ns, heap, self._listed
            )
            if not count:
                break
            self._out_of_order.misplaced += misplaced
            yield from self._tables_of(count)
        self._held.drop_played()

    def _tables_of(self, count: int) -> Generator[BlockTable, None, None]:
        """Yield the listed messages: long runs of a block in place, others gathered."""
        blocks, rows = self._listed.blocks[:count], self._listed.rows[:count]
        at = 0
        while at < count:
            start, stop = next_long_run(blocks, rows, at, _LONG_RUN)
            stop = uncut(self._held.rows.ctypes.data, blocks, rows, stop)
            if at < start:
                yield self._gathered(at, start)
            if start < stop:
                yield self._in_place(start, stop)
            at = stop

    def _in_place(self, start: int, stop: int) -> BlockTable:
        """Return a table of the listed messages `[start, stop)`, consecutive in one block."""
        listed, held = self._listed, self._held
        block = held.rows[listed.blocks[start]]
        table = held.tables[int(block["table"])].table
        rows = table.rows[[block["row"]]]
        rows["first_row"], rows["stop_row"] = listed.rows[start], int(listed.rows[stop - 1]) + 1
        rows["count"] = stop - start
        rows["next_ns"] = rows["low_ns"] = listed.times[start]
        rows["high_ns"] = listed.times[stop - 1]
        return table._replace(rows=rows, in_sequence=True)

    def _gathered(self, start: int, stop: int) -> BlockTable:
        """Return a table of new blocks of the listed messages `[start, stop)`."""
        held = self._held.rows.ctypes.data
        blocks, chosen, times = (column[start:stop] for column in self._listed)
        payload_bytes = gather(held, blocks, chosen, self._columns)
        names = self._topics.names()
        # Schema, key rule, slice and epoch of the block are those of the first message.
        first = self._held.rows[blocks[0]]
        table = self._held.tables[int(first["table"])].table
        head = table.run.heads[table.rows["place"][first["row"]]]
        origin = Origin(int(head["schema"]), int(first["slice_id"]), int(head["key_rule"]), int(head["epoch"]))
        parts: list[NDArray[Any]] = []
        memory: list[NDArray[numpy.int64]] = [self._topics.matched]
        room = payload_bytes + _ROW_BYTES * (stop - start) + _SPARE_BYTES
        at = 0
        while at < stop - start:
            words = self._memory.take(room)
            rows = numpy.zeros(room // BLOCK_BYTES + _SPARE_BLOCKS, BlockRow.dtype)
            to = Target(words.ctypes.data, words.nbytes, rows.ctypes.data, len(rows))
            at, made, room = put_blocks(held, blocks, times, self._columns, at, names, origin, to)
            rows["place"] += sum(map(len, parts))
            parts.append(rows[:made])
            memory.append(words)
            room = max(room, _SPARE_BYTES)
        rows = numpy.concatenate(parts)
        addresses = rows["header"] - OFFSET_BLOCK_HEADER
        run = RecordRun(
            _heads_at(addresses),
            addresses,
            rows["body"].copy(),
            numpy.zeros(len(rows), numpy.int64),
            [],
            numpy.zeros(len(rows), numpy.int32),
            dict.fromkeys(addresses.tolist(), memory),
            {},
        )
        return BlockTable(rows, run, self._selection, in_sequence=True)


def _heads_at(addresses: NDArray[numpy.int64]) -> NDArray[Any]:
    """Return RECORD[n], copied from these addresses."""
    return numpy.frombuffer(b"".join(string_at(place, RECORD_HEAD_BYTES) for place in addresses.tolist()), RECORD)


def _arena_of(table: BlockTable) -> Arena:
    heads = table.heads[table.rows["fault"] == Fault.NONE]
    messages = int(heads["count"].sum(dtype=numpy.int64))
    return Arena(
        numpy.empty(int(heads["topics"].sum(dtype=numpy.int64)), numpy.int32),
        numpy.empty(messages, numpy.int32),
        numpy.empty(messages, numpy.int64),
    )
