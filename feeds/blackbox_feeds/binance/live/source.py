"""Binance live: `binance+wss://HOST/stream?streams=...`, spot and futures."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, ClassVar, Final, Self
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import numpy

from blackbox.errors import ConfigError
from blackbox.feed.live_source import LiveSource
from blackbox.feed.source import Chunk, make_source
from blackbox.feed.venue_url import is_host
from blackbox_feeds.binance.source import SCHEMA
from blackbox_feeds.io.template import DEFAULT_TOPIC, TopicForm

_TIME_DIGITS: Final = 19
_STALE_S: Final = 60.0
_LINES: Final = b'1723161256172216566 {"stream":"a@trade","data":{"E":1723161256172,"t":1}}\n'
"""To compile with."""


class BinanceLive(LiveSource):
    """The frames of some streams as they arrive, as payloads of the source `binance`.

        BinanceWss("stream.binance.com:9443/stream?streams=btcusdt@trade/btcusdt@depth@100ms").publish(publisher)

    A recording of it exports to the lines that a collector would have written. For each depth stream order books are
    requested over REST at the start and after each gap, and published as frames of the stream `SYMBOL@snapshot`. A
    snapshot may arrive after frames that are newer: apply frames by their ids, those before the snapshot too.

    Missing trades are counted; another gap counts as one message, since Binance does not number the frames. After an
    interruption a gap is reported even if nothing may be missing, unless the numbers of all streams show it.

    `rest`: URL of order books, if the host is not Binance's own. `stale`: seconds without a frame after which the
    connection is opened again. Other parameters of the URL, such as timeUnit, are sent to Binance.

    Raises:
        ConfigError: the URL, a stream or an option is invalid, or a library of the extra `live` is not installed.
    """

    scheme: ClassVar[str]
    schema = SCHEMA

    def __init__(
        self,
        url: str,
        topic: str = DEFAULT_TOPIC,
        rest: str | None = None,
        stale: float = _STALE_S,
    ) -> None:
        from blackbox_feeds.binance.live.client import Client, Target
        from blackbox_feeds.binance.live.sequences import Kind
        from blackbox_feeds.binance.live.streams import snapshot_url, streams_of

        super().__init__()
        host, port, pairs = _parts(self.scheme, url)
        options = dict(pairs)
        self._url = f"binance+{self.scheme}://{url}"
        self._form = TopicForm(topic, locates=False)
        self._streams = streams_of(options.get("streams", ""))
        rest = options.pop("rest", rest)
        if not 0 < (stale := _seconds(options.pop("stale", stale))) < 86_400:
            raise ConfigError(f"stale was {stale:g}, expected seconds, above 0 and less than a day")
        address = snapshot_url(host, rest) if any(each.kind == Kind.DEPTH for each in self._streams) else None
        if address is None and any(each.kind == Kind.DEPTH for each in self._streams):
            raise ConfigError(
                f"{host} is not a host of Binance: say where it answers requests of order books, such as "
                "rest=http://127.0.0.1:8080 for spot, or rest=http://127.0.0.1:8080/fapi/v1/depth for futures"
            )
        query = urlencode(options, quote_via=quote, safe="@/!")
        shown = f"[{host}]" if ":" in host else host
        target = Target(f"{self.scheme}://{shown}{port}/stream?{query}", address, stale)
        self._client = Client(target, self.counts)

    def __repr__(self) -> str:
        return f"<BinanceLive {self._url}>"

    @classmethod
    def from_spec(cls, argument: str, **options: Any) -> Self:
        """Make a source from `//HOST/stream?streams=...`."""
        if not argument.startswith("//"):
            raise ConfigError(f"source was binance+{cls.scheme}:{argument}, expected binance+{cls.scheme}://HOST/...")
        return make_source(cls, argument[2:], options)

    def compile(self) -> None:
        """Compile everything before frames arrive."""
        from blackbox_feeds.binance.frame_reader import FrameReader
        from blackbox_feeds.binance.live.checker import FrameChecker
        from blackbox_feeds.binance.live.streams import streams_of

        super().compile()
        checker, reader = FrameChecker(streams_of("a@trade")), FrameReader(self._form, _TIME_DIGITS)
        for chunk in reader.chunks(numpy.frombuffer(_LINES, numpy.uint8), last=True):
            checker.check(chunk)

    def _receive(self) -> Generator[Chunk, None, None]:
        from blackbox_feeds.binance.frame_reader import FrameReader
        from blackbox_feeds.binance.live.checker import FrameChecker

        checker, reader = FrameChecker(self._streams), FrameReader(self._form, _TIME_DIGITS)
        client, wanted, topics = self._client, frozenset[str](), tuple[bytes, ...]()

        def count() -> None:
            self.counts.malformed = client.malformed + reader.bad.count
            self.counts.duplicates = checker.duplicates

        client.start()
        try:
            while not self.is_stopping:
                for part in client.take(self.stop_fd):
                    if part.is_interrupted and not checker.is_numbered:
                        yield Chunk.gap(topics, 1)
                    for chunk in reader.chunks(numpy.frombuffer(part.content, numpy.uint8), last=True):
                        kept, now_wanted = checker.check(chunk, is_overlap=part.is_overlap)
                        if now_wanted != wanted:
                            client.want(now_wanted)
                            wanted = now_wanted
                        topics = chunk.topics
                        if len(kept.starts) or kept.gaps:
                            yield kept
                count()
        finally:
            client.stop()
            count()
            self.truncated = f"{self!r}: {reader.bad}" if reader.bad.count else None


class BinanceWss(BinanceLive):
    """Binance over TLS."""

    scheme = "wss"


class BinanceWs(BinanceLive):
    """A local server of Binance's protocol, such as `blackbox replay --serve binance+ws://HOST:PORT`."""

    scheme = "ws"


def _parts(scheme: str, url: str) -> tuple[str, str, list[tuple[str, str]]]:
    """Return host, `:PORT` or nothing, and the parameters. Raises ConfigError."""
    expected = f"expected binance+{scheme}://HOST/stream?streams=btcusdt@trade/btcusdt@depth@100ms"
    try:
        parts = urlsplit(f"{scheme}://{url}")
        host, port = parts.hostname or "", parts.port
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise ConfigError(f"source was binance+{scheme}://{url}, {expected}: {error}") from None
    if not is_host(host) or port == 0 or parts.username is not None or parts.path != "/stream" or parts.fragment:
        raise ConfigError(f"source was binance+{scheme}://{url}, {expected}")
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names) or "streams" not in names:
        raise ConfigError(f"source was binance+{scheme}://{url}, {expected}, each parameter once")
    return host, "" if port is None else f":{port}", pairs


def _seconds(text: str | float) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"stale was {text!r}, expected seconds") from None
