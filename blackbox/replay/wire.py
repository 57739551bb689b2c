"""A replay's way onto the wire: stored bodies as they are, or their messages published anew where they do not fit."""

from __future__ import annotations

from typing import Final

import numpy
from numpy.typing import NDArray

from blackbox.block import Block
from blackbox.errors import ConfigError
from blackbox.feed import Feed
from blackbox.feeder import Stored
from blackbox.foreign import foreign_array
from blackbox.journal.segment import Segment
from blackbox.layout import HEADER_BYTES
from blackbox.publisher import Publisher
from blackbox.replay.play import Reel
from blackbox.replay.scenes import BODY, COUNT, FIRST, HEAD, SLICE, STAYS, Scene

_WINDOW: Final = 8
"""Blocks of all slices that are put at a time: one line is filled while another is, not after it."""


class Wire:
    """Plays to a publisher."""

    def __init__(self, publisher: Publisher, feed: Feed, prefix: bytes, keep_gaps: bool) -> None:
        """For recordings of `feed`, of which only topics with `prefix` are sent.

        Raises ConfigError when the publisher's feed has another schema.
        """
        theirs = publisher.feed
        if feed.schema != theirs.schema:
            raise ConfigError(
                f"a recording of schema {feed.schema!r} was to be published on feed {theirs.name!r} "
                f"of schema {theirs.schema!r}, expected the same"
            )
        self._publisher = publisher
        self._feed = feed
        self._prefix = prefix
        self._keep_gaps = keep_gaps
        self._as_stored = feed.key_bytes == theirs.key_bytes and [
            (part.prefixes, part.share) for part in feed.slices
        ] == [(part.prefixes, part.share) for part in theirs.slices]
        self._expected: dict[tuple[int, bytes], tuple[int, int]] = {}
        self._topics: tuple[bytes, ...] = ()
        publisher.warm_up_stored()

    def play(self, scene: Scene, reel: Reel, first: int) -> list[int]:
        """Send the blocks of a reel, which begins at block `first` of a scene; returns which are not valid."""
        lost: list[int] = []
        for start in range(first, first + reel.count, _WINDOW):
            blocks = numpy.arange(start, min(start + _WINDOW, first + reel.count))
            whole = self._fits(scene, blocks)
            if whole.all():
                self._send(scene, blocks)
                continue
            for block, fits in zip(blocks.tolist(), whole.tolist(), strict=True):
                if fits:
                    self._send(scene, numpy.array([block]))
                elif not self._publish(scene, block):
                    lost.append(block - first)
        return lost

    def reset(self) -> None:
        """Nothing to tell: on the wire, time may go back as it likes."""

    def _fits(self, scene: Scene, blocks: NDArray[numpy.int64]) -> NDArray[numpy.bool_]:
        """bool[n]: which blocks can be sent as they are."""
        if not self._as_stored:
            return numpy.zeros(len(blocks), bool)
        fits = (scene.columns[FIRST, blocks] == 0) & [scene.is_good(block) for block in blocks.tolist()]
        if self._prefix:
            fits &= [fit and self._is_within(scene, n) for fit, n in zip(fits.tolist(), blocks.tolist(), strict=True)]
        return fits

    def _is_within(self, scene: Scene, block: int) -> bool:
        return all(topic.startswith(self._prefix) for topic in self._block(scene, block).topics)

    def _send(self, scene: Scene, blocks: NDArray[numpy.int64]) -> None:
        columns = numpy.ascontiguousarray(scene.columns[:, blocks])
        keys = [self._key(scene, block) for block in blocks.tolist()]
        skips = numpy.zeros(len(blocks), numpy.int64)
        if self._keep_gaps:
            for place, block in enumerate(blocks.tolist()):
                skips[place] = self._skip(scene, block, keys[place])
        for slice_id in numpy.unique(columns[SLICE]).tolist():
            chosen = numpy.flatnonzero(columns[SLICE] == slice_id)
            part = numpy.ascontiguousarray(columns[:, chosen])
            part_skips = skips[chosen]
            stored = Stored(
                part[HEAD].ctypes.data,
                part[BODY].ctypes.data,
                0,
                part_skips.ctypes.data,
                part[STAYS].ctypes.data,
                len(chosen),
            )
            alive = (each for each in scene.alive if isinstance(each, Segment))
            self._publisher.publish_stored(slice_id, [keys[place] for place in chosen.tolist()], stored, alive)

    def _skip(self, scene: Scene, block: int, key: bytes) -> int:
        """Sequence numbers that are missing before a block, in its epoch."""
        record = scene.heads[block]
        epoch, sequence = int(record["epoch"]), int(record["sequence"])
        place = int(scene.columns[SLICE, block]), key
        known_epoch, expected = self._expected.get(place, (epoch, sequence))
        self._expected[place] = epoch, sequence + int(record["count"])
        return max(0, sequence - expected) if epoch == known_epoch else 0

    def _publish(self, scene: Scene, block: int) -> bool:
        """Publish the messages of a block anew; returns whether it is a valid one."""
        if not scene.is_good(block):
            return False
        source = self._block(scene, block)
        first = int(scene.columns[FIRST, block])
        rows = numpy.arange(first, first + int(scene.columns[COUNT, block]))
        topics = source.topics
        if self._prefix:
            wanted = numpy.array([topic.startswith(self._prefix) for topic in topics])
            rows = rows[wanted[source.topic_index[rows]]]
        if not len(rows):
            return True
        offsets = source.payload_offsets.astype(numpy.int64)
        self._publisher.publish_many(
            topics,
            source.topic_index[rows],
            source.payloads,
            source.ts_event[rows],
            offsets[rows],
            offsets[rows + 1] - offsets[rows],
        )
        return True

    def _key(self, scene: Scene, block: int) -> bytes:
        size = self._feed.key_bytes
        return self._block(scene, block).topics[0][:size] if size else b""

    def _block(self, scene: Scene, block: int) -> Block:
        head, body = (int(scene.columns[n, block]) for n in (HEAD, BODY))
        header = foreign_array(scene, head, HEADER_BYTES).tobytes()
        return Block(b"", header, foreign_array(scene, body, int(scene.heads[block]["body_bytes"])))
