"""Keep the newest payload of each topic under a prefix: the image first, then what follows."""

from __future__ import annotations

import hashlib
import struct
import threading
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from typing import Final

import numpy

from blackbox.block.batch import Batch
from blackbox.block.position import Position
from blackbox.subscribe.repair import Since

_SIZES: Final = struct.Struct("<QQ")


class Table(Mapping[bytes, bytes]):
    """The newest payload of each topic that begins with `prefix`. Made by `Subscriber.table`.

    A message without a value takes its topic out. Any thread may read it; what several reads give may be of several
    moments, but for `snapshot`. Messages that are lost (see `on_gap`) leave topics as they were.

    Attributes: `prefix`.
    """

    def __init__(self, prefix: bytes, key_bytes: int) -> None:
        """Empty, and not synced."""
        self.prefix = prefix
        self._key_bytes = key_bytes
        self._payloads: dict[bytes, bytes] = {}
        self._at: dict[tuple[int, bytes], Position] = {}
        self._left = -1
        """Messages of the image that have not come yet; -1: it is not known how many there are."""
        self._lock = threading.Lock()
        self._synced = threading.Event()

    @property
    def synced(self) -> bool:
        """Whether the image is complete: from then on the table is as of `at`."""
        return self._synced.is_set()

    def wait_synced(self, timeout: float | None = None) -> bool:
        """Wait until the image is complete; return whether it is."""
        return self._synced.wait(timeout)

    @property
    def at(self) -> dict[tuple[int, bytes], Position]:
        """By slice and key (b"" where the feed has none) the position behind the last message that is in the table."""
        with self._lock:
            return dict(self._at)

    def snapshot(self) -> tuple[dict[bytes, bytes], dict[tuple[int, bytes], Position]]:
        """Return all payloads by topic, and `at`, of one moment."""
        with self._lock:
            return dict(self._payloads), dict(self._at)

    def digest(self) -> str:
        """Return a SHA-256, in hexadecimal, of all topics and payloads: that of an equal table is the same."""
        payloads, found = self.snapshot()[0], hashlib.sha256()
        for topic, payload in sorted(payloads.items()):
            found.update(_SIZES.pack(len(topic), len(payload)) + topic + payload)
        return found.hexdigest()

    def __getitem__(self, topic: bytes) -> bytes:
        return self._payloads[topic]

    def __len__(self) -> int:
        return len(self._payloads)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.snapshot()[0])

    def items(self) -> ItemsView[bytes, bytes]:
        """Return topics and payloads of one moment: a topic may go away while others are read."""
        return self.snapshot()[0].items()

    def values(self) -> ValuesView[bytes]:
        """Return payloads, as `items`."""
        return self.snapshot()[0].values()

    def __repr__(self) -> str:
        return f"Table({self.prefix!r}, {len(self)} topics, {'synced' if self.synced else 'not synced'})"

    def begin(self, images: Mapping[int, Since | None]) -> None:
        """Be empty, and expect the image of each slice, before any of it comes."""
        with self._lock:
            self._payloads, self._at, self._left = {}, {}, 0
        for slice_id, since in images.items():
            if since is not None:
                blocks = since.image or ()
                self._left += sum(topic.startswith(self.prefix) for block in blocks for topic in block.topics)
                self._at |= {
                    (slice_id, key): Position(since.epoch, number)
                    for key, number in since.following.items()
                    if key.startswith(self.prefix[: self._key_bytes])
                }
        self._look()

    def put(self, batch: Batch) -> None:
        """Take messages in: the callback."""
        last = numpy.full(len(batch.topics), -1, numpy.int64)
        last[batch.topic_index] = numpy.arange(len(batch))  # of equal places the last one stays
        places = numpy.sort(last[last >= 0]).astype(numpy.int32)
        newest = Batch(batch.block, places if batch.rows is None else batch.rows[places], batch.received)
        topics, payloads = newest.topics_per_message(), newest.payload_list()
        block = batch.block
        with self._lock:
            for topic, payload in zip(topics, payloads, strict=True):
                if payload is None:
                    self._payloads.pop(topic, None)
                else:
                    self._payloads[topic] = payload
            if batch.is_image:
                self._left -= len(batch)
                self._look()
            else:
                key = topics[0][: self._key_bytes]
                self._at[block.slice_id, key] = Position(block.epoch, int(batch.sequence[-1]) + 1)

    def _look(self) -> None:
        if self._left == 0:
            self._synced.set()
