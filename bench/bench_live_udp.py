"""MoldUDP64 datagrams of 36 ITCH messages, already in the kernel's buffer, received by one process.

    limit   UDP socket ==recvmmsg==> a compiled loop that adds their bytes
    ours    UDP socket ==recvmmsg==> checks, order, gaps, decoder ==> chunks
    ours    the same ==> Publisher ==blocks, TCP loopback==> Subscriber, a compiled callback
    rival   pyzmq SUB recv(): the same messages, one a frame, sent before

Each round fills the buffer first, which is not measured, then takes everything out. Ours verifies the number of
messages, and that none is missing.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

import numpy
import zmq
from blackbox_feeds.itch50 import SCHEMA
from blackbox_feeds.itch50.live_moldudp64 import MoldUdp64Client
from blackbox_feeds.live.receiver import Receiver
from blackbox_feeds.live.sockets import open_line
from pytest_benchmark.fixture import BenchmarkFixture

from bench.measure.contest import Contest, expect
from bench.workload.tally import count_compiled, state_of
from blackbox import Feed, Publisher, Subscriber
from blackbox.feed.endpoint import _free_ports
from blackbox.feed.source import Chunk
from blackbox.feed.venue_url import Address
from blackbox.testing import wait_until

PACKETS: Final = 4_000
PER_PACKET: Final = 36
MESSAGES: Final = PACKETS * PER_PACKET
BUFFER_MIB: Final = 64
TOPICS: Final = 100
_LONG_S: Final = 3_600


def message(number: int) -> bytes:
    """Return an order of one of 100 stocks."""
    head = struct.pack(">cHH", b"A", 1 + number % TOPICS, 0) + (number * 1_000).to_bytes(6, "big")
    stock = f"S{number % TOPICS:03}".ljust(8).encode()
    return head + struct.pack(">QcI8sI", number, b"B", 100, stock, 10_000)


def datagram(packet: int) -> bytes:
    """Return datagram number `packet`, from 0."""
    first = 1 + packet * PER_PACKET
    blocks = b"".join(struct.pack(">H", 36) + message(first + k) for k in range(PER_PACKET))
    return struct.pack(">10sQH", b"0000000001", first, PER_PACKET) + blocks


class Filled:
    """Sends the next datagrams of a session to a port; the receiver reads them afterwards."""

    def __init__(self, port: int) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.connect(("127.0.0.1", port))
        self._sent = 0
        self._blocks = datagram(0)[20:]

    def send(self, packets: int) -> None:
        """Send datagrams that continue the sequence."""
        for _ in range(packets):
            head = struct.pack(">10sQH", b"0000000001", 1 + self._sent * PER_PACKET, PER_PACKET)
            self._socket.send(head + self._blocks)
            self._sent += 1


@contextmanager
def receiving_only() -> Iterator[Any]:
    """Yield a contender that only receives."""
    (port,) = _free_ports(1)
    opened, _ = open_line(Address("127.0.0.1", port), None, BUFFER_MIB << 20)
    receiver, filled = Receiver(), Filled(port)

    def run() -> float:
        filled.send(PACKETS)
        began, packets = time.perf_counter(), 0
        while packets < PACKETS and (found := receiver.receive(opened.fileno())):
            packets += found
        seconds = time.perf_counter() - began
        expect("datagrams", packets, PACKETS)
        return MESSAGES / seconds

    with opened:
        yield run


@contextmanager
def live_source() -> Iterator[tuple[Iterator[Chunk], Filled]]:
    """Yield the chunks of a connected client, and its filler."""
    (port,) = _free_ports(1)
    source = MoldUdp64Client(f"//127.0.0.1:{port}?stale={_LONG_S}&buffer_mib={BUFFER_MIB}", "2019-12-30")
    filled, chunks = Filled(port), source.chunks()

    def begin() -> None:
        wait_until(lambda: source._sockets._open, _LONG_S)
        filled.send(1)

    thread = threading.Thread(target=begin, daemon=True)
    thread.start()
    next(chunks)
    thread.join()
    yield chunks, filled
    source.stop()
    list(chunks)
    expect("missing messages", source.statistics().missing, 0)


def take(chunks: Iterator[Chunk], filled: Filled, publisher: Publisher | None = None) -> float:
    """Fill the buffer, take all messages out, and return the time at which it began."""
    filled.send(PACKETS)
    began, messages = time.perf_counter(), 0
    while messages < MESSAGES:
        chunk = next(chunks)
        messages += len(chunk.ts_event)
        if publisher is not None:
            chunk.publish(publisher)
    return began


def rate_of_chunks(chunks: Iterator[Chunk], filled: Filled) -> float:
    """Return the messages/s of a client alone."""
    began = take(chunks, filled)
    return MESSAGES / (time.perf_counter() - began)


@contextmanager
def to_callback(chunks: Iterator[Chunk], filled: Filled) -> Iterator[Any]:
    """Yield a contender whose messages go through a feed to a compiled callback."""
    feed = Feed.local("udp", slices=1, schema=SCHEMA.name)
    subscriber = Subscriber(feed)
    callback = subscriber.on_compiled(b"", state=numpy.zeros((TOPICS, 3), numpy.int64))(count_compiled)

    def counted() -> int:
        return int(state_of([callback])[:, 0].sum())

    with Publisher(feed) as publisher, subscriber.start():

        def run() -> float:
            before = counted()
            began = take(chunks, filled, publisher)
            publisher.flush()
            wait_until(lambda: counted() - before >= MESSAGES)
            seconds = time.perf_counter() - began
            expect("messages", counted() - before, MESSAGES)
            return MESSAGES / seconds

        yield run


@contextmanager
def pyzmq() -> Iterator[Any]:
    """Yield a contender that receives the same messages as frames."""
    with zmq.Context() as context, context.socket(zmq.PUB) as sender, context.socket(zmq.SUB) as taker:
        sender.sndhwm = taker.rcvhwm = 0
        port = sender.bind_to_random_port("tcp://127.0.0.1")
        taker.connect(f"tcp://127.0.0.1:{port}")
        taker.subscribe(b"")
        while not taker.poll(10):
            sender.send(b"")
        payload = message(0)

        def run() -> float:
            while taker.poll(200):
                taker.recv()
            for _ in range(MESSAGES):
                sender.send(payload)
            began = time.perf_counter()
            for _ in range(MESSAGES):
                taker.recv()
            return MESSAGES / (time.perf_counter() - began)

        yield run


def test_live_udp(benchmark: BenchmarkFixture) -> None:
    """Messages/s from a full buffer."""
    assert SCHEMA.dtype("A").itemsize == len(message(1)) == 36
    contest = Contest(f"{MESSAGES:,} messages from UDP", "messages/s", topology=__doc__)
    with ExitStack() as stack:
        chunks, filled = stack.enter_context(live_source())
        contest.add("client, chunks", partial(rate_of_chunks, chunks, filled))
        published = stack.enter_context(live_source())
        contest.add("client, publisher, compiled callback", stack.enter_context(to_callback(*published)))
        contest.add("recvmmsg only", stack.enter_context(receiving_only()), "limit")
        contest.add("pyzmq SUB recv()", stack.enter_context(pyzmq()), "rival")
        contest.run(benchmark)
