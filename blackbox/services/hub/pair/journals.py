"""The journals of a hub of a pair: entries to append, or to give to the other hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy

from blackbox.block.form.block import Block, HeaderFields
from blackbox.block.form.rows import PayloadColumns
from blackbox.feed.schema.schema import load_schema
from blackbox.feed.with_line import LINES, with_line
from blackbox.publish.send.batcher import Stored
from blackbox.services.hub.pair.entries import Entries, checked, part_of
from blackbox.services.hub.pair.protocol import Entry, Part
from blackbox.services.hub.server.judge import Fresh, Turn
from blackbox.services.hub.server.store import Store

_ROW_BYTES: Final = 16
"""Approximate size of a message in a block, without its payload."""


class PairJournals:
    """Journals of a hub of a pair, as `Journals` of its machine. The publisher is open in both lives.

    Attributes: `is_served`, True if the next epoch's journals are an archive for readers.
    """

    def __init__(self, store: Store, line: int) -> None:
        """`line`: index of the hub's line in each slice, and of its archive."""
        self._store, self._feed, self._line = store, store.feed, line
        self._own = with_line(store.feed, LINES[line])
        self.is_served = True

    def begin_epoch(self, epoch: int) -> None:
        """As `Journals`."""
        self._store.close(says_end=False)
        self._store.open(self._own, serve=self.is_served and self._feed.archives[self._line], epoch=epoch)

    def entry_of(self, turn: Turn) -> Entry:
        """As `Journals`."""
        blocks: dict[int, list[Block]] = {slice_id: [] for slice_id in turn.notes}
        begins = {slice_id: self.following(slice_id) for slice_id in turn.notes}
        ends = dict(begins)
        for fresh in turn.fresh:
            for slice_id, block in self._blocks_of(fresh, ends):
                blocks[slice_id].append(block)
        parts = [
            part_of(each, begins[each], note, [(block.header, bytes(block.body)) for block in blocks[each]])
            for each, note in turn.notes.items()
        ]
        return Entry(turn.number, self._store.publisher.epoch if turn.fresh else 0, parts)

    def _blocks_of(self, fresh: Fresh, ends: dict[int, int]) -> list[tuple[int, Block]]:
        """Encode rows of a request. `ends`: next sequence by slice, which is advanced."""
        columns, found = fresh.columns, list[tuple[int, Block]]()
        used, places = numpy.unique(columns.index[fresh.rows], return_inverse=True)
        topics = [fresh.topics[each] for each in used.tolist()]
        numbers: dict[bytes, int] = {}
        keys = numpy.array([numbers.setdefault(self._feed.key_of(each), len(numbers)) for each in topics])[places]
        slices = numpy.array([self._feed.slice_of(each) for each in topics])[places]
        starts, sizes = columns.starts, columns.stops - columns.starts
        for slice_id in numpy.unique(slices).tolist():
            mine = numpy.flatnonzero(slices == slice_id)
            filled = numpy.cumsum(sizes[fresh.rows[mine]] + _ROW_BYTES) // self._feed.block_bytes
            if columns.is_one:
                filled[:] = 0  # a block has all rows of a message
            cuts = numpy.flatnonzero((numpy.diff(keys[mine]) != 0) | (numpy.diff(filled) != 0)) + 1
            for part in numpy.split(mine, cuts):
                rows, (mine_used, index) = fresh.rows[part], numpy.unique(places[part], return_inverse=True)
                names = [topics[each] for each in mine_used.tolist()]
                chosen = PayloadColumns(
                    columns.data,
                    ts_event=numpy.zeros(len(rows), numpy.int64) if columns.times is None else columns.times[rows],
                    offsets=starts[rows],
                    lengths=sizes[rows].astype(numpy.int32),
                    valid=None if columns.valid is None else columns.valid[rows],
                    same=columns.same_of(rows),
                )
                fields = HeaderFields(
                    key_rule=self._feed.key_rule,
                    slice_id=slice_id,
                    schema_id=load_schema(self._feed.schema).schema_id,
                    epoch=self._store.publisher.epoch,
                    sequence=ends[slice_id],
                )
                key = self._feed.key_of(names[0])
                block = Block.encode(names, index.astype(numpy.int32), chosen, fields, key=key)
                ends[slice_id] += len(rows)
                found.append((slice_id, block))
        return found

    def blocks_of(self, entry: Entry) -> list[list[Block]]:
        """As `Journals`."""
        return [checked(self._feed, part) for part in entry.parts]

    def following(self, slice_id: int) -> int:
        """As `Journals`."""
        return self._store.publisher.published_count(slice_id)

    def append(self, part: Part, blocks: Sequence[Block]) -> None:
        """As `Journals`."""
        following = self.following(part.slice_id)
        self._store.note(part.slice_id, part.note, is_alone=not blocks)
        if blocks:
            headers = numpy.frombuffer(b"".join(block.header for block in blocks), numpy.uint8)
            size = len(headers) // len(blocks)
            heads = headers.ctypes.data + size * numpy.arange(len(blocks), dtype=numpy.int64)
            bodies = numpy.array([block.body.ctypes.data for block in blocks], numpy.int64)
            absent = numpy.zeros(len(blocks), numpy.int64)
            stored = Stored(heads.ctypes.data, bodies.ctypes.data, absent.ctypes.data, len(blocks))
            self._store.publisher._running()[part.slice_id].put_stored([block.key for block in blocks], stored)
        self._store.wait_kept([(part.slice_id, following + sum(map(len, blocks)))])

    def sync(self) -> None:
        """As `Journals`."""
        self._store.sync()

    def day(self) -> Path:
        """As `Journals`."""
        return self._store.outbox.day()

    def delete_before(self, day: Path) -> None:
        """As `Journals`."""
        self._store.outbox.delete_before(day)

    def entries(self, first: int) -> Entries:
        """As `Journals`."""
        return Entries(self._store.days, self._feed, first)
