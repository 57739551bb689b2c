"""Drop messages from recorded days that are over: a day is written once more, without them.

In: the days of a feed, and bounds for each topic. Out: a fresh directory for each day that loses messages, with the
same marks, segments and sequences, and a list of the missing messages.
"""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path

import numpy
from numpy.typing import NDArray

from blackbox.archive.files.codec import Compression
from blackbox.archive.files.day import Manifest, make_directory, sync_directory
from blackbox.archive.files.dropped import Sequences
from blackbox.archive.maintain.slice_rewriter import MarkCopier, SliceRewriter
from blackbox.archive.read.reader import Recorded, read_blocks
from blackbox.archive.recording import Recording
from blackbox.block.form.block import Block, HeaderFields
from blackbox.block.form.format import FLAG_LINE_B
from blackbox.block.form.rows import PayloadColumns
from blackbox.block.position import Position
from blackbox.errors import JournalError

log = logging.getLogger("blackbox")

_Ends = dict[tuple[int, bytes], tuple[Position, bytes, int]]
"""By segment and key: position and topic of the last message, and how many of the topic come before it in the day."""


class Dropper:
    """Drops messages from days, the newest day first."""

    def __init__(self, per_topic: int | None, wanted: tuple[bytes, ...]) -> None:
        """`per_topic`: number of messages to keep of each topic; None: all. `wanted`: prefixes of the topics to keep.

        The last message of each segment and key stays in any case, so that all readers know where it ended.
        """
        self._per_topic, self._wanted = per_topic, wanted
        self._newer: dict[int, Counter[bytes]] = {}
        """By slice, the messages of each topic in newer days."""

    def count(self, day: Path) -> None:
        """Take in a day from which nothing is dropped. Raises JournalError when it cannot be read."""
        if self._per_topic is None:
            return
        recording = Recording.open(day)
        for slice_id, _ in recording.segments.of():
            self._newer.setdefault(slice_id, Counter()).update(_count(recording, slice_id)[0])

    def rewrite(
        self, day: Path, fresh: Path, compression: Compression
    ) -> dict[int, tuple[list[Sequences], dict[bytes, Position]]]:
        """Write a day without what is dropped from it to a fresh directory; return what is missing in it, by slice.

        These are the sequences that the day had, and the last dropped message of each topic. Returns nothing, and
        writes nothing, if it loses nothing. Raises JournalError, OSError.
        """
        recording = Recording.open(day)
        ends, drop = dict[int, _Ends](), dict[int, dict[bytes, int]]()
        before, after = dict[int, Counter[bytes]](), dict[int, Counter[bytes]]()
        for slice_id, _ in recording.segments.of():
            before[slice_id], ends[slice_id] = _count(recording, slice_id)
            newer = self._newer.setdefault(slice_id, Counter())
            drop[slice_id] = {topic: self._excess(topic, count, newer) for topic, count in before[slice_id].items()}
            newer.update(before[slice_id])
            after[slice_id] = before[slice_id] - Counter(drop[slice_id])
            kept = (topic for _, topic, number in ends[slice_id].values() if number < drop[slice_id][topic])
            after[slice_id].update(kept)
        if recording.damage:
            log.warning("no message is dropped from %s, which is damaged: %s", day, recording.damage[0])
            return {}
        if before == after:
            return {}
        manifest, found = Manifest.read(day), dict[int, tuple[list[Sequences], dict[bytes, Position]]]()
        make_directory(fresh.parent)
        fresh.mkdir()
        for slice_id, _ in recording.segments.of():
            writer = SliceRewriter(fresh, slice_id, recording.feed.key_rule, compression, manifest.created_ns)
            try:
                copying = _Copying(writer, recording.feed.key_rule, drop[slice_id], ends[slice_id])
                found[slice_id] = copying.copy(recording, slice_id)
            finally:
                writer.close()
        manifest.write(fresh)
        again = Recording.open(fresh)
        written = {slice_id: _count(again, slice_id)[0] for slice_id, _ in again.segments.of()}
        if written != after or again.damage:
            raise JournalError(f"what was written of {day} was not what is kept of it; it was removed")
        sync_directory(fresh.parent)
        return found

    def _excess(self, topic: bytes, count: int, newer: Counter[bytes]) -> int:
        """Return how many messages of a topic a day loses, of those that it has."""
        if not topic.startswith(self._wanted):
            return count
        return 0 if self._per_topic is None else max(0, count - max(0, self._per_topic - newer[topic]))


class _Copying:
    """Copies a slice of a day without the first messages of some topics."""

    def __init__(self, writer: SliceRewriter, key_rule: int, drop: dict[bytes, int], ends: _Ends) -> None:
        """`drop`: how many messages of each topic are still to be dropped."""
        self._writer, self._key_rule, self._drop = writer, key_rule, drop
        self._stays = {position for position, _, _ in ends.values()}
        self._had: list[Sequences] = []
        self._last: dict[bytes, Position] = {}

    def copy(self, recording: Recording, slice_id: int) -> tuple[list[Sequences], dict[bytes, Position]]:
        """Copy segment by segment; return the sequences that it had, and the last dropped message of each topic."""
        for segment in recording.segments.filled(slice_id):
            marks = MarkCopier(self._writer, [segment])
            for recorded in read_blocks([segment], recording.feed.key_rule, recording.segments.note):
                marks.copy_before(recorded)
                self._copy(recorded)
            marks.copy_rest()
            self._writer.next_segment()
        return self._had, self._last

    def _copy(self, recorded: Recorded) -> None:
        block, first = recorded.block, recorded.first_row
        epoch, begin, stop = block.epoch, block.number_of(first), block.number_of(-1) + 1
        if self._had and self._had[-1][0] == epoch and self._had[-1][2] == begin:
            begin = self._had.pop()[1]
        self._had.append((epoch, begin, stop))
        topics = block.topics
        quota = numpy.array([self._drop[topic] for topic in topics], numpy.int64)
        index = block.topic_index[first:]
        for number in numpy.flatnonzero(quota).tolist():
            self._drop[topics[number]] -= min(int(quota[number]), int(numpy.count_nonzero(index == number)))
        is_dropped = _ranks(index) < quota[index]
        is_dropped[-1] &= Position(epoch, stop - 1) not in self._stays
        if not is_dropped.any():
            self._writer.put([recorded])
            return
        rows = numpy.flatnonzero(is_dropped) + first
        last = numpy.full(len(topics), -1, numpy.int64)
        last[block.topic_index[rows]] = rows
        for number in numpy.flatnonzero(last >= 0).tolist():
            self._last[topics[number]] = Position(epoch, block.number_of(int(last[number])))
        edges = numpy.flatnonzero(numpy.diff(is_dropped, prepend=True, append=True)).reshape(-1, 2) + first
        parts = [numpy.arange(begin, stop) for begin, stop in edges.tolist()]
        for rows in parts if block.same is None else _joined(block.sequences - block.same, parts):
            self._writer.put([Recorded(_part(block, rows, self._key_rule), recorded.ts_recv, 0, 0, 0)])


def _ranks(index: NDArray[numpy.int32]) -> NDArray[numpy.int64]:
    """Return of each row how many earlier rows have the same index."""
    order = numpy.argsort(index, kind="stable")
    begins = numpy.flatnonzero(numpy.diff(index[order], prepend=-1))
    ranks = numpy.empty(len(index), numpy.int64)
    ranks[order] = numpy.arange(len(index)) - numpy.repeat(begins, numpy.diff(begins, append=len(index)))
    return ranks


def _joined(firsts: NDArray[numpy.int64], parts: list[NDArray[numpy.int64]]) -> list[NDArray[numpy.int64]]:
    """Join parts of a block's rows that have rows of the same message. `firsts`: first sequence of each message."""
    found = list[NDArray[numpy.int64]]()
    for rows in parts:
        if found and firsts[found[-1][-1]] == firsts[rows[0]]:
            found[-1] = numpy.concatenate([found[-1], rows])
        else:
            found.append(rows)
    return found


def _part(block: Block, rows: NDArray[numpy.int64], key_rule: int) -> Block:
    """Return some rows of a block as a block. `key_rule`: of its feed."""
    used, index = numpy.unique(block.topic_index[rows], return_inverse=True)
    topics, begin = block.topics, int(rows[0])
    starts, stops = block.payload_offsets[rows].astype(numpy.int64), block.payload_offsets[rows + 1]
    sequence, has_sequences = block.number_of(begin), block.has_sequences or begin + len(rows) <= rows[-1]
    return Block.encode(
        [topics[number] for number in used.tolist()],
        index,
        PayloadColumns(
            block.payloads,
            ts_event=block.ts_event[rows],
            offsets=starts,
            lengths=stops - starts,
            valid=None if block.validity is None else block.valid[rows],
            same=None if block.same is None else block.same[rows],
            sequences=block.sequences[rows] if has_sequences else None,
        ),
        HeaderFields(
            key_rule=key_rule,
            slice_id=block.slice_id,
            schema_id=block.schema_id,
            epoch=block.epoch,
            sequence=sequence,
            previous=sequence if begin else block.previous,
            key_sequence=block.key_sequence + begin,
            ts_out=block.ts_out,
            ts_in=block.ts_in,
            flags=block.flags & FLAG_LINE_B,
        ),
        key=block.key,
    )


def _count(recording: Recording, slice_id: int) -> tuple[Counter[bytes], _Ends]:
    """Return the messages of each topic in a slice, and the last ones of its segments and keys."""
    counts, ends = Counter[bytes](), _Ends()
    for segment in recording.segments.filled(slice_id):
        for recorded in read_blocks([segment], recording.feed.key_rule, recording.segments.note):
            block, topics = recorded.block, recorded.block.topics
            index = block.topic_index[recorded.first_row :]
            for number, count in enumerate(numpy.bincount(index, minlength=len(topics)).tolist()):
                counts[topics[number]] += count
            topic = topics[int(index[-1])]
            position = Position(block.epoch, block.number_of(-1))
            ends[segment.number, block.key] = position, topic, counts[topic] - 1
    return counts, ends
