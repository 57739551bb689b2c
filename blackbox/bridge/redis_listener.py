"""Redis pub/sub into a hub: what is published while the bridge is subscribed, so each message once at most."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Final

from blackbox.bridge import redis_connection
from blackbox.bridge.binary_form import Fields
from blackbox.bridge.carrier import GAP_TOPIC, Away
from blackbox.bridge.hub_inlet import IN_FLIGHT, HubInlet
from blackbox.bridge.inlet import log
from blackbox.bridge.redis_connection import connect, count_of, errors, redis_url
from blackbox.errors import ConfigError
from blackbox.feed.feed import Feed
from blackbox.feed.prefixes import Prefixes

_WAIT_S: Final = 0.5
_ROOM_S: Final = 0.005
_GLOB: Final = re.compile(rb"[\\*?\[\]]")


class RedisListener(HubInlet):
    """Puts to the feed's hub what is published to channels that start with a prefix.

    Redis keeps nothing: what is published while the bridge is not subscribed is not carried, which the log and the
    counts tell. What `RedisChannels` publishes is put under its place as its id, so several bridges beside each other
    store it once, and what one of them misses the other one has.
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
        """Settings; nothing is opened.

        Args:
            feed: of the hub.
            url: redis+pubsub://HOST:PORT; Redis has the same channels in all its databases.
            prefix: of the channels to subscribe to, and of the topics to take.
            symbols: only topics of exactly these symbols.
            raw: 1: what comes is the payload, its channel the topic. Default: as `RedisChannels` publishes it.
            ca: with rediss:// a file of who may certify the host. Default: whom this system trusts.

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
                if len(self._on_their_way) >= IN_FLIGHT:  # Redis holds up what comes, and cuts us off if it is too much
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
                            raise Away("the connection was made anew")
                        if subscribed == len(starts):
                            self._note_there("what was published there meanwhile is not carried")
                elif is_asked and time.monotonic() > heard + 2 * redis_connection.SOCKET_S:
                    raise Away(f"it did not answer for {2 * redis_connection.SOCKET_S:g} s")
                elif not is_asked and time.monotonic() > heard + redis_connection.SOCKET_S:
                    listener.ping()
                    is_asked = True
        self._wait_stored()
        self._stored()
        if left := len(self._on_their_way):
            log.warning("%s: %d messages were on their way to the hub at the end, which may lack them", self.url, left)

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
