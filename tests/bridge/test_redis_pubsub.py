"""A feed in channels of a real Redis, and channels into a hub."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from bench.rivals.servers import Server
from blackbox import Feed, Publisher
from blackbox.services.bridge import hub_inlet
from blackbox.services.bridge.binary_form import Fields
from blackbox.services.bridge.hub_inlet import IN_FLIGHT
from blackbox.services.bridge.redis import connection as redis_connection
from blackbox.services.bridge.redis.channels import RedisChannels
from blackbox.services.bridge.redis.listener import RedisListener
from blackbox.services.hub.server.hub import Hub
from blackbox.testing import RawPublisher, wait_until
from tests.bridge.pauses import paused
from tests.hub.hubs import hub_feed, published

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


def feed_of(name: str = "carried") -> Feed:
    return msgspec.structs.replace(Feed.local(name, slices=1), heartbeat_ns=50_000_000)


def url_of(server: Server) -> str:
    return server.url.replace("redis", "redis+pubsub")


class Listener:
    """A subscriber with Redis' own client."""

    def __init__(self, there: redis.Redis, pattern: str) -> None:
        self._pubsub = there.pubsub()
        self._pubsub.psubscribe(pattern)
        assert self._next()["type"] == "psubscribe"

    def _next(self) -> Any:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            if found := self._pubsub.get_message(timeout=1):
                return found
        raise TimeoutError("nothing was published")

    def take(self, count: int) -> list[tuple[bytes, Fields]]:
        found = [self._next() for _ in range(count)]
        return [(each["channel"], Fields.of(each["data"])) for each in found]

    def close(self) -> None:
        self._pubsub.close()


@pytest.fixture
def listener(there: redis.Redis) -> Iterator[Listener]:
    listener = Listener(there, "*")
    yield listener
    listener.close()


def wait_subscribed(there: redis.Redis) -> None:
    wait_until(lambda: there.pubsub_numpat() == 1)


@given(st.binary(max_size=300), st.binary(max_size=300) | st.none(), INT64, st.integers(0, 1 << 30), INT64, INT64)
def test_the_binary_form_survives_a_round_trip(
    topic: bytes, payload: bytes | None, ts_event: int, slice_id: int, epoch: int, sequence: int
) -> None:
    fields = Fields(topic, payload, ts_event, slice_id, epoch, sequence)
    data = fields.as_bytes()
    assert Fields.of(data) == fields
    with pytest.raises(ValueError, match="message had"):
        Fields.of(data + b"x" if payload is None else data[:-1])


def test_each_message_is_published_with_its_position(server: Server, listener: Listener) -> None:
    """Messages of several prefixes keep the order of the feed, also within one block."""
    feed = feed_of()
    topics = [b"A.x", b"B.x", b"C.x", b"AB", b"B."]
    index = [number * number % len(topics) for number in range(100)]
    wanted = [number for number in range(100) if topics[index[number]].startswith((b"A.", b"B."))]
    with Publisher(feed) as publisher, RedisChannels(feed, url_of(server), ["B.", b"A.", "A.x"]) as bridge:
        publisher.publish_many(topics, index, bytes(100), [7] * 100, offsets=range(101))
        publisher.publish(b"A.\xff", None, 0)
        epoch = publisher.epoch
        assert listener.take(len(wanted) + 1) == [
            *((topics[index[n]], Fields(topics[index[n]], b"\0", 7, 0, epoch, n)) for n in wanted),
            (b"A.\xff", Fields(b"A.\xff", None, 0, 0, epoch, 100)),
        ]
        wait_until(lambda: bridge.statistics().added == len(wanted) + 1)


def test_exactly_the_symbols_are_published(server: Server, listener: Listener) -> None:
    feed = feed_of()
    topics = [b"AAPL.x", b"AAPLW.x", b"AAPL", b"BRK.B.x", b"BRK.x", b"AAPL.y.x", b"AAPL.z"]
    with Publisher(feed) as publisher, RedisChannels(feed, url_of(server), symbols=["AAPL", "BRK.B"]):
        for topic in topics:
            publisher.publish(topic, b"")
        wanted = [topic for topic in topics if feed.symbol_rule.symbol_of(topic) in (b"AAPL", b"BRK.B")]
        assert [channel for channel, _ in listener.take(len(wanted))] == wanted


def test_lost_messages_are_reported_once_for_several_prefixes(server: Server, listener: Listener) -> None:
    feed = feed_of()
    with RawPublisher(feed) as publisher, RedisChannels(feed, url_of(server), ["A", "B"]) as bridge:
        publisher.send(publisher.encode([(b"A", b"0")]))
        publisher.encode([(b"A", b"1")] * 3)  # is lost
        publisher.send(publisher.encode([(b"A", b"4")]))
        assert [(each.topic, each.payload, each.sequence) for _, each in listener.take(3)] == [
            (b"A", b"0", 0),
            (b"blackbox.gap", b"3", 1),
            (b"A", b"4", 4),
        ]
        assert bridge.statistics().missing == 3


def test_while_redis_does_not_answer_it_is_waited_for(
    server: Server, listener: Listener, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages in flight are repeated, with the same positions."""
    monkeypatch.setattr(redis_connection, "SOCKET_S", 0.2)
    feed, payloads = feed_of(), dict[int, bytes | None]()
    with Publisher(feed, when_full="wait") as publisher, RedisChannels(feed, url_of(server)) as bridge:
        wait_until(lambda: not bridge.away)  # it may have answered late at the start
        caplog.clear()
        with paused(server):
            for number in range(100):
                publisher.publish(b"A", b"%d" % number)
            wait_until(lambda: "is unreachable" in caplog.text)
        while len(payloads) < 100:
            ((_, fields),) = listener.take(1)
            assert payloads.setdefault(fields.sequence, fields.payload) == fields.payload
        wait_until(lambda: bridge.statistics().added == 100)
    assert payloads == {number: b"%d" % number for number in range(100)}


def test_a_feed_reaches_a_hub_once_through_parallel_bridges(server: Server, there: redis.Redis, tmp_path: Path) -> None:
    first, second = feed_of("first"), hub_feed("second", slices=1)
    url = url_of(server)
    one, other = RedisListener(second, url, b"A"), RedisListener(second, url, b"A")
    with Hub(second, tmp_path) as hub, one, other:
        wait_until(lambda: len(there.client_list("pubsub")) == 2)
        with Publisher(first, when_full="wait") as publisher, RedisChannels(first, url):
            for number in range(1_500):
                publisher.publish(b"A.x", b"%d" % number, number)
            publisher.publish(b"B", b"is not asked for")
            publisher.publish(b"A.y", None)
            wait_until(lambda: hub.statistics().stored == 1_501)
            wait_until(lambda: min(each.statistics()["messages put"] for each in (one, other)) == 1_501)
    found = [row[3:] for row in published(tmp_path, second)]
    assert found == [(b"A.x", b"%d" % number) for number in range(1_500)] + [(b"A.y", None)]


def test_raw_messages_are_put_and_their_loss_during_a_disconnect_is_logged(
    server: Server,
    there: redis.Redis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With a prefix that would be a pattern in Redis. A stopped Redis is noticed, although it may be silent."""
    feed, topic = hub_feed("orders", slices=1), b"A[*]?\\x"
    with Hub(feed, tmp_path), RedisListener(feed, url_of(server), b"A[*]?\\", raw=1) as bridge:
        wait_subscribed(there)
        there.publish(b"A*", b"no")
        there.publish(topic, b"\x00\xff")
        there.publish(b"AAA", b"no")
        wait_until(lambda: bridge.statistics()["messages put"] == 1)
        there.client_kill_filter(_type="pubsub")
        wait_until(lambda: bridge.statistics()["times away"] == 1)
        there.publish(topic, b"2")
        wait_until(lambda: bridge.statistics()["messages put"] == 2)
        monkeypatch.setattr(redis_connection, "SOCKET_S", 0.3)
        with paused(server):
            wait_until(lambda: "it did not answer for" in caplog.text)
            monkeypatch.setattr(redis_connection, "SOCKET_S", 60.0)  # on a busy machine it answers late
        wait_until(lambda: bridge.statistics()["times away"] == 2)
        wait_until(lambda: there.publish(topic, b"3") == 1)
        wait_until(lambda: bridge.statistics()["messages put"] == 3)
    assert [row[3:] for row in published(tmp_path, feed)] == [(topic, each) for each in (b"\x00\xff", b"2", b"3")]
    assert "is back: messages published there meanwhile are lost" in caplog.text


def test_the_queue_for_an_unreachable_hub_is_bounded(
    server: Server, there: redis.Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Redis bounds the queue of a subscriber, and disconnects slow ones."""
    feed = hub_feed("orders", slices=1)
    there.config_set("client-output-buffer-limit", "pubsub 1000000 0 0")
    with RedisListener(feed, url_of(server), raw=1) as bridge:
        wait_subscribed(there)
        count = 0
        while there.publish("A", b"x" * 10_000):  # until it is disconnected
            count += 1
            assert count < 100_000
            wait_until(lambda: len(bridge._on_their_way) >= min(count, IN_FLIGHT))
        assert len(bridge._on_their_way) == IN_FLIGHT
        with Hub(feed, tmp_path):
            wait_until(lambda: bridge.statistics()["times away"] == 1)
            wait_until(lambda: not bridge._on_their_way)
            put = bridge.statistics()["messages put"]
            wait_until(lambda: there.publish("A", "last") == 1)
            wait_until(lambda: bridge.statistics()["messages put"] == put + 1)
    found = [payload for *_, payload in published(tmp_path, feed)]
    assert IN_FLIGHT <= len(found) <= count
    assert found[-1] == b"last"


def test_invalid_messages_are_counted(
    server: Server, there: redis.Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    feed = hub_feed("orders", slices=1)
    with Hub(feed, tmp_path), RedisListener(feed, url_of(server)) as bridge:
        wait_subscribed(there)
        there.publish("A", "is not in that form")
        there.publish("A", Fields(b"", b"x", 0, 0, 1, 0).as_bytes())
        there.publish("A", Fields(b"blackbox.gap", b"12", 0, 0, 1, 0).as_bytes())
        there.publish("A", Fields(b"A", b"x", 0, 0, 1, 1).as_bytes())
        wait_until(lambda: bridge.statistics()["messages put"] == 1)
        counts = {"messages put": 1, "unwanted": 0, "refused": 2, "told missing": 12, "times away": 0}
        assert bridge.statistics() == counts
    assert "channel b'A': message had 19 bytes, expected at least 34" in caplog.text
    assert "12 messages were lost at the source" in caplog.text


def test_a_gap_is_reported_for_any_prefix(
    server: Server, there: redis.Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, not for each subscription that matches its channel."""
    feed, gap = hub_feed("orders", slices=1), Fields(b"blackbox.gap", b"12", 0, 0, 1, 0).as_bytes()
    for prefix in (b"", b"A.", b"blackbox."):
        with RedisListener(feed, url_of(server), prefix) as bridge:
            wait_subscribed(there)
            wait_until(lambda: there.publish("blackbox.gap", gap) == 1)
            wait_until(lambda: bridge.statistics()["told missing"] > 0)
            there.publish("blackbox.gap", gap)
            wait_until(lambda: bridge.statistics()["told missing"] >= 24)
            assert bridge.statistics()["told missing"] == 24
    assert caplog.text.count("12 messages were lost at the source") == 6


def test_puts_in_flight_at_the_end_are_logged(
    server: Server, there: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Redis no longer has them."""
    monkeypatch.setattr(hub_inlet, "LAST_S", 0.1)
    with RedisListener(hub_feed("orders", slices=1), url_of(server), raw=1) as bridge:
        wait_subscribed(there)
        for number in range(3):
            there.publish("A", b"%d" % number)
        wait_until(lambda: len(bridge._on_their_way) == 3)
    assert "3 messages were in flight to the hub at the end" in caplog.text


@pytest.mark.parametrize(
    ("chosen", "topics", "unwanted"),
    [
        ({"prefix": ["B.", b"A.", "A.x"]}, [b"A.x", b"B.", b"B.x"], 0),
        ({"symbols": ["A", "A.B"]}, [b"A", b"A.x", b"A.B.x", b"A.B", b"A.z"], 1),
    ],
)
def test_overlapping_channels_put_each_message_once(
    server: Server, there: redis.Redis, tmp_path: Path, chosen: dict[str, Any], topics: list[bytes], unwanted: int
) -> None:
    """The pattern for `A` and `A.B` matches `A.C.x` too."""
    feed = hub_feed("orders", slices=1)
    with Hub(feed, tmp_path), RedisListener(feed, url_of(server), **chosen, raw=1) as bridge:
        wait_until(lambda: there.pubsub_numpat() == 2)
        others = {b"A", b"AW.x", b"A.C.x", b"C.x"} if "symbols" in chosen else {b"A", b"C.x"}
        for topic in [*topics, *sorted(others - {*topics})]:
            there.publish(topic, b"")
        wait_until(lambda: bridge.statistics()["messages put"] == len(topics))
        wait_until(lambda: bridge.statistics()["unwanted"] == unwanted)
    assert [topic for *_, topic, _ in published(tmp_path, feed)] == topics
