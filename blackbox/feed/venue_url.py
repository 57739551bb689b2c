"""URLs of connections in a venue's own protocol: `moldudp64://239.1.1.1:26400?b=239.1.1.2:26400`."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, Self, TypeVar
from urllib.parse import parse_qsl, urlsplit

import msgspec

from blackbox.arguments import did_you_mean
from blackbox.errors import ConfigError

T = TypeVar("T", bound=msgspec.Struct)
_EXAMPLE: Final = "moldudp64://127.0.0.1:26400"


def is_host(name: str) -> bool:
    """Return True if a name can be looked up. For others, such as `a..b`, the resolver raises UnicodeError."""
    with suppress(UnicodeError):
        return bool(name.encode("idna"))
    return False


class Address(msgspec.Struct, frozen=True):
    """Host and port of a socket."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @classmethod
    def of(cls, text: str, what: str) -> Self:
        """Parse HOST:PORT. Raises ConfigError, which names `what` it is."""
        try:
            parts = urlsplit(f"//{text}")
            host, port = parts.hostname or "", parts.port
        except ValueError:
            host, port = "", None
        if not is_host(host) or port is None or parts.netloc != text or "@" in text:
            raise ConfigError(f"{what} was {text!r}, expected HOST:PORT, such as 127.0.0.1:26400")
        return cls(host, port)

    def check_port(self) -> None:
        """Raise ConfigError for a port that no socket can connect or send to."""
        if not 0 < self.port < 1 << 16:
            raise ConfigError(f"address was {self}, expected a port from 1 to 65535")


class VenueUrl(msgspec.Struct, frozen=True):
    """The parts of a URL: `SCHEME://HOST:PORT/PATH?NAME=VALUE&NAME=VALUE`."""

    scheme: str
    address: Address
    path: str
    options: dict[str, str]

    @classmethod
    def of(cls, text: str) -> Self:
        """Parse a URL. Raises ConfigError."""
        scheme, colon, rest = text.partition("://")
        if not colon:
            raise ConfigError(f"URL was {text!r}, expected SCHEME://HOST:PORT, such as {_EXAMPLE}")
        try:
            parts = urlsplit(f"//{rest}")
        except ValueError as error:
            raise ConfigError(f"URL was {text!r}: {error}") from None
        try:
            pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except ValueError as error:
            raise ConfigError(
                f"options of {scheme}:// were {parts.query!r}, expected NAME=VALUE, joined by &"
            ) from error
        options = dict(pairs)
        if len(options) < len(pairs):
            raise ConfigError(f"options of {scheme}:// were {parts.query!r}, expected each name once")
        return cls(scheme, Address.of(parts.netloc, f"address of {scheme}://"), parts.path, options)


def options_of(url: VenueUrl, kind: type[T]) -> T:
    """Convert the options of a URL to a struct, by the types of its fields. Raises ConfigError."""
    known = {field.name: field.type for field in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    for name, text in url.options.items():
        if name not in known:
            raise ConfigError(
                f"option was {name}={text}, expected one of {url.scheme}://: {', '.join(known) or 'none'}"
                f"{did_you_mean(name, list(known))}"
            )
        try:
            values[name] = msgspec.convert(text, known[name], strict=False)
        except msgspec.ValidationError as error:
            raise ConfigError(f"option {name} was {text!r}: {error}") from error
    return kind(**values)
