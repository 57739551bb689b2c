"""Positions of consumers for which an archive retains days: one directory for each key or secret."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from blackbox.archive.consumer_positions import PositionFile, consumers
from blackbox.archive.files.day import make_directory
from blackbox.block.position import Position
from blackbox.errors import PositionError

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

    def _check_room(self, owner: Owner, name: str) -> None:
        """Raise PositionError if the owner, its host or the archive has no room for another name."""
        have, what, most = len(consumers(self._place / owner.directory)), "of its key or secret", MOST_NAMES
        if have < most and owner.host is not None:
            have, what, most = self._new[owner.host], f"new from host {owner.host} without a key", MOST_NEW_OF_HOST
            if have < most and not (self._place / owner.directory).is_dir():
                found = self._place.iterdir() if self._place.is_dir() else ()
                have, what, most = sum(each.name.startswith(_OF_SECRET) for each in found), "secrets", MOST_SECRETS
        if have >= most:
            raise PositionError(
                f"consumer {name!r} was one too many, expected at most {most} {what}: "
                "forget old ones with `blackbox positions --forget`"
            )
