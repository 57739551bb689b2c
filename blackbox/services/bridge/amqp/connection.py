"""Connections to RabbitMQ or another AMQP 0-9-1 broker, and topic names there."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

from blackbox.errors import BridgeError, ConfigError
from blackbox.services.bridge.carrier import GAP_TOPIC, Away
from blackbox.services.bridge.tls import check_certificates, is_untrusted
from blackbox.services.bridge.url import Url
from blackbox.transport.security.hidden import hides

try:
    from amqp import (
        AccessRefused,
        AMQPError,
        Connection,
        Message,
        NotFound,
        PreconditionFailed,
        RecoverableConnectionError,
    )
except ImportError as error:
    raise ImportError(f"this needs amqp: pip install 'blackbox-md[bridge]' ({error})") from error

SOCKET_S: Final = 5.0
"""Time to wait for an answer before the broker counts as unreachable."""
UNANSWERED: Final = PreconditionFailed
"""Reply code of a broker to a client that has not acknowledged a message for too long."""
_SETTINGS: Final = {socket.TCP_USER_TIMEOUT: int(1_000 * SOCKET_S)} if hasattr(socket, "TCP_USER_TIMEOUT") else {}
"""Settings of the TCP socket. The library's own limit of 1 s ends connections at a short stall of the network."""
_PORTS: Final = {"amqp": 5672, "amqps": 5671}
_EXPECTED: Final = "amqp://USER:PASSWORD@HOST:PORT/VHOST, a / in VHOST as %2F"
_MOST_KEY_BYTES: Final = 255
_TOPIC: Final = "topic"
_NO_VALUE: Final = "no_value"


@hides("password")
class Address(NamedTuple):
    """Address and credentials of a RabbitMQ."""

    host: str
    user: str
    password: str
    vhost: str
    shown: str
    """The URL, without the password."""
    tls: dict[str, Any] | None
    """TLS settings for verifying the host; None: unencrypted."""

    @classmethod
    def of(cls, url: str, ca: str | None = None) -> Address:
        """Parse a URL. `ca`: a file of certificates for verifying the host. Raises ConfigError."""
        found = Url.of(url, _EXPECTED)
        if found.scheme not in _PORTS or found.port == 0 or "/" in found.shown.partition("://")[2].partition("/")[2]:
            raise ConfigError(f"URL was {found.shown!r}, expected {_EXPECTED}")
        host = f"[{found.host}]" if ":" in found.host else found.host
        return cls(
            f"{host}:{found.port or _PORTS[found.scheme]}",
            found.user or "guest",
            found.password or "guest",
            found.path or "/",
            found.shown,
            _tls_of(found.scheme, found.host, ca),
        )

    def connect(self) -> Connection:
        """Return a connection, to be used by one thread. Raises Away, BridgeError."""
        connection = Connection(
            self.host,
            self.user,
            self.password,
            virtual_host=self.vhost,
            ssl=self.tls or False,
            connect_timeout=SOCKET_S,
            read_timeout=SOCKET_S,
            write_timeout=SOCKET_S,
            socket_settings=_SETTINGS,
        )
        try:
            with self.errors():
                connection.connect()
        except BaseException:
            connection.collect()
            raise
        return connection

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise Away for errors that a retry may fix, BridgeError for others."""
        try:
            yield
        except ssl.SSLError as error:
            if is_untrusted(error):
                raise BridgeError(f"{self.shown} was not trusted: {error}") from error
            raise Away(str(error)) from error
        except (RecoverableConnectionError, OSError, UnicodeDecodeError) as error:  # the last: a key in bytes
            raise Away(str(error) or type(error).__name__) from error
        except AMQPError as error:
            raise BridgeError(f"{self.shown} refused: {error}") from error


def _tls_of(scheme: str, host: str, ca: str | None) -> dict[str, Any] | None:
    check_certificates(scheme, ca, is_encrypted=scheme == "amqps")
    return None if scheme == "amqp" else {"server_hostname": host, "context": {"check_hostname": True, "cafile": ca}}


def is_pending(connection: Connection) -> bool:
    """Return True if decrypted input waits in the connection, where polling the socket cannot show it."""
    return isinstance(connection.sock, ssl.SSLSocket) and connection.sock.pending() > 0


def hang_up(connection: Connection) -> None:
    """Close a connection, gracefully if the broker answers. Until it does, callbacks get further messages."""
    try:
        with suppress(AMQPError, OSError, UnicodeDecodeError):  # the last: of a further message
            connection.close()
    finally:
        connection.collect()


def has_queue(connection: Connection, queue: str) -> bool:
    """Return True if a queue exists, whatever its settings."""
    try:
        connection.channel().queue_declare(queue, passive=True)
    except NotFound:  # which has closed the channel
        return False
    return True


def may_bind(connection: Connection, queue: str, exchange: str, key: str) -> bool:
    """Bind a queue. Return False if the broker refuses."""
    channel = connection.channel()
    try:
        channel.queue_bind(queue, exchange, key)
    except AccessRefused:  # which has closed the channel
        return False
    channel.close()
    return True


def message_of(topic: bytes, payload: bytes | None, headers: dict[str, object], **properties: object) -> Message:
    """Return a message; its headers hold the topic if a routing key cannot: see `routing_key`."""
    if routing_key(topic).encode() != topic:
        headers[_TOPIC] = topic
    if payload is None:
        headers[_NO_VALUE] = True
    return Message(payload or b"", application_headers=headers, **properties)


def content_of(message: Message) -> tuple[bytes, bytes | None]:
    """Return the topic and the payload of a received message."""
    headers = headers_of(message)
    topic = headers.get(_TOPIC, message.delivery_info["routing_key"])
    payload = None if headers.get(_NO_VALUE) else bytes(message.body or b"")
    return (topic if isinstance(topic, bytes) else str(topic).encode("utf-8", "surrogatepass")), payload


def gap_of(message: Message) -> int:
    """Return the number of lost messages that a received message reports; 0: an ordinary message."""
    count = headers_of(message).get("gap")
    return count if type(count) is int and count > 0 and content_of(message)[0] == GAP_TOPIC else 0


def headers_of(message: Message) -> dict[str, Any]:
    """Return the headers of a received message."""
    headers: dict[str, Any] = message.properties.get("application_headers", {})
    return headers


def routing_key(topic: bytes) -> str:
    """Return a topic as a routing key: at most 255 bytes of text."""
    text = topic.decode(errors="replace").encode()
    return text[:_MOST_KEY_BYTES].decode(errors="ignore")


def binding_key(start: bytes, whole: bool = False) -> str:
    """Return the narrowest binding that matches all topics with this start; bindings consist of whole words.

    `whole`: only the topic `start`.
    """
    words = start.decode(errors="replace").split(".")[: None if whole else -1]
    while len(".".join(words).encode()) > _MOST_KEY_BYTES - len(".#"):
        words.pop()
    return ".".join([*words, "#"])
