"""The streams of a connection, and the URL of their order books.

binance+wss://stream.binance.com:9443/stream?streams=btcusdt@trade/btcusdt@depth@100ms

host                     snapshots of order books
stream.binance.com       https://api.binance.com/api/v3/depth
fstream.binance.com      https://fapi.binance.com/fapi/v1/depth
dstream.binance.com      https://dapi.binance.com/dapi/v1/depth
others                   rest=URL, with the path of spot unless it has one
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from urllib.parse import quote, urlsplit

from blackbox.errors import ConfigError
from blackbox_feeds.binance.live.sequences import Kind

MOST_STREAMS: Final = 1_024
"""Streams of a connection, by Binance's rules."""
SNAPSHOT: Final = "snapshot"
"""Name in the streams of requested order books, which Binance itself does not send."""

_RESTS: Final = {
    "stream.binance.com": "https://api.binance.com/api/v3/depth",
    "data-stream.binance.vision": "https://data-api.binance.vision/api/v3/depth",
    "stream.testnet.binance.vision": "https://testnet.binance.vision/api/v3/depth",
    "fstream.binance.com": "https://fapi.binance.com/fapi/v1/depth",
    "dstream.binance.com": "https://dapi.binance.com/dapi/v1/depth",
}
_SPOT: Final = "/api/v3/depth"
_LEVELS: Final = {_SPOT: 5_000}
_LEVELS_OF_FUTURES: Final = 1_000
_STREAM: Final = re.compile(r"(!?[^@/?&\s\"\\]+)(@[^/?&\s\"\\]+)?")
_KINDS: Final = {"trade": Kind.TRADE, "aggTrade": Kind.AGGREGATE, "bookTicker": Kind.TICKER}
_DEPTH: Final = re.compile(r"depth(@[0-9]+ms)?")


class Stream(NamedTuple):
    """One stream, such as `btcusdt@depth@100ms`."""

    name: str
    symbol: str
    kind: Kind

    @classmethod
    def of(cls, name: str) -> Stream:
        """Parse a stream's name. Raises ConfigError."""
        symbol, _, rest = name.partition("@")
        if not _STREAM.fullmatch(name) or not (rest or symbol.startswith("!")):
            raise ConfigError(f"stream was {name!r}, expected SYMBOL@TYPE, such as btcusdt@trade")
        # ASCII letters only: Binance also has symbols of Chinese characters.
        if not symbol.startswith("!") and re.search("[A-Z]", symbol):
            raise ConfigError(f"stream was {name!r}, but Binance knows streams by lower case: {symbol.lower()}@{rest}")
        is_diff = _DEPTH.fullmatch(rest) is not None and not symbol.startswith("!")
        kind = Kind.DEPTH if is_diff else Kind.NONE if symbol.startswith("!") else _KINDS.get(rest, Kind.NONE)
        return cls(name, symbol, kind)


def streams_of(text: str) -> tuple[Stream, ...]:
    """Parse streams joined by `/`. Raises ConfigError."""
    names = text.split("/")
    if len(names) > MOST_STREAMS:
        raise ConfigError(f"{len(names)} streams were given, expected at most {MOST_STREAMS}: use several sources")
    repeated = {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else None
    if repeated:
        raise ConfigError(f"stream {min(repeated)!r} was given several times, expected once")
    return tuple(map(Stream.of, names))


def snapshot_url(host: str, rest: str | None) -> str | None:
    """Return the URL of order books without its parameters; None if the host is unknown. Raises ConfigError."""
    if rest is None:
        return _RESTS.get(host)
    try:
        parts = urlsplit(rest)
        is_valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or parts.query or parts.fragment or parts.username is not None:
        raise ConfigError(f"rest was {rest!r}, expected http://HOST:PORT or https://HOST")
    return rest if parts.path.strip("/") else rest.rstrip("/") + _SPOT


def snapshot_request(url: str, symbol: str) -> str:
    """Return the URL of one order book, with as many levels as Binance gives."""
    levels = _LEVELS.get(urlsplit(url).path, _LEVELS_OF_FUTURES)
    return f"{url}?symbol={quote(symbol.upper())}&limit={levels}"
