"""Put fragmented IPv4 datagrams together again. Few captures have any, so this is Python per fragment.

Source: RFC 791. Fragments may arrive in any order, and more than once.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy
from numpy.typing import NDArray

from blackbox_feeds.io.statistics import FRAGMENTS, REASSEMBLED

_MOST_DATAGRAMS: Final = 64
"""Datagrams that wait for fragments, of at most 64 KiB each."""
_MOST_BYTES: Final = 0xFFFF
_PATIENCE_NS: Final = 1_000_000_000
"""Longest time between the fragments of a datagram: their identification is used again."""
_MORE: Final = 0x2000
_OFFSET: Final = 0x1FFF


class _Datagram(msgspec.Struct):
    """A datagram with missing fragments."""

    first_ns: int
    fragments: int = 0
    received: int = 0
    """Bytes of the payloads so far."""
    size: int = -1
    """Bytes of the whole payload; -1: the last fragment has not arrived."""
    parts: dict[int, bytes] = {}
    """Payloads by offset."""

    def add(self, start: int, payload: bytes, *, is_last: bool) -> bool:
        """Add a payload. Return False if it contradicts another one."""
        self.fragments += 1
        size = start + len(payload) if is_last else self.size
        if self.size not in (-1, size) or self.parts.get(start, payload) != payload:
            return False
        self.size = size
        if start not in self.parts:
            self.parts[start] = payload
            self.received += len(payload)
        return True

    def payload(self) -> bytes:
        """Return the payloads joined; empty if they overlap or leave holes."""
        whole = bytearray()
        for start in sorted(self.parts):
            if start != len(whole):
                return b""
            whole += self.parts[start]
        return bytes(whole)


class Fragments:
    """The fragments of incomplete datagrams, in bounded memory. Adds to `counts`."""

    def __init__(self, counts: NDArray[numpy.int64]) -> None:
        self._counts = counts
        self._waiting: dict[bytes, _Datagram] = {}

    def add(self, packet: bytes, time_ns: int) -> bytes | None:
        """Add an IP packet that is a fragment. Return the payload of its datagram if it is complete."""
        head_bytes = (packet[0] & 15) * 4
        flags = int.from_bytes(packet[6:8], "big")
        start, payload = (flags & _OFFSET) * 8, packet[head_bytes : int.from_bytes(packet[2:4], "big")]
        is_last = not flags & _MORE
        if not payload or head_bytes < 20 or start + len(payload) > _MOST_BYTES or (not is_last and len(payload) % 8):
            self._counts[FRAGMENTS] += 1
            return None
        key = packet[4:6] + packet[12:20]  # identification and addresses; all are UDP
        found = self._waiting.get(key)
        if found is not None and time_ns - found.first_ns > _PATIENCE_NS:
            self._drop(key)
            found = None
        if found is None:
            if len(self._waiting) == _MOST_DATAGRAMS:
                self._drop(next(iter(self._waiting)))
            found = self._waiting[key] = _Datagram(time_ns)
        if not found.add(start, payload, is_last=is_last):
            self._drop(key)
            return None
        if found.received < found.size or found.size < 0:
            return None
        whole = found.payload()
        if len(whole) != found.size:
            self._drop(key)
            return None
        del self._waiting[key]
        self._counts[REASSEMBLED] += 1
        return whole

    def end(self) -> None:
        """Count the fragments of datagrams that never were complete."""
        for key in tuple(self._waiting):
            self._drop(key)

    def _drop(self, key: bytes) -> None:
        self._counts[FRAGMENTS] += self._waiting.pop(key).fragments
