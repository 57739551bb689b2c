"""A feed in Redis streams: each message is an entry with its position as id, so it is stored once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from blackbox.block.batch.batch import Batch
from blackbox.block.gap import Gap
from blackbox.block.position import Position
from blackbox.errors import BridgeError, ConfigError
from blackbox.feed.feed import Feed
from blackbox.feed.routing.prefixes import Prefixes
from blackbox.feed.symbol_choice import starts_by_slice
from blackbox.services.bridge.carrier import MOST_AT_ONCE, Carrier, log
from blackbox.services.bridge.redis.connection import IS_BEFORE, connect, errors, redis_url

_ADD: Final = (
    IS_BEFORE
    + """
local last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)
if ARGV[1] ~= '' and (#last == 0 or is_before(last[1][1], ARGV[1])) then
    return redis.error_reply('LOST entries that it had: ' .. ARGV[1] .. ' is not there any more')
end
local known, at = 0, 3
while at <= #ARGV do
    local words = {'XADD', KEYS[1]}
    if ARGV[2] ~= '' then words = {'XADD', KEYS[1], 'MAXLEN', '~', ARGV[2]} end
    for each = 1, tonumber(ARGV[at]) do words[#words + 1] = ARGV[at + each] end
    local done = redis.pcall(unpack(words))
    if type(done) == 'table' and done.err then
        if not string.find(done.err, 'equal or smaller', 1, true) then return done end
        known = known + 1
    end
    at = at + 1 + tonumber(ARGV[at])
end
return known
"""
)
"""Adds entries in order, and stops at the first refused one: a later entry would hide that it is missing."""


class RedisStreams(Carrier):
    """Writes a feed's messages under a prefix to Redis, with a stream per slice: `STREAM:SLICE`.

    An entry has the id `EPOCH-SEQUENCE`, and the fields `topic`, `payload` and `ts_event`; without `payload` the topic
    no longer has a value. An entry with `gap` instead holds the number of messages lost, up to its sequence. Redis
    accepts each id once, so several bridges may run in parallel, and a restarted one continues after the last entry
    with messages from the feed's archives.
    """

    def __init__(
        self,
        feed: Feed,
        url: str,
        prefix: Prefixes = b"",
        *,
        symbols: Iterable[str | bytes] | None = None,
        stream: str | None = None,
        keep: int | None = None,
        ca: str | None = None,
    ) -> None:
        """Store the settings; nothing is opened.

        Args:
            feed: the feed to publish from.
            url: address of Redis, such as redis://127.0.0.1:6379/0.
            prefix: topics to write.
            symbols: only topics of exactly these symbols.
            stream: start of the names of streams. Default: the feed's name.
            keep: approximate number of newest entries that each stream keeps. Default: all.
            ca: with rediss:// a file of certificates for verifying the host. Default: the system's.

        Raises ConfigError.
        """
        address = redis_url(url)
        super().__init__(feed, address.shown, prefix, symbols)
        if keep is not None and keep < 1:
            raise ConfigError(f"keep was {keep}, expected at least 1")
        self._slices = sorted(starts_by_slice(feed, self._topics.starts))
        if feed.key_rule and not self._topics.takes_all:
            # Sequences ascend only for a subscriber to all keys: Redis rejects an entry below the last one.
            self._subscriber.on_batch(b"")(_pass_over)
        self._redis = connect(address, ca)
        self._stream, self._keep = stream or feed.name, keep
        self._script = self._redis.register_script(_ADD)
        self._ids: dict[int, str] = {}
        """Id of the last entry known to be in Redis, by slice."""

    def _open(self) -> dict[int, Position]:
        with errors(self.url, "the bridge"):
            last = {each: self._last(each) for each in self._slices}
        since = {slice_id: position for slice_id, position in last.items() if position is not None}
        if since and not self.feed.archives:
            log.warning("feed %r has no archive: messages since the last entries are not written", self.feed.name)
            return {}
        return since

    def _hang_up(self) -> None:
        self._redis.close()

    def _name(self, slice_id: int) -> str:
        return f"{self._stream}:{slice_id}"

    def _last(self, slice_id: int) -> Position | None:
        """Return the position after the last entry of a slice, and remember that entry; None: there is no entry."""
        found = self._redis.xrevrange(self._name(slice_id), count=1)
        if not found:
            return None
        self._ids[slice_id] = found[0][0].decode()
        epoch, _, sequence = self._ids[slice_id].partition("-")
        return Position(int(epoch), int(sequence) + 1)

    # In the workers, one for each slice.

    def _add(self, batch: Batch) -> None:
        entries: list[list[str | bytes | int]] = []
        for message in batch:
            entry: list[str | bytes | int] = [
                f"{batch.block.epoch}-{message.sequence}",
                "topic",
                message.topic,
                "ts_event",
                message.ts_event,
            ]
            if message.payload is not None:
                entry += "payload", message.payload
            entries.append(entry)
        for first in range(0, len(entries), MOST_AT_ONCE):
            part = entries[first : first + MOST_AT_ONCE]
            known = self._send(batch.block.slice_id, part)
            self._count(added=len(part) - known, known=known)

    def _add_gap(self, gap: Gap) -> None:
        if gap.slice_id not in self._slices:
            return
        if gap.key:  # it is not yet known if more is missing: its sequences may lie among those of other keys
            log.warning("%d messages of key %r of slice %d are missing", gap.count, gap.key, gap.slice_id)
            self._count(missing=gap.count)
        elif self._send(gap.slice_id, [[f"{gap.epoch}-{gap.sequence + gap.count - 1}", "gap", gap.count]]) == 0:
            self._count(missing=gap.count)

    def _send(self, slice_id: int, entries: list[list[str | bytes | int]]) -> int:
        """Add entries, however long Redis is unreachable; return how many existed already.

        Raises BridgeError if Redis refuses, or if an earlier epoch would make new entries look like existing ones.
        """
        name = self._name(slice_id)
        last = self._ids.get(slice_id, "0-0")
        first = str(entries[0][0])
        if _epoch_of(first) < _epoch_of(last):
            raise BridgeError(
                f"{name} has {last}, but {first} arrived: expected no earlier epoch, as ids ascend. Was the "
                f"publisher's clock set back? Use another stream"
            )
        words = [word for entry in entries for word in (len(entry), *entry)]
        known = self._until_taken(lambda: self._try(slice_id, name, words), len(entries))
        self._ids[slice_id] = str(entries[-1][0])
        return known

    def _try(self, slice_id: int, name: str, words: list[str | bytes | int]) -> int:
        with errors(self.url, f"an entry of {name}"):
            return int(self._script([name], [self._ids.get(slice_id, ""), self._keep or "", *words]))


def _pass_over(_: Batch) -> None:
    """Ignore messages that are not carried."""


def _epoch_of(id_: str) -> int:
    return int(id_.partition("-")[0])
