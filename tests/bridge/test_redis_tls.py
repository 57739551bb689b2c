"""Bridges to a real Redis with TLS and a certificate made here."""

from __future__ import annotations

import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from bench.rivals.servers import Missing, Server
from blackbox.errors import BridgeError
from blackbox.services.bridge.redis.group import RedisGroup
from blackbox.services.bridge.redis.streams import RedisStreams
from blackbox.services.hub.server.hub import Hub
from blackbox.testing import wait_until
from tests.bridge.amqp.rabbitmq import certify
from tests.hub.hubs import hub_feed, published


class Terminator(socketserver.ThreadingTCPServer):
    """A TLS proxy at localhost in front of an unencrypted server."""

    daemon_threads = True

    def __init__(self, certificate: Path, key: Path, behind: int) -> None:
        super().__init__(("127.0.0.1", 0), socketserver.BaseRequestHandler)
        self.certificate, self.port, self._behind = certificate, self.server_address[1], behind
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)

    def finish_request(self, request: Any, client_address: object) -> None:
        with (
            suppress(OSError),
            self._context.wrap_socket(request, server_side=True) as outer,
            socket.create_connection(("127.0.0.1", self._behind)) as inner,
        ):
            threading.Thread(target=pass_on, args=(inner, outer), daemon=True).start()
            pass_on(outer, inner)


def pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def tls(server: Server, tmp_path: Path) -> Iterator[Terminator]:
    certificate = tmp_path / "certificate.pem"
    try:
        key = certify(certificate)
    except Missing as why:
        pytest.skip(str(why))
    with Terminator(certificate, key, server.port) as terminator:
        threading.Thread(target=terminator.serve_forever, daemon=True).start()
        yield terminator
        terminator.shutdown()


def test_a_stream_works_over_tls_with_any_password(
    server: Server, there: redis.Redis, tls: Terminator, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    password = "p/ss#w@rd?:"
    for number in range(3):
        there.xadd("orders", {"topic": "A.x", "payload": str(number)})
    there.config_set("requirepass", password)
    there.execute_command("AUTH", password)
    feed = hub_feed("orders", slices=1)
    url = f"rediss://:{password}@localhost:{tls.port}/0"
    with Hub(feed, tmp_path / "hub") as hub, RedisGroup(feed, url, ca=str(tls.certificate)) as bridge:
        wait_until(lambda: hub.statistics().stored == 3)
        assert bridge.url == f"rediss://localhost:{tls.port}/0"
    assert [payload for *_, payload in published(tmp_path / "hub", feed)] == [b"0", b"1", b"2"]
    assert password not in caplog.text


def test_an_untrusted_host_ends_it_without_retries(tls: Terminator) -> None:
    feed = hub_feed("orders", slices=1)
    with pytest.raises(BridgeError, match=f"rediss://localhost:{tls.port} was not trusted: "):
        RedisGroup(feed, f"rediss://localhost:{tls.port}").start()
    with pytest.raises(BridgeError, match="was not trusted: "):
        RedisStreams(feed, f"rediss://127.0.0.1:{tls.port}", ca=str(tls.certificate)).start()
