"""Serve a recorded day as Binance does: `blackbox replay DAY --serve binance+ws://HOST:PORT`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox.archive.recording import Recording
from blackbox.errors import ConfigError, JournalError, NoSubscriberError
from blackbox.feed.venue_url import Address
from blackbox.native.compile.jit import warm_up
from blackbox.native.tables.name_table import Numbering, number_of
from blackbox.replay.play.venue_server import VenueMessages, VenueServer
from blackbox_feeds.binance.libraries import check_libraries
from blackbox_feeds.binance.server.books import RecordedBooks
from blackbox_feeds.binance.server.hall import PATIENCE_S, Batch, Hall
from blackbox_feeds.binance.server.rest import NOT_YET, Rest, fault
from blackbox_feeds.binance.server.wire import COLUMNS, frames_of, locate

_MOST_STREAMS: Final = 1 << 16
_MEAN_NAME_BYTES: Final = 32
_BATCH_BYTES: Final = 1 << 20
_CLOSE_S: Final = 10.0
_MOST_PATIENCE_S: Final = 600


class BinanceServer(VenueServer):
    """Sends the frames of a recording as recorded to each client that has subscribed to their streams.

    Streams are served at `/stream?streams=A/B` (combined) and `/ws/A` (raw), with SUBSCRIBE, UNSUBSCRIBE and the other
    requests. Order books are served at `/api/v3/depth`, `/fapi/v1/depth` and `/dapi/v1/depth`: that of the present
    position of the replay, which needs a snapshot in the recording. A request before the first snapshot waits for it.
    A step back disconnects the clients, since numbers of frames never go back.
    """

    schemas: ClassVar[frozenset[str]] = frozenset({"binance"})

    class Options(msgspec.Struct):
        """Options of the URL."""

        patience_s: float = PATIENCE_S
        """Time in which a client with a full queue must take some of it. Unit: seconds."""

    def __init__(self, address: Address, recordings: Sequence[Recording], options: Options) -> None:
        if not 0 < options.patience_s <= _MOST_PATIENCE_S:
            raise ConfigError(
                f"option was patience_s={options.patience_s:g}, expected above 0 and at most {_MOST_PATIENCE_S} seconds"
            )
        check_libraries("serving Binance's protocol")
        self._hall = Hall(address, Rest(self._book), options.patience_s)
        self._address = address
        self._rules = recordings[0].feed.symbol_rule
        self._books = RecordedBooks(recordings)
        self._names = Numbering(_MOST_STREAMS, _MEAN_NAME_BYTES)
        self._stream_names: list[str] = []
        self._stream_of_topic = numpy.empty(0, numpy.int64)
        self._wanted: dict[frozenset[str], NDArray[numpy.bool_]] = {}
        self._position_ns = 0
        self._without_stream = 0
        nothing, none = numpy.zeros(0, numpy.int64), numpy.zeros(0, numpy.int32)
        located = numpy.empty((0, COLUMNS), numpy.int64)
        warm_up(locate, nothing, none, none, self._stream_of_topic, self._names.at, located)
        warm_up(frames_of, located, numpy.zeros(0, numpy.bool_), True, self._names.at)

    @property
    def port(self) -> int:
        """The port at which it listens."""
        return self._hall.port

    def open(self) -> None:
        """Listen. Raises EndpointError."""
        self._hall.open()

    def wait_for(self, clients: int, timeout: float | None) -> None:
        """Wait until clients have subscribed."""
        if not self._hall.wait_for(clients, timeout):
            raise NoSubscriberError(
                f"{clients} clients with streams were expected at {self._address}, but did not come in {timeout:g} s"
            )

    def send(self, messages: VenueMessages) -> None:
        """Send frames to the clients that want them."""
        self._number_topics(messages.topics)
        ends = numpy.cumsum(messages.lengths, dtype=numpy.int64)
        first = 0
        while first < len(ends):
            limit = (ends[first - 1] if first else 0) + _BATCH_BYTES
            last = max(first + 1, int(numpy.searchsorted(ends, limit, "right")))
            self._send(_part(messages, first, last))
            first = last

    def _send(self, messages: VenueMessages) -> None:
        located = numpy.empty((len(messages.lengths), COLUMNS), numpy.int64)
        if not locate(
            messages.addresses,
            messages.lengths,
            messages.topic_index,
            self._stream_of_topic,
            self._names.at,
            located,
        ):
            raise JournalError(f"the recording has more than {_MOST_STREAMS} streams: it is corrupt")
        self._without_stream += int(numpy.count_nonzero(located[:, 0] < 0))
        if len(self._names) > len(self._stream_names):
            self._stream_names += [
                name.decode("utf-8", "replace") for name in self._names.names(len(self._stream_names))
            ]
            self._wanted.clear()
        groups = self._hall.groups()
        self._wanted = {each.streams: self._wanted_by(each.streams) for each in groups}  # forgets those that left
        batch: Batch = []
        for group, clients in groups.items():
            wire, frames = frames_of(located, self._wanted[group.streams], group.is_combined, self._names.at)
            if frames:
                batch.append((clients, wire.data, frames))
        self._position_ns = max(self._position_ns, int(messages.ts_event.max()))
        self._hall.send(batch)

    def _wanted_by(self, streams: frozenset[str]) -> NDArray[numpy.bool_]:
        wanted = self._wanted.get(streams)
        return numpy.array([name in streams for name in self._stream_names], numpy.bool_) if wanted is None else wanted

    def _number_topics(self, topics: tuple[bytes, ...]) -> None:
        """Give each topic the stream of its frames that were recorded without a stream's name."""
        if len(topics) <= len(self._stream_of_topic):
            return
        numbers = []
        for topic in topics[len(self._stream_of_topic) :]:
            symbol = self._rules.symbol_of(topic)
            name = numpy.frombuffer(symbol + b"@" + topic[len(symbol) + 1 :], numpy.uint8)
            numbers.append(number_of(self._names.at, name.ctypes.data, len(name)))
        self._stream_of_topic = numpy.append(self._stream_of_topic, numpy.array(numbers, numpy.int64))

    def _book(self, symbol: str, levels: int) -> tuple[int, bytes]:
        """Return status and body of a request of an order book. Called by one thread."""
        name = symbol.lower().encode()
        if name not in self._books.symbols:
            return 400, fault(-1121, "Invalid symbol.")
        answer = self._books.answer(name, self._position_ns, levels) if self._position_ns else None
        if answer is None:
            return NOT_YET, fault(-1000, "no order book of this symbol was recorded so far")
        return 200, answer

    def jump(self, *, is_back: bool) -> None:
        """Disconnect the clients after a step back."""
        self._position_ns = 0
        if is_back:
            self._hall.disconnect_all("the replay went back")

    def end(self, *, at_once: bool) -> None:
        """Close all connections, after everything was sent unless `at_once`."""
        self._hall.disconnect_all("the replay has ended")
        self._hall.wait_for_none(0.0 if at_once else _CLOSE_S)

    def close(self) -> None:
        """Disconnect all clients."""
        self._hall.stop()

    def counts(self) -> dict[str, int]:
        """Return what was sent, and why clients were disconnected."""
        now = self._hall.counts
        return {
            "frames": now.frames,
            "connections": now.connections,
            "requests": self._hall.rest.requests,
            "slow_clients": now.slow,
            "silent_clients": now.silent,
            "too_many_clients": now.too_many,
            "messages_without_stream": self._without_stream,
        }


def _part(messages: VenueMessages, first: int, last: int) -> VenueMessages:
    part = slice(first, last)
    return messages._replace(
        ts_event=messages.ts_event[part],
        addresses=messages.addresses[part],
        lengths=messages.lengths[part],
        topic_index=messages.topic_index[part],
    )
