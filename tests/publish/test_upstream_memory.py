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
from tests.publish.subscribers import one_slice, serves
from tests.publish.test_hostile_subscribers import put_out

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
        serves(publisher, feed)


@pytest.mark.long
@pytest.mark.parametrize(("part", "chunk"), [(bytes(500), 65_536), (bytes(200), 2_020), (b"", 65_536)])
def test_a_message_that_does_not_end_ends_the_connection(part: bytes, chunk: int) -> None:
    """With empty parts libzmq may leave the connection open, and keep its memory until the publisher closes."""
    feed = one_slice()
    with Publisher(feed) as publisher:
        serves(publisher, feed)
        before = resident_bytes()
        assert most_while_sending(feed, frame(part, MORE) * (chunk // (len(part) + 2))) - before < 400 * MB
        if part:
            wait_until(lambda: resident_bytes() - before < 64 * MB, what="the memory is released")
        put_out(publisher, 1)
        serves(publisher, feed)


def most_while_sending(feed: Feed, parts: bytes) -> int:
    """Send parts of one message, as they are, until no more are read; return the peak memory."""
    most = 0
    with Peer(feed) as peer:
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(500 * MB // len(parts)):
            most = max(most, resident_bytes() if number % 32 == 0 else 0)
            if not peer.send(parts):
                return most
    pytest.fail("it read 500 MB of one message")
