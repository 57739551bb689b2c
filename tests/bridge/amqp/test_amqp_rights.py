"""A real RabbitMQ allows only some bindings: a subscriber to another topic gets RightsError."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.rivals.servers import Missing
from blackbox import Subscriber
from blackbox.bridge.amqp import Address, hang_up
from blackbox.bridge.amqp_source import AmqpSource
from blackbox.errors import RightsError
from tests.bridge.amqp.rabbitmq import RabbitMq
from tests.bridge.amqp.test_amqp_source import feed_of, put, wanting

SALT = b"salt"
HASH = base64.b64encode(SALT + hashlib.sha256(SALT + b"guest").digest()).decode()
DEFINITIONS = {
    "users": [
        {
            "name": "guest",
            "password_hash": HASH,
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": "administrator",
        }
    ],
    "vhosts": [{"name": "/"}],
    "permissions": [{"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}],
    "topic_permissions": [{"user": "guest", "vhost": "/", "exchange": "rights", "write": ".*", "read": "^A\\."}],
}


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[RabbitMq]:
    definitions = tmp_path / "definitions.json"
    definitions.write_text(json.dumps(DEFINITIONS))
    try:
        rabbit = RabbitMq(tmp_path, load_definitions=f'"{definitions}"')
    except Missing as why:
        pytest.skip(str(why))
    yield rabbit
    rabbit.close()


def test_a_refused_binding_fails_only_its_subscriber(strict: RabbitMq) -> None:
    """The refusal of one subscriber must not end the bridge."""
    feed = feed_of("rights", slices=1)
    connection = Address.of(strict.url).connect()
    with AmqpSource(feed, strict.url) as bridge, wanting(feed, b"A.b.") as got:
        channel = connection.channel()
        for turn in range(3):
            other = Subscriber(feed)
            other.on(b"B.c.")(lambda _: None)
            with pytest.raises(RightsError, match="refused the topics b'B.c.'"):
                other.start(60)
            put(channel, "rights", b"A.b.x", b"%d" % turn)
            got.wait(turn + 1)
        with wanting(feed, b"A.c.") as further:
            put(channel, "rights", b"A.c.x", b"1")
            further.wait(1)
        assert bridge.statistics()["times away"] == 0
    hang_up(connection)
