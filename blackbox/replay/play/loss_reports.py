"""Reports of the messages that a replay lacks: to callbacks, hooks for gaps, and order books."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from blackbox.block.gap import Gap
from blackbox.errors import CallbackError
from blackbox.receive.callbacks.callbacks import Callback, CompiledCallback, callback_error
from blackbox.receive.callbacks.gap_hooks import GapHook, GapHooks, GapRules
from blackbox.replay.tables.block_table import END, BlockTable
from blackbox.replay.tables.recorded_gaps import RecordedGaps, Run


class LossReports:
    """Reports gaps and damaged blocks between the messages around them, and marks books that lack messages.

    Attributes: `gaps` of the recordings; `hooks`, the user's functions; `skipped`, slice and epoch of each epoch with
    messages that are not played.
    """

    def __init__(
        self,
        gaps: RecordedGaps,
        on_error: Callable[[CallbackError], bool],
        is_over: Callable[[], bool],
    ) -> None:
        """`on_error` gets exceptions of hooks, and returns whether to continue. No hook is called once `is_over`."""
        self.gaps = gaps
        self._on_error, self._is_over = on_error, is_over
        self.skipped: frozenset[tuple[int, int]] = frozenset()

    def set_callbacks(self, callbacks: Sequence[Callback], hooks: Sequence[GapHook]) -> None:
        """Report to these callbacks and hooks."""
        self._callbacks, self.hooks = callbacks, tuple(hooks)
        self._selected = GapHooks(callbacks, GapRules(self.hooks))
        self.books: list[Any] = [callback.function for callback in callbacks if callback.kind == "book"]

    def begin(self) -> None:
        """Mark books as lacking messages that are not played or not recorded before the first one."""
        for run in self.gaps.current_runs():
            self._note_late(run)

    def finish(self, stop_ns: int) -> None:
        """Report the gaps after the last messages before a time."""
        for gap in self.gaps.rest() if stop_ns == END else self.gaps.due_before(stop_ns):
            self.report(gap)

    def report_damage(self, table: BlockTable, number: int) -> None:
        """Report the messages of a damaged block, unless they are among the gaps already."""
        if gap := self.gaps.of_damage(table, number):
            self.report(gap)
        else:
            self._lose(int(table.rows["slice_id"][number]))

    def report(self, each: Gap | Run) -> None:
        """Report a gap to callbacks and hooks, or empty the books of a slice, because a new epoch begins."""
        if isinstance(each, Run):
            for callback in self._callbacks:
                if callback.kind == "book":
                    callback.reset(each.slice_id)
            self._note_late(each)
            return
        for callback in self._callbacks:
            if isinstance(callback, CompiledCallback):
                callback.lost_of(each.slice_id)[0] += each.count
        for hook in self._selected.told(each.key):
            if self._is_over():
                return
            try:
                hook(each)
            except BaseException as error:  # user code may raise anything, even SystemExit
                failure = callback_error(f"slice {each.slice_id}: on_gap", error)
                if not self._on_error(failure):
                    raise failure from error

    def _note_late(self, run: Run) -> None:
        """Mark books as lacking messages of a slice if messages before the first played one are missing."""
        if run in self.skipped or self.gaps.is_late(run):
            self._lose(run.slice_id)

    def _lose(self, slice_id: int) -> None:
        for books in self.books:
            books.lose_sync(slice_id)
