"""From a stream of a real Redis into a hub: each entry once."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
import redis

from bench.rivals.servers import Server
from blackbox import Feed, Publisher
from blackbox.errors import BridgeError
from blackbox.feed.schema.schema import load_schema
from blackbox.services.bridge import hub_inlet
from blackbox.services.bridge.carrier import AGAIN_S
from blackbox.services.bridge.redis import connection as redis_connection
from blackbox.services.bridge.redis.group import RedisGroup
from blackbox.services.bridge.redis.streams import RedisStreams
from blackbox.services.hub.server.hub import Hub
from blackbox.testing import wait_until
from tests.bridge.pauses import paused
from tests.cli.commands import Command, write_feed
from tests.hub.hubs import hub_feed, published


def fill(there: redis.Redis, begin: int, end: int) -> None:
    for number in range(begin, end):
        there.xadd("orders", {"topic": "A.x", "payload": str(number), "ts_event": number})


def pending(there: redis.Redis) -> int:
    return int(there.xpending("orders", "blackbox")["pending"])


def missing(bridge: RedisGroup) -> int:
    return bridge.statistics()["told missing"]


def test_each_entry_is_stored_once_when_the_bridge_is_killed(
    server: Server, there: redis.Redis, tmp_path: Path
) -> None:
    feed = hub_feed("orders", slices=1)
    words = ("bridge", server.url, "--in", "--feed", write_feed(feed, tmp_path / "feed.toml"))
    fill(there, 0, 3_000)
    with Hub(feed, tmp_path / "hub") as hub:
        with Command(*words) as bridge:
            wait_until(lambda: hub.statistics().stored > 0)
            bridge.process.send_signal(signal.SIGKILL)
            bridge.process.wait()
        fill(there, 3_000, 3_100)
        with RedisGroup(feed, server.url):
            wait_until(lambda: hub.statistics().stored == 3_100)
            wait_until(lambda: pending(there) == 0)
    assert [payload for *_, payload in published(tmp_path / "hub", feed)] == [b"%d" % number for number in range(3_100)]


def test_an_unreachable_hub_is_waited_for(
    server: Server, there: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis keeps entries that the hub does not have, even if the bridge ends; those removed meanwhile are counted."""
    feed = hub_feed("orders", slices=1)
    fill(there, 0, 10)
    with monkeypatch.context() as patch, RedisGroup(feed, server.url) as bridge:
        patch.setattr(hub_inlet, "LAST_S", 0.1)
        wait_until(lambda: len(bridge._on_their_way) == 10)
    assert pending(there) == 10
    there.xtrim("orders", maxlen=4, approximate=False)
    with Hub(feed, tmp_path), RedisGroup(feed, server.url) as bridge:
        wait_until(lambda: pending(there) == 0)
        wait_until(lambda: bridge.statistics()["messages put"] == 4)
        assert (missing(bridge), bridge.statistics()["refused"]) == (6, 0)
    assert [payload for *_, payload in published(tmp_path, feed)] == [b"%d" % number for number in range(6, 10)]


def test_a_feed_reaches_a_hub_through_redis(server: Server, there: redis.Redis, tmp_path: Path) -> None:
    first, second = Feed.local("first", slices=1), hub_feed("second", slices=1)
    with Publisher(first) as publisher, RedisStreams(first, server.url) as carried:
        publisher.publish(b"A", b"1", -7)
        publisher.publish(b"B", b"is not asked for")
        publisher.publish(b"A", None)
        wait_until(lambda: carried.statistics().added == 3)
    there.xadd("first:0", {"gap": 3})
    with Hub(second, tmp_path), RedisGroup(second, server.url, b"A", stream="first:0") as bridge:
        wait_until(lambda: bridge.statistics()["messages put"] == 2)
        wait_until(lambda: there.xpending("first:0", "blackbox")["pending"] == 0)
        counts = {"messages put": 2, "unwanted": 1, "refused": 0, "told missing": 3, "times away": 0}
        assert bridge.statistics() == counts
    assert [row[3:] for row in published(tmp_path, second)] == [(b"A", b"1"), (b"A", None)]


def test_refused_entries_are_acknowledged_and_do_not_change_the_order_of_others(
    server: Server, there: redis.Redis, tmp_path: Path
) -> None:
    """The bridge refuses some entries of each request, and the hub others. An invalid time is no reason."""
    feed = msgspec.structs.replace(hub_feed("orders", slices=1, schema="itch50"), max_topics=2)
    fill_bytes = bytes(load_schema("itch50").dtype("P").itemsize - 5)
    times, count, good = ["9" * 5_000, "9" * 20, "noon", "-", -7], 2_100, list[bytes]()
    for number in range(count):
        entry = {"topic": "AB"[number % 2], "payload": b"P" + number.to_bytes(4, "big") + fill_bytes}
        if number % 100 == 3:
            entry["topic"] = f"no.{number}"
        elif number % 100 == 5:
            entry["payload"] = b"is no record"
        elif number % 100 == 7:
            del entry["topic"]
        else:
            good.append(entry["payload"])  # type: ignore[arg-type]
        there.xadd("orders", entry | {"ts_event": times[number % 5]})  # type: ignore[arg-type]
    with Hub(feed, tmp_path), RedisGroup(feed, server.url) as bridge:
        wait_until(lambda: bridge._over.is_set() or bridge.statistics()["messages put"] == len(good))
        wait_until(lambda: bridge._over.is_set() or pending(there) == 0)
        counts = {"messages put": len(good), "unwanted": 0, "refused": 63, "told missing": 0, "times away": 0}
        assert bridge.statistics() == counts
    assert [payload for *_, payload in published(tmp_path, feed)] == good


def test_a_hub_that_accepts_no_more_puts_ends_it_and_the_stream_keeps_the_rest(
    server: Server, there: redis.Redis, tmp_path: Path
) -> None:
    """The hub lost answered puts, so its errors for others are not refusals."""
    feed = hub_feed("orders", slices=1)
    with (
        pytest.raises(BridgeError, match="the hub accepts no more puts"),
        RedisGroup(feed, server.url) as bridge,
    ):
        with Hub(feed, tmp_path / "first"):
            fill(there, 0, 1)
            wait_until(lambda: bridge.statistics()["messages put"] == 1)
        with Hub(feed, tmp_path / "second"):
            fill(there, 1, 3)
            bridge.run()
    assert bridge.statistics()["refused"] == 0
    with Hub(feed, tmp_path / "second") as hub, RedisGroup(feed, server.url):
        wait_until(lambda: hub.statistics().stored == 2)
    assert [payload for *_, payload in published(tmp_path / "second", feed)] == [b"1", b"2"]


def test_a_late_redis_is_waited_for(
    server: Server,
    there: redis.Redis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(redis_connection, "SOCKET_S", 0.7)
    feed = hub_feed("orders", slices=1)
    fill(there, 0, 10)
    with ExitStack() as stack:
        with paused(server):
            hub = stack.enter_context(Hub(feed, tmp_path))
            bridge = stack.enter_context(RedisGroup(feed, server.url))
            wait_until(lambda: "is unreachable" in caplog.text)
            wait_until(lambda: bridge._pause_s > 2 * AGAIN_S)  # it was tried again
            assert caplog.text.count("is unreachable, retrying") == 1
            monkeypatch.setattr(redis_connection, "SOCKET_S", 60.0)  # on a busy machine it answers late
        wait_until(lambda: bridge.statistics()["messages put"] >= 10)  # more if it was late once more
        wait_until(lambda: pending(there) == 0)
        assert hub.statistics().stored == 10


def test_a_key_that_is_no_stream_ends_it(server: Server, there: redis.Redis) -> None:
    feed = hub_feed("orders", slices=1)
    there.set("orders", "is no stream")
    with pytest.raises(BridgeError, match="refused the bridge: WRONGTYPE"), RedisGroup(feed, server.url) as bridge:
        bridge.run()


def counts_entries(server: Server) -> None:
    if int(server.version.partition(".")[0]) < 7:
        pytest.skip(f"Redis {server.version} does not count all entries of a stream: apt install redis-server")


def test_entries_trimmed_while_the_bridge_was_down_are_counted(
    server: Server, there: redis.Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counts_entries(server)
    feed = hub_feed("orders", slices=1)
    fill(there, 0, 100)
    there.xtrim("orders", maxlen=70, approximate=False)
    with Hub(feed, tmp_path) as hub:
        with RedisGroup(feed, server.url) as bridge:
            wait_until(lambda: hub.statistics().stored == 70)
            wait_until(lambda: pending(there) == 0)
            assert missing(bridge) == 0, "entries removed before the group was created do not count"
        fill(there, 100, 1_110)
        there.xtrim("orders", maxlen=100, approximate=False)
        with RedisGroup(feed, server.url) as bridge:
            wait_until(lambda: hub.statistics().stored == 170)
            wait_until(lambda: pending(there) == 0)
            assert missing(bridge) == 910
        with RedisGroup(feed, server.url) as bridge:
            fill(there, 1_110, 1_111)
            wait_until(lambda: hub.statistics().stored == 171)
            wait_until(lambda: pending(there) == 0)
            assert missing(bridge) == 0, "they count once"
        fill(there, 1_111, 1_120)
        there.xtrim("orders", maxlen=0, approximate=False)
        with RedisGroup(feed, server.url) as bridge:
            wait_until(lambda: missing(bridge) == 9)
    assert "910 messages were removed from the stream before they were stored" in caplog.text
    expected = [*range(30, 100), *range(1_010, 1_111)]
    assert [payload for *_, payload in published(tmp_path, feed)] == [b"%d" % number for number in expected]


def test_entries_trimmed_while_the_bridge_runs_are_counted(server: Server, there: redis.Redis, tmp_path: Path) -> None:
    """Each added entry is stored or counted as missing, wherever trimming cuts."""
    counts_entries(server)
    feed = hub_feed("orders", slices=1)
    with Hub(feed, tmp_path) as hub, RedisGroup(feed, server.url) as bridge:
        for begin in range(0, 5_000, 500):
            adding = there.pipeline(transaction=False)
            for number in range(begin, begin + 500):
                adding.xadd("orders", {"topic": "A.x", "payload": str(number)}, maxlen=40, approximate=False)
            adding.execute()
        wait_until(lambda: hub.statistics().stored + missing(bridge) >= 5_000)
        assert hub.statistics().stored + missing(bridge) == 5_000
        assert missing(bridge) > 0
        wait_until(lambda: pending(there) == 0)


def test_entries_deleted_one_by_one_are_counted(server: Server, there: redis.Redis, tmp_path: Path) -> None:
    counts_entries(server)
    feed = hub_feed("orders", slices=1)
    with Hub(feed, tmp_path) as hub:
        with RedisGroup(feed, server.url):
            fill(there, 0, 10)
            wait_until(lambda: hub.statistics().stored == 10)
            wait_until(lambda: pending(there) == 0)
        fill(there, 10, 20)
        names = [name for name, _ in there.xrange("orders")]
        there.xdel("orders", *names[12:15], names[3])
        with RedisGroup(feed, server.url) as bridge:
            wait_until(lambda: hub.statistics().stored == 17)
            wait_until(lambda: missing(bridge) == 3)
