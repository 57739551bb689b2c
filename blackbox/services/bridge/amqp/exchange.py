"""A feed in a RabbitMQ topic exchange: each message under its topic, at least once, with position headers."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable
from typing import Any, Final, Self

from blackbox.arguments import Duration, seconds
from blackbox.block.batch.batch import Batch
from blackbox.block.gap import Gap
from blackbox.block.position import Position
from blackbox.errors import BridgeError, ConfigError, SubscriberError
from blackbox.feed.feed import Feed
from blackbox.feed.routing.prefixes import Prefixes
from blackbox.receive.supervise.supervisor import SubscriberLife
from blackbox.services.bridge.amqp.connection import SOCKET_S, Address, hang_up, message_of, routing_key
from blackbox.services.bridge.carrier import GAP_TOPIC, MOST_AT_ONCE, Away, Carrier

_CHECKPOINT_S: Final = 1.0
_PATIENCE_S: Final = 1.0
_PAUSE_S: Final = 0.05
_PERSISTENT: Final = 2


_Routed = tuple[str, Any]
"""A routing key and a message."""


class AmqpExchange(Carrier):
    """Publishes a feed's messages under a prefix to a topic exchange, confirmed by the broker.

    The routing key is the topic. Headers have `slice`, `epoch`, `sequence` and `ts_event`; the message id is
    `FEED:SLICE:EPOCH:SEQUENCE`. Two messages with the same id are duplicates. With a name it continues after a restart
    from the last saved confirmation; after a kill, up to a second of messages is repeated.
    """

    def __init__(
        self,
        feed: Feed,
        url: str,
        prefix: Prefixes = b"",
        *,
        symbols: Iterable[str | bytes] | None = None,
        exchange: str | None = None,
        transient: int = 0,
        name: str | None = None,
        positions: str | os.PathLike[str] | None = None,
        ca: str | None = None,
    ) -> None:
        """Store the settings; nothing is opened.

        Args:
            feed: the feed to publish from.
            url: amqp://USER:PASSWORD@HOST:PORT/VHOST.
            prefix: topics to publish.
            symbols: only topics of exactly these symbols.
            exchange: its name; created as durable if it does not exist. Default: the feed's name.
            transient: 1: queues need not keep messages over a restart of the broker.
            name: name of the bridge, under which it continues, with messages from the feed's archives.
            positions: the directory for saved positions.
            ca: with amqps://, a file of certificates for verifying the host. Default: the system's.

        Raises ConfigError.
        """
        self._address = Address.of(url, ca)
        interval = _CHECKPOINT_S if name else None
        super().__init__(
            feed, self._address.shown, prefix, symbols, name=name, positions=positions, checkpoint_interval=interval
        )
        self.exchange = exchange or feed.name
        if transient not in (0, 1):
            raise ConfigError(f"transient was {transient!r}, expected 0 or 1")
        self._mode = 1 if transient else _PERSISTENT
        self._keeps = name is not None
        self._lines: dict[int, _Line] = {}
        """Connection of each slice; used by its worker."""

    def start(self, timeout: Duration | None = None) -> Self:
        """Start as `Carrier.start`.

        With a name, the position to continue from is saved by then, even in case of a kill.
        """
        timeout = seconds("timeout", timeout)
        super().start(timeout)
        until = math.inf if timeout is None else time.monotonic() + timeout
        while self._keeps:
            try:
                with self._subscriber.checkpoint(_PATIENCE_S):
                    return self
            except (SubscriberError, TimeoutError) as error:  # no heartbeat of some slice has arrived yet
                if time.monotonic() >= until or self._subscriber.state is not SubscriberLife.RUNNING:
                    raise BridgeError(f"the start position could not be saved: {error}") from error
            time.sleep(_PAUSE_S)
        return self

    def _open(self) -> dict[int, Position]:
        _Line(self._address, self.exchange).close()
        return {}

    def _hang_up(self) -> None:
        for line in self._lines.values():
            line.close()
        self._lines.clear()

    # In the workers, one for each slice.

    def _add(self, batch: Batch) -> None:
        slice_id, epoch = batch.block.slice_id, batch.block.epoch
        messages = [
            (
                routing_key(message.topic),
                message_of(
                    message.topic, message.payload, **self._place(slice_id, epoch, message.sequence, message.ts_event)
                ),
            )
            for message in batch
        ]
        for first in range(0, len(messages), MOST_AT_ONCE):
            self._send(slice_id, part := messages[first : first + MOST_AT_ONCE])
            self._count(added=len(part))

    def _add_gap(self, gap: Gap) -> None:
        place = self._place(gap.slice_id, gap.epoch, gap.sequence, 0, gap=gap.count)
        if gap.key:  # several keys may have gaps from the same sequence on
            place["message_id"] += f":{gap.key.hex()}"
        told = message_of(GAP_TOPIC, b"", **place)
        self._send(gap.slice_id, [(GAP_TOPIC.decode(), told)])
        self._count(missing=gap.count)

    def _place(self, slice_id: int, epoch: int, sequence: int, ts_event: int, **more: object) -> dict[str, Any]:
        """Return the properties with a message's position in the feed."""
        return {
            "headers": {"slice": slice_id, "epoch": epoch, "sequence": sequence, "ts_event": ts_event, **more},
            "message_id": f"{self.feed.name}:{slice_id}:{epoch}:{sequence}",
            "delivery_mode": self._mode,
        }

    def _send(self, slice_id: int, messages: list[_Routed]) -> None:
        left = messages

        def send_left() -> None:
            nonlocal left
            left = self._try(slice_id, left)
            if left:
                raise Away(f"{len(left)} messages were refused, perhaps by a full queue")

        self._until_taken(send_left, len(messages))

    def _try(self, slice_id: int, messages: list[_Routed]) -> list[_Routed]:
        """Return the refused messages; a queue may never have room for all of them at once."""
        if slice_id not in self._lines:
            self._lines[slice_id] = _Line(self._address, self.exchange)
        try:
            return self._lines[slice_id].publish(messages)
        except BaseException:  # messages in flight are in an unknown state: reconnect
            self._lines.pop(slice_id).drop()
            raise


class _Line:
    """One connection with publisher confirms. Raises Away, BridgeError."""

    def __init__(self, address: Address, exchange: str) -> None:
        self._address, self._exchange = address, exchange
        self._published = 0
        self._unconfirmed: dict[int, _Routed] = {}
        self._refused: list[_Routed] = []
        self._connection = address.connect()
        try:
            self._open()
        except BaseException:
            self.drop()
            raise

    def _open(self) -> None:
        with self._address.errors():
            self._channel = self._connection.channel()
            self._channel.confirm_select()
            self._channel.events["basic_ack"].add(self._confirm)
            self._channel.events["basic_nack"].add(self._refuse)
            self._channel.exchange_declare(self._exchange, "topic", durable=True, auto_delete=False)

    def publish(self, messages: list[_Routed]) -> list[_Routed]:
        """Publish, wait until the broker has answered for all, and return the refused ones."""
        self._refused = []
        with self._address.errors():
            for routed in messages:
                self._published += 1
                self._unconfirmed[self._published] = routed
                key, message = routed
                self._channel.basic_publish(message, self._exchange, key, timeout=SOCKET_S)
            while self._unconfirmed:
                self._connection.drain_events(timeout=SOCKET_S)
        return self._refused

    def _confirm(self, last: int, multiple: bool) -> list[_Routed]:
        settled = [each for each in self._unconfirmed if each <= last] if multiple else [last]
        return [self._unconfirmed.pop(each) for each in settled if each in self._unconfirmed]

    def _refuse(self, last: int, multiple: bool) -> None:
        self._refused += self._confirm(last, multiple)

    def close(self) -> None:
        """Close it gracefully."""
        hang_up(self._connection)

    def drop(self) -> None:
        """Close it without a handshake."""
        self._connection.collect()
