"""The numbers of a hub's messages: of each slice on its own, and of each key of it where the feed has `key_bytes`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import numpy
from numpy.typing import NDArray

from blackbox.feed.feed import Feed
from blackbox.hub.key_numbers import KeyNumbers
from blackbox.hub.protocol import PLACE, Places
from blackbox.publish.publisher import Publisher


class Numbers:
    """Gives puts their places, each one behind those before it, in the epoch of a publisher.

    Attributes: `epoch`; `keys`, what numbers by key, None where the feed has none; `touched`, by slice how many
    messages have a number, of slices in which some were given since its owner has emptied it.
    """

    def __init__(self, feed: Feed) -> None:
        """Number nothing yet."""
        self._feed = feed
        self.epoch = 0
        self.keys = KeyNumbers(feed) if feed.key_bytes else None
        self.touched: dict[int, int] = {}
        self._following = numpy.zeros(len(feed.slices), numpy.int64)
        """By slice, the number of its next message; with keys how many have theirs, over all keys."""
        self._begun: list[dict[bytes, int]] = []

    def begin(self, publisher: Publisher) -> None:
        """Go on where a publisher is, which has begun, as far as its outbox told."""
        slices = range(len(self._feed.slices))
        self.epoch = publisher.epoch
        self._following = numpy.array([publisher.published_count(each) for each in slices])
        if self.keys is not None:
            self.keys.next_sequences = [publisher.next_sequences(each) for each in slices]
        self._begun = [dict(each) for each in self.next_sequences()]

    def next_sequences(self) -> Sequence[Mapping[bytes, int]]:
        """Return by slice and key (b"" where there are none) the number of the next message."""
        return [{b"": each} for each in self._following.tolist()] if self.keys is None else self.keys.next_sequences

    def has_any(self) -> bool:
        """Whether the epoch has a message."""
        return bool(self._following.any())

    def next(self, slice_id: int, topic: bytes) -> int:
        """Give the next message of a topic its number."""
        number = self._next(slice_id)
        return number if self.keys is None else self.keys.next(slice_id, topic)

    def _next(self, slice_id: int) -> int:
        number: int = self._following.item(slice_id)
        self._following[slice_id] = self.touched[slice_id] = number + 1
        return number

    def places_of(self, slices: NDArray[numpy.int32], topics: Sequence[bytes], index: NDArray[numpy.int32]) -> Places:
        """Return the places of puts that are all new. `slices`: of each topic; `index`: of each put, which it has."""
        if len(index) == 1:
            slice_id, topic = slices.item(index[0]), topics[index[0]]
            return numpy.array([(slice_id, 1, 0, self.epoch, self.next(slice_id, topic))], PLACE)
        places = numpy.zeros(len(index), PLACE)
        places["slice"] = slices[index]
        places["is_new"], places["epoch"] = 1, self.epoch
        self.number(places, numpy.ones(len(index), numpy.bool_), topics, index)
        return places

    def number(
        self, places: Places, rows: NDArray[numpy.bool_], topics: Sequence[bytes], index: NDArray[numpy.int32]
    ) -> None:
        """Number those rows, whose slices are there; `topics` and `index` as of `places_of`."""
        self._number_in_slices(places, rows)
        if self.keys is not None:
            self.keys.number(places, rows, topics, index)

    def _number_in_slices(self, places: Places, rows: NDArray[numpy.bool_]) -> None:
        if len(places) == 1:
            if rows[0]:
                places["sequence"][0] = self._next(int(places["slice"][0]))
            return
        for slice_id in numpy.unique(places["slice"][rows]).tolist():
            mine = rows & (places["slice"] == slice_id)
            count, first = int(mine.sum()), int(self._following[slice_id])
            places["sequence"][mine] = numpy.arange(first, first + count)
            self._following[slice_id] = self.touched[slice_id] = first + count

    def are_behind(self, places: Places, topics: Sequence[bytes], index: NDArray[numpy.int32]) -> NDArray[numpy.bool_]:
        """Return which places of the epoch are behind what the outbox had of it at `begin`."""
        slices = places["slice"]
        if self.keys is None:
            begun = numpy.array([each[b""] for each in self._begun])[slices]
        else:
            keys, rows = [self._feed.key_of(each) for each in topics], zip(slices.tolist(), index.tolist(), strict=True)
            begun = numpy.array([self._begun[slice_id].get(keys[at], 0) for slice_id, at in rows], numpy.int64)
        are_behind: NDArray[numpy.bool_] = places["sequence"] >= begun
        return are_behind

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Take back the numbers that were given in the `with` block if that raises."""
        before = self._following.copy(), dict(self.touched)
        with ExitStack() as stack:
            if self.keys is not None:
                stack.enter_context(self.keys.trying())
            try:
                yield
            except BaseException:
                self._following, self.touched = before
                raise
