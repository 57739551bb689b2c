"""The publishing process: publish the session or replay its recording, once per task."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from typing import Final

import msgspec

from blackbox.archive.recording import Recording
from blackbox.cli.demo.session import Session
from blackbox.cli.demo.warmup import warm_up
from blackbox.cli.ui.feeds import open_with_options
from blackbox.errors import BlackBoxError
from blackbox.feed.feed import Feed
from blackbox.publish.publisher import Publisher, PublisherStatistics
from blackbox.replay.replay import Replay, ReplayStatistics

BLOCK_BYTES: Final = 1_048_576
"""Large blocks, of some twenty thousand messages each, reduce the cost per message."""
QUEUE_BLOCKS: Final = 4
"""Length of every queue. At full speed the lag is the time that blocks wait in queues."""
_FLUSH_S: Final = 600.0


class PublisherSetup(msgspec.Struct, frozen=True):
    """The source that the publishing process reads into memory, and the feed to publish it on."""

    feed: Feed
    spec: str
    options: list[str]
    messages: int | None
    """Limit of messages from the source; None: all."""


class PublishTask(msgspec.Struct, frozen=True):
    """Task: publish the session."""


class ReplayTask(msgspec.Struct, frozen=True):
    """Task: replay a recording of the session on the wire."""

    days: list[str]
    """Directories of recorded days."""
    speed: float | None = None
    start: int | None = None
    stop: int | None = None


class Progress(msgspec.Struct, frozen=True):
    """Reply: messages read so far."""

    messages: int


class Ready(msgspec.Struct, frozen=True):
    """Reply: a publisher is open, and waits for `go`."""


class Published(msgspec.Struct, frozen=True):
    """Reply: the task is done; ZeroMQ has taken every message."""

    statistics: PublisherStatistics
    seconds: float
    replay: ReplayStatistics | None = None


class Failed(msgspec.Struct, frozen=True):
    """Reply: the process ends because of an error."""

    text: str


def run_publisher(setup: PublisherSetup, pipe: Connection) -> None:
    """Read the session, then do each task until the pipe is closed. The process's main function."""
    try:
        source = open_with_options(setup.spec, setup.options, setup.feed)
        session = Session(source, setup.messages, lambda messages: pipe.send(Progress(messages)))
        pipe.send(session.summary(setup.feed))
        while True:
            _do(pipe.recv(), session, setup.feed, pipe)
    except BlackBoxError as error:
        pipe.send(Failed(str(error)))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the demo has ended


def _do(task: PublishTask | ReplayTask, session: Session, feed: Feed, pipe: Connection) -> None:
    replay = None
    if isinstance(task, ReplayTask):
        recordings = [Recording.open(day) for day in task.days]
        if task.speed is not None:
            warm_up(recordings, task.start, task.stop)
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
