"""Bridges to a real RabbitMQ with TLS and a certificate made here."""

from __future__ import annotations

from pathlib import Path

import amqp
import pytest

from blackbox.errors import BridgeError
from blackbox.services.bridge.amqp.exchange import AmqpExchange
from blackbox.services.bridge.amqp.queue import AmqpQueue
from blackbox.services.bridge.amqp.source import AmqpSource
from blackbox.services.hub.server.hub import Hub
from blackbox.testing import wait_until
from tests.bridge.amqp.rabbitmq import RabbitMq
from tests.bridge.amqp.test_amqp_queue import fill
from tests.bridge.amqp.test_amqp_source import feed_of
from tests.cli.commands import assert_one_line, invoke, write_feed
from tests.hub.hubs import hub_feed


def test_messages_of_one_tls_record_arrive_together(rabbit: RabbitMq, channel: amqp.Channel, tmp_path: Path) -> None:
    """Many messages share a TLS record, and the socket signals only the first."""
    feed = hub_feed("records", slices=1)
    channel.queue_declare("records", durable=True, auto_delete=False)
    fill(channel, "records", 0, 1_000)
    with Hub(feed, tmp_path), AmqpQueue(feed, rabbit.tls_url, ca=str(rabbit.certificate)) as bridge:
        wait_until(lambda: bridge.statistics()["messages put"] == 1_000)


def test_an_untrusted_broker_is_refused(rabbit: RabbitMq, tmp_path: Path) -> None:
    """So is one that does not encrypt: the password is not sent."""
    feed, ca = feed_of("secret"), str(rabbit.certificate)
    for bridge, why in (
        (AmqpExchange(feed, rabbit.tls_url), ".*self-signed certificate"),
        (AmqpSource(feed, rabbit.tls_url), ".*self-signed certificate"),
        (AmqpExchange(feed, rabbit.tls_url.replace("localhost", "127.0.0.1"), ca=ca), ".*127.0.0.1"),
        (AmqpExchange(feed, rabbit.url.replace("amqp", "amqps"), ca=ca), ""),
    ):
        with pytest.raises(BridgeError, match=f"was not trusted: {why}"):
            bridge.start()
    told = invoke("bridge", rabbit.tls_url, "--in", "--feed", write_feed(feed, tmp_path / "feed.toml"))
    assert_one_line(told, "amqps://localhost:[0-9]+ was not trusted: .*self-signed certificate")
    assert "guest" not in told.errors
