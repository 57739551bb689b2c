"""A feed in streams of a real Redis."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
import redis

from bench.rivals.servers import Server
from blackbox import CallbackError, Feed, Publisher, Recorder
from blackbox.errors import BridgeError
from blackbox.feed.endpoint import free_endpoints
from blackbox.services.bridge import carrier
from blackbox.services.bridge.redis import connection as redis_connection
from blackbox.services.bridge.redis.channels import RedisChannels
from blackbox.services.bridge.redis.streams import RedisStreams
from blackbox.testing import RawPublisher, wait_until
from tests.archive.recorders import wait_recorded
from tests.bridge.pauses import paused


def feed_of(archive: bool = False, key_bytes: int = 0, lines: int = 1) -> Feed:
    feed = Feed.local("carried", slices=1, key_bytes=key_bytes, lines=lines)  # type: ignore[arg-type]
    feed = msgspec.structs.replace(feed, heartbeat_ns=50_000_000)
    return msgspec.structs.replace(feed, archives=free_endpoints("tcp", "archive", 1, 1)[0]) if archive else feed


def entries(there: redis.Redis) -> list[tuple[str, dict[bytes, bytes]]]:
    return [(name.decode(), fields) for name, fields in there.xrange("carried:0")]


def test_each_message_is_an_entry_at_its_position(server: Server, there: redis.Redis) -> None:
    """Also for several prefixes within one block: Redis would refuse an entry below a later one."""
    feed = feed_of()
    topics = [b"A.x", b"B.x", b"C.x", b"AB", b"B."]
    index = [number * number % len(topics) for number in range(1_001)]
    with Publisher(feed) as publisher, RedisStreams(feed, server.url, ["B.", b"A.", "A.x"]) as bridge:
        publisher.publish_many(topics, index[:1_000], bytes(1_000), [7] * 1_000, offsets=range(1_001))
        publisher.publish(topics[index[1_000]], None, 0)
        wanted = [number for number in range(1_001) if topics[index[number]].startswith((b"A.", b"B."))]
        wait_until(lambda: bridge.statistics().added + bridge.statistics().known == len(wanted))
        assert bridge.statistics().known == 0
    expected = [
        (f"{publisher.epoch}-{number}", {b"topic": topics[index[number]], b"ts_event": b"7", b"payload": b"\0"})
        for number in wanted
    ]
    expected[-1] = expected[-1][0], {b"topic": topics[index[1_000]], b"ts_event": b"0"}
    assert entries(there) == expected


@pytest.mark.parametrize("prefix", [b"", b"A"])
def test_a_restarted_bridge_continues_after_the_last_entry(
    server: Server, there: redis.Redis, tmp_path: Path, prefix: bytes
) -> None:
    """Ids ascend although the feed has keys."""
    feed, topics = feed_of(archive=True, key_bytes=2), [b"AA.x", b"AB.x", b"B", b"A", b"AA.y", b"CC.long"]
    sent = [(topics[number * number % 11 % 6], b"%d" % number) for number in range(3_000)]
    wanted = [number for number, (topic, _) in enumerate(sent) if topic.startswith(prefix)]
    with Publisher(feed, when_full="wait") as publisher, Recorder(feed, tmp_path, serve=True) as recorder:
        for first in range(0, 3_000, 1_000):
            with RedisStreams(feed, server.url, prefix) as bridge:
                for topic, payload in sent[first : first + 500]:
                    publisher.publish(topic, payload)
                count = sum(number < first + 500 for number in wanted)
                wait_until(lambda count=count: there.xlen("carried:0") == count)  # type: ignore[misc]
                assert bridge.statistics().known == bridge.statistics().missing == 0
            for topic, payload in sent[first + 500 : first + 1_000]:
                publisher.publish(topic, payload)
            publisher.flush()
            wait_recorded(recorder, first + 1_000)
        with RedisStreams(feed, server.url, prefix):
            wait_until(lambda: there.xlen("carried:0") == len(wanted))
    found = entries(there)
    assert sorted((fields[b"topic"], fields[b"payload"]) for _, fields in found) == sorted(sent[n] for n in wanted)
    if not prefix:
        assert [name for name, _ in found] == [f"{publisher.epoch}-{number}" for number in range(3_000)]


def test_repaired_messages_of_a_key_are_in_order(server: Server, there: redis.Redis, tmp_path: Path) -> None:
    """Only the recorder has line B."""
    feed = feed_of(archive=True, key_bytes=2, lines=2)
    (part,) = feed.slices
    of_line_a = msgspec.structs.replace(feed, slices=(msgspec.structs.replace(part, endpoints=part.endpoints[:1]),))
    with (
        RawPublisher(feed) as publisher,
        Recorder(feed, tmp_path, serve=True) as recorder,
        RedisStreams(of_line_a, server.url, ["AA", "BB"]) as bridge,
    ):
        for number, (topic, lines) in enumerate([(b"AA", (0, 1)), (b"AA", (1,)), (b"BB", (0, 1)), (b"AA", (0, 1))]):
            publisher.send(publisher.encode([(topic, b"%d" % number)]), lines)
            if number == 0:
                wait_until(lambda: bridge.statistics().added == 1)
            for _ in range(3):
                publisher.heartbeat(lines=lines)
        wait_recorded(recorder, 4)
        wait_until(lambda: len(entries(there)) == 4)
        assert bridge.statistics().missing == bridge.statistics().known == 0
    assert [fields[b"payload"] for _, fields in entries(there)] == [b"0", b"1", b"2", b"3"]


def test_parallel_bridges_add_each_message_once(server: Server, there: redis.Redis) -> None:
    feed = feed_of()
    one, other = RedisStreams(feed, server.url), RedisStreams(feed, server.url)
    with Publisher(feed, when_full="wait") as publisher, one, other:
        for number in range(3_000):
            publisher.publish(b"A", b"%d" % number)
        counts = one.statistics, other.statistics
        wait_until(lambda: sum(each().added + each().known for each in counts) == 6_000)
        assert sum(each().added for each in counts) == 3_000
    assert [int(fields[b"payload"]) for _, fields in entries(there)] == list(range(3_000))


def test_while_redis_does_not_answer_it_is_waited_for(
    server: Server, there: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start, and later."""
    monkeypatch.setattr(redis_connection, "SOCKET_S", 0.2)
    feed = feed_of()
    with ThreadPoolExecutor(1) as pool, Publisher(feed, when_full="wait") as publisher:
        with paused(server):
            starting = pool.submit(RedisStreams(feed, server.url).start)
            wait_until(lambda: "is unreachable" in caplog.text)
        with starting.result() as bridge:
            publisher.publish(b"A", b"0")
            wait_until(lambda: bridge.statistics().added + bridge.statistics().known == 1)
            wait_until(lambda: not bridge.away)
            caplog.clear()
            with paused(server):
                for number in range(1, 100):
                    publisher.publish(b"A", b"%d" % number)
                wait_until(lambda: "is unreachable" in caplog.text)
            wait_until(lambda: bridge.statistics().added + bridge.statistics().known == 100)
    assert [int(fields[b"payload"]) for _, fields in entries(there)] == list(range(100))


def test_a_bridge_ends_without_redis(
    server: Server, there: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a signal; messages that it could not add are reported."""
    monkeypatch.setattr(redis_connection, "SOCKET_S", 0.2)
    monkeypatch.setattr(carrier, "LAST_S", 0.1)
    feed = feed_of()
    bridge = RedisStreams(feed, server.url)
    with Publisher(feed) as publisher, pytest.raises(CallbackError) as failed, bridge:
        wait_until(lambda: not bridge.away)  # it may have answered late at the start
        caplog.clear()
        with paused(server):
            publisher.publish(b"A", b"0")
            wait_until(lambda: "is unreachable" in caplog.text)
            before = signal.getsignal(signal.SIGINT)

            def interrupt() -> None:
                wait_until(lambda: signal.getsignal(signal.SIGINT) is not before, what="run() handles signals")
                os.kill(os.getpid(), signal.SIGINT)

            threading.Thread(target=interrupt).start()
            bridge.run()
    assert "was unreachable as the bridge ended: 1 messages are lost" in str(failed.value.__cause__)


def test_an_epoch_before_the_last_entry_ends_it(server: Server, there: redis.Redis) -> None:
    """A publisher's clock was set back: Redis would take new messages for known ones."""
    feed = feed_of()
    there.xadd("carried:0", {"topic": "A"}, id="7-3")
    bridge = RedisStreams(feed, server.url)
    with RawPublisher(feed) as publisher, pytest.raises(CallbackError) as failed, bridge:
        publisher.send(publisher.encode([(b"A", b"0")]))
        bridge.run()
    assert "carried:0 has 7-3, but 1-0 arrived: expected no earlier epoch" in str(failed.value.__cause__)


def forget_password(there: redis.Redis) -> None:
    there.config_set("requirepass", "second")
    there.client_kill_filter(skipme=True)


@pytest.mark.parametrize(
    ("harm", "left", "why"),
    [
        (lambda there: there.flushall(), 0, "LOST entries that it had: EPOCH-0 is not there any more"),
        (lambda there: there.config_set("maxmemory", 1), 1, "refused an entry of carried:0"),
        (forget_password, 1, "refused an entry of carried:0: "),
    ],
)
def test_a_refused_entry_ends_it_and_nothing_is_added_after_it(
    server: Server, there: redis.Redis, harm: Callable[[redis.Redis], None], left: int, why: str
) -> None:
    """Lost entries, a full Redis and a revoked password: no retry would fix it."""
    feed = feed_of()
    there.config_set("requirepass", "first")
    there.execute_command("AUTH", "first")
    url = server.url.replace("//", "//:first@")
    with Publisher(feed) as publisher, pytest.raises(CallbackError) as failed, RedisStreams(feed, url) as bridge:
        publisher.publish(b"A", b"0")
        wait_until(lambda: bridge.statistics().added == 1)
        harm(there)
        publisher.publish(b"A", b"1")
        bridge.run(until_end=True)
    assert isinstance(failed.value.__cause__, BridgeError)
    assert why.replace("EPOCH", str(publisher.epoch)) in str(failed.value.__cause__)
    assert len(entries(there)) == left


def test_a_gap_is_an_entry_once_for_several_prefixes(server: Server, there: redis.Redis) -> None:
    feed = feed_of()
    with RawPublisher(feed) as publisher, RedisStreams(feed, server.url, [b"A.", b"B."]) as bridge:
        publisher.send(publisher.encode([(b"A.x", b"0"), (b"C.x", b"1"), (b"B.x", b"2")]))
        publisher.encode([(b"B.x", b"lost")] * 3)
        publisher.send(publisher.encode([(b"B.x", b"6"), (b"A.x", b"7")]))
        wait_until(lambda: bridge.statistics().added == 4)
        assert bridge.statistics().missing == 3
    found = [(name, fields.get(b"payload"), fields.get(b"gap")) for name, fields in entries(there)]
    payloads = [(name, payload, None) for name, payload in (("1-0", b"0"), ("1-2", b"2"), ("1-6", b"6"), ("1-7", b"7"))]
    assert found == [*payloads[:2], ("1-5", None, b"3"), *payloads[2:]]


def test_a_stream_keeps_about_the_configured_number_of_entries(server: Server, there: redis.Redis) -> None:
    feed = feed_of()
    with Publisher(feed, when_full="wait") as publisher, RedisStreams(feed, server.url, keep=100) as bridge:
        for number in range(2_000):
            publisher.publish(b"A", b"%d" % number)
        wait_until(lambda: bridge.statistics().added == 2_000)
    assert 100 <= there.xlen("carried:0") < 1_000
    assert entries(there)[-1][0] == f"{publisher.epoch}-1999"


def test_an_unreachable_server_and_a_wrong_password_are_reported_without_it(server: Server, there: redis.Redis) -> None:
    feed = feed_of()
    with pytest.raises(BridgeError, match="redis://127.0.0.1:1/0: "):
        RedisStreams(feed, "redis://desk:secret@127.0.0.1:1/0").start(0.1)
    with pytest.raises(BridgeError, match=r"redis\+pubsub://127.0.0.1:1: "):
        RedisChannels(feed, "redis+pubsub://127.0.0.1:1").start(0.1)
    there.config_set("requirepass", "right")
    there.execute_command("AUTH", "right")
    with pytest.raises(BridgeError, match="redis://127.0.0.1:[0-9]* refused the bridge: .*password"):
        RedisStreams(feed, server.url.replace("//", "//:wrong@")).start()
