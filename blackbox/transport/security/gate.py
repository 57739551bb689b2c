"""The gate of a context: which keys may connect to its bound sockets (ZAP, ZeroMQ's RFC 27), and what each may read."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import zmq
from zmq.utils import z85

from blackbox.errors import ConfigError
from blackbox.feed.endpoint import transport_of
from blackbox.feed.feed import Feed
from blackbox.feed.rights import (
    ALL_RIGHTS,
    NO_RIGHTS,
    OTHERS,
    PUT_RIGHTS_FILE,
    RIGHTS_FILE,
    Prefixes,
    Rights,
    load_put_rights,
    load_rights,
)
from blackbox.feed.routing.key_rule import MAX_KEY_BYTES
from blackbox.feed.security import Security, warn_if_open
from blackbox.native.system.limits import Needs, check_limits
from blackbox.repeated_log import HOUR_S, RepeatedLog
from blackbox.transport.security.curve import check_curve, connect_in_the_clear, load_pair, load_public
from blackbox.transport.server_thread import ServerThread, bind

log = logging.getLogger("blackbox")

_ZAP: Final = "inproc://zeromq.zap.01"
_DOMAIN: Final = b"blackbox"
_LOOK_S: Final = 1.0
"""Seconds between two checks of keys and rights; revoked rights last that long."""
_NEEDS: Final = Needs(descriptors=4, threads=1)


class AllowedKeys:
    """Public keys in a directory, and the prefixes that each may subscribe to and put; reloaded when files change.

    Thread-safe.
    """

    def __init__(self, directory: str, key_bytes: int = MAX_KEY_BYTES, *, takes_puts: bool = False) -> None:
        """Load the keys. Raises ConfigError if the directory is missing, or a key or its rights are malformed.

        `takes_puts`: also read `put_rights.toml`.
        """
        self._directory, self._key_bytes = directory, key_bytes
        self._takes_puts = takes_puts
        self._lock = threading.Lock()
        self.version = 0
        """Incremented whenever files are reloaded."""
        try:
            if not Path(directory).is_dir():
                raise ConfigError(f"allowed_keys was {directory!r}, expected a directory of public key files")
            self._files = self._look()
        except OSError as error:
            raise ConfigError(f"allowed_keys {directory!r} cannot be read: {error.strerror}") from error
        self._names = {load_public(path): Path(path).stem for path in self._key_files()}
        self._rights, self._put_rights = load_rights(directory, key_bytes), self._rights_to_put()
        self._is_unread = False
        if not self._names:
            log.warning("allowed_keys %r has no *.key file: no peer may connect", directory)
        self._warn_of_unknown()

    def _rights_to_put(self) -> Rights:
        return load_put_rights(self._directory) if self._takes_puts else ALL_RIGHTS

    def _key_files(self) -> list[str]:
        return [path for path, _ in self._files if path.endswith(".key")]

    def _look(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return the files with marks that change with their content or permissions. Raises OSError."""
        found: list[tuple[str, tuple[int, ...]]] = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                if entry.name.endswith(".key") or entry.name in (RIGHTS_FILE, PUT_RIGHTS_FILE):
                    try:
                        status = entry.stat()
                    except OSError:  # a dangling link: reported when it is read
                        found.append((entry.path, ()))
                    else:
                        marks = (status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size)
                        found.append((entry.path, marks))
        return sorted(found)

    def look(self) -> None:
        """Reload the files if they have changed.

        A file that became unreadable or malformed grants nothing, and is logged once.
        """
        with self._lock:
            try:
                files = self._look()
            except OSError as error:
                if not self._is_unread:
                    log.warning("allowed_keys %r cannot be read, so no peer may connect: %s", self._directory, error)
                    self._files, self._names = [], {}
                    self.version += 1
                self._is_unread = True
                return
            self._is_unread = False
            if files == self._files:
                return
            self._files = files
            names: dict[bytes, str] = {}
            for path in self._key_files():
                try:
                    names[load_public(path)] = Path(path).stem
                except ConfigError as error:
                    log.warning("%s", error)
            self._names = names
            self._rights = _right_now(lambda: load_rights(self._directory, self._key_bytes))
            self._put_rights = _right_now(self._rights_to_put)
            self.version += 1
            self._warn_of_unknown()

    def _warn_of_unknown(self) -> None:
        for file, rights in ((RIGHTS_FILE, self._rights), (PUT_RIGHTS_FILE, self._put_rights)):
            for name in rights.keys() - {*self._names.values(), OTHERS}:
                log.warning("%s in %r names %r, which has no key there", file, self._directory, name)

    def has(self, key: bytes) -> bool:
        """Return True if a key is allowed now."""
        self.look()
        return key in self._names

    def rights_of(self, key: bytes) -> tuple[str, Prefixes | None]:
        """Return a key's name and the prefixes that it may subscribe to, as of the last `look`; None: all."""
        name = self._names.get(key)
        return ("", ()) if name is None else (name, self._rights.get(name, self._rights.get(OTHERS)))

    def put_rights_of(self, key: bytes) -> Prefixes | None:
        """Return the prefixes that a key may put, as of the last `look`; None: all, as without `takes_puts`."""
        name = self._names.get(key)
        return () if name is None else self._put_rights.get(name, self._put_rights.get(OTHERS))


def _right_now(load: Callable[[], Rights]) -> Rights:
    """Return changed rights; no rights while they are malformed."""
    try:
        return load()
    except ConfigError as error:
        log.warning("%s: until that is corrected no key has a right", error)
        return NO_RIGHTS


class Gate:
    """Answers libzmq's requests for permission to connect to the sockets of one context, in its own thread.

    Open it before binding, close it before the context ends. `refused` counts rejected peers; each pair of key and
    address is logged once.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        security: Security,
        what: str,
        allowed_keys: str = "",
        key_bytes: int = MAX_KEY_BYTES,
        *,
        takes_puts: bool = False,
    ) -> None:
        """Read the keys. Raises ConfigError for a missing or malformed one.

        `allowed_keys` replaces the feed's. `key_bytes`: the feed's, the longest prefix of rights. `takes_puts`: also
        read rights to put.
        """
        check_curve()
        if not (allowed_keys := allowed_keys or security.allowed_keys):
            raise ConfigError("security.allowed_keys was missing, expected the directory of keys that may connect")
        self.refused = 0
        self._context, self._what = context, what
        self._own, self._allowed = load_pair(security.key), AllowedKeys(allowed_keys, key_bytes, takes_puts=takes_puts)
        self._repeated = RepeatedLog(log, HOUR_S)
        self._looked_at, self._seen = 0.0, self._allowed.version
        self._thread = ServerThread("blackbox-gate", f"gate of {what}", self._serve)

    def open(self) -> None:
        """Start answering. Raises LimitError."""
        check_limits(self._what, _NEEDS)
        self._thread.start()

    def close(self) -> None:
        """Stop answering: no further peer can connect."""
        self._thread.end()

    def secure(self, socket: zmq.Socket[bytes], endpoint: str) -> None:
        """Encrypt the next bind of a socket if it is tcp, with this gate deciding which keys may connect."""
        if transport_of(endpoint) != "tcp":
            connect_in_the_clear(socket)
            return
        socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without an answer from this gate no peer can connect
        socket.curve_publickey, socket.curve_secretkey = self._own
        socket.curve_server = 1

    def look(self) -> bool:
        """Reload changed keys and rights, at most once per second; return True if anything changed."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK_S:
            return False
        self._looked_at = now
        self._allowed.look()
        before, self._seen = self._seen, self._allowed.version
        return before != self._seen

    def rights_of(self, key: str) -> tuple[str, Prefixes | None]:
        """Return a key's name and the prefixes that it may subscribe to; None: all."""
        return self._allowed.rights_of(key.encode())

    def put_rights_of(self, key: str) -> Prefixes | None:
        """Return the prefixes of topics that a key may put; None: all."""
        return self._allowed.put_rights_of(key.encode())

    def _serve(self) -> None:
        with self._context.socket(zmq.REP) as socket:
            socket.linger = 0
            bind(socket, _ZAP, self._what)
            for frames in self._thread.requests(socket):
                socket.send_multipart(self._answer(frames))

    def _answer(self, frames: list[bytes]) -> list[bytes]:
        version, number, _, address, _, mechanism, *credentials = frames
        key = z85.encode(credentials[0]) if mechanism == b"CURVE" and credentials else b""
        # Only ipc sockets are unencrypted: there the permissions of the path decide.
        if mechanism == b"NULL" or self._allowed.has(key):
            return [version, number, b"200", b"OK", key, b""]
        self._log_refused(key, address)
        return [version, number, b"400", b"key is not allowed", b"", b""]

    def _log_refused(self, key: bytes, address: bytes) -> None:
        self.refused += 1
        text = "%s: refused key %s at %s: not among allowed_keys"
        self._repeated.warning((key, address), text, self._what, key.decode(), address.decode())


def open_gate(
    context: zmq.Context[zmq.Socket[bytes]],
    feed: Feed,
    endpoints: Sequence[str],
    what: str,
    allowed_keys: str = "",
    *,
    takes_puts: bool = False,
) -> Gate | None:
    """Return an open gate for the binds at `endpoints`, or None if none is needed. Warns about a feed without security.

    `allowed_keys`: directory for these endpoints, if not the feed's. `takes_puts`: also read rights to put. Raises
    LimitError, and ConfigError naming a faulty key.
    """
    of_tcp = [endpoint for endpoint in endpoints if transport_of(endpoint) == "tcp"]
    if feed.security is None:
        for endpoint in of_tcp:
            warn_if_open(feed.name, endpoint)
        return None
    if not of_tcp:
        return None
    if context is zmq.Context.instance():
        raise ConfigError(f"{what}: inproc was combined with {of_tcp[0]} and security, expected tcp or ipc")
    try:
        gate = Gate(context, feed.security, what, allowed_keys, feed.key_bytes, takes_puts=takes_puts)
    except ConfigError as error:
        raise ConfigError(f"feed {feed.name!r}: {error}") from None
    gate.open()
    return gate
