"""The demo's runs of one session: live twice, recorded, replayed three ways; and their figures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from rich.status import Status as Spinner

from blackbox.archive.record.recorder import Recorder
from blackbox.archive.recording import Recording
from blackbox.cli.demo.callbacks import DemoCallbacks, trading_of
from blackbox.cli.demo.process import PublishingProcess
from blackbox.cli.demo.publisher import BLOCK_BYTES, QUEUE_BLOCKS, Published, PublisherSetup, PublishTask, ReplayTask
from blackbox.cli.demo.results import Results
from blackbox.cli.demo.session import SessionSummary
from blackbox.cli.demo.storage import Storage
from blackbox.cli.demo.trades import MAX_TOPICS
from blackbox.cli.demo.warmup import warm_up
from blackbox.cli.ui.live import follow
from blackbox.cli.ui.progress import ticking
from blackbox.cli.ui.terminal import say, stderr
from blackbox.feed.feed import Feed
from blackbox.numbers import count
from blackbox.receive.slow_subscriber import SlowPolicy
from blackbox.receive.statistics import Statistics
from blackbox.replay.replay import Replay
from blackbox.services.monitor.watch.watcher import Watcher
from blackbox.subscriber.subscriber import Subscriber

PACE: Final = 10.0
"""Speed of the paced replay, as a multiple of the market's pace."""
_PACED_S: Final = 2.0
_LEAST_PACED_S: Final = 1.0
"""A shorter paced run measures the start, not the pace."""
_NO_LIMIT_S: Final = 600.0
_START_S: Final = 240.0
"""Time limit for the other process's confirmation; it may have to compile first."""

LIVE: Final = "live"
"""In shared memory, if this machine supports it."""
OVER_TCP: Final = "live, over TCP"
RECORDED: Final = "recorded"
PACED: Final = f"replayed at {PACE:g} x"
ON_THE_WIRE: Final = "replayed on the wire"
IN_PROCESS: Final = "replayed in process"

CLASSIC_MESSAGES: Final = 2_880_000_000
"""The reference day: 100,000 messages a second for eight hours."""
_CLASSIC_S: Final = 28_800.0


class Run(NamedTuple):
    """Figures of one run of the session."""

    name: str
    messages: int
    lost: int
    """Messages that were sent but neither delivered nor recorded."""
    duplicated: int
    seconds: float
    market_seconds: float
    """Time that these messages took at the venue; 0 if unknown."""
    is_paced: bool = False
    """True if the speed was set, instead of as fast as possible."""

    @property
    def times_faster(self) -> float | None:
        """Return market time divided by the run's time; None if either is unknown, or a paced run was too short."""
        if self.is_paced and self.seconds < _LEAST_PACED_S:
            return None
        return self.market_seconds / self.seconds if self.seconds > 0 and self.market_seconds > 0 else None

    @property
    def classic_day_s(self) -> float | None:
        """Seconds for the reference day at this rate or, if paced, at this multiple of the market's pace."""
        if self.is_paced:
            return _CLASSIC_S / self.times_faster if self.times_faster else None
        return CLASSIC_MESSAGES * self.seconds / self.messages if self.messages and self.seconds > 0 else None


class DemoResult(NamedTuple):
    """The published session, and the results."""

    spec: str
    feed: Feed
    session: SessionSummary
    live: Received
    runs: list[Run]
    differences: dict[str, str]
    """First difference from the live run's results, by name of the run."""
    stored_bytes: int
    """Size of the recording on disk."""
    days: list[Path]
    """Directories of the recording."""


class Received(NamedTuple):
    """One run to callbacks: its figures, the subscriber's statistics, and the callbacks' results."""

    run: Run
    statistics: Statistics
    results: Results


class DemoRunner:
    """Owns the publishing process, and one subscriber or recorder at a time.

    Raises ConfigError if the demo does not support the source's schema.
    """

    def __init__(self, spec: str, options: list[str], messages: int | None, schema: str) -> None:
        trading_of(schema)
        feed = Feed.local("demo", slices=2, schema=schema, transport="shm")
        self.feed = msgspec.structs.replace(feed, block_bytes=BLOCK_BYTES, max_topics=MAX_TOPICS)
        self._spec = spec
        self._setup = PublisherSetup(self.feed, spec, options, messages)

    def run(self, storage: Storage) -> DemoResult:
        """Publish, record and replay the session; the recording goes to `storage`.

        Raises:
            PublisherError: the publishing process failed.
            SubscriberError: a subscriber failed.
            JournalError: the session could not be recorded, or its recording could not be read.
        """
        what = f"preparing {self._spec} in memory"
        with ExitStack() as stack, PublishingProcess(self._setup) as process, stderr.status(what) as spinner:
            session = process.wait_prepared(lambda messages: spinner.update(f"{what}: {count(messages)} messages"))
            storage.check_room(session)
            stack.enter_context(_page(self.feed))
            runs = Runs(self.feed, session, process, spinner)
            live = runs.receive(LIVE, PublishTask())
            over_tcp = runs.receive(OVER_TCP, PublishTask(), over_tcp=True)
            recorded = runs.record(storage)
            days = storage.days()
            moment = _moment(session, days)
            paced = runs.receive(PACED, moment)
            wire = runs.receive(ON_THE_WIRE, ReplayTask([str(day) for day in days]))
            here = runs.replay(moment)
        differences = {each.run.name: live.results.difference(each.results) for each in (over_tcp, wire, here)}
        return DemoResult(
            self._spec,
            self.feed,
            session,
            live,
            [live.run, over_tcp.run, recorded, paced.run, wire.run, here.run],
            {name: difference for name, difference in differences.items() if difference},
            storage.stored_bytes(),
            days,
        )


class Runs:
    """Sends the session through blackbox, each time to a new subscriber or recorder."""

    def __init__(self, feed: Feed, session: SessionSummary, process: PublishingProcess, spinner: Spinner) -> None:
        self._feed = feed
        self._session = session
        self._process = process
        self._spinner = spinner

    def receive(self, name: str, task: PublishTask | ReplayTask, *, over_tcp: bool = False) -> Received:
        """Run a task of the other process with callbacks in this one."""
        self._say(name, 0)
        subscriber, callbacks = self._callbacks(_lines_alone(self._feed) if over_tcp else self._feed)

        def show() -> None:
            self._say(name, subscriber.statistics().received.messages)
            self._process.check()

        self._process.begin(task)
        with subscriber.start(_START_S):
            self._process.go()
            follow(subscriber, show, until_end=True)
        published, statistics = self._process.wait_published(), subscriber.statistics()
        return Received(self._run(name, published, statistics, callbacks), statistics, callbacks.results())

    def record(self, storage: Storage) -> Run:
        """Publish from the other process to a recorder in this one."""
        self._say(RECORDED, 0)
        recorder = Recorder(self._feed, storage.directory, max_lag=_NO_LIMIT_S, hwm_blocks=QUEUE_BLOCKS)

        def show() -> None:
            self._say(RECORDED, recorder.statistics().messages)
            self._process.check()

        self._process.begin(PublishTask())
        with recorder.start(_START_S):
            self._process.go()
            follow(recorder, show, until_end=True)
        self._process.wait_published()
        statistics = recorder.statistics()
        lost = lost_of(self._session.messages, statistics.received.gaps, statistics.messages)
        return Run(
            RECORDED,
            statistics.messages,
            lost,
            statistics.received.duplicates,
            storage.seconds(),
            self._session.market_seconds,
        )

    def replay(self, moment: ReplayTask) -> Received:
        """Replay the whole recording to callbacks in this process, after playing `moment` to warm up."""
        self._say(IN_PROCESS, 0)
        subscriber, callbacks = self._callbacks(self._feed)
        recordings = [Recording.open(day) for day in moment.days]
        warm_up(recordings, moment.start, moment.stop)
        replay = Replay(recordings)
        with ticking(lambda: self._say(IN_PROCESS, replay.statistics().messages)):
            played = subscriber.replay(replay)
        statistics = subscriber.statistics()
        lost = lost_of(
            self._session.messages, statistics.received.gaps, statistics.delivery.matched, statistics.delivery.dropped
        )
        run = Run(
            IN_PROCESS,
            statistics.delivery.matched,
            lost,
            statistics.received.duplicates,
            played.seconds,
            self._session.market_seconds,
        )
        return Received(run, statistics, callbacks.results())

    def _callbacks(self, feed: Feed) -> tuple[Subscriber, DemoCallbacks]:
        subscriber = Subscriber(
            feed,
            workers=1,
            slow=SlowPolicy("warn", max_lag=_NO_LIMIT_S),
            queue_blocks=QUEUE_BLOCKS,
            hwm_blocks=QUEUE_BLOCKS,
        )
        return subscriber, DemoCallbacks(subscriber, self._session.orders, self._session.watched)

    def _run(self, name: str, published: Published, received: Statistics, callbacks: DemoCallbacks) -> Run:
        replay = published.replay
        is_paced = name == PACED
        sent = replay.messages if is_paced and replay else self._session.messages
        return Run(
            name,
            received.delivery.matched,
            lost_of(sent, received.received.gaps, received.delivery.matched, received.delivery.dropped),
            received.received.duplicates,
            replay.seconds if is_paced and replay else callbacks.seconds(),
            replay.market_seconds if is_paced and replay else self._session.market_seconds,
            is_paced,
        )

    def _say(self, name: str, messages: int) -> None:
        self._spinner.update(f"{name}: {count(messages)} messages")


@contextmanager
def _page(feed: Feed) -> Iterator[None]:
    """Serve a page of the feed on this machine, and print where; without the extra `monitor` do nothing."""
    try:
        from blackbox.services.monitor.page.background import page_in_thread
    except ImportError:
        yield
        return
    with page_in_thread(Watcher([feed])) as served:
        say(f"the feed is shown at {served.url} until the demo ends")
        yield


def _lines_alone(feed: Feed) -> Feed:
    """Return the feed without its endpoints in shared memory."""
    slices = tuple(msgspec.structs.replace(part, endpoints=part.lines) for part in feed.slices)
    return msgspec.structs.replace(feed, slices=slices)


def lost_of(sent: int, gaps: int, arrived: int, dropped: int = 0) -> int:
    """Return how many of the sent messages are missing."""
    return max(gaps, sent - arrived) + dropped


def _moment(session: SessionSummary, days: list[Path]) -> ReplayTask:
    """Return the task to replay some seconds from the middle of the session at `PACE` times the market's pace."""
    paths = [str(day) for day in days]
    if session.market_seconds <= 0:
        return ReplayTask(paths, PACE)
    length = int(PACE * _PACED_S * 1e9)
    start = max(session.first_ns, session.middle_ns - length // 2)
    return ReplayTask(paths, PACE, start, start + length)
