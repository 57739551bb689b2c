"""The slices of a replay: topic numbers, counters, and the callbacks matched with their topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.errors import ConfigError
from blackbox.feed.symbol_choice import TopicChoice
from blackbox.native.memory.arrays import shared_array
from blackbox.native.system.cgroup import usable_cpus
from blackbox.native.tables.name_table import HINT_WORDS, Numbering
from blackbox.native.tables.prefix_trie import longest_prefix
from blackbox.receive.callbacks.callbacks import Callback
from blackbox.receive.callbacks.match_table import Filters, Table
from blackbox.receive.statistics import Counted, Counters, Statistics, statistics_of
from blackbox.replay.play.player_loop import SLICE_WORDS, slice_words
from blackbox.replay.slice_numbering import ReplayedFeeds

_VERSION: Final = 1
_MEAN_TOPIC_BYTES: Final = 32


class PlayedSlices:
    """Topic numbers and counters of each slice, which continue in the next replay.

    Attributes: `topics`, the numbering of each slice; `hints` for it; `workers`, their number; `counters` of each.
    """

    def __init__(self, feeds: ReplayedFeeds, before: PlayedSlices | None) -> None:
        """Continue those of an earlier replay. Raises ConfigError if it was of other feeds."""
        known = [] if before is None else before.topics
        places = [] if before is None else before._places
        for was, now in zip(places, feeds.places, strict=False):
            if was != now:
                raise ConfigError(
                    f"slice {now[1]} of feed {now[0]!r} was played where slice {was[1]} of {was[0]!r} was before, "
                    "expected the same feeds in the same order: topic numbers and states go on"
                )
        self._places: list[tuple[str, int]] = max(places, feeds.places, key=len)
        fresh = (Numbering(most, _MEAN_TOPIC_BYTES, shared_array) for most in feeds.max_topics[len(known) :])
        self.topics: list[Numbering] = [*known, *fresh]
        self.hints = [shared_array((numbering.at.capacity, HINT_WORDS), numpy.uint64) for numbering in self.topics]
        self.workers = max(1, min(usable_cpus(), len(feeds.max_topics)))
        counted = [] if before is None else before.counters
        self.counters: list[Counters] = [*counted, *(Counters(1) for _ in range(self.workers - len(counted)))]

    def names(self, slice_id: int) -> list[bytes]:
        """Return the topics of a slice by number."""
        numbering = self.topics[slice_id : slice_id + 1]
        return numbering[0].names() if numbering else []

    def statistics(self) -> Statistics:
        """Return the counters so far."""
        topics = sum(map(len, self.topics))
        counted = [Counted(-1, counters, 0, 0 if n else topics) for n, counters in enumerate(self.counters)]
        return msgspec.structs.replace(statistics_of(counted, has_ended=True), slices=())


class MatchedCallbacks:
    """Callbacks matched with the topics of each slice, for compiled code. A change of callbacks makes a new one.

    Attributes: `table` of the first slice; `words`, int64[slices, SLICE_WORDS].
    """

    def __init__(self, callbacks: Sequence[Callback], slices: PlayedSlices, within: TopicChoice, workers: int) -> None:
        """Match topics of `within`. Slices are shared by `workers`."""
        filters = Filters(within=within)
        self._tables = [Table(_VERSION, n, callbacks, 1, filters) for n in range(len(slices.topics))]
        self.table = self._tables[0]
        self._sets = [self._match_known(numbering) for numbering in slices.topics]
        words = [
            slice_words(
                numbering.at,
                self._sets[n].ctypes.data,
                slices.counters[n % workers].slice.address,
                slices.hints[n].ctypes.data,
                self._tables[n].at,
                self._tables[n].workers[0].at,
            )
            for n, numbering in enumerate(slices.topics)
        ]
        self.words = numpy.array(words, numpy.int64).reshape(-1, SLICE_WORDS)

    def _match_known(self, numbering: Numbering) -> NDArray[numpy.int32]:
        """Return the match sets of the topics that are already numbered."""
        sets = shared_array((numbering.at.capacity,), numpy.int32)  # separate pages, most of them never touched
        for number, topic in enumerate(numbering.names()):
            text = numpy.frombuffer(topic, numpy.uint8)
            sets[number] = longest_prefix(self.table.topics, text.ctypes.data, len(topic))
        return sets

    def remove(self, callback: Callback) -> None:
        """Deliver no further batch to a callback."""
        for table in self._tables:
            table.workers[0].remove(callback)
