"""Callbacks that run in the slice thread: compiled ones, and all if there are no workers. Their Python side."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from blackbox.block.batch.received_block import BatchFeed
from blackbox.errors import CallbackError, SubscriberError
from blackbox.receive.callbacks.call_python import Delivery
from blackbox.receive.callbacks.callback_turns import warm_up_python_callbacks
from blackbox.receive.callbacks.callbacks import IN_SLICE
from blackbox.receive.callbacks.match_table import Table
from blackbox.receive.callbacks.slice_hooks import SliceHookCaller
from blackbox.receive.callbacks.timers import Timers
from blackbox.receive.deliver.worker_loop import DELIVER, EPOCH, FEW, GAP, GROW, TICK
from blackbox.receive.deliver.worker_state import WorkerAt
from blackbox.receive.state import SliceState, Stopping

if TYPE_CHECKING:
    from blackbox.receive.statistics import Counters

_ASK: Final = ctypes.CFUNCTYPE(None, ctypes.c_int64)


class SliceCallbacks:
    """Delivers to the callbacks of the slice thread. Compiled code calls `ask` for everything that needs Python.

    `ask`: address of that C function. `on_error` gets exceptions of callbacks and returns whether to continue; if not,
    the slice ends.
    """

    def __init__(
        self,
        slice_id: int,
        feed: BatchFeed,
        slice_state: SliceState,
        counters: Counters,
        table: Table,
        on_error: Callable[[CallbackError], bool],
        report: Callable[[SubscriberError], None],
        hook_caller: SliceHookCaller,
    ) -> None:
        self._slice_id, self._slice_state, self._counters = slice_id, slice_state, counters
        self._report, self._hook_caller = report, hook_caller
        self._own_counters = counters.workers[IN_SLICE]
        self._delivery = Delivery([feed], self._own_counters, on_error, self._is_terminated)
        self._timers = Timers(table.workers[IN_SLICE].timers, on_error)
        self._function = _ASK(self._answer)
        self.ask = ctypes.cast(self._function, ctypes.c_void_p).value or 0

    def addresses(self, table: Table) -> WorkerAt:
        """Return the addresses for compiled code, with scratch for a table's callbacks."""
        counters = self._counters
        return self._delivery.addresses(
            table.workers[IN_SLICE],
            0,
            self._slice_state,
            counters.slice,
            counters.lags[IN_SLICE],
            counters.ages[IN_SLICE],
        )

    def begin(self) -> None:
        """Start: compile everything and start timers."""
        warm_up_python_callbacks()
        self._delivery.begin_timers(self._timers)

    def close(self) -> None:
        """Remove references to the slice thread; no compiled code may call afterwards."""
        del self._function, self._delivery, self._timers, self._report, self._hook_caller

    def _answer(self, reason: int) -> None:
        delivery = self._delivery
        try:
            if reason == FEW:
                delivery.deliver_few()
            elif reason == GROW:
                delivery.grow()
            elif reason == EPOCH:
                self._enter_epoch()
            elif reason == GAP:
                self._own_counters.busy_since_ns = time.monotonic_ns()
                delivery.take_notice(IN_SLICE, self._slice_id, self._hook_caller)
            elif reason == TICK:
                delivery.call_timers(self._timers)
            else:
                if delivery.state.raised:
                    delivery.compiled_raised()
                if reason == DELIVER:
                    delivery.deliver()
        except BaseException as error:  # noqa: BLE001 - nothing can be raised through compiled code
            failure = SubscriberError(f"slice {self._slice_id}: its callbacks failed: {error}")
            failure.__cause__ = error
            self._report(failure)
            delivery.quit = True
        if delivery.quit:
            self._slice_state.stopping = Stopping.TERMINATE

    def _enter_epoch(self) -> None:
        self._own_counters.busy_since_ns = time.monotonic_ns()  # a hook may hang, or a worker that it waits for
        self._delivery.enter_epoch(IN_SLICE, self._slice_id, self._hook_caller)
        self._own_counters.busy_since_ns = 0

    def _is_terminated(self) -> bool:
        return self._slice_state.stopping == Stopping.TERMINATE
