"""Where a replay plays in this process: a subscriber's callbacks, called in the caller's thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy
from numpy.typing import NDArray

from blackbox import collect
from blackbox.bursts import Bursts
from blackbox.callbacks import Callback, CompiledCallback
from blackbox.errors import CallbackError
from blackbox.feed import Feed
from blackbox.replay.play import DELIVER, GROW, NO_MEMORY, PART_WORDS, Reel, part_words, play
from blackbox.statistics import SliceCounters, Statistics, snapshot
from blackbox.tables import Table
from blackbox.topics import Numbering, longest_prefix
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
        on_reset: Sequence[Callable[[], object]] = (),
        within: bytes = b"",
        before: Stage | None = None,
    ) -> None:
        """For a recording of `slices` slices; only topics that start with `within` are played.

        Topic numbers and counters go on from those of a stage `before`.
        """
        known = before.topics if before is not None else []
        self.topics: list[Numbering] = [
            *known,
            *(Numbering(feed.max_topics, _MEAN_TOPIC_BYTES) for _ in range(slices - len(known))),
        ]
        self._counters: SliceCounters = before._counters if before is not None else SliceCounters(1)
        self._words = numpy.zeros(1, numpy.int64)
        self._on_error = on_error
        self._on_reset = on_reset
        self._within = within
        self._failure: CallbackError | None = None
        self._bursts = Bursts(schema, self._counters.workers[0], self._raised, lambda: False)
        self._fresh: Sequence[Callback] | None = None
        self._set_callbacks(callbacks)
        warm_up(play, self._at, 0, self._tables[0].topics, Reel(0, 0, 0, 0, 0, 0), 0)

    @property
    def reads_ahead(self) -> bool:
        """Whether no callback is called for every message: it would wait for the interpreter most of the time."""
        return all(callback.kind != "message" for callback in self._callbacks)

    def change(self, callbacks: Sequence[Callback]) -> None:
        """Play to other callbacks from the next burst on; to one that is gone, no batch any more. Any thread may."""
        for table in self._tables:
            for callback in self._callbacks:
                if callback not in callbacks:
                    table.workers[0].remove(callback)
        self._fresh = tuple(callbacks)

    def play(self, alive: object, reel: Reel, _first: int) -> None:
        """Play a reel, whose addresses lie in `alive`.

        Raises CallbackError when a callback raised and the subscriber stops at that.
        """
        bursts = self._bursts
        bursts.burst.alive = alive
        at = 0
        while at < reel.count:
            if self._fresh is not None:
                callbacks, self._fresh = self._fresh, None
                bursts.close()
                self._set_callbacks(callbacks)
            at, reason = play(self._at, self._parts.ctypes.data, self._tables[0].topics, reel, at)
            if bursts.state[collect.RAISED]:
                bursts.compiled_raised()
            if reason == DELIVER and not bursts.is_over():
                bursts.deliver()
            elif reason == GROW:
                bursts.grow()
                self._renew()
            elif reason == NO_MEMORY:
                raise MemoryError("there was no memory for a block's rows")
            if self._failure is not None:
                raise self._failure
        bursts.close()
        bursts.burst.alive = None

    def jump(self, *, is_back: bool) -> None:
        """Back in time, give compiled callbacks the states that they began with, and tell the subscriber's hooks."""
        if is_back:
            self._reset()

    def _reset(self) -> None:
        for callback in self._callbacks:
            if isinstance(callback, CompiledCallback):
                callback.reset()
        for hook in self._on_reset:
            hook()

    def close(self) -> None:
        """Free what the last burst holds, also after an error."""
        self._bursts.close()
        self._bursts.burst.alive = None

    def statistics(self) -> Statistics:
        """What was played so far."""
        numbers = sum(len(numbering) for numbering in self.topics)
        return Statistics(snapshot(-1, self._counters, 0, numbers, has_ended=True), ())

    def _set_callbacks(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = tuple(callbacks)
        slices = len(self.topics)
        upstream = frozenset((b"",))
        self._tables = [Table(_VERSION, self._callbacks, upstream, 1, n, self._within) for n in range(slices)]
        self._sets = [self._match_known(numbering) for numbering in self.topics]
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

    def _match_known(self, numbering: Numbering) -> NDArray[numpy.int32]:
        """The match sets of the topics that have numbers already."""
        sets = numpy.zeros(numbering.at.capacity, numpy.int32)
        for number, topic in enumerate(numbering.names()):
            text = numpy.frombuffer(topic, numpy.uint8)
            sets[number] = longest_prefix(self._tables[0].topics, text.ctypes.data, len(topic))
        return sets

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
