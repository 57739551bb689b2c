"""A stream: messages that wait until they are pulled, in a loop, one by one, or in asyncio."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from operator import length_hint
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, Self, get_args

from blackbox.arguments import check_integers
from blackbox.block.batch.batch import Batch
from blackbox.block.position import Position
from blackbox.errors import SubscriberError
from blackbox.life import Life
from blackbox.native.system.waits import step_of

log = logging.getLogger("blackbox")

WhenFull = Literal["wait", "drop_oldest", "stop"]
_NOTHING: Final = object()
_MOST_BYTES: Final = 64 << 20
"""Most bytes of waiting blocks: a waiting message keeps its whole block."""


class _Reader(NamedTuple):
    """Identity of the reader: a thread, or a task in it."""

    thread: threading.Thread
    task: weakref.ref[asyncio.Task[Any]] | None

    @classmethod
    def now(cls) -> _Reader:
        try:
            task = asyncio.current_task()
        except RuntimeError:  # no loop runs in this thread
            task = None
        return cls(threading.current_thread(), None if task is None else weakref.ref(task))


class StreamLife(Life):
    """Stages in the life of a stream."""

    OPEN = "open", "open", "ending", "ended"
    """Messages arrive, up to the limit. ENDING when the subscriber stops, ENDED at its end."""
    ENDING = "ending", "ended", "open"
    """The remaining messages arrive without a limit. ENDED follows; OPEN if a replay was stopped as it began."""
    ENDED = "ended", "ended", "open"
    """Waiting messages can still be read. A second end does nothing; OPEN when another replay begins."""


class Stream:
    """Messages or batches, in the order of a batch callback, waiting to be pulled by one reader.

    `for message in stream` and `async for message in stream` end with the subscriber, or the replay, after the
    remaining messages; they raise the error that ended it. Messages left after a `break` stay for the next loop. For a
    checkpoint, an item is done once the reader requests the next one, or makes the checkpoint itself. `dropped`:
    messages dropped by "drop_oldest". Life: see `StreamLife`.
    """

    def __init__(
        self,
        prefix: bytes,
        limit: int,
        when_full: WhenFull,
        batches: bool,
        raise_failure: Callable[[], None],
        remove: Callable[[Stream], None],
    ) -> None:
        """`raise_failure` raises the error that ended the subscriber; `remove` removes the stream's callback."""
        check_integers(("limit", limit, 1, 1 << 40))
        if when_full not in get_args(WhenFull):
            raise ValueError(f"when_full was {when_full!r}, expected one of: {', '.join(get_args(WhenFull))}")
        self.prefix, self.limit, self.when_full, self.batches = prefix, limit, when_full, batches
        self.dropped = 0
        self._raise_failure, self._remove = raise_failure, remove
        self._changed = threading.Condition()
        self._waiting: deque[Batch] = deque()
        self._messages = self._bytes = 0
        self._current: Iterator[Any] = iter(())
        self._taking: Batch | None = None
        """Batch of the items of `_current`, until its reader requests the next batch."""
        self._done: dict[int, Position] = {}
        """By slice, the end of earlier batches."""
        self._left: Iterator[int] = iter(())
        """Counts down the remaining items of the batch."""
        self._reader: _Reader | None = None
        """Reader that took the batch."""
        self._is_cut = False
        self._life = StreamLife.OPEN
        self._failure: BaseException | None = None
        self._sleeper: asyncio.Future[None] | None = None
        """Future that a task waits for."""
        self._sleeps = False
        """True if the task must be woken."""
        self._on_change: Callable[[], None] | None = None
        """Called when a batch arrives or the stream ends; set before the subscriber starts. It must not block."""

    def __repr__(self) -> str:
        return f"Stream({self.prefix!r}, {self._messages} of {self.limit} messages waiting)"

    # In the threads of callbacks.

    def _put(self, batch: Batch) -> None:
        """Add a batch from the subscriber. Raises SubscriberError without room and with `when_full` "stop"."""
        with self._changed:
            # No limit during the subscriber's end or a checkpoint: its queues bound what still arrives, and the reader
            # may be gone, or waiting itself.
            while self._life is StreamLife.OPEN and not self._is_cut and self._has_no_room(batch):
                if self.when_full == "wait":
                    self._changed.wait(step_of())
                elif self.when_full == "drop_oldest":
                    self._drop_oldest()
                else:
                    raise SubscriberError(
                        f"stream of {self.prefix!r} was full: {self._messages} messages waited in {self._bytes} bytes "
                        f"and {len(batch)} came, expected at most limit = {self.limit} in {_MOST_BYTES} bytes of blocks"
                    )
            if self._life is not StreamLife.ENDED:
                self._waiting.append(batch)
                self._messages += len(batch)
                self._bytes += batch.block.body.nbytes
                self._wake()

    def _has_no_room(self, batch: Batch) -> bool:
        is_full = self._messages + len(batch) > self.limit or self._bytes + batch.block.body.nbytes > _MOST_BYTES
        return is_full and len(self._waiting) > 0

    def _take_oldest(self) -> Batch:
        oldest = self._waiting.popleft()
        self._messages -= len(oldest)
        self._bytes -= oldest.block.body.nbytes
        return oldest

    def _drop_oldest(self) -> None:
        if not self.dropped:
            log.warning("stream of %r is full: the oldest of %d messages are dropped", self.prefix, self._messages)
        self.dropped += len(self._take_oldest())

    def _wake(self) -> None:
        self._changed.notify_all()
        if self._on_change is not None:
            self._on_change()
        sleeper = self._sleeper  # it may be reset meanwhile
        if self._sleeps and sleeper is not None:
            self._sleeps = False
            with suppress(RuntimeError):  # its loop is closed
                sleeper.get_loop().call_soon_threadsafe(_wake, sleeper)

    # Checkpoints, called by the subscriber.

    def _begin_cut(self) -> None:
        """Suspend the limit until `_end_cut`, so that everything handed over can arrive."""
        with self._changed:
            self._is_cut = True
            self._changed.notify_all()

    def _end_cut(self) -> None:
        """Apply the limit again."""
        with self._changed:
            self._is_cut = False

    def _undone(self, by_reader: bool) -> dict[int, Position]:
        """Return the first message that the reader has not finished, for each slice with such messages.

        The items before the last request are finished. `by_reader`: the reader itself calls, so its last item is
        finished too. Raises SubscriberError if no position is exact: within an image, or if the reader itself took
        later messages of other keys while a line lacked one.
        """
        found: dict[int, Position] = {}
        with self._changed:
            is_reader = by_reader and self._reader == _Reader.now()
            done = dict(self._done)
            if (taking := self._taking) is not None:
                items = 1 if self.batches else len(taking)
                first = items - length_hint(self._left) - (not is_reader)
                if first < items:
                    found[taking.block.slice_id] = self._undone_from(taking, max(0, first))
                if first > 0:
                    _add_end(done, taking, -1 if first == items else first - 1)
            for batch in self._waiting:
                undone = self._undone_from(batch, 0)
                found[batch.block.slice_id] = min(undone, found.get(batch.block.slice_id, undone))
        for slice_id, undone in found.items() if is_reader else ():
            if undone < done.get(slice_id, undone):
                raise SubscriberError(
                    f"the reader of a stream of {self.prefix!r} has taken messages of slice {slice_id} up to "
                    f"{done[slice_id]}, but not {undone}, which came late: take it, then make the checkpoint"
                )
        return found

    def _undone_from(self, batch: Batch, item: int) -> Position:
        if batch.is_image:
            raise SubscriberError(f"the reader of a stream of {self.prefix!r} has not read the whole image yet")
        return Position(batch.block.epoch, int(batch.sequence[item]))

    # Life, controlled by the subscriber.

    def _begin(self) -> None:
        """Accept messages: another replay begins."""
        with self._changed:
            self._enter(StreamLife.OPEN)
            self._failure = None

    def _end(self, *, at_once: bool = True, failure: BaseException | None = None) -> None:
        """End, with the subscriber's error, if any.

        Unless `at_once`, the remaining messages come first, without a limit.
        """
        with self._changed:
            if at_once:
                self._enter(StreamLife.ENDED)
            elif self._life is StreamLife.OPEN:
                self._enter(StreamLife.ENDING)
            self._failure = self._failure or failure
            self._wake()

    def _enter(self, life: StreamLife) -> None:
        """Enter `life`. Raises RuntimeError if it cannot follow the current stage."""
        self._life = self._life.enter(life, f"stream of {self.prefix!r}")

    # For the reader.

    @property
    def failure(self) -> BaseException | None:
        """Error that ends this stream, or None; its reader gets it after all earlier messages."""
        return self._failure

    def get(self, timeout: float | None = None) -> Any:
        """Return the next message or batch.

        Raises TimeoutError if none arrives within `timeout` seconds (None: no limit); SubscriberError or the
        subscriber's error after the end of the stream.
        """
        item = next(self._current, _NOTHING)
        if item is not _NOTHING:
            return item
        if not self._turn_over(timeout):
            self._raise_what_ended_it()
            raise SubscriberError(f"stream of {self.prefix!r}: get was called after its end")
        return next(self._current)

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self._current
            if not self._turn_over(None):
                self._raise_what_ended_it()
                return

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        item = next(self._current, _NOTHING)
        if item is not _NOTHING:
            return item
        await asyncio.sleep(0)  # other tasks get a turn between batches, however many wait
        while (
            item := next(self._current, _NOTHING)
        ) is _NOTHING:  # another task may have called `_turn_over` meanwhile
            if (sleeper := self._asleep()) is not None:
                try:
                    await sleeper
                finally:
                    if self._sleeper is sleeper:  # another task may have replaced one of a closed loop
                        self._sleeper = None
            elif not self._turn_over(0):
                self._raise_what_ended_it()
                raise StopAsyncIteration
        return item

    def close(self) -> None:
        """End the stream and remove its callback; waiting messages are dropped."""
        self._end()
        self._remove(self)
        with self._changed:
            self._waiting.clear()
            self._messages = self._bytes = 0
            self._taking = None
        self._current = iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _raise_what_ended_it(self) -> None:
        if self._failure is not None:
            raise self._failure
        self._raise_failure()

    def _turn_over(self, timeout: float | None) -> bool:
        """Make the oldest waiting batch the current one, waiting for one if necessary; return False at the end."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            self._finish()
            while not self._waiting:
                if self._life is StreamLife.ENDED:
                    return False
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise TimeoutError(f"stream of {self.prefix!r}: nothing came in {timeout:.3g} s")
                self._changed.wait(step_of(left))
            batch = self._taking = self._take_oldest()
            self._left = left_items = iter(range(1 if self.batches else len(batch)))
            self._reader = _Reader.now()
            self._changed.notify_all()
        self._current = (batch for _ in left_items) if self.batches else batch.messages(left_items)
        return True

    def _finish(self) -> None:
        """Note that the reader has finished the batch that it took last."""
        if self._taking is not None:
            _add_end(self._done, self._taking, -1)
            self._taking = None

    def _asleep(self) -> asyncio.Future[None] | None:
        """Return a future that is done once `_turn_over` can proceed; None: it can now."""
        if self._sleeper is not None and not self._sleeper.get_loop().is_closed():
            raise SubscriberError(f"stream of {self.prefix!r} was read by two tasks at once, expected one")
        with self._changed:
            self._finish()
            self._sleeps = not (self._waiting or self._life is StreamLife.ENDED)
            self._sleeper = asyncio.get_running_loop().create_future() if self._sleeps else None
            return self._sleeper


def _add_end(ends: dict[int, Position], batch: Batch, item: int) -> None:
    """Note that the items of a batch up to `item` (-1: the last one) are done."""
    block = batch.block
    row = item if batch.rows is None else int(batch.rows[item])
    if not batch.is_image:
        end = Position(block.epoch, block.number_of(row) + 1)
        ends[block.slice_id] = max(end, ends.get(block.slice_id, end))


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
