"""Binance's WebSocket frames, spot and futures, as written by collectors: lines of receive time and JSON frame.

    1723161254087896568 {"stream":"btcusdt@trade","data":{"e":"trade","E":1723161255343,"s":"BTCUSDT",...}}

A payload is the whole line with its line end, including the receive time. `split` takes it apart.

    Binance("btcusdt_20240808.gz").publish(publisher)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import numpy
from numpy.typing import NDArray

from blackbox.errors import ConfigError, SourceError
from blackbox.feed.schema.schema import QuoteFields, Schema, TradeFields
from blackbox.feed.source import Chunk, Source
from blackbox_feeds.io.losses import Losses, notes_of
from blackbox_feeds.io.open_window import open_window
from blackbox_feeds.io.template import DEFAULT_TOPIC, TopicForm

if TYPE_CHECKING:
    from blackbox.archive.export.time_order import Messages

__all__ = ["SCHEMA", "Binance", "export_binance", "split"]

SCHEMA = Schema(
    "binance",
    5,
    {},
    trades=(
        TradeFields("trade", "p", "q", only=("X", "MARKET"), id="t"),
        TradeFields("aggTrade", "p", "q", rank=1, id="a"),
    ),
    quotes=(QuoteFields("bookTicker", "b", "B", "a", "A", absent=0),),
    json="data",
)
"""The schema `binance`, number 5: payloads are lines of text, so it has no records.

Futures also send fills of the insurance fund and of auto-deleveraging as trades, marked only by `X`. Spot has no `X`.
"""

TimeUnit = Literal["ns", "us", "ms", "s"]

_EXPECTED: Final = "lines of receive time and JSON frame, plain, gzip or zstd"
_LF: Final = 10
_TIME_DIGITS: Final[dict[str, int]] = {"ns": 19, "us": 16, "ms": 13, "s": 10}
"""Digits of a receive time by its unit, from 2001 to 2286."""


class Binance(Source):
    """The frames of one file, in file order.

    `topic` is made from `{symbol}` and `{type}`. Both come from the frame's stream: `btcusdt@depth@100ms` becomes
    `btcusdt.depth`. A frame without a stream uses its event type and symbol. A requested order book (`lastUpdateId`)
    has the type `snapshot`. If it names no symbol, it gets that of the earlier frames if they all have the same, else
    `#unknown`. Frames about no symbol have the symbol `#system`. Symbols are in UTF-8 with the letters A to Z in lower
    case, as in names of streams.

    `ts_event` is the exchange's event time (`E`, else `T`). Frames without one, or with 0, such as spot's `bookTicker`,
    get the receive time. The collector's clock differs from the exchange's, so such a time may be before that of an
    earlier frame. `notes` counts them. `time_unit` is the unit of the receive times; us, ms and s may have a fraction.

    Bad lines are left out: `truncated` names the first ones and counts the others. A time outside the years 2000 to
    2099 is bad. The content of a damaged gzip member is left out too; reading continues with the next complete line.
    Empty lines are left out and counted in `notes`. A byte order mark before a line is dropped.

    Raises:
        ConfigError: an invalid topic or unit.
    """

    schema = SCHEMA

    def __init__(self, path: str | Path, topic: str = DEFAULT_TOPIC, time_unit: TimeUnit = "ns") -> None:
        if time_unit not in _TIME_DIGITS:
            raise ConfigError(f"time_unit was {time_unit!r}, expected one of: {', '.join(_TIME_DIGITS)}")
        self.path = Path(path)
        self._form = TopicForm(topic, locates=False)
        self._time_digits = _TIME_DIGITS[time_unit]

    def __repr__(self) -> str:
        return f"<Binance {self.path}>"

    def chunks(self) -> Iterator[Chunk]:
        """Yield the frames, up to 131,072 at a time."""
        from blackbox_feeds.binance.frame_reader import FrameReader
        from blackbox_feeds.io.lines import goes_on_after, losses

        self.truncated = None
        self.notes = ()
        reader = FrameReader(self._form, self._time_digits)
        ends = Losses("damaged places")
        with open_window(self.path, expected=_EXPECTED) as window:
            while True:
                for chunk in reader.chunks(window.data, window.last and window.fault is None):
                    yield chunk
                    window.release(int(chunk.starts[-1]))
                if not window.last:
                    window.slide(reader.position)
                    continue
                if not goes_on_after(window, reader.position, "line", ends):
                    break
                reader.skip_damage()
        self.truncated = "; ".join(losses(self.path, "lines", reader.lines, reader.bad, ends)) or None
        self.notes = notes_of(
            ("frames without an event time, which have their receive time", reader.without_time),
            ("empty lines left out", reader.empty),
        )


def split(payload: bytes) -> tuple[int, bytes]:
    """Return (receive time in ns since 1970-01-01 UTC, JSON frame) of a payload. The digits give the unit."""
    time, _, frame = payload.partition(b" ")
    whole, _, fraction = time.partition(b".")
    return int((whole + fraction).ljust(_TIME_DIGITS["ns"], b"0")), frame.rstrip(b"\r\n")


def export_binance(parts: Iterable[Messages]) -> Iterator[NDArray[numpy.uint8]]:
    """Yield the lines of these messages.

    Raises:
        SourceError: a message is empty.
    """
    open_end = False
    for part in parts:
        if not (part.offsets[1:] > part.offsets[:-1]).all():
            raise SourceError("a message had 0 bytes, expected a line of text")
        if open_end:
            yield numpy.array([_LF], numpy.uint8)
        ends = part.offsets[1:]
        bare = ends[part.payloads[ends - 1] != _LF]
        # Only the last line of a file may lack its end, and another file's lines may follow.
        inside = bare[bare < ends[-1]]
        yield numpy.insert(part.payloads, inside, _LF) if len(inside) else part.payloads
        open_end = len(inside) < len(bare)
