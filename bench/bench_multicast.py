"""Multicast against TCP: the publisher's CPU time for each message with 1 and with 16 subscribers.

    tcp        PUB process ==a copy for each==> 1 or 16 SUB sockets in one process
    multicast  PUB process ==once, 60 MB/s==> UDP group on loopback ==> 1 or 16 sockets in one process

Each subscriber must receive every message. Blocks are as large as possible. On loopback the kernel copies a datagram
to each socket, partly in the sender's call; a network card sends it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

import msgspec
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import WAITS, Contest, Figure, Lost, Spent
from bench.processes.child import Child
from bench.processes.fan import KEY
from bench.processes.pair import Order, play
from bench.workload.load import Load
from blackbox import Feed
from blackbox.feed.slice import Slice

MESSAGES = 200_000
RECEIVERS = (1, 16)
_PACED = "nothing lost: sent at a rate that receivers keep up with"


def _cpu_us(sides: tuple[Child, Child], load: Load) -> Figure:
    """Return the µs of CPU time of the publisher for each message. Raises Lost."""
    sender, receiver = sides
    sent, (heard,) = play(sender, [receiver], [Order(load)])
    if heard.lost:
        raise Lost(heard.lost)
    assert sent.cpu_s is not None
    return Figure(sent.cpu_s * 1e6 / load.messages, Spent(sent.cpu_s, heard.cpu_s, messages=load.messages))


def _sides(stack: ExitStack, feed: Feed, receivers: int, addresses: Sequence[str]) -> tuple[Child, Child]:
    sender = Child("bench.processes.sender:publish", feeds=[feed], when_full="wait")
    stack.enter_context(sender)
    if addresses:
        receiver = Child("bench.processes.fan:receive", addresses=addresses, sockets=receivers)
    else:
        receiver = Child("bench.processes.casts:receive", feed=feed, receivers=receivers)
    return sender, stack.enter_context(receiver)


def test_multicast(benchmark: BenchmarkFixture) -> None:
    """µs of CPU time of the publisher for each message."""
    contest = Contest(
        "CPU time of a publisher, µs for each message", "µs", lower=True, topology=__doc__, axis="subscribers"
    )
    with ExitStack() as stack:
        for number, receivers in enumerate(RECEIVERS):
            local = Feed.local("tcp", slices=1, key_bytes=len(KEY))
            port = Feed.local("port", slices=1).slices[0].lines[0].rpartition(":")[2]
            group = Slice(endpoints=(f"udp://239.255.200.{number + 1}:{port}",), interface="127.0.0.1")
            cast = msgspec.structs.replace(local, name="multicast", slices=(group,), udp_rate_bytes=60_000_000)
            for feed, addresses in ((cast, ()), (local, local.slices[0].lines)):
                load = Load(messages=MESSAGES, feed=feed, subscribers=receivers)
                sides = _sides(stack, feed, receivers, addresses)
                contest.add(
                    feed.name, partial(_cpu_us, sides, load), promise=WAITS if addresses else _PACED, at=receivers
                )
        contest.run(benchmark)
