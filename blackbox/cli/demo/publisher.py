"""The demo's publishing process: it publishes the session, or a recording of it, as often as it is told to."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from typing import Final

import msgspec

from blackbox.cli.demo.rehearsal import rehearse
from blackbox.cli.demo.session import Session
from blackbox.cli.feeds import open_with_options
from blackbox.errors import BlackBoxError
from blackbox.feed import Feed
from blackbox.publisher import Publisher, PublisherStatistics
from blackbox.recording import Recording
from blackbox.replay.replay import Replay, ReplayStatistics

BLOCK_BYTES: Final = 1_048_576
"""Large blocks: what a block costs is shared by some twenty thousand messages."""
QUEUE_BLOCKS: Final = 4
"""At every bound on the way: the lag of a session at full speed is the time in queues."""
_FLUSH_S: Final = 600.0


class Order(msgspec.Struct, frozen=True):
    """What the demo asks of its publishing process at first: a session in memory."""

    feed: Feed
    spec: str
    options: list[str]
    messages: int | None
    """At most so many of the source; None: all."""


class Publish(msgspec.Struct, frozen=True):
    """Publish the session."""


class Play(msgspec.Struct, frozen=True):
    """Replay a recording of it on the wire."""

    days: list[str]
    """Directories."""
    speed: float | None = None
    start: int | None = None
    stop: int | None = None


class Progress(msgspec.Struct, frozen=True):
    """Messages prepared so far."""

    messages: int


class Ready(msgspec.Struct, frozen=True):
    """A publisher is open, and waits for word."""


class Published(msgspec.Struct, frozen=True):
    """Everything has been handed to ZeroMQ."""

    statistics: PublisherStatistics
    seconds: float
    replay: ReplayStatistics | None = None


class Failed(msgspec.Struct, frozen=True):
    """The process ends because of an error."""

    text: str


def run_publisher(order: Order, pipe: Connection) -> None:
    """Prepare the session, report, then do as told until the pipe is closed. The process's main function."""
    try:
        source = open_with_options(order.spec, order.options, order.feed)
        session = Session(source, order.messages, lambda messages: pipe.send(Progress(messages)))
        pipe.send(session.prepared(order.feed))
        while True:
            _do(pipe.recv(), session, order.feed, pipe)
    except BlackBoxError as error:
        pipe.send(Failed(str(error)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the demo has ended


def _do(task: Publish | Play, session: Session, feed: Feed, pipe: Connection) -> None:
    replay = None
    if isinstance(task, Play):
        recordings = [Recording.open(day) for day in task.days]
        if task.speed is not None:
            rehearse(recordings, task.start, task.stop)
        replay = Replay(recordings, speed=task.speed, start=task.start, stop=task.stop)
    with Publisher(feed, when_full="wait", hwm_blocks=QUEUE_BLOCKS) as publisher:
        session.announce(publisher)
        pipe.send(Ready())
        pipe.recv()
        publisher.wait_for_subscribers(b"", timeout=240.0)
        started = time.monotonic()
        played = None
        if replay is None:
            session.publish(publisher)
        else:
            played = replay.publish(publisher)
        publisher.flush(_FLUSH_S)
        seconds = time.monotonic() - started
        publisher.close(_FLUSH_S)
        pipe.send(Published(publisher.statistics(), seconds, played))
