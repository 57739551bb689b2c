"""Stored positions of named consumers: one file each, replaced atomically; archives keep a directory for each owner."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from blackbox.archive.files.day import make_directory, replace_file, sync_directory
from blackbox.block.form.layout import VERSION
from blackbox.block.position import Number, Position
from blackbox.documents import DecodeError, Decoder
from blackbox.errors import ConfigError, PositionError
from blackbox.feed.feed import check_name
from blackbox.native.system.file_lock import FileLock, OwnedError
from blackbox.regular_file import read_regular

_SUFFIX: Final = ".positions"
_LOCK_SUFFIX: Final = ".lock"
_SECRET: Final = "archive.secret"
SECRET_BYTES: Final = 32
_MOST_BYTES: Final = 64 << 20
_LOOK_S: Final = 0.05


class Held(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lost messages of a slice that stopped a consumer."""

    position: Position
    """The first lost message."""
    stop: Number
    """Sequence after the last lost message."""
    count: Number
    is_upper_bound: bool
    """True if `count` may include messages of unwanted keys."""

    def __str__(self) -> str:
        at_most = "at most " if self.is_upper_bound else ""
        return f"lost {at_most}{self.count} from {self.position.sequence} of epoch {self.position.epoch} on"


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Content of a position file."""

    format: int
    """Version of the format."""
    feed: str
    """Name of the feed."""
    kept_ns: Number
    """Time of the write, ns since 1970."""
    slices: dict[Number, Position] = {}
    """Next position by slice. Empty: the consumer has ended, and archives have not been notified yet."""

    held: dict[Number, Held] = {}
    """Losses that stopped the consumer, by slice. It does not start until it is released."""
    accepted: dict[Number, Position] = {}
    """Positions by slice up to which losses were released. These losses do not stop the consumer again."""
    prefixes: tuple[bytes, ...] = ()
    """Prefixes of the consumer's topics, in files of an archive. Empty: not known, it may want any topic."""

    def released(self) -> dict[Number, Position]:
        """Return `accepted` after a release of the held losses."""
        ends = {n: Position(lost.position.epoch, lost.stop) for n, lost in self.held.items()}
        return {**self.accepted, **ends}


class _Format(msgspec.Struct):
    format: int = 2
    """Missing in files of version 2."""


_FORMAT: Final = Decoder[_Format]("json", _Format)
_KEPT: Final = Decoder[Kept]("json", Kept)


class PositionFile:
    """The positions of one consumer. Call `own` before changing them."""

    def __init__(self, directory: str | os.PathLike[str], name: str) -> None:
        """Set the path; no file is opened. Raises ConfigError for an invalid name."""
        check_name(name)
        self.directory, self.name = Path(directory), name
        self.path = self.directory / f"{name}{_SUFFIX}"
        self._lock: FileLock | None = None
        self._guard = threading.Lock()

    def own(self, wait_s: float) -> None:
        """Lock the name and make the file durable. Wait up to `wait_s` while another process owns the name.

        Raises PositionError naming that process.
        """
        deadline = time.monotonic() + wait_s
        while True:
            try:
                make_directory(self.directory)
                self._lock = FileLock(self.directory / f"{self.name}{_LOCK_SUFFIX}")
                sync_directory(self.directory)  # the last owner may have been killed before it did
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
        """Release the name. May be called again, also from another thread."""
        with self._guard:
            if self._lock is not None:
                self._lock.close()
                self._lock = None

    def read(self) -> Kept | None:
        """Return the stored positions; None if the file is missing or the consumer has ended.

        Raises PositionError if the file cannot be decoded.
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
        prefixes: tuple[bytes, ...] = (),
    ) -> None:
        """Replace the stored positions, durably. If it raises PositionError, the old file remains."""
        slices = dict(sorted(positions.items()))
        kept = Kept(VERSION, feed, time.time_ns(), slices, dict(held), dict(accepted), prefixes)
        try:
            replace_file(self.path, self.path.with_suffix(".new"), msgspec.json.encode(kept) + b"\n")
        except OSError as error:
            raise self._refused("be kept", error) from error

    def end(self, feed: str) -> None:
        """Replace the positions, durably, with a note that the consumer has ended and archives must be notified.

        Raises PositionError.
        """
        self.keep(feed, {})

    @property
    def has_ended(self) -> bool:
        """True if the file holds the note of `end`. Raises PositionError."""
        kept = self._read()
        return kept is not None and _has_ended(kept)

    def forget(self) -> None:
        """Delete the stored positions. Raises PositionError if the file is missing."""
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
    """Return the consumers with a file in a directory, by name. Empty if it is missing. Raises PositionError."""
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
    """Return the consumers in a directory, and as "OWNER/NAME" those in its subdirectories. Raises PositionError."""
    place = Path(directory)
    if not place.is_dir():
        raise PositionError(f"{str(place)!r} was no directory, expected the positions of consumers")
    found = {file.name: file for file in consumers(place)}
    for owner in sorted(each for each in place.iterdir() if each.is_dir()):
        found |= {f"{owner.name}/{file.name}": file for file in consumers(owner)}
    return found


def secret_of(directory: str | os.PathLike[str]) -> bytes:
    """Return the secret that identifies a directory's consumers to archives. Create it if it is missing.

    Raises PositionError if it cannot be read or created.
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
            with suppress(FileExistsError):  # created by another process
                os.link(fresh, path)
            fresh.unlink()
            sync_directory(path.parent)
        secret = read_regular(path, SECRET_BYTES)
    except OSError as error:
        raise PositionError(f"secret {path} cannot be kept: {error.strerror}") from error
    if len(secret) != SECRET_BYTES:
        raise PositionError(f"secret {path} had {len(secret)} bytes, expected {SECRET_BYTES}: remove it")
    return secret


CONSUMERS: Final = "consumers"
"""Name of the directory, next to the days."""
MOST_NAMES: Final = 128
"""Maximum number of consumers of one key or secret."""
MOST_SECRETS: Final = 1_024
MOST_NEW_OF_HOST: Final = 256
"""Maximum number of names that each host without a key may add while an archive runs."""
_OF_SECRET: Final = "secret-"
_DIGEST_BYTES: Final = 16


class Owner(NamedTuple):
    """The owner of consumers: a key, or else a secret."""

    directory: str
    """Name of the directory of the owner's consumers."""
    host: str | None
    """Address of a peer without a key; None for a key."""

    @classmethod
    def of_key(cls, name: str) -> Owner:
        """Return the owner with a key; `name` is that of its file in `allowed_keys`."""
        return cls(f"key-{name}", None)

    @classmethod
    def of_secret(cls, secret: bytes, host: str) -> Owner:
        """Return the owner with a secret. Only its digest is stored."""
        digest = hashlib.blake2b(secret, digest_size=_DIGEST_BYTES).hexdigest()
        return cls(f"{_OF_SECRET}{digest}", host)


class ConsumerStore:
    """Consumers for which the archive of one feed retains days. Used by one thread."""

    def __init__(self, directory: Path) -> None:
        """`directory` is the feed's. No file is opened."""
        self._place = directory / CONSUMERS
        self._feed = directory.name
        self._new = Counter[str]()
        """Names added, by host without a key."""

    def note(
        self, owner: Owner, name: str, positions: Mapping[int, Position], prefixes: tuple[bytes, ...] = ()
    ) -> None:
        """Store the positions of a consumer and the prefixes of its topics, durably.

        Raises PositionError, or ConfigError for an invalid name.
        """
        file = PositionFile(self._place / owner.directory, name)
        is_new = not file.path.exists()
        if is_new:
            self._check_room(owner, name)
        try:
            make_directory(file.directory)
        except OSError as error:
            raise PositionError(f"{file.directory} cannot be made: {error.strerror}") from error
        file.own(0.0)
        try:
            kept = file.read()
            if kept is None or (kept.slices, kept.prefixes) != (dict(positions), prefixes):
                file.keep(self._feed, positions, prefixes=prefixes)
        finally:
            file.close()
        if is_new and owner.host is not None:
            self._new[owner.host] += 1

    def end(self, owner: Owner, name: str) -> None:
        """Delete a consumer's positions. Raises PositionError, or ConfigError for an invalid name."""
        file = PositionFile(self._place / owner.directory, name)
        if file.path.exists():
            file.forget()
            if owner.host is not None:
                self._new[owner.host] -= self._new[owner.host] > 0
                if not consumers(file.directory):
                    shutil.rmtree(file.directory, ignore_errors=True)  # it was one owner's

    def _check_room(self, owner: Owner, name: str) -> None:
        """Raise PositionError if the owner, its host or the archive has no room for another name."""
        mine = len(consumers(self._place / owner.directory))
        have, what, most = mine, "of its key or secret", MOST_NAMES
        if have < most and owner.host is not None:
            have, what, most = self._new[owner.host], f"new from host {owner.host} without a key", MOST_NEW_OF_HOST
            if have < most and not mine:
                found = self._place.iterdir() if self._place.is_dir() else ()
                used = [each for each in found if each.name.startswith(_OF_SECRET) and consumers(each)]
                have, what, most = len(used), "secrets", MOST_SECRETS
        if have >= most:
            raise PositionError(
                f"consumer {name!r} was one too many, expected at most {most} {what}: "
                "forget old ones with `blackbox positions --forget`"
            )
