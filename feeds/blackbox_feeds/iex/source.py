"""IEX TOPS 1.6 and DEEP 1.0: packet captures of IEX-TP, as IEX publishes them for past days.

pcap or pcapng, plain or gzip, detected by content, not by name. The IEX-TP header of each datagram identifies the feed.

    Iex("data_feeds_20180127_IEXTP1_DEEP1.0.pcap.gz").publish(publisher)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
from numpy.typing import NDArray

from blackbox.errors import SourceError
from blackbox.feed.schema.schema import Schema
from blackbox.feed.source import Chunk, Source
from blackbox_feeds.iex.messages import DEEP10, PRICE_SCALE, PROTOCOLS, TOPS16
from blackbox_feeds.io.open_window import open_window
from blackbox_feeds.io.statistics import InputStatistics, new_counts, snapshot
from blackbox_feeds.io.template import DEFAULT_TOPIC, TopicForm, check_port

if TYPE_CHECKING:
    from blackbox.archive.export.time_order import Messages
    from blackbox_feeds.io.sequence import Sequence

__all__ = ["DEEP10", "PRICE_SCALE", "TOPS16", "Iex", "export_iex"]

_EXPECTED = "a pcap or pcapng capture of IEX TOPS 1.6 or DEEP 1.0, plain or gzip"


class Iex(Source):
    """The messages of one capture of an IEX feed, in captured order.

    `topic` is made from `{symbol}` and `{type}`. The system event message (type S), which has no symbol, has the symbol
    `#system`. `port` selects datagrams to that UDP port.

    The feed is that of the first TOPS 1.6 or DEEP 1.0 datagram; others are skipped and counted. Messages with a known
    sequence number are skipped, unless the sequence starts again, which a later send time shows. Messages that fill a
    gap late are delivered where they occur. Numbers still missing at the end of a chunk are a gap. A message of an
    unknown type, or with a symbol that is not printable ASCII, is skipped, and a longer one than specified is cut;
    `notes` count them. Times in the messages are UTC.

    Raises:
        ConfigError: an invalid topic or port.
    """

    def __init__(self, path: str | Path, topic: str = DEFAULT_TOPIC, port: int | None = None) -> None:
        self.path = Path(path)
        self._form = TopicForm(topic, locates=False)
        self._port = check_port(port)
        self._counts = new_counts()
        self._begin: Sequence | None = None
        self._sequence: Sequence | None = None

    def __repr__(self) -> str:
        return f"<Iex {self.path}>"

    @property
    def schema(self) -> Schema:
        """`TOPS16` or `DEEP10`, from the first datagram of the capture.

        Raises:
            SourceError: the file cannot be read, or has neither.
        """
        protocol, stopped = self._protocol
        if protocol < 0:
            raise SourceError(stopped or f"{self.path}: no IEX-TP datagram was found")
        return PROTOCOLS[protocol]

    def statistics(self) -> InputStatistics:
        """Return counts of other things than messages, so far."""
        return snapshot(self._counts)

    def follow(self, before: Source) -> bool:
        """Continue where an earlier capture of the same feed ended; see `Source.follow`."""
        self._begin = None
        if isinstance(before, Iex) and before._protocol[0] == self._protocol[0]:
            self._begin = before._sequence
        return self._begin is not None

    def chunks(self) -> Iterator[Chunk]:
        """Yield the messages, up to 131,072 at a time."""
        from blackbox_feeds.iex.decoder import DatagramDecoder, describe
        from blackbox_feeds.io.pcap import Capture
        from blackbox_feeds.io.sequence import Sequence

        self.notes = ()
        self._counts = new_counts()
        protocol, self.truncated = self._protocol
        if self.truncated is not None:
            return
        schema = self.schema
        self._sequence = Sequence(self._begin)
        decoder = DatagramDecoder(self._form, protocol, self._counts, self._sequence)
        with open_window(self.path, expected=_EXPECTED) as window:
            capture = Capture(window, self._port, self._counts)
            for datagrams in capture.datagrams():
                yield from decoder.chunks(datagrams)
                if decoder.stop is not None:
                    self.truncated = describe(decoder.stop, datagrams, schema, window.path)
                    break
            else:
                self.truncated = capture.stopped
        self.notes = self.statistics().notes()

    @cached_property
    def _protocol(self) -> tuple[int, str | None]:
        """Return (the feed's protocol id or -1, why the capture ended before one was found)."""
        from blackbox_feeds.iex.decoder import find_protocol
        from blackbox_feeds.io.pcap import Capture

        other = -1
        with open_window(self.path, expected=_EXPECTED) as window:
            capture = Capture(window, self._port)
            for datagrams in capture.datagrams():
                protocol, unknown = find_protocol(datagrams.data, datagrams.starts, datagrams.lengths)
                if protocol >= 0:
                    return protocol, None
                other = unknown if other < 0 else other
        if other >= 0:
            known = ", ".join(f"{key:#x} ({PROTOCOLS[key].name})" for key in PROTOCOLS)
            raise SourceError(f"{self.path}: IEX-TP protocol was {other:#x}, expected {known}")
        return -1, capture.stopped


def export_iex(parts: Iterable[Messages]) -> Iterator[NDArray[numpy.uint8]]:
    """Yield these messages as IEX-TP message blocks: each after its little-endian length, without headers."""
    from blackbox_feeds.io.length_prefixed import length_prefixed

    return length_prefixed(parts, big_endian=False)
