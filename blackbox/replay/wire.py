"""A replay's way onto the wire: large stored bodies as they are, rows of other blocks gathered into large ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy
from numba import njit
from numpy.typing import NDArray

from blackbox.atoms import copy_bytes, inner, int32s_at, int64s_at, unsigned
from blackbox.check import read_header
from blackbox.encode import Rows
from blackbox.errors import ConfigError, PublisherError
from blackbox.feed import Feed
from blackbox.feeder import Stored
from blackbox.journal.rows import starts_with
from blackbox.journal.segment import Segment
from blackbox.layout import FLAG_FIXED, MAX_KEY_BYTES, body_layout
from blackbox.publisher import Publisher
from blackbox.replay.look import BODY, COUNT, FIRST, HEAD, SLICE, STAYS
from blackbox.replay.scenes import Scene
from blackbox.topics import FULL, Numbering, NumberingAt, number_of
from blackbox.warmup import warm_up

LEAST_STORED_BYTES: Final = 16 << 10
"""Bodies below this are not sent as they are but gathered: what a block costs is paid once for many of them."""
_WINDOW: Final = 8
"""Stored blocks of all slices that are put at a time: one line is filled while another is, not after it."""
_MEAN_TOPIC_BYTES: Final = 32


class Columns(NamedTuple):
    """Where the rows of gathered blocks are listed: addresses of columns, payloads by their own address."""

    ts_event: int
    topics: int
    starts: int
    lengths: int


@njit(nogil=True, cache=True)
def gather(
    heads: int,
    bodies: int,
    firsts: int,
    count: int,
    numbering: NumberingAt,
    prefix: int,
    prefix_bytes: int,
    to: Columns,
) -> int:
    """List the rows of valid blocks whose topics have the prefix; returns how many, FULL: too many topics.

    Blocks are given by addresses of int64[count]; `to` has room for all of the rows.
    """
    head_of, body_of, first_of = int64s_at(heads, count), int64s_at(bodies, count), int64s_at(firsts, count)
    rows = 0
    for block in range(count):
        body = body_of[block]
        header = read_header(head_of[block])
        fixed = header.flags & FLAG_FIXED != 0
        layout = body_layout(header.count, header.topics, header.topic_bytes, 0, fixed)
        numbers = numpy.empty(header.topics, numpy.int32)
        offsets = int32s_at(body + layout.topic_offsets, header.topics + 1)
        for topic in range(header.topics):
            start = numpy.int64(offsets[topic])
            size = numpy.int64(offsets[topic + 1]) - start
            text = body + layout.topics + start
            numbers[topic] = -1
            if starts_with(text, size, prefix, prefix_bytes):
                number = number_of(numbering, text, size)
                if number == FULL:
                    return FULL
                numbers[topic] = number
        rows = _gather_rows(
            body, first_of[block], header.count, header.stride if fixed else -1, numbers, layout, to, rows
        )
    return rows


@inner
def _gather_rows(
    body: int, first: int, count: int, stride: int, numbers: NDArray[numpy.int32], layout: Any, to: Columns, rows: int
) -> int:
    """List the rows of one block from `first` on, whose topics have these numbers, -1: not wanted."""
    ts_event = int64s_at(body, count)
    topic_index = int32s_at(body + layout.topic_index, count)
    payload_offsets = int32s_at(body + layout.payload_offsets, count + 1)
    times, topics = int64s_at(to.ts_event, rows + count), int32s_at(to.topics, rows + count)
    starts, lengths = int64s_at(to.starts, rows + count), int32s_at(to.lengths, rows + count)
    for row in range(first, count):
        number = numbers[unsigned(topic_index[row])]
        if number < 0:
            continue
        times[rows] = ts_event[row]
        topics[rows] = number
        if stride >= 0:
            starts[rows] = body + layout.payloads + row * stride
            lengths[rows] = stride
        else:
            starts[rows] = body + layout.payloads + payload_offsets[row]
            lengths[rows] = payload_offsets[row + 1] - payload_offsets[row]
        rows += 1
    return rows


@njit(nogil=True, cache=True)
def find_keys(heads: int, bodies: int, count: int, key_bytes: int, keys: int, sizes: int) -> None:
    """Write the key of each valid block, in MAX_KEY_BYTES each, and to int64[count] its size."""
    head_of, body_of, size_of = int64s_at(heads, count), int64s_at(bodies, count), int64s_at(sizes, count)
    for block in range(count):
        header = read_header(head_of[block])
        layout = body_layout(header.count, header.topics, header.topic_bytes, 0, header.flags & FLAG_FIXED != 0)
        size = min(key_bytes, numpy.int64(int32s_at(body_of[block] + layout.topic_offsets, 2)[1]))
        copy_bytes(keys + MAX_KEY_BYTES * block, body_of[block] + layout.topics, size)
        size_of[block] = size


class Wire:
    """Plays to a publisher."""

    reads_ahead = False  # both cores are busy with sending
    looks = False

    def __init__(self, publisher: Publisher, feeds: Sequence[Feed], prefix: bytes, keep_gaps: bool) -> None:
        """For recordings of `feeds`, of which only topics with `prefix` are sent.

        Raises ConfigError when the publisher's feed has another schema, or cannot keep gaps: it has other slices.
        """
        theirs = publisher.feed
        for feed in feeds:
            if feed.schema != theirs.schema:
                raise ConfigError(
                    f"a recording of schema {feed.schema!r} was to be published on feed {theirs.name!r} "
                    f"of schema {theirs.schema!r}, expected the same"
                )
        self._publisher = publisher
        self._prefix = prefix
        self._text = numpy.frombuffer(prefix or b"\0", numpy.uint8)
        self._key_bytes = feeds[0].key_bytes
        self._as_stored = all(_shape(feed) == _shape(theirs) for feed in feeds)
        if keep_gaps and not self._as_stored:
            raise ConfigError(
                f"gaps were to be kept on feed {theirs.name!r}, which has other slices or key_bytes than the "
                "recording, expected the same: of which slice and key a missing message was is not known"
            )
        self._expected: dict[tuple[int, int, bytes], int] | None = {} if keep_gaps else None
        self._numbering = Numbering(theirs.max_topics * len(theirs.slices), _MEAN_TOPIC_BYTES)
        self._topics: tuple[bytes, ...] = ()
        publisher.warm_up_stored()
        warm_up(gather, 0, 0, 0, 0, self._numbering.at, 0, 0, Columns(0, 0, 0, 0))
        warm_up(find_keys, 0, 0, 0, 0, 0, 0)

    def play(self, scene: Scene, start: int, stop: int) -> None:
        """Send those of blocks `[start, stop)` of a scene that are wanted."""
        wanted = start + numpy.flatnonzero(scene.columns[COUNT, start:stop])
        columns, heads = scene.columns[:, wanted], scene.heads[wanted]
        if not self._as_stored:
            self._gather(columns)
            return
        whole = (columns[FIRST] == 0) & ((columns[COUNT] == heads["count"]) | (not self._prefix))
        stored = whole & (heads["body_bytes"] >= LEAST_STORED_BYTES)
        skips = numpy.zeros(len(wanted), numpy.int64) if self._expected is None else self._skips(columns, heads)
        window = (numpy.cumsum(stored) - stored) // _WINDOW
        bounds = [0, *(numpy.flatnonzero(numpy.diff(window)) + 1).tolist(), len(wanted)]
        for start, stop in pairwise(bounds):
            slices = columns[SLICE, start:stop]
            for slice_id in numpy.unique(slices).tolist():
                blocks = start + numpy.flatnonzero(slices == slice_id)
                self._play_slice(slice_id, scene, columns, blocks, stored, skips)

    def jump(self, *, is_back: bool) -> None:  # noqa: ARG002 - on the wire, time may go back as it likes
        """What was left out is no gap."""
        if self._expected is not None:
            self._expected.clear()

    def _play_slice(
        self,
        slice_id: int,
        scene: Scene,
        columns: NDArray[numpy.int64],
        blocks: NDArray[numpy.int64],
        stored: NDArray[numpy.bool_],
        skips: NDArray[numpy.int64],
    ) -> None:
        """Send blocks of one slice, in order: runs of those that are sent as they are, and of those that are not."""
        kinds = stored[blocks]
        breaks = (kinds[1:] != kinds[:-1]) | (~kinds[1:] & (skips[blocks[1:]] > 0))
        for run in numpy.split(blocks, numpy.flatnonzero(breaks) + 1):
            if stored[run[0]]:
                self._send(slice_id, scene, columns[:, run], skips[run])
                continue
            if skips[run[0]]:
                self._send(slice_id, scene, columns[:, run[:1]], skips[run[:1]], only_skips=True)
            self._gather(columns[:, run])

    def _send(
        self,
        slice_id: int,
        scene: Scene,
        columns: NDArray[numpy.int64],
        skips: NDArray[numpy.int64],
        *,
        only_skips: bool = False,
    ) -> None:
        part = numpy.ascontiguousarray(columns)
        keys = self._keys(part)
        if only_skips:
            part[HEAD] = 0
        stored = Stored(
            part[HEAD].ctypes.data,
            part[BODY].ctypes.data,
            0,
            skips.ctypes.data,
            part[STAYS].ctypes.data,
            len(keys),
        )
        alive: Iterable[object] = (each for each in scene.alive if isinstance(each, Segment))
        self._publisher.publish_stored(slice_id, keys, stored, alive)

    def _keys(self, columns: NDArray[numpy.int64]) -> list[bytes]:
        """The key of each block."""
        count = columns.shape[1]
        if self._key_bytes == 0:
            return [b""] * count
        text = numpy.zeros(MAX_KEY_BYTES * count, numpy.uint8)
        sizes = numpy.zeros(count, numpy.int64)
        head, body = (numpy.ascontiguousarray(columns[n]) for n in (HEAD, BODY))
        find_keys(head.ctypes.data, body.ctypes.data, count, self._key_bytes, text.ctypes.data, sizes.ctypes.data)
        data = text.tobytes()
        return [data[MAX_KEY_BYTES * n : MAX_KEY_BYTES * n + size] for n, size in enumerate(sizes.tolist())]

    def _skips(self, columns: NDArray[numpy.int64], heads: NDArray[numpy.void]) -> NDArray[numpy.int64]:
        """How many sequence numbers are missing before each block, as `Recording.gaps` counts them.

        Of a block that is played in parts, each part is taken for the whole: there is a gap before the first at most.
        """
        assert self._expected is not None
        skips = numpy.zeros(len(heads), numpy.int64)
        columns_of_heads = (heads[name].tolist() for name in ("epoch", "sequence", "first_row", "count"))
        slices, keys = columns[SLICE].tolist(), self._keys(columns)
        for place, (epoch, sequence, first_row, count) in enumerate(zip(*columns_of_heads, strict=True)):
            name = slices[place], epoch, keys[place]
            begin = sequence + first_row
            known = self._expected.get(name, begin)
            skips[place] = max(0, begin - known)
            self._expected[name] = max(known, sequence + count)
        return skips

    def _gather(self, columns: NDArray[numpy.int64]) -> None:
        """Publish the rows of blocks anew, in order, in as few blocks as they fit."""
        rows = int(columns[COUNT].sum())
        ts_event, starts = numpy.empty(rows, numpy.int64), numpy.empty(rows, numpy.int64)
        topics, lengths = numpy.empty(rows, numpy.int32), numpy.empty(rows, numpy.int32)
        head, body, first = (numpy.ascontiguousarray(columns[n]) for n in (HEAD, BODY, FIRST))
        found = gather(
            head.ctypes.data,
            body.ctypes.data,
            first.ctypes.data,
            columns.shape[1],
            self._numbering.at,
            self._text.ctypes.data,
            len(self._prefix),
            Columns(ts_event.ctypes.data, topics.ctypes.data, starts.ctypes.data, lengths.ctypes.data),
        )
        if found == FULL:
            feed = self._publisher.feed
            raise PublisherError(
                f"feed {feed.name!r}: the recording has more topics than fit, expected at most "
                f"max_topics = {feed.max_topics} a slice of {_MEAN_TOPIC_BYTES} bytes on average"
            )
        assert found == rows
        if len(self._topics) != len(self._numbering):
            self._topics = tuple(self._numbering.names())
        columns_at = Rows(ts_event.ctypes.data, 0, starts.ctypes.data, lengths.ctypes.data, 0)
        self._publisher.publish_rows(self._topics, topics, columns_at)


def _shape(feed: Feed) -> tuple[object, ...]:
    """What decides into which slice and key a topic falls."""
    return feed.key_bytes, *((part.prefixes, part.share) for part in feed.slices)
