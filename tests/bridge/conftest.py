"""A real Redis for the tests of bridges."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from bench.rivals.servers import Missing, Server, redis_server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    try:
        with redis_server() as server:
            yield server
    except Missing as why:
        pytest.skip(str(why))


@pytest.fixture
def there(server: Server) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port, protocol=2) as client:
        client.flushall()
        yield client
        client.config_set("maxmemory", 0)
