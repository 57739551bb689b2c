"""Topic prefixes, one or several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Prefixes = bytes | Iterable[bytes]
"""A topic prefix, or several."""


def covering(prefix: Prefixes) -> tuple[bytes, ...]:
    """Return prefixes without those that another one covers: no topic starts with two of them. None: all topics."""
    given = (prefix,) if isinstance(prefix, bytes) else tuple(dict.fromkeys(prefix)) or (b"",)
    return tuple(each for each in given if not any(each != other and each.startswith(other) for other in given))


def common_prefix(prefixes: Sequence[bytes]) -> bytes:
    """Return the longest prefix that covers all of these."""
    low, high = min(prefixes), max(prefixes)
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    return low[:same]
