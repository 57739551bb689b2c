"""The positions of named consumers: a directory with a file for each, which is replaced as a whole."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from blackbox.archive.day import make_directory, replace_file, sync_directory
from blackbox.block.layout import VERSION
from blackbox.block.position import Number, Position
from blackbox.documents import DecodeError, Decoder
from blackbox.errors import ConfigError, PositionError
from blackbox.feed.feed import check_name
from blackbox.native.file_lock import FileLock, OwnedError
from blackbox.regular_file import read_regular

_SUFFIX: Final = ".positions"
_LOCK_SUFFIX: Final = ".lock"
_SECRET: Final = "archive.secret"
SECRET_BYTES: Final = 32
_MOST_BYTES: Final = 64 << 20
_LOOK_S: Final = 0.05


class Held(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lost messages of a slice, which ended a consumer."""

    position: Position
    """The first lost message."""
    count: Number
    is_upper_bound: bool
    """True if `count` may include messages of unwanted keys."""

    def __str__(self) -> str:
        at_most = "at most " if self.is_upper_bound else ""
        return f"lost {at_most}{self.count} from {self.position.sequence} of epoch {self.position.epoch} on"


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a file says."""

    format: int
    """Its version."""
    feed: str
    """The name of the feed."""
    kept_ns: Number
    """When, ns since 1970."""
    slices: dict[Number, Position] = {}
    """Next position by slice. Empty: the consumer has ended, which is not reported to archives yet."""

    held: dict[Number, Held] = {}
    """By slice: losses that ended the consumer, which does not start until it is released."""
    accepted: dict[Number, Position] = {}
    """By slice: losses up to this position were released. They do not end the consumer again."""

    def released(self) -> dict[Number, Position]:
        """Return `accepted` as of a release."""
        ends = {n: Position(lost.position.epoch, lost.position.sequence + lost.count) for n, lost in self.held.items()}
        return {**self.accepted, **ends}


class _Format(msgspec.Struct):
    format: int = 2
    """Files of version 2 may lack it."""


_FORMAT: Final = Decoder[_Format]("json", _Format)
_KEPT: Final = Decoder[Kept]("json", Kept)


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
        """Lock the name, and make the file durable. Wait up to `wait_s` for a process that has the name.

        Raises PositionError naming that process.
        """
        deadline = time.monotonic() + wait_s
        while True:
            try:
                make_directory(self.directory)
                self._lock = FileLock(self.directory / f"{self.name}{_LOCK_SUFFIX}")
                sync_directory(self.directory)  # its last owner may have been killed before it did
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
        """Return what is kept; None: nothing, or the consumer has ended.

        Raises PositionError for a file that cannot be decoded.
        """
        kept = self._read()
        return None if kept is None or _has_ended(kept) else kept

    def _read(self) -> Kept | None:
        try:
            data = read_regular(self.path, _MOST_BYTES)
            if (version := _FORMAT.decode(data).format) != VERSION:
                raise PositionError(
                    f"{self.path}: format was {version}, expected {VERSION}: remove the file to start without positions"
                )
            return _KEPT.decode(data)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._refused("be read", error) from error
        except DecodeError as error:
            raise PositionError(f"{self.path} is damaged: {error}") from error

    def keep(
        self,
        feed: str,
        positions: Mapping[int, Position],
        held: Mapping[int, Held] = MappingProxyType({}),
        accepted: Mapping[int, Position] = MappingProxyType({}),
    ) -> None:
        """Replace what is kept, durably. Raises PositionError; the old file stays then."""
        kept = Kept(VERSION, feed, time.time_ns(), dict(sorted(positions.items())), dict(held), dict(accepted))
        try:
            replace_file(self.path, self.path.with_suffix(".new"), msgspec.json.encode(kept) + b"\n")
        except OSError as error:
            raise self._refused("be kept", error) from error

    def end(self, feed: str) -> None:
        """Replace what is kept by a note, durably: the consumer has ended, which is not reported to archives yet.

        Raises PositionError.
        """
        self.keep(feed, {})

    @property
    def has_ended(self) -> bool:
        """True if the file holds the note of `end`. Raises PositionError."""
        kept = self._read()
        return kept is not None and _has_ended(kept)

    def forget(self) -> None:
        """Keep nothing any more. Raises PositionError when nothing was kept."""
        try:
            self.path.unlink()
            sync_directory(self.directory)
        except OSError as error:
            raise self._refused("be forgotten", error) from error

    def _refused(self, what: str, error: OSError) -> PositionError:
        return PositionError(f"positions {self.path} cannot {what}: {error.strerror}")


def _has_ended(kept: Kept) -> bool:
    return not (kept.slices or kept.held or kept.accepted)


def consumers(directory: str | os.PathLike[str]) -> list[PositionFile]:
    """Return the consumers with a file in a directory, by name; none if it is missing. Raises PositionError."""
    place = Path(directory)
    try:
        found = sorted(path for path in place.iterdir() if path.suffix == _SUFFIX)
        return [PositionFile(place, path.stem) for path in found]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise PositionError(f"{place} cannot be read: {error.strerror}") from error
    except ConfigError as error:
        raise PositionError(f"{place}: {error}") from error


def owned_consumers(directory: str | os.PathLike[str]) -> dict[str, PositionFile]:
    """Return the consumers in a directory, and as "OWNER/NAME" those in the directories in it. Raises PositionError."""
    place = Path(directory)
    if not place.is_dir():
        raise PositionError(f"{str(place)!r} was no directory, expected the positions of consumers")
    found = {file.name: file for file in consumers(place)}
    for owner in sorted(each for each in place.iterdir() if each.is_dir()):
        found |= {f"{owner.name}/{file.name}": file for file in consumers(owner)}
    return found


def secret_of(directory: str | os.PathLike[str]) -> bytes:
    """Return the secret by which archives know the consumers of a directory; make it if it is missing.

    Raises PositionError when it cannot be read or made.
    """
    path = Path(directory) / _SECRET
    try:
        make_directory(path.parent)
        if not path.exists():
            fresh = path.with_name(f"{_SECRET}.{secrets.token_hex(8)}")
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_bytes(SECRET_BYTES))
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):  # another process was first
                os.link(fresh, path)
            fresh.unlink()
            sync_directory(path.parent)
        secret = read_regular(path, SECRET_BYTES)
    except OSError as error:
        raise PositionError(f"secret {path} cannot be kept: {error.strerror}") from error
    if len(secret) != SECRET_BYTES:
        raise PositionError(f"secret {path} had {len(secret)} bytes, expected {SECRET_BYTES}: remove it")
    return secret
