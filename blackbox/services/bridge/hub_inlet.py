"""Common part of bridges into a hub: a message is released at its source once the hub has stored it."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from typing import Any, Final, NamedTuple

from blackbox.block.position import Place
from blackbox.errors import BridgeError, ConfigError, HubError, NotStoredError, RefusedError
from blackbox.feed.feed import Feed
from blackbox.feed.routing.prefixes import Prefixes
from blackbox.services.bridge.carrier import LAST_S, Away
from blackbox.services.bridge.inlet import Inlet, time_of
from blackbox.services.hub.client.client import HubClient
from blackbox.services.hub.protocol import MOST_ID_BYTES

IN_FLIGHT: Final = 1_000
"""Most messages in flight to the hub."""
_PUT_S: Final = 10.0
_LOOK_S: Final = 0.05


class Put(NamedTuple):
    """One message."""

    name: Any
    """Its name at the source."""
    future: Future[Place] | None = None
    """None: nothing to put."""


class HubInlet(Inlet):
    """Puts messages from a system that stores them to a hub. The source keeps each until the hub has it.

    Each id is stored once, so any of the three processes may be killed at any time.
    """

    def __init__(self, feed: Feed, url: str, prefix: Prefixes, symbols: Iterable[str | bytes] | None) -> None:
        """Store the settings; nothing is opened. Raises ConfigError."""
        super().__init__(feed, url, prefix, symbols)
        self._client = HubClient(feed)
        self._on_their_way: deque[Put] = deque()
        """In order of arrival."""
        self._counts = {"messages put": 0, "unwanted": 0, **self._counts}

    def _open(self) -> None:
        self._client.start()

    def _close(self) -> None:
        self._client.end()

    # In the thread.

    def _put(self, name: Any, topic: bytes, payload: bytes | None, put_id: str | None, ts_event: object) -> bool:
        """Send a put. Return False if no hub can store it. Raises Away if the hub takes too long."""
        if not self._topics.has(topic):
            self._counts["unwanted"] += 1
            self._on_their_way.append(Put(name))
            return True
        try:
            future = self._client.put_soon(topic, payload, _id_of(put_id), ts_event=time_of(ts_event), timeout=_PUT_S)
        except ConfigError as error:
            return self._refuse(str(error))
        except NotStoredError as error:
            raise Away(str(error)) from error
        except HubError as error:
            raise BridgeError(f"the hub accepts no more puts from {self.url}: {error}") from error
        self._on_their_way.append(Put(name, future))
        future.add_done_callback(lambda _: self._pipe.poke())
        return True

    def _stored(self, reject: Callable[[Any], object] = lambda _: None) -> list[Any]:
        """Return the names of messages stored by the hub, each once, up to the first unanswered one.

        Call `reject` with refused ones. Raises BridgeError if the hub accepts no more puts.
        """
        names = list[Any]()
        while self._on_their_way and ((future := self._on_their_way[0].future) is None or future.done()):
            error = None if future is None else future.exception()
            if error is not None and not isinstance(error, RefusedError):  # it is unknown if the hub has it
                if names:
                    break  # return these first; the next call raises
                raise BridgeError(f"the hub accepts no more puts from {self.url}: {error}") from error
            name, _ = self._on_their_way.popleft()
            if error is not None:
                self._refuse(str(error))
                reject(name)
            else:
                self._counts["messages put"] += future is not None
                names.append(name)
        return names

    def _wait_stored(self) -> bool:
        """Wait until the hub has answered everything, however long it is unreachable.

        Only briefly if the bridge is ending.
        """
        ends = None
        for _, future in self._on_their_way:
            while future is not None and not future.done():
                wait([future], _LOOK_S)
                if self._over.is_set():
                    ends = ends or time.monotonic() + LAST_S
                    if time.monotonic() > ends:
                        return False
        return True


def _id_of(text: str | None) -> bytes | None:
    if not text:
        return None
    found = text.encode("utf-8", "surrogatepass")
    return found if len(found) <= MOST_ID_BYTES else hashlib.sha256(found).hexdigest().encode()
