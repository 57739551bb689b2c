"""A Redis stream into a hub: a consumer group keeps how far the hub has it."""

from __future__ import annotations

from typing import Final

from blackbox.bridge.hub_inlet import IN_FLIGHT, HubInlet
from blackbox.bridge.redis_connection import connect, count_of, errors, make_group
from blackbox.feed.feed import Feed

_CONSUMER: Final = "bridge"
_BLOCK_MS: Final = 500
_BEGUN: Final = "0"
"""What was read before, and not acknowledged."""
_NEW: Final = ">"
_MOST_DIGITS: Final = 20
"""Of a time, with its sign; Python refuses to read thousands."""


class RedisGroup(HubInlet):
    """Puts to the feed's hub what a stream has, each entry under its id, and then acknowledges it to Redis.

    So each entry is stored once, whoever is killed. An entry has the fields `topic`, `payload`, `ts_event`, as
    `RedisStreams` adds them; one with `gap` in their place is counted, another one without `topic` is refused.
    """

    def __init__(
        self, feed: Feed, url: str, prefix: bytes = b"", *, stream: str | None = None, group: str = "blackbox"
    ) -> None:
        """Settings; nothing is opened.

        Args:
            feed: of the hub.
            url: where Redis is, such as redis://127.0.0.1:6379/0.
            prefix: of the topics to take; others are acknowledged, and counted.
            stream: its name. Default: the feed's.
            group: the consumer group, which is made unless it is there; it begins with the first entry.

        Raises ConfigError.
        """
        super().__init__(feed, url, prefix)
        self._redis = connect(url)
        self.stream, self.group = stream or feed.name, group

    def _check(self) -> None:
        with errors(self.url, "the bridge"):
            self._redis.ping()

    def _close(self) -> None:
        super()._close()
        self._redis.close()

    # In the thread.

    def _serve(self) -> None:
        self._on_their_way.clear()
        with errors(self.url, "the bridge"):
            make_group(self._redis, self.stream, self.group)
            self._note_there("what the stream has comes")
            since = _BEGUN
            while not self._over.is_set():
                found = self._redis.xreadgroup(
                    self.group, _CONSUMER, {self.stream: since}, count=IN_FLIGHT, block=_BLOCK_MS
                )
                entries = found[0][1] if found else []
                if not entries:
                    since = _NEW
                done = [name for name, fields in entries if not self._take(name.decode(), fields or {})]
                self._wait_stored()
                done += self._stored(done.append)
                if done:
                    self._redis.xack(self.stream, self.group, *done)

    def _take(self, name: str, fields: dict[bytes, bytes]) -> bool:
        topic, time_ns = fields.get(b"topic"), fields.get(b"ts_event", b"")
        if topic is None and b"gap" in fields:
            self._note_missing(count_of(fields[b"gap"]))
            return False
        if topic is None:
            return self._refuse(f"entry {name} of {self.stream} had the fields {sorted(fields)}, expected topic")
        is_number = len(time_ns) <= _MOST_DIGITS and time_ns.removeprefix(b"-").isdigit()
        return self._put(name, topic, fields.get(b"payload"), f"{self.stream}:{name}", int(time_ns) if is_number else 0)
