"""Read several recordings as one."""

from __future__ import annotations

import datetime
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, Unpack, overload

from blackbox.archive.data_frames import ROWS, FrameOptions, Frames, InstrumentsOfDays, TicksOfDays, needs, scanned
from blackbox.archive.files.day import MANIFEST, Date, as_date, recorded_days
from blackbox.archive.files.segment import Damage, Segment
from blackbox.archive.objects.fetch import fetch_days
from blackbox.archive.objects.store import is_stored
from blackbox.archive.read.filter import Clock, Filter, Selection
from blackbox.archive.read.overview import recordings_view
from blackbox.archive.read.read_by_time import ByTime
from blackbox.archive.read.reader import Bodies, RecordRun, Report, read_runs
from blackbox.archive.recording import Recording
from blackbox.archive.schema_changes import SchemaChange, has_one_layout, schema_changes
from blackbox.arguments import message_types_of
from blackbox.block.batch.batch import Batch
from blackbox.block.gap import Gap
from blackbox.errors import ConfigError, JournalError
from blackbox.feed.routing.key_rule import rule_text
from blackbox.feed.schema.document import SchemaDocument

if TYPE_CHECKING:
    import pyarrow

    from blackbox.archive.export.columns import Columns
    from blackbox.archive.export.pushed import Pushed

_DAYS_SHOWN: Final = 5
"""Number of first and last days that errors name."""


class Recordings(Frames):
    """Several days, read as one: of one feed, or of several with the same keys.

    Attributes: `days`, the recordings by date, without duplicates; `feeds`, their names, in the order given; `feed` and
    `schema`, of the last day. `recordings["2026-01-05"]` is one day, `recordings[-1]` the last, and a slice is
    `Recordings` again. Iterating yields the days. `Subscriber.replay` and `Replay` accept it. Messages of feeds with
    different schemas cannot be in one frame: `of_feed` selects a feed. If the fields of a feed's messages changed, see
    `schema_changes` and `to_arrow`; such days cannot be replayed together. Trades and quotes may be of any feeds.

    Times of day (`start="14:30"`) are those of each day.
    """

    def __init__(self, recordings: Iterable[Recording]) -> None:
        """Wrap recordings. Use `open` instead. Raises ConfigError for an empty list, or if they do not fit together."""
        given = distinct(recordings)
        if not given:
            raise ConfigError("there was no recording, expected at least one")
        self.days = tuple(sorted(given, key=lambda recording: recording.date))
        self.feeds = tuple(by_feed(given))
        key_rule_of_days(self.days)
        for mine in by_feed(self.days).values():
            check_schema_name(mine)
        self._is_alike = len(self.feeds) > 1 or has_one_layout(self.days)
        self.feed, self.schema = self.days[-1].feed, self.days[-1].schema

    @classmethod
    def open(cls, *paths: str | os.PathLike[str], first: Date | None = None, last: Date | None = None) -> Self:
        """Open the days at these paths, each a day's directory or a feed's, or `s3://...`, from `first` to `last`.

        Raises JournalError if a path has no recorded day, one cannot be read, or none is in this range of dates;
        ConfigError as `Recordings`, or for a malformed date.
        """
        low = datetime.date.min if first is None else as_date(first)
        high = datetime.date.max if last is None else as_date(last)
        found = [day for path in paths for day in _days_at(Path(path), low, high)]
        # Days named after other dates are not opened.
        opened = [Recording.open(day) for day in found if low <= _date_of_name(day, low) <= high]
        chosen = [recording for recording in opened if low <= recording.date <= high]
        if not chosen:
            where = ", ".join(str(path) for path in paths)
            raise JournalError(f"{where}: none of {len(found)} days is from {first} to {last}")
        return cls(chosen)

    def __iter__(self) -> Iterator[Recording]:
        return iter(self.days)

    def __len__(self) -> int:
        return len(self.days)

    @overload
    def __getitem__(self, which: int | Date) -> Recording: ...

    @overload
    def __getitem__(self, which: slice) -> Recordings: ...

    def __getitem__(self, which: int | Date | slice) -> Recording | Recordings:
        """Return the day of a date, a `datetime.date` or "2026-01-05"; of an index, by date; or the days of a slice.

        A slice is of indices, as in a list, or of dates, both included: `["2026-01-05":"2026-01-09"]`. Raises KeyError
        if no day or more than one has the date; IndexError if no day has the index or is in the slice. Both name the
        existing days.
        """
        if isinstance(which, slice):
            return Recordings(_days_in(self.days, which))
        if isinstance(which, str | datetime.date):
            date = as_date(which)
            found = [day for day in self.days if day.date == date]
            if len(found) != 1:
                several = f"{len(found)} recordings are of {date}: choose a feed by `of_feed`" if found else ""
                raise KeyError(f"{several or f'no recording is of {date}'}, {_there(self.days)}")
            return found[0]
        try:
            return self.days[which]
        except IndexError:
            raise IndexError(f"index was {which}, {_there(self.days)}") from None
        except TypeError:
            raise TypeError(f"index was {which!r:.80}, expected an integer, a date or a slice") from None

    def __repr__(self) -> str:
        return f"Recordings({self.feed.name!r}, {len(self.days)} days, {self.days[0].date} to {self.days[-1].date})"

    def _repr_html_(self) -> str:
        return recordings_view(self.days)

    def of_feed(self, name: str) -> Recordings:
        """Return the days of one feed. Raises ConfigError for another feed's name."""
        if name not in self.feeds:
            raise ConfigError(f"feed {name!r} was not found, expected one of {self.feeds}")
        return Recordings(by_feed(self.days)[name])

    @property
    def damage(self) -> list[Damage]:
        """Damage found so far, day by day."""
        return [damage for recording in self.days for damage in recording.damage]

    def batches(self, prefix: str | bytes = b"", **selection: Unpack[Selection]) -> Iterator[Batch]:
        """Yield the batches of `Recording.batches`, day by day."""
        for recording in self.days:
            yield from recording.batches(prefix, **selection)

    def schema_changes(self) -> list[SchemaChange]:
        """Return the fields that were added, removed or changed from one day of a feed to its next."""
        return [change for days in by_feed(self.days).values() for change in schema_changes(days)]

    def to_arrow(self, prefix: str | bytes = b"", **options: Unpack[FrameOptions]) -> pyarrow.Table:
        """Return the messages of all days as one table in memory. See `FrameOptions`.

        If fields changed between days, a column has a type that holds the values of all days, and is null on days that
        lack it. Raises ConfigError naming the day, the field and its types if there is no such type.
        """
        if self._is_alike:
            return super().to_arrow(prefix, **options)
        schema = self._frame_schema(prefix, options)
        table = needs("pyarrow", "arrow").Table
        return table.from_batches(self.arrow_chunks(prefix, **options), schema=schema).unify_dictionaries()

    def arrow_chunks(
        self, prefix: str | bytes = b"", rows: int = ROWS, **options: Unpack[FrameOptions]
    ) -> Iterator[pyarrow.RecordBatch]:
        """Yield the rows of `to_arrow`, at most `rows` at a time."""
        if self._is_alike:
            return super().arrow_chunks(prefix, rows, **options)
        schema = self._frame_schema(prefix, options)
        conformed = needs("pyarrow", "arrow", "blackbox.archive.export.columns").conformed
        return (
            conformed(chunk, schema, str(day.path))
            for day, own in self._options_by_day(options)
            for chunk in day.arrow_chunks(prefix, rows, **own)
        )

    def _frame_schema(self, prefix: str | bytes, options: FrameOptions) -> pyarrow.Schema:
        if self._is_alike:
            return super()._frame_schema(prefix, options)
        unified = needs("pyarrow", "arrow", "blackbox.archive.export.columns").schema_of_unlike_days
        days = self._options_by_day(options)
        if options.get("times") == "integer":
            times = [(str(day.path), day._frame_schema(prefix, {**own, "times": "timestamp"})) for day, own in days]
            unified(times, has_units=True)
        return unified([(str(day.path), day._frame_schema(prefix, own)) for day, own in days])

    def _options_by_day(self, options: FrameOptions) -> list[tuple[Recording, FrameOptions]]:
        """Return the days that have some of the message types, each with the options for these types."""
        kinds = options.get("message_type")
        zone = options.get("zone")
        options = {**options, "zone": self.feed.time_zone if zone is None else zone}
        if kinds is None:
            return [(day, options) for day in self.days]
        wanted = message_types_of(kinds)
        has = {day: [kind for kind in wanted if kind in (*day.schema.records, *day.schema.names)] for day in self.days}
        for kind in wanted:
            if not any(kind in known for known in has.values()):
                self.schema.dtype(kind)  # raises
        return [
            (day, {**options, "message_type": kinds if isinstance(kinds, str) else known})
            for day, known in has.items()
            if known
        ]

    def _columns(self, form: dict[str, Any], prefix: bytes, selection: Selection) -> Columns:
        if len({recording.schema.name for recording in self.days}) > 1:
            raise ConfigError(f"a frame can have messages of one feed, not of {self.feeds}: see of_feed")
        return super()._columns(form, prefix, selection)

    def _scanned(
        self, prefix: bytes, options: FrameOptions, names: list[str] | None, pushed: Pushed
    ) -> Iterator[pyarrow.RecordBatch]:
        if not self._is_alike:
            yield from super()._scanned(prefix, options, names, pushed)
            return
        columns, selection = self._asked(options, prefix)
        columns = columns if names is None else columns.narrowed(names)
        for recording in self.days:
            yield from scanned(recording, columns, prefix, selection, pushed)

    @property
    def trades(self) -> TicksOfDays:
        """The trades of all days as tables and frames. Raises ConfigError if no schema declares any."""
        return TicksOfDays(self.days, "trades")

    @property
    def quotes(self) -> TicksOfDays:
        """The quotes of all days as tables and frames. Raises ConfigError if no schema declares any."""
        return TicksOfDays(self.days, "quotes")

    @property
    def instruments(self) -> InstrumentsOfDays:
        """The instruments of all days as a table: see `Recording.instruments`."""
        return InstrumentsOfDays(self.days)

    @property
    def paths(self) -> list[str]:
        """The days' directories, for Spark: `spark.read.format("blackbox").load(recordings.paths)`."""
        return [str(recording.path) for recording in self.days]

    def topics(self) -> list[bytes]:
        """Return all topics, sorted. Reads everything, as `counts`."""
        return sorted(self.counts())

    def counts(self) -> dict[bytes, int]:
        """Return the number of messages of each topic. Reads everything; damaged blocks are left out."""
        total: Counter[bytes] = Counter()
        for recording in self.days:
            total.update(recording.counts())
        return dict(total)

    def gaps(self) -> list[Gap]:
        """Return the gaps within each day, day by day: see `Recording.gaps`."""
        return [gap for recording in self.days for gap in recording.gaps()]

    def verify(self, progress: Callable[[int], object] | None = None) -> list[Damage]:
        """Read everything, check every checksum, and return all that is damaged or missing: see `Recording.verify`.

        `progress` is called with the bytes read so far, of `file_bytes`.
        """
        before = 0

        def tell(done: int) -> None:
            if progress is not None:
                progress(before + done)

        found: list[Damage] = []
        for recording in self.days:
            found += recording.verify(tell)
            before += recording.file_bytes
        return found

    @property
    def file_bytes(self) -> int:
        """Size of all segments, without their indexes."""
        return sum(recording.file_bytes for recording in self.days)


def distinct(recordings: Iterable[Recording]) -> tuple[Recording, ...]:
    """Return the recordings, each directory once."""
    return tuple({recording.path.resolve(): recording for recording in recordings}.values())


def check_schemas(recordings: Iterable[Recording]) -> None:
    """Raise ConfigError if the recordings of a feed have several schemas: see `check_one_schema`."""
    for mine in by_feed(recordings).values():
        check_one_schema(mine)


def by_feed(recordings: Iterable[Recording]) -> dict[str, list[Recording]]:
    """Return the recordings of each feed, in order of appearance."""
    found: dict[str, list[Recording]] = {}
    for recording in recordings:
        found.setdefault(recording.feed.name, []).append(recording)
    return found


def check_schema_name(recordings: Iterable[Recording]) -> None:
    """Raise ConfigError unless all recordings have schemas of one name."""
    names = {recording.schema.name for recording in recordings}
    if len(names) > 1:
        raise ConfigError(f"recordings had feeds of schema {sorted(names)}, expected the same in all")


def check_one_schema(recordings: Iterable[Recording]) -> None:
    """Raise ConfigError unless all recordings have one schema, and the same layout for each message type."""
    kept = list({id(recording.schema): recording for recording in recordings}.values())
    check_schema_name(kept)
    known: dict[str, tuple[Recording, object]] = {}
    for recording in kept:
        document = SchemaDocument.of(recording.schema)
        for kind in document.types:
            other, layout = known.setdefault(kind, (recording, document.layout(kind)))
            if document.layout(kind) != layout:
                raise ConfigError(
                    f"{recording.path} has other fields in its messages of type {kind!r} than {other.path}, expected "
                    "the same in all"
                )


def _days_at(path: Path, first: datetime.date, last: datetime.date) -> list[Path]:
    """Return the days' directories at a path. Without any, return the path, so that opening it reports the error.

    Of an object store, only days from `first` to `last` are copied to the cache.
    """
    if is_stored(path):
        return fetch_days(path, first, last)
    return [path] if (path / MANIFEST).exists() else recorded_days(path) or [path]


def _date_of_name(day: Path, default: datetime.date) -> datetime.date:
    """Return the date in the name of a day's directory. A copy may have any name."""
    try:
        return datetime.date.fromisoformat(day.name)
    except ValueError:
        return default


def key_rule_of_days(recordings: Iterable[Recording]) -> int:
    """Return the key rule of recordings. Raises ConfigError if they differ."""
    rules = {recording.feed.key_rule for recording in recordings}
    if len(rules) > 1:
        texts = ", ".join(map(rule_text, sorted(rules)))
        raise ConfigError(f"recordings had feeds of {texts}, expected the same keys in all")
    return rules.pop()


def _days_in(days: tuple[Recording, ...], which: slice) -> list[Recording]:
    """Return the days of a slice of indices or dates. Raises IndexError if no day is chosen."""
    if any(isinstance(each, str | datetime.date) for each in (which.start, which.stop)):
        if which.step is not None:
            raise TypeError(f"step was {which.step!r:.80}, expected none in a slice of dates")
        low = datetime.date.min if which.start is None else as_date(which.start)
        high = datetime.date.max if which.stop is None else as_date(which.stop)
        found = [day for day in days if low <= day.date <= high]
    else:
        found = list(days[which])
    if not found:
        shown = ":".join("" if each is None else str(each) for each in (which.start, which.stop))
        raise IndexError(f"no recording is in [{shown}], {_there(days)}")
    return found


def _there(days: Sequence[Recording]) -> str:
    """Return the days for errors; of many only the first and last."""
    is_one_feed = len({day.feed.name for day in days}) == 1
    dates = [str(day.date) if is_one_feed else f"{day.feed.name} {day.date}" for day in days]
    left = len(dates) - 2 * _DAYS_SHOWN
    shown = dates if left <= 0 else [*dates[:_DAYS_SHOWN], f"{left} more", *dates[-_DAYS_SHOWN:]]
    return f"expected one of {len(dates)} days: {', '.join(shown)}"


class Range(NamedTuple):
    """Messages of several recordings."""

    prefix: bytes = b""
    """Of their topics."""
    start: int | None = None
    """First time, ns since 1970."""
    stop: int | None = None
    """End of the times, exclusive, ns since 1970."""
    slices: Iterable[int] | None = None
    """Their slices; None: all."""


_EVERYTHING: Final = Range()


def runs_of(
    recordings: Iterable[Recording],
    messages: Range = _EVERYTHING,
    by: Clock = "ts_event",
    *,
    bodies: Bodies = "checked",
    kept: int = 0,
) -> Iterator[RecordRun]:
    """Yield runs as `Recording.runs`, of several recordings in one order, with times of the clock `by`.

    Raises ConfigError if their feeds have different keys.
    """
    return read_runs(*_chosen(recordings, messages, by), bodies=bodies, kept=kept)


def by_time(recordings: Iterable[Recording], messages: Range) -> ByTime:
    """Return several recordings for reading by `ts_event`. Raises as `runs_of`."""
    return ByTime(*_chosen(recordings, messages, "ts_event"))


def _chosen(recordings: Iterable[Recording], messages: Range, by: Clock) -> tuple[list[list[Segment]], Filter, Report]:
    """Return the segments of each slice, the filter, and the function that gets damage reports."""
    recordings = tuple(recordings)
    key_rule = key_rule_of_days(recordings)
    prefix, start, stop, slices = messages
    chosen = None if slices is None else tuple(slices)
    streams = [stream for recording in recordings for stream in recording.segments.streams(prefix, chosen)]

    def report(damage: Damage) -> None:
        next(r for r in recordings if damage.path.is_relative_to(r.path)).segments.note(damage)

    return streams, Filter(key_rule, prefix, False, start, stop, by), report
