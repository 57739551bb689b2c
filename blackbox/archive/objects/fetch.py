"""Read days of an object store: whole days are copied to the user's cache, which is bounded, and opened there."""

from __future__ import annotations

import datetime
import hashlib
import logging
import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from blackbox.archive.files.day import MANIFEST, Manifest, slice_directory
from blackbox.archive.objects.store import Store, StoredFiles, join
from blackbox.errors import ConfigError, JournalError
from blackbox.user_cache import draft_in, user_cache

log = logging.getLogger("blackbox")

LIMIT_VARIABLE: Final = "BLACKBOX_CACHE_GIB"
_DEFAULT_GIB: Final = 50.0
_DRAFT: Final = ".draft-"
_MOST_DRAFT_S: Final = 86_400
"""Age of a draft that a killed process has left."""
_DEEPEST: Final = 2
"""FEED/DATE below the directory of recordings."""


def cached_days() -> Path:
    """Return the directory of fetched days."""
    return user_cache() / "days"


def fetch_days(
    uri: str | os.PathLike[str], first: datetime.date = datetime.date.min, last: datetime.date = datetime.date.max
) -> list[Path]:
    """Copy the days at `s3://...` to the cache unless they are there; return their directories, in order.

    The URI is that of a day, of a feed, or of a directory of recordings; of several days, only those from `first` to
    `last` are copied. Days used longest ago are removed from the cache while it exceeds BLACKBOX_CACHE_GIB (50), but
    none of these.

    Raises JournalError if there is no whole day, or the store fails; ConfigError if the cache cannot be written.
    """
    store = Store(uri)
    manifests = [name for name in store.sizes() if name.rpartition("/")[2] == MANIFEST]
    found = sorted(name.rpartition("/")[0] for name in manifests if name.count("/") <= _DEEPEST)
    if not found:
        raise JournalError(f"{store.uri} has no whole day: there is no {MANIFEST}")
    names = [name for name in found if not name or _is_from(name, first, last)]
    return [_fetch(store, name, keep=len(names)) for name in names]


def one_day(uri: str | os.PathLike[str]) -> Path:
    """Copy the only day at `s3://...` to the cache; return its directory. Raises as `fetch_days`."""
    store = Store(uri)
    if store.read(MANIFEST) is None:
        raise JournalError(f"{store.uri} is not a recorded day: it has no {MANIFEST}")
    return _fetch(store, "", keep=1)


def _is_from(name: str, first: datetime.date, last: datetime.date) -> bool:
    try:
        return first <= datetime.date.fromisoformat(name.rpartition("/")[2]) <= last
    except ValueError:  # a copy may have any name
        return True


def _fetch(store: Store, name: str, keep: int) -> Path:
    """Return the cached copy of a day. `keep`: days that the caller uses together."""
    limit = _limit_bytes()
    files = store.files_of(name)
    if files is None:
        raise JournalError(f"{store.uri}/{name} has no files.json: it was not copied by `blackbox sync`")
    whole = f"{store.path}/{name}".rstrip("/")
    # The same bytes have the same place; a day that was replaced in the store gets another one.
    digest = hashlib.sha256(repr(sorted((k, v.sha256) for k, v in files.files.items())).encode()).hexdigest()[:16]
    *_, feed, date = ["", *whole.split("/")]
    target = cached_days() / f"{hashlib.sha256(whole.encode()).hexdigest()[:8]}-{digest}" / feed / date
    if not (target / MANIFEST).exists():
        _download(store, name, files, target)
    with suppress(FileNotFoundError):  # other processes remove days too
        os.utime(target.parent.parent)
    _bound(target.parent.parent, keep, limit)
    return target


def _download(store: Store, name: str, files: StoredFiles, target: Path) -> None:
    with draft_in(cached_days(), _DRAFT, f"{store.uri}/{name} cannot be copied") as draft:
        for each, expected in files.files.items():
            path, hashed = draft / each, hashlib.sha256()
            path.parent.mkdir(exist_ok=True)
            with path.open("wb") as file:
                for data in store.parts(join(name, each)):
                    hashed.update(data)
                    file.write(data)
            if hashed.hexdigest() != expected.sha256:
                was = hashed.hexdigest()
                raise JournalError(f"{store.uri}/{name}/{each}: SHA-256 was {was}, expected {expected.sha256}")
        for slice_id in range(len(Manifest.read(draft).feed.slices)):  # the store has no empty directories
            slice_directory(draft, slice_id).mkdir(exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            draft.rename(target)
        except OSError:
            if not (target / MANIFEST).exists():  # else another process was faster
                raise


def _limit_bytes() -> int:
    text = os.environ.get(LIMIT_VARIABLE, str(_DEFAULT_GIB))
    try:
        gib = float(text)
        if not gib > 0:
            raise ValueError
    except ValueError:
        raise ConfigError(f"{LIMIT_VARIABLE} was {text!r}, expected a number of GiB above 0") from None
    return int(min(gib * (1 << 30), sys.maxsize))


def _bound(newest: Path, keep: int, limit: int) -> None:
    """Remove days used longest ago while the cache is too large, but not the `keep` newest ones; and old drafts."""
    days: list[tuple[float, Path]] = []
    for path in cached_days().iterdir():
        with suppress(FileNotFoundError):
            used_s = path.stat().st_mtime
            if not path.is_dir():
                continue
            if not path.name.startswith(_DRAFT):
                days.append((used_s, path))
            elif used_s < time.time() - _MOST_DRAFT_S:
                shutil.rmtree(path, ignore_errors=True)
    total = 0
    for number, (_, path) in enumerate(sorted(days, reverse=True)):
        with suppress(FileNotFoundError):
            total += sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
            if total > limit and number >= keep and path != newest:
                log.info("%s is removed: the cache of days has more than %d bytes", path, limit)
                _remove(path)


def _remove(path: Path) -> None:
    """Remove a day, unless it is another user's. It first loses its name, so that no part of it remains as a day."""
    with draft_in(cached_days(), _DRAFT, f"{path} cannot be removed") as draft, suppress(OSError):
        path.rename(draft / path.name)
