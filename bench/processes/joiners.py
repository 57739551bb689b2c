"""Process of many late joiners, each with its own sockets; a joiner is done when its image is complete.

Ours: a confirmed SUB socket, then the image from the archive. Redis: SUBSCRIBE, then HGETALL.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec
import zmq

from bench.measure.contest import expect
from bench.processes.child import answer, orders
from bench.processes.crowd import PATIENCE_MS, ask, wait_for
from blackbox import Feed
from blackbox.archive.serve.client import ArchiveClient

_AT_ONCE: Final = 16


def join(feeds: Any, topics: int) -> None:
    """Start the ordered number of joiners, of these feeds in turn; answer with the seconds until the last is done."""
    feeds = msgspec.convert(feeds, list[Feed])
    with zmq.Context() as context:
        context.max_sockets = 8_192

        def one(number: int) -> None:
            feed = feeds[number % len(feeds)]
            sub = context.socket(zmq.SUB)
            sub.linger, sub.rcvtimeo = 0, PATIENCE_MS
            sub.connect(feed.slices[0].lines[0])
            sub.subscribe(b"")
            wait_for(sub, ask(sub))
            image = ArchiveClient(feed, timeout=60).image(0, timeout=60)
            expect("topics of the image", sum(block.count for block in image.blocks), topics)
            sub.close()

        _serve(one)


def join_redis(address: str, topics: int) -> None:
    """Start joiners of a Redis hash and the channel of its changes."""
    import redis

    def one(_: int) -> None:
        with redis.Redis.from_url(address) as client, client.pubsub() as channel:
            channel.subscribe("table")
            expect("what Redis confirmed", (channel.get_message(timeout=60) or {}).get("type"), "subscribe")
            expect("topics of the hash", len(client.hgetall("table")), topics)

    _serve(one)


def _serve(one: Callable[[int], None]) -> None:
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        for order in orders():
            began = time.perf_counter()
            for _ in threads.map(one, range(order["joiners"])):
                pass
            answer(seconds=time.perf_counter() - began)
