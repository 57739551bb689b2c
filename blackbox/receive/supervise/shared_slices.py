"""A subscriber's share of a supervisor with its slices and threads, and its own life among the sharers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from blackbox.block.position import Position
from blackbox.errors import SubscriberError
from blackbox.feed.symbol_choice import ALL_TOPICS, TopicChoice, starts_by_slice
from blackbox.receive.slices.catching_up import Since
from blackbox.receive.stream import Stream
from blackbox.receive.supervise.sharers import Registered
from blackbox.receive.supervise.supervisor import SubscriberLife, Supervisor

log = logging.getLogger("blackbox")

_SHARED = (SubscriberLife.NEW, SubscriberLife.RUNNING)
"""Stages of a supervisor in which subscribers may join and leave."""


class Share:
    """Adds and removes one subscriber's callbacks, while others use the same slices. The last one ends the slices.

    Life: the supervisor's from `start` on, unless it leaves before the last one: then it is STOPPING until messages for
    its callbacks are delivered. An error in a slice, or in a callback of any subscriber, ends all of them.
    """

    def __init__(self, supervisor: Supervisor) -> None:
        self.registered = Registered()
        self._supervisor, self._sharers = supervisor, supervisor.sharers
        self._own = SubscriberLife.NEW
        """RUNNING: see the supervisor. STOPPING: it has left, or is leaving."""

    @property
    def state(self) -> SubscriberLife:
        """Current stage of its life."""
        if self._own is SubscriberLife.STOPPING and self._supervisor.state is not SubscriberLife.ENDED:
            return SubscriberLife.ENDED if self._has_left else SubscriberLife.STOPPING
        return self._own if self._own in (SubscriberLife.NEW, SubscriberLife.ENDED) else self._supervisor.state

    @property
    def _has_left(self) -> bool:
        """True if it has ended before the last one."""
        return self._own is SubscriberLife.STOPPING and self.registered not in self._sharers.leaving

    def _enter(self, life: SubscriberLife) -> None:
        """Enter `life`. Raises RuntimeError if it cannot follow the current stage."""
        self._own = self._own.enter(life, f"share of feed {self._supervisor.feed.name!r}")

    def check_new(self) -> None:
        """Raise SubscriberError unless it can be started."""
        if self._own is not SubscriberLife.NEW:
            raise SubscriberError(f"start was called when {self.state}; a subscriber is used once")
        if self._supervisor.state not in _SHARED:
            raise SubscriberError("start was called after the shared slices had ended")

    def start(self, timeout: float | None, since: Callable[[int], Since | None] | None = None) -> None:
        """Start the slices, or join running ones; return when the callbacks' filters are confirmed.

        Raises the same errors as `Supervisor.start`; SubscriberError for a start in the past or timers in running
        slices.
        """
        supervisor = self._supervisor
        with supervisor.lock:
            self.check_new()
            self._enter(SubscriberLife.RUNNING)
            self._sharers.join(self.registered)
        try:
            with supervisor.lock:
                if supervisor.state is SubscriberLife.NEW and self._own is SubscriberLife.RUNNING:
                    supervisor.begin(since)
                else:
                    self._join(since)
            self.wait_confirmed(timeout)
        except BaseException:
            self.terminate() if supervisor.is_watched else supervisor.terminate()
            raise

    def _join(self, since: Callable[[int], Since | None] | None) -> None:
        self.raise_failure()
        if self.state is not SubscriberLife.RUNNING:
            raise SubscriberError("the subscriber ended before it had started")
        if since is not None:
            raise SubscriberError("start was called with since or back, but the shared slices run already")
        if self.registered.timers:
            raise SubscriberError("every was called, but the shared slices run already: call it before start")
        self._supervisor.begin_cut(self.registered.streams)
        self._supervisor.renew()

    def _foreign(self) -> frozenset[int]:
        """Slices that it does not need."""
        return self._sharers.only_others_need(self.registered, self._supervisor.feed)

    def wait_confirmed(self, timeout: float | None, topics: TopicChoice = ALL_TOPICS) -> None:
        """Wait until publishers have confirmed the callbacks' filters in slices with some topics.

        Raises the same errors as `start`; and, once, a refusal of a prefix of such topics.
        """
        feed = self._supervisor.feed
        others = frozenset(range(len(feed.slices))) - starts_by_slice(feed, topics.starts).keys()
        check = partial(self.registered.raise_refusal, topics.prefixes)
        self._supervisor.wait_confirmed(timeout, self._foreign() | others, self, check)

    def renew(self) -> None:
        """Apply what is registered now, if it was started."""
        if self._own is SubscriberLife.RUNNING:
            self._supervisor.renew()

    def add_stream(self, stream: Stream) -> None:
        """Include a stream in checkpoints from now on, also in a current one. Call with the lock held."""
        self.registered.streams.append(stream)
        if self._own is SubscriberLife.RUNNING:
            self._supervisor.begin_cut([stream])

    @contextmanager
    def checkpoint(self, timeout: float, by_reader: bool = False) -> Iterator[dict[int, Position]]:
        """Pause all callbacks of all sharers: see `Supervisor.checkpoint`."""
        if self._own is not SubscriberLife.RUNNING and self._supervisor.state is not SubscriberLife.NEW:
            when = "before start" if self._own is SubscriberLife.NEW else "when it had left the slices to others"
            raise SubscriberError(f"checkpoint was called {when}")
        with self._supervisor.checkpoint(timeout, by_reader) as positions:
            yield positions

    def run(
        self,
        start: Callable[[float | None], object],
        *,
        until_end: bool,
        timeout: float | None,
        silence_timeout: float | None,
    ) -> None:
        """Start, wait, stop: see `Supervisor.run`."""
        self._supervisor.run(start, until_end=until_end, timeout=timeout, silence_timeout=silence_timeout, who=self)

    def check_silence(self, silence_timeout: float | None) -> None:
        """Raise SilentPublisherError if a needed slice has received nothing for `silence_timeout` seconds."""
        if self._own is SubscriberLife.RUNNING and silence_timeout is not None:
            self._supervisor.check_silence(silence_timeout, self._foreign())

    def stop(self, timeout: float = 30.0) -> None:
        """Deliver queued messages to its callbacks, then leave; the last one ends the slices. See `Supervisor.stop`."""
        self._supervisor.check_may_wait()
        if not self._leave(at_once=False):
            self._supervisor.stop(timeout)
        elif self._supervisor.is_own_thread():
            return
        elif not self.wait_ended(timeout):
            self.ask_to_terminate()
            raise SubscriberError(f"stop was not done in {timeout} s: a callback did not keep up")
        self.raise_failure()

    def request_stop(self) -> None:
        """Do the same as `stop`, but return at once."""
        if not self._leave(at_once=False):
            self._supervisor.request_stop()

    def terminate(self, timeout: float = 5.0) -> None:
        """End now: messages waiting for its callbacks are lost. The last one terminates the slices."""
        if not self._leave(at_once=True):
            self._supervisor.terminate(timeout)
        elif not self._supervisor.is_own_thread() and not self.wait_ended(timeout):
            log.error("a callback did not return in %s s on a worker that is shared", timeout)

    def ask_to_terminate(self) -> None:
        """Do the same as `terminate`, but return at once."""
        if not self._leave(at_once=True):
            self._supervisor.ask_to_terminate()

    def wait_ended(self, timeout: float = float("inf")) -> bool:
        """Wait for its end; return True if it has ended."""
        return self._supervisor.wait_ended(timeout, self)

    def _leave(self, *, at_once: bool) -> bool:
        """Remove its callbacks from the slices. Return False if it is the last one and must end the slices."""
        supervisor = self._supervisor
        supervisor.check_process()
        with supervisor.lock:
            if self._own is SubscriberLife.NEW:
                self._enter(SubscriberLife.ENDED)
                self._sharers.forget(self.registered)
            is_last = self._sharers.present == (self.registered,)
            leaves = self._own is SubscriberLife.RUNNING and not is_last and supervisor.state in _SHARED
            if at_once and (leaves or self._own is SubscriberLife.STOPPING):
                for callback in self.registered.callbacks:
                    callback.active = False
                    supervisor.remove(callback)
            if leaves:
                self._enter(SubscriberLife.STOPPING)
                for stream in self.registered.streams:
                    stream._queue.end(at_once=at_once)
                supervisor.leave(self.registered)
            return self._own is not SubscriberLife.RUNNING

    def raise_failure(self) -> None:
        """Raise the error that ended it, if any; later errors of the slices are not its own."""
        if self._own is not SubscriberLife.ENDED and not self._has_left:
            self._supervisor.raise_failure()

    @property
    def is_finished(self) -> bool:
        """Return True once it has ended, or the publishers of all its slices have: see `Supervisor.is_finished`."""
        return self.state is SubscriberLife.ENDED or self._supervisor.have_finished(self._foreign())

    @property
    def is_done(self) -> bool:
        """True if all threads that ran its callbacks have ended or no longer run them."""
        if self._own is SubscriberLife.RUNNING:
            return self._supervisor.is_done
        return self.state in (SubscriberLife.NEW, SubscriberLife.ENDED)
