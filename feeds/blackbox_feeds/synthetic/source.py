"""A generated NASDAQ session of any size, as valid ITCH 5.0 bytes.

The bytes are the same for the same seed.

    Synthetic(10_000_000).publish(publisher)
    Synthetic(1_000_000, seed=11).write("20260105.itch")  # Itch50 reads it back
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date as Date  # noqa: N812 - `date` is the parameter's name
from pathlib import Path
from typing import Any, Self

import numpy
from numpy.typing import NDArray

from blackbox.errors import ConfigError, SourceError
from blackbox.feed.source import Chunk, Source, make_source
from blackbox_feeds.io.dates import midnight_ns, trading_day
from blackbox_feeds.io.statistics import new_counts
from blackbox_feeds.io.template import DEFAULT_TOPIC, TopicForm
from blackbox_feeds.itch50.messages import SCHEMA

WINDOW_MESSAGES = 131_072
_MIN_MESSAGES_PER_SYMBOL = 20
_SYSTEM_EVENTS = 6


class Synthetic(Source):
    """Exactly `messages` messages of a session: opening, orders and trades, closing.

        system event O | directory R | trading action H | S, Q | A F E C X D U P | M, E, C

    Every order reference resolves, and no book is ever crossed. Activity is Zipf-like over the
    symbols; prices walk tick by tick; the rate is high at the open and the close, low at noon, and
    has one-second bursts of ten times its mean. A session of few messages has fewer symbols than
    asked for, some twenty messages each; one of less than nine has no orders.

    The bytes depend on `messages`, `seed` and `symbols` alone, on any machine. `date` and `topic`
    are as in `Itch50`.

    Raises:
        ConfigError: an argument is out of range.
    """

    schema = SCHEMA
    date: Date

    def __init__(
        self,
        messages: int,
        seed: int = 7,
        symbols: int = 5_000,
        date: str | Date = "2026-01-05",
        topic: str = DEFAULT_TOPIC,
    ) -> None:
        _check_range("messages", messages, 0, 1 << 40)
        _check_range("seed", seed, 0, (1 << 64) - 1)
        _check_range("symbols", symbols, 1, 0xFFFF)
        self.total = messages
        self.messages = messages
        self.seed = seed
        most = max(1, (messages - _SYSTEM_EVENTS) // _MIN_MESSAGES_PER_SYMBOL)
        self.symbols = min(symbols, most)
        self.date = trading_day(date, "")
        self._form = TopicForm(topic, locates=True)

    def __repr__(self) -> str:
        return f"<Synthetic {self.messages:,} messages, {self.symbols:,} symbols, seed {self.seed}>"

    @classmethod
    def from_spec(cls, argument: str, **options: Any) -> Self:
        """Make a source from the number of messages as text, e.g. "1000000"."""
        try:
            messages = int(argument)
        except ValueError:
            raise ConfigError(f"synthetic: number of messages was {argument!r}, expected one such as 1000000") from None
        return make_source(cls, messages, options)

    def chunks(self) -> Iterator[Chunk]:
        """Yield the messages, up to 131,072 at a time."""
        from blackbox_feeds.itch50.decoder import FrameDecoder
        from blackbox_feeds.itch50.moldudp64 import Spans

        decoder = FrameDecoder(self._form, midnight_ns(self.date), new_counts())
        for window in self.windows():
            starts, ends = numpy.zeros(1, numpy.int64), numpy.array([len(window)], numpy.int64)
            yield from decoder.chunks(window, Spans(starts, ends, ()))

    def windows(self, messages: int = WINDOW_MESSAGES) -> Iterator[NDArray[numpy.uint8]]:
        """Yield the bytes of the session, each message behind its big-endian 2-byte length.

        One read-only array per up to `messages` messages.
        """
        from blackbox_feeds.synthetic.orders import Numbers, new_books
        from blackbox_feeds.synthetic.plan import locate_order, messages_before, ticker_names, zipf_tables
        from blackbox_feeds.synthetic.random import new_random
        from blackbox_feeds.synthetic.writer import MAX_FRAME_BYTES, write_messages

        names = ticker_names(self.symbols)
        name_words = numpy.array([name.ljust(8).encode() for name in names]).view("<i8")
        random = new_random(self.seed, 0)
        books = new_books(name_words, locate_order(names), random)
        body = max(0, self.messages - _SYSTEM_EVENTS - 2 * self.symbols)
        before = messages_before(new_random(self.seed, 1), body)
        keep, alias = zipf_tables(self.symbols)
        clock = numpy.zeros(1, numpy.int64)
        state = numpy.zeros(Numbers.dtype.itemsize // 8, numpy.int64)
        for first in range(0, self.messages, messages):
            count = min(messages, self.messages - first)
            out = numpy.empty(count * MAX_FRAME_BYTES, numpy.uint8)
            size = write_messages(out, 0, first, count, books, keep, alias, before, clock, state, random)
            window = out[:size]
            window.flags.writeable = False
            yield window

    def write(self, path: str | Path) -> int:
        """Write the session to a file that `Itch50` reads; return its size in bytes.

        Raises:
            SourceError: the file cannot be written.
        """
        try:
            with Path(path).open("wb") as file:
                file.writelines(window.data for window in self.windows())
                return file.tell()
        except OSError as error:
            raise SourceError(f"{path}: cannot be written: {error.strerror or error}") from error


def _check_range(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"synthetic: {name} was {value!r}, expected {low} to {high}")
