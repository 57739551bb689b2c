"""From a RabbitMQ queue into a hub: each message stays in the queue until the hub has stored it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from blackbox.errors import BridgeError, ConfigError
from blackbox.feed.feed import Feed
from blackbox.feed.routing.prefixes import Prefixes
from blackbox.services.bridge.amqp.connection import (
    SOCKET_S,
    UNANSWERED,
    Address,
    binding_key,
    content_of,
    gap_of,
    hang_up,
    has_queue,
    headers_of,
    is_pending,
)
from blackbox.services.bridge.amqp.source import AmqpSource
from blackbox.services.bridge.carrier import GAP_TOPIC, Away
from blackbox.services.bridge.hub_inlet import IN_FLIGHT, HubInlet, Put


class AmqpQueue(HubInlet):
    """Puts a queue's messages to the feed's hub, under their message ids, and then acknowledges them.

    A message with an id is stored once, whichever process is killed; without an id it may then be stored again. A
    message that no hub can store is rejected, and goes to the queue's dead-letter exchange if it has one.
    """

    def __init__(
        self,
        feed: Feed,
        url: str,
        prefix: Prefixes = b"",
        *,
        symbols: Iterable[str | bytes] | None = None,
        queue: str | None = None,
        exchange: str | None = None,
        ca: str | None = None,
    ) -> None:
        """Store the settings; nothing is opened.

        Args:
            feed: the feed of the hub.
            url: amqp://USER:PASSWORD@HOST:PORT/VHOST.
            prefix: topics to put; others are acknowledged and counted.
            symbols: only topics of exactly these symbols.
            queue: its name; created as durable if it does not exist. Default: the feed's name.
            exchange: bind the queue to this topic exchange by the prefix. Default: keep its bindings.
            ca: with amqps://, a file of certificates for verifying the host. Default: the system's.

        Raises ConfigError.
        """
        self._address = Address.of(url, ca)
        super().__init__(feed, self._address.shown, prefix, symbols)
        self.queue, self.exchange = queue or feed.name, exchange
        self._takes = False
        """True until the connection is being closed: messages that arrive after that stay in the queue."""

    def _check(self) -> None:
        connection = self._address.connect()
        try:
            with self._address.errors():
                self._declare(connection)
        finally:
            hang_up(connection)

    # In the thread.

    def _serve(self) -> None:
        self._on_their_way.clear()  # unanswered messages are delivered again, with the same ids
        connection = self._address.connect()
        try:
            with self._address.errors():
                channel = self._declare(connection)
                channel.basic_qos(0, IN_FLIGHT, False)
                self._takes = True
                channel.basic_consume(self.queue, callback=self._take)
                self._note_there("its messages are in the queue")
                while not self._over.is_set():
                    if is_pending(connection) or self._wait_for(connection.sock.fileno()):
                        self._drain(connection)
                    self._let_go(channel)
                self._wait_stored()
                self._let_go(channel)
        finally:
            self._takes = False
            hang_up(connection)

    def _drain(self, connection: Any) -> None:
        try:
            connection.drain_events(timeout=SOCKET_S)
        except UNANSWERED as error:  # the hub was unreachable for longer than the broker waits for an acknowledgement
            raise Away(str(error)) from error
        except UnicodeDecodeError as error:  # it would be redelivered again and again
            raise BridgeError(
                f"queue {self.queue!r} of {self.url} has a message whose routing key or properties are not UTF-8, "
                f"expected text: remove it ({error})"
            ) from error

    def _declare(self, connection: Any) -> Any:
        """Return a channel once the queue exists, with any settings."""
        channel = connection.channel()
        if not has_queue(connection, self.queue):
            channel.queue_declare(self.queue, durable=True, auto_delete=False)
        channel.auto_decode = False
        if self.exchange is not None:
            channel.exchange_declare(self.exchange, "topic", durable=True, auto_delete=False)
            for key in (*(binding_key(text, whole) for text, whole in self._topics.starts), GAP_TOPIC.decode()):
                channel.queue_bind(self.queue, self.exchange, key)
        return channel

    def _take(self, message: Any) -> None:
        if not self._takes:
            return
        topic, payload = content_of(message)
        tag, put_id = message.delivery_info["delivery_tag"], message.properties.get("message_id")
        if count := gap_of(message):
            self._note_missing(count)
            self._on_their_way.append(Put(tag))
        elif not self._put(tag, topic, payload, put_id, headers_of(message).get("ts_event")):
            message.channel.basic_reject(tag, requeue=False)

    def _let_go(self, channel: Any) -> None:
        if stored := self._stored(partial(channel.basic_reject, requeue=False)):
            channel.basic_ack(stored[-1], multiple=True)


def amqp_inlet(
    feed: Feed,
    url: str,
    prefix: Prefixes = b"",
    *,
    symbols: Iterable[str | bytes] | None = None,
    exchange: str | None = None,
    queue: str | None = None,
    ca: str | None = None,
) -> AmqpQueue | AmqpSource:
    """Return a bridge into the feed's hub if it has one, else a publisher of the feed. Raises ConfigError."""
    if feed.hub:
        return AmqpQueue(feed, url, prefix, symbols=symbols, queue=queue, exchange=exchange, ca=ca)
    if queue is not None:
        raise ConfigError(f"option was queue={queue}, expected none: feed {feed.name!r} has no hub to put to")
    return AmqpSource(feed, url, prefix, symbols=symbols, exchange=exchange, ca=ca)
