"""One RabbitMQ for all tests of this folder: it takes seconds to start."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
from collections.abc import Iterator
from typing import Final

import amqp
import pytest

from bench.rivals.servers import Missing
from blackbox.services.bridge.amqp import connection as amqp_connection
from blackbox.services.bridge.amqp import exchange, queue, source
from blackbox.services.bridge.amqp.connection import Address, hang_up
from tests.bridge.amqp.rabbitmq import RabbitMq

_ANSWER_S: Final = 60.0
_GUEST: Final = {
    "name": "guest",
    "password_hash": base64.b64encode(b"salt" + hashlib.sha256(b"saltguest").digest()).decode(),
    "hashing_algorithm": "rabbit_password_hashing_sha256",
    "tags": "administrator",
}
_ALL: Final = {"user": "guest", "vhost": "/"}
DEFINITIONS: Final = {
    "users": [_GUEST],
    "vhosts": [{"name": "/"}],
    "permissions": [_ALL | {"configure": ".*", "write": ".*", "read": ".*"}],
    "topic_permissions": [_ALL | {"exchange": "rights", "write": ".*", "read": "^A\\."}],
}
"""One user, who may read only some topics of the exchange `rights`."""


@pytest.fixture(scope="session")
def rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMq]:
    place = tmp_path_factory.mktemp("rabbitmq")
    definitions = place / "definitions.json"
    definitions.write_text(json.dumps(DEFINITIONS))
    try:
        server = RabbitMq(place, load_definitions=f'"{definitions}"')
    except Missing as why:
        pytest.skip(str(why))
    yield server
    server.close()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no bridge reconnect because RabbitMQ answers late: it would send unanswered messages again."""
    for module in (amqp_connection, exchange, queue, source):
        monkeypatch.setattr(module, "SOCKET_S", _ANSWER_S)
    if amqp_connection._SETTINGS:
        monkeypatch.setitem(amqp_connection._SETTINGS, socket.TCP_USER_TIMEOUT, int(1_000 * _ANSWER_S))


@pytest.fixture
def channel(rabbit: RabbitMq) -> Iterator[amqp.Channel]:
    connection = Address.of(rabbit.url).connect()
    yield connection.channel()
    hang_up(connection)
