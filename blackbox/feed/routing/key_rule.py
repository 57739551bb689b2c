"""The key rule: how the key of a topic, on which ZeroMQ filters, follows from the topic. Part of the wire contract.

A rule is one integer, in feeds, blocks and compiled code:

- 0 to 8, `key_bytes` of the feed: the key is the topic's first bytes, up to this number.
- With `channels`: `separator << 8 | 8 + channels`. The key is the byte `1 + (crc32(root) >> 16) % channels`. The root
  is the topic's text before the first separator, as in `slices`, which uses the low bits of the same hash.

A block's header holds only the low byte of the rule.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

MAX_KEY_BYTES: Final = 8
MAX_CHANNELS: Final = 128
_BLOCK_BYTES: Final = 64 << 20
"""Most bytes of a block."""
_END_BYTES: Final = 8 + 4 + 4 + 16
"""Bytes of a key's end in a control block, without the key: its time, index, offset, and sequence with count."""
_PADDING_BYTES: Final = 16
"""Most bytes between columns of a control block, with its last offset."""


def key_rule_of(key_bytes: int, channels: int, separator: str) -> int:
    """Return the rule of a feed with these settings. One channel is the same as no key."""
    return key_bytes if channels == 1 else ord(separator) << 8 | MAX_KEY_BYTES + channels


def most_keys(key_bytes: int) -> int:
    """Return the most keys of a slice whose ends fit into one control block."""
    return (_BLOCK_BYTES - _PADDING_BYTES) // (_END_BYTES + key_bytes)


def has_channels(rule: int) -> bool:
    """Return True if keys are channels."""
    return rule > MAX_KEY_BYTES


def setting_of(rule: int) -> dict[str, int]:
    """Return the setting of a rule, or of the low byte of one."""
    return {"channels": (rule & 0xFF) - MAX_KEY_BYTES} if has_channels(rule) else {"key_bytes": rule}


def rule_text(rule: int) -> str:
    """Return the setting of a rule, or of the low byte of one, as text."""
    return " ".join(f"{name} = {value}" for name, value in setting_of(rule).items())


def key_size(rule: int) -> int:
    """Return the size of the longest keys."""
    return 1 if has_channels(rule) else rule


def key_of(rule: int, topic: bytes) -> bytes:
    """Return the key of a topic."""
    if not has_channels(rule):
        return topic[:rule]
    root = topic.partition(bytes([rule >> 8]))[0]
    return bytes([1 + (crc32(root) >> 16) % ((rule & 0xFF) - MAX_KEY_BYTES)])


def may_have_key(rule: int, text: bytes, key: bytes, *, whole: bool = False) -> bool:
    """Return True if a topic that starts with `text`, or is equal to it if `whole`, may have `key`; b"": any key."""
    start = start_of_keys(rule, text, whole=whole)
    return start.startswith(key) or (not whole and key.startswith(start))


def start_of_keys(rule: int, text: bytes, *, whole: bool = False) -> bytes:
    """Return the common start of the keys of topics that start with `text`, or are equal to it if `whole`."""
    return b"" if has_channels(rule) and rule >> 8 not in text and not whole else key_of(rule, text)
