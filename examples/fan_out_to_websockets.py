"""How do I forward the topics that each WebSocket client requests? Needs uvloop and websockets."""

import asyncio

import uvloop
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from blackbox import Feed, Publisher, Subscriber

feed = Feed.local("fan-out", slices=1)  # with several slices, order holds only within a slice
subscriber = Subscriber(feed)


async def send_on(client: ServerConnection) -> None:
    """Serve one client. ws://HOST:PORT/AAPL. receives topics that start with `AAPL.`; a slow one loses the oldest."""
    assert client.request is not None
    prefix = client.request.path[1:].encode()
    with subscriber.stream(prefix, limit=1_000, when_full="drop_oldest") as stream:
        closed = asyncio.ensure_future(client.wait_closed())
        closed.add_done_callback(lambda _: stream.close())
        await asyncio.to_thread(subscriber.wait_confirmed)
        await client.send("ready")
        async for message in stream:
            await client.send(f"{message.topic.decode()} {message.payload.decode()}")


async def listen(url: str, messages: int) -> list[str]:
    """Connect as a client; return the first `messages` messages."""
    async with connect(url) as server:
        assert await server.recv() == "ready"
        ready.release()
        return [str(await server.recv()) for _ in range(messages)]


async def main() -> None:
    async with serve(send_on, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        clients = asyncio.gather(
            listen(f"ws://127.0.0.1:{port}/AAPL.", 2),
            listen(f"ws://127.0.0.1:{port}/", 3),
        )
        await ready.acquire()
        await ready.acquire()
        for topic, price in ((b"AAPL.trade", b"189.98"), (b"MSFT.trade", b"370.10"), (b"AAPL.trade", b"189.99")):
            publisher.publish(topic, price)
        for received in await clients:
            print(received)


ready = asyncio.Semaphore(0)
with Publisher(feed) as publisher, subscriber:
    uvloop.run(main())
