"""IEX-TP live: TOPS 1.6 or DEEP 1.0 from one or two lines, with requests to fill gaps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, Self

import numpy
from numpy.typing import NDArray

from blackbox.errors import SourceError
from blackbox.feed.schema.schema import Schema
from blackbox.feed.source import Chunk, make_source
from blackbox.feed.venue_url import Address, VenueUrl, options_of
from blackbox.native.compile.jit import njit
from blackbox_feeds.iex.decoder import DatagramDecoder
from blackbox_feeds.iex.iextp import HEADER, HEADER_BYTES, VERSION, GapFillRequest, Stream
from blackbox_feeds.iex.messages import DEEP10, PROTOCOLS, TOPS16
from blackbox_feeds.io import sequence as sequences
from blackbox_feeds.io.integers import little_16, little_32, little_64
from blackbox_feeds.io.pcap import Datagrams
from blackbox_feeds.io.template import DEFAULT_TOPIC, TopicForm
from blackbox_feeds.live.datagram_source import (
    CHUNK_MESSAGES,
    FOREIGN,
    MALFORMED,
    OTHER_PROTOCOL,
    RESTART,
    DatagramSource,
    Session,
)
from blackbox_feeds.live.gap_holder import Arrived, Form
from blackbox_feeds.live.settings import LineSettings

FORM: Final = Form(HEADER_BYTES, sequence_at=24, count_at=14, payload_bytes_at=12, is_big_endian=False)
_MOST: Final = 1 << 62
"""Sequences and send times are less."""
_RESTART_NS: Final = 1_000_000_000
"""Numbers begin again if a datagram with an earlier sequence was sent this much later; a copy has the same time."""
_RANGES: Final = 16
"""Ranges of one request."""


class IexSettings(LineSettings, frozen=True, kw_only=True):
    """Options of the URL."""

    gapfill: str | None = None
    """HOST:PORT of the gap fill server, by UDP."""
    protocol: Literal["deep", "tops"] = "deep"
    """DEEP 1.0 or TOPS 1.6."""


@njit(nogil=True, cache=True)
def _are_whole(data: NDArray[numpy.uint8], start: int, end: int, count: int, sizes: NDArray[numpy.int64]) -> bool:
    """Return True if `count` messages fill the bytes exactly, and none is too short for its type."""
    position = start
    for _ in range(count):
        if position + 2 > end:
            return False
        after = position + 2 + little_16(data, position)
        if after > end or (after > position + 2 and after - position - 2 < sizes[data[position + 2]]):
            return False
        position = after
    return position == end


@njit(nogil=True, cache=True)
def _read(
    arrived: Arrived,
    n: int,
    has_session: bool,
    session: int,
    channel: int,
    protocol: int,
    sizes: NDArray[numpy.int64],
    is_line: bool,
    expected: int,
    latest_ns: NDArray[numpy.int64],
) -> None:
    """Set `first` and `end` of the datagrams. `expected`: next sequence. `latest_ns`: latest send time of the lines."""
    data = arrived.data
    for row in range(n):
        start, length = row * arrived.slot_bytes, arrived.lengths[row]
        arrived.first[row] = MALFORMED
        if length < HEADER_BYTES or data[start] != VERSION:
            continue
        first, count = little_64(data, start + 24), little_16(data, start + 14)
        payload_end = start + HEADER_BYTES + little_16(data, start + 12)
        sent_ns = little_64(data, start + 32)
        if payload_end != start + length or not 1 <= first < _MOST or not 0 <= sent_ns < _MOST:
            continue
        if little_16(data, start + 2) != protocol:
            arrived.first[row] = OTHER_PROTOCOL
            continue
        if not _are_whole(data, start + HEADER_BYTES, start + length, count, sizes):
            continue
        if not has_session or little_32(data, start + 8) != session or little_32(data, start + 4) != channel:
            arrived.first[row] = FOREIGN
            continue
        if is_line and first < expected and sent_ns > latest_ns[0] + _RESTART_NS:
            arrived.first[row] = RESTART
            return
        if is_line:
            latest_ns[0] = max(latest_ns[0], sent_ns)
        if first <= expected:  # one far ahead may be forged
            expected = max(expected, first + count)
        arrived.first[row], arrived.end[row] = first, first + count


class IexClient(DatagramSource):
    """The messages of IEX's TOPS or DEEP, until it is stopped.

    `url`: `//GROUP:PORT?NAME=VALUE&...`, with the options of `IexSettings`. If GROUP is not a
    multicast address, it is an address of this machine, and unicast is received. `topic` as in `Iex`. Gaps as in
    `MoldUdp64Client`.

    Raises:
        ConfigError: an invalid URL or topic.
    """

    form = FORM

    def __init__(self, url: str, topic: str = DEFAULT_TOPIC) -> None:
        parsed = VenueUrl.of(url if "://" in url else f"iextp:{url}")
        settings = options_of(parsed, IexSettings)
        server = None if settings.gapfill is None else Address.of(settings.gapfill, "option gapfill")
        super().__init__(parsed.address, settings, server)
        self._url = url
        self._schema = DEEP10 if settings.protocol == "deep" else TOPS16
        self._protocol = next(number for number, schema in PROTOCOLS.items() if schema is self._schema)
        self._latest_ns = numpy.zeros(1, numpy.int64)
        form, sequence = TopicForm(topic, locates=False), sequences.Sequence()
        self._decoder = DatagramDecoder(form, self._protocol, self._input_counts, sequence, CHUNK_MESSAGES)

    def __repr__(self) -> str:
        return f"<IexClient {self._url}>"

    @property
    def schema(self) -> Schema:
        """`TOPS16` or `DEEP10`."""
        return self._schema

    @classmethod
    def from_spec(cls, argument: str, **options: Any) -> Self:
        """Make a client of the part of a specification after `iextp:`; see `Source.from_spec`."""
        return make_source(cls, argument, options)

    def _read_headers(self, arrived: Arrived, n: int, session: Session | None, *, is_line: bool) -> int | None:
        number, channel, *_ = session or (0, 0)
        known, expected = (number, channel, self._protocol, self._decoder.sizes), self._holder.expected
        _read(arrived, n, session is not None, *known, is_line, expected, self._latest_ns)
        return None

    def _session_at(self, arrived: Arrived, row: int) -> tuple[Session, int]:
        start = row * arrived.slot_bytes
        header = HEADER.unpack(arrived.data[start : start + HEADER_BYTES].tobytes())
        _, _, _, channel, session, _, _, _, first, _ = header
        self._latest_ns[:] = 0
        return (session, channel), first

    def _decode(self, datagrams: Datagrams) -> Iterator[Chunk]:
        yield from self._decoder.chunks(datagrams)
        if self._decoder.stop is not None:
            raise SourceError(f"{self!r}: a checked datagram was not decoded, which is a bug: {self._decoder.stop}")

    def _pack_requests(self, session: Session, parts: Sequence[tuple[int, int]]) -> list[bytes]:
        number, channel = session
        stream = Stream(self._protocol, channel, number)
        ranges = [(first, first + count - 1) for first, count in parts]
        return [
            GapFillRequest(stream, tuple(ranges[at : at + _RANGES])).pack() for at in range(0, len(ranges), _RANGES)
        ]
