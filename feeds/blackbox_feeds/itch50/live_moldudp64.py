"""MoldUDP64 live: NASDAQ TotalView-ITCH 5.0 from one or two lines, with requests for lost messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from datetime import date as Date  # noqa: N812 - `date` is the parameter's name
from typing import Any, Final, Self

import numpy
from numpy.typing import NDArray

from blackbox.errors import SourceError
from blackbox.feed.source import Chunk, make_source
from blackbox.feed.venue_url import Address, VenueUrl, options_of
from blackbox.native.compile.jit import njit
from blackbox.timestamps import zone_of
from blackbox_feeds.io import sequence as sequences
from blackbox_feeds.io.dates import NEW_YORK, midnight_ns, trading_day
from blackbox_feeds.io.integers import big_16, big_64
from blackbox_feeds.io.pcap import Datagrams
from blackbox_feeds.io.template import DEFAULT_TOPIC, TopicForm
from blackbox_feeds.itch50.decoder import FrameDecoder, Reason, judge_whole
from blackbox_feeds.itch50.messages import SCHEMA
from blackbox_feeds.itch50.moldudp64 import END_OF_SESSION, HEADER, HEADER_BYTES, MoldUdp64
from blackbox_feeds.live.datagram_source import CHUNK_MESSAGES, FOREIGN, MALFORMED, DatagramSource, Session
from blackbox_feeds.live.gap_holder import Arrived, Form
from blackbox_feeds.live.settings import LineSettings

FORM: Final = Form(HEADER_BYTES, sequence_at=10, count_at=18, payload_bytes_at=-1, is_big_endian=True)
_MOST_SEQUENCE: Final = 1 << 62


class MoldUdp64Settings(LineSettings, frozen=True, kw_only=True):
    """Options of the URL."""

    rerequest: str | None = None
    """HOST:PORT of the re-request server."""


@njit(nogil=True, cache=True)
def _are_whole(data: NDArray[numpy.uint8], start: int, end: int, count: int) -> bool:
    """Return True if `count` messages fill the bytes, and none is too short for its type."""
    position = start
    for _ in range(count):
        if position + 2 > end:
            return False
        after = position + 2 + big_16(data, position)
        if after > end or (after > position + 2 and judge_whole(data, position) != Reason.END):
            return False
        position = after
    return position <= end


@njit(nogil=True, cache=True)
def _read(arrived: Arrived, n: int, has_session: bool, name: int, number: int) -> int:
    """Set `first` and `end` of the datagrams; return the sequence at the end of the session, or -1."""
    ended_at = -1
    for row in range(n):
        start, length = row * arrived.slot_bytes, arrived.lengths[row]
        arrived.first[row] = MALFORMED
        if length < HEADER_BYTES:
            continue
        first, count = big_64(arrived.data, start + 10), big_16(arrived.data, start + 18)
        is_last = count == END_OF_SESSION
        count = 0 if is_last else count
        blocks = start + HEADER_BYTES
        if not 1 <= first < _MOST_SEQUENCE or not _are_whole(arrived.data, blocks, start + length, count):
            continue
        if not has_session or big_64(arrived.data, start) != name or big_16(arrived.data, start + 8) != number:
            arrived.first[row] = FOREIGN
            continue
        arrived.first[row], arrived.end[row] = first, first + count
        if is_last:
            ended_at = first
    return ended_at


class MoldUdp64Client(DatagramSource):
    """The messages of a MoldUDP64 session, until it ends.

    `url`: `//GROUP:PORT?NAME=VALUE&...`, with the options of `MoldUdp64Settings`. A GROUP that is no multicast address
    is one of this machine, which receives unicast. `date` is the trading day in New York, from which times count;
    default: today. `topic` as in `Itch50`.

    A gap is held while the other line may fill it and while it is requested. Messages that the venue does not deliver
    in time are a gap, at their position and with their number.

    Raises:
        ConfigError: an invalid URL, date or topic.
    """

    schema = SCHEMA
    form = FORM
    date: Date

    def __init__(self, url: str, date: str | Date | None = None, topic: str = DEFAULT_TOPIC) -> None:
        parsed = VenueUrl.of(url if "://" in url else f"moldudp64:{url}")
        settings = options_of(parsed, MoldUdp64Settings)
        server = None if settings.rerequest is None else Address.of(settings.rerequest, "option rerequest")
        super().__init__(parsed.address, settings, server)
        self._url = url
        self.date = datetime.now(UTC).astimezone(zone_of(NEW_YORK)).date() if date is None else trading_day(date, url)
        form = TopicForm(topic, locates=True)
        self._decoder = FrameDecoder(form, midnight_ns(self.date), self._input_counts, CHUNK_MESSAGES)
        self._mold = MoldUdp64(self._input_counts, sequences.Sequence())

    def __repr__(self) -> str:
        return f"<MoldUdp64Client {self._url}>"

    @classmethod
    def from_spec(cls, argument: str, **options: Any) -> Self:
        """Make a client of the part of a specification after `moldudp64:`; see `Source.from_spec`."""
        return make_source(cls, argument, options)

    def _read_headers(
        self,
        arrived: Arrived,
        n: int,
        session: Session | None,
        *,
        is_line: bool,  # noqa: ARG002
    ) -> int | None:
        name, number, *_ = session or (0, 0)
        ended_at = int(_read(arrived, n, session is not None, name, number))
        return None if ended_at < 0 else ended_at

    def _session_at(self, arrived: Arrived, row: int) -> tuple[Session, int]:
        start = row * arrived.slot_bytes
        text, first, _ = HEADER.unpack(arrived.data[start : start + HEADER_BYTES].tobytes())
        return _as_session(text), first

    def _decode(self, datagrams: Datagrams) -> Iterator[Chunk]:
        yield from self._decoder.chunks(datagrams.data, self._mold.spans(datagrams), is_framed=True)
        if self._decoder.stop is not None or self._mold.stopped is not None:
            raise SourceError(f"{self!r}: a checked datagram was not decoded, which is a bug: {self._decoder.stop}")

    def _pack_requests(self, session: Session, parts: Sequence[tuple[int, int]]) -> list[bytes]:
        text = session[0].to_bytes(8, "big", signed=True) + session[1].to_bytes(2, "big")
        return [HEADER.pack(text, first, count) for first, count in parts]


def _as_session(text: bytes) -> Session:
    """Return the ten bytes of a session's name as the integers that compiled code reads."""
    return int.from_bytes(text[:8], "big", signed=True), int.from_bytes(text[8:], "big")
