"""Topic prefixes, one or several."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from blackbox.arguments import all_as_bytes, as_bytes

Prefixes = str | bytes | Iterable[str | bytes]
"""A topic prefix, or several."""


def covering(prefix: Prefixes) -> tuple[bytes, ...]:
    """Drop prefixes that another one covers, so that no topic starts with two of them. None: all topics."""
    if isinstance(prefix, str | bytes):
        return (as_bytes("prefix", prefix),)
    given = tuple(dict.fromkeys(all_as_bytes("prefix", prefix))) or (b"",)
    return tuple(each for each in given if not any(each != other and each.startswith(other) for other in given))


def common_prefix(prefixes: Collection[bytes]) -> bytes:
    """Return the longest prefix that covers all of these; b"" for an empty collection."""
    low, high = min(prefixes, default=b""), max(prefixes, default=b"")
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    return low[:same]
