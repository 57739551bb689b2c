"""The topics of a hub's feed, and the reasons for refusing further topics and puts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Final, NamedTuple

import numpy
from numpy.typing import NDArray

from blackbox.errors import ConfigError
from blackbox.feed.feed import Feed
from blackbox.feed.rights import PUT_RIGHTS_FILE
from blackbox.publish.publisher import Publisher
from blackbox.publish.send.number_line import TOPIC_TEXT_BYTES
from blackbox.services.hub.protocol import REFUSED, check_topic_of

_MOST_WHY: Final = 200
"""Maximum characters of a reason."""
_MOST_REASONS: Final = 100
_LEAST_ROUTES: Final = 1_024
_ONE_MORE: Final = f"its request had more than {_MOST_REASONS} reasons; put it alone to see its own"


class Reasons:
    """Reasons for refusing puts of a request. Puts share equal reasons, so a reason names no put."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}

    def code(self, why: object) -> int:
        """Return the code of a reason in `is_refused`."""
        text = str(why).replace("\n", " ")[:_MOST_WHY]
        if text not in self._codes and len(self._codes) >= _MOST_REASONS:
            text = _ONE_MORE
        return self._codes.setdefault(text, len(self._codes) + REFUSED)

    def __str__(self) -> str:
        return "\n".join(self._codes)


class Found(NamedTuple):
    """The topics of a request."""

    numbers: NDArray[numpy.int64]
    """Numbers of the topics, as `Topics.numbers` returns them."""
    slices: NDArray[numpy.int32]
    codes: NDArray[numpy.int64] | None
    """Reason for refusing each topic's puts, 0: none; None: no topic has one."""
    new: list[bytes]
    """Topics that the hub accepts and does not have yet."""


class Topics:
    """Topics that have messages, with their slices. Each slice has at most those for which the publisher has room."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._numbers: dict[bytes, int] = {}
        self._routes = numpy.zeros((2, _LEAST_ROUTES), numpy.int32)
        """Slice of a topic, by number, and its number in that slice at the publisher; -1: not known yet."""
        self._counts, self._bytes = [0] * len(feed.slices), [0] * len(feed.slices)
        self._most, self._most_bytes = feed.max_topics, feed.max_topics * TOPIC_TEXT_BYTES

    def find(self, topics: Sequence[bytes], may: tuple[bytes, ...] | None, why: Reasons) -> Found:
        """Look up the topics of a request. Topics that do not start with one of `may` are refused; None allows all."""
        numbers = self.numbers(topics)
        slices, new = self._routes[0][numbers], list[bytes]()
        if may is None and numbers.min() >= 0:
            return Found(numbers, slices, None, new)
        codes = numpy.zeros(len(topics), numpy.int64)
        for at, topic in enumerate(topics):
            try:
                if may is not None and not topic.startswith(may):
                    raise ConfigError(f"the key has no right to it, expected prefixes of its {PUT_RIGHTS_FILE}")
                if numbers[at] < 0:
                    slices[at] = check_topic_of(self._feed, topic)
                    new.append(topic)
            except ConfigError as error:
                slices[at], codes[at] = 0, why.code(error)
        return Found(numbers, slices, codes if codes.any() else None, new)

    def numbers(self, topics: Sequence[bytes]) -> NDArray[numpy.int64]:
        """Return the numbers of topics, counted in the order in which they were added; -1 for unknown topics."""
        return numpy.fromiter(map(self._numbers.get, topics, repeat(-1)), numpy.int64, len(topics))

    def routes(
        self, topics: Sequence[bytes], numbers: NDArray[numpy.int64], publisher: Publisher
    ) -> NDArray[numpy.int32]:
        """Return the slices of topics, and their numbers at the publisher; arbitrary values for unknown topics.

        `numbers`: as `numbers` returns. `publisher`: the feed's publisher, the same for all calls.
        """
        for at in numpy.flatnonzero((numbers >= 0) & (self._routes[1][numbers] < 0)).tolist():
            self._routes[:, numbers[at]] = publisher._routes[topics[at]][:2]
        return self._routes.take(numbers, axis=1)

    def in_order(self, topics: Sequence[bytes], index: NDArray[numpy.int32]) -> NDArray[numpy.int64]:
        """Return the rows of a request in the order in which they are published, with the rows of a key together.

        Keys are in the order of their first rows. `index`: index into `topics` of each row.
        """
        rows = numpy.arange(len(index))
        if not self._feed.key_rule or len(rows) == 1:
            return rows
        first_of = dict[bytes, int]()
        same = [first_of.setdefault(self._feed.key_of(topic), at) for at, topic in enumerate(topics)]
        _, begins, kinds = numpy.unique(numpy.array(same)[index], return_index=True, return_inverse=True)
        return numpy.argsort(begins[kinds], kind="stable")

    def all(self) -> list[bytes]:
        """Return all topics, in the order in which they were added."""
        return list(self._numbers)

    def has_room(self, new: Sequence[bytes]) -> bool:
        """Return True if there is room for all of them, whatever their slices are."""
        if not new:
            return True  # at once, as in most requests: there may be many slices
        return max(self._counts) + len(new) <= self._most and max(self._bytes) + sum(map(len, new)) <= self._most_bytes

    def add_all(self, topics: Iterable[bytes]) -> None:
        """Add topics. Raises ConfigError naming the first topic without room."""
        for topic in topics:
            try:
                self.add(topic)
            except ConfigError as error:
                raise ConfigError(f"topic {topic[:64]!r} is in the journals: {error}") from None

    def check_room(self, new: Sequence[bytes]) -> None:
        """Raise ConfigError unless there is room for all of these new topics."""
        counts, sizes = Counter[int](), Counter[int]()
        for topic in new:
            found = check_topic_of(self._feed, topic)
            counts[found] += 1
            sizes[found] += len(topic)
            self._check_room(found, counts[found], sizes[found])

    def _check_room(self, slice_id: int, count: int, size: int) -> None:
        if self._counts[slice_id] + count > self._most:
            raise ConfigError(f"slice {slice_id} had {self._most} topics, its max_topics, and this one is new")
        if (size := self._bytes[slice_id] + size) > self._most_bytes:
            raise ConfigError(
                f"slice {slice_id} had topics of {size} bytes with it, "
                f"expected at most max_topics = {self._most} of {TOPIC_TEXT_BYTES} bytes on average"
            )

    def add(self, topic: bytes) -> int:
        """Add a topic if it is new, and return its slice. Raises ConfigError if there is no room for it."""
        number = self._numbers.get(topic)
        if number is None:
            found = check_topic_of(self._feed, topic)
            self._check_room(found, 1, len(topic))
            self._counts[found] += 1
            self._bytes[found] += len(topic)
            number = self._numbers[topic] = len(self._numbers)
            if number == self._routes.shape[1]:
                self._routes = numpy.concatenate([self._routes, numpy.zeros_like(self._routes)], axis=1)
            self._routes[:, number] = found, -1
        return self._routes.item(0, number)
