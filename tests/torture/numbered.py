"""Messages that carry their own place: of which run they are, and which number; and what of them has come."""

from __future__ import annotations

import threading

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


def numbers_of(batch: Batch) -> NDArray[numpy.int64]:
    """Return run and number of each message of a batch."""
    return batch.payloads().view(numpy.int64)


class Numbers:
    """Follows the messages of one callback: give `batch` to `Subscriber.on_batch`."""

    def __init__(self) -> None:
        self.defects: list[str] = []
        self.received: dict[int, int] = {}
        """Messages by run."""
        self.missing = 0
        """Numbers that were passed over between two messages of a run, or before its first."""
        self._last = (-1, -1)
        self._changed = threading.Condition()

    def batch(self, batch: Batch) -> None:
        """Take in what has come."""
        rows = numbers_of(batch)
        run, first, last = int(rows[0, 0]), int(rows[0, 1]), int(rows[-1, 1])
        with self._changed:
            then = self._last[1] if run == self._last[0] else -1
            if run < self._last[0] or first <= then:
                self.defects.append(f"run {run}, number {first} came behind run {self._last[0]}, number {then}")
            if (rows[:, 0] != run).any() or (numpy.diff(rows[:, 1]) != 1).any():
                self.defects.append(f"a batch of run {run} from number {first} was not in sequence")
            if (rows[:, 1] - rows[0, 1] != batch.sequence - batch.sequence[0]).any():
                self.defects.append(f"run {run}, number {first}: sequence numbers did not go with the messages")
            self.missing += first - then - 1
            self.received[run] = self.received.get(run, 0) + len(rows)
            self._last = run, last
            self._changed.notify_all()

    def wait(self, run: int, count: int, timeout: float = 60.0) -> None:
        """Wait until so many messages of a run have come. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.received.get(run, 0) >= count, timeout):
                raise TimeoutError(f"{self.received.get(run, 0)} messages of run {run} came in {timeout} s")
