"""Databento live: `databento://DATASET?schema=...&symbols=...`."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any, Final, Self
from urllib.parse import parse_qsl, urlsplit

import numpy

from blackbox.errors import ConfigError, SourceError
from blackbox.feed.live_source import LiveSource
from blackbox.feed.source import Chunk, make_source, rows_of
from blackbox.feed.venue_url import Address
from blackbox.timestamps import parse_time
from blackbox_feeds.dbn.records import SCHEMA
from blackbox_feeds.io.template import DEFAULT_TOPIC, TopicForm

KEY_VARIABLE: Final = "DATABENTO_API_KEY"
_KNOWN: Final = ("schema", "symbols", "stype_in", "start", "snapshot", "gateway")
_EXPECTED: Final = (
    "expected databento://DATASET?schema=SCHEMA&symbols=A,B, such as databento://GLBX.MDP3?schema=mbo&symbols=ESH4"
)
_TRUTH: Final = {"0": False, "1": True}


class DbnLive(LiveSource):
    """The records of one subscription as they arrive, as payloads of the source `dbn`.

        DbnLive("GLBX.MDP3?schema=mbo&symbols=ESH4").publish(publisher)

    The key is read from the environment, variable `DATABENTO_API_KEY`. After an interruption the gateway replays what
    was missed, up to 24 hours; records that were delivered before are left out. If it cannot, a gap is reported.

    Parameters of the URL: `schema`; `symbols`, joined by commas, default ALL_SYMBOLS; `stype_in`, default raw_symbol;
    `start`, a time in the last 24 hours, or 0 for all of them; `snapshot=1` to begin with a snapshot, for `mbo`;
    `gateway`, HOST:PORT.

    Raises:
        ConfigError: the URL is invalid, there is no key, or `databento` is not installed (extra `databento`).
    """

    schema = SCHEMA

    def __init__(self, url: str, topic: str = DEFAULT_TOPIC) -> None:
        from blackbox_feeds.dbn.live.session import Client, check_libraries

        super().__init__()
        check_libraries()
        self._url = f"databento://{url}"
        self._form = TopicForm(topic, locates=False)
        key = os.environ.get(KEY_VARIABLE, "")
        if not key or not key.isascii() or not key.isprintable():
            raise ConfigError(f"{self._url} needs a key of Databento: set the environment variable {KEY_VARIABLE}")
        request = _request(url)
        self._start = request.start
        self._client = Client(request, key, self.counts)

    def __repr__(self) -> str:
        return f"<DbnLive {self._url}>"

    @classmethod
    def from_spec(cls, argument: str, **options: Any) -> Self:
        """Make a source from `//DATASET?schema=...`."""
        if not argument.startswith("//"):
            raise ConfigError(f"source was databento:{argument}, {_EXPECTED}")
        return make_source(cls, argument[2:], options)

    def compile(self) -> None:
        """Compile everything before records arrive."""
        from databento_dbn import Metadata, Schema, SType

        from blackbox_feeds.dbn.live.resumption import Resumption
        from blackbox_feeds.dbn.metadata import DbnMetadata
        from blackbox_feeds.dbn.scan import RecordReader

        super().compile()
        types: Any = {"stype_in": SType.RAW_SYMBOL, "stype_out": SType.INSTRUMENT_ID, "schema": Schema.MBO}
        metadata = Metadata(dataset="", start=1, symbols=[], mappings=[], version=3, **types)
        nothing = numpy.frombuffer(b"\0", numpy.uint8)[:0]
        list(RecordReader(self._form, DbnMetadata(metadata.encode(), self._url)).chunks(nothing, 0))
        Resumption().new_rows(nothing, numpy.zeros(0, numpy.int64), numpy.zeros(0, numpy.int32))

    def _receive(self) -> Generator[Chunk, None, None]:
        from blackbox_feeds.dbn.live.resumption import Resumption
        from blackbox_feeds.dbn.metadata import DbnMetadata
        from blackbox_feeds.dbn.scan import RecordReader

        client, resumption = self._client, Resumption()
        reader: RecordReader | None = None
        topics: tuple[bytes, ...] = ()
        client.start()
        try:
            while not self.is_stopping:
                for part in client.take(self.stop_fd):
                    if part.is_interrupted:
                        start = resumption.start_ns(self._start) if client.can_resume else None
                        if start is None:
                            yield Chunk.gap(topics, 1)
                        else:
                            resumption.begin(start)
                        client.resume(start)
                    if not part.content:
                        continue
                    data = numpy.frombuffer(part.content, numpy.uint8)
                    is_first = reader is None
                    reader = reader or RecordReader(self._form, DbnMetadata(client.metadata, self._url))
                    for chunk in reader.chunks(data, 0):
                        topics = chunk.topics
                        if is_first:
                            self.head, is_first = reader.head(chunk), False
                            yield self.head
                        yield from self._new(chunk, resumption)
                    complaint = reader.complaint(data)
                    if complaint is not None:
                        raise SourceError(f"{self._url}: the gateway sent an unknown record: {complaint}")
        finally:
            client.stop()
            self._quality = reader.notes() if reader is not None else ()

    _quality: tuple[str, ...] = ()

    def _new(self, chunk: Chunk, resumption: Any) -> Generator[Chunk, None, None]:
        is_new = resumption.new_rows(chunk.payloads, chunk.starts, chunk.lengths)
        self.counts.duplicates = resumption.repeated
        if is_new is None:
            yield chunk
        elif is_new.any():
            yield rows_of(chunk, is_new)

    def _notes(self) -> tuple[str, ...]:
        return (*super()._notes(), *self._quality)


def _request(url: str) -> Any:
    """Parse a URL without its scheme. Raises ConfigError."""
    from databento_dbn import Schema, SType

    from blackbox_feeds.dbn.live.session import DEFAULT_PORT, Request

    try:
        parts = urlsplit(f"databento://{url}")
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise ConfigError(f"source was databento://{url}, {_EXPECTED}: {error}") from None
    options = dict(pairs)
    unknown = [name for name in options if name not in _KNOWN]
    if not parts.netloc or parts.path or parts.fragment or len(options) < len(pairs) or "schema" not in options:
        raise ConfigError(f"source was databento://{url}, {_EXPECTED}")
    if unknown:
        raise ConfigError(f"option was {unknown[0]!r}, expected one of databento://: {', '.join(_KNOWN)}")
    try:
        schema, stype = Schema.from_str(options["schema"]), SType.from_str(options.get("stype_in", "raw_symbol"))
    except Exception as error:  # noqa: BLE001 - an error of the compiled library
        raise ConfigError(f"source was databento://{url}: {error}") from None
    is_snapshot = _TRUTH.get(options.get("snapshot", "0"))
    start = _start(options.get("start"))
    if is_snapshot is None or (is_snapshot and (start is not None or str(schema) != "mbo")):
        raise ConfigError(
            f"option was snapshot={options['snapshot']}, expected 0 or 1, for the schema mbo without start"
        )
    host, port = _gateway(options.get("gateway"), parts.netloc, DEFAULT_PORT)
    asked = [each for each in options.get("symbols", "ALL_SYMBOLS").split(",") if each]
    if not asked:
        raise ConfigError(f"option was symbols={options['symbols']}, expected symbols joined by commas")
    return Request(parts.netloc, str(schema), asked, str(stype), start, is_snapshot, host, port)


def _start(text: str | None) -> int | None:
    if text is None or text == "0":
        return None if text is None else 0
    try:
        return parse_time(text, "UTC")
    except ValueError as error:
        raise ConfigError(f"option was start={text}: {error}") from None


def _gateway(text: str | None, dataset: str, default_port: int) -> tuple[str, int]:
    if text is None:
        return f"{dataset.lower().replace('.', '-')}.lsg.databento.com", default_port
    address = Address.of(text, "option gateway")
    address.check_port()
    return address.host, address.port
