"""A subscriber's share of a supervisor with its slices and threads, and its own life among the sharers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from blackbox.block.position import Position
from blackbox.errors import SubscriberError
from blackbox.feed.symbol_choice import ALL_TOPICS, TopicChoice, starts_by_slice
from blackbox.receive.slices.catching_up import Since
from blackbox.receive.stream import Stream
from blackbox.receive.supervise.checkpoints import begin_checkpoint, checkpoint
from blackbox.receive.supervise.confirmation_wait import ConfirmationWait
from blackbox.receive.supervise.sharers import Registered
from blackbox.receive.supervise.supervisor import TICK_S, SubscriberLife, Supervisor

log = logging.getLogger("blackbox")

_SHARED = (SubscriberLife.NEW, SubscriberLife.RUNNING)
"""Stages of a supervisor in which subscribers may join and leave."""
_STOP_S = 30.0
"""Longest wait for callbacks to take the received messages."""
_COMPILING_END_S = 1.0
"""Longest wait of `terminate` for a slice that compiles."""


class EndedEarlyError(SubscriberError):
    """`start` was interrupted by an end that was asked for."""


class Share:
    """Adds and removes one subscriber's callbacks, while others use the same slices. The last one ends the slices.

    Life: the supervisor's from `start` on, unless it leaves before the last one: then it is STOPPING until messages for
    its callbacks are delivered. An error in a slice, or in a callback of any subscriber, ends all of them.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self.registered = Registered()
        self.supervisor, self._sharers = supervisor, supervisor.sharers
        self._own = SubscriberLife.NEW
        """RUNNING: see the supervisor. STOPPING: it has left, or is leaving."""

    @property
    def state(self) -> SubscriberLife:
        """Current stage of its life."""
        if self._own is SubscriberLife.STOPPING and self.supervisor.state is not SubscriberLife.ENDED:
            return SubscriberLife.ENDED if self._has_left else SubscriberLife.STOPPING
        return self._own if self._own in (SubscriberLife.NEW, SubscriberLife.ENDED) else self.supervisor.state

    @property
    def _has_left(self) -> bool:
        """True if it has ended before the last one."""
        return self._own is SubscriberLife.STOPPING and self.registered not in self._sharers.leaving

    def _enter(self, life: SubscriberLife) -> None:
        """Enter `life`. Raises RuntimeError if it cannot follow the current stage."""
        self._own = self._own.enter(life, f"share of feed {self.supervisor.feed.name!r}")

    def check_new(self) -> None:
        """Raise SubscriberError unless it can be started."""
        if self._own is not SubscriberLife.NEW:
            raise SubscriberError(f"start was called when {self.state}; a subscriber is used once")
        if self.supervisor.state not in _SHARED:
            raise SubscriberError("start was called after the shared slices had ended")

    def start(
        self,
        timeout: float | None,
        since: Callable[[int], Since | None] | None = None,
        accepted: Mapping[int, Position] | None = None,
    ) -> None:
        """Start the slices, or join running ones; return when every publisher has confirmed the callbacks' filters.

        `since` and `accepted`: see `Supervisor.begin`.

        One of two lines is enough after `timeout` seconds (without compilation at the first start), or after 10 seconds
        if there is no timeout. Raises NotConfirmedError naming the slices without a publisher, or with a publisher with
        other keys; EndpointError if a slice cannot connect; SubscriberError for a start in the past or timers in
        running slices.
        """
        supervisor = self.supervisor
        with supervisor.lock:
            self.check_new()
            self._enter(SubscriberLife.RUNNING)
            self._sharers.join(self.registered)
        try:
            with supervisor.lock:
                if supervisor.state is SubscriberLife.NEW and self._own is SubscriberLife.RUNNING:
                    supervisor.begin(since, accepted)
                else:
                    self._join(is_live=since is None)
                if self.state is not SubscriberLife.RUNNING:
                    raise EndedEarlyError("the subscriber ended before it had started")
            self.wait_confirmed(timeout)
        except BaseException as error:
            is_ending = isinstance(error, EndedEarlyError)  # unless it was terminated, it delivers what it received
            if not (is_ending and (supervisor.is_own_thread() or self.wait_ended(_STOP_S))):
                self.terminate() if supervisor.is_watched else supervisor.abandon()
            raise

    def _join(self, *, is_live: bool) -> None:
        """Use running slices."""
        self.raise_failure()
        if self.state is not SubscriberLife.RUNNING:
            raise EndedEarlyError("the subscriber ended before it had started")
        if not is_live:
            raise SubscriberError("start was called with since or back, but the shared slices run already")
        if self.registered.timers:
            raise SubscriberError("every was called, but the shared slices run already: call it before start")
        begin_checkpoint(self.supervisor, self.registered.streams)
        for callback in self.registered.callbacks:  # a book lacks what the slices have delivered
            for slice_id in range(len(self.supervisor.feed.slices)):
                callback.restart(slice_id)
        self.supervisor.renew()

    def _foreign(self) -> frozenset[int]:
        """Slices that it does not need."""
        return self._sharers.only_others_need(self.registered, self.supervisor.feed)

    def wait_confirmed(self, timeout: float | None, topics: TopicChoice = ALL_TOPICS) -> None:
        """Wait until publishers have confirmed the callbacks' filters in slices with some topics.

        Raises the same errors as `start`; and, once, a refusal of a prefix of such topics.
        """
        supervisor, feed = self.supervisor, self.supervisor.feed
        if any(threading.current_thread() in each.threads[:1] for each in supervisor.slices.running.values()):
            raise SubscriberError(
                "wait_confirmed was called by a callback in the slice's own thread, which receives the confirmations; "
                "expected another thread, or workers of at least 1"
            )
        left_out = self._foreign() | (set(range(len(feed.slices))) - starts_by_slice(feed, topics.starts).keys())
        wait = ConfirmationWait(feed, timeout)
        with supervisor.changed:
            while True:
                supervisor.raise_failure()
                are_all = not supervisor.slices.returning - left_out
                slices = {n: thread for n, thread in supervisor.slices.running.items() if n not in left_out}
                is_confirmed = are_all and all(thread.status.is_confirmed for thread in slices.values())
                self.registered.raise_refusal(topics.prefixes)  # refused filters are removed, the others then confirmed
                if is_confirmed:
                    return
                if self.state is not SubscriberLife.RUNNING:
                    raise EndedEarlyError("the subscriber ended before its subscriptions were confirmed")
                if wait.is_over(slices, are_all=are_all):
                    return
                supervisor.changed.wait(TICK_S)

    def renew(self) -> None:
        """Apply what is registered now, if it was started."""
        if self._own is SubscriberLife.RUNNING:
            self.supervisor.renew()

    def add_stream(self, stream: Stream) -> None:
        """Include a stream in checkpoints from now on, also in a current one. Call with the lock held."""
        self.registered.streams.append(stream)
        if self._own is SubscriberLife.RUNNING:
            begin_checkpoint(self.supervisor, [stream])

    @contextmanager
    def checkpoint(self, timeout: float, by_reader: bool = False) -> Iterator[dict[int, Position]]:
        """Pause all callbacks of all sharers: see `checkpoints.checkpoint`."""
        if self._own is not SubscriberLife.RUNNING and self.supervisor.state is not SubscriberLife.NEW:
            when = "before start" if self._own is SubscriberLife.NEW else "when it had left the slices to others"
            raise SubscriberError(f"checkpoint was called {when}")
        with checkpoint(self.supervisor, timeout, by_reader) as positions:
            yield positions

    def check_silence(self, silence_timeout: float | None) -> None:
        """Raise SilentPublisherError if a needed slice has received nothing for `silence_timeout` seconds."""
        if silence_timeout is not None and self.state is SubscriberLife.RUNNING:
            self.supervisor.slices.check_silence(silence_timeout, self._foreign())

    def stop(self, timeout: float = _STOP_S) -> None:
        """Deliver queued messages to its callbacks, then leave; the last one ends the slices.

        Returns at once in a callback. Raises the error that ended it; SubscriberError if callbacks are not done in
        `timeout` seconds (it then terminates).
        """
        if self.supervisor.checkpoint_thread == threading.get_ident():
            raise SubscriberError(
                "stop was called in a checkpoint, where all callbacks wait; call it after the checkpoint"
            )
        self.request_end()
        if self.supervisor.is_own_thread():
            return
        if not self.wait_ended(timeout):
            self.terminate()
            raise SubscriberError(f"stop was not done in {timeout} s: a callback did not keep up")
        self.raise_failure()

    def terminate(self, timeout: float = 5.0) -> None:
        """End now: a running callback is finished, messages waiting for its callbacks are lost.

        The last one terminates the slices. A callback that does not return in `timeout` seconds is left behind in its
        daemon thread, and an error is logged.
        """
        self.request_end(at_once=True)
        if self.supervisor.is_own_thread():
            return
        first_s = min(timeout, _COMPILING_END_S)
        if self.wait_ended(first_s) or self.supervisor.slices.is_compiling or self.wait_ended(timeout - first_s):
            return
        where = "its thread is left behind" if self._own is SubscriberLife.RUNNING else "it runs on a shared worker"
        log.error("a callback did not return in %s s; %s", timeout, where)

    def wait_ended(self, timeout: float = float("inf")) -> bool:
        """Wait for its end; return True if it has ended."""
        deadline = time.monotonic() + timeout
        with self.supervisor.changed:
            while self.state is not SubscriberLife.ENDED:
                if time.monotonic() >= deadline:
                    return False
                self.supervisor.changed.wait(TICK_S)
        return True

    def request_end(self, *, at_once: bool = False) -> None:
        """Remove its callbacks from the slices, or end the slices if it is the last one; return without waiting.

        Unless `at_once`, messages waiting for its callbacks are delivered.
        """
        supervisor, registered = self.supervisor, self.registered
        supervisor.check_process()
        with supervisor.lock:
            if self._own is SubscriberLife.NEW:
                self._enter(SubscriberLife.ENDED)
                self._sharers.forget(registered)
            is_last = self._sharers.present == (registered,) or supervisor.state not in _SHARED
            leaves = self._own is SubscriberLife.RUNNING and not is_last
            if at_once and (leaves or self._own is SubscriberLife.STOPPING):
                for callback in registered.callbacks:
                    callback.active = False
                    supervisor.slices.remove(callback)
            if leaves:
                self._enter(SubscriberLife.STOPPING)
                for stream in registered.streams:
                    stream._queue.end(at_once=at_once)
                self._sharers.leave(registered, supervisor.slices.version + 1)
                supervisor.renew()
                supervisor.slices.settings.news.poke()
            if self._own is SubscriberLife.RUNNING:
                supervisor.request_end(at_once=at_once)

    def raise_failure(self) -> None:
        """Raise the error that ended it, if any; later errors of the slices are not its own."""
        if self._own is not SubscriberLife.ENDED and not self._has_left:
            self.supervisor.raise_failure()

    @property
    def is_finished(self) -> bool:
        """True once it has ended, or the publishers of its slices have and everything was passed to the workers."""
        return self.state is SubscriberLife.ENDED or self.supervisor.slices.have_finished(self._foreign())

    @property
    def is_done(self) -> bool:
        """True if all threads that ran its callbacks have ended or no longer run them."""
        if self._own is SubscriberLife.RUNNING:
            return self.supervisor.slices.is_done
        return self.state in (SubscriberLife.NEW, SubscriberLife.ENDED)
