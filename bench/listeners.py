"""Subscriber processes of a fan-out: each tells what it got of a paced run, when it is asked.

    blackbox   SUB ==> on_batch(b"")      what it does with a block: check it, note how late it is
    pyzmq      SUB --> recv() in a loop   the same, a frame at a time

A slow one sleeps at everything it gets, and so falls behind by more than `MAX_LAG_NS`.
"""

from __future__ import annotations

import json
import logging
import select
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, Literal

import msgspec
import numpy
import zmq

from bench.child import Child, orders
from bench.cost import cpu_seconds
from bench.loads import NUMBER_BYTES, Load, due_ns
from bench.receivers import percentiles_us, settle
from blackbox import Batch, SlowSubscriberError, Subscriber

MAX_LAG_NS: Final = 100_000_000
_SLEEP_S: Final = 0.05
_LOOK_MS: Final = 20
OnSlow = Literal["terminate", "warn"]


class Heard(msgspec.Struct, frozen=True, kw_only=True):
    """What one subscriber got."""

    messages: int
    out_of_order: int
    checksum: int
    """Sum of the first bytes of the payloads."""
    late_us: dict[str, float]
    """Percentiles of the time since a message was due."""
    cpu_s: float
    has_terminated: bool = False
    """It found that it was too slow, and ended."""


def listener(kind: Literal["blackbox", "pyzmq"]) -> Child:
    """Start such a process. Orders come in twos: a load, and, once the publisher is done, the question what came."""
    return Child("-m", "bench.listeners", kind)


def listen(children: Sequence[Child], load: Load, slow: Sequence[OnSlow | None]) -> None:
    """Let each subscribe; `slow` says which are, and what they do about it. Returns when all are connected."""
    for child, on_slow in zip(children, slow, strict=True):
        child.send({"load": msgspec.to_builtins(load), "on_slow": on_slow})
    for child in children:
        child.answer()


def heard(children: Sequence[Child], began: int) -> list[Heard]:
    """What each got of the run that began then."""
    for child in children:
        child.send({"began": began})
    return [msgspec.convert(child.answer(), Heard) for child in children]


def _blackbox(told: Iterator[Any]) -> None:
    for said in told:
        load, on_slow = msgspec.convert(said["load"], Load), said["on_slow"]
        settings = {"max_lag_ns": MAX_LAG_NS, "on_slow": on_slow} if on_slow else {}
        subscriber = Subscriber(load.feed, workers=1, **settings)
        seen: list[Any] = []
        dues: list[Any] = []
        sums: list[int] = []
        before = cpu_seconds()

        @subscriber.on_batch(b"")
        def note(batch: Batch, s: Any = seen, d: Any = dues, c: Any = sums, on_slow: Any = on_slow) -> None:
            s.append(numpy.full(len(batch), time.time_ns()))
            d.append(batch.ts_event.copy())
            c.append(int(batch.payloads()[:, 0].sum(dtype=numpy.int64)))
            if on_slow:
                time.sleep(_SLEEP_S)

        subscriber.start()
        _answer({})
        next(told)
        has_terminated = False
        if not on_slow:
            settle(subscriber, load.messages)
        try:
            (subscriber.terminate if on_slow == "warn" else subscriber.stop)()
        except SlowSubscriberError:
            has_terminated = True
        due = numpy.concatenate([numpy.empty(0, numpy.int64), *dues])
        late = numpy.concatenate([numpy.empty(0, numpy.int64), *seen]) - due
        _tell(due, late, sum(sums), cpu_seconds() - before, has_terminated)


def _pyzmq(told: Iterator[Any]) -> None:
    context = zmq.Context()
    for said in told:
        load, on_slow = msgspec.convert(said["load"], Load), said["on_slow"]
        socket = context.socket(zmq.SUB)
        socket.rcvtimeo = _LOOK_MS
        socket.linger = 0
        socket.connect(load.feed.slices[0].endpoints[0])
        socket.subscribe(b"")
        seen: list[int] = []
        frames: list[bytes] = []
        before = cpu_seconds()
        _answer({})
        receive, clock = socket.recv, time.time_ns
        while not _is_asked():
            with suppress(zmq.Again):
                while True:
                    frames.append(receive())
                    seen.append(clock())
                    if on_slow:
                        time.sleep(_SLEEP_S)
                        break
        began = next(told)["began"]
        socket.close()
        texts = [frame.partition(b" ")[2] for frame in frames]
        numbers = numpy.array([int.from_bytes(text[:NUMBER_BYTES], "little") for text in texts], numpy.int64)
        due = due_ns(load)[numbers] + began
        total = sum(text[NUMBER_BYTES] for text in texts)
        _tell(numbers, numpy.array(seen, numpy.int64) - due, total, cpu_seconds() - before)
    context.destroy(linger=0)


def _is_asked() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def _tell(order: Any, late: Any, checksum: int, cpu_s: float, has_terminated: bool = False) -> None:
    told = Heard(
        messages=len(late),
        out_of_order=int((numpy.diff(order) < 0).sum()),
        checksum=checksum,
        late_us=percentiles_us(late) if len(late) else {},
        cpu_s=cpu_s,
        has_terminated=has_terminated,
    )
    _answer(msgspec.to_builtins(told))


def _answer(what: Any) -> None:
    print(json.dumps(what), flush=True)


_KINDS: Final = {"blackbox": _blackbox, "pyzmq": _pyzmq}

if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # that it is slow is what it is there for
    _KINDS[sys.argv[1]](orders())
