"""Which topics a key may subscribe to, and put: `rights.toml` and `put_rights.toml`, in the directory of allowed keys.

Each is a table of names, those of the key files, each with the prefixes of topics that it has a right to::

    desk = ["AAPL.", "MSFT."]
    intern = []              # may connect, and read nothing
    "*" = ["INDEX."]         # keys that are not named; without this line they may read all
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from blackbox.errors import ConfigError

RIGHTS_FILE: Final = "rights.toml"
PUT_RIGHTS_FILE: Final = "put_rights.toml"
OTHERS: Final = "*"
"""Stands for the keys that have no line of their own."""
_MOST_BYTES: Final = 1 << 20

Prefixes = tuple[bytes, ...]
Rights = MappingProxyType[str, Prefixes]
ALL_RIGHTS: Final[Rights] = MappingProxyType({})
NO_RIGHTS: Final[Rights] = MappingProxyType({OTHERS: ()})


def load_rights(directory: str, key_bytes: int) -> Rights:
    """Return the prefixes that each name may subscribe to; who has neither a line nor `*` may subscribe to all.

    Raises ConfigError when the file is malformed, or a prefix is longer than `key_bytes`: ZeroMQ filters by keys.
    """
    return _load(Path(directory) / RIGHTS_FILE, key_bytes)


def load_put_rights(directory: str) -> Rights:
    """Return the prefixes that each name may put at a hub, as `load_rights`. Raises ConfigError."""
    return _load(Path(directory) / PUT_RIGHTS_FILE, None)


def _load(path: Path, key_bytes: int | None) -> Rights:
    try:
        with path.open("rb") as file:
            document = tomllib.loads(file.read(_MOST_BYTES).decode())
    except FileNotFoundError:
        return ALL_RIGHTS
    except OSError as error:
        raise ConfigError(f"rights {str(path)!r} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"rights {str(path)!r} are no TOML: {error}") from None
    return MappingProxyType({name: _prefixes(path, name, given, key_bytes) for name, given in document.items()})


def _prefixes(path: Path, name: str, given: Any, key_bytes: int | None) -> Prefixes:
    if not isinstance(given, list) or not all(isinstance(prefix, str) for prefix in given):
        raise ConfigError(f"rights {str(path)!r}: {name!r} was {given!r:.60}, expected a list of prefixes of topics")
    prefixes = tuple(sorted({prefix.encode() for prefix in given}))
    for prefix in prefixes:
        if key_bytes is not None and len(prefix) > key_bytes:
            raise ConfigError(
                f"rights {str(path)!r}: {name!r} had the prefix {prefix!r}, expected at most key_bytes = {key_bytes} "
                "bytes: topics with the same key travel together"
            )
        if prefix[:1] == b"\0":
            raise ConfigError(f"rights {str(path)!r}: {name!r} had the prefix {prefix!r}, expected no zero byte first")
    return prefixes
