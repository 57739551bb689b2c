"""Replay to a publisher: large bodies as stored, messages of small blocks gathered into larger ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.block.form.encode import NO_VALUE, Rows
from blackbox.block.form.format import (
    FLAG_FIXED,
    FLAG_NULLS,
    FLAG_SAME,
    FLAG_SEQUENCES,
    Header,
    has_value,
    is_same,
    layout_of,
    read_header,
    sequence_of,
)
from blackbox.errors import ConfigError, JournalError, PublisherError
from blackbox.feed.feed import Feed
from blackbox.feed.routing.compiled_routing import find_key
from blackbox.feed.routing.key_rule import MAX_KEY_BYTES
from blackbox.native.compile.jit import njit, warm_up
from blackbox.native.memory.intrinsics import bytes_at, copy_bytes, inner, int32s_at, int64s_at, unsigned
from blackbox.native.tables.name_table import FULL, Numbering, NumberingAt, number_of
from blackbox.publish.publisher import Publisher
from blackbox.publish.send.batcher import Stored
from blackbox.replay.tables.block_table import BEGINNING, BlockTable
from blackbox.replay.tables.measure_blocks import BLOCK_ROW_BYTES, NO_BLOCKS, BlockTableAt, block_row_at, is_wanted

LEAST_STORED_BYTES: Final = 16 << 10
"""Bodies smaller than this are gathered, to pay the cost of a block once for many of them."""
_WINDOW: Final = 8
"""Stored blocks of all slices that are queued at a time, so that slices are sent side by side."""
_MEAN_TOPIC_BYTES: Final = 32
_PATIENCE_S: Final = 86_400.0
"""Maximum time that a subscriber may delay a replay that goes back in time."""


class Columns(NamedTuple):
    """Columns for the messages of gathered blocks. Payloads are listed by address."""

    ts_event: int
    topics: int
    starts: int
    lengths: int
    same: int


@njit(nogil=True, cache=True)
def gather(blocks: BlockTableAt, numbering: NumberingAt, to: Columns) -> int:
    """List the messages to play of valid blocks. Return their number, or FULL if there are too many topics.

    `to` has room for all of them.
    """
    wanted = blocks.wanted
    rows = 0
    for place in range(blocks.count):
        block = block_row_at(blocks.address + BLOCK_ROW_BYTES * place)
        body = block.body
        header = read_header(block.header)
        layout = layout_of(header)
        numbers = numpy.empty(header.topics, numpy.int32)
        offsets = int32s_at(body + layout.topic_offsets, header.topics + 1)
        for topic in range(header.topics):
            start = numpy.int64(offsets[topic])
            size = numpy.int64(offsets[topic + 1]) - start
            text = body + layout.topics + start
            numbers[topic] = -1
            if is_wanted(text, size, wanted):
                number = number_of(numbering, text, size)
                if number == FULL:
                    return FULL
                numbers[topic] = number
        listed = _gather_rows(header, layout, block, numbers, to, rows)
        if header.flags & FLAG_NULLS:
            _mark_nulls(header, layout, block, numbers, int32s_at(to.lengths, listed)[rows:])
        if header.flags & FLAG_SAME:
            _mark_same(header, layout, block, numbers, bytes_at(to.same, listed)[rows:])
        rows = listed
    return rows


@inner
def _gather_rows(header: Header, layout: Any, block: Any, numbers: NDArray[numpy.int32], to: Columns, rows: int) -> int:
    """List the rows to play of one block whose topics have these numbers; -1: not played."""
    body, count, is_fixed, stride = block.body, header.count, header.flags & FLAG_FIXED != 0, header.stride
    ts_event = int64s_at(body, count)
    topic_index = int32s_at(body + layout.topic_index, count)
    payload_offsets = int32s_at(body + layout.payload_offsets, count + 1)
    times, topics = int64s_at(to.ts_event, rows + count), int32s_at(to.topics, rows + count)
    starts, lengths = int64s_at(to.starts, rows + count), int32s_at(to.lengths, rows + count)
    for row in range(block.first_row, block.stop_row):
        number = numbers[unsigned(topic_index[row])]
        if number < 0:
            continue
        times[rows] = ts_event[row]
        topics[rows] = number
        if is_fixed:
            starts[rows] = body + layout.payloads + row * stride
            lengths[rows] = stride
        else:
            starts[rows] = body + layout.payloads + payload_offsets[row]
            lengths[rows] = payload_offsets[row + 1] - payload_offsets[row]
        rows += 1
    return rows


@inner
def _mark_nulls(
    header: Header, layout: Any, block: Any, numbers: NDArray[numpy.int32], lengths: NDArray[numpy.int32]
) -> None:
    """Write NO_VALUE as the length of each listed row without a value."""
    topic_index = int32s_at(block.body + layout.topic_index, header.count)
    place = 0
    for row in range(block.first_row, block.stop_row):
        if numbers[unsigned(topic_index[row])] >= 0:
            if not has_value(header, layout, block.body, row):
                lengths[place] = NO_VALUE
            place += 1


@inner
def _mark_same(
    header: Header, layout: Any, block: Any, numbers: NDArray[numpy.int32], same: NDArray[numpy.uint8]
) -> None:
    """Write the number of listed rows since the first one of the same message."""
    topic_index = int32s_at(block.body + layout.topic_index, header.count)
    place = 0
    listed = 0
    for row in range(block.first_row, block.stop_row):
        if row > block.first_row and not is_same(header, layout, block.body, row):
            listed = 0
        if numbers[unsigned(topic_index[row])] >= 0:
            same[place] = listed
            listed += 1
            place += 1


@njit(nogil=True, cache=True)
def find_keys(blocks: BlockTableAt, keys: int, sizes: int) -> None:
    """Write the key of each valid block, in MAX_KEY_BYTES each, and its size to int64[count]."""
    size_of = int64s_at(sizes, blocks.count)
    for place in range(blocks.count):
        block = block_row_at(blocks.address + BLOCK_ROW_BYTES * place)
        header = read_header(block.header)
        layout = layout_of(header)
        first = numpy.int64(int32s_at(block.body + layout.topic_offsets, 2)[1])
        key, size = find_key(blocks.wanted.key_rule, block.body + layout.topics, first)
        copy_bytes(keys + MAX_KEY_BYTES * place, key, size)
        size_of[place] = size


@njit(nogil=True, cache=True)
def numbers_to(header_at: int, body: int, row: int) -> Any:
    """Return how many sequence numbers a valid block spans before a row."""
    header = read_header(header_at)
    return numpy.int64(sequence_of(header, layout_of(header), body, row) - header.sequence)


class PublisherPlayer:
    """Plays to a publisher."""

    in_sequence = False  # each slice has its own socket, so no order between slices is visible
    reads_ahead = False  # both cores are busy with sending
    checks_blocks = False

    def __init__(
        self, publisher: Publisher, feeds: Sequence[Feed], keep_gaps: bool, slices: NDArray[numpy.int64]
    ) -> None:
        """For recordings of `feeds`. With `keep_gaps`, missing sequence numbers are skipped.

        `slices`: number of each played slice in its own feed.

        Raises ConfigError if the publisher's feed has another schema, or other slices with `keep_gaps`.
        """
        theirs = publisher.feed
        check_target(theirs, feeds, keep_gaps=keep_gaps)
        self._publisher = publisher
        self._slices = slices
        self._key_rule = feeds[0].key_rule
        self._as_stored = all(_shape(feed) == _shape(theirs) for feed in feeds)
        self._expected: dict[tuple[int, int, bytes], int] | None = {} if keep_gaps else None
        """Number of messages that each key has sent, by slice, epoch and key."""
        self._begun: dict[tuple[int, int], int] = {}
        """First sequence played, by slice and epoch."""
        self._numbering = Numbering(theirs.max_topics * len(theirs.slices), _MEAN_TOPIC_BYTES)
        self._topics: tuple[bytes, ...] = ()
        publisher._running()[0].warm_up_stored()
        warm_up(gather, NO_BLOCKS, self._numbering.at, Columns(0, 0, 0, 0, 0))
        warm_up(find_keys, NO_BLOCKS, 0, 0)

    def play(self, table: BlockTable, start: int, stop: int) -> None:
        """Send those of blocks `[start, stop)` that have messages to play.

        Raises JournalError if a file has shrunk. Pages that were lost are not sent. Part of the last page may be sent
        as zeros if the file shrinks during the call, which cannot be detected.
        """
        check_files(table)
        try:
            self._play(table, start, stop)
        finally:
            check_files(table)

    def _play(self, table: BlockTable, start: int, stop: int) -> None:
        rows = table.rows[start:stop]
        blocks = table._replace(rows=rows[rows["count"] > 0])
        if not self._as_stored:
            self._gather(blocks)
            return
        rows = blocks.rows
        is_whole = rows["count"] == blocks.heads["count"]
        # A block with its own sequences cannot be renumbered in place.
        is_renumbered = blocks.heads["flags"] & FLAG_SEQUENCES == 0
        is_stored = is_whole & is_renumbered & (rows["body_bytes"] >= LEAST_STORED_BYTES)
        skips = numpy.zeros(len(rows), numpy.int64) if self._expected is None else self._skips(blocks)
        window = (numpy.cumsum(is_stored) - is_stored) // _WINDOW
        bounds = [0, *(numpy.flatnonzero(numpy.diff(window)) + 1).tolist(), len(rows)]
        for start, stop in pairwise(bounds):
            slices = self._slices[rows["slice_id"][start:stop]]
            for slice_id in numpy.unique(slices).tolist():
                places = start + numpy.flatnonzero(slices == slice_id)
                self._play_slice(slice_id, blocks, places, is_stored, skips)

    def begin(
        self, skipped: frozenset[tuple[int, int]], before: Iterable[BlockTable] | None = None, start_ns: int = BEGINNING
    ) -> None:
        """Do nothing: subscribers see which messages arrive."""

    def jump(self, *, is_back: bool) -> None:
        """Forget the next sequence numbers, so that a jump is not a gap. If time goes back, begin a new epoch."""
        if self._expected is not None:
            self._expected.clear()
            self._begun.clear()
        if is_back:
            self._publisher.new_epoch(_PATIENCE_S)

    def finish(self, stop_ns: int) -> None:
        """Do nothing: sequences missing after the last message are not published."""

    def _play_slice(
        self,
        slice_id: int,
        blocks: BlockTable,
        places: NDArray[numpy.int64],
        is_stored: NDArray[numpy.bool_],
        skips: NDArray[numpy.int64],
    ) -> None:
        """Send blocks of one slice in order, alternating between stored and gathered ones."""
        kinds = is_stored[places]
        breaks = (kinds[1:] != kinds[:-1]) | (~kinds[1:] & (skips[places[1:]] > 0))
        for run in numpy.split(places, numpy.flatnonzero(breaks) + 1):
            part = blocks._replace(rows=blocks.rows[run])
            if is_stored[run[0]]:
                self._send(slice_id, part, skips[run])
                continue
            if skips[run[0]]:
                self._send(slice_id, part._replace(rows=part.rows[:1]), skips[run[:1]], only_skips=True)
            self._gather(part)

    def _send(
        self, slice_id: int, blocks: BlockTable, skips: NDArray[numpy.int64], *, only_skips: bool = False
    ) -> None:
        """Send whole blocks of one slice as stored, or only skip the sequences missing before them."""
        headers, bodies = (blocks.rows[name].copy() for name in ("header", "body"))
        if only_skips:
            headers[:] = 0
        keys = self._keys(blocks)
        check_files(blocks)  # otherwise lost pages would be sent
        stored = Stored(headers.ctypes.data, bodies.ctypes.data, skips.ctypes.data, len(keys))
        self._publisher._running()[slice_id].put_stored(keys, stored)

    def _keys(self, blocks: BlockTable) -> list[bytes]:
        """Return the key of each block."""
        count = len(blocks.rows)
        if self._key_rule == 0:
            return [b""] * count
        text = numpy.zeros(MAX_KEY_BYTES * count, numpy.uint8)
        sizes = numpy.zeros(count, numpy.int64)
        find_keys(blocks.at(0, count), text.ctypes.data, sizes.ctypes.data)
        data = text.tobytes()
        return [data[MAX_KEY_BYTES * n : MAX_KEY_BYTES * n + size] for n, size in enumerate(sizes.tolist())]

    def _skips(self, blocks: BlockTable) -> NDArray[numpy.int64]:
        """Return how many messages of its key are missing before each block.

        Each part of a block counts as the whole block, so only the first one has a gap. If a key begins later than the
        played part of its slice, losses before it are known only if the slice is played from sequence 0 on.
        """
        assert self._expected is not None
        heads = blocks.heads
        skips = numpy.zeros(len(heads), numpy.int64)
        begins, ends = heads["first_row"].astype(numpy.int64), heads["count"].astype(numpy.int64)
        for place in numpy.flatnonzero(heads["flags"] & FLAG_SEQUENCES).tolist():
            row = blocks.rows[place]
            block = int(row["header"]), int(row["body"])
            begins[place] = numbers_to(*block, int(begins[place]))
            ends[place] = numbers_to(*block, int(ends[place]) - 1) + 1
        heads_of = (heads[name] for name in ("slice", "epoch", "sequence", "key_sequence"))
        fields = zip(*(column.tolist() for column in (*heads_of, begins, ends)), self._keys(blocks), strict=True)
        for place, (slice_id, epoch, sequence, sent, begin, end, key) in enumerate(fields):
            name, run = (slice_id, epoch, key), (slice_id, epoch)
            known = self._expected.get(name)
            if known is None:
                known = (sent if self._begun[run] else 0) if run in self._begun else sent + begin
            self._begun.setdefault(run, sequence + begin)
            skips[place] = max(0, sent + begin - known)
            self._expected[name] = max(known, sent + end)
        return skips

    def _gather(self, blocks: BlockTable) -> None:
        """Publish the messages of blocks again, in order, in as few blocks as possible."""
        many = int(blocks.rows["count"].sum())
        ts_event, starts = numpy.empty(many, numpy.int64), numpy.empty(many, numpy.int64)
        topics, lengths = numpy.empty(many, numpy.int32), numpy.empty(many, numpy.int32)
        same = numpy.zeros(many, numpy.uint8)
        columns = Columns(*(each.ctypes.data for each in (ts_event, topics, starts, lengths, same)))
        found = gather(blocks.at(0, len(blocks.rows)), self._numbering.at, columns)
        if found == FULL:
            feed = self._publisher.feed
            raise PublisherError(
                f"feed {feed.name!r}: the recording has more topics than fit, expected at most "
                f"max_topics = {feed.max_topics} a slice of {_MEAN_TOPIC_BYTES} bytes on average"
            )
        check_files(blocks)  # otherwise lengths may be wrong
        assert found == many
        if len(self._topics) != len(self._numbering):
            self._topics = tuple(self._numbering.names())
        joined = same.ctypes.data if same.any() else 0
        rows = Rows(ts_event.ctypes.data, 0, starts.ctypes.data, lengths.ctypes.data, 0, 0, joined)
        self._publisher._publish_rows(self._publisher._routes.resolve(self._topics), topics, rows)


def check_files(table: BlockTable) -> None:
    """Raise JournalError if a file of the table has shrunk, so that pages were lost."""
    for segment in table.run.segments:
        if lost := segment.lost():
            raise JournalError(f"{lost}; the rest is not sent")


def check_target(target: Feed, feeds: Sequence[Feed], *, keep_gaps: bool) -> None:
    """Raise ConfigError if recordings of `feeds` cannot be published on a feed."""
    for feed in feeds:
        if feed.schema_name != target.schema_name:
            raise ConfigError(
                f"a recording of schema {feed.schema_name!r} was to be published on feed {target.name!r} "
                f"of schema {target.schema_name!r}, expected the same"
            )
        if keep_gaps and _shape(feed) != _shape(target):
            raise ConfigError(
                f"gaps were to be kept on feed {target.name!r}, which has other slices or keys than the "
                "recording, expected the same: the slices and keys of missing messages are not known"
            )


def _shape(feed: Feed) -> tuple[object, ...]:
    """Return the settings that determine the slice and key of a topic."""
    return feed.key_rule, *((part.prefixes, part.share) for part in feed.slices)
