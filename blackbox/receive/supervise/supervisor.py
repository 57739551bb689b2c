"""Supervise the slices of a subscriber: start them, report errors, send alerts when they are slow, end them."""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING

from blackbox.block.batch.block_handler import NO_HANDLER, BlockHandlerAt
from blackbox.block.gap import Gap
from blackbox.block.position import Position
from blackbox.errors import BlackBoxError, GapError, SilentPublisherError, SlowSubscriberError, SubscriberError
from blackbox.feed.feed import Feed
from blackbox.feed.schema.schema import load_schema
from blackbox.life import Life
from blackbox.native.compile.compiling import is_compiling
from blackbox.native.system.limits import Needs, check_limits, start_thread
from blackbox.native.system.waits import acquire
from blackbox.receive.callbacks.callbacks import Callback
from blackbox.receive.callbacks.checkpoint import Checkpoint
from blackbox.receive.callbacks.match_table import Table
from blackbox.receive.slices.catching_up import Archives, Since
from blackbox.receive.slices.confirmation import WaitReport, check_lines
from blackbox.receive.slices.log_warnings import LogWarnings
from blackbox.receive.slices.options import Options, needs_of
from blackbox.receive.slices.refusal import Refusal
from blackbox.receive.slices.slice_thread import SliceThread
from blackbox.receive.slow_subscriber import Alerts, end_process
from blackbox.receive.state import TERMINATE, SliceLife
from blackbox.receive.statistics import Counted, Counters, Statistics, statistics_of
from blackbox.receive.stream import Stream
from blackbox.receive.supervise.processes import PROCESS_NEEDS, SliceProcess
from blackbox.receive.supervise.released_slices import ReleasedSlices
from blackbox.receive.supervise.sharers import Registered, Sharers
from blackbox.receive.supervise.slice_plan import Plan
from blackbox.receive.supervise.stop_signals import stopping_at_signals
from blackbox.transport.wakeup import PIPE_NEEDS, Pipe

if TYPE_CHECKING:
    from blackbox.receive.supervise.shared_slices import Share

log = logging.getLogger("blackbox")

_TICK_S = 0.1
_END_TICK_S = 0.01
"""The same while a publisher's end must be confirmed."""
_COMPILE_S = 300.0
"""Longest compilation at the first start on a machine, before the timeout begins."""
_SECOND_LINE_S = 10.0
"""Longest wait without a timeout for the second line, once one line of each slice is confirmed."""
_COMPILING_END_S = 1.0
"""Longest wait of `terminate` for a slice that compiles."""


class SubscriberLife(Life):
    """Stages in the life of a subscriber."""

    NEW = "new", "running", "ended"
    """Nothing is open. RUNNING by `start`; ENDED by `stop` and `terminate`."""
    RUNNING = "running", "stopping", "ended"
    """It starts its slices, then receives. STOPPING by `stop`, `terminate` or an error; ENDED if none was started."""
    STOPPING = "stopping", "ended"
    """Received messages are delivered, unless it was terminated. ENDED follows."""
    ENDED = "ended", "ended"
    """Its threads and processes have ended, except those that hang. A second end does nothing."""


def _stop_at_signal(who: Supervisor | Share, number: int) -> None:
    if who.state is SubscriberLife.RUNNING:
        log.info("%s: stopping", signal.Signals(number).name)
        who.request_stop()
    else:
        who.ask_to_terminate()


def _raise_signal(came: set[int]) -> None:
    """Raise the exception for a signal received during the start, if any."""
    if signal.SIGINT in came:
        raise KeyboardInterrupt from None
    for number in came:
        raise SystemExit(128 + number) from None


class Supervisor:
    """Run the slices of a feed, each in a thread or process, and watch them from a separate thread.

    Owns the slices. Life: NEW, `start`, RUNNING, `stop` or `terminate`, STOPPING, ENDED; used once. Thread-safe, also
    for callbacks. `plan` returns the needed slices; call `renew` with `lock` held after a change.
    """

    def __init__(
        self,
        feed: Feed,
        options: Options,
        plan: Plan,
        *,
        processes: bool = False,
        block_handler: Callable[[int], BlockHandlerAt] | None = None,
        archives: Archives | None = None,
        sharers: Sharers | None = None,
    ) -> None:
        """Store the settings; nothing is opened before `start`. `block_handler(slice_id)` gets every block of a slice.

        `archives`: source of missed messages. `sharers`: their hooks are called, and their streams end.
        """
        self.feed = feed
        self.lock = threading.RLock()
        self._state = SubscriberLife.NEW
        self._options = options
        self._plan = plan
        self._processes = processes
        self._block_handler = block_handler
        self.sharers = Sharers(0) if sharers is None else sharers
        self._archives = archives
        self._since: Callable[[int], Since | None] | None = None

        self.accepted: Mapping[int, Position] = {}
        """By slice, the position up to which losses do not end the subscriber. Set before `start`."""
        self.on_lost: Callable[[list[Gap]], None] = lambda _: None
        """Called with the losses that end the subscriber, before the error is raised."""
        self._alerts = Alerts(feed, options.slow)
        self._warnings = LogWarnings()
        self._changed = threading.Condition()
        self._one_cut = threading.Lock()
        self._cutting = 0
        """Ident of the thread that holds a checkpoint; 0: none."""
        self._version = 0
        self._slices: dict[int, SliceThread] = {}
        self._children: dict[int, SliceProcess] = {}
        self._released = ReleasedSlices()
        self._returning: frozenset[int] = frozenset()
        """Slices needed again that start once they have ended."""
        self._error: BlackBoxError | None = None
        self._began_idle = False
        """True if it was started without callbacks: it continues when its last one is refused."""
        self._stop_at_end: tuple[Supervisor | Share, ...] = ()
        """Subscribers to stop when their publishers have ended."""
        self._terminated_at = 0.0
        self._pid = os.getpid()
        self._news = Pipe()
        self._thread = threading.Thread(target=self._supervise, name="blackbox-supervisor", daemon=True)

    # Life

    @property
    def state(self) -> SubscriberLife:
        """Current stage of its life."""
        return self._state

    def _enter(self, state: SubscriberLife) -> None:
        """Enter `state`, and end streams at the end. Raises RuntimeError if it cannot follow the current stage."""
        with self.lock:
            self._state = self._state.enter(state, f"subscriber of feed {self.feed.name!r}")
            for stream in self.sharers.streams() if state in (SubscriberLife.STOPPING, SubscriberLife.ENDED) else ():
                stream._queue.end(at_once=state is SubscriberLife.ENDED)

    def check_new(self) -> None:
        """Raise SubscriberError unless it can be started."""
        if self._state is not SubscriberLife.NEW:
            raise SubscriberError(f"start was called when {self._state}; a subscriber is used once")

    def start(self, timeout: float | None = None, since: Callable[[int], Since | None] | None = None) -> None:
        """Start the slices, and return when every publisher has confirmed their filters.

        `since` returns the start of each slice in the past.

        One of two lines is enough after `timeout` seconds (without compilation at the first start), or after 10 seconds
        if there is no timeout. Raises NotConfirmedError naming the slices without a publisher, or with a publisher with
        other keys; EndpointError if a slice cannot connect.
        """
        try:
            self.begin(since)
            self.wait_confirmed(timeout)
        except BaseException:
            self.terminate()
            raise

    def begin(self, since: Callable[[int], Since | None] | None = None) -> None:
        """Start the slices as `start` does; the caller must terminate if it fails."""
        with self.lock:
            self.check_new()
            self._since = since
            self._schema = load_schema(self.feed.schema)
            self._pid = os.getpid()
            self._enter(SubscriberLife.RUNNING)
            self._alerts.open()
            self.renew()
            self._began_idle = not self._slices
            start_thread(self._thread)

    @property
    def is_watched(self) -> bool:
        """True if its thread has started, which ends the slices."""
        return self._thread.ident is not None

    def wait_confirmed(
        self,
        timeout: float | None = None,
        leave_out: frozenset[int] = frozenset(),
        who: Share | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait until publishers have confirmed the filters of the newest plan, except for some slices.

        Raises the same errors as `start`; also if `who` has ended, and the errors of `check`.
        """
        if any(slice_.is_current_thread for slice_ in self._slices.values()):
            raise SubscriberError(
                "wait_confirmed was called by a callback in the slice's own thread, which receives the confirmations; "
                "expected another thread, or workers of at least 1"
            )
        started = time.monotonic()
        deadline = float("inf") if timeout is None else started + _COMPILE_S
        one_line_is_enough_from = float("inf")
        report = WaitReport(self.feed, started)
        ready = False
        with self._changed:
            while True:
                self.raise_failure()
                returning = self._returning - leave_out
                slices = {n: thread for n, thread in self._slices.items() if n not in leave_out}
                is_confirmed = not returning and all(thread.is_confirmed for thread in slices.values())
                check()  # last: refused filters are removed, and the others then confirmed
                if is_confirmed:
                    return
                if (who or self).state is not SubscriberLife.RUNNING:
                    raise SubscriberError("the subscriber ended before its subscriptions were confirmed")
                if not ready and not returning and all(thread.is_ready for thread in slices.values()):
                    ready = True
                    one_line_is_enough_from = time.monotonic() + _SECOND_LINE_S
                    deadline = float("inf") if timeout is None else time.monotonic() + timeout
                if time.monotonic() >= deadline:
                    if not ready:
                        raise SubscriberError(f"a slice was not ready after {_COMPILE_S:g} s: it may still compile")
                    check_lines(self.feed, slices, timeout or 0.0)
                    return
                is_enough = timeout is None and time.monotonic() >= one_line_is_enough_from and not returning
                if is_enough and all(thread.confirmed_lines for thread in slices.values()):
                    check_lines(self.feed, slices, _SECOND_LINE_S)
                    return
                report.update(slices, time.monotonic())
                self._changed.wait(_TICK_S)

    def wait_live(self, timeout: float) -> None:
        """Wait until all slices have caught up. Raises TimeoutError, and the error that ended it."""
        deadline = time.monotonic() + timeout
        self.raise_failure()
        with self._changed:
            while behind := [n for n, thread in self._slices.items() if thread.is_catching_up]:
                self.raise_failure()
                if self._state is not SubscriberLife.RUNNING:
                    raise SubscriberError("the subscriber ended before it had caught up")
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"slices {behind} had not caught up in {timeout} s")
                self._changed.wait(_TICK_S)

    def first_positions(self) -> dict[int, Position]:
        """Return by slice the position when its start was confirmed, of slices that began live."""
        found = {slice_id: thread.first_position for slice_id, thread in self._slices.items()}
        return {slice_id: position for slice_id, position in found.items() if position is not None}

    def wait_complete(self, slice_ids: Collection[int], timeout: float) -> bool:
        """Wait until all received messages are delivered and no earlier ones are missing; return False on timeout.

        A slice of some keys waits for a heartbeat. Raises the same errors as `checkpoint`.
        """
        self._check_checkpoint()
        slices = {n: each for n, each in self._slices.items() if n in slice_ids and each.order.state.is_full == 0}
        checkpoint = Checkpoint(slices)
        try:
            for thread in slices.values():
                thread.come_to(checkpoint)
            checkpoint.wait(timeout, partial(self._note_ended, checkpoint, slices, True))
        except TimeoutError:
            return False
        finally:
            checkpoint.release()
        return True

    def _note_ended(
        self, checkpoint: Checkpoint, slices: Mapping[int, SliceThread], is_exact: bool, missing: set[int]
    ) -> None:
        """Note the positions of ended slices. `is_exact`: none if earlier messages are missing.

        Raises the error that ended the subscriber, SubscriberError if it was terminated.
        """
        self.raise_failure()
        for slice_id in missing:
            if slices[slice_id].is_done:
                if slices[slice_id].state.stopping == TERMINATE:
                    raise SubscriberError("the subscriber was terminated: queued messages were not delivered")
                has_position = slices[slice_id].order.is_clean or not is_exact
                checkpoint.note(slice_id, slices[slice_id].position if has_position else None)

    @contextmanager
    def checkpoint(self, timeout: float, by_reader: bool = False) -> Iterator[dict[int, Position]]:
        """Pause all callbacks, and yield the position of each slice; for ended slices, the last position.

        A stream's reader that is not done yet lowers the position; see `Stream._undone` for `by_reader`.

        Raises TimeoutError if callbacks do not return in time, SubscriberError if the position is unknown, and the
        error that ended the subscriber.
        """
        self._check_checkpoint()
        if not acquire(self._one_cut, timeout):
            raise TimeoutError(f"another checkpoint had not ended in {timeout} s")
        with self.lock:
            self._cutting = threading.get_ident()  # from here on no slice is released
        slices = self._slices
        checkpoint = Checkpoint(slices)
        with self.lock:
            self.begin_cut(self.sharers.streams())
        try:
            for thread in slices.values():
                thread.come_to(checkpoint)

            positions = checkpoint.wait(timeout, partial(self._note_ended, checkpoint, slices, by_reader))
            for slice_id, undone in self._undone(by_reader).items():
                if slice_id in positions:
                    positions[slice_id] = min(positions[slice_id], undone)
            yield positions
        finally:
            with self.lock:
                self._cutting = 0
                for stream in self.sharers.streams():
                    stream._queue.cut(begins=False)
            checkpoint.release()
            self._one_cut.release()

    def begin_cut(self, streams: Iterable[Stream]) -> None:
        """Include these streams in the current checkpoint, if any. Call with `lock` held."""
        for stream in streams if self._cutting else ():
            stream._queue.cut(begins=True)

    def _undone(self, by_reader: bool) -> dict[int, Position]:
        """Return by slice the position of the stream's reader that is furthest behind."""
        found: dict[int, Position] = {}
        for each in [stream._undone(by_reader) for stream in self.sharers.streams()]:
            for slice_id, undone in each.items():
                found[slice_id] = min(found.get(slice_id, undone), undone)
        return found

    def _check_checkpoint(self) -> None:
        if self._processes:
            raise SubscriberError("checkpoint was called with processes=True, where callbacks run in other processes")
        if self._options.slow.action == "conflate":
            raise SubscriberError("checkpoint was called with the policy 'conflate', which delivers out of order")
        if self.is_own_thread():
            raise SubscriberError("checkpoint was called by a callback, expected another thread")
        if self._state is SubscriberLife.NEW:
            raise SubscriberError("checkpoint was called before start")

    def run(
        self,
        start: Callable[[float | None], object] | None = None,
        *,
        until_end: bool = False,
        timeout: float | None = None,
        silence_timeout: float | None = None,
        who: Share | None = None,
    ) -> None:
        """Start (unless running), wait, stop. In the main thread signals stop it; a second one terminates.

        Ends when `stop` or `terminate` is called elsewhere; with `until_end` also when every publisher has closed and
        everything is delivered. Raises the error that ended it; SilentPublisherError after `silence_timeout` seconds
        without a message in a slice; SystemExit(143) after SIGTERM, (129) after SIGHUP; KeyboardInterrupt after SIGINT
        during the start. `timeout` is `start`'s. `who`: stop only this sharer.
        """
        self.check_process()
        runs = who or self
        with stopping_at_signals(partial(_stop_at_signal, runs), runs.ask_to_terminate) as came:
            if runs.state is SubscriberLife.NEW:
                try:
                    (start or self.start)(timeout)
                except SubscriberError:
                    _raise_signal(came)  # it interrupted the start
                    raise
            with self.lock:
                self._stop_at_end = (*self._stop_at_end, *[runs] * until_end)
            try:
                while not runs.wait_ended(_TICK_S):
                    try:
                        runs.check_silence(silence_timeout)
                    except SilentPublisherError:
                        runs.stop()
                        raise
            finally:
                with self.lock:
                    self._stop_at_end = tuple(each for each in self._stop_at_end if each is not runs)
        runs.raise_failure()
        for number in came - {signal.SIGINT}:
            raise SystemExit(128 + number)

    def check_silence(self, silence_timeout: float | None, leave_out: Collection[int] = ()) -> None:
        """Raise SilentPublisherError if a slice that has not ended received nothing for `silence_timeout` seconds."""
        if silence_timeout is None or self._state is not SubscriberLife.RUNNING:
            return
        for slice_id, thread in self._slices.items():
            if slice_id not in leave_out and thread.silence_s() > silence_timeout:
                endpoints = " or ".join(thread.feed_slice.lines)
                raise SilentPublisherError(
                    f"feed {self.feed.name!r} slice {slice_id}: nothing came from the publisher at {endpoints} "
                    f"for {silence_timeout} s, and it has not reported its end"
                )

    def stop(self, timeout: float = 30.0) -> None:
        """Deliver everything received so far, then end. Returns at once in a callback.

        Raises the error that ended it; SubscriberError if callbacks are not done in `timeout` seconds (it then
        terminates).
        """
        self.check_may_wait()
        self.request_stop()
        if self._thread.ident is None:
            self._enter(SubscriberLife.ENDED)
        elif self.is_own_thread():
            return
        elif not self.wait_ended(timeout):
            self.terminate()
            raise SubscriberError(f"stop was not done in {timeout} s: a callback did not keep up")
        self.raise_failure()

    def check_may_wait(self) -> None:
        """Raise SubscriberError if `stop` would deadlock."""
        if self._cutting == threading.get_ident():
            raise SubscriberError(
                "stop was called in a checkpoint, where all callbacks wait; call it after the checkpoint"
            )

    def request_stop(self) -> None:
        """Do the same as `stop`, but return at once."""
        self.check_process()
        with self.lock:
            if self._state is SubscriberLife.RUNNING:
                self._enter(SubscriberLife.STOPPING)
            for thread in self._slices.values():
                thread.ask_to_stop()

    def terminate(self, timeout: float = 5.0) -> None:
        """End now: a running callback is finished, queued messages are lost.

        A callback that does not return in `timeout` seconds is left behind in its daemon thread, and an error is
        logged.
        """
        self.check_process()
        self.ask_to_terminate()
        self.request_stop()
        if self._thread.ident is None:
            self._end(_COMPILE_S)  # `start` was not called, or could not start all threads
        elif not self.is_own_thread():
            first_s = min(timeout, _COMPILING_END_S)
            if self.wait_ended(first_s) or self._still_compiles() or self.wait_ended(timeout - first_s):
                return
            log.error("a callback did not return in %s s; its thread is left behind", timeout)

    def _still_compiles(self) -> bool:
        """Return True if a slice is still compiling and not connected: it ends after that."""
        compiles = any(thread.life is SliceLife.OPENING for thread in self._slices.values())
        return compiles and is_compiling()

    def check_process(self) -> None:
        """Reject calls from a forked process, which would change the subscriber's shared memory."""
        if self._state is not SubscriberLife.NEW and self._pid != os.getpid() and not self._processes:
            raise SubscriberError(
                f"feed {self.feed.name!r}: the subscriber belongs to process {self._pid}, this is its fork "
                f"{os.getpid()}: expected a subscriber made after the fork"
            )

    def ask_to_terminate(self) -> None:
        """Terminate the slices; queued messages are lost."""
        for thread in self._slices.values():
            thread.ask_to_terminate()

    def is_own_thread(self) -> bool:
        """Return True if the caller is a callback or hook, which must not wait for the end."""
        slices = (*self._slices.values(), *self._released.leaving.values())
        threads = [each for thread in slices for each in thread.threads]
        return threading.current_thread() in (self._thread, *threads)

    def wait_ended(self, timeout: float = float("inf"), who: Share | None = None) -> bool:
        """Wait until it, or the use by `who`, has ended; return True if so."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while (who or self).state is not SubscriberLife.ENDED:
                if time.monotonic() >= deadline:
                    return False
                self._changed.wait(_TICK_S)
        return True

    def raise_failure(self) -> None:
        """Raise the error that ended it, if any."""
        if self._error is not None:
            raise self._error

    # Slices

    def renew(self) -> None:
        """Apply the current plan if it runs, and start newly needed slices."""
        if self._state is not SubscriberLife.RUNNING:
            return
        self.check_process()
        self._version += 1
        plan = self._plan(self._version, self._slices)
        self._check_limits(plan.keys() - self._slices.keys())
        self._check_joining(plan)
        returning = frozenset(plan.keys() & self._released.leaving.keys())
        for slice_id, table in plan.items():
            if slice_id in self._slices:
                self._slices[slice_id].set_table(table)
            elif slice_id not in returning:
                self._start_slice(slice_id, table)
        self._returning = returning  # last: a returning slice is unconfirmed until it has started

    def _check_joining(self, plan: Mapping[int, Table]) -> None:
        """Raise SubscriberError if a slice that catches up would get new keys, which archives have skipped."""
        for slice_id, table in plan.items():
            thread = self._slices.get(slice_id)
            if thread is not None and thread.is_catching_up and not thread.covers(table.upstream):
                raise SubscriberError(
                    f"a callback for other keys was added while slice {slice_id} catches up: add it before start or "
                    f"after wait_live"
                )

    def leave(self, registered: Registered) -> None:
        """Remove a sharer from later matches; blocks matched before are delivered. Call with `lock` held."""
        self.sharers.leave(registered, self._version + 1)
        self.renew()
        self._news.poke()

    def remove(self, callback: Callback) -> None:
        """Deliver no further batch to a callback, also of blocks matched before."""
        for thread in self._slices.values():
            thread.remove(callback)

    def _check_limits(self, starting: set[int]) -> None:
        """Raise LimitError unless these slices can be started.

        A process inherits this one's resources, and opens one slice.
        """
        needs: list[Sequence[Needs]] = [needs_of(self.feed.slices[slice_id], self._options) for slice_id in starting]
        if self._processes:
            threads = [[Needs(threads=need.threads) for need in of_slice] for of_slice in needs]
            needs = [*needs[:1], *threads, *[(PIPE_NEEDS, PROCESS_NEEDS)] * len(needs)]
        if needs:
            check_limits(f"subscriber of feed {self.feed.name!r}", Needs(threads=1), *chain(*needs))

    def _start_slice(self, slice_id: int, table: Table) -> None:
        kept = self._released.kept.get(slice_id)  # a slice that starts again keeps its counters, and begins live
        thread = SliceThread(
            self.feed,
            slice_id,
            self._options,
            self._schema,
            Counters(self._options.workers + 1) if kept is None else kept.counters,
            table,
            self._news,
            NO_HANDLER if self._block_handler is None else self._block_handler(slice_id),
            self.sharers.hooks,
            self._archives,
            None if self._since is None or kept is not None else self._since(slice_id),
            None if kept is None else kept.topics,
        )
        if self._block_handler is None and not self._processes:
            thread.refuse_alone(is_late=self.is_watched)
            thread.note_first_position()
        thread.state.accepted_epoch, thread.state.accepted_sequence = self.accepted.get(slice_id, (0, 0))
        child = SliceProcess(thread, self._renew_locks) if self._processes else None
        before = self._children, self._slices
        if child is not None:
            self._children = {**self._children, slice_id: child}
        self._slices = {
            **self._slices,
            slice_id: thread,
        }  # a new dict: others iterate over the old one without the lock
        try:
            (child or thread).start()
        except BaseException:
            self._children, self._slices = before
            raise

    def _renew_locks(self) -> None:
        """In a forked process, replace locks that another thread may have held at the fork."""
        self.lock = threading.RLock()
        self._changed = threading.Condition()

    def _runner(self, slice_id: int) -> SliceProcess | SliceThread:
        return self._children.get(slice_id, self._slices[slice_id])

    def acknowledge(self, slice_id: int, said: bytes) -> None:
        """Report to the publishers of a slice how far their messages are recorded."""
        self._slices[slice_id].acknowledge(said)

    # Queries

    def statistics(self) -> Statistics:
        """Return a snapshot of all counters; exact once it has ended."""
        slices, released = self._slices, self._released.kept
        counted = [
            Counted(
                slice_id,
                thread.counters,
                thread.state.subscriptions,
                len(thread.topics),
                thread.transport,
                thread.is_catching_up,
            )
            for slice_id, thread in slices.items()
        ]
        counted += [
            Counted(slice_id, kept.counters, 0, len(kept.topics), kept.transport)
            for slice_id, kept in released.items()
            if slice_id not in slices
        ]
        return statistics_of(sorted(counted, key=itemgetter(0)), self._state is SubscriberLife.ENDED)

    def topics(self, slice_id: int) -> list[bytes]:
        """Return the topics seen in one slice, by number."""
        known = self._slices.get(slice_id) or self._released.kept.get(slice_id)
        return [] if known is None else known.topics.names()

    @property
    def is_finished(self) -> bool:
        """Return True once it has ended, or every publisher has closed and everything was passed to the workers."""
        return self.have_finished(())

    def have_finished(self, leave_out: Collection[int]) -> bool:
        """Do the same as `is_finished`, without some slices."""
        if self._state is SubscriberLife.ENDED:
            return True
        slices = [thread for slice_id, thread in self._slices.items() if slice_id not in leave_out]
        return bool(slices) and all(thread.is_finished for thread in slices)

    @property
    def is_done(self) -> bool:
        """True if all threads and processes have ended: once ENDED, unless one hangs and was left behind."""
        running = [self._runner(slice_id) for slice_id in self._slices]
        return all(each.is_done for each in (*running, *self._released.leaving.values()))

    # The following runs in the supervisor's thread.

    def _supervise(self) -> None:
        try:
            self._watch()
        except Exception as error:  # without a supervisor nothing would end
            log.exception("the supervisor failed")
            failure = SubscriberError(f"the supervisor failed: {error}")
            failure.__cause__ = error
            self._give_up(failure)
            self._end()

    def _watch(self) -> None:
        poller = select.poll()
        poller.register(self._news.reader, select.POLLIN)
        while self._state is not SubscriberLife.ENDED:
            if poller.poll(1000 * (_END_TICK_S if self._may_end() else _TICK_S)):
                os.read(self._news.reader, 4096)
            with self.lock:
                threads = dict(self._slices)
            for slice_id, thread in threads.items():
                if is_compiling():
                    thread.put_policy_off()
                self._look_at(slice_id, thread)
            # A callback in a slice's process asks to stop through shared memory.
            asked = any(thread.state.stopping for thread in threads.values())
            if self._state is SubscriberLife.RUNNING and asked:
                self.request_stop()
            for each in [e for e in self._stop_at_end if e.state is SubscriberLife.RUNNING and e.is_finished]:
                each.request_stop()
            if self._state is SubscriberLife.STOPPING:
                for slice_id, thread in threads.items():
                    if slice_id not in self._children and thread.state.stopping == TERMINATE:
                        thread.release(0.0)
            done = [self._runner(slice_id).is_done for slice_id in threads]
            if self._state is SubscriberLife.STOPPING and (all(done) or self._is_late(threads)):
                self._end()
            elif any(done) and self._state is SubscriberLife.RUNNING:
                self._give_up(SubscriberError("a slice ended unexpectedly"))
            with self.lock:
                self._release_slices()
                self._let_go()
            with self._changed:
                self._changed.notify_all()

    def _look_at(self, slice_id: int, thread: SliceThread) -> None:
        """Handle a slice's errors, lag and refusals."""
        self._warnings.check(slice_id, thread.counters.slice, thread.state)
        failure = self._runner(slice_id).failure() or self._alerts.check(slice_id, thread.take_alert)
        if failure is not None:
            self._give_up(failure)
        for refusal in thread.take_refusals():
            self._refuse(refusal)

    def _refuse(self, refusal: Refusal) -> None:
        """Remove the callbacks that a refusal affects; end if none is left, unless it began without callbacks."""
        with self.lock:
            gone = self.sharers.refuse(self.feed, refusal)
            for callback in gone:
                self.remove(callback)
            if not gone:
                return  # another line has reported it
            if self._began_idle or any(each.callbacks for each in self.sharers.present):
                self.renew()
            else:
                self._give_up(refusal.error(self.feed, chain.from_iterable(each.starts for each in gone)))

    def _release_slices(self) -> None:
        """Release slices without callbacks; restart released ones that are needed again.

        The last slice is kept if the subscriber waits for the end of publishers.
        """
        leaving = self._released.leaving.values()
        has_ended = self._released.keep_ended()
        for thread in leaving:
            if (failure := thread.failure()) is not None:
                self._give_up(failure)
        if has_ended and self._returning:
            try:
                self.renew()
            except BlackBoxError as error:
                self._give_up(error)
        if self._state is not SubscriberLife.RUNNING or self._processes or self._cutting:
            return
        unneeded = self._released.unneeded(self._slices)
        if self._stop_at_end and len(unneeded) == len(self._slices):
            unneeded = unneeded[1:]
        for slice_id in unneeded:
            self._released.release(slice_id, self._slices[slice_id])
            self._slices = {n: thread for n, thread in self._slices.items() if n != slice_id}

    def _let_go(self) -> None:
        """Remove leaving sharers once everything matched for them is delivered."""
        for registered, version in self.sharers.leaving.items():
            if all(thread.is_past(version) for thread in self._slices.values()):
                for callback in registered.callbacks:
                    self.remove(callback)
                self.sharers.forget(registered)

    def _may_end(self) -> bool:
        if self._state is not SubscriberLife.RUNNING:
            return False
        return bool(self.sharers.leaving) or (
            bool(self._stop_at_end) and any(thread.state.finished_lines for thread in self._slices.values())
        )

    def _give_up(self, error: BlackBoxError) -> None:
        if self._error is None:
            if isinstance(error, GapError):
                self.on_lost([lost for thread in self._slices.values() if (lost := thread.lost) is not None])
            self._error = error
        self.ask_to_terminate()
        with self.lock:
            if self._state is SubscriberLife.RUNNING:
                self._enter(SubscriberLife.STOPPING)

    def _is_late(self, threads: dict[int, SliceThread]) -> bool:
        """Return True if the grace time after the termination of all slices is over: a callback hangs."""
        if not all(thread.state.stopping == TERMINATE for thread in threads.values()):
            return False
        if self._terminated_at == 0.0:
            self._terminated_at = time.monotonic()
        return time.monotonic() > self._terminated_at + self._options.slow._grace_ns / 1e9

    def _hangs_here(self, slice_id: int) -> bool:
        """Return True if a slice thread of this process is in a callback, so that it cannot end the process."""
        return slice_id not in self._children and self._slices[slice_id].busy_ns() > 0

    def _end(self, timeout: float = 0.5) -> None:
        for slice_id, thread in self._slices.items():
            if self._runner(slice_id).release(timeout):
                continue
            if not thread.is_ready:
                log.info("slice %d: it is compiling, and ends after that", slice_id)
            elif slice_id in self._children:
                self._note_hung(slice_id, "a callback did not return, its process was killed")
            else:
                is_slow = isinstance(self._error, SlowSubscriberError)
                if self._options.slow.action == "exit_process" and is_slow and self._hangs_here(slice_id):
                    end_process()
                running = "; ".join(thread.running_callbacks()) or "a callback has not returned"
                self._note_hung(slice_id, f"{running} and was left behind in its thread")
        for slice_id, thread in self._released.leaving.items():
            if not thread.release(timeout):
                log.error("slice %d: a hook hangs; its thread is left behind", slice_id)
        self._alerts.close()
        self._enter(SubscriberLife.ENDED)

    def _note_hung(self, slice_id: int, text: str) -> None:
        """Log a callback that did not return; also name it in a SlowSubscriberError."""
        log.error("slice %d: %s", slice_id, text)
        if isinstance(self._error, SlowSubscriberError):
            self._error = SlowSubscriberError(f"{self._error}; {text}")
