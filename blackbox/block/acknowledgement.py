"""What a recorder tells a publisher: how far it has recorded, and synced, what was published.

It is told as a subscription to a key that nothing is ever sent under, and the next one takes its place: see the wire
format.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, Self

from blackbox.block.format import MAX_KEY_BYTES, RECORDED_KEY
from blackbox.block.layout import ACKNOWLEDGEMENT

NEVER_SYNCED: Final = -1
NOTHING_MISSING: Final = -1
TOO_MANY_KEYS: Final = -2

_FIXED = struct.Struct(ACKNOWLEDGEMENT.format)
_MOST_NAME_BYTES: Final = 40
_LEAST_BYTES: Final = _FIXED.size
MOST_BYTES: Final = _LEAST_BYTES + MAX_KEY_BYTES + _MOST_NAME_BYTES


class Acknowledgement(NamedTuple):
    """How far one recorder is with one slice and epoch.

    A position is a count of messages: of all that the publisher had numbered in that slice and epoch, over all keys.
    What is numbered from `begin` up to `recorded` is in the recorder's journal, without a gap.
    """

    nonce: bytes
    """Of one slice of one run of the recorder."""
    epoch: int
    begin: int
    recorded: int
    synced: int
    """How far it is on the disk; NEVER_SYNCED: this recorder leaves that to its system."""
    missing: int
    """The sequence of a message that is not there, so that `recorded` stays; NOTHING_MISSING, TOO_MANY_KEYS."""
    key: bytes
    """The key of that message."""
    name: str
    """Who tells, for people."""

    def encode(self) -> bytes:
        """Return the key to subscribe to."""
        *numbers, key, name = self
        text = name.encode()[:_MOST_NAME_BYTES]
        return _FIXED.pack(RECORDED_KEY, *numbers, len(key)) + key + text

    @classmethod
    def decode(cls, said: bytes) -> Self | None:
        """Return what such a key says; None: it is none."""
        if len(said) < _LEAST_BYTES:
            return None
        _, nonce, epoch, begin, recorded, synced, missing, key_bytes = _FIXED.unpack_from(said)
        key, name = said[_LEAST_BYTES:][:key_bytes], said[_LEAST_BYTES + key_bytes :]
        told = cls(nonce, epoch, begin, recorded, synced, missing, key, name.decode(errors="replace"))
        is_sane = 0 <= begin <= recorded and NEVER_SYNCED <= synced <= recorded and key_bytes <= MAX_KEY_BYTES
        return told if is_sane else None
