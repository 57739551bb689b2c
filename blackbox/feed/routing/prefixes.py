"""Topic prefixes, one or several."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence

from blackbox.arguments import all_as_bytes, as_bytes

Prefixes = str | bytes | Iterable[str | bytes]
"""A topic prefix, or several."""


def covering(prefix: Prefixes) -> tuple[bytes, ...]:
    """Drop prefixes that another one covers, so that no topic starts with two of them. None: all topics."""
    if isinstance(prefix, str | bytes):
        return (as_bytes("prefix", prefix),)
    given = tuple(dict.fromkeys(all_as_bytes("prefix", prefix))) or (b"",)
    kept = set(uncovered(given))
    return tuple(each for each in given if each in kept)


def uncovered(prefixes: Iterable[bytes]) -> list[bytes]:
    """Return the prefixes that start with no other one, each once, sorted."""
    kept: list[bytes] = []
    for each in sorted(prefixes):  # texts follow their start in this order
        if not kept or not each.startswith(kept[-1]):
            kept.append(each)
    return kept


def is_covered(text: bytes, prefixes: Sequence[bytes]) -> bool:
    """Return True if a text starts with one of these prefixes, a result of `uncovered`."""
    place = bisect_right(prefixes, text)
    return place > 0 and text.startswith(prefixes[place - 1])


def common_prefix(prefixes: Collection[bytes]) -> bytes:
    """Return the longest prefix that covers all of these; b"" for an empty collection."""
    low, high = min(prefixes, default=b""), max(prefixes, default=b"")
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    return low[:same]
