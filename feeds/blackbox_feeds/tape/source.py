"""Trades and quotes of the consolidated tape, as stored by QuantConnect's Lean: CSV in zip archives.

    trades: ms since midnight, price * 10,000, size, exchange, condition, suspicious
    quotes: ms since midnight, bid * 10,000, bid size, ask * 10,000, ask size, exchange, condition, suspicious

Payloads are records of fixed size with everything in a row, so that identical rows can be written again.

    Tape("equity/usa/tick", date="2013-10-07").publish(publisher)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from datetime import date as Date  # noqa: N812 - `date` is the parameter's name
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import numpy
from numpy.typing import NDArray

from blackbox.errors import ConfigError
from blackbox.feed.source import Chunk, Source
from blackbox_feeds.io.dates import trading_day
from blackbox_feeds.io.losses import notes_of
from blackbox_feeds.io.template import DEFAULT_TOPIC, TopicForm
from blackbox_feeds.tape.records import PRICE_SCALE, SCHEMA, TYPES

if TYPE_CHECKING:
    from zipfile import ZipFile

    from blackbox.archive.export.time_order import Messages
    from blackbox_feeds.tape.files import TapeFile
    from blackbox_feeds.tape.rows import RowReader

__all__ = ["PRICE_SCALE", "SCHEMA", "Tape", "export_tape"]

_DAY_BYTES: Final = 8 << 20
"""Text of all files of a day held at a time. Unit: bytes."""
_LEAST_BYTES: Final = 64 << 10


class Tape(Source):
    """The rows of one file, of several, or of all files in a directory, in order of their times.

    At equal times, quotes come before trades, then symbols in alphabetical order; the rows of a file keep their order.
    The tape does not have the order within a millisecond. With `first="trade"` trades come first. A row whose time is
    before that of an earlier one of its file stays after that one.

    A file's symbol, day and kind are in its name, see `blackbox_feeds.tape.files`. Times are local times in New York.
    `date` selects the files of that day. `topic` is made from `{symbol}` and `{type}`, which is `trade` or `quote`.

    Bad rows are left out, and so is the content of a damaged gzip member: `truncated` names the first ones of each file
    and counts the others. Reading continues with the next complete row. Empty lines are left out and counted in
    `notes`.

    Raises:
        ConfigError: an invalid date, topic or kind.
    """

    schema = SCHEMA

    def __init__(
        self,
        path: str | Path | Iterable[str | Path],
        date: str | Date | None = None,
        topic: str = DEFAULT_TOPIC,
        first: Literal["quote", "trade"] = "quote",
    ) -> None:
        if first not in TYPES:
            raise ConfigError(f"first was {first!r}, expected 'quote' or 'trade'")
        self._first = first
        self.paths = tuple(map(Path, [path] if isinstance(path, str | Path) else path))
        self.date = None if date is None else trading_day(date, "")
        self._topic, self._form = topic, TopicForm(topic, locates=False)

    def __repr__(self) -> str:
        day = f" {self.date}" if self.date else ""
        return f"<Tape {' '.join(map(str, self.paths))}{day}>"

    def by_day(self) -> list[Tape]:
        """Return a source for each day of the files. Raises SourceError as `chunks`."""
        from blackbox_feeds.tape.files import find

        days = dict.fromkeys(file.date for file in find(self.paths, self.date, self._first).files)
        return [Tape(self.paths, day, self._topic, self._first) for day in days]

    def chunks(self) -> Iterator[Chunk]:
        """Yield the rows, about a hundred thousand at a time.

        Raises:
            SourceError: a file cannot be opened, its name lacks symbol, day or kind, or two have the same ones.
        """
        from blackbox_feeds.tape.files import find

        self.truncated = None
        self.notes = ()
        found = find(self.paths, self.date, self._first)
        topics = [self._form.topic(file.symbol, file.kind.encode(), 0) for file in found.files]
        distinct = tuple(dict.fromkeys(topics))
        number = {topic: place for place, topic in enumerate(distinct)}
        faults: list[str] = []
        late = empty = 0
        files = zip(found.files, (number[topic] for topic in topics), strict=True)
        for _, group in groupby(files, key=lambda each: each[0].date):
            with ExitStack() as stack:
                readers = _open(list(group), stack)
                for rows in _in_order(readers):
                    yield Chunk(distinct, *rows)
                faults += [text for reader in readers for text in reader.lost]
                late += sum(reader.late for reader in readers)
                empty += sum(reader.empty for reader in readers)
        self.truncated = "; ".join(faults) or None
        self.notes = notes_of(
            ("files left out because their names tell no symbol, day and kind", found.unnamed),
            ("rows with a time before that of an earlier row of their file", late),
            ("empty lines left out", empty),
        )


def _open(files: list[tuple[TapeFile, int]], stack: ExitStack) -> list[RowReader]:
    from blackbox_feeds.io.zip_window import open_archive
    from blackbox_feeds.tape.rows import RowReader

    window_bytes = max(_LEAST_BYTES, _DAY_BYTES // len(files))
    archives: dict[Path, ZipFile] = {}
    readers = []
    for file, topic in files:
        if file.member is not None and file.path not in archives:
            archives[file.path] = stack.enter_context(open_archive(file.path))
        reader = RowReader(file, topic, window_bytes, archives.get(file.path))
        stack.callback(reader.close)
        readers.append(reader)
    return readers


_Rows = tuple[
    NDArray[numpy.int32], NDArray[numpy.int64], NDArray[numpy.uint8], NDArray[numpy.int64], NDArray[numpy.int32]
]


def _in_order(readers: list[RowReader]) -> Iterator[_Rows]:
    """Yield the rows of all files by position, equal ones by file: the columns of chunks, except topics.

    Each step yields the rows up to the earliest of the files' last read rows, because no unread row can precede it.
    """
    while True:
        for reader in readers:
            reader.read()
        readers = [reader for reader in readers if len(reader.rows.places)]
        if not readers:
            return
        bounds = [(int(reader.rows.places[-1]), i) for i, reader in enumerate(readers) if not reader.done]
        taken = [
            (reader, _before(reader.rows.places, i, min(bounds)) if bounds else len(reader.rows.places))
            for i, reader in enumerate(readers)
        ]
        yield _merged([(reader, many) for reader, many in taken if many])
        for reader, many in taken:
            reader.drop(many)


def _before(places: NDArray[numpy.int64], number: int, bound: tuple[int, int]) -> int:
    """Return the number of rows of file `number` that precede everything after the bound (place, file)."""
    place, file = bound
    return int(numpy.searchsorted(places, place, side="right" if number <= file else "left"))


def _merged(taken: list[tuple[RowReader, int]]) -> _Rows:
    counts = [many for _, many in taken]
    parts = [reader.first(many) for reader, many in taken]
    lengths = numpy.repeat(numpy.array([reader.record_bytes for reader, _ in taken], numpy.int32), counts)
    topic_index = numpy.repeat(numpy.array([reader.topic for reader, _ in taken], numpy.int32), counts)
    ts_event, places, records = (numpy.concatenate(column) for column in zip(*parts, strict=True))
    starts = numpy.cumsum(lengths, dtype=numpy.int64) - lengths
    if len(taken) > 1:
        order = numpy.argsort(places, kind="stable")
        topic_index, ts_event, starts, lengths = (each[order] for each in (topic_index, ts_event, starts, lengths))
    return topic_index, ts_event, records, starts, lengths


def export_tape(parts: Iterable[Messages]) -> Iterator[NDArray[numpy.uint8]]:
    """Yield these rows as a zip archive of CSV files, one per symbol, day and kind, named and written as by Lean."""
    from blackbox_feeds.tape.archive import archive_of

    return archive_of(parts)
