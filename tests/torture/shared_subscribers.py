"""Clients of a WebSocket bridge send forbidden or invalid requests: all are answered, other clients are unaffected."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect

from blackbox import Feed, Publisher
from blackbox.services.bridge.websocket.clients import WebSocketBridge
from tests.keyring import Keyring
from tests.torture.outcome import Outcome

MAY = ("AA", "MS")
MOST_SUBSCRIPTIONS = 60
DEPTH = 1_000
ANSWER_S = 30.0


def subscription(random: Random) -> str:
    prefix = random.choice(["", "A", "AA", "AAPL.", "MSFT.", "IBM.", "\0", "é", f"AA{random.randrange(200):03}"])
    return json.dumps({"do": random.choice(["subscribe", "subscribe", "unsubscribe"]), "prefix": prefix})


def nested(random: Random) -> str:
    inner = "[" * DEPTH + "]" * DEPTH
    return f'{{"do": "subscribe", "prefix": "A", "x": {random.choice([inner, inner[:DEPTH]])}}}'


def garbage(random: Random) -> str:
    return random.choice(["", "null", "[]", "{}", '{"do": 1}', '{"do": "subscribe", "prefix": "' + "A" * 2_000 + '"}'])


async def answer_of(connection: ClientConnection) -> dict[str, Any]:
    """Return the reply to the last request."""
    while True:
        told: dict[str, Any] = json.loads(await asyncio.wait_for(connection.recv(), ANSWER_S))
        if told.keys() & {"subscribed", "error"} or told.keys() == {"unsubscribed"}:
            return told


async def count_messages(connection: ClientConnection, sent: asyncio.Future[int], found: list[str]) -> None:
    """Read until `sent` messages have arrived, because a client that does not read is disconnected."""
    came = 0
    while not sent.done() or came < sent.result():
        told = json.loads(await connection.recv())
        came += len(told.get("messages", ()))
        if "messages" not in told:
            found.append(f"an honest client received {told}")


async def talk(random: Random, url: str, publisher: Publisher, seconds: float, found: list[str]) -> int:
    tried, sent = 0, 0
    end = asyncio.get_running_loop().time() + seconds
    async with connect(url) as honest:
        await honest.send('{"do": "subscribe", "prefix": "MSFT.honest"}')
        await answer_of(honest)
        is_sent = asyncio.get_running_loop().create_future()
        counts = asyncio.ensure_future(count_messages(honest, is_sent, found))
        while (tried == 0 or asyncio.get_running_loop().time() < end) and not found:
            async with connect(url) as other:
                for _ in range(random.randint(1, 40)):
                    await other.send(random.choices((subscription, nested, garbage), (8, 1, 1))[0](random))
                    tried += 1
                    answer = await answer_of(other)
                    if (answer.get("subscribed") or "AA").startswith(MAY) is False or answer.get("subscribed") == "":
                        found.append(f"{answer} was subscribed without permission")
            publisher.publish(b"MSFT.honest", b"%d" % sent)
            sent += 1
        publisher.publish(b"MSFT.honest", b"last")
        is_sent.set_result(sent + 1)
        await asyncio.wait_for(counts, ANSWER_S)
    return tried


def attack(random: Random, seconds: float) -> Outcome:
    """Let clients send random requests; an honest one must receive every message."""
    found: list[str] = []
    with TemporaryDirectory() as directory:
        ring = Keyring(Path(directory), "exchange", "bridge")
        ring.allow("exchange", "bridge")
        (Path(directory) / "allowed-by-exchange" / "rights.toml").write_text(f"bridge = {json.dumps(MAY)}")
        made = Feed.local("shared-subscribers", slices=1, key_bytes=2)
        feed = msgspec.structs.replace(made, max_subscriptions=MOST_SUBSCRIPTIONS, heartbeat_ns=100_000_000)
        with Publisher(ring.feed(feed, "exchange")) as publisher:

            async def run() -> int:
                bridge, bound = WebSocketBridge(ring.feed(feed, "bridge", "exchange")), asyncio.Event()
                serves = asyncio.ensure_future(bridge.serve(bound.set))
                await bound.wait()
                try:
                    tried = await talk(random, f"ws://127.0.0.1:{bridge.port}", publisher, seconds, found)
                except (OSError, TimeoutError) as error:
                    found.append(f"the bridge stopped working: {type(error).__name__}: {error}")
                    tried = 1
                if serves.done():
                    found.append(f"the bridge ended: {serves.exception()}")
                serves.cancel()
                await asyncio.wait((serves,))
                return tried

            tried = asyncio.run(run())
    return Outcome(tried, "requests against a shared subscriber", found)
