"""Connections to a RabbitMQ, or another broker of AMQP 0-9-1, and how topics of a feed are named there."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from blackbox.bridge.carrier import GAP_TOPIC, Away, without_password
from blackbox.errors import BridgeError, ConfigError

try:
    from amqp import AMQPError, Connection, Message, NotFound, PreconditionFailed, RecoverableConnectionError
except ImportError as error:
    raise ImportError(f"this needs amqp: pip install 'blackbox-md[bridge]' ({error})") from error

SOCKET_S: Final = 5.0
"""How long an answer is waited for before it counts as away."""
UNANSWERED: Final = PreconditionFailed
"""What a broker says to who has a message for too long."""
_PORTS: Final = {"amqp": 5672, "amqps": 5671}
_NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
"""What is said of a host that does not encrypt."""
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
        parts = urlsplit(url)
        vhost = parts.path.removeprefix("/")
        try:
            port = parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError:
            port = 0
        if parts.scheme not in _PORTS or not parts.hostname or not port or "/" in vhost or parts.query:
            raise ConfigError(f"URL was {without_password(url)!r}, expected amqp://USER:PASSWORD@HOST:PORT/VHOST")
        return cls(
            f"{parts.hostname}:{port}",
            unquote(parts.username or "guest"),
            unquote(parts.password or "guest"),
            unquote(vhost) or "/",
            without_password(url),
            _tls_of(parts.scheme, parts.hostname, ca),
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
            if isinstance(error, ssl.SSLCertVerificationError) or error.reason in _NOT_TLS:
                raise BridgeError(f"{self.shown} was not trusted: {error}") from error
            raise Away(str(error)) from error
        except (RecoverableConnectionError, OSError, UnicodeDecodeError) as error:  # a key that is no text, too
            raise Away(str(error) or type(error).__name__) from error
        except AMQPError as error:
            raise BridgeError(f"{self.shown} refused: {error}") from error


def _tls_of(scheme: str, host: str, ca: str | None) -> dict[str, Any] | None:
    if scheme == "amqp":
        if ca is not None:
            raise ConfigError(f"option was ca={ca}, expected none with amqp://, which is not encrypted: amqps:// is")
        return None
    try:
        ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise ConfigError(f"option was ca={ca}, expected a file of certificates in PEM: {error}") from error
    return {"server_hostname": host, "context": {"check_hostname": True, "cafile": ca}}


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


def binding_key(prefix: bytes) -> str:
    """Return the binding that lets through what starts with a prefix, and as little else as whole words can say."""
    words = prefix.decode(errors="replace").split(".")[:-1]
    while len(".".join(words).encode()) > _MOST_KEY_BYTES - len(".#"):
        words.pop()
    return ".".join([*words, "#"])
