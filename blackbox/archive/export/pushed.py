"""Conditions of a query that a recording's index can use: bounds of numbers, and sets of topics, symbols or types.

They are taken from the parts of a query's condition that are joined by AND. Unknown parts are ignored: the query still
applies its whole condition, so a reader may return too much, but never too little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from blackbox.archive.export.table import text_of
from blackbox.errors import ConfigError
from blackbox.feed.feed import Feed
from blackbox.feed.routing.prefixes import common_prefix
from blackbox.feed.symbol_choice import SymbolChoice, starts_by_slice
from blackbox.timestamps import LEAST_NS

if TYPE_CHECKING:
    import pyarrow

    from blackbox.archive.data_frames import FrameOptions

EARLIEST: Final = -(1 << 63)
LATEST: Final = (1 << 63) - 1
NUMBERS: Final = ("slice", "ts_event", "ts_out", "ts_recv", "epoch", "sequence")
TEXTS: Final = ("topic", "symbol", "type")
_MOST_TEXTS: Final = 1_000
"""Larger sets do not limit the slices."""


class Pushed(NamedTuple):
    """Conditions that all wanted messages meet."""

    bounds: tuple[tuple[str, int, int], ...] = ()
    """Column, first and last integer; times in ns since 1970."""
    texts: tuple[tuple[str, frozenset[str]], ...] = ()
    """Column and its possible strings, as in a frame."""

    def both(self, more: Iterable[Pushed]) -> Pushed:
        """Return these conditions and others."""
        found = [self, *more]
        return Pushed(
            tuple(bound for each in found for bound in each.bounds),
            tuple(text for each in found for text in each.texts),
        )

    def limits(self, column: str) -> tuple[int, int]:
        """Return the first and last possible integer of a column."""
        found = [(low, high) for name, low, high in self.bounds if name == column]
        return max((low for low, _ in found), default=EARLIEST), min((high for _, high in found), default=LATEST)

    def has(self, topic: bytes, feed: Feed) -> bool:
        """Return True if messages of a topic may be wanted."""
        if not self.texts:
            return True
        parts = dict(zip(TEXTS, map(text_of, (topic, *feed.symbol_rule.split(topic))), strict=True))
        return all(parts[column] in texts for column, texts in self.texts)

    def starts(self, feed: Feed) -> list[list[tuple[bytes, bool]]]:
        """Return how wanted topics may start, each with True for a whole topic. One start of each list must match."""
        found = []
        for column, texts in self.texts:
            # A backslash may be an escaped byte.
            if column == "type" or len(texts) > _MOST_TEXTS or any("\\" in text for text in texts):
                continue
            names = [text.encode() for text in sorted(texts)]
            rule = feed.symbol_rule
            found.append(
                [(name, True) for name in names]
                if column == "topic"
                else [start for name in names for start in rule.topics_of(name)]
            )
        return found

    def slices(self, feed: Feed) -> set[int]:
        """Return the slices that may have wanted messages."""
        low, high = self.limits("slice")
        found = {slice_id for slice_id in range(len(feed.slices)) if low <= slice_id <= high}
        for starts in self.starts(feed):
            found &= set(starts_by_slice(feed, starts))
        return found

    def prefix(self, feed: Feed, prefix: bytes) -> bytes:
        """Return a prefix of all wanted topics, at least as long as `prefix`, which they also have."""
        commons = [common_prefix([start for start, _ in starts]) for starts in self.starts(feed) if starts]
        return max((each for each in commons if each.startswith(prefix)), key=len, default=prefix)

    def selected(self, feed: Feed, prefix: bytes, options: FrameOptions) -> FrameOptions:
        """Return options of a frame with `start`, `stop` and `symbols` limited, unless they are given."""
        low, high = self.limits("ts_event")
        if not {"start", "stop", "by"} & set(options) and LEAST_NS < low <= high:
            options = {**options, "start": low}
            if high < LATEST:
                options = {**options, "stop": high + 1}
        names = next((texts for column, texts in self.texts if column == "symbol"), frozenset())
        if "symbols" not in options and len(names) <= _MOST_TEXTS and not any("\\" in name for name in names):
            with suppress(ConfigError):  # the feed has no such topics
                SymbolChoice.of(feed, names, prefix)
                options = {**options, "symbols": sorted(names)}
        return options


Read = Callable[[list[str] | None, Pushed], Iterator["pyarrow.RecordBatch"]]
"""Yields batches of some columns (None: all) with all rows that meet the conditions, and perhaps others."""


def compared(column: str, sign: str, values: list[int]) -> Pushed:
    """Return the condition that a column of integers compares with a value, or is "in" some values."""
    low, high = EARLIEST, LATEST
    if sign in ("==", ">=", ">", "in"):
        low = min(values) + (sign == ">")
    if sign in ("==", "<=", "<", "in"):
        high = max(values) - (sign == "<")
    return Pushed(bounds=((column, max(low, EARLIEST), min(high, LATEST)),))
