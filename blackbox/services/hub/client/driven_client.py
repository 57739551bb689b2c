"""Client of a hub for another process, in any language: its methods as JSON over one ZeroMQ socket."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from typing import Any, Final

import msgspec
import zmq
import zmq.asyncio

from blackbox.block.batch.plain_message import as_object
from blackbox.documents import DecodeError
from blackbox.errors import BlackBoxError, ConfigError, NotStoredError
from blackbox.feed.endpoint import check_endpoint, transport_of
from blackbox.feed.security import is_loopback
from blackbox.native.system.limits import Needs
from blackbox.services.hub.client.async_client import AsyncHubClient
from blackbox.services.hub.client.durable_subscription import Subscription
from blackbox.services.hub.client.json_form import (
    ASKED,
    MOST_ASKED_BYTES,
    Asked,
    Get,
    Put,
    Subscribe,
    Unsubscribe,
    error_as_json,
    number_of,
    place_as_json,
)
from blackbox.services.hub.client.put_checks import as_topics
from blackbox.transport.context import new_context
from blackbox.transport.server_thread import bind

log = logging.getLogger("blackbox")

_MOST_AT_ONCE: Final = 1_000
"""Maximum requests in progress; more are answered with an error. At twice this number, reading stops."""
_ROOM_S: Final = 0.01
_NEEDS: Final = Needs(descriptors=64)


class DrivenClient:
    """Answers requests at an endpoint with the results of a client's methods. Run by one task; see `json_form`.

    Requests run concurrently, those of one subscription in order.
    """

    def __init__(self, client: AsyncHubClient, endpoint: str) -> None:
        """Raises ConfigError unless only this host can reach the endpoint: any peer there acts as the client."""
        check_endpoint(endpoint)
        if transport_of(endpoint) != "ipc" and not is_loopback(endpoint):
            raise ConfigError(f"endpoint was {endpoint!r}, expected ipc, or tcp on a loopback address")
        self._client, self._endpoint = client, endpoint
        self._sending = asyncio.Lock()
        self._turns: defaultdict[Subscription, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def serve(self, bound: Callable[[], None] = lambda: None) -> None:
        """Answer until the task is cancelled; call `bound` once the endpoint is bound. Raises EndpointError."""
        with ExitStack() as stack:
            plain = stack.enter_context(new_context("driven client", _NEEDS))
            socket = zmq.asyncio.Context(shadow=plain).socket(zmq.ROUTER)
            stack.callback(socket.close)
            socket.linger = 0
            socket.router_mandatory = True  # otherwise answers without room are dropped
            socket.setsockopt(zmq.MAXMSGSIZE, MOST_ASKED_BYTES)
            bind(socket, self._endpoint, "endpoint")
            bound()
            running, room = set[asyncio.Task[None]](), asyncio.Semaphore(2 * _MOST_AT_ONCE)
            async with asyncio.TaskGroup() as group:
                while True:
                    await room.acquire()
                    *envelope, text = await socket.recv_multipart()
                    is_room = len(running) < _MOST_AT_ONCE
                    task = group.create_task(self._answer(socket, envelope, text, is_room=is_room))
                    running.add(task)
                    task.add_done_callback(running.discard)
                    task.add_done_callback(lambda _: room.release())

    async def _answer(self, socket: zmq.asyncio.Socket, envelope: list[bytes], text: bytes, *, is_room: bool) -> None:
        try:
            asked = ASKED.decode(text)
            if not is_room:
                raise ConfigError(
                    f"requests were more than {_MOST_AT_ONCE} at once: wait for answers before sending more"
                )
            answer = await self._do(asked)
        except (BlackBoxError, TimeoutError, DecodeError, ValueError) as error:
            answer = error_as_json(error)
        frames = [*envelope, msgspec.json.encode({"number": number_of(text), **answer})]
        async with self._sending:  # one task at a time waits for room
            while True:
                try:
                    await socket.send_multipart(frames, zmq.DONTWAIT)
                except zmq.Again:
                    await asyncio.sleep(_ROOM_S)  # until the peer reads
                except zmq.ZMQError as error:
                    if error.errno != zmq.EHOSTUNREACH:  # the peer has gone
                        raise
                    return
                else:
                    return

    async def _do(self, asked: Asked) -> dict[str, Any]:
        """Run a request, and return the answer. Raises as the client does; TimeoutError."""
        try:
            async with asyncio.timeout(asked.timeout_s):
                return await self._verb(asked)
        except TimeoutError as error:
            if isinstance(error, BlackBoxError) or str(error):
                raise
            if isinstance(asked, Put | Subscribe):
                raise NotStoredError(f"the hub did not answer within {asked.timeout_s:g} s") from None
            what = "no message arrived" if isinstance(asked, Get) else "requests before it were not done"
            raise TimeoutError(f"{what} within {asked.timeout_s:g} s") from None

    async def _verb(self, asked: Asked) -> dict[str, Any]:
        client = self._client
        if isinstance(asked, Put):
            put_id = None if asked.id is None else asked.id.encode()
            topics, value, at = as_topics(asked.topic), asked.value(), asked.expected()
            place = await client.put(topics, value, put_id, ts_event=asked.ts_event, if_at=at, ttl=asked.ttl_s)
            return place_as_json(place)
        if isinstance(asked, Subscribe | Unsubscribe | Get):
            prefix, symbols = asked.prefix, asked.symbols
            chosen = Subscription.chosen(prefix, symbols)
            if not isinstance(asked, Subscribe):
                client.client._durable.chosen(prefix, symbols)  # raises before a lock is made for an unknown one
            async with AsyncExitStack() as stack:
                for each in sorted(chosen):
                    await stack.enter_async_context(self._turns[each])
                if isinstance(asked, Get):
                    return as_object(await client.get(prefix, symbols=symbols), None)
                do = client.subscribe if isinstance(asked, Subscribe) else client.unsubscribe
                await do(prefix, symbols=symbols)
                return {"symbols": symbols} if prefix is None else {"prefix": prefix}
        client.client._durable.take_over()  # each request has its own task
        await client.commit()
        return {}
