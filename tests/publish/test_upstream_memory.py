"""Memory that a peer can make a publisher hold, measured in a separate process."""

from __future__ import annotations

import itertools
import socket
import struct

import pytest

from blackbox import Feed, Publisher
from blackbox.testing import wait_until
from tests.process_state import linux_only, resident_bytes
from tests.publish.hostile import MORE, Peer, frame
from tests.publish.subscribers import one_slice
from tests.publish.test_hostile_subscribers import put_out, receives

pytestmark = [pytest.mark.own_process, linux_only]

MB = 1 << 20


def test_a_frame_announced_as_3_gib_keeps_nothing() -> None:
    feed = one_slice()
    with Publisher(feed) as publisher:
        before = resident_bytes()
        with Peer(feed) as peer:
            peer.send(b"\2" + struct.pack(">Q", 3 << 30))
            chunk = bytes(MB)
            sent = sum(MB for _ in itertools.takewhile(peer.send, itertools.repeat(chunk, 1_500)))
            assert sent < 1_500 * MB
        assert resident_bytes() - before < 32 * MB
        receives(feed, publisher)


@pytest.mark.long
@pytest.mark.parametrize("part", [bytes(500), b""])
def test_a_message_that_does_not_end_ends_the_connection(part: bytes) -> None:
    """With empty parts libzmq may leave the connection open, and keep its memory until the publisher closes."""
    feed = one_slice()
    with Publisher(feed) as publisher:
        receives(feed, publisher)
        before = resident_bytes()
        assert most_while_sending(feed, part) - before < 400 * MB
        if part:
            wait_until(lambda: resident_bytes() - before < 64 * MB, what="the memory is released")
        put_out(publisher, 1)
        receives(feed, publisher)


def most_while_sending(feed: Feed, part: bytes) -> int:
    """Send parts of one message until no more are read; return the peak memory."""
    most = 0
    with Peer(feed) as peer:
        parts = frame(part, MORE) * (65_536 // (len(part) + 2))
        for _ in range(8_000):
            most = max(most, resident_bytes())
            if not peer.send(parts):
                return most
    pytest.fail("it read 500 MB of one message")


@pytest.mark.long
def test_a_message_that_trickles_ends_the_connection_too() -> None:
    feed = one_slice()
    with Publisher(feed) as publisher, Peer(feed) as peer:
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sent = 0
        while peer.send(frame(bytes(200), MORE) * 10):
            sent += 2_020
            assert sent < 400 * MB
        put_out(publisher, 1)
