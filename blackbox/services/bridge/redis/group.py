"""From a Redis stream into a hub: a consumer group stores the position."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from blackbox.feed.feed import Feed
from blackbox.feed.routing.prefixes import Prefixes
from blackbox.services.bridge.hub_inlet import IN_FLIGHT, HubInlet
from blackbox.services.bridge.inlet import log
from blackbox.services.bridge.redis.connection import IS_BEFORE, connect, count_of, errors, redis_url

_CONSUMER: Final = "bridge"
_BLOCK_MS: Final = 500
_MOST_DIGITS: Final = 20
"""Digits of a time, with its sign; Python refuses to parse thousands."""
_COUNTS_ENTRIES: Final = 7
"""The first Redis version that counts all entries ever added to a stream."""
_REMOVED: Final = "were removed from the stream before they were stored"

_ABOUT: Final = (
    IS_BEFORE
    + """
local function by_name(list)
    local found = {}
    for at = 1, #list, 2 do found[list[at]] = list[at + 1] end
    return found
end
local function about(key, name)
    for _, each in ipairs(redis.call('XINFO', 'GROUPS', key)) do
        local group = by_name(each)
        if group['name'] == name then return by_name(redis.call('XINFO', 'STREAM', key)), group end
    end
    return redis.error_reply('NOGROUP the consumer group ' .. name .. ' of ' .. key .. ' is not there any more')
end
"""
)
_MAKE: Final = (
    _ABOUT
    + """
local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
if type(made) == 'table' and made.err then
    if string.find(made.err, 'BUSYGROUP', 1, true) then return 0 end
    return made
end
local stream = by_name(redis.call('XINFO', 'STREAM', KEYS[1]))
if stream['entries-added'] then
    local gone = stream['entries-added'] - stream['length']
    redis.call('XGROUP', 'SETID', KEYS[1], ARGV[1], '0', 'ENTRIESREAD', gone)
end
return 1
"""
)
"""Creates a group unless it exists. It begins with the first entry; entries removed earlier do not count."""
_READ: Final = (
    _ABOUT
    + """
local stream, group = about(KEYS[1], ARGV[1])
if stream.err then return stream end
local known, added = tonumber(ARGV[4]) or group['entries-read'], stream['entries-added']
local last = group['last-delivered-id']
local first, missing = stream['first-entry'], 0
if added then
    local at = false
    if not first or is_before(last, first[1]) then at = added - stream['length']
    elseif last == stream['last-generated-id'] then at = added end
    if at then
        if known and at > known then
            missing = at - known
            redis.call('XGROUP', 'SETID', KEYS[1], ARGV[1], last, 'ENTRIESREAD', at)
        end
        known = at
    end
end
local found = redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', ARGV[3], 'STREAMS', KEYS[1], '>')
local entries = found and found[1][2] or {}
if known then known = known + #entries end
return {missing, known or '', last, entries}
"""
)
"""Reads new entries, and counts removed ones by the number of entries ever added, in one step.

Redis' own count of entries read by the group skips removed ones in some versions."""


class RedisGroup(HubInlet):
    """Puts the entries of a stream to the feed's hub, under their ids, and then acknowledges them to Redis.

    So each entry is stored once, whichever process is killed. An entry has the fields `topic`, `payload`, `ts_event`,
    as added by `RedisStreams`. One with `gap` instead is counted; any other without `topic` is refused. Entries removed
    from a bounded stream before they were stored are counted as missing.
    """

    def __init__(
        self,
        feed: Feed,
        url: str,
        prefix: Prefixes = b"",
        *,
        symbols: Iterable[str | bytes] | None = None,
        stream: str | None = None,
        group: str = "blackbox",
        ca: str | None = None,
    ) -> None:
        """Store the settings; nothing is opened.

        Args:
            feed: the feed of the hub.
            url: address of Redis, such as redis://127.0.0.1:6379/0.
            prefix: topics to put; others are acknowledged and counted.
            symbols: only topics of exactly these symbols.
            stream: its name. Default: the feed's.
            group: the consumer group, created if it does not exist; it begins with the first entry.
            ca: with rediss:// a file of certificates for verifying the host. Default: the system's.

        Raises ConfigError.
        """
        address = redis_url(url)
        super().__init__(feed, address.shown, prefix, symbols)
        self._redis = connect(address, ca)
        self._make, self._read = self._redis.register_script(_MAKE), self._redis.register_script(_READ)
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
            self._make([self.stream], [self.group])
            self._note_there("its messages are in the stream")
            if int(self._redis.info("server")["redis_version"].partition(".")[0]) < _COUNTS_ENTRIES:
                log.warning(
                    "%s: Redis before version 7 does not count removed entries, so missing ones are not detected",
                    self.url,
                )
            self._take_begun()
            known: int | str = ""
            while not self._over.is_set():
                missing, known, last, entries = self._read([self.stream], [self.group, _CONSUMER, IN_FLIGHT, known])
                if missing:
                    self._note_missing(missing, _REMOVED)
                if entries:
                    self._put_all([(name, dict(zip(*[iter(fields)] * 2, strict=True))) for name, fields in entries])
                else:
                    self._redis.xread({self.stream: last}, count=1, block=_BLOCK_MS)

    def _take_begun(self) -> None:
        """Process entries that were read before and not acknowledged."""
        since = b"0"
        while not self._over.is_set():
            found = self._redis.xreadgroup(self.group, _CONSUMER, {self.stream: since}, count=IN_FLIGHT)
            entries = found[0][1] if found else []
            if not entries:
                return
            if gone := [name for name, fields in entries if not fields]:
                self._note_missing(len(gone), _REMOVED)
                self._redis.xack(self.stream, self.group, *gone)
            self._put_all([(name, fields) for name, fields in entries if fields])
            since = entries[-1][0]

    def _put_all(self, entries: list[tuple[bytes, dict[bytes, bytes]]]) -> None:
        """Put entries, and acknowledge those stored by the hub."""
        done = [name for name, fields in entries if not self._take(name.decode(), fields)]
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
