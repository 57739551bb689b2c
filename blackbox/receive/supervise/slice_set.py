"""The slices of a subscriber: started when the plan needs them, each in a thread or in its own process."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Final

from blackbox.block.position import Position
from blackbox.errors import SilentPublisherError, SubscriberError
from blackbox.native.compile.compiling import is_compiling
from blackbox.native.system.limits import Needs, check_limits
from blackbox.receive.callbacks.callbacks import IN_SLICE, Callback
from blackbox.receive.callbacks.match_table import Table
from blackbox.receive.slices.options import SliceSettings
from blackbox.receive.slices.slice_status import Kept
from blackbox.receive.slices.slice_thread import SliceThread, needs_of
from blackbox.receive.slow_subscriber import end_process
from blackbox.receive.state import SliceLife, Stopping
from blackbox.receive.statistics import Counted, Counters, Statistics, statistics_of
from blackbox.receive.supervise.processes import PROCESS_NEEDS, SliceProcess
from blackbox.receive.supervise.slice_plan import Plan
from blackbox.receive.trace.hops import Trace, TraceReader
from blackbox.transport.wakeup import PIPE_NEEDS

log = logging.getLogger("blackbox")

_UNNEEDED_S: Final = 1.0
"""Seconds without callbacks before a slice is released: one callback may be about to replace another."""


class ReleasedSlices:
    """Ends slices, and keeps their counters and topic numbers. Used with the supervisor's lock held.

    `leaving`: slices that have not ended yet. Both dicts are replaced at each change, so others may read them at any
    time.
    """

    def __init__(self) -> None:
        self.leaving: dict[int, SliceThread] = {}
        self.kept: dict[int, Kept] = {}
        self._unneeded_since: dict[int, float] = {}

    def unneeded(self, slices: Mapping[int, SliceThread]) -> list[int]:
        """Return the running slices without callbacks for long enough. Call it periodically."""
        now = time.monotonic()
        idle = [slice_id for slice_id, thread in slices.items() if not thread.is_needed]
        self._unneeded_since = {slice_id: self._unneeded_since.get(slice_id, now) for slice_id in idle}
        return [slice_id for slice_id, since in self._unneeded_since.items() if now - since >= _UNNEEDED_S]

    def release(self, slice_id: int, thread: SliceThread) -> None:
        """Terminate a slice: messages on their way are not delivered."""
        self.kept = {**self.kept, slice_id: Kept(thread.status.counters, thread.status.topics, thread.status.transport)}
        self.leaving = {**self.leaving, slice_id: thread}
        thread.ask_to_terminate()

    def keep_ended(self) -> bool:
        """Remove slices that have ended; return True if there were any."""
        ended = {slice_id for slice_id, thread in self.leaving.items() if thread.release(0.0)}
        for slice_id in ended:
            self.kept[slice_id].counters.settle()
        self.leaving = {slice_id: thread for slice_id, thread in self.leaving.items() if slice_id not in ended}
        return bool(ended)


class SliceSet:
    """Starts, changes and ends the slices of a subscriber.

    Changed with the supervisor's lock held. `running` is replaced at each change, so that other threads may iterate
    over it.
    """

    def __init__(self, settings: SliceSettings, plan: Plan, *, uses_processes: bool) -> None:
        """`plan` returns the needed slices."""
        self.settings, self.uses_processes = settings, uses_processes
        self._plan = plan
        self.version = 0
        """Version of the last plan."""
        self.running: dict[int, SliceThread] = {}
        self.processes: dict[int, SliceProcess] = {}
        self.released = ReleasedSlices()
        self.returning: frozenset[int] = frozenset()
        """Released slices needed again, which start once they have ended."""
        self._ends_at_once: bool | None = None
        """How it was asked to end, if it was: at once or not."""
        self._terminated_at = 0.0
        self._have_ended = False

    def renew(self, prepare: Callable[[], None]) -> None:
        """Apply the current plan, and start newly needed slices. `prepare` is called first in a new process."""
        self.version += 1
        plan = self._plan(self.version, self.running)
        self._check_limits(plan.keys() - self.running.keys())
        self._check_joining(plan)
        returning = frozenset(plan.keys() & self.released.leaving.keys())
        for slice_id, table in plan.items():
            if slice_id in self.running:
                self.running[slice_id].set_table(table)
            elif slice_id not in returning:
                self._start(slice_id, table, prepare)
        self.returning = returning  # last: a returning slice is unconfirmed until it has started

    def _check_limits(self, starting: set[int]) -> None:
        """Raise LimitError unless these slices can be started.

        A process inherits this one's resources, and opens one slice.
        """
        feed = self.settings.feed
        needs: list[Sequence[Needs]] = [needs_of(feed.slices[slice_id], self.settings.options) for slice_id in starting]
        if self.uses_processes:
            threads = [[Needs(threads=need.threads) for need in of_slice] for of_slice in needs]
            needs = [*needs[:1], *threads, *[(PIPE_NEEDS, PROCESS_NEEDS)] * len(needs)]
        if needs:
            check_limits(f"subscriber of feed {feed.name!r}", Needs(threads=1), *chain(*needs))

    def _check_joining(self, plan: Mapping[int, Table]) -> None:
        """Raise SubscriberError if a slice that catches up would get new keys, which archives have skipped."""
        for slice_id, thread in self.running.items():
            if thread.status.is_catching_up and not thread.tables.covers(plan[slice_id].upstream):
                raise SubscriberError(
                    f"a callback for other keys was added while slice {slice_id} catches up: add it before start or "
                    f"after wait_live"
                )

    def _start(self, slice_id: int, table: Table, prepare: Callable[[], None]) -> None:
        thread = SliceThread(self.settings, slice_id, table, self.released.kept.get(slice_id))
        before = self.running, self.processes
        self.running = {**self.running, slice_id: thread}
        if self.uses_processes:
            self.processes = {**self.processes, slice_id: SliceProcess(thread, prepare)}
        try:
            self.runner(slice_id).start()
        except BaseException:
            self.running, self.processes = before
            raise
        if self._ends_at_once is not None:  # the handler of a signal asked while this slice was made
            self._ask(thread, self._ends_at_once)

    def runner(self, slice_id: int) -> SliceProcess | SliceThread:
        """Return the process of a slice, or its thread in this process."""
        return self.processes.get(slice_id, self.running[slice_id])

    def remove(self, callback: Callback) -> None:
        """Deliver no further batch to a callback, also of blocks matched before."""
        for thread in self.running.values():
            thread.tables.remove(callback)

    def release_unneeded(self, *, keeps_last: bool) -> None:
        """Release slices without callbacks."""
        unneeded = self.released.unneeded(self.running)
        if keeps_last and len(unneeded) == len(self.running):
            unneeded = unneeded[1:]
        for slice_id in unneeded:
            self.released.release(slice_id, self.running[slice_id])
            self.running = {n: thread for n, thread in self.running.items() if n != slice_id}

    # End

    def ask_to_end(self, *, at_once: bool) -> None:
        """Deliver received messages, unless `at_once`, then end."""
        self._ends_at_once = at_once or bool(self._ends_at_once)
        for thread in self.running.values():
            self._ask(thread, at_once)

    @staticmethod
    def _ask(thread: SliceThread, at_once: bool) -> None:
        thread.ask_to_terminate() if at_once else thread.ask_to_stop()

    def is_late(self, grace_s: float) -> bool:
        """Return True if the grace time after the termination of all slices is over: a callback hangs."""
        if not all(thread.status.state.stopping == Stopping.TERMINATE for thread in self.running.values()):
            return False
        self._terminated_at = self._terminated_at or time.monotonic()
        return time.monotonic() > self._terminated_at + grace_s

    def close(self, timeout: float, *, exits: bool) -> list[str]:
        """Wait for the end of the slices; return a text for each callback that did not return, which is logged.

        `exits`: end the process if a callback hangs in a slice thread, which can then not do it.
        """
        hung = []
        for slice_id, thread in self.running.items():
            if self.runner(slice_id).release(timeout):
                continue
            if not thread.status.is_ready:
                log.info("slice %d: it is compiling, and ends after that", slice_id)
                continue
            if slice_id in self.processes:
                text = "a callback did not return, its process was killed"
            else:
                if exits and thread.status.counters.busy_ns(IN_SLICE):
                    end_process()
                running = "; ".join(thread.running_callbacks()) or "a callback has not returned"
                text = f"{running} and was left behind in its thread"
            log.error("slice %d: %s", slice_id, text)
            hung.append(text)
        for slice_id, thread in self.released.leaving.items():
            if not thread.release(timeout):
                log.error("slice %d: a hook hangs; its thread is left behind", slice_id)
        self._have_ended = True
        return hung

    @property
    def is_done(self) -> bool:
        """True if all threads and processes have ended."""
        running = [self.runner(slice_id) for slice_id in self.running]
        return all(each.is_done for each in (*running, *self.released.leaving.values()))

    # Queries

    @property
    def is_compiling(self) -> bool:
        """True if a slice is still compiling and not connected: it ends after that."""
        return is_compiling() and any(each.status.life is SliceLife.OPENING for each in self.running.values())

    def has_current_thread(self) -> bool:
        """Return True if the caller is a callback or hook."""
        slices = (*self.running.values(), *self.released.leaving.values())
        return any(threading.current_thread() in thread.threads for thread in slices)

    def have_finished(self, leave_out: Collection[int]) -> bool:
        """Return True if all publishers have ended and all messages were passed on, except in some slices."""
        slices = [thread for slice_id, thread in self.running.items() if slice_id not in leave_out]
        return bool(slices) and all(thread.status.is_finished for thread in slices)

    def check_silence(self, silence_timeout: float, leave_out: Collection[int]) -> None:
        """Raise SilentPublisherError if a slice that has not ended received nothing for `silence_timeout` seconds."""
        for slice_id, thread in self.running.items():
            if slice_id not in leave_out and thread.status.silence_s() > silence_timeout:
                endpoints = " or ".join(thread.status.lines)
                raise SilentPublisherError(
                    f"feed {self.settings.feed.name!r} slice {slice_id}: nothing came from the publisher at "
                    f"{endpoints} for {silence_timeout} s, and it has not reported its end"
                )

    def first_positions(self) -> dict[int, Position]:
        """Return by slice the position when its start was confirmed, of slices that began live."""
        found = {slice_id: thread.status.first_position for slice_id, thread in self.running.items()}
        return {slice_id: position for slice_id, position in found.items() if position is not None}

    def counters(self) -> dict[int, Counters]:
        """Return the counters of each slice, also of released ones, in ascending order."""
        counters = {slice_id: each.counters for slice_id, each in self.released.kept.items()}
        counters |= {slice_id: thread.status.counters for slice_id, thread in self.running.items()}
        return dict(sorted(counters.items()))

    def traces(self, reader: TraceReader) -> list[Trace]:
        """Return the traces that a reader has not read."""
        rings = {slice_id: each.traces for slice_id, each in self.counters().items()}
        return reader.read(rings, have_ended=self._have_ended)

    def statistics(self) -> Statistics:
        """Return a snapshot of all counters; exact once they have ended."""
        kept = {
            slice_id: Counted(slice_id, each.counters, 0, len(each.topics), each.transport)
            for slice_id, each in self.released.kept.items()
        }
        counted = {
            slice_id: Counted(
                slice_id,
                status.counters,
                status.state.subscriptions,
                len(status.topics),
                status.transport,
                status.is_catching_up,
            )
            for slice_id, status in ((n, thread.status) for n, thread in self.running.items())
        }
        return statistics_of(sorted({**kept, **counted}.values(), key=itemgetter(0)), self._have_ended)

    def topics(self, slice_id: int) -> list[bytes]:
        """Return the topics seen in one slice, by number."""
        thread = self.running.get(slice_id)
        known = self.released.kept.get(slice_id) if thread is None else thread.status
        return [] if known is None else known.topics.names()
