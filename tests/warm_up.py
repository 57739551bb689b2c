"""Compile the code of most tests in advance, each worker a part, so that workers do not wait for each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy

from blackbox import Feed, Publisher, Recorder, Recording, Subscriber
from blackbox.testing import RawPublisher
from tests.callbacks import count_rows
from tests.patience import PATIENCE_S

_START_NS: Final = 1_767_571_200_000_000_000


def deliver() -> None:
    """Deliver a message from a publisher to a callback."""
    feed = Feed.local("warm-up", slices=1)
    subscriber = Subscriber(feed)
    subscriber.on(b"")(lambda _: None)
    with Publisher(feed) as publisher:
        subscriber.start(timeout=PATIENCE_S)
        publisher.publish(b"A.trade", b"")
    subscriber.run(until_end=True)


def _subscribe(_: Path) -> None:
    feed = Feed.local("warm-up", slices=1)
    subscriber = Subscriber(feed)
    subscriber.on(b"")(lambda _: None)
    with RawPublisher(feed):
        subscriber.start(timeout=PATIENCE_S)
        subscriber.stop()


def _publish(_: Path) -> None:
    with Publisher(Feed.local("warm-up", slices=1)) as publisher:
        publisher.publish(b"A.trade", b"")


def _record(place: Path) -> None:
    feed = Feed.local("warm-up", slices=1)
    with RawPublisher(feed):
        Recorder(feed, place / "recorded").start(timeout=PATIENCE_S).stop()


def _replay(place: Path) -> None:
    import pyarrow

    feed = Feed.local("warm-up", slices=2)
    columns = {"topic": [b"A.trade", b"B.trade"], "ts_event": [_START_NS, _START_NS + 1], "payload": [b"1", b"2"]}
    recording = Recording.create(place, feed, pyarrow.table(columns), date="2026-01-05")
    subscriber = Subscriber(feed)
    subscriber.on_batch(b"")(lambda _: None)
    subscriber.on(b"")(lambda _: None)
    subscriber.on_compiled(b"", state=numpy.zeros(1, numpy.int64))(count_rows)
    subscriber.replay(recording)


PARTS: Final[tuple[tuple[Callable[[Path], None], ...], ...]] = (
    (_subscribe,),
    (_replay,),
    (_publish, _record),
)
"""Parts by worker; further workers have none."""


def share(worker: int, place: Path) -> None:
    """Compile a worker's part."""
    for part in PARTS[worker] if worker < len(PARTS) else ():
        part(place)
