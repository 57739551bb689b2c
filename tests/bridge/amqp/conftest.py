"""One RabbitMQ for all tests of this folder: it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import amqp
import pytest

from bench.rivals.servers import Missing
from blackbox.bridge.amqp import Address, hang_up
from tests.bridge.amqp.rabbitmq import RabbitMq

_ANSWER_S: Final = 60.0


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
    """Credentials of a RabbitMQ user."""
    at = Address.of(rabbit.url)
    # On a busy machine RabbitMQ may take longer than a bridge waits for it.
    limits = {"connect_timeout": _ANSWER_S, "read_timeout": _ANSWER_S, "write_timeout": _ANSWER_S}
    connection = amqp.Connection(at.host, at.user, at.password, virtual_host=at.vhost, **limits)
    connection.connect()
    yield connection.channel()
    hang_up(connection)
