"""What bridges into a hub share: a message is let go of where it came from once the hub has it."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from typing import Any, Final, NamedTuple

from blackbox.block.position import Place
from blackbox.bridge.carrier import Away
from blackbox.bridge.inlet import Inlet
from blackbox.errors import BridgeError, ConfigError, HubError, NotStoredError, RefusedError
from blackbox.feed.feed import Feed
from blackbox.feed.prefixes import Prefixes
from blackbox.hub.client import HubClient
from blackbox.hub.protocol import MOST_ID_BYTES

IN_FLIGHT: Final = 1_000
"""Messages that are on their way to the hub at most."""
_PUT_S: Final = 10.0
_LAST_S: Final = 2.0
"""How long the hub may take to answer once the bridge is to end."""
_LOOK_S: Final = 0.05


class Put(NamedTuple):
    """One message."""

    name: Any
    """What names it where it came from."""
    future: Future[Place] | None = None
    """None: it is not to be put."""


class HubInlet(Inlet):
    """Puts to a hub what another system keeps: each message until the hub has it. By its id it is stored once.

    So it does not matter which of the three is killed, and when.
    """

    def __init__(self, feed: Feed, url: str, prefix: Prefixes, symbols: Iterable[str | bytes] | None) -> None:
        """Settings; nothing is opened. Raises ConfigError."""
        super().__init__(feed, url, prefix, symbols)
        self._client = HubClient(feed)
        self._on_their_way: deque[Put] = deque()
        """In the order in which they came."""
        self._counts = {"messages put": 0, "unwanted": 0, **self._counts}

    def _open(self) -> None:
        self._client.start()

    def _close(self) -> None:
        self._client.end()

    # In the thread.

    def _put(self, name: Any, topic: bytes, payload: bytes | None, put_id: str | None, ts_event: object) -> bool:
        """Have a message on its way; False: no hub can have it. Raises Away when the hub takes too long."""
        if not self._topics.has(topic):
            self._counts["unwanted"] += 1
            self._on_their_way.append(Put(name))
            return True
        try:
            future = self._client.put_soon(topic, payload, _id_of(put_id), ts_event=_time_of(ts_event), timeout=_PUT_S)
        except ConfigError as error:
            return self._refuse(str(error))
        except NotStoredError as error:
            raise Away(str(error)) from error
        except HubError as error:
            raise BridgeError(f"the hub takes nothing more of {self.url}: {error}") from error
        self._on_their_way.append(Put(name, future))
        future.add_done_callback(lambda _: self._pipe.poke())
        return True

    def _stored(self, reject: Callable[[Any], object] = lambda _: None) -> list[Any]:
        """Return what names those that the hub has, and all before them; once. What it refuses `reject` gets.

        Raises BridgeError when the hub takes nothing more.
        """
        names = list[Any]()
        while self._on_their_way and ((future := self._on_their_way[0].future) is None or future.done()):
            error = None if future is None else future.exception()
            if error is not None and not isinstance(error, RefusedError):  # nobody knows whether the hub has it
                if names:
                    break  # first let go of those; the next call raises
                raise BridgeError(f"the hub takes nothing more of {self.url}: {error}") from error
            name, _ = self._on_their_way.popleft()
            if error is not None:
                self._refuse(str(error))
                reject(name)
            else:
                self._counts["messages put"] += future is not None
                names.append(name)
        return names

    def _wait_stored(self) -> bool:
        """Wait until the hub has answered all, however long it is away; while the bridge ends only a little."""
        ends = None
        for _, future in self._on_their_way:
            while future is not None and not future.done():
                wait([future], _LOOK_S)
                if self._over.is_set():
                    ends = ends or time.monotonic() + _LAST_S
                    if time.monotonic() > ends:
                        return False
        return True


def _id_of(text: str | None) -> bytes | None:
    if not text:
        return None
    found = text.encode("utf-8", "surrogatepass")
    return found if len(found) <= MOST_ID_BYTES else hashlib.sha256(found).hexdigest().encode()


def _time_of(ts_event: object) -> int:
    return ts_event if type(ts_event) is int and -(1 << 63) <= ts_event < 1 << 63 else 0
