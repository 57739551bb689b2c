"""Publish a feed from a RabbitMQ topic exchange: only topics wanted by subscribers are bound."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any

from blackbox.errors import ConfigError, RightsError
from blackbox.feed.feed import Feed
from blackbox.feed.routing.prefixes import Prefixes
from blackbox.publish.publisher import Publisher
from blackbox.services.bridge.amqp.connection import (
    SOCKET_S,
    Address,
    binding_key,
    content_of,
    gap_of,
    hang_up,
    headers_of,
    is_pending,
    may_bind,
)
from blackbox.services.bridge.inlet import WAIT_S, Inlet, time_of


class AmqpSource(Inlet):
    """Publishes messages of a topic exchange as the feed's publisher, for topics that subscribers want.

    Wanted topics are bound at the broker until no subscriber wants them. A subscriber is confirmed after the binding,
    so it receives everything published at the broker from then on.
    """

    def __init__(
        self,
        feed: Feed,
        url: str,
        prefix: Prefixes = b"",
        *,
        symbols: Iterable[str | bytes] | None = None,
        exchange: str | None = None,
        ca: str | None = None,
    ) -> None:
        """Store the settings; nothing is opened.

        Args:
            feed: the feed to publish.
            url: amqp://USER:PASSWORD@HOST:PORT/VHOST.
            prefix: topics to publish if wanted.
            symbols: only topics of exactly these symbols.
            exchange: its name; created as durable if it does not exist. Default: the feed's name.
            ca: with amqps://, a file of certificates for verifying the host. Default: the system's.

        Raises ConfigError.
        """
        self._address, self.exchange = Address.of(url, ca), exchange or feed.name
        super().__init__(feed, self._address.shown, prefix, symbols)
        self._publisher = Publisher(feed)
        self._changed = threading.Condition()
        self._wanted: Counter[str] = Counter()
        """Number of prefixes that need each binding."""
        self._refused: set[str] = set()
        """Bindings that the broker refuses."""
        self._version = self._bound_version = 0
        self._counts = {"messages published": 0, "unwanted": 0, **self._counts}

    @property
    def bindings(self) -> list[str]:
        """Bindings that exist or are about to be made."""
        with self._changed:
            return sorted(self._wanted)

    def _check(self) -> None:
        hang_up(self._address.connect())

    def _open(self) -> None:
        self._publisher.start()
        self._publisher.on_demand(self._want)

    def _close(self) -> None:
        self._publisher.close()

    def _end(self) -> None:
        super()._end()
        with self._changed:
            self._changed.notify_all()

    def _want(self, prefix: bytes, is_wanted: bool) -> None:
        """Change the bindings, and wait until they are made; then subscribers are confirmed. In its thread."""
        starts = self._topics.starts
        within = [each for each in starts if each[0].startswith(prefix)]
        if not within and any(prefix.startswith(text) and not whole for text, whole in starts):
            within = [(prefix, False)]
        if not within:
            return
        keys = [binding_key(text, whole) for text, whole in within]
        with self._changed:
            for key in keys:
                self._wanted[key] += 1 if is_wanted else -1
                if not self._wanted[key]:
                    del self._wanted[key]
            self._version += 1
            self._pipe.poke()
            version = self._version
            while self._bound_version < version and not self._over.is_set():
                self._changed.wait(WAIT_S)
            if is_wanted and (refused := sorted(self._refused.intersection(keys))):
                raise RightsError(f"{self.url} refused to bind {refused[0]!r} to exchange {self.exchange!r}")

    # In the thread.

    def _serve(self) -> None:
        connection = self._address.connect()
        try:
            with self._address.errors():
                channel = connection.channel()
                channel.auto_decode = False
                channel.exchange_declare(self.exchange, "topic", durable=True, auto_delete=False)
                queue = channel.queue_declare(exclusive=True).queue
                channel.basic_consume(queue, no_ack=True, callback=self._publish)
                bound, version = set[str](), -1
                self._refused.clear()
                while not self._over.is_set():
                    if version != self._version:
                        version, bound = self._bind(connection, queue, bound)
                        self._note_there("messages published there meanwhile are lost")
                    if is_pending(connection) or self._wait_for(connection.sock.fileno()):
                        connection.drain_events(timeout=SOCKET_S)
        finally:
            hang_up(connection)

    def _bind(self, connection: Any, queue: str, bound: set[str]) -> tuple[int, set[str]]:
        """Bind exactly the wanted keys; return them. Keys that the broker refuses are added to `_refused`."""
        with self._changed:
            version, wanted = self._version, set(self._wanted)
        for key in wanted - bound:
            if not may_bind(connection, queue, self.exchange, key):
                self._refused.add(key)
        with connection.channel() as channel:
            for key in bound - wanted - self._refused:
                channel.queue_unbind(queue, self.exchange, key)
        self._refused &= wanted
        with self._changed:
            self._bound_version = version
            self._changed.notify_all()
        return version, wanted

    def _publish(self, message: Any) -> None:
        if count := gap_of(message):
            self._note_missing(count)
            return
        topic, payload = content_of(message)
        if not self._topics.has(topic) or not self._publisher.wants(topic):
            self._counts["unwanted"] += 1  # a binding matches whole words only
            return
        try:
            self._publisher.publish(topic, payload, time_of(headers_of(message).get("ts_event")))
        except ConfigError as error:
            self._refuse(str(error))
        else:
            self._counts["messages published"] += 1
