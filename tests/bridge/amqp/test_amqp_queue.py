"""From a queue of a real RabbitMQ into a hub: each message once, through outages and kills."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import amqp
import msgspec
import pytest

from bench.rivals.servers import Missing
from blackbox import Feed
from blackbox.errors import BridgeError
from blackbox.services.bridge import hub_inlet
from blackbox.services.bridge.amqp.connection import Address, hang_up, message_of, routing_key
from blackbox.services.bridge.amqp.exchange import AmqpExchange
from blackbox.services.bridge.amqp.queue import AmqpQueue, amqp_inlet
from blackbox.services.bridge.amqp.source import AmqpSource
from blackbox.services.hub.server.hub import Hub
from blackbox.testing import RawPublisher, wait_until
from tests.bridge.amqp.rabbitmq import RabbitMq
from tests.hub.hubs import hub_feed, published


def fill(channel: amqp.Channel, queue: str, begin: int, end: int) -> None:
    """Persistent messages with ids; the queue has no bindings."""
    for number in range(begin, end):
        headers = {"topic": b"A.x", "ts_event": number}
        message = message_of(b"A.x", b"%d" % number, headers, message_id=f"m-{number}", delivery_mode=2)
        channel.basic_publish(message, "", queue)


@pytest.mark.long
def test_each_message_is_stored_once_when_the_broker_is_killed(
    rabbit: RabbitMq, channel: amqp.Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost acknowledgements make it redeliver messages that the hub has."""
    feed, queue = hub_feed("crashed", slices=1), "crashed"
    channel.queue_declare(queue, durable=True, auto_delete=False)
    channel.confirm_select()
    fill(channel, queue, 0, 3_000)
    channel.basic_publish_confirm(message_of(b"A.x", b"3000", {"topic": b"A.x"}, message_id="m-3000"), "", queue)
    killed, let_go = list[int](), AmqpQueue._let_go

    def kill_first(bridge: AmqpQueue, channel: Any) -> None:
        if not killed and hub.statistics().stored > 0:
            rabbit.kill()
            killed.append(bridge.statistics()["messages put"])
        let_go(bridge, channel)

    monkeypatch.setattr(AmqpQueue, "_let_go", kill_first)
    with Hub(feed, tmp_path / "hub") as hub, AmqpQueue(feed, rabbit.url) as bridge:
        wait_until(lambda: killed)
        assert killed[0] < 3_000
        rabbit.start()
        connection = Address.of(rabbit.url).connect()
        again = connection.channel()
        fill(again, queue, 3_000, 3_100)
        wait_until(lambda: hub.statistics().stored == 3_100)
        wait_until(lambda: again.queue_declare(queue, passive=True).message_count == 0)
        assert bridge.statistics()["times away"] == 1
    hang_up(connection)
    found = [int(payload or b"") for *_, payload in published(tmp_path / "hub", feed)]
    assert sorted(found) == list(range(3_100))


@pytest.mark.long
def test_messages_without_ids_are_stored_once_by_bridges_that_are_closed(
    rabbit: RabbitMq, channel: amqp.Channel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a connection is closed the broker still delivers messages: they stay in the queue."""
    monkeypatch.setattr(hub_inlet, "LAST_S", 60.0)
    feed, count = hub_feed("closed", slices=1), 3_000
    channel.queue_declare("closed", durable=True, auto_delete=False)
    for number in range(count):
        channel.basic_publish(message_of(b"A.x", b"%d" % number, {"topic": b"A.x"}), "", "closed")
    with Hub(feed, tmp_path) as hub:
        while (stored := hub.statistics().stored) < count:
            with AmqpQueue(feed, rabbit.url):
                wait_until(lambda before=stored: hub.statistics().stored > before)  # type: ignore[misc]
    assert sorted(int(payload or b"") for *_, payload in published(tmp_path, feed)) == list(range(count))


def test_a_connection_is_freed_if_a_callback_fails_while_it_is_closed(rabbit: RabbitMq) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("no room")

    connection = Address.of(rabbit.url).connect()
    channel = connection.channel()
    queue = channel.queue_declare(exclusive=True).queue
    channel.basic_publish(amqp.Message(b"1"), "", queue)
    channel.basic_consume(queue, callback=fail)
    with pytest.raises(RuntimeError, match="no room"):
        hang_up(connection)
    assert connection.channels is None


def test_an_unreachable_hub_is_waited_for(rabbit: RabbitMq, channel: amqp.Channel, tmp_path: Path) -> None:
    """The queue keeps everything that the hub does not have."""
    feed = hub_feed("away", slices=1)
    channel.queue_declare("away", durable=True, auto_delete=False)
    fill(channel, "away", 0, 2_000)
    with AmqpQueue(feed, rabbit.url) as bridge:
        wait_until(lambda: len(bridge._on_their_way) == 1_000)  # and no more
        with Hub(feed, tmp_path):
            wait_until(lambda: bridge.statistics()["messages put"] > 0)
        with Hub(feed, tmp_path):
            wait_until(lambda: bridge.statistics()["messages put"] == 2_000)
    assert [payload for *_, payload in published(tmp_path, feed)] == [b"%d" % number for number in range(2_000)]
    assert channel.queue_declare("away", passive=True).message_count == 0


@pytest.mark.long
def test_a_hub_may_be_unreachable_for_longer_than_the_broker_waits(tmp_path: Path) -> None:
    """RabbitMQ closes a channel with a message unacknowledged for half an hour, here for a second."""
    try:
        rabbit = RabbitMq(tmp_path, consumer_timeout=1_000, channel_tick_interval=500)
    except Missing as why:
        pytest.skip(str(why))
    feed, connection = hub_feed("late", slices=1), Address.of(rabbit.url).connect()
    connection.channel().queue_declare("late", durable=True, auto_delete=False)
    fill(connection.channel(), "late", 0, 10)
    hang_up(connection)
    with closing(rabbit), AmqpQueue(feed, rabbit.url) as bridge:
        wait_until(lambda: bridge._over.is_set() or bridge.statistics()["times away"] > 0)
        with Hub(feed, tmp_path / "hub"):
            wait_until(lambda: bridge._over.is_set() or bridge.statistics()["messages put"] >= 10)
        assert not bridge._over.is_set()
    assert [payload for *_, payload in published(tmp_path / "hub", feed)] == [b"%d" % number for number in range(10)]


def test_a_feed_reaches_a_hub_through_a_broker_once(
    rabbit: RabbitMq, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A gap is reported and not put."""
    there, here = Feed.local("holey", slices=1), hub_feed("whole", slices=1)
    there = msgspec.structs.replace(there, heartbeat_ns=50_000_000)
    with (
        Hub(here, tmp_path),
        AmqpQueue(here, rabbit.url, b"A", exchange="holey") as bridge,
        RawPublisher(there) as publisher,
        AmqpExchange(there, rabbit.url),
    ):
        publisher.send(publisher.encode([(b"A", b"0"), (b"B", b"is not asked for"), (b"A.x", b"2")]))
        publisher.encode([(b"A.x", b"3")] * 3)  # is lost
        publisher.send(publisher.encode([(b"A.x", b"6")]))
        wait_until(lambda: bridge.statistics()["messages put"] == 3)
        assert bridge.statistics()["told missing"] == 3
    assert [row[3:] for row in published(tmp_path, here)] == [(b"A", b"0"), (b"A.x", b"2"), (b"A.x", b"6")]
    assert "3 messages were lost at the source" in caplog.text


def test_only_refused_messages_go_to_the_dead_letters(
    rabbit: RabbitMq, channel: amqp.Channel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Refused by the bridge, for its size, or by the hub, for the number of topics."""
    feed = msgspec.structs.replace(hub_feed("full", slices=1), max_topics=2)
    channel.queue_declare("letters", durable=True, auto_delete=False)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"}
    channel.queue_declare("full", durable=True, auto_delete=False, arguments=arguments)
    large = b"x" * ((1 << 20) + 1)

    def put(topic: bytes, payload: bytes = b"") -> None:
        channel.basic_publish(message_of(topic, payload, {"topic": topic}), "", "full")

    put(b"A.large", large)
    for topic in (b"A", b"AB", b"B", b"AC", b"A", b"AD"):
        put(topic)
    with AmqpQueue(feed, rabbit.url, b"A") as bridge:
        wait_until(lambda: len(bridge._on_their_way) == 6)
        with Hub(feed, tmp_path):
            wait_until(lambda: bridge._over.is_set() or bridge.statistics()["refused"] == 3)
            put(b"AB", b"last")
            wait_until(lambda: bridge._over.is_set() or bridge.statistics()["messages put"] == 4)
        counts = {"messages put": 4, "unwanted": 1, "refused": 3, "told missing": 0, "times away": 0}
        assert bridge.statistics() == counts
    assert [row[3:] for row in published(tmp_path, feed)] == [(b"A", b""), (b"AB", b""), (b"A", b""), (b"AB", b"last")]
    assert channel.queue_declare("full", passive=True).message_count == 0
    letters = iter(lambda: channel.basic_get("letters", no_ack=True), None)
    assert sorted(len(message.body) for message in letters) == [0, 0, len(large)]
    assert "payload had 1048577 bytes" in caplog.text


def test_an_unreadable_message_ends_it(rabbit: RabbitMq, channel: amqp.Channel, tmp_path: Path) -> None:
    """Otherwise it would be redelivered forever, together with all later ones."""
    feed = hub_feed("unreadable", slices=1)
    with Hub(feed, tmp_path), AmqpQueue(feed, rabbit.url, exchange="unreadable") as bridge:
        for _ in range(3):  # further ones arrive while the connection is closed
            channel.basic_publish(amqp.Message(b""), "unreadable", b"\xff")
        wait_until(lambda: bridge._over.is_set() or bridge.statistics()["times away"] > 1)
        with pytest.raises(BridgeError, match=r"queue 'unreadable' of amqp://.* has a message whose routing key"):
            bridge.run()
        assert bridge.statistics()["times away"] == 0


def test_the_kind_of_inlet_depends_on_the_hub() -> None:
    assert isinstance(amqp_inlet(hub_feed(), "amqp://there", queue="q"), AmqpQueue)
    assert isinstance(amqp_inlet(Feed.local("choice", slices=1), "amqp://there"), AmqpSource)


def test_overlapping_bindings_put_each_message_once(rabbit: RabbitMq, channel: amqp.Channel, tmp_path: Path) -> None:
    """Bindings of words match more than the prefixes; other messages are acknowledged and counted."""
    feed, exchange = hub_feed("several-queued", slices=1), "several-out"
    channel.queue_declare(feed.name, durable=True, auto_delete=False)
    with Hub(feed, tmp_path), AmqpQueue(feed, rabbit.url, ["C.d", b"A.b", "A.bx"], exchange=exchange) as bridge:
        wait_until(lambda: channel.queue_declare(feed.name, passive=True).consumer_count == 1)
        for number, topic in enumerate((b"A.x", b"B.x", b"A.b", b"C.dx", b"A.bx.y")):
            message = message_of(topic, b"%d" % number, {"topic": topic}, message_id=f"m-{number}")
            channel.basic_publish(message, exchange, routing_key(topic))
        wait_until(lambda: bridge.statistics()["messages put"] == 3)
        assert bridge.statistics()["unwanted"] == 1
    assert [row[3:] for row in published(tmp_path, feed)] == [(b"A.b", b"2"), (b"C.dx", b"3"), (b"A.bx.y", b"4")]
