"""A feed served to WebSocket clients, over real connections."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import threading
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from blackbox import Feed, Publisher
from blackbox.services.bridge.websocket import clients as websocket
from blackbox.services.bridge.websocket import server as websocket_server
from blackbox.services.bridge.websocket.clients import WebSocketBridge
from blackbox.testing import RawPublisher
from tests.bridge.serving import serve_while, told, until

TOPICS = st.binary(min_size=1, max_size=300).filter(lambda topic: topic[0] != 0)
Work = Callable[[WebSocketBridge, str], Coroutine[Any, Any, None]]


def serving(feed: Feed, work: Work, ends: bool = False, **settings: Any) -> WebSocketBridge:
    bridge = WebSocketBridge(feed, **settings)
    serve_while(bridge, work, ends)
    return bridge


@asynccontextmanager
async def client(url: str, *prefixes: str, **settings: Any) -> AsyncIterator[ClientConnection]:
    async with connect(url, **settings) as connection:
        for prefix in prefixes:
            assert await ask(connection, do="subscribe", prefix=prefix) == {"subscribed": prefix}
        yield connection


async def ask(connection: ClientConnection, **asked: Any) -> dict[str, Any]:
    await connection.send(json.dumps(asked))
    return await told(connection)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


async def payloads(connection: ClientConnection, count: int, prefix: str) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        frame = await told(connection)
        assert frame["prefix"] == prefix
        found += [b64decode(each["payload"]) for each in frame["messages"]]
    return found


def test_each_client_gets_its_prefixes() -> None:
    feed = Feed.local("bridged", slices=2)
    with Publisher(feed) as publisher:

        async def work(bridge: WebSocketBridge, url: str) -> None:
            assert not publisher.wants(b"AAPL.trade")
            async with client(url, "AAPL.") as one, client(url, "") as all_of_it:
                for number in range(100):
                    publisher.publish(b"AAPL.trade", b"%d" % number, 7)
                frame = await told(one)
                assert frame["prefix"] == "AAPL."
                first = frame["messages"][0]
                assert (first["topic"], first["ts_event"], first["sequence"]) == ("AAPL.trade", 7, 0)
                assert (first["slice"], first["epoch"]) == (feed.slice_of(b"AAPL.trade"), publisher.epoch)
                left = 100 - len(frame["messages"])
                assert (await payloads(one, left, "AAPL."))[-1:] in ([b"99"], [])
                assert await payloads(all_of_it, 100, "") == [b"%d" % number for number in range(100)]
                publisher.publish(b"MSFT.trade", b"other")
                assert await payloads(all_of_it, 1, "") == [b"other"]
                assert await ask(one, do="unsubscribe", prefix="AAPL.") == {"unsubscribed": "AAPL."}
                assert bridge.statistics().prefixes == 1
            await until(lambda: not publisher.wants(b"AAPL.trade"))  # no client wants anything
            await until(lambda: bridge.statistics().clients == 0)

        bridge = serving(feed, work)
    assert (bridge.statistics().sent, bridge.statistics().passed_over) == (201, 0)


def test_each_client_gets_exactly_its_symbols() -> None:
    feed = Feed.local("bridged", slices=2)
    with Publisher(feed) as publisher:

        async def work(bridge: WebSocketBridge, url: str) -> None:
            async with client(url, "") as all_of_it, client(url) as one, client(url) as other:
                for connection in (one, other):
                    answer = await ask(connection, do="subscribe", prefix="", symbols=["AAPL", "BRK.B"])
                    assert answer == {"subscribed": ""}
                assert (await ask(one, do="subscribe", prefix="x", symbols=["AAPL"]))["error"] == "ConfigError"
                assert bridge.statistics().prefixes == 2
                for topic in (b"AAPLW.trade", b"BRK.trade", b"AAPL.trade", b"BRK.B.trade"):
                    publisher.publish(topic, topic)
                assert len(await payloads(all_of_it, 4, "")) == 4
                for connection in (one, other):
                    assert sorted(await payloads(connection, 2, "")) == [b"AAPL.trade", b"BRK.B.trade"]

        serving(feed, work)


def test_nothing_is_sent_before_a_confirmation_or_after_an_unsubscription() -> None:
    feed = Feed.local("bridged", slices=1)
    with Publisher(feed, when_full="wait") as publisher:
        ending = threading.Event()

        def publish() -> None:
            while not ending.wait(0.0002):
                publisher.publish(b"A", b"x")

        async def work(_: WebSocketBridge, url: str) -> None:
            publishing = threading.Thread(target=publish)
            publishing.start()
            try:
                async with client(url, "A", close_timeout=0.1):  # keeps the prefix subscribed
                    for _turn in range(20):
                        async with client(url, "A") as one:
                            frame = await told(one)
                            assert frame.keys() == {"prefix", "messages"}, frame
                            while "unsubscribed" not in frame:
                                frame = await (told(one) if "gone" in frame else ask(one, do="unsubscribe", prefix="A"))
                                frame["gone"] = True
                            assert "error" in await ask(one, do="nothing")
            finally:
                ending.set()
                publishing.join()

        serving(feed, work)


def in_binary(frame: bytes) -> tuple[str, list[tuple[bytes, bytes | None, int, int, int, int]]]:
    """Decode a frame as documented: its prefix, and topic, payload, time and position of each message."""
    (size,) = struct.unpack_from("<H", frame)
    at, found = 2 + size, list[tuple[bytes, bytes | None, int, int, int, int]]()
    while at < len(frame):
        ts_event, epoch, sequence, slice_id, payload_bytes, topic_bytes = struct.unpack_from("<qqqiiH", frame, at)
        topic, end = frame[at + 34 : at + 34 + topic_bytes], at + 34 + topic_bytes + max(0, payload_bytes)
        payload = None if payload_bytes < 0 else frame[at + 34 + topic_bytes : end]
        found.append((topic, payload, ts_event, slice_id, epoch, sequence))
        at = end
    assert at == len(frame)
    return frame[2 : 2 + size].decode(), found


@settings(max_examples=5, deadline=None)
@given(
    st.lists(
        st.tuples(
            TOPICS,
            st.binary(max_size=2_000) | st.none(),
            st.integers(-(1 << 63), (1 << 63) - 1),
        ),
        min_size=1,
        max_size=300,
    )
)
def test_messages_are_sent_in_binary_form_on_request(messages: list[tuple[bytes, bytes | None, int]]) -> None:
    """Exact for binary topics, 64-bit times and messages without a value; another client gets the same as JSON."""
    feed = Feed.local("bridged", slices=2)
    with Publisher(feed) as publisher:

        async def work(_: WebSocketBridge, url: str) -> None:
            async with connect(url) as one, client(url, "") as other:
                assert await ask(one, do="subscribe", prefix="", binary=True) == {"subscribed": ""}
                for message in messages:
                    publisher.publish(*message)
                found = list[tuple[bytes, bytes | None, int, int, int, int]]()
                while len(found) < len(messages):
                    frame = await one.recv()
                    assert isinstance(frame, bytes)
                    prefix, some = in_binary(frame)
                    assert prefix == ""
                    found += some
                assert [each[:3] for each in sorted(found, key=lambda each: each[3:])] == [
                    message for slice_id in range(2) for message in messages if feed.slice_of(message[0]) == slice_id
                ]
                assert {(each[3], each[4]) for each in found} == {
                    (feed.slice_of(topic), publisher.epoch) for topic, *_ in messages
                }
                texts = list[tuple[int, int, int]]()
                while len(texts) < len(messages):
                    texts += [
                        (each["ts_event"], each["slice"], each["sequence"]) for each in (await told(other))["messages"]
                    ]
                assert sorted(texts) == sorted((each[2], each[3], each[5]) for each in found)

        serving(feed, work)


def test_a_slow_client_gets_the_newest_of_each_topic_and_others_everything() -> None:
    feed, count, topics = Feed.local("bridged", slices=1), 60_000, tuple(b"%02d" % each for each in range(20))
    with Publisher(feed, when_full="wait") as publisher:

        async def work(bridge: WebSocketBridge, url: str) -> None:
            narrow = narrow_socket(bridge.port)
            async with client(url, "", sock=narrow, max_queue=1) as slow, client(url, "") as fast:
                payload = numpy.zeros((count, 200), numpy.uint8)
                payload[:, :8] = numpy.arange(count).view(numpy.uint8).reshape(-1, 8)
                index, got = numpy.arange(count) % len(topics), 0
                for first in range(0, count, 500):  # as fast as the fast one takes them
                    part = slice(first, first + 500)
                    publisher.publish_many(topics, index[part], payload[part])
                    while got < first + 500:
                        frame = await told(fast)
                        got += len(frame["messages"])
                newest, came, passed_over = dict[str, int](), 0, 0
                while came + passed_over < count:
                    frame = await told(slow)
                    passed_over += frame.get("passed_over", 0)
                    for each in frame.get("messages", ()):
                        came += 1
                        newest[each["topic"]] = int.from_bytes(b64decode(each["payload"])[:8], "little")
                assert passed_over > 0
                assert sorted(newest.values()) == list(range(count - len(topics), count))
                assert bridge.statistics().passed_over == passed_over

        serving(feed, work, limit=1_000)


def test_invalid_requests_are_answered_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "_CONFIRM_S", 0.1)
    monkeypatch.setattr(websocket, "_MOST_PREFIXES", 2)
    feed = Feed.local("bridged", slices=1)

    async def work(_: WebSocketBridge, url: str) -> None:
        async with client(url) as one:
            assert (await ask(one, do="subscribe", prefix="A", fast=True))["error"] == "ValidationError"
            assert (await ask(one, do="subscribe", prefix="A"))["error"] == "NotConfirmedError", "nobody publishes"
            monkeypatch.setattr(websocket, "_CONFIRM_S", 30)
            with Publisher(feed) as publisher:
                for prefix in ("A", "B"):
                    assert await ask(one, do="subscribe", prefix=prefix) == {"subscribed": prefix}
                assert "exceeded the limit" in (await ask(one, do="subscribe", prefix="C"))["why"]
                answer = await ask(one, do="subscribe", prefix="A", binary=True)
                assert answer["why"] == "prefix 'A' was subscribed with other settings: unsubscribe first"
                await ask(one, do="unsubscribe", prefix="A")
                await ask(one, do="subscribe", prefix="A", binary=True)
                publisher.publish(b"A", b"x")
                frame = await one.recv()
                assert isinstance(frame, bytes)
                assert in_binary(frame)[1][0][:2] == (b"A", b"x")

    serving(feed, work)


def test_many_prefixes_are_separate_streams_and_take_no_descriptors() -> None:
    feed = Feed.local("bridged", slices=1)
    with Publisher(feed) as publisher:

        async def work(_: WebSocketBridge, url: str) -> None:
            async with client(url, "A") as one:
                before = open_descriptors()
                for number in range(50):
                    assert await ask(one, do="subscribe", prefix=f"B{number}") == {"subscribed": f"B{number}"}
                assert open_descriptors() <= before
                publisher.publish(b"B49", b"x")
                frames = [await told(one), await told(one)]
                assert sorted(frame["prefix"] for frame in frames) == ["B4", "B49"]
                assert {frame["messages"][0]["sequence"] for frame in frames} == {0}

        serving(feed, work)


@pytest.mark.parametrize("key_bytes", [0, 2])
def test_a_gap_of_several_prefixes_is_reported_once(key_bytes: int) -> None:
    feed = Feed.local("bridged", slices=1, key_bytes=key_bytes)
    with RawPublisher(feed) as publisher:

        async def work(_: WebSocketBridge, url: str) -> None:
            async with client(url, "A", "", "AB") as one:
                publisher.send(publisher.encode([(b"AC", b"0")]))
                assert sorted([(await told(one))["prefix"] for _ in range(2)]) == ["", "A"]
                publisher.encode([(b"AC", b"1")] * 3)  # is lost
                publisher.send(publisher.encode([(b"AC", b"4")]))
                frames = [await told(one) for _ in range(3)]
                assert await ask(one, do="unsubscribe", prefix="A") == {"unsubscribed": "A"}
                gaps = [frame["gap"] for frame in frames if "gap" in frame]
                assert gaps == [{"slice": 0, "epoch": publisher.epoch, "sequence": 1, "count": 3}]

        serving(feed, work)


def of_prefixes(*prefixes: str) -> Feed:
    feed = Feed.local("bridged", slices=len(prefixes))
    slices = [
        msgspec.structs.replace(each, share=None, prefixes=(prefix,))
        for each, prefix in zip(feed.slices, prefixes, strict=True)
    ]
    return msgspec.structs.replace(feed, slices=tuple(slices))


def test_an_unknown_prefix_or_a_silent_slice_affects_only_its_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second slice has no publisher: many clients wait for it, while one for the first does not."""
    monkeypatch.setattr(websocket, "_CONFIRM_S", 60.0)
    feed = of_prefixes("A", "B")

    async def work(bridge: WebSocketBridge, url: str) -> None:
        async with AsyncExitStack() as stack:
            others = [await stack.enter_async_context(client(url)) for _ in range(50)]
            answers = [asyncio.ensure_future(ask(other, do="subscribe", prefix="B")) for other in others]
            with Publisher(msgspec.structs.replace(feed, slices=feed.slices[:1])) as publisher:
                async with client(url, "A") as one:
                    assert (await ask(one, do="subscribe", prefix="C"))["error"] == "ConfigError"
                    publisher.publish(b"A", b"x")
                    assert await payloads(one, 1, "A") == [b"x"]
                    assert bridge.statistics().prefixes == 2
            assert not any(answer.done() for answer in answers)
            with Publisher(feed):
                assert await asyncio.gather(*answers) == [{"subscribed": "B"}] * len(others)

    serving(feed, work)


def narrow_socket(port: int) -> socket.socket:
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    narrow.connect(("127.0.0.1", port))
    return narrow


def test_the_end_does_not_wait_for_a_client_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_server, "_CLOSE_S", 0.1)
    feed = Feed.local("bridged", slices=1)
    bridge = WebSocketBridge(feed)
    index, payload = numpy.arange(20_000) % 2, numpy.zeros((20_000, 200), numpy.uint8)

    async def work() -> int:
        bound = asyncio.Event()
        serves = asyncio.ensure_future(bridge.serve(bound.set))
        await bound.wait()
        sock = narrow_socket(bridge.port)
        async with client(f"ws://127.0.0.1:{bridge.port}", "", sock=sock, max_queue=1) as slow:
            for _ in range(10):
                await asyncio.to_thread(publisher.publish_many, (b"A", b"B"), index, payload)
            serves.cancel()
            turns = 0  # a busy machine has fewer of them in a second
            while not serves.done():
                await asyncio.sleep(0.1)
                turns += 1
            slow.transport.abort()
        return turns

    with Publisher(feed, when_full="wait") as publisher:
        assert asyncio.run(work()) < 50, "websockets waits 10 s for a close frame"


def test_the_queue_of_a_client_is_bounded_over_all_its_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "_MOST_BYTES", 1_000)
    browser = websocket._Browser(None, 100)  # type: ignore[arg-type]
    browser.prefixes.update({prefix: websocket.Subscribe(prefix=prefix) for prefix in "ABCDE"})
    for topic in range(100):
        for prefix in sorted(browser.prefixes):
            browser.add(prefix, b"%d" % topic, b"x" * 100)
    assert sum(len(text) for each in browser._waiting.values() for text in each.take().texts) == 1_000


def test_clients_above_the_limit_and_pages_of_other_origins_are_refused() -> None:
    origin: Any = "https://desk.example"

    async def work(bridge: WebSocketBridge, url: str) -> None:
        async with connect(url, origin=origin), connect(url, origin=origin) as other:
            with pytest.raises(ConnectionClosed) as closed:
                await other.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1013
            assert bridge.statistics().refused == 1
        with pytest.raises(InvalidStatus):
            async with connect(url, origin="https://elsewhere.example"):  # type: ignore[arg-type]
                pass

    serving(Feed.local("bridged", slices=1), work, most_clients=1, origins=[origin])


def test_a_port_in_use_is_reported() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        async def work(*_: object) -> None:
            raise AssertionError("it serves")

        with pytest.raises(OSError, match=f"cannot listen at 127.0.0.1:{port}"):
            serving(Feed.local("bridged", slices=1), work, port=port)


def test_an_error_of_the_subscriber_ends_the_bridge() -> None:
    feed = Feed.local("bridged", slices=1)
    with Publisher(feed) as publisher:

        async def work(bridge: WebSocketBridge, url: str) -> None:
            def fail(*_: object) -> None:
                raise RuntimeError("of a callback")

            async with client(url, "") as one:
                bridge._subscriber.on_batch(b"")(fail)
                bridge._subscriber.wait_confirmed()
                publisher.publish(b"A", b"")
                with pytest.raises(ConnectionClosed):
                    while True:
                        await one.recv()

        with pytest.raises(Exception, match="of a callback"):
            serving(feed, work, ends=True)
