"""Asyncio client of a hub: the methods of `HubClient`, awaited."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Final, Self, Unpack

from blackbox.arguments import Duration
from blackbox.block.batch.batch import Message
from blackbox.block.position import Place
from blackbox.errors import NotStoredError
from blackbox.feed.feed import Feed
from blackbox.feed.routing.prefixes import Prefixes
from blackbox.services.hub.client.client import HubClient, HubClientSettings

_LOOK_S: Final = 1.0
_GETS_AT_ONCE: Final = 64
"""Messages after which other tasks get a turn."""


class AsyncHubClient:
    """Asyncio version of `HubClient`, for `async with`. It runs `client`. For timeouts, use `asyncio.timeout`.

    Any task may put. Each subscription has one task that gets and commits.
    """

    def __init__(
        self,
        feed: Feed | str | os.PathLike[str],
        name: str | None = None,
        directory: str | os.PathLike[str] | None = None,
        **settings: Unpack[HubClientSettings],
    ) -> None:
        """Take the arguments of `HubClient`."""
        self.client = HubClient(feed, name, directory, **settings)
        self._room = asyncio.Lock()
        """Held by the task that waits for room; others follow in their order."""

    async def __aenter__(self) -> Self:
        self.client.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.client.__exit__, kind, error, at)

    async def put(
        self,
        topic: str | bytes | Sequence[str | bytes],
        payload: bytes | None,
        id: bytes | None = None,  # noqa: A002
        *,
        ts_event: int | None = None,
        if_at: Place | None = None,
        ttl: Duration | None = None,
    ) -> Place:
        """As `HubClient.put`. A cancelled put may have been sent."""
        put = self.client._checks.single(topic, payload, id, ts_event, if_at, ttl)
        async with self._room:
            while True:
                try:
                    self.client._sender.put_soon(put, 0)
                    break
                except NotStoredError:  # there is no room
                    await asyncio.sleep(0.001)
        return await asyncio.wrap_future(put)

    async def flush(self) -> None:
        """As `HubClient.flush`."""
        while True:
            try:
                return await asyncio.to_thread(self.client.flush, _LOOK_S)
            except NotStoredError:
                continue

    async def subscribe(self, prefix: Prefixes | None = None, *, symbols: Iterable[str | bytes] | None = None) -> None:
        """As `HubClient.subscribe`."""
        prefix = list(prefix) if isinstance(prefix, Iterator) else prefix  # it is read several times
        symbols = list(symbols) if isinstance(symbols, Iterator) else symbols
        while True:
            try:
                return await asyncio.to_thread(self.client.subscribe, prefix, _LOOK_S, symbols=symbols)
            except NotStoredError:
                continue

    async def unsubscribe(
        self, prefix: Prefixes | None = None, *, symbols: Iterable[str | bytes] | None = None
    ) -> None:
        """As `HubClient.unsubscribe`."""
        await asyncio.to_thread(self.client.unsubscribe, prefix, symbols=symbols)

    async def get(self, prefix: Prefixes | None = None, *, symbols: Iterable[str | bytes] | None = None) -> Message:
        """As `HubClient.get`."""
        durable = self.client._durable
        inboxes = durable.chosen(prefix, symbols)
        while True:
            if durable.looks % _GETS_AT_ONCE == 0:
                durable.looks += 1  # also if it is cancelled here, so that the next call returns a message
                await asyncio.sleep(0)  # not with a message, which a cancelled task would lose
            seen = durable.arrivals.count
            if (message := durable.look(inboxes)) is not None:
                return message
            await durable.arrivals.changed(seen)

    async def commit(self) -> None:
        """As `HubClient.commit`, in the task that gets: `asyncio.wait_for` would get in another one.

        It blocks the event loop while a file is synced, and with keys until the next heartbeat, at most 10 s for each
        subscription.
        """
        self.client.commit()
