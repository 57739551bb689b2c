"""The queue of a stream: batches from the threads of callbacks, waiting for one reader."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Literal, get_args

from blackbox.arguments import check_integers
from blackbox.block.batch.batch import Batch
from blackbox.errors import SubscriberError
from blackbox.life import Life
from blackbox.native.system.waits import step_of

log = logging.getLogger("blackbox")

WhenFull = Literal["wait", "drop_oldest", "stop"]
_MOST_BYTES: Final = 64 << 20
"""Most bytes of waiting blocks: a waiting message keeps its whole block."""
_LOOK_S: Final = 0.25
"""Interval at which the event loop of a sleeping task wakes."""


def _wake_loop(sleeper: asyncio.Future[None]) -> None:
    """Wake the event loop now and then while a task sleeps: only then does Jupyter's kernel notice an interrupt."""
    if not sleeper.done():
        sleeper.get_loop().call_later(_LOOK_S, _wake_loop, sleeper)


class StreamLife(Life):
    """Stages in the life of a stream."""

    OPEN = "open", "open", "ending", "ended"
    """Messages arrive, up to the limit. ENDING when the subscriber stops, ENDED at its end."""
    ENDING = "ending", "ended", "open"
    """The remaining messages arrive without a limit. ENDED follows; OPEN if a replay was stopped as it began."""
    ENDED = "ended", "ended", "open"
    """Waiting messages can still be read. A second end does nothing; OPEN when another replay begins."""


class StreamQueue:
    """Batches waiting for the reader of a stream. Life: see `StreamLife`.

    Attributes: `batches`, and their `messages`; `dropped`, messages dropped by "drop_oldest"; `failure`, the error that
    ends the stream; `changed`, the lock; `is_cut`, True to suspend the limit during a checkpoint; `on_change`, called
    when a batch arrives or the stream ends, without blocking, set before the subscriber starts.
    """

    def __init__(self, prefix: bytes, limit: int, when_full: WhenFull) -> None:
        """`when_full`: policy for more than `limit` messages."""
        check_integers(("limit", limit, 1, 1 << 40))
        if when_full not in get_args(WhenFull):
            raise ValueError(f"when_full was {when_full!r}, expected one of: {', '.join(get_args(WhenFull))}")
        self.prefix, self.limit, self._when_full = prefix, limit, when_full
        self.changed = threading.Condition()
        self.batches: deque[Batch] = deque()
        self.messages = self._bytes = self.dropped = 0
        self.is_cut = False
        self.failure: BaseException | None = None
        self.on_change: Callable[[], None] | None = None
        self._life = StreamLife.OPEN
        self._sleeper: asyncio.Future[None] | None = None
        """Future that a task waits for."""
        self._sleeps = False
        """True if the task must be woken."""

    def put(self, batch: Batch) -> None:
        """Add a batch: the callback. Raises SubscriberError without room and with the policy "stop"."""
        with self.changed:
            # No limit during the subscriber's end or a checkpoint: its queues bound what still arrives, and the reader
            # may be gone, or waiting itself.
            while self._life is StreamLife.OPEN and not self.is_cut and self._has_no_room(batch):
                if self._when_full == "wait":
                    self.changed.wait(step_of())
                elif self._when_full == "drop_oldest":
                    self._drop_oldest()
                else:
                    raise SubscriberError(
                        f"stream of {self.prefix!r} was full: {self.messages} messages waited in {self._bytes} bytes "
                        f"and {len(batch)} came, expected at most limit = {self.limit} in {_MOST_BYTES} bytes of blocks"
                    )
            if self._life is not StreamLife.ENDED:
                self.batches.append(batch)
                self.messages += len(batch)
                self._bytes += batch.block.body.nbytes
                self._wake()

    def _has_no_room(self, batch: Batch) -> bool:
        is_full = self.messages + len(batch) > self.limit or self._bytes + batch.block.body.nbytes > _MOST_BYTES
        return is_full and len(self.batches) > 0

    def _pop(self) -> Batch:
        oldest = self.batches.popleft()
        self.messages -= len(oldest)
        self._bytes -= oldest.block.body.nbytes
        return oldest

    def _drop_oldest(self) -> None:
        if not self.dropped:
            log.warning("stream of %r is full: the oldest of %d messages are dropped", self.prefix, self.messages)
        self.dropped += len(self._pop())

    def _wake(self) -> None:
        self.changed.notify_all()
        if self.on_change is not None:
            self.on_change()
        sleeper = self._sleeper  # it may be reset meanwhile
        if self._sleeps and sleeper is not None:
            self._sleeps = False
            with suppress(RuntimeError):  # its loop is closed
                sleeper.get_loop().call_soon_threadsafe(_finish, sleeper)

    def take(self, timeout: float | None) -> Batch | None:
        """Wait for the oldest batch and remove it; None: the stream has ended. Raises TimeoutError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self.changed:
            while not self.batches:
                if self._life is StreamLife.ENDED:
                    return None
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"stream of {self.prefix!r}: nothing came in {timeout:.3g} s")
                self.changed.wait(step_of(left))
            self.changed.notify_all()
            return self._pop()

    def sleep(self) -> asyncio.Future[None] | None:
        """Return a future that is done once `take` need not wait; None: it need not now. Raises for a second task."""
        if self._sleeper is not None and not self._sleeper.get_loop().is_closed():
            raise SubscriberError(f"stream of {self.prefix!r} was read by two tasks at once, expected one")
        with self.changed:
            self._sleeps = not (self.batches or self._life is StreamLife.ENDED)
            self._sleeper = asyncio.get_running_loop().create_future() if self._sleeps else None
            if self._sleeper is not None:
                _wake_loop(self._sleeper)
            return self._sleeper

    def awake(self, sleeper: asyncio.Future[None]) -> None:
        """End the wait for a future."""
        if self._sleeper is sleeper:  # another task may have replaced one of a closed loop
            self._sleeper = None

    def begin(self) -> None:
        """Accept messages: another replay begins."""
        with self.changed:
            self._enter(StreamLife.OPEN)
            self.failure = None

    def end(self, *, at_once: bool = True, failure: BaseException | None = None) -> None:
        """End, with the subscriber's error, if any.

        Unless `at_once`, the remaining messages come first, without a limit.
        """
        with self.changed:
            if at_once:
                self._enter(StreamLife.ENDED)
            elif self._life is StreamLife.OPEN:
                self._enter(StreamLife.ENDING)
            self.failure = self.failure or failure
            self._wake()

    def cut(self, *, begins: bool) -> None:
        """Suspend the limit so that everything handed over can arrive, or apply it again."""
        with self.changed:
            self.is_cut = begins
            self.changed.notify_all()

    def clear(self) -> None:
        """Drop what is waiting."""
        with self.changed:
            self.batches.clear()
            self.messages = self._bytes = 0

    def _enter(self, life: StreamLife) -> None:
        """Enter `life`. Raises RuntimeError if it cannot follow the current stage."""
        self._life = self._life.enter(life, f"stream of {self.prefix!r}")


def _finish(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
