"""A worker of a replay in this process: it plays blocks and calls Python callbacks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, get_args

import numpy
from numpy.typing import NDArray

from blackbox.block.batch.received_block import BatchFeed
from blackbox.errors import CallbackError
from blackbox.native.compile.jit import warm_up
from blackbox.native.tables.prefix_trie import Trie
from blackbox.receive.callbacks.call_python import Delivery
from blackbox.receive.callbacks.callback_turns import warm_up_turns
from blackbox.receive.callbacks.callbacks import Kind
from blackbox.receive.callbacks.match_table import WorkerTable
from blackbox.receive.state import SliceState, Stopping
from blackbox.receive.statistics import Counters
from blackbox.replay.play.player_loop import PlayerReason, play
from blackbox.replay.tables.measure_blocks import NO_BLOCKS, BlockTableAt

log = logging.getLogger("blackbox")

_DELIVER: Final = int(PlayerReason.DELIVER)
"""Once per burst; a look-up in an enum takes six times as long."""
_ALL_KINDS: Final[frozenset[Kind]] = frozenset(get_args(Kind))


class ReplayWorker:
    """Plays the blocks of every slice that is `number` modulo `workers`, in order. Not thread-safe.

    `failure`: error of a callback, if the subscriber stops at errors.
    """

    def __init__(
        self,
        number: int,
        workers: int,
        counters: Counters,
        slice_state: SliceState,
        feeds: Sequence[BatchFeed],
        on_error: str,
        slices: int,
    ) -> None:
        """TERMINATE in `slice_state` ends all workers before their next block. `feeds`: see `Delivery`."""
        self.failure: CallbackError | None = None
        self._share = (number, workers)
        self._on_error = on_error
        self._slice_state = slice_state
        self._delivery = Delivery(feeds, slice_state, counters, 0, self.raised, _ALL_KINDS, slices)

    def set_table(self, table: WorkerTable, trie: Trie, slices: NDArray[numpy.int64]) -> None:
        """Play to these callbacks; `slices` are int64[slices, SLICE_WORDS]."""
        self.close()
        self._trie, self._slices = trie, slices
        kinds = {callback.kind for callback in table.callbacks if not callback.independent}
        self._in_turn = "compiled" in kinds and len(kinds) > 1
        self._at: Any = self._delivery.set_table(table, 0)

    def warm_up(self) -> None:
        """Compile its code, before a replay starts."""
        warm_up(play, self._at, 0, 0, self._trie, NO_BLOCKS, 0, 0, 0, False)
        warm_up_turns()

    def play(self, alive: object, blocks: BlockTableAt, start: int, is_changed: Callable[[], bool]) -> int:
        """Play blocks from `start` on. Return where it stopped, which is before the end after a change.

        `alive` keeps the blocks' memory. Raises MemoryError.
        """
        delivery, memory = self._delivery, self._delivery.memory
        memory.burst.alive = alive
        at = start
        while at < blocks.count and not self._slice_state.stopping and not is_changed():
            slices = self._slices.ctypes.data, len(self._slices)
            at, reason = play(self._at, *slices, self._trie, blocks, at, *self._share, self._in_turn)
            if delivery.state.raised:
                delivery.compiled_raised()
            if reason == _DELIVER and not delivery.is_over():
                delivery.deliver()
            elif reason == PlayerReason.GROW:
                memory.grow()
            elif reason == PlayerReason.NO_MEMORY:
                raise MemoryError("there was no memory for a block's rows")
        self.close()
        return at

    def close(self) -> None:
        """Free the last burst. Also used after an error."""
        self._delivery.memory.close()
        self._delivery.memory.burst.alive = None

    def raised(self, failure: CallbackError) -> bool:
        """Store a callback's error. Return False to stop."""
        if isinstance(failure.__cause__, KeyboardInterrupt):
            raise failure.__cause__
        if self._on_error == "log":
            log.error("%s", failure, exc_info=failure.__cause__ or failure)
            return True
        self.failure = failure
        self._slice_state.stopping = Stopping.TERMINATE
        return False
