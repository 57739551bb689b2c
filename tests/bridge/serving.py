"""Serve a WebSocket bridge while a coroutine uses it, and read what it answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from websockets.asyncio.client import ClientConnection

from blackbox.testing import wait_until


class Serving(Protocol):
    """A bridge."""

    @property
    def port(self) -> int: ...

    async def serve(self, bound: Callable[[], None]) -> None: ...


BridgeT = TypeVar("BridgeT", bound=Serving)


def serve_while(bridge: BridgeT, work: Callable[[BridgeT, str], Coroutine[Any, Any, None]], ends: bool = False) -> None:
    """Serve while `work` runs with the bridge and its address. `ends`: wait until the bridge ends with an error."""

    async def run() -> None:
        bound = asyncio.Event()
        serves = asyncio.ensure_future(bridge.serve(bound.set))
        begun = asyncio.ensure_future(bound.wait())
        await asyncio.wait((serves, begun), return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        if not serves.done():
            async with asyncio.timeout(200):
                await work(bridge, f"ws://127.0.0.1:{bridge.port}")
        if not ends:
            serves.cancel()
        await asyncio.wait((serves,), timeout=200)
        if not serves.cancelled():
            serves.result()

    asyncio.run(run())


async def told(connection: ClientConnection) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(await connection.recv())
    return found


async def until(condition: Callable[[], object]) -> None:
    await asyncio.to_thread(wait_until, condition)
