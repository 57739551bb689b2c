"""The group key of a feed's multicast lines: read and make its file, and find the function that uses it."""

from __future__ import annotations

import ctypes
import secrets
import stat
from pathlib import Path
from typing import NamedTuple

from zmq.backend.cython import _zmq

from blackbox.errors import ConfigError
from blackbox.feed.feed import Feed
from blackbox.feed.security import warn_if_open
from blackbox.transport.security.hidden import hides
from blackbox.transport.udp.datagram import GROUP_KEY_BYTES

_FUNCTION = "crypto_generichash"


@hides("key")
class GroupKey(NamedTuple):
    """A group key for compiled code."""

    function: int
    """Address of libsodium's `crypto_generichash`; 0: no key."""
    key: bytes


NO_GROUP_KEY = GroupKey(0, b"")


def group_key_of(feed: Feed, endpoint: str) -> GroupKey:
    """Return the group key of a feed with a multicast endpoint. Warns if the feed has no security.

    Raises ConfigError naming a faulty key file, or if the libzmq in use has no libsodium.
    """
    if feed.security is None:
        warn_if_open(feed.name, endpoint)
        return NO_GROUP_KEY
    try:
        key = _load(feed.security.group_key)
    except ConfigError as error:
        raise ConfigError(f"feed {feed.name!r}: {error}") from None
    # The library of the extension module, and those that it was linked with: libzmq, and libsodium if that has CURVE.
    function = getattr(ctypes.CDLL(_zmq.__file__), _FUNCTION, None)
    if function is None:
        raise ConfigError(
            f"feed {feed.name!r}: group_key needs libsodium, which this libzmq lacks: install pyzmq's wheel"
        )
    return GroupKey(ctypes.cast(function, ctypes.c_void_p).value or 0, key)


def make_group_key(path: Path) -> None:
    """Write a new key to a file that only its owner can read. Raises OSError, FileExistsError if the file exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(0o600, exist_ok=False)
    try:
        path.write_text(f"{secrets.token_hex(GROUP_KEY_BYTES)}\n")
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _load(path: str) -> bytes:
    what = f"group key file {path!r}"
    try:
        text = Path(path).read_text(encoding="ascii").strip()
        key = bytes.fromhex(text)
        mode = stat.S_IMODE(Path(path).stat().st_mode)
    except OSError as error:
        raise ConfigError(f"{what} cannot be read: {error.strerror}") from error
    except ValueError:
        key, mode = b"", 0
    if len(key) != GROUP_KEY_BYTES:
        raise ConfigError(f"{what} was no key, expected {2 * GROUP_KEY_BYTES} hexadecimal digits: blackbox keys group")
    if mode & 0o077:
        raise ConfigError(f"{what} had mode {mode:04o}, expected 0600: others can read it")
    return key
