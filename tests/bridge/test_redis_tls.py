"""Bridges to a real Redis with TLS and a certificate made here."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from bench.rivals.servers import Server
from blackbox.errors import BridgeError
from blackbox.services.bridge.redis.group import RedisGroup
from blackbox.services.bridge.redis.streams import RedisStreams
from blackbox.services.hub.server.hub import Hub
from blackbox.testing import wait_until
from tests.hub.hubs import hub_feed, published


class Terminator:
    """A TLS proxy at localhost in front of an unencrypted server."""

    def __init__(self, directory: Path, behind: int) -> None:
        self.certificate, key = directory / "certificate.pem", directory / "key.pem"
        words = f"req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout {key} -out {self.certificate}"
        command = ["openssl", *words.split(), "-addext", "subjectAltName=DNS:localhost"]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except FileNotFoundError:
            pytest.skip("no openssl found: apt install openssl")
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(self.certificate, key)
        self._behind = behind
        self._listens = socket.create_server(("127.0.0.1", 0))
        self.port = self._listens.getsockname()[1]
        threading.Thread(target=self._take, daemon=True).start()

    def close(self) -> None:
        self._listens.close()

    def _take(self) -> None:
        while True:
            try:
                taken, _ = self._listens.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(taken,), daemon=True).start()

    def _serve(self, taken: socket.socket) -> None:
        with (
            suppress(OSError),
            self._context.wrap_socket(taken, server_side=True) as outer,
            socket.create_connection(("127.0.0.1", self._behind)) as inner,
        ):
            threading.Thread(target=self._pass, args=(inner, outer), daemon=True).start()
            self._pass(outer, inner)

    @staticmethod
    def _pass(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def tls(server: Server, tmp_path: Path) -> Iterator[Terminator]:
    terminator = Terminator(tmp_path, server.port)
    yield terminator
    terminator.close()


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
    try:
        with Hub(feed, tmp_path / "hub") as hub, RedisGroup(feed, url, ca=str(tls.certificate)) as bridge:
            wait_until(lambda: hub.statistics().stored == 3)
            assert bridge.url == f"rediss://localhost:{tls.port}/0"
    finally:
        there.config_set("requirepass", "")
    assert [payload for *_, payload in published(tmp_path / "hub", feed)] == [b"0", b"1", b"2"]
    assert password not in caplog.text


def test_an_untrusted_host_ends_it_without_retries(tls: Terminator) -> None:
    feed = hub_feed("orders", slices=1)
    with pytest.raises(BridgeError, match=f"rediss://localhost:{tls.port} was not trusted: "):
        RedisGroup(feed, f"rediss://localhost:{tls.port}").start()
    with pytest.raises(BridgeError, match="was not trusted: "):
        RedisStreams(feed, f"rediss://127.0.0.1:{tls.port}", ca=str(tls.certificate)).start()
