"""IEX TOPS 1.6 and DEEP 1.0: packet captures of IEX-TP, as IEX publishes them for past days.

pcap or pcapng, plain or gzip: the bytes tell, whatever the name says. Which of the two feeds it is
stands in the IEX-TP header of each datagram.

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
from blackbox.feed.schema import Schema
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
    """The messages of one capture of an IEX feed, in the order in which they were captured.

    `topic` is made from `{symbol}` and `{type}`; the system event message (type S), which has no
    symbol, has the symbol `#system`. `port` keeps only datagrams to that UDP port.

    The feed is that of the first TOPS 1.6 or DEEP 1.0 datagram; others are skipped and counted.
    Messages whose sequence number has been seen are skipped, unless the sequence starts again, as
    a later send time tells. Messages that fill a gap late are delivered where they come. Numbers that are still
    missing at the end of a chunk are a gap. A message of an unknown type, or whose symbol is not printable ASCII, is
    skipped, and one that is longer than specified is cut; `notes` count them. Times are UTC in the messages themselves.

    Raises:
        ConfigError: a topic or port that is not one.
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
        """`TOPS16` or `DEEP10`, as the first datagram of the capture says.

        Raises:
            SourceError: the file cannot be read, or holds neither.
        """
        protocol, stopped = self._protocol
        if protocol < 0:
            raise SourceError(stopped or f"{self.path}: no IEX-TP datagram was found")
        return PROTOCOLS[protocol]

    def statistics(self) -> InputStatistics:
        """Return what the iteration has met besides messages, so far."""
        return snapshot(self._counts)

    def follow(self, before: Source) -> bool:
        """Go on where an earlier capture of the same feed ended; see `Source.follow`."""
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
        """(the feed's protocol id or -1, why the capture ended too early before there was one)."""
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
    """These messages as the message blocks of IEX-TP: each behind its length, little-endian; without any header."""
    from blackbox_feeds.io.length_prefixed import length_prefixed

    return length_prefixed(parts, big_endian=False)
