"""Compiled: find the key of a topic, as `blackbox.feed.routing.key_rule` defines it."""

from __future__ import annotations

from typing import Any

import numpy

from blackbox.feed.routing.compiled_routing import crc_of_root
from blackbox.feed.routing.key_rule import MAX_KEY_BYTES
from blackbox.native.memory.intrinsics import inner

_CHANNEL_KEYS = numpy.arange(256, dtype=numpy.uint8)


@inner
def find_key(rule: int, topic: int, size: int) -> tuple[Any, Any]:
    """Return the address and the size of a topic's key. `topic`: address of the topic."""
    if rule <= MAX_KEY_BYTES:
        return topic, min(numpy.int64(rule), size)
    crc = crc_of_root(topic, size, rule >> 8)
    return _CHANNEL_KEYS.ctypes.data + 1 + (crc >> 16) % ((rule & 0xFF) - MAX_KEY_BYTES), numpy.int64(1)
