"""A feed from a real RabbitMQ: subscribed topics are bound there."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import amqp
import msgspec
import pytest

from blackbox import ConfigError, Feed, Publisher, Subscriber
from blackbox.bridge.amqp import Address, binding_key, hang_up, message_of, routing_key
from blackbox.bridge.amqp_exchange import AmqpExchange
from blackbox.bridge.amqp_source import AmqpSource
from blackbox.errors import BridgeError, NotConfirmedError
from blackbox.testing import Collector, wait_until
from tests.bridge.amqp.rabbitmq import RabbitMq
from tests.bridge.amqp.test_amqp_exchange import queue_of, take
from tests.cli.commands import Command, write_feed


def feed_of(name: str, slices: int = 2) -> Feed:
    return msgspec.structs.replace(Feed.local(name, slices=slices), heartbeat_ns=50_000_000)


@contextmanager
def wanting(feed: Feed, *prefixes: bytes) -> Iterator[Collector]:
    """A subscriber to these topics."""
    got, subscriber = Collector(), Subscriber(feed)
    for prefix in prefixes:
        subscriber.on(prefix)(got.message)
    with subscriber:
        yield got


def put(channel: amqp.Channel, exchange: str, topic: bytes, payload: bytes | None = b"", **headers: object) -> None:
    channel.basic_publish(message_of(topic, payload, headers), exchange, routing_key(topic))


def test_messages_published_after_a_start_arrive(rabbit: RabbitMq, channel: amqp.Channel) -> None:
    """However soon after: the binding exists by then."""
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
        channel.basic_publish(message_of(topic, b"", {}), "gone", routing_key(topic), mandatory=True)
        try:
            channel.connection.drain_events(timeout=0.3)
        except TimeoutError:
            return True
        return not returned.is_set()

    with AmqpSource(feed, rabbit.url) as bridge:
        with wanting(feed, b"A."):
            assert is_routed(b"A.x")
            assert not is_routed(b"B.x")
        wait_until(lambda: bridge.bindings == [] and bridge._bound_version == bridge._version)
        assert not is_routed(b"A.x")


def test_a_gap_is_reported_and_not_published(rabbit: RabbitMq, channel: amqp.Channel) -> None:
    feed = feed_of("holes")
    with AmqpSource(feed, rabbit.url) as bridge, wanting(feed, b"") as got:
        put(channel, "holes", b"blackbox.gap", b"", gap=3)
        put(channel, "holes", b"blackbox.gap", b"tells of none")
        (message,) = got.wait(1)
        assert message[:2] == (b"blackbox.gap", b"tells of none")
        assert bridge.statistics()["told missing"] == 3


def test_the_prefix_limits_the_messages(rabbit: RabbitMq, channel: amqp.Channel) -> None:
    feed = feed_of("bound")
    with AmqpSource(feed, rabbit.url, b"A.b") as bridge, wanting(feed, b"") as got, wanting(feed, b"C.", b"A.bx."):
        assert bridge.bindings == ["A.#", "A.bx.#"]
        for topic in (b"C.x", b"A.x", b"A.b", b"A.bx.y"):
            put(channel, "bound", topic)
        assert sorted(each.topic for each in got.wait(2)) == [b"A.b", b"A.bx.y"]


def test_a_feed_survives_a_round_trip(rabbit: RabbitMq) -> None:
    """Out of one feed, through the broker, into another: no value, binary topics, long topics."""
    there, here = feed_of("through"), feed_of("here")
    topics = (b"A", b"A.\xff.b", b"A." + 400 * b"x", "A.ü".encode(), "€".encode() * 200)
    with (
        Publisher(there) as publisher,
        AmqpExchange(there, rabbit.url),
        AmqpSource(here, rabbit.url, exchange="through"),
        wanting(here, b"") as got,
    ):
        for number, topic in enumerate(topics):
            publisher.publish(topic, b"%d" % number, number)
            publisher.publish(topic, None, 0)
        found = got.wait(10)
    for number, topic in enumerate(topics):
        mine = [(each.payload, each.ts_event) for each in found if each.topic == topic]
        assert mine == [(b"%d" % number, number), (None, 0)]


def test_invalid_messages_are_counted(
    rabbit: RabbitMq, channel: amqp.Channel, caplog: pytest.LogCaptureFixture
) -> None:
    feed = feed_of("refused")
    with AmqpSource(feed, rabbit.url) as bridge, wanting(feed, b"") as got:
        put(channel, "refused", b"")
        put(channel, "refused", b"A", ts_event="late")
        assert got.wait(1)[0].ts_event == 0
        assert bridge.statistics()["refused"] == 1
        channel.basic_publish(amqp.Message(b""), "refused", b"\xff")  # the library cannot decode it
        wait_until(lambda: bridge.statistics()["times away"] == 1)
        put(channel, "refused", b"A")
        assert len(got.wait(2)) == 2
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
        wait_until(lambda: out.statistics().added == 4_000, 60)
    assert "is back: messages published there meanwhile are lost" in caplog.text
    found = {each.id: each.payload for each in take(connection.channel(), queue)}
    hang_up(connection)
    assert sorted(map(int, found.values())) == list(range(4_000))  # type: ignore[arg-type]


def test_a_wrong_password_is_reported(rabbit: RabbitMq) -> None:
    with pytest.raises(BridgeError, match="ACCESS_REFUSED"):
        AmqpSource(feed_of("wrong"), rabbit.url.replace("guest@", "secret@")).start()


def test_a_late_rabbitmq_is_waited_for(rabbit: RabbitMq, caplog: pytest.LogCaptureFixture) -> None:
    """Out of a feed, and into one; each logs the outage once."""
    there, here = feed_of("late"), feed_of("later")
    rabbit.kill()
    with (
        Publisher(there) as publisher,
        AmqpSource(here, rabbit.url, exchange="late") as inlet,
        ThreadPoolExecutor(1) as pool,
    ):
        outlet = AmqpExchange(there, rabbit.url)
        starting = pool.submit(outlet.start, 60)
        wait_until(lambda: caplog.text.count("is unreachable, retrying") == 2)
        rabbit.start()
        with starting.result(), wanting(here, b"A") as got:
            publisher.publish(b"A", b"x")
            assert got.wait(1)[0].payload == b"x"
        assert inlet.statistics()["times away"] == 1
    assert caplog.text.count("is unreachable") == 2


def test_an_exchange_of_another_kind_ends_it(rabbit: RabbitMq, channel: amqp.Channel) -> None:
    channel.exchange_declare("kind", "fanout", durable=True, auto_delete=False)
    with pytest.raises(BridgeError, match="PRECONDITION_FAILED"), AmqpSource(feed_of("kind"), rabbit.url) as bridge:
        bridge.run()


def test_the_command_ends_cleanly(rabbit: RabbitMq, channel: amqp.Channel, tmp_path: Path) -> None:
    feed = feed_of("command")
    words = ("bridge", rabbit.url, "--in", "--feed", write_feed(feed, tmp_path / "feed.toml"))
    with Command(*words) as bridge:
        bridge.read_error("is carried into feed 'command'")
        with wanting(feed, b"A") as got:
            put(channel, "command", b"A", b"x")
            assert got.wait(1)[0].payload == b"x"
        ended = bridge.interrupt(signal.SIGTERM)
    assert (ended.status, "Traceback" in ended.errors) == (143, False), ended.errors
    assert "1 messages published, 0 unwanted, 0 refused" in ended.errors


def test_a_wrong_url_is_reported() -> None:
    with pytest.raises(ConfigError, match="URL was 'amqp://there/a/b'"):
        AmqpSource(feed_of("wrong"), "amqp://there/a/b")


def test_a_prefix_is_bound_by_its_whole_words() -> None:
    assert [binding_key(each) for each in (b"", b"A", b"A.", b"A.b", b"A.b.", b".", b"A..")] == [
        *("#", "#", "A.#", "A.#", "A.b.#", ".#", "A..#")
    ]
    assert [binding_key(each, whole=True) for each in (b"A", b"A.b")] == ["A.#", "A.b.#"]


def test_several_prefixes_limit_the_messages(rabbit: RabbitMq, channel: amqp.Channel) -> None:
    feed = feed_of("several-bound")
    with AmqpSource(feed, rabbit.url, ["C.d", b"A.b", "A.bx"]) as bridge, wanting(feed, b"") as got:
        assert bridge.bindings == ["A.#", "C.#"]
        for topic in (b"A.x", b"B.x", b"C.x", b"A.b", b"C.dx", b"A.bx.y"):
            put(channel, "several-bound", topic)
        assert sorted(each.topic for each in got.wait(3)) == [b"A.b", b"A.bx.y", b"C.dx"]
