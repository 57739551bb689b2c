"""A client of a hub in asyncio: the verbs of `HubClient`, awaited."""

from __future__ import annotations

import asyncio
import os
import time
from types import TracebackType
from typing import Final, Self, Unpack

from blackbox.block.batch import Message
from blackbox.block.position import Place
from blackbox.errors import NotStoredError, SubscriberError
from blackbox.feed.feed import Feed
from blackbox.hub.client import HubClient, HubClientSettings

_LOOK_S: Final = 1.0


class AsyncHubClient:
    """As `HubClient`, in `async with`, without times to wait: give those by `asyncio.timeout`. It drives `client`.

    Any task may put; each subscription has one task that gets, and that commits.
    """

    def __init__(
        self,
        feed: Feed | str | os.PathLike[str],
        name: str | None = None,
        directory: str | os.PathLike[str] | None = None,
        **settings: Unpack[HubClientSettings],
    ) -> None:
        """As `HubClient`."""
        self.client = HubClient(feed, name, directory, **settings)

    async def __aenter__(self) -> Self:
        self.client.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.client.__exit__, kind, error, at)

    async def put(
        self,
        topic: str | bytes,
        payload: bytes | None,
        id: bytes | None = None,  # noqa: A002
        *,
        ts_event: int | None = None,
        if_at: Place | None = None,
        ttl: float | None = None,
    ) -> Place:
        """As `HubClient.put`. A cancelled put may have been sent."""
        while True:
            try:
                future = self.client.put_soon(topic, payload, id, ts_event=ts_event, timeout=0, if_at=if_at, ttl=ttl)
            except NotStoredError:  # there is no room
                await asyncio.sleep(0.001)
            else:
                return await asyncio.wrap_future(future)

    async def flush(self) -> None:
        """As `HubClient.flush`."""
        while True:
            try:
                return await asyncio.to_thread(self.client.flush, _LOOK_S)
            except NotStoredError:
                continue

    async def subscribe(self, prefix: str | bytes) -> None:
        """As `HubClient.subscribe`."""
        while True:
            try:
                return await asyncio.to_thread(self.client.subscribe, prefix, _LOOK_S)
            except NotStoredError:
                continue

    async def unsubscribe(self, prefix: str | bytes) -> None:
        """As `HubClient.unsubscribe`."""
        await asyncio.to_thread(self.client.unsubscribe, prefix)

    async def get(self, prefix: str | bytes) -> Message:
        """As `HubClient.get`, of one prefix."""
        inbox = self.client._inbox(prefix)
        while True:
            try:
                stream = await asyncio.to_thread(inbox.open, time.monotonic() + _LOOK_S)
            except TimeoutError:
                continue
            try:
                message: Message = await anext(stream)
            except StopAsyncIteration:
                raise SubscriberError(f"subscription {prefix!r} has ended") from None
            except SubscriberError as error:
                inbox.fail(error)
            return message

    async def commit(self) -> None:
        """As `HubClient.commit`; it holds the loop up for as long as a file takes to be synced."""
        self.client.commit()
