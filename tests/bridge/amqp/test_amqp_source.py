"""A feed from a real RabbitMQ: subscribed topics are bound there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import amqp
import msgspec
import pytest

from blackbox import Feed, Publisher, Subscriber
from blackbox.errors import BridgeError, NotConfirmedError, RightsError
from blackbox.services.bridge.amqp.connection import Address, binding_key, hang_up, message_of, routing_key
from blackbox.services.bridge.amqp.exchange import AmqpExchange
from blackbox.services.bridge.amqp.source import AmqpSource
from blackbox.testing import Collector, wait_until
from tests.bridge.amqp.rabbitmq import RabbitMq
from tests.bridge.amqp.test_amqp_exchange import queue_of, take


def feed_of(name: str, slices: int = 2) -> Feed:
    return msgspec.structs.replace(Feed.local(name, slices=slices), heartbeat_ns=50_000_000)


@contextmanager
def wanting(feed: Feed, *prefixes: bytes) -> Iterator[Collector]:
    got, subscriber = Collector(), Subscriber(feed)
    for prefix in prefixes:
        subscriber.on(prefix)(got.message)
    with subscriber:
        yield got


def put(channel: amqp.Channel, exchange: str, topic: bytes, payload: bytes | None = b"", **headers: object) -> None:
    channel.basic_publish(message_of(topic, payload, headers), exchange, routing_key(topic))


def test_messages_published_after_a_start_arrive(rabbit: RabbitMq, channel: amqp.Channel) -> None:
    feed = feed_of("soon")
    with AmqpSource(feed, rabbit.url):
        for turn in range(20):
            with wanting(feed, b"A.%d." % turn) as got:
                put(channel, "soon", b"A.%d.x" % turn, b"%d" % turn, ts_event=turn)
                (message,) = got.wait(1)
            assert message[:3] == (b"A.%d.x" % turn, b"%d" % turn, turn)


def test_only_wanted_messages_leave_the_broker(rabbit: RabbitMq, channel: amqp.Channel) -> None:
    feed = feed_of("wanted")
    with AmqpSource(feed, rabbit.url) as bridge:
        assert bridge.bindings == []
        with wanting(feed, b"A.b.", b"C.d") as got:
            assert bridge.bindings == ["A.b.#", "C.#"]
            for topic in (b"A.x", b"A.b", b"A.b.c", b"B", b"C.x", b"C.dx"):
                put(channel, "wanted", topic, topic)
            assert sorted(each.topic for each in got.wait(2)) == [b"A.b.c", b"C.dx"]
            with wanting(feed, b"A.b.c"):
                assert bridge.bindings == ["A.b.#", "C.#"]
            # A and C are whole words; A.b is bound by A.b.#, and C.x by C.#.
            wait_until(lambda: bridge.statistics()["messages published"] == 2)
            assert bridge.statistics() == {
                "messages published": 2,
                "unwanted": 2,
                "refused": 0,
                "told missing": 0,
                "times away": 0,
            }
        wait_until(lambda: bridge.bindings == [])
        with wanting(feed, b"E"):
            put(channel, "wanted", b"A.b.c")
            put(channel, "wanted", b"E")
            wait_until(lambda: bridge.statistics()["messages published"] == 3)
            assert bridge.bindings == ["#"]


def test_bindings_are_removed_when_unwanted(rabbit: RabbitMq, channel: amqp.Channel) -> None:
    """Verified at the broker: a mandatory message is returned as unroutable."""
    feed, returned = feed_of("gone"), threading.Event()
    channel.events["basic_return"].add(lambda *_: returned.set())

    def is_routed(topic: bytes) -> bool:
        returned.clear()
        channel.basic_publish_confirm(message_of(topic, b"", {}), "gone", routing_key(topic), mandatory=True)
        return not returned.is_set()  # a return comes before the confirmation

    with AmqpSource(feed, rabbit.url) as bridge:
        with wanting(feed, b"A."):
            assert is_routed(b"A.x")
            assert not is_routed(b"B.x")
        wait_until(lambda: bridge.bindings == [] and bridge._bound_version == bridge._version)
        assert not is_routed(b"A.x")


def test_prefixes_limit_the_messages(rabbit: RabbitMq, channel: amqp.Channel) -> None:
    feed = feed_of("bound")
    prefixes: list[str | bytes] = ["C.d", b"A.b", "A.bx"]
    with AmqpSource(feed, rabbit.url, prefixes) as bridge, wanting(feed, b"") as got, wanting(feed, b"E.", b"A.bx."):
        assert bridge.bindings == ["A.#", "A.bx.#", "C.#"]
        for topic in (b"A.x", b"B.x", b"C.x", b"A.b", b"C.dx", b"A.bx.y", b"E.x"):
            put(channel, "bound", topic)
        assert sorted(each.topic for each in got.wait(3)) == [b"A.b", b"A.bx.y", b"C.dx"]
    assert [binding_key(each) for each in (b"", b"A", b"A.", b"A.b", b"A.b.", b".", b"A..")] == [
        *("#", "#", "A.#", "A.#", "A.b.#", ".#", "A..#")
    ]
    assert [binding_key(each, whole=True) for each in (b"A", b"A.b")] == ["A.#", "A.b.#"]


def test_a_refused_binding_fails_only_its_subscriber(rabbit: RabbitMq, channel: amqp.Channel) -> None:
    """The refusal of one subscriber must not end the bridge. RabbitMQ has topic permissions for this exchange."""
    feed = feed_of("rights", slices=1)
    with AmqpSource(feed, rabbit.url) as bridge, wanting(feed, b"A.b.") as got:
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


def test_a_feed_survives_a_round_trip(rabbit: RabbitMq) -> None:
    """Out of one feed, over TLS through the broker, into another: no value, binary topics, long topics."""
    there, here, ca = feed_of("through"), feed_of("here"), str(rabbit.certificate)
    topics = (b"A", b"A.\xff.b", b"A." + 400 * b"x", "A.ü".encode(), "€".encode() * 200)
    with (
        Publisher(there) as publisher,
        AmqpExchange(there, rabbit.tls_url, ca=ca),
        AmqpSource(here, rabbit.tls_url, exchange="through", ca=ca),
        wanting(here, b"") as got,
    ):
        for number, topic in enumerate(topics):
            publisher.publish(topic, b"%d" % number, number)
            publisher.publish(topic, None, 0)
        found = got.wait(10)
    for number, topic in enumerate(topics):
        mine = [(each.payload, each.ts_event) for each in found if each.topic == topic]
        assert mine == [(b"%d" % number, number), (None, 0)]


def test_gaps_and_invalid_messages_are_counted(
    rabbit: RabbitMq, channel: amqp.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    feed = feed_of("refused")
    with AmqpSource(feed, rabbit.url) as bridge, wanting(feed, b"") as got:
        put(channel, "refused", b"blackbox.gap", b"", gap=3)
        put(channel, "refused", b"blackbox.gap", b"tells of none")
        put(channel, "refused", b"")
        put(channel, "refused", b"A", ts_event="late")
        assert {each[:3] for each in got.wait(2)} == {(b"blackbox.gap", b"tells of none", 0), (b"A", b"", 0)}
        assert (bridge.statistics()["told missing"], bridge.statistics()["refused"]) == (3, 1)
        channel.basic_publish(amqp.Message(b""), "refused", b"\xff")  # the library cannot decode it
        wait_until(lambda: bridge.statistics()["times away"] == 1)
        put(channel, "refused", b"A")
        got.wait(3)
    assert "a message was refused" in caplog.text


def test_a_killed_rabbitmq_loses_nothing_confirmed_and_is_bound_again(
    rabbit: RabbitMq, channel: amqp.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    """Out: unconfirmed messages are repeated, so every id is there. In: new subscribers are not confirmed meanwhile."""
    there, here, queue = feed_of("killed", 1), feed_of("back"), queue_of(channel, "killed", "#")
    with (
        Publisher(there, when_full="wait") as publisher,
        AmqpExchange(there, rabbit.url) as out,
        AmqpSource(here, rabbit.url) as bridge,
        wanting(here, b"A.") as got,
    ):
        for number in range(4_000):
            publisher.publish(b"A", b"%d" % number)
            if number == 2_000:
                wait_until(lambda: out.statistics().added > 0)
                rabbit.kill()
        wait_until(lambda: caplog.text.count("is unreachable") == 2)
        late = Subscriber(here)
        late.on(b"B.")(got.message)
        with pytest.raises(NotConfirmedError):
            late.start(0.5)
        late.terminate()
        rabbit.start()
        with wanting(here, b"C."):
            connection = Address.of(rabbit.url).connect()  # the previous one is closed
            put(connection.channel(), "back", b"A.x", b"again")
            assert got.wait(1)[0].payload == b"again"
        wait_until(lambda: bridge.bindings == ["A.#"])
        assert bridge.statistics()["times away"] == 1
        wait_until(lambda: out.statistics().added == 4_000)
    assert "is back: messages published there meanwhile are lost" in caplog.text
    found = {each.id: each.payload for each in take(connection.channel(), queue)}
    hang_up(connection)
    assert sorted(map(int, found.values())) == list(range(4_000))  # type: ignore[arg-type]


def test_a_refusal_of_the_broker_ends_it(rabbit: RabbitMq, channel: amqp.Channel) -> None:
    with pytest.raises(BridgeError, match="ACCESS_REFUSED"):
        AmqpSource(feed_of("wrong"), rabbit.url.replace("guest@", "secret@")).start()
    channel.exchange_declare("kind", "fanout", durable=True, auto_delete=False)
    with pytest.raises(BridgeError, match="PRECONDITION_FAILED"), AmqpSource(feed_of("kind"), rabbit.url) as bridge:
        bridge.run()
