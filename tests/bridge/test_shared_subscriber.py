"""Refused requests of one client affect only this client, although clients share a subscriber."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from pathlib import Path

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection

from blackbox import Feed, Publisher
from blackbox.errors import RightsError
from blackbox.services.bridge.websocket.clients import WebSocketBridge
from tests.bridge.serving import told, until
from tests.bridge.test_websocket import ask, client, payloads, serving
from tests.keyring import Keyring


def quotes(**settings: int) -> Feed:
    return msgspec.structs.replace(Feed.local("quotes", slices=1, key_bytes=4), heartbeat_ns=100_000_000, **settings)


@pytest.fixture
def ring(tmp_path: Path) -> Keyring:
    ring = Keyring(tmp_path, "exchange", "bridge")
    ring.allow("exchange", "bridge")
    (tmp_path / "allowed-by-exchange" / "rights.toml").write_text('bridge = ["AAPL", "MSFT"]')
    return ring


async def refused_to(connection: ClientConnection, prefix: str, why: str = "our key has no right to that") -> None:
    answer = await ask(connection, do="subscribe", prefix=prefix)
    assert answer["error"] == "RightsError"
    assert f"refused the topics {prefix.encode()!r}: {why}" in answer["why"]


def test_a_request_beyond_the_bridges_rights_fails_only_for_its_client(ring: Keyring) -> None:
    """One request of one browser must not end the bridge, also if it is the only one."""
    feed = quotes()
    with Publisher(ring.feed(feed, "exchange")) as publisher:

        async def work(bridge: WebSocketBridge, url: str) -> None:
            async with client(url) as other:
                for prefix in ("IBM.", "", "IBM."):
                    await refused_to(other, prefix)
                    assert bridge.statistics().prefixes == 0
                async with client(url, "AAPL.") as honest:
                    for number, prefix in enumerate(["", "IBM.", "A", "GOOG.x"] * 4):
                        publisher.publish(b"AAPL.x", b"%d" % (2 * number))
                        await refused_to(other, prefix)
                        publisher.publish(b"AAPL.x", b"%d" % (2 * number + 1))
                        assert publisher.wants(b"AAPL.x"), "topics of other clients stay wanted"
                    assert await payloads(honest, 32, "AAPL.") == [b"%d" % number for number in range(32)]
                    assert await ask(other, do="subscribe", prefix="MSFT.") == {"subscribed": "MSFT."}
                    publisher.publish(b"MSFT.x", b"there")
                    assert await payloads(other, 1, "MSFT.") == [b"there"]
                    assert bridge.statistics().prefixes == 2

        serving(ring.feed(feed, "bridge", "exchange"), work)


def test_a_covered_prefix_stays_wanted_until_the_covering_one_is_confirmed(ring: Keyring) -> None:
    """A refused prefix that covers another one must not end the demand for the other."""
    feed = quotes()
    unwanted = list[bytes]()
    with Publisher(ring.feed(feed, "exchange")) as publisher:
        publisher.on_demand(lambda prefix, is_wanted: None if is_wanted else unwanted.append(prefix))

        async def work(_: WebSocketBridge, url: str) -> None:
            async with client(url, "AAPL.a") as honest, client(url) as other:
                for prefix in ("", "A", "AAPL.a"):
                    await ask(other, do="subscribe", prefix=prefix)
                assert unwanted == []
                assert await ask(other, do="subscribe", prefix="AAPL.") == {"subscribed": "AAPL."}
                await until(lambda: unwanted == [b"AAPL.a"])
                publisher.publish(b"AAPL.a", b"1")
                assert await payloads(honest, 1, "AAPL.a") == [b"1"]

        serving(ring.feed(feed, "bridge", "exchange"), work)


def test_exceeding_max_subscriptions_together_fails_only_for_the_last_clients() -> None:
    feed = quotes(max_subscriptions=20)
    with Publisher(feed) as publisher:

        async def work(bridge: WebSocketBridge, url: str) -> None:
            async with client(url, "AAPL.") as honest:
                async with client(url) as greedy:
                    refused = [
                        answer
                        for number in range(40)
                        if "error" in (answer := await ask(greedy, do="subscribe", prefix=f"{number:03}."))
                    ]
                    assert 20 < len(refused) < 40
                    assert {each["error"] for each in refused} == {"RightsError"}
                    assert all("more subscriptions than its max_subscriptions" in each["why"] for each in refused)
                    publisher.publish(b"AAPL.x", b"1")
                    publisher.publish(b"000.x", b"2")
                    assert await payloads(honest, 1, "AAPL.") == [b"1"]
                    assert await payloads(greedy, 1, "000.") == [b"2"]
                await until(lambda: bridge.statistics().prefixes == 1)
                async with client(url, "999.") as next_one:
                    publisher.publish(b"999.x", b"3")
                    assert await payloads(next_one, 1, "999.") == [b"3"]

        serving(feed, work)


def test_revoked_rights_end_their_subscriptions(ring: Keyring) -> None:
    """A publisher restarts with fewer rights for the bridge."""
    feed = quotes()
    rights = ring.directory / "allowed-by-exchange" / "rights.toml"

    async def work(_: WebSocketBridge, url: str) -> None:
        with Publisher(ring.feed(feed, "exchange")) as publisher:
            honest, other = client(url, "AAPL."), client(url, "MSFT.")
            async with honest as first, other as second:
                publisher.publish(b"MSFT.x", b"1")
                assert await payloads(second, 1, "MSFT.") == [b"1"]
                await asyncio.to_thread(publisher.close)
                rights.write_text('bridge = ["AAPL"]')
                with Publisher(ring.feed(feed, "exchange")) as again:
                    note = await told(second)
                    assert (note["unsubscribed"], note["error"]) == ("MSFT.", "RightsError")
                    assert await ask(second, do="subscribe", prefix="AAPL.") == {"subscribed": "AAPL."}
                    again.publish(b"AAPL.x", b"2")
                    for one in (first, second):
                        frame = await told(one)
                        while "messages" not in frame:
                            frame = await told(one)
                        assert b64decode(frame["messages"][0]["payload"]) == b"2"

    serving(ring.feed(feed, "bridge", "exchange"), work)


def test_a_refusal_by_on_demand_is_reported_and_affects_no_longer_prefix() -> None:
    feed = quotes()
    with Publisher(feed) as publisher:

        @publisher.on_demand
        def look(prefix: bytes, is_wanted: bool) -> None:
            if is_wanted and (prefix == b"AAPL" or prefix.startswith(b"IBM.")):
                raise RightsError("not available")

        async def work(_: WebSocketBridge, url: str) -> None:
            async with client(url, "AAPL.x") as honest, client(url) as other:
                for prefix in ("AAPL", "IBM.", "IBM.x", "AAPL"):
                    await refused_to(other, prefix, "it cannot deliver them")
                assert await ask(other, do="subscribe", prefix="MSFT.") == {"subscribed": "MSFT."}
                publisher.publish(b"AAPL.x", b"1")
                assert await payloads(honest, 1, "AAPL.x") == [b"1"]

        serving(feed, work)
