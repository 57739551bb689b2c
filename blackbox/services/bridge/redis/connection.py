"""Connections to Redis, and the errors after which a retry makes sense."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from blackbox.errors import BridgeError, ConfigError
from blackbox.services.bridge.carrier import Away
from blackbox.services.bridge.tls import check_certificates, is_untrusted
from blackbox.services.bridge.url import Url

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
"""Kinds of NotThere that no retry fixes."""
SOCKET_S = 5.0
_MOST_DIGITS: Final = 20
_PORT: Final = 6379
IS_BEFORE: Final = """
local function is_before(a, b)
    local high_a, low_a = string.match(a, '^(%d+)-(%d+)$')
    local high_b, low_b = string.match(b, '^(%d+)-(%d+)$')
    if high_a ~= high_b then return #high_a < #high_b or (#high_a == #high_b and high_a < high_b) end
    return #low_a < #low_b or (#low_a == #low_b and low_a < low_b)
end
"""
"""Part of a Redis script: compare entry ids as text, because Lua's numbers have too few digits."""
_EXPECTED: Final = "redis://USER:PASSWORD@HOST:PORT/DATABASE, or rediss:// with TLS"


def redis_url(url: str) -> Url:
    """Parse the URL of a Redis. Raises ConfigError."""
    found = Url.of(url, _EXPECTED)
    if found.path and not (found.path.isascii() and found.path.isdigit() and len(found.path) < _MOST_DIGITS):
        raise ConfigError(f"URL was {found.shown!r}, expected {_EXPECTED}")
    return found


def connect(url: Url, ca: str | None = None) -> Any:
    """Return a client. It opens nothing yet, and repeats no command.

    With rediss:// the host is verified by the certificates in the file `ca` or those of the system. Raises ConfigError.
    """
    is_encrypted = url.scheme.startswith("rediss")
    tls = {"ssl_cert_reqs": "required", "ssl_check_hostname": True} if is_encrypted else {}
    check_certificates(url.scheme, ca, is_encrypted=is_encrypted)
    return redis.Redis(
        url.host,
        url.port or _PORT,
        int(url.path or 0),
        username=url.user or None,
        password=url.password or None,
        ssl=is_encrypted,
        ssl_ca_certs=ca,
        socket_timeout=SOCKET_S,
        socket_connect_timeout=SOCKET_S,
        protocol=2,
        retry=Retry(NoBackoff(), 0),
        **tls,
    )


@contextmanager
def errors(url: str, what: str) -> Iterator[None]:
    """Raise Away for errors that a retry may fix, BridgeError for others. `what`: the object that may be refused."""
    try:
        yield
    except RedisError as error:
        if is_untrusted(error.__context__):
            raise BridgeError(f"{url} was not trusted: {error}") from error
        if isinstance(error, _AWAY) and not isinstance(error, _REFUSED):
            raise Away(str(error)) from error
        raise BridgeError(f"{url} refused {what}: {error}") from error


def count_of(text: bytes | None) -> int:
    """Return the count of a gap entry; 0 if it is not a number."""
    return int(text) if text and len(text) < _MOST_DIGITS and text.isdigit() else 0
