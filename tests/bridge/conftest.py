"""A real Redis for the tests of bridges, and patience with others that answer late."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
import redis

from bench.rivals import servers
from bench.rivals.servers import Missing, Server, redis_server
from blackbox.services.bridge.redis import connection as redis_connection
from blackbox.services.bridge.websocket import clients

_ANSWER_S: Final = 60.0
_START_S: Final = 120.0


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(servers, "_START_S", _START_S)
        try:
            server = redis_server()
        except Missing as why:
            pytest.skip(str(why))
    with server:
        yield server


@pytest.fixture(autouse=True)
def patient_bridges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no bridge reconnect or give up because others answer late. Tests of these limits set their own."""
    monkeypatch.setattr(redis_connection, "SOCKET_S", _ANSWER_S)
    monkeypatch.setattr(clients, "_CONFIRM_S", _ANSWER_S)


@pytest.fixture
def there(server: Server) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port, protocol=2) as client:
        client.flushall()
        yield client
        for name, value in (("maxmemory", 0), ("requirepass", ""), ("client-output-buffer-limit", "pubsub 0 0 0")):
            client.config_set(name, value)
