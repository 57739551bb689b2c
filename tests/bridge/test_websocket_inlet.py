"""WebSocket clients that put to a real hub."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
from base64 import b64encode
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from blackbox import Feed, Hub
from blackbox.errors import BridgeError
from blackbox.feed.endpoint import free_endpoints
from blackbox.services.bridge.websocket import inlet as websocket_inlet
from blackbox.services.bridge.websocket import server
from blackbox.services.bridge.websocket.inlet import WebSocketInlet
from blackbox.services.monitor.serve.observe import Beats, observe
from tests.bridge.serving import serve_while, told, until
from tests.bridge.test_websocket import narrow_socket
from tests.cli.commands import Command, Ended, write_feed
from tests.hub.hubs import hub_feed, published

Work = Callable[[WebSocketInlet, str], Coroutine[Any, Any, None]]


def serving(feed: Feed, work: Work, ends: bool = False, **settings: Any) -> WebSocketInlet:
    bridge = WebSocketInlet(feed, **settings)
    serve_while(bridge, work, ends)
    return bridge


async def send(connection: ClientConnection, topic: str, **asked: Any) -> None:
    await connection.send(json.dumps({"do": "put", "topic": topic, "timeout_s": 300} | asked))


async def put(connection: ClientConnection, topic: str, **asked: Any) -> dict[str, Any]:
    await send(connection, topic, **asked)
    return await told(connection)


def test_a_put_is_answered_with_its_position(tmp_path: Path) -> None:
    feed, answers = hub_feed("orders", slices=2), list[dict[str, Any]]()

    async def work(_: WebSocketInlet, url: str) -> None:
        async with connect(url) as one:
            payload = b64encode(b"\x00\xff").decode()
            answers.append(await put(one, "A.x", payload=payload, number=7, ts_event=5))
            answers.append(await put(one, "B.x", text="größer"))
            answers.append(await put(one, "A.x", payload=None))

    with Hub(feed, tmp_path):
        bridge = serving(feed, work)
    assert [answer["number"] for answer in answers] == [7, 0, 0]
    places = [(answer["epoch"], answer["slice"], answer["sequence"]) for answer in answers]
    values = [(b"A.x", b"\x00\xff"), (b"B.x", "größer".encode()), (b"A.x", None)]
    assert published(tmp_path, feed) == sorted((*place, *value) for place, value in zip(places, values, strict=True))
    assert (bridge.statistics().put, bridge.statistics().failed) == (3, 0)


def test_conditions_and_times_to_live_reach_the_hub(tmp_path: Path) -> None:
    feed = hub_feed("orders", slices=1)

    async def work(_: WebSocketInlet, url: str) -> None:
        async with connect(url) as one:
            place = await put(one, "A", text="1", if_at="nowhere", ttl_s=3_600)
            refused = await put(one, "A", text="2", if_at="nowhere")
            assert refused["error"] == "ConflictError"
            assert refused["found"] | {"number": 0} == place
            assert "sequence" in await put(one, "A", text="3", if_at=place)
            assert "ttl was of -1.0 s" in (await put(one, "A", text="4", ttl_s=-1))["why"]

    with Hub(feed, tmp_path):
        serving(feed, work)
    assert [payload for *_, payload in published(tmp_path, feed)] == [b"1", b"3"]


def test_it_is_ready_while_clients_can_put() -> None:
    ready = list[tuple[str, ...]]()

    async def work(bridge: WebSocketInlet, url: str) -> None:
        ready.append(observe(bridge, Beats()).waits)

    bridge = WebSocketInlet(hub_feed(), "127.0.0.1")
    ready.append(observe(bridge, Beats()).waits)
    serve_while(bridge, work)
    ready.append(observe(bridge, Beats()).waits)
    assert ready == [("The bridge has not started.",), (), ("The bridge has ended.",)]


def test_puts_of_one_client_keep_their_order(tmp_path: Path) -> None:
    """Sent without waiting for answers, more than may be in flight."""
    feed, count = hub_feed("orders", slices=1), 2 * websocket_inlet.IN_FLIGHT

    async def work(_: WebSocketInlet, url: str) -> None:
        async with connect(url, max_queue=None) as one:
            for number in range(count):
                await send(one, "A", text=str(number), number=number)
            answers = [await told(one) for _ in range(count)]
        by_number = sorted(answers, key=lambda answer: answer["number"])
        assert [answer["sequence"] for answer in by_number] == list(range(count))

    with Hub(feed, tmp_path):
        serving(feed, work)
    assert [payload for *_, payload in published(tmp_path, feed)] == [b"%d" % number for number in range(count)]


@pytest.mark.long
def test_an_id_is_stored_once_through_kills(tmp_path: Path) -> None:
    """Hub and bridge are killed while a client puts and repeats unanswered puts."""
    feed = hub_feed("orders", slices=1)
    url = free_endpoints("tcp", "bridged", 1, 1)[0][0].replace("tcp", "ws")
    path = write_feed(feed, tmp_path / "feed.toml")
    (tmp_path / "hub.toml").write_text('feed = "feed.toml"\ndirectory = "kept"\n')
    words = {"hub": ("hub", tmp_path / "hub.toml"), "bridge": ("bridge", url, "--in", "--feed", path)}
    count, places = 3_000, dict[int, tuple[int, int]]()

    def begin(name: str) -> Command:
        command = Command(*words[name])
        command.read_error({"hub": "takes puts", "bridge": "is carried into"}[name])
        return command

    async def write(connection: ClientConnection, missing: list[int]) -> None:
        for number in missing:
            await send(connection, "A", text=str(number), id=f"order-{number}", number=number)

    async def work() -> Ended:
        running = {name: begin(name) for name in words}
        kills = [("hub", 300), ("bridge", 1_500)]
        try:
            while len(places) < count:
                try:
                    async with connect(url, max_queue=None) as one:
                        writing = asyncio.create_task(write(one, [each for each in range(count) if each not in places]))
                        while len(places) < count:
                            answer = await told(one)
                            if "error" not in answer:
                                place = answer["epoch"], answer["sequence"]
                                assert places.setdefault(answer["number"], place) == place
                            if kills and len(places) >= kills[0][1]:
                                name, _ = kills.pop(0)
                                with running[name]:  # which kills it
                                    pass
                                running[name] = begin(name)
                        await writing
                except (ConnectionClosed, OSError):
                    writing.cancel()
                    await asyncio.wait([writing])
            assert kills == []
        finally:
            with running["bridge"], running["hub"]:
                ended = running["bridge"].interrupt(signal.SIGTERM)
                running["hub"].interrupt(signal.SIGTERM)
        return ended

    ended = asyncio.run(work())
    assert (ended.status, " messages put, " in ended.errors) == (143, True), ended.errors
    found = published(tmp_path / "kept", feed)
    assert sorted(int(payload or b"") for *_, payload in found) == list(range(count))
    assert places == {int(payload or b""): (epoch, sequence) for epoch, _, sequence, _, payload in found}


def test_without_a_hub_a_put_is_answered_in_time_and_stored_later(tmp_path: Path) -> None:
    feed = hub_feed("orders", slices=1)

    async def work(_: WebSocketInlet, url: str) -> None:
        async with connect(url) as one:
            answer = await put(one, "A", text="1", id="order-1", timeout_s=0.2)
            assert answer == {
                "number": 0,
                "error": "NotStoredError",
                "why": "the hub of feed 'orders' did not answer in time",
            }
            with Hub(feed, tmp_path):
                assert (await put(one, "A", text="1", id="order-1"))["sequence"] == 0

    serving(feed, work)
    assert [payload for *_, payload in published(tmp_path, feed)] == [b"1"]


@pytest.mark.parametrize("count", [100, websocket_inlet.IN_FLIGHT + 100])
def test_a_disconnected_client_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Its puts wait for an unreachable hub; its connection and its tasks are gone.

    With many puts in flight its close frame is not read, so pings detect the disconnect.
    """
    monkeypatch.setattr(server, "_PING_S", 0.5)
    feed = hub_feed("orders", slices=1)

    async def work(bridge: WebSocketInlet, url: str) -> None:
        tasks = asyncio.all_tasks()
        one = await connect(url, ping_interval=None)
        for _ in range(count):
            await send(one, "A", text="x", timeout_s=3_600)
        await until(lambda: bridge._client._sender._queue.unanswered == min(count, websocket_inlet.IN_FLIGHT))
        one.transport.abort()
        await until(lambda: bridge.statistics().clients == 0)
        if left := asyncio.all_tasks() - tasks:
            await asyncio.wait(left, timeout=200)
        assert asyncio.all_tasks() <= tasks

    serving(feed, work)


def test_a_client_that_reads_no_answers_is_not_read_and_delays_no_other(tmp_path: Path) -> None:
    feed = hub_feed("orders", slices=1)

    async def work(bridge: WebSocketInlet, url: str) -> None:
        async with connect(url, sock=narrow_socket(bridge.port), max_queue=1) as slow:
            await until(lambda: bridge._server.clients)
            (there,) = bridge._server.clients
            there.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)

            async def flood() -> None:
                while True:
                    await send(slow, "A", text="x" * 100)

            flooding = asyncio.create_task(flood())
            seen = -1
            async with connect(url) as other:
                while seen < websocket_inlet.IN_FLIGHT or seen != bridge.statistics().put:
                    seen = bridge.statistics().put + 20
                    for _ in range(20):
                        assert "sequence" in await put(other, "B", text="y")
            flooding.cancel()
            slow.transport.abort()

    with Hub(feed, tmp_path):
        serving(feed, work)


def test_invalid_puts_are_answered_with_an_error(tmp_path: Path) -> None:
    feed = hub_feed("orders", slices=1)

    async def work(bridge: WebSocketInlet, url: str) -> None:
        async with connect(url) as one:
            assert (await put(one, "A.x", number=3))["why"] == "put of 'A.x' needs exactly one of payload and text"
            assert "expected base64" in (await put(one, "A.x", payload="?"))["why"]
            assert "expected one that starts with b'A.'" in (await put(one, "B.x", text="x"))["why"]
            assert "expected at most 1048576" in (await put(one, "A.x", text="x" * (1 << 20) + "x"))["why"]
            assert "id had 65 bytes" in (await put(one, "A.x", text="", id="x" * 65))["why"]
            assert "ts_event" in (await put(one, "A.x", text="", ts_event=1 << 63))["why"]
            await one.send('{"do": "subscribe", "prefix": "A", "number": 9}')
            assert (await told(one))["number"] == 9
            await one.send(b"\xff")
            assert (await told(one))["error"] == "DecodeError"
            assert "sequence" in await put(one, "A.x", text="goes on")
            assert bridge.statistics().failed == 8

    with Hub(feed, tmp_path):
        serving(feed, work, prefix=b"A.")
    assert [payload for *_, payload in published(tmp_path, feed)] == [b"goes on"]


def test_refused_puts_of_one_client_do_not_affect_another(tmp_path: Path) -> None:
    """Puts of both share a request, because the hub is unreachable."""
    feed = msgspec.structs.replace(hub_feed("orders", slices=1), max_topics=2)

    async def work(bridge: WebSocketInlet, url: str) -> None:
        async with connect(url) as one, connect(url) as other:
            for number, topic in enumerate("ABCAD"):
                await send(one, topic, text=f"{number}", number=number, timeout_s=300)
            await until(lambda: bridge._client._sender._queue.unanswered == 5)
            for topic in "BA":
                await send(other, topic, text="other", timeout_s=300)
            await until(lambda: bridge._client._sender._queue.unanswered == 7)
            with Hub(feed, tmp_path):
                answers = {answer["number"]: answer for answer in [await told(one) for _ in range(5)]}
                assert all(["sequence" in await told(other) for _ in range(2)])
        assert sorted(number for number, answer in answers.items() if "error" in answer) == [2, 4]
        assert answers[2]["error"] == "RefusedError"
        assert answers[2]["why"].startswith("topic b'C' was refused: slice 0 had 2 topics, its max_topics")

    serving(feed, work)
    assert [payload for *_, payload in published(tmp_path, feed)] == [b"0", b"1", b"3", b"other", b"other"]


def test_a_hub_that_lost_answered_puts_ends_it(tmp_path: Path) -> None:
    """No further put is possible, so the operator must see the error."""
    feed = hub_feed("orders", slices=1)

    async def work(_: WebSocketInlet, url: str) -> None:
        with Hub(feed, tmp_path / "first"):
            async with connect(url) as one:
                assert "sequence" in await put(one, "A", text="1")
        with Hub(feed, tmp_path / "second"), pytest.raises(ConnectionClosed):
            async with connect(url) as one:
                while True:
                    await put(one, "A", text="2", timeout_s=10)

    with pytest.raises(BridgeError, match="the hub accepts no more puts from the bridge: "):
        serving(feed, work, ends=True)


def test_only_listed_pages_may_put_and_no_clients_above_the_limit() -> None:
    """Stricter than for reading: otherwise any page in a browser on this host could put."""

    async def refused(url: str, origin: str) -> bool:
        try:
            async with connect(url, origin=origin):  # type: ignore[arg-type]
                return False
        except InvalidStatus:
            return True

    async def none_named(bridge: WebSocketInlet, url: str) -> None:
        assert await refused(url, "https://desk.example")
        async with connect(url), connect(url) as other:  # not browsers
            with pytest.raises(ConnectionClosed):
                await other.recv()
            assert bridge.statistics().refused == 1

    async def some_named(_: WebSocketInlet, url: str) -> None:
        assert not await refused(url, "https://desk.example")
        assert not await refused(url, "null")  # of a page that is a file
        assert await refused(url, "https://elsewhere.example")

    serving(hub_feed(), none_named, most_clients=1)
    bridge = WebSocketInlet.of_url(hub_feed(), "ws://127.0.0.1:0", origins="https://desk.example,null")
    serve_while(bridge, some_named)
