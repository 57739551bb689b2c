"""Files of tape rows. Only their names contain symbol, day and kind.

    bac_20131007_quote.zip            symbol, day, kind
    bac/20131007_quote.zip            the same, with the symbol as directory, as in Lean's data folder
    20131007_bac_Quote_Tick.csv       inside either

Plain, gzip and zstd files, and members of archives, which must be plain, may have any of these names. The symbol
nearest to the rows counts: in the member's file name, its directory in the archive, the archive's name, its directory.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Iterator
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from blackbox.errors import SourceError
from blackbox_feeds.io.dates import midnight_ns
from blackbox_feeds.io.open_window import open_window
from blackbox_feeds.io.window import FileWindow
from blackbox_feeds.io.zip_window import ZipWindow, open_archive
from blackbox_feeds.tape.records import SYMBOL_BYTES, TYPES

EXPECTED: Final = "a CSV of tape trades or quotes, plain or packed, or a directory of such files"

_DAY, _SYMBOL, _KIND, _CSV = r"(?P<day>\d{8})", r"(?P<symbol>[!-~]+)", r"(?P<kind>trade|quote)", r"csv(?:\.gz|\.zst)?"
_NAMED = re.compile(rf"(?:{_SYMBOL}_)?{_DAY}_{_KIND}\.(?:zip|{_CSV})", re.IGNORECASE)
_MEMBER = re.compile(rf"{_DAY}_{_SYMBOL}_{_KIND}_tick\.{_CSV}", re.IGNORECASE)
_ZIP_MAGIC = b"PK\x03\x04"


class TapeFile(NamedTuple):
    """Rows of one symbol, day and kind: a file, or a member of an archive."""

    path: Path
    member: str | None
    symbol: bytes
    """In capitals."""
    date: date
    kind: str
    """Name in topics: `trade` or `quote`."""

    def __str__(self) -> str:
        return f"{self.path}: {self.member}" if self.member else f"{self.path}"

    @property
    def type(self) -> str:
        """The type of its records."""
        return TYPES[self.kind]

    def open(self, window_bytes: int, archive: zipfile.ZipFile | None = None) -> FileWindow:
        """Open it, perhaps from an archive that is open. Raises SourceError if it cannot be read."""
        if self.member is not None:
            return ZipWindow(self.path, self.member, window_bytes, archive)
        return open_window(self.path, window_bytes, expected=EXPECTED)


class Found(NamedTuple):
    """The files found."""

    files: list[TapeFile]
    """Sorted by day, then kind (the preferred one first), then symbol."""
    unnamed: int
    """Files of directories and members of archives left out because their names lack symbol, day or kind."""


def find(paths: Iterable[Path], day: date | None, first: str) -> Found:
    """Return the files at these paths, with archives and directories expanded; only those of `day`, if given.

    `first`: the kind that comes before the other one of its day.

    Raises:
        SourceError: one cannot be read, its name lacks symbol, day or kind, two have the same ones, or there are none.
    """
    files: list[TapeFile] = []
    unnamed = 0
    for given in paths:
        for path in _files_of(given):
            found, skipped = _inside(path, told=path == given)
            files += found
            unnamed += skipped
    wanted = [file for file in files if day is None or file.date == day]
    if files and not wanted:
        days = ", ".join(sorted({str(file.date) for file in files}))
        raise SourceError(f"{files[0].path}: date was {day}, expected one of the files' days: {days}")
    wanted.sort(key=lambda file: (file.date, file.kind != first, file.symbol, str(file.path), file.member or ""))
    for one, other in pairwise(wanted):
        if (one.date, one.kind, one.symbol) == (other.date, other.kind, other.symbol):
            raise SourceError(f"{other} has the same symbol, day and kind as {one}, expected only one of them")
    return Found(wanted, unnamed)


def _files_of(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    files = sorted(file for file in path.rglob("*") if file.is_file())
    if not any(_match(file.name) for file in files):
        raise SourceError(f"{path}: no file in it is named as one of tape rows, e.g. bac_20131007_quote.zip")
    yield from files


def _inside(path: Path, told: bool) -> tuple[list[TapeFile], int]:
    """Return the files of one path and the number left out. `told`: named by the caller, so it must be valid."""
    named = _match(path.name)
    if named is None and not told:
        return [], 1
    if not _is_zip(path):
        return [_tape_file(path, None, named)], 0
    with open_archive(path) as archive:
        members = [info.filename for info in archive.infolist() if not info.is_dir()]
    matches = [(member, _match(Path(member).name)) for member in members]
    files = [_tape_file(path, member, match, named) for member, match in matches if match is not None]
    if not files and len(members) == 1:
        files = [_tape_file(path, members[0], named)]
    if not files:
        raise SourceError(f"{path}: none of its {len(members)} members is named as a CSV of tape rows")
    return files, len(members) - len(files)


def _is_zip(path: Path) -> bool:
    if path.is_fifo():
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(_ZIP_MAGIC)) == _ZIP_MAGIC or zipfile.is_zipfile(file)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}, expected {EXPECTED}") from error


def _match(name: str) -> re.Match[str] | None:
    return _MEMBER.fullmatch(name) or _NAMED.fullmatch(name)


def _tape_file(
    path: Path, member: str | None, match: re.Match[str] | None, archive: re.Match[str] | None = None
) -> TapeFile:
    """Return a file by the match of its name. `archive`: that of its archive's name."""
    where = f"{path}: {member}" if member else f"{path}"
    named = [found and found["symbol"] for found in (match, archive)]
    symbol = named[0] or Path(member or "").parent.name or named[1] or path.absolute().parent.name
    if match is None or not symbol:
        raise SourceError(f"{where}: the file name tells no symbol, day and kind, expected e.g. bac_20131007_quote.zip")
    try:
        day = date.fromisoformat(match["day"])
        midnight_ns(day)
    except ValueError as error:
        raise SourceError(f"{where}: the day in the file name was {match['day']}, expected a date: {error}") from None
    text = symbol.upper().encode()
    if len(text) > SYMBOL_BYTES:
        raise SourceError(f"{where}: the symbol in the file name was {symbol!r}, expected at most {SYMBOL_BYTES} bytes")
    return TapeFile(path, member, text, day, match["kind"].lower())
