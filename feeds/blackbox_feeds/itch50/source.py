"""NASDAQ TotalView-ITCH 5.0: plain or gzip files of messages, or MoldUDP64 in packet captures.

Files are detected by content: a capture starts with the magic number of pcap or pcapng; anything else is read as
messages with a big-endian 2-byte length prefix.

    Itch50("12302019.NASDAQ_ITCH50.gz").publish(publisher)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import date as Date  # noqa: N812 - `date` is the parameter's name
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
from numpy.typing import NDArray

from blackbox.errors import ConfigError
from blackbox.feed.source import Chunk, Source
from blackbox_feeds.io.dates import midnight_ns, trading_day
from blackbox_feeds.io.open_window import open_window
from blackbox_feeds.io.statistics import InputStatistics, new_counts, snapshot
from blackbox_feeds.io.template import DEFAULT_TOPIC, TopicForm, check_port
from blackbox_feeds.io.window import FileWindow
from blackbox_feeds.itch50.messages import MWCB_PRICE_SCALE, PRICE_SCALE, SCHEMA, timestamps_ns

if TYPE_CHECKING:
    from blackbox.archive.export.time_order import Messages
    from blackbox_feeds.io.sequence import Sequence
    from blackbox_feeds.itch50.decoder import FrameDecoder

__all__ = ["MWCB_PRICE_SCALE", "PRICE_SCALE", "SCHEMA", "Itch50", "export_itch50", "timestamps_ns"]

_EXPECTED = "an ITCH 5.0 file or a capture of its MoldUDP64 datagrams, plain or gzip"
_MAGIC_BYTES = 4


class Itch50(Source):
    """The messages of one ITCH 5.0 file, in file order.

    `date` is the trading day in New York, from which the times in the file count; by default it is taken from the file
    name. `topic` is made from `{symbol}`, `{type}` and `{locate}`. The symbol is that of the message's locate, from
    earlier messages with a stock; until then it is `#` and the locate, e.g. `#13`. The messages about the whole market
    (types S, V, W) have the symbol `#system`. `port` selects datagrams to that UDP port of a capture.

    Payloads of a plain file are not copied: they stay in the memory-mapped file. In a capture, messages with a known
    MoldUDP64 sequence number are skipped, so two lines in one capture are one stream; messages that fill a gap late are
    delivered where they occur. Numbers still missing after some ten thousand datagrams are a gap. A message of an
    unknown type is skipped, a longer one than specified is cut, and one with a symbol that is not printable ASCII is
    skipped; `notes` count them.

    Raises:
        ConfigError: no date, or an invalid date, topic or port.
        SourceError: no date, and the file cannot be read.
    """

    schema = SCHEMA
    date: Date

    def __init__(
        self,
        path: str | Path,
        date: str | Date | None = None,
        topic: str = DEFAULT_TOPIC,
        port: int | None = None,
    ) -> None:
        self.path = Path(path)
        try:
            self.date = trading_day(date, path)
        except ConfigError:
            open_window(self.path, expected=_EXPECTED).close()  # a wrong path also has no date: report the path
            raise
        self._form = TopicForm(topic, locates=True)
        self._port = check_port(port)
        self._counts = new_counts()
        self._begin: Sequence | None = None
        self._sequence: Sequence | None = None

    def __repr__(self) -> str:
        return f"<Itch50 {self.path} {self.date}>"

    def statistics(self) -> InputStatistics:
        """Return counts of other things than messages, so far."""
        return snapshot(self._counts)

    def follow(self, before: Source) -> bool:
        """Continue where an earlier capture ended; see `Source.follow`."""
        self._begin = before._sequence if isinstance(before, Itch50) else None
        return self._begin is not None

    def chunks(self) -> Iterator[Chunk]:
        """Yield the messages, up to 131,072 at a time."""
        from blackbox_feeds.io.pcap import is_capture
        from blackbox_feeds.itch50.decoder import FrameDecoder

        self.truncated = None
        self.notes = ()
        self._counts = new_counts()
        decoder = FrameDecoder(self._form, midnight_ns(self.date), self._counts)
        with open_window(self.path, expected=_EXPECTED) as window:
            if is_capture(window.data):
                yield from self._from_capture(window, decoder)
            else:
                yield from self._from_frames(window, decoder)
        self.notes = self.statistics().notes()

    def _from_frames(self, window: FileWindow, decoder: FrameDecoder) -> Iterator[Chunk]:
        from blackbox_feeds.itch50.decoder import Reason, describe
        from blackbox_feeds.itch50.moldudp64 import Spans

        while True:
            end = position = len(window.data)
            for chunk in decoder.chunks(window.data, Spans(_column(0), _column(end), ()), is_all=window.last):
                yield chunk
                window.release(int(chunk.starts[-1]))
            stop = decoder.stop
            if stop is not None:
                position = stop.position
                if stop.why == Reason.END_MARK and position + 2 == end:
                    # A file may close a session with a length of 0, as in BinaryFILE.
                    position = end if window.last else position
                elif stop.why != Reason.PARTIAL:
                    self.truncated = describe(stop, window.data, window.path, window.start)
                    if window.start + position == 0:
                        begin = window.data[:_MAGIC_BYTES].tobytes()
                        self.truncated += f"; the file begins with {begin!r}, expected {_EXPECTED}"
                    return
            if window.last:
                self.truncated = window.ending(position, "message")
                return
            window.slide(position)

    def _from_capture(self, window: FileWindow, decoder: FrameDecoder) -> Iterator[Chunk]:
        from blackbox_feeds.io.pcap import Capture
        from blackbox_feeds.io.sequence import Sequence
        from blackbox_feeds.itch50.decoder import describe
        from blackbox_feeds.itch50.moldudp64 import MoldUdp64

        capture = Capture(window, self._port, self._counts)
        self._sequence = Sequence(self._begin)
        mold = MoldUdp64(self._counts, self._sequence)
        for datagrams in capture.datagrams():
            yield from decoder.chunks(datagrams.data, mold.spans(datagrams), is_framed=True)
            if decoder.stop is not None:
                self.truncated = describe(decoder.stop, datagrams.data, window.path, datagrams.offset)
                return
            if mold.stopped is not None:
                self.truncated = f"{window.path}: {mold.stopped}"
                return
        self.truncated = capture.stopped


def export_itch50(parts: Iterable[Messages]) -> Iterator[NDArray[numpy.uint8]]:
    """Yield the bytes of a file of these messages, as `Itch50` reads it: each after its big-endian length."""
    from blackbox_feeds.io.length_prefixed import length_prefixed

    return length_prefixed(parts, big_endian=True)


def _column(value: int) -> NDArray[numpy.int64]:
    return numpy.array([value], numpy.int64)
