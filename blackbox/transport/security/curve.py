"""CURVE: read key files, and encrypt the later connections of a socket.

The binding side is the server: see `gate`, which decides which keys may connect. Files are those of `zmq.auth`.
"""

from __future__ import annotations

import ctypes
import logging
import stat
import struct
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import zmq
import zmq.auth
from zmq.backend.cython import _zmq
from zmq.utils import z85

from blackbox.errors import ConfigError
from blackbox.feed.endpoint import transport_of
from blackbox.feed.feed import Feed
from blackbox.feed.security import Security, warn_if_open
from blackbox.transport.security.hidden import hides
from blackbox.transport.tcp_info import Failure

log = logging.getLogger("blackbox")

_KEY_LENGTH = 40
"""Characters of a key in Z85."""
_FAST_S = 200e-6
"""libsodium derives a public key in about 30 µs, the built-in TweetNaCl in a millisecond."""


@hides("secret")
class Pair(NamedTuple):
    """A public key and its secret key, as text."""

    public: bytes
    secret: bytes


class ClientKeys(NamedTuple):
    """Keys of a socket that connects to a server: its own pair, and the public key of the server."""

    own: Pair
    server: bytes


def load_pair(path: str) -> Pair:
    """Read a secret key file. Raises ConfigError if it is missing, malformed, or readable by others."""
    public, secret = _load(path, "secret key file")
    if secret is None:
        raise ConfigError(f"secret key file {path!r} had no secret key, expected one: blackbox keys new makes it")
    mode = stat.S_IMODE(Path(path).stat().st_mode)
    if mode & 0o077:
        raise ConfigError(f"secret key file {path!r} had mode {mode:04o}, expected 0600: others can read it")
    if zmq.curve_public(_checked(path, "secret", secret)) != public:
        raise ConfigError(f"secret key file {path!r} had the public key {public.decode()}, expected that of its secret")
    return Pair(public, secret)


def load_public(path: str) -> bytes:
    """Read a public key file. Raises ConfigError if it is missing or malformed."""
    return _load(path, "public key file")[0]


def _load(path: str, what: str) -> tuple[bytes, bytes | None]:
    try:
        public, secret = zmq.auth.load_certificate(path) if Path(path).is_file() else (b"", None)
    except OSError as error:
        raise ConfigError(f"{what} {path!r} cannot be read: {error.strerror}") from error
    except (ValueError, IndexError):
        raise ConfigError(f"{what} {path!r} had no public key, expected one: blackbox keys new makes it") from None
    if not public:
        raise ConfigError(f"{what} {path!r} was not found, expected a file that blackbox keys new has made")
    return _checked(path, "public", public), secret


def _checked(path: str, which: str, key: bytes) -> bytes:
    try:
        if len(key) == _KEY_LENGTH:
            z85.decode(key)
            return key
    except (KeyError, struct.error):
        pass
    shown = f" {key.decode(errors='backslashreplace')!r}" if which == "public" else ""
    raise ConfigError(
        f"{which} key{shown} in {path!r} had {len(key)} characters, expected {_KEY_LENGTH} of the alphabet Z85"
    )


def make_pair(directory: Path, name: str) -> tuple[str, Path, Path]:
    """Write a new key pair. Return the public key, its file, and the secret key's file, readable by its owner only.

    Raises ConfigError if this libzmq has no CURVE, OSError if the files cannot be written.
    """
    check_curve()
    directory.mkdir(parents=True, exist_ok=True)
    public_file, secret_file = directory / f"{name}.key", directory / f"{name}.key_secret"
    made: list[Path] = []
    try:
        for path, mode in ((secret_file, 0o600), (public_file, 0o644)):
            path.touch(mode, exist_ok=False)  # the mode stays when it is written
            made.append(path)
        zmq.auth.create_certificates(directory, name)
    except BaseException as error:  # so that a full disk leaves no empty or partial file
        for path in made:
            path.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            raise OSError(error.errno, error.strerror, str(secret_file)) from error
        raise
    return load_public(str(public_file)).decode(), public_file, secret_file


def keys_of_line(feed: Feed, line: int, endpoint: str) -> ClientKeys | None:
    """Return the keys to connect to a line; None: unencrypted. Raises ConfigError naming a faulty key."""
    return _client_keys(feed, endpoint, lambda security: security.key_of_line(line))


def keys_of_archive(feed: Feed, endpoint: str) -> ClientKeys | None:
    """Return the keys to connect to an archive, see `keys_of_line`."""
    place = feed.archives.index(endpoint) if endpoint in feed.archives else 0
    return _client_keys(feed, endpoint, lambda security: security.key_of_archive(place))


def keys_of_hub(feed: Feed, place: int, endpoint: str) -> ClientKeys | None:
    """Return the keys to connect to the first or second hub of a feed, see `keys_of_line`.

    A hub is also the archive with its number. Behind relays, the keys of the lines are the relays'.
    """
    return _client_keys(
        feed, endpoint, lambda keys: keys.key_of_archive(place) if keys.archive_keys else keys.key_of_line(place)
    )


def _client_keys(feed: Feed, endpoint: str, server_of: Callable[[Security], str]) -> ClientKeys | None:
    if transport_of(endpoint) != "tcp":
        return None
    if feed.security is None:
        warn_if_open(feed.name, endpoint)
        return None
    check_curve()
    try:
        return ClientKeys(load_pair(feed.security.key), load_public(server_of(feed.security)))
    except ConfigError as error:
        raise ConfigError(f"feed {feed.name!r}: {error}") from None


def key_of(frame: zmq.Frame) -> str:
    """Return the public key of a frame's sender; empty: the connection is not encrypted."""
    with suppress(zmq.ZMQError):
        return str(frame.get("User-Id"))
    return ""


def use_keys(socket: zmq.Socket[bytes], keys: ClientKeys | None) -> None:
    """Encrypt the next connections; None: do not."""
    if keys is None:
        connect_in_the_clear(socket)
    else:
        socket.curve_publickey, socket.curve_secretkey = keys.own
        socket.curve_serverkey = keys.server


def connect_in_the_clear(socket: zmq.Socket[bytes]) -> None:
    """Do not encrypt the next connections or binds."""
    if zmq.has("curve"):
        socket.curve_server = 0


def refusal_of(failures: Collection[Failure], keys: ClientKeys | None) -> str:
    """Return why a server rejects our connections, from the failed handshakes; empty: unknown."""
    if keys is None:
        return "it requires CURVE, and this feed file has no [security]" * (Failure.MECHANISM in failures)
    if Failure.REFUSED in failures:
        return f"it refused our key {keys.own.public.decode()}, expected that among its allowed_keys"
    if Failure.MECHANISM in failures:
        return "it does not speak CURVE, expected [security] in its feed file, too"
    if failures:
        return f"it ended the handshake: expected the key {keys.server.decode()} (server_keys) and [security] there"
    return ""


def check_curve() -> None:
    """Raise ConfigError if this libzmq has no CURVE; warn once if it has the slow implementation."""
    if not zmq.has("curve"):
        raise ConfigError("security was set, but this libzmq has no CURVE: install a wheel of pyzmq that has it")
    if not is_fast():
        _warn_of_slow()


@cache
def _warn_of_slow() -> None:
    log.warning("CURVE of this pyzmq is the slow kind (without libsodium): expect a fraction of the usual rate")


@cache
def is_fast() -> bool:
    """Return True if libzmq encrypts with libsodium: by its symbols or, if they are hidden, by its speed."""
    if hasattr(ctypes.CDLL(_zmq.__file__), "sodium_init"):
        return True
    _, secret = zmq.curve_keypair()
    return min(_seconds_of_key(secret) for _ in range(5)) < _FAST_S


def _seconds_of_key(secret: bytes) -> float:
    began = time.perf_counter()
    zmq.curve_public(secret)
    return time.perf_counter() - began
