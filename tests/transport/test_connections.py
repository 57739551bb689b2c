"""Kernel counters of a socket's connections, and disconnecting one of them."""

from __future__ import annotations

import resource
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from blackbox.testing import wait_until
from blackbox.transport.send_queue import end_connection, unsent_bytes
from blackbox.transport.tcp_info import Connection, Connections
from tests.process_state import descriptors_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the counters are Linux's")

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)


@contextmanager
def watched(socket: zmq.Socket[bytes]) -> Iterator[Connections]:
    socket.linger = 0
    with socket:
        connections = Connections(socket)
        try:
            yield connections
        finally:
            connections.close()


@contextmanager
def connected(context: zmq.Context[Any]) -> Iterator[tuple[Connections, Connection, socket.socket]]:
    """Yield the connections of a bound socket, its only one, and that one's other end."""
    publisher = context.socket(zmq.XPUB)
    with watched(publisher) as connections:
        port = publisher.bind_to_random_port("tcp://127.0.0.1")
        with socket.create_connection(("127.0.0.1", port)) as peer:
            yield connections, one(connections), peer


def one(connections: Connections) -> Connection:
    wait_until(lambda: len(connections.look()) == 1, what="the connection")
    return connections.look()[0]


def test_bytes_of_an_unfinished_message_are_counted(context: zmq.Context[Any]) -> None:
    with connected(context) as (connections, connection, peer):
        peer.sendall(GREETING)
        assert connection.peer == peer.getsockname()
        assert connection.address == f"127.0.0.1:{peer.getsockname()[1]}"
        wait_until(lambda: connection.look() and connection.received == len(GREETING))
        assert connection.end()
        while peer.recv(100):
            pass  # libzmq's greeting, then the end
        wait_until(lambda: connections.look() == [])
        assert not connection.end()


def test_a_reused_descriptor_is_left_alone(context: zmq.Context[Any], tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    path = tmp_path / "file"
    path.touch()
    with connected(context) as (_, connection, _), ours, theirs, path.open() as file:
        for fd in (ours.fileno(), file.fileno(), 1_000_000):
            other = Connection(fd, connection.local, connection.peer)
            assert not other.look()
            assert not other.end()
        assert descriptors_of(path) == 1
        assert descriptors_of(Path(f"/proc/self/fd/{ours.fileno()}").readlink()) == 1
        theirs.sendall(b"still open")
        assert ours.recv(100) == b"still open"


def test_no_descriptor_stays_open_for_a_connection_that_is_now_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with path.open() as file:
        for _ in range(3):
            assert unsent_bytes(file.fileno(), 7) == 0
            assert not end_connection(file.fileno(), 7)
        assert descriptors_of(path) == 1


def test_the_other_end_of_a_connection_is_not_mistaken_for_ours(context: zmq.Context[Any]) -> None:
    with connected(context) as (connections, _, peer):
        place = f"tcp://127.0.0.1:{peer.getpeername()[1]}"
        connections._add(zmq.EVENT_ACCEPTED, peer.fileno(), place)
        assert connections.find(peer.fileno()) is None
        connections._add(zmq.EVENT_CONNECTED, peer.fileno(), place)
        assert connections.find(peer.fileno()) is not None


def test_a_connection_is_left_alone_if_no_descriptor_is_free(context: zmq.Context[Any]) -> None:
    with connected(context) as (_, connection, _):
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            assert not connection.end()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert connection.end()


def test_outgoing_connections_are_watched(context: zmq.Context[Any]) -> None:
    publisher, subscriber = context.socket(zmq.XPUB), context.socket(zmq.SUB)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    with publisher, watched(subscriber) as connections:
        subscriber.subscribe(b"")
        subscriber.connect(f"tcp://127.0.0.1:{port}")
        connection = one(connections)
        assert connection.peer == ("127.0.0.1", port)
        assert publisher.recv() == b"\x01", "the subscription is active"
        assert connection.look()
        before = connection.received
        publisher.send(bytes(10_000))
        assert len(subscriber.recv()) == 10_000
        assert connection.look()
        assert connection.received >= before + 10_000
        assert connections.find(connection.fd) is connection


def test_connections_over_ipv6_are_found(context: zmq.Context[Any]) -> None:
    with watched(context.socket(zmq.PULL)) as connections, context.socket(zmq.PUSH) as push:
        connections._socket.ipv6 = push.ipv6 = True
        try:
            port = connections._socket.bind_to_random_port("tcp://[::1]")
        except zmq.ZMQError:
            pytest.skip("this host has no IPv6")
        push.linger = 0
        push.connect(f"tcp://[::1]:{port}")
        connection = one(connections)
        assert connection.address.startswith("[::1]:")
        assert connection.is_answered()
        assert connection.end()
