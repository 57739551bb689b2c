"""One RabbitMQ for all tests of this folder: it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import amqp
import pytest

from bench.rivals.servers import Missing
from blackbox.bridge.amqp import Address, hang_up
from tests.bridge.amqp.rabbitmq import RabbitMq


@pytest.fixture(scope="session")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMq]:
    try:
        server = RabbitMq(tmp_path_factory.mktemp("rabbitmq"))
    except Missing as why:
        pytest.skip(str(why))
    yield server
    server.close()


@pytest.fixture
def channel(rabbit: RabbitMq) -> Iterator[amqp.Channel]:
    """What a user of RabbitMQ has."""
    connection = Address.of(rabbit.url).connect()
    yield connection.channel()
    hang_up(connection)
