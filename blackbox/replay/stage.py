"""Where a replay plays in this process: a subscriber's callbacks, called without sockets."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.callbacks import Callback, CompiledCallback
from blackbox.feed import Feed
from blackbox.replay.lane import Lane
from blackbox.replay.look import Reel
from blackbox.replay.play import PART_WORDS, part_words
from blackbox.replay.scenes import Scene
from blackbox.statistics import SliceCounters, Statistics, snapshot, total
from blackbox.tables import Table
from blackbox.topics import Numbering, longest_prefix

if TYPE_CHECKING:
    from blackbox.schema import Schema

_VERSION: Final = 1
_MEAN_TOPIC_BYTES: Final = 32


def _never() -> bool:
    return False


class Stage:
    """Callbacks of a subscriber, ready to be played to. Not for several threads at once.

    Topics are numbered and states kept for each slice, as live. Callbacks get one burst (up to 32 blocks) after the
    other: in each first the compiled ones, block by block, then the others, in the order of blocks. As long as all are
    compiled, slices are played beside one another: no state is shared by two. Once one has failed, all end at the block
    that they are at.
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
        lanes = max(1, min(len(os.sched_getaffinity(0)), slices))
        counted = before._counters if before is not None else []
        self._counters: list[SliceCounters] = [*counted, *(SliceCounters(1) for _ in range(lanes - len(counted)))]
        self._on_reset = on_reset
        self._within = within
        self._fresh: Sequence[Callback] | None = None
        self._halted = numpy.zeros(1, numpy.int64)
        self._one = Lane(0, 1, self._counters[0], self._halted, schema, on_error)
        self._many = [Lane(n, lanes, self._counters[n], self._halted, schema, on_error) for n in range(lanes)]
        self._threads: ThreadPoolExecutor | None = None
        self._set_callbacks(callbacks)
        self._lanes[0].warm_up()

    @property
    def reads_ahead(self) -> bool:
        """Whether no callback is called for every message: it would wait for the interpreter most of the time."""
        return all(callback.kind != "message" for callback in self._callbacks)

    def change(self, callbacks: Sequence[Callback]) -> None:
        """Play to other callbacks from the next burst on; to one that is gone, no batch any more. Any thread may.

        As long as all are compiled, to new ones from the next call of `play` on.
        """
        for table in self._tables:
            for callback in self._callbacks:
                if callback not in callbacks:
                    table.workers[0].remove(callback)
        self._fresh = tuple(callbacks)

    @property
    def looks(self) -> bool:
        """Whether blocks are looked at when they are played: not while Python callbacks could keep a core from it."""
        return self._is_compiled

    def play(self, scene: Scene, start: int, stop: int) -> None:
        """Play blocks `[start, stop)` of a scene.

        Raises CallbackError when a callback raised and the subscriber stops at that.
        """
        reel = scene.reel(start, stop)
        at = 0
        while at < reel.count:
            if self._fresh is not None:
                callbacks, self._fresh = self._fresh, None
                self._set_callbacks(callbacks)
            if len(self._lanes) == 1:
                at = self._lanes[0].play(scene, reel, at, lambda: self._fresh is not None)
            else:
                self._play_beside(scene, reel)
                at = reel.count
            for lane in self._lanes:
                if lane.failure is not None:
                    raise lane.failure

    def _play_beside(self, scene: Scene, reel: Reel) -> None:
        """Play a whole reel, each lane in a thread; when one fails, or this thread is interrupted, all end."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(len(self._lanes), "blackbox-replay")
        ends = [self._threads.submit(lane.play, scene, reel, 0, _never) for lane in self._lanes]
        try:
            for end in ends:
                end.result()
        except BaseException:
            self._halted[0] = 1
            raise
        finally:
            wait(ends)

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
        """End the threads, and free what the last bursts hold, also after an error."""
        if self._threads is not None:
            self._threads.shutdown()
        for lane in (self._one, *self._many):
            lane.close()

    def statistics(self) -> Statistics:
        """What was played so far."""
        parts = [(counters, snapshot(-1, counters, 0, 0, has_ended=True)) for counters in self._counters]
        played = total(parts, has_ended=True)
        return Statistics(msgspec.structs.replace(played, topics=sum(map(len, self.topics))), ())

    def _set_callbacks(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = tuple(callbacks)
        upstream = frozenset((b"",))
        self._tables = [Table(_VERSION, self._callbacks, upstream, 1, n, self._within) for n in range(len(self.topics))]
        self._sets = [self._match_known(numbering) for numbering in self.topics]
        self._is_compiled = all(isinstance(callback, CompiledCallback) for callback in self._callbacks)
        self._lanes = self._many if self._is_compiled else [self._one]
        parts = numpy.array(
            [
                part_words(
                    self.topics[n].at,
                    self._sets[n].ctypes.data,
                    self._counters[n % len(self._lanes)].counts.ctypes.data,
                    self._tables[n].at,
                    self._tables[n].workers[0].at,
                )
                for n in range(len(self.topics))
            ],
            numpy.int64,
        ).reshape(-1, PART_WORDS)
        for lane in self._lanes:
            lane.set_table(self._tables[0].workers[0], self._tables[0].topics, parts)

    def _match_known(self, numbering: Numbering) -> NDArray[numpy.int32]:
        """The match sets of the topics that have numbers already."""
        sets = numpy.zeros(numbering.at.capacity, numpy.int32)
        for number, topic in enumerate(numbering.names()):
            text = numpy.frombuffer(topic, numpy.uint8)
            sets[number] = longest_prefix(self._tables[0].topics, text.ctypes.data, len(topic))
        return sets
