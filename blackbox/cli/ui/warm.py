"""Compile all kernels of commands and callbacks by running small feeds, recordings and files, part by part."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any, Final

import msgspec
import numpy
from numba.core.dispatcher import Dispatcher
from numba.core.event import Event, Listener

from blackbox.archive.export.source_file import export
from blackbox.archive.importing.import_days import import_days
from blackbox.archive.maintain.compact import compact
from blackbox.archive.record.recorder import Recorder
from blackbox.archive.recording import Recording
from blackbox.book.book import warm_up_book
from blackbox.errors import ConfigError
from blackbox.feed.endpoint import free_endpoints
from blackbox.feed.feed import Feed
from blackbox.feed.live_source import LiveSource
from blackbox.feed.source import open_source
from blackbox.publish.publisher import Publisher
from blackbox.replay.play.to_venue import VenuePlayer, order_for_venue
from blackbox.replay.play.venue_server import make_venue_server
from blackbox.replay.replay import Replay
from blackbox.services.hub.client.client import HubClient
from blackbox.services.hub.server.hub import Hub
from blackbox.services.relay.plain_clients import PlainRelay
from blackbox.services.relay.relay import Relay
from blackbox.subscriber.subscriber import Subscriber

_PATIENCE_S: Final = 600.0
"""Allows for compilation in another thread on a busy machine."""
_MESSAGES: Final = 5_000
_START_NS: Final = 1_767_571_200_000_000_000
_DATE: Final = "2026-01-05"
_LIVE: Final = (
    "moldudp64://127.0.0.1:1",
    "iextp://127.0.0.1:1",
    "soupbintcp://warmup@127.0.0.1:1",
    "binance+ws://127.0.0.1:1/stream?streams=a@trade",
    "databento://WARMUP?schema=trades",
)
_KEY: Final = "DATABENTO_API_KEY"
"""Environment variable without which there is no source of Databento. Nothing is sent."""
_FRAMES: Final = b"""\
1767571200000000000 {"stream":"a@trade","data":{"e":"trade","E":1767571200000,"s":"A","t":1,"p":"1"}}
1767571200000000001 {"lastUpdateId":1,"bids":[["1","2"]],"asks":[]}
1767571200000000002 {"e":"trade","E":1767571200000,"s":"A","t":2,"p":"1"}
"""
"""Frames of Binance, with and without a stream's name."""


class Compiled(Listener):  # type: ignore[misc]  # numba has no types
    """Counts compiled and cached kernels, and calls `show` with the name of each as it begins."""

    def __init__(self, show: Callable[[str], object]) -> None:
        self.count = 0
        self._show, self._lock = show, Lock()

    def on_start(self, event: Event) -> None:
        """Count a kernel, unless it only exists within others."""
        kernel = event.data["dispatcher"]
        if kernel.stats.cache_path is None:
            return
        with self._lock:
            self.count += 1
        self._show(f"{kernel.py_func.__module__}.{kernel.py_func.__name__}")

    def on_end(self, event: Event) -> None:
        """Do nothing: it was counted at its start."""


def count_loaded() -> int:
    """Return the number of kernels loaded from the cache."""
    # `isinstance` would ask weak references, which may be dead.
    kernels: list[Any] = [each for each in gc.get_objects() if issubclass(type(each), Dispatcher)]
    return sum(sum(kernel.stats.cache_hits.values()) for kernel in kernels)


def _deliver(feed: Feed) -> None:
    """Publish in each way to callbacks of each kind."""
    subscriber = Subscriber(feed, queue_blocks=64)
    state = numpy.zeros(1)
    subscriber.on(b"")(_ignore)
    subscriber.on_batch(b"")(_ignore)
    subscriber.on_compiled(b"", state=state)(_count)
    topics, index = [b"A.x", b"B.x"], numpy.arange(1_000, dtype=numpy.int32) % 2
    with Publisher(feed, when_full="wait") as publisher:
        subscriber.start(timeout=_PATIENCE_S)
        publisher.publish(b"A.x", b"1", ts_event=_START_NS)
        payloads = numpy.zeros((1_000, 2), numpy.uint8)
        publisher.publish_many(topics, index, payloads, numpy.full(1_000, _START_NS))
    subscriber.run(until_end=True, timeout=_PATIENCE_S)


def _ignore(_message: Any) -> None:
    pass


def _count(batch: Any, state: Any) -> None:
    state[0] += len(batch.rows)


def live(_place: Path) -> None:
    """Publish and subscribe, also with keys and on two lines."""
    for key_bytes, lines in ((0, 1), (2, 2)):
        _deliver(Feed.local("warmup", slices=2, key_bytes=key_bytes, lines=lines))


def shared_memory(_place: Path) -> None:
    """Publish and subscribe in shared memory."""
    with suppress(ConfigError):  # not Linux
        _deliver(Feed.local("warmup", slices=1, transport="shm"))


def imported(place: Path) -> None:
    """Import a generated session, write it in the venue's own format, and import that."""
    feed = msgspec.structs.replace(Feed.local("warmup", slices=2), schema="itch50")
    for part in ("first", "second"):
        source = f"synthetic:{_MESSAGES}" if part == "first" else f"itch50:{place / 'day.itch'}"
        options: dict[str, Any] = {"symbols": 10} if part == "first" else {"date": _DATE}
        (day,) = import_days(feed, place / part, [open_source(source, **options)], date=None)
        if part == "first":
            export(Recording.open(day.path), place / "day.itch")


def recorded(place: Path) -> None:
    """Record a feed, read the day in every way, and rewrite it."""
    feed = Feed.local("recorded", slices=2)
    with Publisher(feed, when_full="wait") as publisher:
        recorder = Recorder(feed, place)
        recorder.start(timeout=_PATIENCE_S)
        for number in range(100):
            publisher.publish(b"%c.x" % (65 + number % 5), b"%d" % number, ts_event=_START_NS + number)
        publisher.flush()
    recorder.run(until_end=True, timeout=_PATIENCE_S)
    _read(next((place / feed.name).glob("*/manifest.json")).parent, place / "compacted")
    for day in (place / "first").glob("*/*/manifest.json"):
        _read(day.parent, place / "rewritten")


def _read(path: Path, out: Path) -> None:
    day = Recording.open(path)
    day.examine(lambda _: None)
    day.counts()
    day.rate()
    for batch in day.batches(b"A"):
        list(batch)
    for _ in day.newest():
        pass
    compact(day, out)
    with suppress(ImportError):  # without pyarrow
        day.to_parquet(out.with_name(f"{out.name}-parquet"))


def replayed(place: Path) -> None:
    """Replay to callbacks, and to the wire."""
    days = [Recording.open(path.parent) for path in (place / "first").glob("*/*/manifest.json")]
    subscriber = Subscriber(days[0].feed)
    subscriber.on(b"")(_ignore)
    subscriber.on_batch(b"")(_ignore)
    subscriber.on_compiled(b"", state=numpy.zeros(1))(_count)
    subscriber.replay(days)
    feed = msgspec.structs.replace(Feed.local("replayed", slices=2), schema="itch50")
    receiver = Subscriber(feed, queue_blocks=64)
    receiver.on_batch(b"")(_ignore)
    with Publisher(feed, when_full="wait") as publisher:
        receiver.start(timeout=_PATIENCE_S)
        Replay(days).publish(publisher)
    receiver.run(until_end=True, timeout=_PATIENCE_S)


def received(_place: Path) -> None:
    """Compile live sources, without a connection."""
    with _with_key():
        for spec in _LIVE:
            with suppress(ConfigError):  # without an optional library
                source = open_source(spec)
                assert isinstance(source, LiveSource)
                source.compile()


@contextmanager
def _with_key() -> Iterator[None]:
    """Run with a key of Databento in the environment."""
    own = os.environ.get(_KEY)
    os.environ[_KEY] = own or "warmup"
    try:
        yield
    finally:
        if own is None:
            del os.environ[_KEY]
        else:
            os.environ[_KEY] = own


def served(place: Path) -> None:
    """Serve recorded days in protocols of venues, without clients."""
    (place / "frames.txt").write_bytes(_FRAMES)
    feed = msgspec.structs.replace(Feed.local("frames", slices=1), schema="binance")
    import_days(feed, place / "frames", [open_source(f"binance:{place / 'frames.txt'}")], date=None)
    for scheme, part in (("moldudp64", "first"), ("soupbintcp", "first"), ("binance+ws", "frames")):
        days = [Recording.open(path.parent) for path in (place / part).glob("*/*/manifest.json")]
        at = free_endpoints("tcp", "served", 1, 1)[0][0].removeprefix("tcp://")
        with suppress(ConfigError), make_venue_server(f"{scheme}://{at}", days) as server:  # without a library
            Replay(days, order=order_for_venue(days)).run(VenuePlayer(server, days))


def books(place: Path) -> None:
    """Keep order books of a recorded day."""
    warm_up_book()
    for path in (place / "first").glob("*/*/manifest.json"):
        Recording.open(path.parent).book_at("23:59")


def relayed(_place: Path) -> None:
    """Run relays of both kinds."""
    above, below = Feed.local("relayed", slices=1), Feed.local("relayed", slices=1)
    with Publisher(above), Relay(above, below):
        subscriber = Subscriber(below)
        subscriber.on(b"")(_ignore)
        subscriber.start(timeout=_PATIENCE_S)
        with PlainRelay(above, free_endpoints("tcp", "plain", 1, 1)[0][0]):
            pass
        subscriber.stop()


def hub(place: Path) -> None:
    """Put to a hub, and get from it."""
    feed = Feed.local("hub", slices=1)
    archive, at = (each[0] for each in free_endpoints("tcp", "hub", 2, 1))
    feed = msgspec.structs.replace(feed, archives=(archive,), hub=at)
    with Hub(feed, place / "hub"), HubClient(feed, "warmup", place / "positions") as client:
        client.subscribe(b"A", _PATIENCE_S)
        client.put(b"A.x", b"1", timeout=_PATIENCE_S)
        client.get(b"A", _PATIENCE_S)
        client.commit()


PARTS: Final[dict[str, Callable[[Path], None]]] = {
    "publish and subscribe": live,
    "shared memory": shared_memory,
    "import and export": imported,
    "record and read": recorded,
    "replay": replayed,
    "live sources": received,
    "venue servers": served,
    "order books": books,
    "relays": relayed,
    "hub": hub,
}
"""The parts in the order in which they run: later ones read the output of earlier ones."""
