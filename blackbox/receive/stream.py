"""A stream: messages that wait until they are pulled, in a loop, one by one, or in asyncio."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from operator import length_hint
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from blackbox.arguments import Duration, seconds
from blackbox.block.batch.batch import Batch
from blackbox.block.position import Position
from blackbox.errors import SubscriberError
from blackbox.receive.stream_queue import StreamQueue, WhenFull

__all__ = ["Stream", "WhenFull"]

_NOTHING: Final = object()


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


class Stream:
    """Messages or batches, in the order of a batch callback, waiting to be pulled by one reader.

    `for message in stream` and `async for message in stream` end with the subscriber, or the replay, after the
    remaining messages; they raise the error that ended it. Messages left after a `break` stay for the next loop. For a
    checkpoint, an item is done once the reader requests the next one, or makes the checkpoint itself.
    """

    def __init__(
        self,
        queue: StreamQueue,
        batches: bool,
        raise_failure: Callable[[], None],
        remove: Callable[[Stream], None],
    ) -> None:
        """`raise_failure` raises the error that ended the subscriber; `remove` removes the stream's callback."""
        self.prefix, self._queue, self.batches = queue.prefix, queue, batches
        self._raise_failure, self._remove = raise_failure, remove
        self._current: Iterator[Any] = iter(())
        self._taking: Batch | None = None
        """Batch of the items of `_current`, until its reader requests the next batch."""
        self._done: dict[int, Position] = {}
        """By slice, the end of earlier batches."""
        self._left: Iterator[int] = iter(())
        """Counts down the remaining items of the batch."""
        self._reader: _Reader | None = None
        """Reader that took the batch."""

    def __repr__(self) -> str:
        queue = self._queue
        return f"Stream({queue.prefix!r}, {queue.messages} of {queue.limit} messages waiting)"

    def _undone(self, by_reader: bool) -> dict[int, Position]:
        """Return the first message that the reader has not finished, for each slice with such messages.

        The items before the last request are finished. `by_reader`: the reader itself calls, so its last item is
        finished too. Raises SubscriberError if no position is exact: within an image, or if the reader itself took
        later messages of other keys while a line lacked one.
        """
        found: dict[int, Position] = {}
        with self._queue.changed:
            is_reader = by_reader and self._reader == _Reader.now()
            done = dict(self._done)
            if (taking := self._taking) is not None:
                items = 1 if self.batches else len(taking)
                first = items - length_hint(self._left) - (not is_reader)
                if first < items:
                    found[taking.block.slice_id] = self._undone_from(taking, max(0, first))
                if first > 0:
                    _add_end(done, taking, -1 if first == items else first - 1)
            for batch in self._queue.batches:
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

    @property
    def dropped(self) -> int:
        """Messages dropped by "drop_oldest"."""
        return self._queue.dropped

    @property
    def failure(self) -> BaseException | None:
        """Error that ends this stream, or None; its reader gets it after all earlier messages."""
        return self._queue.failure

    def _take_over(self) -> None:
        """Make the caller the reader, which has finished what was taken before its next checkpoint."""
        with self._queue.changed:
            self._reader = _Reader.now()

    def get(self, timeout: Duration | None = None) -> Any:
        """Return the next message or batch.

        Raises TimeoutError if none arrives within `timeout` seconds (None: no limit); SubscriberError or the
        subscriber's error after the end of the stream.
        """
        item = next(self._current, _NOTHING)
        if item is not _NOTHING:
            return item
        if not self._turn_over(seconds("timeout", timeout)):
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
                    self._queue.awake(sleeper)
            elif not self._turn_over(0):
                self._raise_what_ended_it()
                raise StopAsyncIteration
        return item

    def close(self) -> None:
        """End the stream and remove its callback; waiting messages are dropped."""
        self._queue.end()
        self._remove(self)
        with self._queue.changed:
            self._queue.clear()
            self._taking = None
        self._current = iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _raise_what_ended_it(self) -> None:
        if self._queue.failure is not None:
            raise self._queue.failure
        self._raise_failure()

    def _turn_over(self, timeout: float | None) -> bool:
        """Make the oldest waiting batch the current one, waiting for one if necessary; return False at the end."""
        with self._queue.changed:
            self._finish()
            if (batch := self._queue.take(timeout)) is None:
                return False
            self._taking = batch
            self._left = left_items = iter(range(1 if self.batches else len(batch)))
            self._reader = _Reader.now()
        self._current = (batch for _ in left_items) if self.batches else batch.messages(left_items)
        return True

    def _finish(self) -> None:
        """Note that the reader has finished the batch that it took last."""
        if self._taking is not None:
            _add_end(self._done, self._taking, -1)
            self._taking = None

    def _asleep(self) -> asyncio.Future[None] | None:
        """Return a future that is done once `_turn_over` can proceed; None: it can now."""
        with self._queue.changed:
            self._finish()
            return self._queue.sleep()


def _add_end(ends: dict[int, Position], batch: Batch, item: int) -> None:
    """Note that the items of a batch up to `item` (-1: the last one) are done."""
    block = batch.block
    row = item if batch.rows is None else int(batch.rows[item])
    if not batch.is_image:
        end = Position(block.epoch, block.number_of(row) + 1)
        ends[block.slice_id] = max(end, ends.get(block.slice_id, end))
