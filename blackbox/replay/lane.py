"""One thread of a replay in this process: a burst, and what plays blocks into it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy
from numpy.typing import NDArray

from blackbox import collect
from blackbox.bursts import Bursts
from blackbox.errors import CallbackError
from blackbox.replay.look import EMPTY, Reel
from blackbox.replay.play import DELIVER, GROW, NO_MEMORY, play
from blackbox.statistics import SliceCounters
from blackbox.tables import WorkerTable
from blackbox.topics import Trie
from blackbox.warmup import warm_up

if TYPE_CHECKING:
    from blackbox.schema import Schema

log = logging.getLogger("blackbox")


class Lane:
    """Plays the blocks of every slice that is `number` modulo `lanes`, in their order. For one thread at a time.

    `failure` is what a callback raised, once it did and the subscriber stops at that.
    """

    def __init__(
        self,
        number: int,
        lanes: int,
        counters: SliceCounters,
        halted: NDArray[numpy.int64],
        schema: Schema,
        on_error: str,
    ) -> None:
        """`halted`, int64[1], is 1 once all lanes are to end at the block at hand."""
        self.failure: CallbackError | None = None
        self._share = (number, lanes)
        self._counters = counters
        self._on_error = on_error
        self._halted = halted
        self._bursts = Bursts(schema, counters.workers[0], self._raised, lambda: False)

    def set_table(self, table: WorkerTable, trie: Trie, parts: NDArray[numpy.int64]) -> None:
        """Play to these callbacks; `parts` are int64[slices, PART_WORDS]."""
        self.close()
        self._table, self._trie, self._parts = table, trie, parts
        self._renew()

    def warm_up(self) -> None:
        """Compile what it runs, before there is something to play."""
        warm_up(play, self._at, 0, self._trie, EMPTY, 0, 0, 0)

    def play(self, alive: object, reel: Reel, start: int, is_changed: Callable[[], bool]) -> int:
        """Play a reel, whose addresses lie in `alive`, from a block on; returns where it ended, after a change early.

        Raises MemoryError.
        """
        bursts = self._bursts
        bursts.burst.alive = alive
        at = start
        while at < reel.count and not self._halted[0] and not is_changed():
            at, reason = play(self._at, self._parts.ctypes.data, self._trie, reel, at, *self._share)
            if bursts.state[collect.RAISED]:
                bursts.compiled_raised()
            if reason == DELIVER and not bursts.is_over():
                bursts.deliver()
            elif reason == GROW:
                bursts.grow()
                self._renew()
            elif reason == NO_MEMORY:
                raise MemoryError("there was no memory for a block's rows")
        self.close()
        return at

    def close(self) -> None:
        """Free what the last burst holds, also after an error."""
        self._bursts.close()
        self._bursts.burst.alive = None

    def _renew(self) -> None:
        counters = self._counters
        self._at: Any = self._bursts.addresses(self._table, 0, self._halted, counters.lags[0], counters.counts)

    def _raised(self, failure: CallbackError) -> bool:
        if isinstance(failure.__cause__, KeyboardInterrupt):
            raise failure.__cause__
        if self._on_error == "log":
            log.error("%s", failure, exc_info=failure.__cause__ or failure)
            return True
        self.failure = failure
        self._halted[0] = 1
        return False
