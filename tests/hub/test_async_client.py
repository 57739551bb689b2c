"""The asyncio client: its tasks put in their order, and wait for messages while the hub is away."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from blackbox import AsyncHubClient, Feed, Hub
from blackbox.block.batch.batch import Message
from blackbox.block.position import Place
from blackbox.errors import NotStoredError
from blackbox.services.hub.client import async_client, durable_subscription
from blackbox.services.hub.client.durable_subscription import Inbox
from blackbox.services.hub.client.put_queue import Put
from blackbox.services.hub.client.put_sender import Sender
from tests.hub.hubs import hub_feed
from tests.hub.test_get import WAIT_S, reader


def test_puts_in_asyncio_are_stored_in_order_and_delivered(tmp_path: Path, feed: Feed) -> None:

    async def run() -> list[bytes]:
        async with AsyncHubClient(feed, "desk", tmp_path / "desk", in_flight=20) as client, asyncio.timeout(200):
            await client.subscribe(b"A")
            places = await asyncio.gather(*(client.put(b"A.x", b"%d" % number) for number in range(20)))
            assert [place.sequence for place in places] == list(range(20))
            await asyncio.gather(*(client.put((b"B.x", b"C.x"), b"") for _ in range(100)))
            assert await asyncio.to_thread(client.client.published_count) == 220
            await client.flush()
            got = [bytes((await client.get(b"A")).payload) for _ in range(20)]
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.get(b"A")
            await client.commit()
            await client.unsubscribe(b"A")
            return got

    with Hub(feed, tmp_path / "hub"):
        assert asyncio.run(run()) == [b"%d" % number for number in range(20)]


def test_a_task_gets_messages_of_several_subscriptions(tmp_path: Path, feed: Feed) -> None:

    async def get() -> None:
        async with AsyncHubClient(feed, "reader", tmp_path / "reader") as client:
            await client.subscribe(symbols=["A", "B"])
            waiting = asyncio.create_task(client.get(symbols=["A", "B"]))
            await client.put("C.x", b"0")
            await client.put("B.x", b"1")
            assert (await waiting).topic == b"B.x"
            for number in range(200):
                await client.put("A.x", b"%d" % number)
            assert [int((await client.get(symbols=["A"])).payload or b"") for _ in range(200)] == list(range(200))
            got = list[int]()
            for number in range(200):
                await client.put("A.x", b"%d" % number)
            while len(got) < 200:
                getting = asyncio.create_task(client.get(symbols=["A"]))
                await asyncio.sleep(0)
                getting.cancel()
                (found,) = await asyncio.gather(getting, return_exceptions=True)
                got += [int(found.payload)] if isinstance(found, Message) else []
            assert got == list(range(200))
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await client.get(symbols=["A", "B"])
            assert not client.client._durable.arrivals._sleepers
            await client.commit()
            await client.unsubscribe(symbols=["A", "B"])
            assert client.client.subscriptions == []

    with Hub(feed, tmp_path / "hub"):
        asyncio.run(get())


def test_a_task_gets_a_message_of_a_hub_that_was_away_for_long(
    tmp_path: Path, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each start of its subscription fails while the hub is away."""
    with Hub(feed, tmp_path / "hub"), reader(feed, tmp_path) as client:
        client.subscribe(b"")
    starts, new = list[Inbox](), Inbox._new

    async def get() -> bytes | None:
        is_third = asyncio.Event()

        def begin(inbox: Inbox) -> object:
            starts.append(inbox)
            if len(starts) == 3:
                monkeypatch.setattr(durable_subscription, "_START_S", WAIT_S)
                is_third.set()
            return new(inbox)

        monkeypatch.setattr(Inbox, "_new", begin)
        async with AsyncHubClient(feed, "reader", tmp_path / "reader") as client, asyncio.timeout(WAIT_S):
            waiting = asyncio.create_task(client.get(b""))
            await is_third.wait()
            with Hub(feed, tmp_path / "hub"):
                await client.put("A.x", b"1")
                return (await waiting).payload

    monkeypatch.setattr(durable_subscription, "_START_S", 0.1)
    assert asyncio.run(get()) == b"1"


def test_tasks_that_wait_for_room_put_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, stored = list[bytes | None](), list[bytes | None]()

    def put_soon(_: Sender, put: Put, timeout: float) -> None:
        tried.append(put.payload)
        if len(tried) <= 4:
            raise NotStoredError("no room")
        stored.append(put.payload)
        put.set_result(Place(0, 1, len(stored)))

    async def put() -> None:
        client = AsyncHubClient(hub_feed(slices=1))
        await asyncio.gather(*(client.put(b"A.x", each) for each in (b"a", b"b", b"c")))

    monkeypatch.setattr(Sender, "put_soon", put_soon)
    asyncio.run(put())
    assert stored == [b"a", b"b", b"c"]
    assert tried == [b"a"] * 5 + [b"b", b"c"], "one task at a time tries"


def test_a_task_subscribes_to_an_iterator_once_the_hub_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_client, "_LOOK_S", 0.05)
    feed, asked, ask = hub_feed(slices=1), list[bytes](), Sender.ask

    async def subscribe() -> list[str]:
        is_second = asyncio.Event()
        loop = asyncio.get_running_loop()

        def count(sender: Sender, prefix: bytes | None = None) -> object:
            asked.append(prefix or b"")
            if len(asked) == 3:  # the first is for `start`, the second has failed
                loop.call_soon_threadsafe(is_second.set)
            return ask(sender, prefix)

        monkeypatch.setattr(Sender, "ask", count)
        async with AsyncHubClient(feed, "reader", tmp_path / "reader") as client, asyncio.timeout(WAIT_S):
            waiting = asyncio.create_task(client.subscribe(symbols=iter(["A"])))
            await is_second.wait()
            with Hub(feed, tmp_path / "hub"):
                await waiting
                return [str(each) for each in client.client.subscriptions]

    assert asyncio.run(subscribe()) == ["symbol b'A'"]
