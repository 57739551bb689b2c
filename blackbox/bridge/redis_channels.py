"""A feed in Redis pub/sub: each message to the channel of its topic, with its place; Redis keeps nothing."""

from __future__ import annotations

from collections.abc import Iterable

from blackbox.block.batch import Batch
from blackbox.block.gap import Gap
from blackbox.block.position import Position
from blackbox.bridge.binary_form import Fields, as_bytes
from blackbox.bridge.carrier import GAP_TOPIC, MOST_AT_ONCE, Carrier
from blackbox.bridge.redis_connection import connect, errors, redis_url
from blackbox.feed.feed import Feed
from blackbox.feed.prefixes import Prefixes


class RedisChannels(Carrier):
    """Publishes what a feed brings under a prefix, from now on, to the channels of its topics.

    A message is in `binary_form`, so its place comes with it. Who is subscribed to Redis gets it; if a connection
    breaks while some are published, those are published again, at the same places.
    """

    def __init__(
        self,
        feed: Feed,
        url: str,
        prefix: Prefixes = b"",
        *,
        symbols: Iterable[str | bytes] | None = None,
        ca: str | None = None,
    ) -> None:
        """Settings; nothing is opened.

        Args:
            feed: what to carry.
            url: redis+pubsub://HOST:PORT; Redis has the same channels in all its databases.
            prefix: of the topics to carry.
            symbols: only topics of exactly these symbols.
            ca: with rediss:// a file of who may certify the host. Default: whom this system trusts.

        Raises ConfigError.
        """
        address = redis_url(url)
        super().__init__(feed, address.shown, prefix, symbols)
        self._redis = connect(address, ca)

    def _open(self) -> dict[int, Position]:
        with errors(self.url, "the bridge"):
            self._redis.ping()
        return {}

    def _hang_up(self) -> None:
        self._redis.close()

    # In the workers, one for each slice.

    def _add(self, batch: Batch) -> None:
        messages = [(message.topic, as_bytes(message)) for message in batch]
        for first in range(0, len(messages), MOST_AT_ONCE):
            self._publish(part := messages[first : first + MOST_AT_ONCE])
            self._count(added=len(part))

    def _add_gap(self, gap: Gap) -> None:
        told = Fields(GAP_TOPIC, b"%d" % gap.count, 0, gap.slice_id, gap.epoch, gap.sequence)
        self._publish([(GAP_TOPIC, told.as_bytes())])
        self._count(missing=gap.count)

    def _publish(self, messages: list[tuple[bytes, bytes]]) -> None:
        self._until_taken(lambda: self._try(messages), len(messages))

    def _try(self, messages: list[tuple[bytes, bytes]]) -> None:
        with errors(self.url, "a message"), self._redis.pipeline(transaction=True) as pipeline:  # all of them, or none
            for topic, data in messages:
                pipeline.publish(topic, data)
            pipeline.execute()
