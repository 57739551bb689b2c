"""Select recorded messages: by index entry, by record head, and by row of a block."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple, TypedDict

import numpy
from numpy.typing import NDArray

from blackbox.archive.files.index_entry import bit_of
from blackbox.archive.read.rows import select_rows
from blackbox.arguments import did_you_mean
from blackbox.block.form.block import Block
from blackbox.block.form.format import FLAG_SEQUENCES, layout_of, read_header
from blackbox.errors import ConfigError
from blackbox.feed.feed import Feed
from blackbox.feed.routing.key_rule import key_size, start_of_keys
from blackbox.feed.symbol_choice import CHOSEN, SymbolChoice, TopicChoice
from blackbox.native.compile.jit import njit
from blackbox.native.memory.intrinsics import int32s_at
from blackbox.native.tables.prefix_trie import Trie, longest_prefix
from blackbox.timestamps import is_time_of_day

Clock = Literal["ts_event", "ts_out", "ts_recv"]
"""The time by which messages are selected."""

Time = int | datetime.datetime | str
"""A time: ns since 1970, an aware datetime, or a text, see `Recording.time`."""


class Selection(TypedDict, total=False):
    """Keywords that select messages, the same wherever a recording is read. By default all are selected."""

    start: Time | None
    """The first time."""
    stop: Time | None
    """The end of the times, exclusive."""
    by: Clock
    """The time that `start` and `stop` apply to: `ts_event`, the default, is each message's; `ts_out` and `ts_recv` are
    its block's."""
    slices: Iterable[int] | None
    """The slices to read."""
    epoch: int | None
    """The publisher's epoch."""
    first_sequence: int | None
    """The first sequence number."""
    symbols: Sequence[str | bytes] | None
    """Only messages with exactly one of these symbols, which the feed's `symbol` and `separator` define."""


def check_options(given: Iterable[str], known: Iterable[str]) -> None:
    """Raise TypeError for an unknown keyword, such as a misspelt one, instead of ignoring it."""
    known = sorted(known)
    for name in given:
        if name not in known:
            raise TypeError(f"option was {name!r}, expected one of: {', '.join(known)}{did_you_mean(name, known)}")


def check_range(start: Time | None, stop: Time | None, start_ns: int, stop_ns: int) -> None:
    """Raise ConfigError if a time range ends before it begins, instead of selecting nothing.

    Ranges with a time of day may be empty on some days.
    """
    if start_ns > stop_ns and is_time_of_day(start) == is_time_of_day(stop):
        raise ConfigError(f"start was {start!r}, which is after stop={stop!r}")


CLOCKS: Final = ("ts_event", "ts_out", "ts_recv")
_EARLIEST: Final = -(1 << 63)
_LATEST: Final = (1 << 63) - 1


class Filter(NamedTuple):
    """Conditions on messages. None: no condition."""

    key_rule: int
    """The feed's key rule."""
    prefix: bytes = b""
    """Prefix of their topics."""
    of_keys: bool = False
    """True if the keys of their topics begin with `prefix`."""
    start: int | None = None
    """The first time, ns since 1970."""
    stop: int | None = None
    """The end of the times, exclusive, ns since 1970."""
    by: Clock = "ts_event"
    """The time that `start` and `stop` apply to."""
    epoch: int | None = None
    """The publisher's epoch."""
    first_sequence: int | None = None
    """The first sequence number."""
    symbols: SymbolChoice | None = None
    """Their symbols, with the same `prefix` as this filter."""
    bounds: tuple[tuple[str, int, int], ...] = ()
    """First and last value of more columns, for entries and heads alone: a clock, "epoch" or "sequence"."""

    def entries(self, entries: NDArray[Any]) -> NDArray[numpy.bool_]:
        """Return bool[n]: index entries that may cover such messages."""
        may = numpy.ones(len(entries), bool)
        if self.start is not None:
            may &= entries[f"max_{self.by}"] >= self.start
        if self.stop is not None:
            may &= entries[f"min_{self.by}"] < self.stop
        if self.epoch is not None:
            may &= entries["epoch"] == self.epoch
        if self.first_sequence is not None:
            may &= entries["max_sequence"] >= self.first_sequence
        for name, first, last in self.bounds:
            low, high = ("epoch", "epoch") if name == "epoch" else (f"min_{name}", f"max_{name}")
            may &= (entries[high] >= first) & (entries[low] <= last)
        if (bit := self._bit()) is not None:
            may &= entries["keys"] & bit != 0
        return may

    def records(self, heads: NDArray[Any]) -> NDArray[numpy.bool_]:
        """Return bool[n]: records that may hold such messages, according to their heads."""
        may = numpy.ones(len(heads), bool)
        if self.by != "ts_event":
            if self.start is not None:
                may &= heads[self.by] >= self.start
            if self.stop is not None:
                may &= heads[self.by] < self.stop
        if self.epoch is not None:
            may &= heads["epoch"] == self.epoch
        if self.first_sequence is not None:
            may &= (heads["sequence"] + heads["count"] > self.first_sequence) | (heads["flags"] & FLAG_SEQUENCES != 0)
        for name, first, last in self.bounds:
            if name in ("ts_out", "ts_recv", "epoch"):
                may &= (heads[name] >= first) & (heads[name] <= last)
        return may

    def _bit(self) -> numpy.uint64 | None:
        key = self.prefix if self.of_keys else start_of_keys(self.key_rule, self.prefix)
        if len(key) < key_size(self.key_rule):
            return None
        text = numpy.frombuffer(key or b"\0", numpy.uint8)
        return numpy.uint64(bit_of(text.ctypes.data, len(key)))


class RowFilter:
    """Selects rows of checked blocks."""

    def __init__(self, wanted: Filter) -> None:
        self._prefix = numpy.frombuffer(wanted.prefix or b"\0", numpy.uint8)
        self._prefix_bytes = len(wanted.prefix)
        self._first_sequence = wanted.first_sequence
        by_row = wanted.by == "ts_event"
        self._first_time = wanted.start if by_row and wanted.start is not None else _EARLIEST
        self._last_time = wanted.stop - 1 if by_row and wanted.stop is not None else _LATEST
        self._takes_all = not wanted.prefix and (self._first_time, self._last_time) == (_EARLIEST, _LATEST)
        self._scratch = numpy.empty(1_024, numpy.int32)
        self._symbols = None if wanted.symbols is None else SymbolRows(wanted.symbols)

    def rows(self, block: Block, first_row: int, header: int, body: int) -> NDArray[numpy.int32] | None:
        """Return int32[m], the selected rows from `first_row` on; None for all rows of the block.

        `header` and `body` are the block's addresses.
        """
        rows = self._rows(block, first_row, header, body)
        return rows if self._symbols is None else self._symbols.of(rows, block, header, body)

    def _rows(self, block: Block, first_row: int, header: int, body: int) -> NDArray[numpy.int32] | None:
        count = block.count
        if self._first_sequence is not None:
            first_row = max(first_row, int(numpy.searchsorted(block.sequences, self._first_sequence)))
        if self._takes_all:
            return numpy.arange(first_row, count, dtype=numpy.int32) if first_row else None
        if len(self._scratch) < count:
            self._scratch = numpy.empty(count, numpy.int32)
        many = select_rows(
            header,
            body,
            first_row,
            self._prefix.ctypes.data,
            self._prefix_bytes,
            self._first_time,
            self._last_time,
            self._scratch.ctypes.data,
        )
        return None if many == count else self._scratch[:many].copy()


class SymbolRows:
    """Selects rows by the symbols of their topics."""

    def __init__(self, symbols: SymbolChoice) -> None:
        """Select topics as `SymbolChoice.has`."""
        self._trie = TopicChoice(symbols.texts, symbols).trie()

    def of(self, rows: NDArray[numpy.int32] | None, block: Block, header: int, body: int) -> NDArray[numpy.int32]:
        """Return the selected ones of some rows, or of all if None. `header` and `body` are the block's addresses."""
        chosen = numpy.empty(block.topic_count, numpy.bool_)
        _choose_topics(header, body, self._trie, chosen)
        index = block.topic_index
        found = numpy.flatnonzero(chosen[index]) if rows is None else rows[chosen[index[rows]]]
        return found.astype(numpy.int32, copy=False)


@njit(nogil=True, cache=True)
def _choose_topics(header: int, body: int, trie: Trie, chosen: NDArray[numpy.bool_]) -> None:
    block = read_header(header)
    layout = layout_of(block)
    offsets = int32s_at(body + layout.topic_offsets, block.topics + 1)
    for topic in range(block.topics):
        start = numpy.int64(offsets[topic])
        size = numpy.int64(offsets[topic + 1]) - start
        chosen[topic] = longest_prefix(trie, body + layout.topics + start, size) == CHOSEN


def filter_of(feed: Feed, time: Callable[[Time, Clock], int], prefix: bytes, selection: Selection) -> Filter:
    """Return the conditions of a selection from a recorded day. Raises as `Recording.batches`.

    `time`: `Recording.time` of that day.
    """
    check_options(selection, Selection.__optional_keys__)
    by, epoch = selection.get("by", "ts_event"), selection.get("epoch")
    start, stop = selection.get("start"), selection.get("stop")
    if by not in CLOCKS:
        raise ValueError(f"by was {by!r}, expected one of: {', '.join(CLOCKS)}")
    if epoch is not None and not 0 <= epoch < 1 << 63:
        raise ValueError(f"epoch was {epoch}, expected 0 to 2^63 - 1")
    start_ns = None if start is None else time(start, by)
    stop_ns = None if stop is None else time(stop, by)
    if start_ns is not None and stop_ns is not None:
        check_range(start, stop, start_ns, stop_ns)
    symbols = selection.get("symbols")
    chosen = None if symbols is None else SymbolChoice.of(feed, symbols, prefix)
    return Filter(
        feed.key_rule,
        prefix if chosen is None else chosen.prefix,
        False,
        start_ns,
        stop_ns,
        by,
        epoch,
        selection.get("first_sequence"),
        chosen,
    )
