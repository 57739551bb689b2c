"""Delivery to the callbacks of one worker of a slice, and what it does between blocks: epochs, gaps, timers."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy

from blackbox.arguments import name_of
from blackbox.block.batch.received_block import BatchFeed
from blackbox.block.gap import Gap
from blackbox.block.position import is_restart
from blackbox.errors import CallbackError, SubscriberError
from blackbox.receive.callbacks.call_python import Delivery
from blackbox.receive.callbacks.callbacks import IN_SLICE, callback_error
from blackbox.receive.callbacks.match_table import WorkerTable
from blackbox.receive.callbacks.slice_hooks import SliceHookCaller
from blackbox.receive.callbacks.timers import Timers
from blackbox.receive.deliver.worker_state import GAP_NOTICE_BYTES, GapNotice, WorkerAt
from blackbox.receive.state import SliceState
from blackbox.receive.statistics import Counters


class CallbackHost(NamedTuple):
    """The slice whose callbacks run, in workers or in its own thread."""

    slice_id: int
    feed: BatchFeed
    state: SliceState
    counters: Counters
    hook_caller: SliceHookCaller
    on_error: Callable[[CallbackError], bool]
    """It gets exceptions of callbacks and returns whether to continue; if not, the slice ends."""
    report: Callable[[SubscriberError], None]
    """It gets the error that ended a worker."""
    image_epoch: int
    """Epoch of the image with which the slice begins; 0: none."""


class LiveDelivery:
    """Runs the callbacks of one worker of a slice, or of the slice thread, in the calling thread.

    Attributes: `delivery` of batches; `timers`.
    """

    def __init__(self, host: CallbackHost, number: int, table: WorkerTable) -> None:
        """`number`: the worker's, or IN_SLICE."""
        self._host, self._number = host, number
        self._counters = host.counters.workers[number]
        self.delivery = Delivery([host.feed], host.state, host.counters, number, host.on_error)
        self.timers = Timers(table.timers, host.on_error)

    def set_table(self, table: WorkerTable, dealer: int) -> WorkerAt:
        """Call the callbacks of a table. Return the addresses for compiled code."""
        self._gap_hooks = table.gap_hooks
        return self.delivery.set_table(table, dealer)

    def deliver_traced(self) -> None:
        """Note that the callbacks of a traced block begin, and call them."""
        self._host.counters.traces.workers[self._number].end_trace(time.time_ns())
        self.delivery.deliver()

    def enter_epoch(self) -> None:
        """Continue with another epoch; callbacks are reset. The first one is that of the image, if any."""
        state, epoch = self.delivery.state, int(self.delivery.state.next_epoch)
        if state.epoch == 0 and self._host.image_epoch != 0:
            self._enter(self._host.image_epoch, is_first=True)
        if epoch > state.epoch or (epoch < state.epoch and state.notice == 0):  # a loss may be of an earlier one
            self._enter(epoch)

    def _enter(self, epoch: int, *, is_first: bool = False) -> None:
        delivery, (slice_id, *_) = self.delivery, self._host
        before, enter = int(delivery.state.epoch), self._host.hook_caller.enter
        self._begin_to_wait()
        enter(self._number, epoch, delivery.is_over, self._note_busy, self._hook_raised, is_first=is_first)
        self._counters.busy_since_ns = 0
        if delivery.is_over():
            return
        for callback in self._gap_hooks.callbacks if before else ():
            callback.reset(slice_id)
            if is_restart(before, epoch):
                callback.restart(slice_id)
        delivery.state.epoch = epoch

    def take_notice(self) -> None:
        """Call the hooks of a notice: a gap, or the switch to live."""
        self._begin_to_wait()
        state = self.delivery.state
        notice = GapNotice(numpy.frombuffer(ctypes.string_at(state.notice, GAP_NOTICE_BYTES), GapNotice.dtype))
        if notice.count == 0:
            self._go_live(notice.sequence)
        else:
            key = ctypes.string_at(state.notice + GAP_NOTICE_BYTES, notice.key_bytes)
            at_most = bool(notice.is_upper_bound)
            self._report_gap(
                Gap(self._host.slice_id, notice.epoch, key, notice.sequence, notice.count, notice.ts_out, at_most)
            )
        self._counters.busy_since_ns = 0
        state.notice = 0

    def _go_live(self, turn: int) -> None:
        self._host.hook_caller.go_live(self._number, turn, self.delivery.is_over, self._note_busy, self._hook_raised)

    def _begin_to_wait(self) -> None:
        """Count the slice thread as busy: while it waits for workers, nothing else sees that one of them hangs."""
        if self._number == IN_SLICE:
            self._note_busy()

    def _note_busy(self) -> None:
        self._counters.busy_since_ns = time.monotonic_ns()

    def _hook_raised(self, failure: CallbackError) -> bool:
        self._counters.errors += 1
        return self.delivery.report(failure)

    def _report_gap(self, gap: Gap) -> None:
        for function in self._gap_hooks.told(gap.key):
            if self.delivery.is_over():
                break
            self._note_busy()
            try:
                function(gap)
            except BaseException as error:  # noqa: BLE001
                who = f"{name_of(function)}, called for a gap,"
                self._hook_raised(callback_error(who, error, str(gap)))

    def begin_timers(self) -> None:
        """Start timers."""
        self.timers.begin(time.time_ns())
        self._note_tick()

    def call_timers(self) -> None:
        """Call due timers once each; of several missed times, only for the last."""
        now_ns = time.time_ns()
        self.timers.skip_to(now_ns)
        self._note_busy()
        if not self.timers.advance(now_ns, self.delivery.is_over):
            self.delivery.quit = True
        self._counters.busy_since_ns = 0
        self._note_tick()

    def _note_tick(self) -> None:
        state = self.delivery.state
        state.tick_ns, state.tick_within_ns = self.timers.next_ns, self.timers.least_ns
