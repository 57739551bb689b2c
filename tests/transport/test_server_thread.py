"""A server's thread: an error while binding is raised by `start`, and stages follow in one order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import zmq

from blackbox.errors import EndpointError
from blackbox.testing import wait_until
from blackbox.transport.server_thread import ServerLife, ServerThread, bind

ENDPOINT = "inproc://blackbox-server-thread"


def server_of(context: zmq.Context[Any], answer: Callable[[list[bytes]], bytes]) -> ServerThread:
    def serve() -> None:
        with context.socket(zmq.REP) as socket:
            bind(socket, ENDPOINT, "endpoint")
            for frames in server.requests(socket):
                socket.send(answer(frames))

    server = ServerThread("blackbox-server", "server", serve)
    return server


def test_it_answers_until_it_is_stopped(context: zmq.Context[Any]) -> None:
    server = server_of(context, lambda frames: frames[0].upper())
    server.start()
    assert server.life is ServerLife.SERVING
    with pytest.raises(RuntimeError, match="server was to be binding when it was serving, expected ending or ended"):
        server.start()
    with context.socket(zmq.REQ) as socket:
        socket.connect(ENDPOINT)
        for text in (b"one", b"two"):
            socket.send(text)
            assert socket.recv() == text.upper()
        socket.linger = 0
    assert server.end(60)
    assert server.end(60)
    assert server.life is ServerLife.ENDED


def test_start_raises_if_the_endpoint_is_in_use(context: zmq.Context[Any]) -> None:
    with context.socket(zmq.REP) as socket:
        bind(socket, ENDPOINT, "endpoint")
        server = server_of(context, lambda frames: b"")
        with pytest.raises(EndpointError, match=f"endpoint {ENDPOINT} is in use"):
            server.start()
        assert server.end(60)
    assert server.life is ServerLife.ENDED


def test_a_server_that_never_started_can_be_ended(context: zmq.Context[Any]) -> None:
    server = server_of(context, lambda frames: b"")
    assert server.end()
    with pytest.raises(RuntimeError, match="server was to be binding when it was ended, expected nothing more"):
        server.start()


def test_an_answer_that_raises_ends_it_and_is_logged(
    context: zmq.Context[Any], caplog: pytest.LogCaptureFixture
) -> None:
    server = server_of(context, lambda frames: bytes(1 // len(frames[0])))
    server.start()
    with context.socket(zmq.REQ) as socket:
        socket.linger = 0
        socket.connect(ENDPOINT)
        socket.send(b"")
        wait_until(lambda: server.life is ServerLife.ENDED)
    assert caplog.messages == ["server failed"]
    assert server.end(60)
