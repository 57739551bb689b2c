"""The positions of consumers that an archive keeps days for: one directory for each key or secret."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from blackbox.archive.consumer_positions import PositionFile, consumers
from blackbox.archive.day import make_directory
from blackbox.block.position import Position
from blackbox.errors import PositionError

CONSUMERS: Final = "consumers"
"""The directory next to the days."""
MOST_NAMES: Final = 128
"""Consumers of one key or secret."""
MOST_SECRETS: Final = 1_024
MOST_NEW_OF_HOST: Final = 256
"""Names that hosts without a key may add, each, while an archive runs."""
_OF_SECRET: Final = "secret-"
_DIGEST_BYTES: Final = 16


class Owner(NamedTuple):
    """The owner of consumers: a key, or else a secret."""

    directory: str
    """Name of the directory of its consumers."""
    host: str | None
    """Address of a peer without a key; None for a key."""

    @classmethod
    def of_key(cls, name: str) -> Owner:
        """Return the owner with a key: `name` of its file in `allowed_keys`."""
        return cls(f"key-{name}", None)

    @classmethod
    def of_secret(cls, secret: bytes, host: str) -> Owner:
        """Return the owner with a secret. Only its digest is kept."""
        digest = hashlib.blake2b(secret, digest_size=_DIGEST_BYTES).hexdigest()
        return cls(f"{_OF_SECRET}{digest}", host)


class ConsumerStore:
    """Consumers that the archive of one feed keeps days for. Used by one thread."""

    def __init__(self, directory: Path) -> None:
        """`directory`: the feed's; nothing is opened."""
        self._place = directory / CONSUMERS
        self._feed = directory.name
        self._new = Counter[str]()
        """Names added by each host without a key."""

    def note(self, owner: Owner, name: str, positions: Mapping[int, Position]) -> None:
        """Keep the positions of a consumer, durably. Raises PositionError, or ConfigError for an invalid name."""
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
            if kept is None or kept.slices != dict(positions):
                file.keep(self._feed, positions)
        finally:
            file.close()
        if is_new and owner.host is not None:
            self._new[owner.host] += 1

    def end(self, owner: Owner, name: str) -> None:
        """Delete the positions of a consumer, if there are any. Raises PositionError, or ConfigError for its name."""
        file = PositionFile(self._place / owner.directory, name)
        if file.path.exists():
            file.forget()

    def _check_room(self, owner: Owner, name: str) -> None:
        """Raise PositionError when an owner, its host or the archive has no room for one more name."""
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
