"""One run of the demo: live, recorded, replayed three ways, and what came of each."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from rich.status import Status as Spinner

from blackbox.cli.demo.callbacks import DemoCallbacks, trading_of
from blackbox.cli.demo.findings import Findings
from blackbox.cli.demo.passes import Pass, lost_of
from blackbox.cli.demo.process import PublishingProcess
from blackbox.cli.demo.publisher import BLOCK_BYTES, QUEUE_BLOCKS, Order, Play, Publish, Published
from blackbox.cli.demo.rehearsal import rehearse
from blackbox.cli.demo.session import Prepared
from blackbox.cli.demo.shelf import Shelf
from blackbox.cli.demo.trades import MAX_TOPICS
from blackbox.cli.follow import follow
from blackbox.cli.terminal import count, stderr
from blackbox.cli.ticker import ticking
from blackbox.feed import Feed
from blackbox.recorder import Recorder
from blackbox.recording import Recording
from blackbox.replay.replay import Replay
from blackbox.statistics import Statistics
from blackbox.subscriber import Subscriber

PACE: Final = 10.0
"""Times the market's own."""
_PACED_S: Final = 2.0
_NO_LIMIT_NS: Final = 600 * 10**9
_START_S: Final = 240.0
"""Until the other process confirms, which may compile first, on a busy machine."""

LIVE: Final = "live"
RECORDED: Final = "recorded"
PACED: Final = f"replayed at {PACE:g} x"
ON_THE_WIRE: Final = "replayed on the wire"
IN_PROCESS: Final = "replayed in process"


class DemoResult(NamedTuple):
    """What a run was about and what came of it."""

    spec: str
    feed: Feed
    prepared: Prepared
    live: Received
    passes: list[Pass]
    differences: dict[str, str]
    """Replays whose results are not those of the live pass, and in what."""
    stored_bytes: int
    """Of the recording."""
    days: list[Path]


class Received(NamedTuple):
    """What a subscriber and its callbacks made of a pass."""

    told: Pass
    statistics: Statistics
    findings: Findings


class DemoRun:
    """Owns the publishing process, and one subscriber or recorder after the other. `result` does it all.

    Raises ConfigError when the demo does not know the source's schema.
    """

    def __init__(self, spec: str, options: list[str], messages: int | None, schema: str) -> None:
        trading_of(schema)
        feed = Feed.local("demo", slices=2, schema=schema)
        self.feed = msgspec.structs.replace(feed, block_bytes=BLOCK_BYTES, max_topics=MAX_TOPICS)
        self._spec = spec
        self._order = Order(self.feed, spec, options, messages)

    def result(self, shelf: Shelf) -> DemoResult:
        """Run it to its end; the recording goes to the shelf.

        Raises:
            PublisherError: the publishing process failed.
            SubscriberError: a subscriber did.
            JournalError: it could not be recorded, or read again.
        """
        what = f"preparing {self._spec} in memory"
        with PublishingProcess(self._order) as process, stderr.status(what) as spinner:
            prepared = process.prepared(lambda messages: spinner.update(f"{what}: {count(messages)} messages"))
            shelf.check_room(prepared)
            passes = Passes(self.feed, prepared, process, spinner)
            live = passes.receive(LIVE, Publish())
            recorded = passes.record(shelf)
            days = shelf.days()
            moment = _moment(prepared, days)
            paced = passes.receive(PACED, moment)
            wire = passes.receive(ON_THE_WIRE, Play([str(day) for day in days]))
            here = passes.replay(moment)
        found = {each.told.name: live.findings.difference(each.findings) for each in (wire, here)}
        return DemoResult(
            self._spec,
            self.feed,
            prepared,
            live,
            [live.told, recorded, paced.told, wire.told, here.told],
            {name: difference for name, difference in found.items() if difference},
            shelf.stored_bytes(),
            days,
        )


class Passes:
    """The session's ways through the machine, each with a new subscriber or recorder."""

    def __init__(self, feed: Feed, prepared: Prepared, process: PublishingProcess, spinner: Spinner) -> None:
        self._feed = feed
        self._prepared = prepared
        self._process = process
        self._spinner = spinner

    def receive(self, name: str, task: Publish | Play) -> Received:
        """Let the process publish to callbacks in this one."""
        self._say(name, 0)
        subscriber, callbacks = self._callbacks()

        def show() -> None:
            self._say(name, subscriber.statistics().received)
            self._process.check()

        self._process.begin(task)
        with subscriber.start(_START_S):
            self._process.go()
            follow(subscriber, show, until_end=True)
        published, statistics = self._process.published(), subscriber.statistics()
        told = self._told(name, published, statistics, callbacks)
        return Received(told, statistics, callbacks.findings())

    def record(self, shelf: Shelf) -> Pass:
        """Let the process publish to a recorder in this one."""
        self._say(RECORDED, 0)
        recorder = Recorder(self._feed, shelf.directory, max_lag_ns=_NO_LIMIT_NS, hwm_blocks=QUEUE_BLOCKS)

        def show() -> None:
            self._say(RECORDED, recorder.statistics().messages)
            self._process.check()

        self._process.begin(Publish())
        with recorder.start(_START_S):
            self._process.go()
            follow(recorder, show, until_end=True)
        self._process.published()
        statistics = recorder.statistics()
        lost = lost_of(self._prepared.messages, statistics.received.gaps, statistics.messages)
        return Pass(
            RECORDED,
            statistics.messages,
            lost,
            statistics.received.duplicates,
            shelf.seconds(),
            self._prepared.market_seconds,
        )

    def replay(self, moment: Play) -> Received:
        """Drive callbacks from all of the recording, without process or socket; the moment is for a rehearsal."""
        self._say(IN_PROCESS, 0)
        subscriber, callbacks = self._callbacks()
        recordings = [Recording.open(day) for day in moment.days]
        rehearse(recordings, moment.start, moment.stop)
        replay = Replay(recordings)
        with ticking(lambda: self._say(IN_PROCESS, replay.statistics().messages)):
            played = subscriber.replay(replay)
        statistics = subscriber.statistics()
        lost = lost_of(self._prepared.messages, statistics.gaps, statistics.matched, statistics.dropped)
        told = Pass(
            IN_PROCESS,
            statistics.matched,
            lost,
            statistics.duplicates,
            played.seconds,
            self._prepared.market_seconds,
        )
        return Received(told, statistics, callbacks.findings())

    def _callbacks(self) -> tuple[Subscriber, DemoCallbacks]:
        subscriber = Subscriber(
            self._feed,
            workers=1,
            max_lag_ns=_NO_LIMIT_NS,
            on_slow="warn",
            queue_blocks=QUEUE_BLOCKS,
            hwm_blocks=QUEUE_BLOCKS,
        )
        return subscriber, DemoCallbacks(subscriber, self._prepared.orders, self._prepared.watched)

    def _told(self, name: str, published: Published, received: Statistics, callbacks: DemoCallbacks) -> Pass:
        replay = published.replay
        is_paced = name == PACED
        sent = replay.messages if is_paced and replay else self._prepared.messages
        return Pass(
            name,
            received.matched,
            lost_of(sent, received.gaps, received.matched, received.dropped),
            received.duplicates,
            replay.seconds if is_paced and replay else callbacks.seconds(),
            replay.market_seconds if is_paced and replay else self._prepared.market_seconds,
            is_paced,
        )

    def _say(self, name: str, messages: int) -> None:
        self._spinner.update(f"{name}: {count(messages)} messages")


def _moment(prepared: Prepared, days: list[Path]) -> Play:
    """A moment of the recording at the market's pace, times `PACE`: in the middle of the session."""
    paths = [str(day) for day in days]
    if prepared.market_seconds <= 0:
        return Play(paths, PACE)
    length = int(PACE * _PACED_S * 1e9)
    start = max(prepared.first_ns, prepared.middle_ns - length // 2)
    return Play(paths, PACE, start, start + length)
