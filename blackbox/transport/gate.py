"""The gate of a context: which keys may connect to what is bound there (ZAP, ZeroMQ's RFC 27), what each may read."""

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
from blackbox.feed.key_rule import MAX_KEY_BYTES
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
from blackbox.feed.security import Security, warn_if_open
from blackbox.native.limits import Needs, check_limits
from blackbox.transport.curve import check_curve, connect_in_the_clear, load_pair, load_public
from blackbox.transport.server_thread import ServerThread, bind

log = logging.getLogger("blackbox")

_ZAP: Final = "inproc://zeromq.zap.01"
_DOMAIN: Final = b"blackbox"
_MOST_TOLD: Final = 1_000
"""Refused peers that are remembered, and told one by one."""
_LOOK_S: Final = 1.0
"""Time between two looks at rights: those that were revoked hold for so long."""
_NEEDS: Final = Needs(descriptors=4, threads=1)


class AllowedKeys:
    """The public keys in a directory, and what each may subscribe to and put; read again when its files have changed.

    Any thread may ask.
    """

    def __init__(self, directory: str, key_bytes: int = MAX_KEY_BYTES, *, takes_puts: bool = False) -> None:
        """Raises ConfigError when the directory is missing, or a key in it or its rights are malformed.

        `takes_puts`: `put_rights.toml` counts, too.
        """
        self._directory, self._key_bytes = directory, key_bytes
        self._takes_puts = takes_puts
        self._lock = threading.Lock()
        self.version = 0
        """Grows whenever files were read."""
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
            log.warning("allowed_keys %r has no *.key file: nobody may connect", directory)
        self._warn_of_unknown()

    def _rights_to_put(self) -> Rights:
        return load_put_rights(self._directory) if self._takes_puts else ALL_RIGHTS

    def _key_files(self) -> list[str]:
        return [path for path, _ in self._files if path.endswith(".key")]

    def _look(self) -> list[tuple[str, tuple[int, ...]]]:
        """Return the files, and what changes with what is in them or who may read them. Raises OSError."""
        found: list[tuple[str, tuple[int, ...]]] = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                if entry.name.endswith(".key") or entry.name in (RIGHTS_FILE, PUT_RIGHTS_FILE):
                    try:
                        status = entry.stat()
                    except OSError:  # a link to nowhere: who reads it says so
                        found.append((entry.path, ()))
                    else:
                        marks = (status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_size)
                        found.append((entry.path, marks))
        return sorted(found)

    def look(self) -> None:
        """Read the files if they have changed.

        What has become unreadable, or malformed, allows nobody anything, and is told once.
        """
        with self._lock:
            try:
                files = self._look()
            except OSError as error:
                if not self._is_unread:
                    log.warning("allowed_keys %r cannot be read, so nobody may connect: %s", self._directory, error)
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
        """Whether a key is allowed now."""
        self.look()
        return key in self._names

    def rights_of(self, key: bytes) -> tuple[str, Prefixes | None]:
        """Return a key's name, and the prefixes that it may subscribe to as of the last look; None: all."""
        name = self._names.get(key)
        return ("", ()) if name is None else (name, self._rights.get(name, self._rights.get(OTHERS)))

    def put_rights_of(self, key: bytes) -> Prefixes | None:
        """Return the prefixes of topics that a key may put as of the last look; None: all, as without `takes_puts`."""
        name = self._names.get(key)
        return () if name is None else self._put_rights.get(name, self._put_rights.get(OTHERS))


def _right_now(load: Callable[[], Rights]) -> Rights:
    """Return rights that have changed; none at all while they are malformed."""
    try:
        return load()
    except ConfigError as error:
        log.warning("%s: until that is corrected no key has a right", error)
        return NO_RIGHTS


class Gate:
    """Answers libzmq who may connect to the sockets of one context, in a thread of its own.

    Open it before they are bound, close it before the context ends. `refused` counts those who may not; each key and
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
        """Read the keys; `allowed_keys` in place of the feed's. Raises ConfigError for a missing or malformed one.

        `key_bytes`: the feed's: rights go no further. `takes_puts`: it is asked for rights to put, too.
        """
        check_curve()
        if not (allowed_keys := allowed_keys or security.allowed_keys):
            raise ConfigError("security.allowed_keys was missing, expected the directory of keys that may connect")
        self.refused = 0
        self._context, self._what = context, what
        self._own, self._allowed = load_pair(security.key), AllowedKeys(allowed_keys, key_bytes, takes_puts=takes_puts)
        self._told: set[tuple[bytes, bytes]] = set()
        self._looked_at, self._seen = 0.0, self._allowed.version
        self._thread = ServerThread("blackbox-gate", f"gate of {what}", self._serve)

    def open(self) -> None:
        """Begin to answer. Raises LimitError."""
        check_limits(self._what, _NEEDS)
        self._thread.start()

    def close(self) -> None:
        """Answer no more: nobody who is not connected can connect now."""
        self._thread.end()

    def secure(self, socket: zmq.Socket[bytes], endpoint: str) -> None:
        """Have what is bound next on a socket encrypted if it is tcp, and ask here who may connect."""
        if transport_of(endpoint) != "tcp":
            connect_in_the_clear(socket)
            return
        socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without an answer from here nobody comes in
        socket.curve_publickey, socket.curve_secretkey = self._own
        socket.curve_server = 1

    def look(self) -> bool:
        """Look after the keys and their rights, once a second; return whether anything has changed."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK_S:
            return False
        self._looked_at = now
        self._allowed.look()
        before, self._seen = self._seen, self._allowed.version
        return before != self._seen

    def rights_of(self, key: str) -> tuple[str, Prefixes | None]:
        """Return a key's name, and the prefixes that it may subscribe to; None: all."""
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
        # In the clear are only sockets that `secure` has left so: of ipc, where the permissions of the path decide.
        if mechanism == b"NULL" or self._allowed.has(key):
            return [version, number, b"200", b"OK", key, b""]
        self._tell(key, address)
        return [version, number, b"400", b"key is not allowed", b"", b""]

    def _tell(self, key: bytes, address: bytes) -> None:
        self.refused += 1
        if (key, address) not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add((key, address))
            log.warning("%s: refused key %s at %s: not among allowed_keys", self._what, key.decode(), address.decode())
            if len(self._told) == _MOST_TOLD:
                log.warning("%s: has refused %d peers, further ones are only counted", self._what, _MOST_TOLD)


def open_gate(
    context: zmq.Context[zmq.Socket[bytes]],
    feed: Feed,
    endpoints: Sequence[str],
    what: str,
    allowed_keys: str = "",
    *,
    takes_puts: bool = False,
) -> Gate | None:
    """Return an open gate for what is bound at `endpoints`; None if it needs none. Warns of a feed without security.

    `allowed_keys`: the directory that holds for these endpoints, if it is not the feed's. `takes_puts`: the gate is
    asked for rights to put, too. Raises ConfigError naming
    what is wrong with a key, and LimitError.
    """
    of_tcp = [endpoint for endpoint in endpoints if transport_of(endpoint) == "tcp"]
    if feed.security is None:
        for endpoint in of_tcp:
            warn_if_open(feed.name, endpoint)
        return None
    if not of_tcp:
        return None
    if context is zmq.Context.instance():
        raise ConfigError(f"{what}: inproc was beside {of_tcp[0]} with security, expected tcp or ipc")
    try:
        gate = Gate(context, feed.security, what, allowed_keys, feed.key_bytes, takes_puts=takes_puts)
    except ConfigError as error:
        raise ConfigError(f"feed {feed.name!r}: {error}") from None
    gate.open()
    return gate
