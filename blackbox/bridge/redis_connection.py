"""Connections to a Redis, and which of its errors waiting mends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from blackbox.bridge.carrier import Away, without_password
from blackbox.errors import BridgeError, ConfigError

try:
    import redis
    from redis.backoff import NoBackoff
    from redis.exceptions import AuthenticationError, AuthorizationError, BusyLoadingError, RedisError
    from redis.exceptions import ConnectionError as NotThere
    from redis.exceptions import TimeoutError as TooLate
    from redis.retry import Retry
except ImportError as error:
    raise ImportError(f"this needs redis: pip install 'blackbox-md[bridge]' ({error})") from error

_AWAY: Final = (NotThere, TooLate, BusyLoadingError)
_REFUSED: Final = (AuthenticationError, AuthorizationError)
"""Kinds of NotThere, which no waiting mends."""
SOCKET_S = 5.0
_MOST_DIGITS: Final = 20


def connect(url: str) -> Any:
    """Return a client, which opens nothing yet, and does nothing twice by itself. Raises ConfigError."""
    try:
        return redis.Redis.from_url(
            url,
            socket_timeout=SOCKET_S,
            socket_connect_timeout=SOCKET_S,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError as error:
        raise ConfigError(
            f"url was {without_password(url)!r}, expected one such as redis://127.0.0.1:6379/0: {error}"
        ) from None


def plain_url(url: str) -> str:
    """Return a URL of pub/sub as Redis knows it."""
    return url.replace("+pubsub", "", 1)


@contextmanager
def errors(url: str, what: str) -> Iterator[None]:
    """Raise Away for what a later try may mend, BridgeError for what none does; `what` may be refused."""
    try:
        yield
    except RedisError as error:
        if isinstance(error, _AWAY) and not isinstance(error, _REFUSED):
            raise Away(str(error)) from error
        raise BridgeError(f"{url} refused {what}: {error}") from error


def count_of(text: bytes | None) -> int:
    """Return how many a gap says that it has; 0: that is no number."""
    return int(text) if text and len(text) < _MOST_DIGITS and text.isdigit() else 0


def make_group(client: Any, stream: str, group: str) -> None:
    """See that a stream has a consumer group; a new one begins with the first entry."""
    try:
        client.xgroup_create(stream, group, id="0", mkstream=True)
    except redis.ResponseError as error:
        if "BUSYGROUP" not in str(error):  # it is there
            raise
