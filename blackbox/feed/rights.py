"""Topics that a key may subscribe to and put: `rights.toml` and `put_rights.toml` in the directory of allowed keys.

Each file maps names of key files to the topic prefixes allowed for the key::

    desk = ["AAPL.", "MSFT."]
    intern = []              # may connect, and read nothing
    "*" = ["INDEX."]         # all other keys; without this line they may read all
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from blackbox.errors import ConfigError
from blackbox.regular_file import read_regular

RIGHTS_FILE: Final = "rights.toml"
PUT_RIGHTS_FILE: Final = "put_rights.toml"
OTHERS: Final = "*"
"""Entry for keys without an entry of their own."""
_MOST_BYTES: Final = 1 << 20

Prefixes = tuple[bytes, ...]
Rights = MappingProxyType[str, Prefixes]
ALL_RIGHTS: Final[Rights] = MappingProxyType({})
NO_RIGHTS: Final[Rights] = MappingProxyType({OTHERS: ()})


def load_rights(directory: str, key_bytes: int) -> Rights:
    """Return the prefixes that each name may subscribe to.

    Without an entry and without `*` a name may subscribe to all. Raises ConfigError if the file is malformed, or a
    prefix is longer than `key_bytes`, as ZeroMQ filters by keys.
    """
    return _load(Path(directory) / RIGHTS_FILE, key_bytes)


def load_put_rights(directory: str) -> Rights:
    """Return the prefixes that each name may put at a hub, as `load_rights` does. Raises ConfigError."""
    return _load(Path(directory) / PUT_RIGHTS_FILE, None)


def _load(path: Path, key_bytes: int | None) -> Rights:
    try:
        document = tomllib.loads(read_regular(path, _MOST_BYTES).decode())
    except FileNotFoundError:
        return ALL_RIGHTS
    except OSError as error:
        raise ConfigError(f"rights {str(path)!r} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"rights {str(path)!r} are not TOML: {error}") from None
    return MappingProxyType({name: _prefixes(path, name, given, key_bytes) for name, given in document.items()})


def _prefixes(path: Path, name: str, given: Any, key_bytes: int | None) -> Prefixes:
    if not isinstance(given, list) or not all(isinstance(prefix, str) for prefix in given):
        raise ConfigError(f"rights {str(path)!r}: {name!r} was {given!r:.60}, expected a list of prefixes of topics")
    prefixes = tuple(sorted({prefix.encode() for prefix in given}))
    for prefix in prefixes:
        if key_bytes is not None and len(prefix) > key_bytes:
            raise ConfigError(
                f"rights {str(path)!r}: {name!r} had the prefix {prefix!r}, expected at most key_bytes = {key_bytes} "
                "bytes: topics with the same key share blocks"
            )
        if prefix[:1] == b"\0":
            raise ConfigError(f"rights {str(path)!r}: {name!r} had the prefix {prefix!r}, expected no zero byte first")
    return prefixes
