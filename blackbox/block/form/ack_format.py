"""Acknowledgements from recorders to a publisher: which messages are recorded and synced.

An acknowledgement is a subscription to a key that carries no blocks; the next one replaces it. See the wire format.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple, Self

from blackbox.block.form.format import RECORDED_KEY
from blackbox.block.form.layout import ACKNOWLEDGEMENT

NEVER_SYNCED: Final = -1
NOTHING_MISSING: Final = -1

_FIXED = struct.Struct(ACKNOWLEDGEMENT.format)
_MOST_NAME_BYTES: Final = 40
_LEAST_BYTES: Final = _FIXED.size
MOST_BYTES: Final = _LEAST_BYTES + _MOST_NAME_BYTES


class Acknowledgement(NamedTuple):
    """Range of messages of one slice and epoch that a recorder has: from `begin` to before `recorded`."""

    nonce: bytes
    """Random id of one slice in one run of the recorder."""
    epoch: int
    begin: int
    """Sequence of the first recorded message."""
    recorded: int
    """Sequence before which all messages from `begin` on are recorded."""
    synced: int
    """Sequence before which they are on disk; NEVER_SYNCED: the recorder leaves syncing to the system."""
    missing: int
    """Sequence of the first missing message, equal to `recorded`; or NOTHING_MISSING."""
    name: str
    """Name of the recorder, for display."""

    def encode(self) -> bytes:
        """Return the key to subscribe to."""
        *numbers, name = self
        return _FIXED.pack(RECORDED_KEY, *numbers) + name.encode()[:_MOST_NAME_BYTES]

    @classmethod
    def decode(cls, data: bytes) -> Self | None:
        """Return the acknowledgement in a key; None: the key is malformed."""
        if len(data) < _LEAST_BYTES:
            return None
        _, nonce, epoch, begin, recorded, synced, missing = _FIXED.unpack_from(data)
        made = cls(nonce, epoch, begin, recorded, synced, missing, data[_LEAST_BYTES:].decode(errors="replace"))
        return made if 0 <= begin <= recorded and NEVER_SYNCED <= synced <= recorded else None
