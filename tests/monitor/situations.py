"""Staged situations: a feed with a relay, two subscribers and an archive, in which one thing goes wrong."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec
from blackbox_feeds.synthetic import Synthetic

from blackbox import Batch, Feed, Publisher, Relay, SlowPolicy, Subscriber
from blackbox.archive.serve.server import ArchiveServer
from blackbox.feed.endpoint import free_endpoints
from blackbox.services.monitor.serve.metrics import server_of
from blackbox.services.monitor.serve.watched import Watched
from tests.lossy_proxy import LossyProxy

Trouble = Literal["none", "slow callback", "loss above relay", "dead archive"]
_ROWS: Final = 400
_EVERY_S: Final = 0.02
_MESSAGES: Final = 400_000


class Situation(NamedTuple):
    """A feed, and the status pages of its processes."""

    feed: Feed
    urls: tuple[str, ...]


@contextmanager
def situation(trouble: Trouble, directory: Path) -> Iterator[Situation]:
    """Publish a made-up session at 20,000 messages/s until the block is left, with one kind of trouble."""
    feed = msgspec.structs.replace(Feed.local("nasdaq", slices=1), schema="itch50", max_lag_ns=1_000_000_000)
    [archive] = free_endpoints("tcp", "archive", 1, 1)
    feed = msgspec.structs.replace(feed, archives=tuple(archive))
    (directory / feed.name).mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        publisher = stack.enter_context(Publisher(feed))
        share = 0.05 if trouble == "loss above relay" else 0.0
        above = stack.enter_context(LossyProxy(feed, share)).feed
        above = msgspec.structs.replace(above, schema="itch50")
        below = msgspec.structs.replace(above, slices=Feed.local("nasdaq", slices=1).slices)
        relay = stack.enter_context(Relay(above, below, name="london"))
        fast = Subscriber(below, slow=SlowPolicy("warn", 60))
        slow = Subscriber(feed, workers=1, slow=SlowPolicy("warn", 0.5, start_grace=0), queue_blocks=4)
        fast.on_batch(b"")(lambda batch: None)
        may_return = threading.Event()

        @slow.on_batch(b"")
        def update_positions(batch: Batch) -> None:
            if trouble == "slow callback":
                may_return.wait(0.5)

        stack.enter_context(fast)
        stack.enter_context(slow)
        stack.callback(may_return.set)
        server = ArchiveServer(directory / feed.name, feed.archives, feed=feed)
        stack.enter_context(server)
        urls = []
        for thing in (publisher, relay, fast, slow, server):
            page = server_of(Watched(thing), "127.0.0.1:0")
            page.start()
            if thing is not server:
                stack.callback(page.stop)
            urls.append(page.url)
        stack.enter_context(_publishing(publisher))
        if trouble == "dead archive":
            threading.Timer(4.0, page.stop).start()
        else:
            stack.callback(page.stop)
        yield Situation(feed, tuple(urls))


@contextmanager
def _publishing(publisher: Publisher) -> Iterator[None]:
    """Publish a session again and again, at a steady rate."""
    chunks = list(Synthetic(_MESSAGES, symbols=20).chunks())
    ending = threading.Event()

    def run() -> None:
        while not ending.is_set():
            for chunk in chunks:
                for first in range(0, len(chunk.topic_index), _ROWS):
                    rows = slice(first, first + _ROWS)
                    publisher.publish_many(
                        chunk.topics,
                        chunk.topic_index[rows],
                        chunk.payloads,
                        offsets=chunk.starts[rows],
                        lengths=chunk.lengths[rows],
                    )
                    if ending.wait(_EVERY_S):
                        return

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()
