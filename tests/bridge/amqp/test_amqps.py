"""Bridges to a real RabbitMQ with TLS and a certificate made here."""

from __future__ import annotations

from pathlib import Path

import amqp
import pytest

from blackbox import ConfigError, Publisher
from blackbox.bridge.amqp import Address
from blackbox.bridge.amqp_exchange import AmqpExchange
from blackbox.bridge.amqp_queue import AmqpQueue
from blackbox.bridge.amqp_source import AmqpSource
from blackbox.errors import BridgeError
from blackbox.hub.hub import Hub
from blackbox.testing import wait_until
from tests.bridge.amqp.rabbitmq import RabbitMq
from tests.bridge.amqp.test_amqp_queue import fill
from tests.bridge.amqp.test_amqp_source import feed_of, wanting
from tests.cli.commands import assert_one_line, invoke, write_feed
from tests.hub.hubs import hub_feed, published


@pytest.mark.long
def test_a_feed_reaches_a_hub_and_a_feed_also_when_the_broker_is_killed(rabbit: RabbitMq, tmp_path: Path) -> None:
    there, kept, live, ca = feed_of("secret", 1), hub_feed("kept", slices=1), feed_of("live"), str(rabbit.certificate)
    with (
        Hub(kept, tmp_path) as hub,
        AmqpQueue(kept, rabbit.tls_url, exchange="secret", ca=ca),
        AmqpSource(live, rabbit.tls_url, exchange="secret", ca=ca) as source,
        wanting(live, b"A.last") as got,
        Publisher(there, when_full="wait") as publisher,
        AmqpExchange(there, rabbit.tls_url, ca=ca) as out,
    ):
        for number in range(3_000):
            publisher.publish(b"A.x", b"%d" % number)
        wait_until(lambda: out.statistics().added > 0)
        rabbit.kill()
        rabbit.start()
        wait_until(lambda: hub.statistics().stored == 3_000, 60)
        wait_until(lambda: source.statistics()["times away"] == 1)
        publisher.publish(b"A.last", b"x")
        assert got.wait(1)[0].payload == b"x"
        wait_until(lambda: hub.statistics().stored == 3_001)
    assert sorted(int(payload or b"") for *_, payload in published(tmp_path, kept)[:-1]) == list(range(3_000))


def test_messages_of_one_tls_record_arrive_together(rabbit: RabbitMq, channel: amqp.Channel, tmp_path: Path) -> None:
    """Many messages share a TLS record, and the socket signals only the first."""
    feed = hub_feed("records", slices=1)
    channel.queue_declare("records", durable=True, auto_delete=False)
    fill(channel, "records", 0, 1_000)
    with Hub(feed, tmp_path), AmqpQueue(feed, rabbit.tls_url, ca=str(rabbit.certificate)) as bridge:
        wait_until(lambda: bridge.statistics()["messages put"] == 1_000)


def test_an_untrusted_certificate_is_refused(rabbit: RabbitMq, tmp_path: Path) -> None:
    feed = feed_of("secret")
    for bridge in (AmqpExchange(feed, rabbit.tls_url), AmqpSource(feed, rabbit.tls_url)):
        with pytest.raises(BridgeError, match="was not trusted: .*self-signed certificate"):
            bridge.start()
    told = invoke("bridge", rabbit.tls_url, "--in", "--feed", write_feed(feed, tmp_path / "feed.toml"))
    assert_one_line(told, "amqps://localhost:[0-9]+ was not trusted: .*self-signed certificate")
    assert "guest" not in told.errors


def test_a_certificate_of_another_host_is_refused(rabbit: RabbitMq) -> None:
    url = rabbit.tls_url.replace("localhost", "127.0.0.1")
    with pytest.raises(BridgeError, match="was not trusted: .*127.0.0.1"):
        AmqpExchange(feed_of("secret"), url, ca=str(rabbit.certificate)).start()


def test_a_broker_that_does_not_encrypt_is_refused(rabbit: RabbitMq) -> None:
    """The password is not sent."""
    with pytest.raises(BridgeError, match="was not trusted: "):
        AmqpExchange(feed_of("secret"), rabbit.url.replace("amqp", "amqps"), ca=str(rabbit.certificate)).start()


def test_wrong_settings_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="option was ca=there.pem, expected none with amqp://"):
        Address.of("amqp://there", "there.pem")
    with pytest.raises(ConfigError, match="none.pem, expected a file of certificates in PEM: "):
        Address.of("amqps://there", str(tmp_path / "none.pem"))
    (tmp_path / "bad.pem").write_text("is none")
    with pytest.raises(ConfigError, match="bad.pem, expected a file of certificates in PEM: "):
        Address.of("amqps://there", str(tmp_path / "bad.pem"))
