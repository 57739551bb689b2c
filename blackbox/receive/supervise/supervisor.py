"""Supervise the slices of a subscriber: report errors, send alerts when they are slow, release and end them."""

from __future__ import annotations

import logging
import os
import select
import threading
from collections import deque
from collections.abc import Callable, Mapping
from itertools import chain
from typing import TYPE_CHECKING

from blackbox.block.batch.block_handler import NO_HANDLER, BlockHandlerAt
from blackbox.block.position import Position
from blackbox.errors import BlackBoxError, GapError, SlowSubscriberError, SubscriberError
from blackbox.feed.feed import Feed
from blackbox.feed.schema.schema import load_schema
from blackbox.life import Life
from blackbox.native.compile.compiling import COMPILE_S, is_compiling
from blackbox.native.system.limits import start_thread
from blackbox.receive.alerts import Alerts, kind_of
from blackbox.receive.publishers.refusal import Refusal
from blackbox.receive.slices.catching_up import Archives, Since
from blackbox.receive.slices.log_warnings import LogWarnings
from blackbox.receive.slices.options import Options, SliceSettings
from blackbox.receive.slices.slice_status import FinalLoss
from blackbox.receive.slices.slice_thread import SliceThread
from blackbox.receive.state import Stopping
from blackbox.receive.supervise.sharers import Sharers
from blackbox.receive.supervise.slice_plan import Plan
from blackbox.receive.supervise.slice_set import SliceSet
from blackbox.transport.wakeup import Pipe

if TYPE_CHECKING:
    from blackbox.receive.supervise.shared_slices import Share

log = logging.getLogger("blackbox")

TICK_S = 0.1
_END_TICK_S = 0.01
"""The same while a publisher's end must be confirmed."""
_RELEASE_S = 0.5


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


class Supervisor:
    """Run the slices of a feed for the subscribers that share them, and watch them from a separate thread.

    Owns the slices. Life: NEW, `begin`, RUNNING, `request_end` or an error, STOPPING, ENDED; used once. Thread-safe,
    also for callbacks. Call `renew` with `lock` held after a change of what the plan depends on.
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
        """Store the settings; nothing is opened before `begin`. `block_handler(slice_id)` gets every block of a slice.

        `plan` returns the needed slices. `archives`: source of missed messages. `sharers`: their hooks are called, and
        their streams end.
        """
        self.feed = feed
        self.lock = threading.RLock()
        self.changed = threading.Condition()
        """Notified after each look at the slices."""
        self.checkpoints = threading.Lock()
        """Held during a checkpoint: there is one at a time."""
        self.checkpoint_thread = 0
        """Ident of the thread that holds a checkpoint; 0: none."""
        self.sharers = Sharers(0) if sharers is None else sharers
        settings = SliceSettings(
            feed,
            options,
            Pipe(),
            archives=archives,
            hooks=self.sharers.hooks,
            handler=block_handler or (lambda _: NO_HANDLER),
            refuses_alone=block_handler is None and not processes,
        )
        self.slices = SliceSet(settings, plan, uses_processes=processes)
        self.on_lost: Callable[[Mapping[int, FinalLoss]], None] = lambda _: None
        """Called with the losses that end the subscriber, by slice, before the error is raised."""
        self.stop_at_end: tuple[Share, ...] = ()
        """Subscribers to stop when their publishers have ended."""
        self.state = SubscriberLife.NEW
        self._alerts = Alerts(feed, options.slow, "recorder" if block_handler else "subscriber")
        self._reports: deque[tuple[str, str]] = deque()
        """Kinds and texts of errors of others that end it, not yet sent to the console."""
        self.error: BlackBoxError | None = None
        """The error that ended it."""
        self._began_idle = False
        """True if it was started without callbacks: it continues when its last one is refused."""
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._supervise, name="blackbox-supervisor", daemon=True)

    # Life

    def _enter(self, state: SubscriberLife) -> None:
        """Enter `state`, and end streams at the end. Raises RuntimeError if it cannot follow the current stage."""
        with self.lock:
            self.state = self.state.enter(state, f"subscriber of feed {self.feed.name!r}")
            for stream in self.sharers.streams() if state in (SubscriberLife.STOPPING, SubscriberLife.ENDED) else ():
                stream._queue.end(at_once=state is SubscriberLife.ENDED)

    def begin(
        self, since: Callable[[int], Since | None] | None = None, accepted: Mapping[int, Position] | None = None
    ) -> None:
        """Start the slices; the caller must `abandon` it if this fails. Call it with `lock` held.

        `since` returns the start of each slice in the past. `accepted`: by slice, the position up to which losses do
        not end the subscriber.
        """
        self._pid = os.getpid()
        self._enter(SubscriberLife.RUNNING)  # first: from here on the handler of a signal may end it
        settings, schema = self.slices.settings, load_schema(self.feed.schema)
        settings = settings._replace(schema=schema, since=since or (lambda _: None), accepted=accepted or {})
        self._alerts.open()
        self.slices.settings = settings
        self.renew()
        self.slices.settings = settings._replace(has_started=True)
        self._began_idle = not self.slices.running
        start_thread(self._thread)

    @property
    def is_watched(self) -> bool:
        """True if its thread has started, which ends the slices."""
        return self._thread.ident is not None

    @property
    def has_died(self) -> bool:
        """True if its thread has started and ended; before ENDED that is unexpected."""
        return self.is_watched and not self._thread.is_alive()

    def request_end(self, *, at_once: bool) -> None:
        """Deliver everything received so far, unless `at_once`, then end; return without waiting."""
        self.check_process()
        with self.lock:
            if self.state is SubscriberLife.NEW:
                self._enter(SubscriberLife.ENDED)
            if self.state is SubscriberLife.RUNNING:
                self._enter(SubscriberLife.STOPPING)
            self.slices.ask_to_end(at_once=at_once)

    def abandon(self) -> None:
        """End all slices of a start that failed before its thread started."""
        self.request_end(at_once=True)
        self._end(COMPILE_S)

    def check_process(self) -> None:
        """Reject calls from a forked process, which would change the subscriber's shared memory."""
        if self.state is not SubscriberLife.NEW and self._pid != os.getpid() and not self.slices.uses_processes:
            raise SubscriberError(
                f"feed {self.feed.name!r}: the subscriber belongs to process {self._pid}, this is its fork "
                f"{os.getpid()}: expected a subscriber made after the fork"
            )

    def is_own_thread(self) -> bool:
        """Return True if the caller is a callback or hook, which must not wait for the end."""
        return threading.current_thread() is self._thread or self.slices.has_current_thread()

    def report(self, kind: str, text: str) -> None:
        """Send an alert about an error to the operator's console before it ends. Called by any thread."""
        self._reports.append((kind, text))

    def raise_failure(self) -> None:
        """Raise the error that ended it, if any."""
        if self.error is not None:
            raise self.error

    def renew(self) -> None:
        """Apply the current plan if it runs, and start newly needed slices."""
        if self.state is SubscriberLife.RUNNING:
            self.check_process()
            self.slices.renew(self._renew_locks)

    def _renew_locks(self) -> None:
        """In a forked process, replace locks that another thread may have held at the fork."""
        self.lock = threading.RLock()
        self.changed = threading.Condition()

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
        news = self.slices.settings.news.reader
        grace_s = self.slices.settings.options.slow._grace_ns / 1e9
        warnings, poller = LogWarnings(), select.poll()
        poller.register(news, select.POLLIN)
        while self.state is not SubscriberLife.ENDED:
            if poller.poll(1000 * (_END_TICK_S if self._may_end() else TICK_S)):
                os.read(news, 4096)
            with self.lock:
                threads = dict(self.slices.running)
            done = [self.slices.runner(slice_id).is_done for slice_id in threads]  # first: errors come before the end
            for slice_id, thread in threads.items():
                warnings.check(thread.status)
                self._look_at(slice_id, thread)
            self._send_reports()
            # A callback in a slice's process asks to stop through shared memory.
            if self.state is SubscriberLife.RUNNING and any(each.status.state.stopping for each in threads.values()):
                self.request_end(at_once=False)
            for share in [e for e in self.stop_at_end if e.state is SubscriberLife.RUNNING and e.is_finished]:
                share.request_end()
            if self.state is SubscriberLife.STOPPING:
                for slice_id, thread in threads.items():
                    if slice_id not in self.slices.processes and thread.status.state.stopping == Stopping.TERMINATE:
                        thread.release(0.0)
                if all(done) or self.slices.is_late(grace_s):
                    self._end()
            elif any(done) and self.state is SubscriberLife.RUNNING:
                self._give_up(SubscriberError("a slice ended unexpectedly"))
            with self.lock:
                self._release_slices()
                self._forget_sharers()
            with self.changed:
                self.changed.notify_all()

    def _send_reports(self) -> None:
        while self._reports:
            self._alerts.report(*self._reports.popleft())

    def _may_end(self) -> bool:
        """Return True if a sharer is leaving, or a publisher has ended whose end may end a sharer."""
        if self.state is not SubscriberLife.RUNNING:
            return False
        have_ended = any(thread.status.state.finished_lines for thread in self.slices.running.values())
        return bool(self.sharers.leaving) or (bool(self.stop_at_end) and have_ended)

    def _look_at(self, slice_id: int, thread: SliceThread) -> None:
        """Handle a slice's errors, lag and refusals."""
        if is_compiling():
            self._alerts.put_off(thread.status.state)
        failure = self.slices.runner(slice_id).failure() or self._alerts.check(thread.status, thread.running_callbacks)
        if failure is not None:
            self._give_up(failure)
        while thread.subscription.refusals:
            self._refuse(thread.subscription.refusals.popleft())

    def _refuse(self, refusal: Refusal) -> None:
        """Remove the callbacks that a refusal affects; end if none is left, unless it began without callbacks."""
        with self.lock:
            gone = self.sharers.refuse(self.feed, refusal)
            for callback in gone:
                self.slices.remove(callback)
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
        released = self.slices.released
        leaving = released.leaving.values()
        has_ended = released.keep_ended()
        for thread in leaving:
            if (failure := thread.failure()) is not None:
                self._give_up(failure)
        if has_ended and self.slices.returning:
            try:
                self.renew()
            except BlackBoxError as error:
                self._give_up(error)
        if self.state is SubscriberLife.RUNNING and not self.slices.uses_processes and not self.checkpoint_thread:
            self.slices.release_unneeded(keeps_last=bool(self.stop_at_end))

    def _forget_sharers(self) -> None:
        """Remove leaving sharers once everything matched for them is delivered."""
        for registered, version in self.sharers.leaving.items():
            if all(thread.is_past(version) for thread in self.slices.running.values()):
                for callback in registered.callbacks:
                    self.slices.remove(callback)
                self.sharers.forget(registered)

    def _give_up(self, error: BlackBoxError) -> None:
        """End because of an error."""
        if self.error is None:
            if isinstance(error, GapError):
                losses = {slice_id: thread.status.lost for slice_id, thread in self.slices.running.items()}
                self.on_lost({slice_id: lost for slice_id, lost in losses.items() if lost is not None})
            self.error = error
            if not isinstance(error, SlowSubscriberError):  # its alert was sent before
                self.report(kind_of(error), str(error))
        self.request_end(at_once=True)

    def _end(self, timeout: float = _RELEASE_S) -> None:
        """Wait for the end of the slices, and end. A callback that hangs is left behind."""
        is_slow = isinstance(self.error, SlowSubscriberError)
        exits = is_slow and self.slices.settings.options.slow.action == "exit_process"
        for text in self.slices.close(timeout, exits=exits):
            if is_slow:
                self.error = SlowSubscriberError(f"{self.error}; {text}")
        self._send_reports()
        self._alerts.close()
        self._enter(SubscriberLife.ENDED)
