"""Ours: a publisher and a recorder as two processes; and a recording replayed in the process of its callbacks."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import msgspec

from bench.contest import expect
from bench.recorded import wait_until_recorded
from bench.rivals.ours import callback_of, publish
from blackbox import Feed, Recorder, Recording, Subscriber

if TYPE_CHECKING:
    from typing import Any

    from bench.rivals.orders import Orders

__all__ = ["publish", "receive", "replay"]


def receive(orders: Orders) -> None:
    """Record what is published, read it back when the clock has stopped."""
    feed = msgspec.convert(orders.arguments["feed"], Feed)
    orders.ready()
    for messages in orders:
        with TemporaryDirectory(dir=orders.arguments["directory"]) as directory:
            recorder = Recorder(feed, directory, fsync="interval")
            with recorder:
                orders.receiving()
                wait_until_recorded(recorder, messages, every_s=0.001)
                ended = time.perf_counter()
            expect("lost", recorder.statistics().lost, 0)
            (day,) = (path for path in Path(recorder.directory).iterdir() if path.is_dir())
            orders.received(ended, _read(day, "compiled", messages), messages)


def _read(day: Path, form: str, messages: int) -> Any:
    recording = Recording.open(day)
    subscriber = Subscriber(recording.feed)
    state = callback_of(form)(subscriber, messages)
    subscriber.replay(recording)
    return state()


def replay(orders: Orders) -> None:
    """Replay a recorded day to callbacks, as often as ordered."""
    orders.ready()
    for messages in orders:
        started = time.perf_counter()
        state = _read(Path(orders.arguments["day"]), orders.form, messages)
        orders.tallied(started, time.perf_counter(), state, messages)
