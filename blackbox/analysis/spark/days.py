"""Find the recorded days at a path, and their common schema."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from blackbox.archive.files.day import MANIFEST, Manifest, recorded_days
from blackbox.errors import ConfigError, JournalError
from blackbox.feed.schema.schema import Schema

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


def days_of(paths: Iterable[str]) -> list[Path]:
    """Return the directories of all days at these paths, without duplicates, by path and then by date.

    A path is that of a day, of a feed with days, of a root with feeds, or a pattern (`*`, `?`, `[]`) for these.

    Raises JournalError if a path does not exist or has no recorded day.
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
    """Return a user's path, which may be a `file:` URL, as a normal local path. `%` is not decoded.

    Raises JournalError for a path on another file system.
    """
    scheme = _SCHEME.match(text)
    if scheme is None:
        return Path(os.path.normpath(Path(text).absolute()))
    if scheme[1].lower() != "file":
        raise JournalError(f"path was {text!r}, expected one of a local or mounted file system: files are mapped")
    return Path(os.path.normpath("/" + text[scheme.end() :].lstrip("/")))


def _days_below(path: Path) -> list[Path]:
    if (path / MANIFEST).is_file():
        return [path]
    return recorded_days(path) or sorted(each.parent for each in path.glob(f"*/*/{MANIFEST}"))


def schema_of_days(days: list[Path], *kinds: str) -> Schema:
    """Return the recorded schema of these days.

    Raises ConfigError if the days differ in schema, or in character or layout of the message types `kinds`, or if there
    is no such type.
    """
    manifests = [Manifest.read(day) for day in days]
    first = manifests[0].schema
    for day, manifest in zip(days, manifests, strict=True):
        if manifest.schema.name != first.name:
            named = f"{manifest.schema.name!r} and {days[0]} has {first.name!r}"
            raise ConfigError(f"{day} has the schema {named}, expected the same in all")
    schema = first.schema()
    for kind in kinds:
        schema.dtype(kind)
        character = schema.character(kind)
        for day, manifest in zip(days, manifests, strict=True):
            own = manifest.schema
            if (
                own.schema().character(kind) != character
                or character not in own.types
                or own.layout(character) != first.layout(character)
            ):
                raise ConfigError(
                    f"{day} has other fields in its messages of type {kind!r} than {days[0]}, expected the same in all"
                )
    return schema
