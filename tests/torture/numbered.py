"""Messages that carry their run and number, and a check of the messages received."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy
from numpy.typing import NDArray

from blackbox import Batch, Publisher

TOPIC = (b"T",)


def publish_numbered(publisher: Publisher, run: int, first: int, count: int) -> None:
    """Publish messages `first` to `first + count - 1` of a run."""
    rows = numpy.empty((count, 2), numpy.int64)
    rows[:, 0] = run
    rows[:, 1] = numpy.arange(first, first + count)
    publisher.publish_many(TOPIC, numpy.zeros(count, numpy.int32), rows.view(numpy.uint8))


@contextmanager
def publishing(publisher: Publisher, count: int) -> Iterator[Callable[[], int]]:
    """Publish run 0 in a thread, `count` messages per call. Yield a function that returns the number published."""
    published, ending = 0, threading.Event()

    def publish() -> None:
        nonlocal published
        while not ending.is_set():
            publish_numbered(publisher, 0, published, count)
            published += count

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield lambda: published
    finally:
        ending.set()
        thread.join(60)


def numbers_of(batch: Batch) -> NDArray[numpy.int64]:
    """Return run and number of each message of a batch."""
    return batch.payloads().view(numpy.int64)


class Numbers:
    """Checks the messages of one callback: pass `batch` to `Subscriber.on_batch`."""

    def __init__(self) -> None:
        self.defects: list[str] = []
        self.received: dict[int, int] = {}
        """Number of messages received by run."""
        self.missing = 0
        """Messages missing between two messages of a run, or before its first."""
        self._last = (-1, -1)
        self._changed = threading.Condition()

    def batch(self, batch: Batch) -> None:
        rows = numbers_of(batch)
        run, first, last = int(rows[0, 0]), int(rows[0, 1]), int(rows[-1, 1])
        with self._changed:
            then = self._last[1] if run == self._last[0] else -1
            if run < self._last[0] or first <= then:
                self.defects.append(f"run {run}, number {first} came after run {self._last[0]}, number {then}")
            if (rows[:, 0] != run).any() or (numpy.diff(rows[:, 1]) != 1).any():
                self.defects.append(f"a batch of run {run} from number {first} was not in sequence")
            if (rows[:, 1] - rows[0, 1] != batch.sequence - batch.sequence[0]).any():
                self.defects.append(f"run {run}, number {first}: sequence numbers do not match the messages")
            self.missing += first - then - 1
            self.received[run] = self.received.get(run, 0) + len(rows)
            self._last = run, last
            self._changed.notify_all()

    def wait(self, run: int, count: int, timeout: float = 60.0) -> None:
        """Wait until `count` messages of a run are received. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.received.get(run, 0) >= count, timeout):
                raise TimeoutError(f"{self.received.get(run, 0)} messages of run {run} were received in {timeout} s")
