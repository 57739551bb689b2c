"""Connections to a RabbitMQ, or another broker of AMQP 0-9-1, and how topics of a feed are named there."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

from blackbox.bridge.carrier import GAP_TOPIC, Away
from blackbox.bridge.tls import check_certificates, is_untrusted
from blackbox.bridge.url import Url
from blackbox.errors import BridgeError, ConfigError

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
"""How long an answer is waited for before it counts as away."""
UNANSWERED: Final = PreconditionFailed
"""What a broker says to who has a message for too long."""
_PORTS: Final = {"amqp": 5672, "amqps": 5671}
_EXPECTED: Final = "amqp://USER:PASSWORD@HOST:PORT/VHOST, a / in VHOST as %2F"
_MOST_KEY_BYTES: Final = 255
_TOPIC: Final = "topic"
_NO_VALUE: Final = "no_value"


class Address(NamedTuple):
    """Where a RabbitMQ is, and who we are there."""

    host: str
    user: str
    password: str
    vhost: str
    shown: str
    """The URL, without the password."""
    tls: dict[str, Any] | None
    """How the library is to see that it is that host; None: it is not encrypted."""

    @classmethod
    def of(cls, url: str, ca: str | None = None) -> Address:
        """Return what an URL says; `ca`: a file of who may certify the host. Raises ConfigError."""
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
        """Return a connection, of the thread that uses it. Raises Away, BridgeError."""
        connection = Connection(
            self.host,
            self.user,
            self.password,
            virtual_host=self.vhost,
            ssl=self.tls or False,
            connect_timeout=SOCKET_S,
            read_timeout=SOCKET_S,
            write_timeout=SOCKET_S,
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
        """Raise Away for what a later try may mend, BridgeError for what none does."""
        try:
            yield
        except ssl.SSLError as error:
            if is_untrusted(error):
                raise BridgeError(f"{self.shown} was not trusted: {error}") from error
            raise Away(str(error)) from error
        except (RecoverableConnectionError, OSError, UnicodeDecodeError) as error:  # a key that is no text, too
            raise Away(str(error) or type(error).__name__) from error
        except AMQPError as error:
            raise BridgeError(f"{self.shown} refused: {error}") from error


def _tls_of(scheme: str, host: str, ca: str | None) -> dict[str, Any] | None:
    check_certificates(scheme, ca, is_encrypted=scheme == "amqps")
    return None if scheme == "amqp" else {"server_hostname": host, "context": {"check_hostname": True, "cafile": ca}}


def is_pending(connection: Connection) -> bool:
    """Return whether something has come that no longer shows at the socket, as it is decrypted."""
    return isinstance(connection.sock, ssl.SSLSocket) and connection.sock.pending() > 0


def hang_up(connection: Connection) -> None:
    """End a connection, in order if the other side is there."""
    with suppress(AMQPError, OSError):
        connection.close()
    connection.collect()


def has_queue(connection: Connection, queue: str) -> bool:
    """Return whether a queue is there, whatever its settings are."""
    try:
        connection.channel().queue_declare(queue, passive=True)
    except NotFound:  # which has ended that channel
        return False
    return True


def may_bind(connection: Connection, queue: str, exchange: str, key: str) -> bool:
    """Bind a queue; return whether the broker lets us."""
    channel = connection.channel()
    try:
        channel.queue_bind(queue, exchange, key)
    except AccessRefused:  # which has ended that channel
        return False
    channel.close()
    return True


def message_of(topic: bytes, payload: bytes | None, headers: dict[str, object], **properties: object) -> Message:
    """Return a message; its headers have the topic where a routing key cannot: see `routing_key`."""
    if routing_key(topic).encode() != topic:
        headers[_TOPIC] = topic
    if payload is None:
        headers[_NO_VALUE] = True
    return Message(payload or b"", application_headers=headers, **properties)


def content_of(message: Message) -> tuple[bytes, bytes | None]:
    """Return the topic and the payload of a message that came."""
    headers = headers_of(message)
    topic = headers.get(_TOPIC, message.delivery_info["routing_key"])
    payload = None if headers.get(_NO_VALUE) else bytes(message.body or b"")
    return (topic if isinstance(topic, bytes) else str(topic).encode("utf-8", "surrogatepass")), payload


def gap_of(message: Message) -> int:
    """Return how many messages one that came says were lost; 0: it is a message as any other."""
    count = headers_of(message).get("gap")
    return count if type(count) is int and count > 0 and content_of(message)[0] == GAP_TOPIC else 0


def headers_of(message: Message) -> dict[str, Any]:
    """Return the headers of a message that came."""
    headers: dict[str, Any] = message.properties.get("application_headers", {})
    return headers


def routing_key(topic: bytes) -> str:
    """Return a topic as AMQP routes it: text, of which 255 bytes."""
    text = topic.decode(errors="replace").encode()
    return text[:_MOST_KEY_BYTES].decode(errors="ignore")


def binding_key(start: bytes, whole: bool = False) -> str:
    """Return the binding that lets through topics that start so, and as little else as whole words can say.

    `whole`: only the topic `start`.
    """
    words = start.decode(errors="replace").split(".")[: None if whole else -1]
    while len(".".join(words).encode()) > _MOST_KEY_BYTES - len(".#"):
        words.pop()
    return ".".join([*words, "#"])
