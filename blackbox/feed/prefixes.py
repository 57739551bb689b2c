"""Topic prefixes, one or several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blackbox.arguments import all_as_bytes, as_bytes

Prefixes = str | bytes | Iterable[str | bytes]
"""A topic prefix, or several."""


def covering(prefix: Prefixes) -> tuple[bytes, ...]:
    """Return prefixes without those that another one covers: no topic starts with two of them. None: all topics."""
    if isinstance(prefix, str | bytes):
        return (as_bytes("prefix", prefix),)
    given = tuple(dict.fromkeys(all_as_bytes("prefix", prefix))) or (b"",)
    return tuple(each for each in given if not any(each != other and each.startswith(other) for other in given))


def common_prefix(prefixes: Sequence[bytes]) -> bytes:
    """Return the longest prefix that covers all of these."""
    low, high = min(prefixes), max(prefixes)
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    return low[:same]
