"""The number of the next message of each key of a hub's feed, where it has `key_bytes`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy
from numpy.typing import NDArray

from blackbox.feed.feed import Feed
from blackbox.hub.protocol import Places


class KeyNumbers:
    """Numbers messages, of each key of each slice on its own, from 0 on in each epoch."""

    def __init__(self, feed: Feed) -> None:
        """No key is known."""
        self._feed = feed
        self.next_sequences: list[dict[bytes, int]] = [{} for _ in feed.slices]
        """By slice and key, the number of its next message; keys that are not in it begin with 0."""
        self._before: dict[tuple[int, bytes], int] | None = None
        """Of keys that were numbered since `trying` began, what they were."""

    def under(self, prefix: bytes) -> list[dict[bytes, int]]:
        """Return, by slice, the next number of each key that topics with a prefix may have."""
        start = self._feed.subscription_of(prefix)
        return [{key: each for key, each in keys.items() if key.startswith(start)} for keys in self.next_sequences]

    def has_room(self, slice_id: int, topic: bytes, most: int) -> bool:
        """Whether a slice may have a topic's key, as one of `most`; it is known from then on."""
        keys, key = self.next_sequences[slice_id], self._feed.key_of(topic)
        if key not in keys:
            if len(keys) >= most:
                return False
            keys[key] = 0
        return True

    def next(self, slice_id: int, topic: bytes, count: int = 1) -> int:
        """Give the next messages of a topic's key their numbers; return the first."""
        keys, key = self.next_sequences[slice_id], self._feed.key_of(topic)
        first = keys.get(key, 0)
        if self._before is not None:
            self._before.setdefault((slice_id, key), first)
        keys[key] = first + count
        return first

    def number(
        self, places: Places, rows: NDArray[numpy.bool_], topics: Sequence[bytes], index: NDArray[numpy.int32]
    ) -> None:
        """Number those rows, in their order. `index`: of each row, which of `topics` it has."""
        if len(places) == 1:
            if rows[0]:
                places["sequence"][0] = self.next(int(places["slice"][0]), topics[index[0]])
            return
        first_of: dict[bytes, int] = {}
        same = [first_of.setdefault(self._feed.key_of(topic), at) for at, topic in enumerate(topics)]
        chosen = numpy.flatnonzero(rows)
        lanes = places["slice"][chosen].astype(numpy.int64) * len(topics) + numpy.array(same)[index[chosen]]
        order = numpy.argsort(lanes, kind="stable")
        kinds, starts, counts = numpy.unique(lanes[order], return_index=True, return_counts=True)
        firsts = [
            self.next(lane // len(topics), topics[lane % len(topics)], count)
            for lane, count in zip(kinds.tolist(), counts.tolist(), strict=True)
        ]
        shifts = numpy.array(firsts, numpy.int64) - starts
        places["sequence"][chosen[order]] = numpy.repeat(shifts, counts) + numpy.arange(len(chosen))

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Take back the numbers that were given in the `with` block if that raises."""
        self._before = {}
        try:
            yield
        except BaseException:
            for (slice_id, key), number in self._before.items():
                self.next_sequences[slice_id][key] = number
            raise
        finally:
            self._before = None
