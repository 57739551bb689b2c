"""From Redis pub/sub into a hub: messages published while the bridge is subscribed, each at most once."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Final

from blackbox.errors import ConfigError
from blackbox.feed.feed import Feed
from blackbox.feed.routing.prefixes import Prefixes
from blackbox.services.bridge.binary_form import Fields
from blackbox.services.bridge.carrier import GAP_TOPIC, Away
from blackbox.services.bridge.hub_inlet import IN_FLIGHT, HubInlet
from blackbox.services.bridge.inlet import log
from blackbox.services.bridge.redis import connection as redis_connection
from blackbox.services.bridge.redis.connection import connect, count_of, errors, redis_url

_WAIT_S: Final = 0.5
_ROOM_S: Final = 0.005
_GLOB: Final = re.compile(rb"[\\*?\[\]]")


class RedisListener(HubInlet):
    """Puts messages published to channels with a prefix to the feed's hub.

    Redis stores nothing: messages published while the bridge is not subscribed are lost, which is logged and counted.
    Messages of `RedisChannels` are put with their position as id. Several bridges in parallel therefore store each
    once, and fill in for each other.
    """

    def __init__(
        self,
        feed: Feed,
        url: str,
        prefix: Prefixes = b"",
        *,
        symbols: Iterable[str | bytes] | None = None,
        raw: int = 0,
        ca: str | None = None,
    ) -> None:
        """Store the settings; nothing is opened.

        Args:
            feed: the feed of the hub.
            url: redis+pubsub://HOST:PORT; all databases of a Redis share their channels.
            prefix: channels to subscribe to, and topics to put.
            symbols: only topics of exactly these symbols.
            raw: 1: the message is the payload, its channel the topic. Default: the form of `RedisChannels`.
            ca: with rediss:// a file of certificates for verifying the host. Default: the system's.

        Raises ConfigError.
        """
        address = redis_url(url)
        super().__init__(feed, address.shown, prefix, symbols)
        if raw not in (0, 1):
            raise ConfigError(f"raw was {raw!r}, expected 0 or 1")
        self._redis, self._raw = connect(address, ca), raw

    def _check(self) -> None:
        with errors(self.url, "the bridge"):
            self._redis.ping()

    def _close(self) -> None:
        super()._close()
        self._redis.close()

    # In the thread.

    def _serve(self) -> None:
        with errors(self.url, "the bridge"), self._redis.pubsub() as listener:
            starts = self._topics.starts
            listener.psubscribe(*(_GLOB.sub(rb"\\\g<0>", text) + (b"" if whole else b"*") for text, whole in starts))
            if not self._raw and not any(GAP_TOPIC.startswith(text) and not whole for text, whole in starts):
                listener.subscribe(GAP_TOPIC)
            heard, is_asked, subscribed = time.monotonic(), False, 0
            while not self._over.is_set():
                self._stored()
                if len(self._on_their_way) >= IN_FLIGHT:  # Redis drops slow readers
                    self._wait_for_room()
                    heard = time.monotonic()
                found = listener.get_message(timeout=_WAIT_S)
                if found is not None:
                    heard, is_asked = time.monotonic(), False
                    if found["type"] in ("pmessage", "message"):
                        self._take(found["channel"], found["data"])
                    elif found["type"] == "psubscribe":
                        subscribed += 1
                        if subscribed > len(starts):
                            raise Away("the connection was replaced")
                        if subscribed == len(starts):
                            self._note_there("messages published there meanwhile are lost")
                elif is_asked and time.monotonic() > heard + 2 * redis_connection.SOCKET_S:
                    raise Away(f"it did not answer for {2 * redis_connection.SOCKET_S:g} s")
                elif not is_asked and time.monotonic() > heard + redis_connection.SOCKET_S:
                    listener.ping()
                    is_asked = True
        self._wait_stored()
        self._stored()
        if left := len(self._on_their_way):
            log.warning("%s: %d messages were in flight to the hub at the end and may be lost", self.url, left)

    def _wait_for_room(self) -> None:
        while len(self._on_their_way) >= IN_FLIGHT and not self._over.wait(_ROOM_S):
            self._stored()

    def _take(self, channel: bytes, data: bytes) -> None:
        if self._raw:
            self._put(None, channel, data, None, 0)
            return
        try:
            fields = Fields.of(data)
        except ValueError as error:
            self._refuse(f"channel {channel!r}: {error}")
            return
        if fields.topic == GAP_TOPIC:
            self._note_missing(count_of(fields.payload))
            return
        put_id = f"{fields.slice_id}:{fields.epoch}:{fields.sequence}"
        self._put(None, fields.topic, fields.payload, put_id, fields.ts_event)
