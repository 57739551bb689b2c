"""The positions of named consumers: a directory with a file for each, which is replaced as a whole."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from blackbox.archive.day import make_directory, replace_file, sync_directory
from blackbox.block.position import KeyPosition, Number, Position, SlicePosition, split
from blackbox.errors import ConfigError, PositionError
from blackbox.feed.feed import check_name
from blackbox.native.file_lock import FileLock, OwnedError
from blackbox.regular_file import read_regular

_SUFFIX: Final = ".positions"
_LOCK_SUFFIX: Final = ".lock"
_MOST_BYTES: Final = 64 << 20
_LOOK_S: Final = 0.05


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a file says."""

    feed: str
    """The name of the feed."""
    kept_ns: Number
    """When, ns since 1970."""
    slices: dict[Number, Position] = {}
    """By slice of a feed without keys."""
    keys: dict[Number, KeyPosition] = {}
    """By slice of one with keys."""

    @property
    def positions(self) -> dict[int, SlicePosition]:
        """Return the position of each slice."""
        return {**self.slices, **self.keys}


class PositionFile:
    """The positions of one consumer. Call `own` before you change them."""

    def __init__(self, directory: str | os.PathLike[str], name: str) -> None:
        """Settings; nothing is opened. Raises ConfigError for an invalid name."""
        check_name(name)
        self.directory, self.name = Path(directory), name
        self.path = self.directory / f"{name}{_SUFFIX}"
        self._lock: FileLock | None = None
        self._guard = threading.Lock()

    def own(self, wait_s: float) -> None:
        """Lock the name; wait up to `wait_s` for a process that has it. Raises PositionError naming that process."""
        deadline = time.monotonic() + wait_s
        while True:
            try:
                make_directory(self.directory)
                self._lock = FileLock(self.directory / f"{self.name}{_LOCK_SUFFIX}")
                return
            except OwnedError as owned:
                if time.monotonic() >= deadline:
                    waited = f" for {wait_s:g} s" if wait_s else ""
                    raise PositionError(
                        f"consumer {self.name!r} of {self.directory} was {owned}'s{waited}, expected no other"
                    ) from None
            except OSError as error:
                raise self._refused("be kept", error) from error
            time.sleep(_LOOK_S)

    def close(self) -> None:
        """Let the name go; again is fine, also in two threads."""
        with self._guard:
            if self._lock is not None:
                self._lock.close()
                self._lock = None

    def read(self) -> Kept | None:
        """Return what is kept; None: nothing. Raises PositionError for a file that cannot be decoded."""
        try:
            return msgspec.json.decode(read_regular(self.path, _MOST_BYTES), type=Kept)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._refused("be read", error) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise PositionError(f"{self.path} is damaged: {error}") from error

    def keep(self, feed: str, positions: Mapping[int, SlicePosition]) -> None:
        """Replace what is kept, durably. Raises PositionError; the old file stays then."""
        kept = Kept(feed, time.time_ns(), *split(dict(sorted(positions.items()))))
        try:
            replace_file(self.path, self.path.with_suffix(".new"), msgspec.json.encode(kept) + b"\n")
        except OSError as error:
            raise self._refused("be kept", error) from error

    def forget(self) -> None:
        """Keep nothing any more. Raises PositionError when nothing was kept."""
        try:
            self.path.unlink()
            sync_directory(self.directory)
        except OSError as error:
            raise self._refused("be forgotten", error) from error

    def _refused(self, what: str, error: OSError) -> PositionError:
        return PositionError(f"positions {self.path} cannot {what}: {error.strerror}")


def how_many(place: Path) -> int:
    """Return how many consumers have a file in a directory, which must exist."""
    return sum(path.suffix == _SUFFIX for path in place.iterdir())


def consumers(directory: str | os.PathLike[str]) -> list[PositionFile]:
    """Return the consumers that a directory has something of, by name. Raises PositionError when there is none."""
    place = Path(directory)
    if not place.is_dir():
        raise PositionError(f"{str(place)!r} was no directory, expected the positions of consumers")
    found = sorted(path for path in place.iterdir() if path.suffix == _SUFFIX)
    try:
        return [PositionFile(place, path.stem) for path in found]
    except ConfigError as error:
        raise PositionError(f"{place}: {error}") from error
