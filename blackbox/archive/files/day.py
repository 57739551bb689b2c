"""A feed's day on disk: session date, file names, manifest and lock."""

from __future__ import annotations

import ctypes
import datetime
import errno
import os
import re
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import msgspec
import numpy

from blackbox import __version__
from blackbox.block.form.layout import VERSION
from blackbox.documents import DecodeError, Decoder
from blackbox.errors import ConfigError, DamagedError, JournalError
from blackbox.feed.feed import Feed, as_recorded
from blackbox.feed.schema.document import SchemaDocument
from blackbox.feed.schema.schema import load_schema
from blackbox.feed.slice import Slice
from blackbox.native.system.file_lock import FileLock, OwnedError
from blackbox.native.tables.xxh3 import xxh3
from blackbox.regular_file import read_regular
from blackbox.timestamps import date_of, ns_on

_DocumentT = TypeVar("_DocumentT")
_AT_CWD: Final = -100
_EXCHANGE: Final = 2
"""Of `renameat2`."""
MANIFEST = "manifest.json"
MOST_JSON_BYTES = 16 << 20
"""Maximum size of a manifest or `closed.json`."""
LOCK = ".recorder.lock"
IMPORT_LOCK = ".import.lock"
"""Hidden, so that `recordings/FEED/*` matches only days in a shell."""
_SLICE_PREFIX = "slice-"
_SLICE = re.compile(r"slice-(\d{5})")
_SEGMENT_SUFFIX = ".journal"
_INDEX_SUFFIX = ".index"
_SEGMENT_DIGITS = 6
_NOON = datetime.time(12)


Date = datetime.date | str
"""A date, or a text such as "2019-12-30"."""


def as_date(given: Date) -> datetime.date:
    """Return a date. Raises ConfigError for an invalid text, TypeError for another type."""
    if isinstance(given, datetime.date) and not isinstance(given, datetime.datetime):
        return given
    if not isinstance(given, str):
        raise TypeError(f"date was {given!r}, expected a datetime.date or a text such as '2019-12-30'")
    try:
        return datetime.date.fromisoformat(given)
    except ValueError:
        raise ConfigError(f"date was {given!r}, expected one such as '2019-12-30'") from None


def session_date(feed: Feed, now_ns: int) -> datetime.date:
    """Return a feed's session date at a time: the local date, from `day_start` to `day_start`.

    A session that starts at noon or later belongs to the date of its next morning, as futures markets count.
    """
    local = date_of(now_ns, feed.time_zone)
    for day in (local + datetime.timedelta(1), local, local - datetime.timedelta(1)):
        if _start_ns(feed, day) <= now_ns:
            return day
    raise AssertionError(f"no session holds {now_ns}")


def day_end_ns(feed: Feed, day: datetime.date) -> int:
    """Return the end of a session date, where the next one begins, in ns since 1970."""
    return _start_ns(feed, day + datetime.timedelta(1))


def session_ns(feed: Feed, day: datetime.date) -> tuple[int, int]:
    """Return the beginning of a session date and its end, exclusive, in ns since 1970."""
    return _start_ns(feed, day), day_end_ns(feed, day)


def _start_ns(feed: Feed, day: datetime.date) -> int:
    start = datetime.time.fromisoformat(feed.day_start)
    return ns_on(day - datetime.timedelta(start >= _NOON), start, feed.time_zone)


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Content of `manifest.json`. Written once, when the day is begun."""

    format: int
    feed: Feed
    schema: SchemaDocument
    date: datetime.date
    created_ns: int
    version: str
    encrypted: bool = False
    """True if the feed had `[security]`. Its settings are not stored."""

    @classmethod
    def new(cls, feed: Feed, day: datetime.date, now_ns: int) -> Self:
        """Return the manifest of a day that begins now. Raises ConfigError if the feed's schema is not registered."""
        return cls(
            format=VERSION,
            feed=as_recorded(feed),
            schema=SchemaDocument.of(load_schema(feed.schema)),
            date=day,
            created_ns=now_ns,
            version=__version__,
            encrypted=feed.security is not None,
        )

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read the manifest in a day's directory. Raises JournalError naming what is missing or wrong."""
        path = directory / MANIFEST
        try:
            data = read_regular(path, MOST_JSON_BYTES)
        except FileNotFoundError:
            raise JournalError(_not_a_recording(directory)) from None
        except OSError as error:
            raise JournalError(f"{path} cannot be read: {error.strerror}") from error
        try:
            version = _FORMAT.decode(data).format
            if version != VERSION:
                raise JournalError(f"{path}: format was {version}, expected {VERSION}")
            document = _MANIFEST.decode(data)
            told = document.pop("checksum", "")
            manifest = msgspec.convert(document, cls)
            manifest.check_schema()
        except (DecodeError, ConfigError) as error:
            raise DamagedError(f"{path} is damaged: {error}") from error
        right = _checksum(document)
        if told != right:
            raise DamagedError(f"{path} is damaged, or was changed by hand: checksum was {told!r}, expected {right!r}")
        return manifest

    def check_schema(self) -> None:
        """Raise ConfigError if the stored schema is invalid or not the one that the feed names."""
        if self.feed.schema != self.schema.schema().name:
            raise ConfigError(f"schema was {self.schema.name!r}, expected {self.feed.schema!r}, which the feed names")

    def has_registered_schema(self) -> bool:
        """Return True if the schema registered under this name is the recorded one."""
        try:
            return SchemaDocument.of(load_schema(self.schema.name)) == self.schema
        except ConfigError:
            return False

    def write(self, directory: Path) -> None:
        """Write it to a directory atomically, after creating one directory per slice. A missing one then means loss."""
        for slice_id in range(len(self.feed.slices)):
            make_directory(slice_directory(directory, slice_id))
        document = msgspec.to_builtins(self)
        document["checksum"] = _checksum(document)
        text = msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"
        replace_file(directory / MANIFEST, directory / f"{MANIFEST}.{os.getpid()}.new", text)

    def check_feed(self, feed: Feed, directory: Path) -> None:
        """Raise JournalError if the directory holds another feed."""
        for name in ("name", "schema_name", "key_bytes", "channels", "separator"):
            here, there = getattr(self.feed, name), getattr(feed, name)
            if here != there:
                setting = name.removesuffix("_name")
                raise JournalError(f"{directory} holds a feed whose {setting} is {here!r}, expected {there!r}")
        if len(self.feed.slices) != len(feed.slices):
            raise JournalError(
                f"{directory} holds a feed of {len(self.feed.slices)} slices, expected {len(feed.slices)}"
            )
        for slice_id, parts in enumerate(zip(self.feed.slices, feed.slices, strict=True)):
            here, there = map(_topics_of, parts)
            if here != there:
                raise JournalError(
                    f"{directory} holds a feed whose slice {slice_id} has the {here}, expected the {there}: "
                    "record to another directory until the next session"
                )


def _topics_of(part: Slice) -> str:
    """Return the share or the prefixes of a slice as text."""
    if part.share is not None and part.share != (0, 1):
        return f"share {part.share[0]} of {part.share[1]}"
    return f"prefixes {sorted(set(part.prefixes or ('',)))}"


class _Version(msgspec.Struct):
    format: int


_FORMAT = Decoder[_Version]("json", _Version)
_MANIFEST = Decoder[dict[str, Any]]("json", dict[str, Any])


def _checksum(document: dict[str, Any]) -> str:
    text = numpy.frombuffer(msgspec.json.encode(document), numpy.uint8)
    return f"{int(xxh3(text.ctypes.data, len(text))):016x}"


def _not_a_recording(directory: Path) -> str:
    if not directory.exists():
        return f"recording {str(directory)!r} was not found"
    days = sorted(path.parent.name for path in directory.glob(f"*/{MANIFEST}"))
    if days:
        return (
            f"{str(directory)!r} holds {len(days)} day{'s' * (len(days) > 1)}, expected one of them: {', '.join(days)}"
        )
    feeds = sorted({path.parent.parent.name for path in directory.glob(f"*/*/{MANIFEST}")})
    if feeds:
        return f"{str(directory)!r} holds the days of feeds, expected one of them: {', '.join(feeds)}"
    return f"{str(directory)!r} is not a recording: it has no {MANIFEST}"


def slice_name(slice_id: int) -> str:
    """Return the name of a slice's directory in its day."""
    return f"slice-{slice_id:05d}"


def slice_directory(day: Path, slice_id: int) -> Path:
    """Return the directory of a slice's segments."""
    return day / slice_name(slice_id)


def slice_of(name: str) -> int | None:
    """Return the slice with this directory name; None if it is not a slice's."""
    match = _SLICE.fullmatch(name)
    return int(match[1]) if match else None


def slice_directories(day: Path) -> list[Path]:
    """Return the paths in a day's directory with a slice's name, sorted. Raises OSError."""
    return sorted(path for path in day.iterdir() if path.name.startswith(_SLICE_PREFIX))


def segment_path(day: Path, slice_id: int, number: int) -> Path:
    """Return the path of a segment."""
    return slice_directory(day, slice_id) / f"{number:06d}{_SEGMENT_SUFFIX}"


def index_path(segment: Path) -> Path:
    """Return the path of a segment's index."""
    return segment.with_suffix(_INDEX_SUFFIX)


def slice_files(directory: Path) -> tuple[list[int], list[int]]:
    """Return the numbers of the segments and of the indexes in a slice's directory, ascending. Raises OSError."""
    paths = list(directory.iterdir()) if directory.is_dir() else []
    numbered = [path for path in paths if len(path.stem) >= _SEGMENT_DIGITS and path.stem.isdecimal()]
    segments, indexes = (
        sorted(int(path.stem) for path in numbered if path.suffix == suffix)
        for suffix in (_SEGMENT_SUFFIX, _INDEX_SUFFIX)
    )
    return segments, indexes


def segment_numbers(directory: Path) -> list[int]:
    """Return the numbers of the segments in a slice's directory, ascending. Empty if it is missing. Raises OSError."""
    return slice_files(directory)[0]


def recorded_files(day: Path) -> list[Path]:
    """Return all segments and indexes of a day. Raises OSError."""
    return [
        path
        for directory in slice_directories(day)
        for path in sorted(directory.iterdir())
        if path.suffix in (_SEGMENT_SUFFIX, _INDEX_SUFFIX)
    ]


def sync_directory(directory: Path) -> None:
    """Sync a directory, so that its names are durable."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, fresh: Path, data: bytes, *, is_durable: bool = True) -> None:
    """Replace a file atomically, by way of the file `fresh`. Raises OSError."""
    with fresh.open("wb") as file:
        file.write(data)
        file.flush()
        if is_durable:
            os.fsync(file.fileno())
    fresh.replace(path)
    if is_durable:
        sync_directory(path.parent)


def read_document(path: Path, decoder: Decoder[_DocumentT], most_bytes: int) -> _DocumentT | None:
    """Return the document in a file; None if it is missing. Raises JournalError if it cannot be read or decoded."""
    try:
        return decoder.decode(read_regular(path, most_bytes))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise JournalError(f"{path} cannot be read: {error.strerror}") from error
    except DecodeError as error:
        raise JournalError(f"{path} is damaged: {error}") from error


def write_document(path: Path, document: msgspec.Struct) -> None:
    """Replace a file with a document as JSON, durably. Raises OSError."""
    replace_file(path, path.with_suffix(".new"), msgspec.json.encode(document) + b"\n")


def exchange_directories(one: Path, other: Path) -> None:
    """Have two directories swap their names, both at once. Raises OSError, also where the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(one))
    if rename(_AT_CWD, os.fsencode(one), _AT_CWD, os.fsencode(other), _EXCHANGE):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(one))
    for each in (one.parent, other.parent):
        sync_directory(each)


def inode_of(path: Path) -> int:
    """Return the inode number of a file or directory; 0: it does not exist."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return 0


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents, durably."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(exist_ok=True)
        sync_directory(path.parent)


def recorded_days(directory: Path) -> list[Path]:
    """Return the days in a feed's directory, in order."""
    return sorted(path.parent for path in directory.glob(f"*/{MANIFEST}"))


class Lock(FileLock):
    """Ownership of a feed's recordings. The system releases it when the process dies."""

    def __init__(self, directory: Path, *, importing: bool = False) -> None:
        """Lock to record or to import. Raises JournalError naming the current owner."""
        try:
            super().__init__(directory / (IMPORT_LOCK if importing else LOCK))
        except OwnedError as owned:
            what, who = ("imported into", "import") if importing else ("recorded", "recorder")
            raise JournalError(f"{directory} is being {what} by {owned}, expected no other {who}") from None


def as_journal_error(error: OSError, what: str) -> JournalError:
    """Return an OSError as a JournalError that says what failed."""
    return JournalError(f"{what}: {error.strerror}{f' ({error.filename})' if error.filename else ''}")
