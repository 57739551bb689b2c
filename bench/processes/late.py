"""Latency of the messages of a paced run, and verification of their contents."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import numpy
from numpy.typing import NDArray

from bench.measure.contest import Lost, expect
from bench.workload.load import TIME_BYTES, Load, due_ns
from bench.workload.tally import sum_of

PERCENTS: Final = (50.0, 90.0, 99.0, 99.9, 99.99, 100.0)
_LEAST_ABOVE: Final = 10
"""Minimum number of messages above a percentile for it to be reported."""


def percentiles_us(late_ns: NDArray[numpy.int64], lost: int = 0) -> dict[str, float]:
    """Return percentiles as `Contest.percentiles` takes them, computed from all messages without a histogram.

    A lost message has infinite latency. Percentiles that are infinite or have fewer than 10 messages above them are
    left out; p100 is the maximum.
    """
    late = numpy.concatenate((late_ns / 1e3, numpy.full(lost, numpy.inf)))
    if not len(late):
        return {}
    values = numpy.percentile(late, PERCENTS, method="higher").tolist()
    return {
        f"p{percent:g}": value
        for percent, value in zip(PERCENTS, values, strict=True)
        if numpy.isfinite(value) and (percent == 100 or round(len(late) * (100 - percent), 6) >= 100 * _LEAST_ABOVE)
    }


def check_late(load: Load, began: int, seen: NDArray[Any], dues: NDArray[Any], firsts: NDArray[Any]) -> dict[str, Any]:
    """Check the messages received in a paced run; return fields of `Heard`. Raises Lost.

    `seen`, `dues` and `firsts` hold each message's arrival and due time (unix ns) and first payload byte. Order is
    always checked; payloads are checked if due times identify messages, or if the run is complete.
    """
    offsets = dues - began
    expect("messages out of order", int((numpy.diff(offsets) < 0).sum()), 0)
    if load.at_once == 1:
        pool = load.pool.payloads[:, 0]
        numbers = numpy.searchsorted(due_ns(load), offsets)
        expect("messages twice", int((numpy.diff(numbers) <= 0).sum()), 0)
        expect("checksum", int(firsts.sum()), int(pool[numbers % len(pool)].sum(dtype=numpy.int64)))
    elif len(firsts) == load.messages:
        expect("checksum", int(firsts.sum()), sum_of(load))
    missed = load.messages - len(seen)
    return {
        "messages": len(seen),
        "missed": missed,
        "ended": int(seen.max()) if len(seen) else 0,
        "late_us": percentiles_us(seen - dues, missed),
    }


class LateTally:
    """Arrivals of a paced run; `count(topic, data)` is the callback, and data is a pool index and a payload."""

    def __init__(self, on_last: Callable[[], object]) -> None:
        self._on_last = on_last
        self._messages = 0
        self._seen: list[int] = []
        self._frames: list[bytes] = []

    def begin(self, messages: int) -> None:
        """Reset the tally for `messages` messages."""
        self._messages, self._seen, self._frames = messages, [], []

    def count(self, _topic: Any, data: bytes) -> None:
        """Note a message and its arrival."""
        self._seen.append(time.time_ns())
        self._frames.append(b" " + data)
        if len(self._seen) == self._messages:
            self._on_last()

    def found(self, load: Load, began: int) -> dict[str, Any]:
        """Return fields of `Heard`. Raises Lost."""
        return late_frames(load, self._seen, self._frames, began)


def late_frames(load: Load, seen: list[int], found: list[bytes], began: int) -> dict[str, Any]:
    """Like `check_late`, for a rival's frames: topic, blank, pool index, payload. Raises Lost."""
    if load.messages > len(load.pool.topic_index):
        raise Lost(f"a paced run had {load.messages:,} messages, more than the pool")
    texts = [frame.partition(b" ")[2] for frame in found]
    numbers = numpy.array([int.from_bytes(text[:TIME_BYTES], "little") for text in texts], numpy.int64)
    firsts = numpy.array([text[TIME_BYTES] for text in texts], numpy.int64)
    return check_late(load, began, numpy.array(seen, numpy.int64), due_ns(load)[numbers] + began, firsts)
