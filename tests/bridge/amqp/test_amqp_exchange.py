"""A feed in an exchange of a real RabbitMQ. The broker and the bridge are killed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import amqp
import msgspec
import pytest

from blackbox import CallbackError, Feed, Publisher, Recorder
from blackbox.errors import BridgeError
from blackbox.feed.endpoint import free_endpoints
from blackbox.services.bridge.amqp.connection import content_of, headers_of
from blackbox.services.bridge.amqp.exchange import AmqpExchange
from blackbox.testing import RawPublisher, wait_until
from tests.archive.recorders import wait_recorded
from tests.bridge.amqp.rabbitmq import RabbitMq
from tests.cli.commands import Command, write_feed


class Got(NamedTuple):
    topic: bytes
    payload: bytes | None
    headers: dict[str, Any]
    id: str


def feed_of(name: str, archive: bool = False, key_bytes: int = 0) -> Feed:
    feed = msgspec.structs.replace(Feed.local(name, slices=1, key_bytes=key_bytes), heartbeat_ns=50_000_000)
    return msgspec.structs.replace(feed, archives=free_endpoints("tcp", "archive", 1, 1)[0]) if archive else feed


def queue_of(channel: amqp.Channel, exchange: str, binding: str, **arguments: object) -> str:
    channel.exchange_declare(exchange, "topic", durable=True, auto_delete=False)
    name = f"{exchange}-{binding}"
    channel.queue_declare(name, durable=True, auto_delete=False, arguments=arguments)
    channel.queue_bind(name, exchange, binding)
    return name


def take(channel: amqp.Channel, queue: str, before: Sequence[Got] = ()) -> list[Got]:
    """Messages taken before, and those waiting in a queue."""
    got = list(before)
    while (message := channel.basic_get(queue, no_ack=True)) is not None:
        got.append(Got(*content_of(message), headers_of(message), message.properties["message_id"]))
    return got


@pytest.mark.parametrize("transient", [0, 1])
def test_each_message_has_its_topic_and_position(rabbit: RabbitMq, channel: amqp.Channel, transient: int) -> None:
    """It survives a restart of the broker unless transient."""
    feed = feed_of(f"places{transient}")
    long = b"A." + 300 * b"x"
    some, more = queue_of(channel, feed.name, "A.#"), queue_of(channel, feed.name, "*.b.*")
    with Publisher(feed) as publisher, AmqpExchange(feed, rabbit.url, b"A", transient=transient) as bridge:
        publisher.publish(b"A.x", b"one", 7)
        publisher.publish(b"B.b.x", b"is not asked for")
        publisher.publish(b"A.b.x", None)
        publisher.publish(b"A.\xff", b"no text")
        publisher.publish(long, b"")
        wait_until(lambda: bridge.statistics().added == 4)
    epoch, got = publisher.epoch, take(channel, some)
    sent = [(b"A.x", b"one"), (b"A.b.x", None), (b"A.\xff", b"no text"), (long, b"")]
    assert [(each.topic, each.payload) for each in got] == sent
    assert got[0].headers == {"slice": 0, "epoch": epoch, "sequence": 0, "ts_event": 7}
    assert [each.id for each in got] == [f"{feed.name}:0:{epoch}:{number}" for number in (0, 2, 3, 4)]
    (message,) = iter(lambda: channel.basic_get(more, no_ack=True), None)
    assert (content_of(message)[0], message.properties["delivery_mode"]) == (b"A.b.x", 2 - transient)


@pytest.mark.parametrize("key_bytes", [0, 2])
def test_a_gap_is_reported_at_its_position(rabbit: RabbitMq, channel: amqp.Channel, key_bytes: int) -> None:
    feed = feed_of(f"gaps{key_bytes}", key_bytes=key_bytes)
    queue = queue_of(channel, feed.name, "#")
    with RawPublisher(feed) as publisher, AmqpExchange(feed, rabbit.url) as bridge:
        publisher.send(publisher.encode([(b"A", b"0")]))
        publisher.encode([(b"A", b"1")] * 3)  # is lost
        publisher.send(publisher.encode([(b"A", b"4")]))
        wait_until(lambda: bridge.statistics().added == 2)
        assert bridge.statistics().missing == 3
    took = take(channel, queue)
    got = [(each.topic, each.headers["sequence"], each.headers.get("gap")) for each in took]
    assert got == [(b"A", 0, None), (b"blackbox.gap", 1, 3), (b"A", 4, None)]
    assert len({each.id for each in took}) == 3


@pytest.mark.long
def test_a_killed_bridge_continues(rabbit: RabbitMq, channel: amqp.Channel, tmp_path: Path) -> None:
    """Messages after the last saved position are repeated."""
    feed, queue = feed_of("again", archive=True), queue_of(channel, "again", "#")
    words = ("bridge", rabbit.url, "--feed", write_feed(feed, tmp_path / "feed.toml"))
    options = ("-o", "name=rabbit", "-o", f"positions={tmp_path / 'positions'}")
    with (
        Publisher(feed, when_full="wait") as publisher,
        Recorder(feed, tmp_path / "days", serve=True) as recorder,
    ):
        with Command(*words, *options) as bridge:
            bridge.read_error("is carried to")
            for number in range(2_000):
                publisher.publish(b"A", b"%d" % number)
            wait_until(lambda: channel.queue_declare(queue, passive=True).message_count >= 500)
            bridge.process.send_signal(signal.SIGKILL)
            bridge.process.wait()
        for number in range(2_000, 2_500):
            publisher.publish(b"A", b"%d" % number)
        publisher.flush()
        wait_recorded(recorder, 2_500)
        with Command(*words, *options) as bridge:
            bridge.read_error("is carried to")
            publisher.publish(b"last", b"2500")
            got = take(channel, queue)
            while got[-1].topic != b"last":
                got = take(channel, queue, got)
            ended = bridge.interrupt()
    assert (ended.status, " messages added, 0 known before, 0 missing" in ended.errors) == (130, True), ended.errors
    ids = dict.fromkeys(each.id for each in got)
    assert list(ids) == [f"again:0:{publisher.epoch}:{number}" for number in range(2_501)]


def test_a_full_queue_is_waited_for(rabbit: RabbitMq, channel: amqp.Channel, caplog: pytest.LogCaptureFixture) -> None:
    feed = feed_of("full")
    queue = queue_of(channel, "full", "#", **{"x-max-length": 10, "x-overflow": "reject-publish"})
    with Publisher(feed) as publisher, AmqpExchange(feed, rabbit.url) as bridge:
        # In one batch that never fits as a whole.
        publisher.publish_many((b"A",), [0] * 30, bytes(range(30)), offsets=range(31))
        wait_until(lambda: "were refused" in caplog.text)
        got = list[Got]()

        def has_all() -> bool:
            got[:] = take(channel, queue, got)
            return bridge.statistics().added == 30

        wait_until(has_all)
        got = take(channel, queue, got)
    assert sorted(each.payload or b"" for each in got) == [bytes([number]) for number in range(30)]


def refused(make: Callable[[], AmqpExchange], timeout: float | None = None) -> str:
    with pytest.raises(BridgeError) as told:
        make().start(timeout)
    return str(told.value)


def test_wrong_settings_are_reported(rabbit: RabbitMq, channel: amqp.Channel) -> None:
    feed = feed_of("wrong")
    told = refused(lambda: AmqpExchange(feed, rabbit.url.replace("guest@", "secret@")))
    assert told.startswith(f"amqp://127.0.0.1:{rabbit.port} refused: ")
    assert "ACCESS_REFUSED" in told
    assert "secret" not in told
    assert "NOT_ALLOWED" in refused(lambda: AmqpExchange(feed, f"{rabbit.url}/nowhere"))
    channel.exchange_declare("other", "fanout", durable=True, auto_delete=False)
    assert "PRECONDITION_FAILED" in refused(lambda: AmqpExchange(feed, rabbit.url, exchange="other"))
    assert "amqp://127.0.0.1:1: " in refused(lambda: AmqpExchange(feed, "amqp://a:secret@127.0.0.1:1"), 0.1)


def test_a_deleted_exchange_ends_it(rabbit: RabbitMq, channel: amqp.Channel) -> None:
    feed = feed_of("deleted")
    with Publisher(feed) as publisher, pytest.raises(CallbackError) as failed, AmqpExchange(feed, rabbit.url) as bridge:
        publisher.publish(b"A", b"0")
        wait_until(lambda: bridge.statistics().added == 1)
        channel.exchange_delete("deleted")
        publisher.publish(b"A", b"1")
        bridge.run(until_end=True)
    assert "refused: " in str(failed.value.__cause__)
    assert "NOT_FOUND" in str(failed.value.__cause__)
