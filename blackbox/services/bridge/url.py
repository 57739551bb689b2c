"""URLs of other systems, with passwords of any characters, which are never shown."""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from blackbox.errors import ConfigError
from blackbox.feed.venue_url import is_host
from blackbox.transport.security.hidden import hides

_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:]+)(?::([0-9]{1,5}))?", re.ASCII)
_MOST_PORT: Final = 65_535
_QUERY_WITH_AT: Final = re.compile(r"[^:/?#]*(:[0-9]+)?(/[^?#]*)?\?\w+=")
"""The part of a URL before the last `@`, if its query contains that `@`."""


@hides("password")
class Url(NamedTuple):
    """The parts of SCHEME://USER:PASSWORD@HOST:PORT/PATH, decoded; empty, or None: absent."""

    scheme: str
    user: str
    password: str
    host: str
    port: int | None
    path: str
    shown: str
    """The URL without user and password."""

    @classmethod
    def of(cls, url: str, expected: str) -> Url:
        """Parse a URL.

        The last `@` ends user and password, so these may have any characters, also percent-encoded; a path with an `@`
        has it as `%40`. Raises ConfigError with the `expected` form, without the password.
        """
        scheme, colon, rest = url.partition("://")
        if not colon:
            raise ConfigError(f"URL had no scheme, expected {expected}")
        who, _, where = rest.rpartition("@")
        for sign, what in (("?", "a query"), ("#", "a fragment")):
            if sign in where or _QUERY_WITH_AT.match(who):
                raise ConfigError(f"URL of {scheme}:// had {what}, expected none: {expected}")
        address, _, path = where.partition("/")
        shown = f"{scheme}://{address}" + (f"/{path}" if path else "")
        found = _ADDRESS.fullmatch(address)
        if found is None or int(found[2] or 0) > _MOST_PORT or not is_host(found[1]):
            raise ConfigError(f"URL was {shown!r}, expected {expected}")
        user, _, password = who.partition(":")
        port = None if found[2] is None else int(found[2])
        return cls(scheme, unquote(user), unquote(password), found[1].strip("[]"), port, unquote(path), shown)


def has_password(url: str) -> bool:
    """Return True if a URL has a password."""
    return ":" in url.partition("://")[2].rpartition("@")[0]


def with_password(url: str, password: str) -> str:
    """Return a URL with a password from elsewhere. Raises ConfigError if it has one already; shows neither."""
    scheme, colon, rest = url.partition("://")
    if not colon:
        raise ConfigError("URL had no scheme, expected one such as redis://USER@127.0.0.1:6379/0")
    if has_password(url):
        raise ConfigError(f"URL of {scheme}:// had a password and another one was given, expected one of them")
    who, _, where = rest.rpartition("@")
    return f"{scheme}://{who}:{quote(password, safe='')}@{where}"
