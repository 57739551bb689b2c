"""A thousand subscribers join late and at once: each gets the newest message of 10,000 topics, then the live feed.

ours    PUB process ==blocks, TCP loopback==> recorder process, whose archive thread sends images
                    `==blocks, TCP loopback==> 1,000 joiners in one process: a confirmed SUB socket each, then the image
relays  PUB process ==> 10 relays ==> 1,000 joiners, whose images come from the relay or from the recorder
rival   redis-server: 1,000 connections, each SUBSCRIBE, then HGETALL of 10,000 fields of 100 bytes

The feed continues at 10,000 messages a second. 16 join at a time, all on the same two cores. A forwarder counts the
bytes that the recorder's archive serves, from the start of the relays on.
"""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

import msgspec
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest
from bench.processes.child import Child
from bench.rivals.rival import REDIS, enter, optional, tcp
from bench.rivals.servers import redis_server
from blackbox import Feed
from blackbox.transport.wakeup import readable

_JOINERS: Final = 1_000
_RELAYS: Final = 10
_TOPICS: Final = 10_000
_MESSAGES: Final = 1_000_000
_RATE: Final = 10_000
_PATIENCE_S: Final = 60.0
_PROMISE: Final = "the newest of each topic, then the live feed"


class _Forwarder:
    """Forwards connections to a TCP endpoint and counts the bytes that come back."""

    def __init__(self, endpoint: str) -> None:
        self.served = 0
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                asking, _ = self._listener.accept()
                threading.Thread(target=self._forward, args=(asking,), daemon=True).start()

    def _forward(self, asking: socket.socket) -> None:
        with asking, socket.create_connection(self._target) as serving, suppress(OSError):
            while True:
                for fd in readable(asking.fileno(), serving.fileno(), timeout=_PATIENCE_S):
                    source, target = (serving, asking) if fd == serving.fileno() else (asking, serving)
                    if not (data := source.recv(1 << 18)):
                        return
                    self.served += len(data) * (source is serving)
                    target.sendall(data)

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _house(stack: ExitStack, place: Path) -> Feed:
    """Start a publisher of all topics and a recorder with an archive; return their feed."""
    feed = msgspec.structs.replace(Feed.local("joiners", slices=1), archives=(tcp(),))
    publisher = stack.enter_context(
        Child("bench.processes.recovered:publish", feed=feed, messages=_MESSAGES, rate=_RATE, topics=_TOPICS)
    )
    recorder = stack.enter_context(Child("bench.processes.recovered:record", feed=feed, directory=str(place)))
    publisher.ask({})
    recorder.ask({"messages": _MESSAGES})
    return feed


def _join(joiners: Child) -> float:
    return float(joiners.ask({"joiners": _JOINERS})["seconds"])


def test_joiners(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """Seconds until the last of 1,000 has all topics."""
    title = f"{_JOINERS:,} late joiners of {_TOPICS:,} topics, until the last one has all"
    contest = Contest(title, "s", lower=True, topology=__doc__)
    with ExitStack() as stack:
        feeds = [_house(stack, tmp_path)]
        joiners = stack.enter_context(Child("bench.processes.joiners:join", feeds=feeds, topics=_TOPICS))
        contest.add("an image of the archive", partial(_join, joiners), promise=_PROMISE)
        with optional(contest, "redis", *REDIS):
            server, fill = enter(stack, redis_server, "redis_table:put", topics=_TOPICS)
            fill.ask({"updates": _TOPICS, "value": 1})
            rival = Child("bench.processes.joiners:join_redis", address=server.url, topics=_TOPICS)
            contest.add(f"redis {server.version}", partial(_join, stack.enter_context(rival)), "rival", _PROMISE)
        contest.run(benchmark)


def _served(above: Feed, counted: _Forwarder, place: Path, *, images: bool) -> float:
    """Return the MB that the archive of `above` serves to fresh relays and to all joiners below them."""
    below = [
        msgspec.structs.replace(Feed.local("joiners", slices=1), archives=(tcp(),) if images else above.archives)
        for _ in range(_RELAYS)
    ]
    before = counted.served
    directory = mkdtemp(dir=place) if images else ""
    with (
        Child("bench.processes.relay:pass_on_to_many", above=above, below=below, images=directory),
        Child("bench.processes.joiners:join", feeds=below, topics=_TOPICS) as joiners,
    ):
        _join(joiners)
    return (counted.served - before) / 1e6


@pytest.mark.timeout(900)
def test_joiners_below_relays(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """MB that the origin's archive serves for 1,000 joiners below ten relays."""
    title = f"{_JOINERS:,} late joiners below {_RELAYS} relays: MB served by the origin"
    contest = Contest(title, "MB", lower=True, topology=__doc__)
    names = "relays with images", "relays without images"
    with ExitStack() as stack:
        feed = _house(stack, tmp_path)
        counted = _Forwarder(feed.archives[0])
        stack.callback(counted.close)
        above = msgspec.structs.replace(feed, archives=(counted.endpoint,))
        for name in names:
            contest.add(name, partial(_served, above, counted, tmp_path, images=name == names[0]), promise=_PROMISE)
        contest.run(benchmark, rounds=1)
        contest.show(" / ".join(names), f"{contest.ratio(*names):.4f} x")
