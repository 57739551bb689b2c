"""Batches of datagrams: their bytes, those that the kernel dropped, and those that are too long."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from blackbox_feeds.live.receiver import TRUNCATED, Receiver
from blackbox_feeds.live.sockets import open_line

from blackbox.feed.endpoint import _free_ports
from blackbox.feed.venue_url import Address


@pytest.fixture
def line() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield a line with the smallest buffer, and a socket that sends to it."""
    (port,) = _free_ports(1)
    opened, _ = open_line(Address("127.0.0.1", port), None, 1)
    with opened, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect(("127.0.0.1", port))
        yield opened, sender


def received(receiver: Receiver, opened: socket.socket) -> list[bytes | None]:
    """Return all datagrams that have arrived; None: one that was too long."""
    found: list[bytes | None] = []
    while many := receiver.receive(opened.fileno()):
        for row, length in enumerate(receiver.lengths[:many].tolist()):
            start = row * receiver.slot_bytes
            data = receiver.data[start : start + max(length, 0)].tobytes()
            found.append(None if length == TRUNCATED else data)
    return found


def test_datagrams_that_the_kernel_drops_are_counted(line: tuple[socket.socket, socket.socket]) -> None:
    opened, sender = line
    receiver = Receiver(batch=4)
    sent = [b"%d" % number * 200 for number in range(100)]
    for datagram in sent:
        sender.send(datagram)
    found = received(receiver, opened)
    assert 0 < len(found) < len(sent)
    assert found == sent[: len(found)]
    dropped = 0
    for _ in range(2):  # the kernel reports its count with the next datagram
        sender.send(b"next")
        assert received(receiver, opened) == [b"next"]
        dropped += receiver.take_drops()
    assert len(found) + dropped == len(sent)
    assert receiver.packets == len(found) + 2


def test_datagram_that_is_too_long_or_empty(line: tuple[socket.socket, socket.socket]) -> None:
    opened, sender = line
    receiver = Receiver(batch=2, slot_bytes=100)
    found: list[bytes | None] = []
    for datagram in (b"x" * 101, b"", b"y" * 100):
        sender.send(datagram)
        found += received(receiver, opened)
    assert found == [None, b"", b"y" * 100]
    assert receiver.take_drops() == 0
