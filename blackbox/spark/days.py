"""Which recorded days a path names."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from blackbox.errors import ConfigError, JournalError
from blackbox.journal.day import MANIFEST, Manifest, recorded_days
from blackbox.schema import Schema, load_schema

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


def days_of(paths: Iterable[str]) -> list[Path]:
    """The directories of all days that these paths name, in the order of the paths and then of the dates, each once.

    A path is that of a day, of a feed with its days, of a root with feeds, or a pattern (`*`, `?`, `[]`) for such.

    Raises JournalError naming a path that is not there or holds no recorded day.
    """
    found: dict[Path, None] = {}
    for text in paths:
        path = local_path(text)
        chosen = [path]
        if glob.has_magic(str(path)) and not path.exists():
            chosen = [Path(name) for name in sorted(glob.glob(str(path)))]  # noqa: PTH207 - it may be absolute
        days = [day for each in chosen for day in _days_below(each)]
        if not days:
            what = "holds no recorded day" if any(each.exists() for each in chosen) else "was not found"
            raise JournalError(f"{text!r} {what}, expected a day, or a feed or root with days, of a recording")
        found.update(dict.fromkeys(days))
    return list(found)


def local_path(text: str) -> Path:
    """A path of this machine's file system. Raises JournalError for one of another."""
    scheme = _SCHEME.match(text)
    if scheme is None:
        return Path(text).absolute()
    if scheme[1].lower() != "file":
        raise JournalError(f"path was {text!r}, expected one of a local or mounted file system: files are mapped")
    return Path("/" + unquote(text[scheme.end() :]).lstrip("/"))


def _days_below(path: Path) -> list[Path]:
    if (path / MANIFEST).is_file():
        return [path]
    return recorded_days(path) or sorted(each.parent for each in path.glob(f"*/*/{MANIFEST}"))


def schema_of_days(days: list[Path]) -> Schema:
    """What the payloads of these days are. Raises ConfigError when that differs, or is not registered here."""
    names = {day: Manifest.read(day).feed.schema for day in days}
    first = names[days[0]]
    for day, name in names.items():
        if name != first:
            raise ConfigError(f"{day} has the schema {name!r} and {days[0]} has {first!r}, expected the same in all")
    return load_schema(first)
