"""A feed in Redis pub/sub: each message goes to the channel of its topic, with its position. Redis stores nothing."""

from __future__ import annotations

from collections.abc import Iterable

from blackbox.block.batch.batch import Batch
from blackbox.block.gap import Gap
from blackbox.block.position import Position
from blackbox.feed.feed import Feed
from blackbox.feed.routing.prefixes import Prefixes
from blackbox.services.bridge.binary_form import Fields, as_bytes
from blackbox.services.bridge.carrier import GAP_TOPIC, MOST_AT_ONCE, Carrier
from blackbox.services.bridge.redis.connection import connect, errors, redis_url


class RedisChannels(Carrier):
    """Publishes a feed's messages under a prefix, from now on, to the channels of their topics.

    A message is in `binary_form`, which includes its position. Messages whose publishing is interrupted by a broken
    connection are published again, with the same positions.
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
        """Store the settings; nothing is opened.

        Args:
            feed: the feed to publish from.
            url: redis+pubsub://HOST:PORT; all databases of a Redis share their channels.
            prefix: topics to publish.
            symbols: only topics of exactly these symbols.
            ca: with rediss:// a file of certificates for verifying the host. Default: the system's.

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
        with errors(self.url, "a message"), self._redis.pipeline(transaction=True) as pipeline:  # all or nothing
            for topic, data in messages:
                pipeline.publish(topic, data)
            pipeline.execute()
