"""Where a replay plays in this process: a subscriber's callbacks, called in the caller's thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy

from blackbox import collect
from blackbox.bursts import Bursts
from blackbox.callbacks import Callback, CompiledCallback
from blackbox.counters import Count
from blackbox.errors import CallbackError
from blackbox.feed import Feed
from blackbox.replay.play import DAMAGED, DELIVER, GROW, PART_WORDS, Reel, part_words, play
from blackbox.statistics import SliceCounters, Statistics, snapshot
from blackbox.tables import Table
from blackbox.topics import Numbering
from blackbox.warmup import warm_up

if TYPE_CHECKING:
    from blackbox.schema import Schema

log = logging.getLogger("blackbox")

_VERSION: Final = 1
_MEAN_TOPIC_BYTES: Final = 32


class Stage:
    """Callbacks of a subscriber, ready to be played to. Not for several threads at once.

    Topics are numbered and states kept for each slice, as live. Callbacks get one burst (up to 32 blocks) after the
    other: in each first the compiled ones, block by block, then the others, in the order of blocks.
    """

    def __init__(
        self,
        feed: Feed,
        slices: int,
        callbacks: Sequence[Callback],
        schema: Schema,
        on_error: str,
        within: bytes = b"",
    ) -> None:
        """For a recording of `slices` slices; only topics that start with `within` are played."""
        self.topics = [Numbering(feed.max_topics, _MEAN_TOPIC_BYTES) for _ in range(slices)]
        self._callbacks = tuple(callbacks)
        self._counters = SliceCounters(1)
        self._words = numpy.zeros(1, numpy.int64)
        self._on_error = on_error
        self._failure: CallbackError | None = None
        self._bursts = Bursts(schema, self._counters.workers[0], self._raised, lambda: False)
        self._tables = [Table(_VERSION, self._callbacks, frozenset((b"",)), 1, n, within) for n in range(slices)]
        self._sets = [numpy.zeros(feed.max_topics, numpy.int32) for _ in range(slices)]
        self._parts = numpy.array(
            [
                part_words(
                    self.topics[n].at,
                    self._sets[n].ctypes.data,
                    self._counters.counts.ctypes.data,
                    self._tables[n].at,
                    self._tables[n].workers[0].at,
                )
                for n in range(slices)
            ],
            numpy.int64,
        ).reshape(slices, PART_WORDS)
        self._renew()
        warm_up(play, self._at, 0, self._tables[0].topics, Reel(0, 0, 0, 0, 0, 0, 0), 0)

    def play(self, reel: Reel, alive: object, on_damage: Callable[[int], object]) -> None:
        """Play a reel. `alive` is what its addresses lie in; `on_damage` is told of the rows that were passed over.

        Raises CallbackError when a callback raised and the subscriber stops at that.
        """
        bursts = self._bursts
        bursts.burst.alive = alive
        at = 0
        while at < reel.count:
            at, reason = play(self._at, self._parts.ctypes.data, self._tables[0].topics, reel, at)
            if bursts.state[collect.RAISED]:
                bursts.compiled_raised()
            if reason == DELIVER and not bursts.is_over():
                bursts.deliver()
            elif reason == GROW:
                bursts.grow()
                self._renew()
            elif reason == DAMAGED:
                on_damage(at - 1)
            if self._failure is not None:
                raise self._failure
        bursts.close()
        bursts.burst.alive = None

    def reset(self) -> None:
        """Give compiled callbacks the states that they began with."""
        for callback in self._callbacks:
            if isinstance(callback, CompiledCallback):
                callback.reset()

    def close(self) -> None:
        """Free what the last burst holds, also after an error."""
        self._bursts.close()
        self._bursts.burst.alive = None

    def statistics(self) -> Statistics:
        """What was played so far."""
        numbers = sum(len(numbering) for numbering in self.topics)
        return Statistics(snapshot(-1, self._counters, 0, numbers, has_ended=True), ())

    def count(self, what: Count, messages: int) -> None:
        """Add to a counter."""
        self._counters.counts[what] += messages

    def _renew(self) -> None:
        table = self._tables[0].workers[0]
        self._at: Any = self._bursts.addresses(table, 0, self._words, self._counters.lags[0], self._counters.counts)

    def _raised(self, failure: CallbackError) -> bool:
        if isinstance(failure.__cause__, KeyboardInterrupt):
            raise failure.__cause__
        if self._on_error == "log":
            log.error("%s", failure, exc_info=failure.__cause__ or failure)
            return True
        self._failure = failure
        return False
