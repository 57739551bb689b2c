"""Binance's WebSocket frames, spot and futures, as collectors write them: lines of receive time and JSON frame.

    1723161254087896568 {"stream":"btcusdt@trade","data":{"e":"trade","E":1723161255343,"s":"BTCUSDT",...}}

A payload is the whole line, its line end too: the receive time is in it, and nothing gets lost. `split` takes it apart.

    Binance("btcusdt_20240808.gz").publish(publisher)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy
from numpy.typing import NDArray

from blackbox.errors import SourceError
from blackbox.feed.schema import QuoteFields, Schema, TradeFields
from blackbox.feed.source import Chunk, Source
from blackbox_feeds.io.dates import day_of_name
from blackbox_feeds.io.open_window import open_window
from blackbox_feeds.io.template import DEFAULT_TOPIC, TopicForm

if TYPE_CHECKING:
    from blackbox.archive.export.time_order import Messages

__all__ = ["SCHEMA", "Binance", "export_binance", "split"]

SCHEMA = Schema(
    "binance",
    5,
    {},
    trades=(TradeFields("trade", "p", "q"), TradeFields("aggTrade", "p", "q", rank=1)),
    quotes=(QuoteFields("bookTicker", "b", "B", "a", "A"),),
    json="data",
)
"""The schema `binance`, number 5: payloads are lines of text, so it has no records."""

_EXPECTED: Final = "lines of receive time in ns and JSON frame, plain, gzip or zstd"
_LF: Final = 10


class Binance(Source):
    """The frames of one file, in file order.

    `topic` is made from `{symbol}` and `{type}`. Both come from the frame's stream, `btcusdt@depth@100ms` being
    `btcusdt.depth`; in a frame without one, from its event type and symbol. An order book that was asked for
    (`lastUpdateId`) has the type `snapshot`; some name no symbol, and have that of the frames before them if those are
    all of one, else `#unknown`. What is about no symbol at all has the symbol `#system`.

    `ts_event` is the exchange's event time (`E`, else `T`). Frames without one, such as spot's `bookTicker`, have the
    receive time; the collector's clock is another one than the exchange's, so such a time may stand before that of an
    earlier frame. How many they are is told in `notes`.

    Raises:
        ConfigError: a topic that is not one.
    """

    schema = SCHEMA

    def __init__(self, path: str | Path, topic: str = DEFAULT_TOPIC) -> None:
        self.path = Path(path)
        self.date = day_of_name(path)
        self._form = TopicForm(topic, locates=False)

    def __repr__(self) -> str:
        return f"<Binance {self.path}>"

    def chunks(self) -> Iterator[Chunk]:
        """Yield the frames, up to 131,072 at a time."""
        from blackbox_feeds.binance.frames import FrameReader

        self.truncated = None
        self.notes = ()
        reader = FrameReader(self._form)
        with open_window(self.path, expected=_EXPECTED) as window:
            while True:
                for chunk in reader.chunks(window.data, window.last and window.fault is None):
                    yield chunk
                    window.release(int(chunk.starts[-1]))
                if reader.fault is not None:
                    self.truncated = f"{window.path}, line {reader.lines + 1}: {reader.fault}"
                elif window.last:
                    self.truncated = window.ending(reader.position, "line")
                else:
                    window.slide(reader.position)
                    continue
                break
        if reader.without_time:
            self.notes = (f"frames without an event time, which have their receive time: {reader.without_time:,}",)


def split(payload: bytes) -> tuple[int, bytes]:
    """Return (receive time in ns since 1970-01-01 UTC, JSON frame) of a payload."""
    time, _, frame = payload.partition(b" ")
    return int(time), frame.rstrip(b"\r\n")


def export_binance(parts: Iterable[Messages]) -> Iterator[NDArray[numpy.uint8]]:
    """Yield the lines of these messages.

    Raises:
        SourceError: a message is empty, which no line is.
    """
    open_end = False
    for part in parts:
        if not (part.offsets[1:] > part.offsets[:-1]).all():
            raise SourceError("a message had 0 bytes, expected a line of text")
        if open_end:
            yield numpy.array([_LF], numpy.uint8)
        ends = part.offsets[1:]
        bare = ends[part.payloads[ends - 1] != _LF]
        # Only the last line of a file may lack its end; another file's lines may follow.
        inside = bare[bare < ends[-1]]
        yield numpy.insert(part.payloads, inside, _LF) if len(inside) else part.payloads
        open_end = len(inside) < len(bare)
