"""Keys with messages that may have been lost."""

from __future__ import annotations

from collections.abc import Iterable


class UnsureKeys:
    """Slices and keys with messages that may have been lost. Slice None means any, key b"" all of a slice."""

    def __init__(self) -> None:
        self._keys: dict[int | None, set[bytes]] = {}
        self._shorter: dict[int | None, set[bytes]] = {}
        """Prefixes of the keys, shorter than a key."""

    def add(self, slice_id: int | None, key: bytes) -> None:
        """Add a key of a slice."""
        self._keys.setdefault(slice_id, set()).add(key)
        self._shorter.setdefault(slice_id, set()).update(key[:size] for size in range(len(key)))

    def clear(self, slice_id: int | None = None) -> None:
        """Remove the keys of a slice, or all."""
        for kept in (self._keys, self._shorter):
            if slice_id is None:
                kept.clear()
            else:
                kept.pop(slice_id, None)

    def may_lack(self, start: bytes, slices: Iterable[int | None] | None = None) -> bool:
        """Return True if messages whose keys have this prefix may have been lost, in one of these slices or any."""
        if not self._keys:
            return False
        heads = [start[:size] for size in range(len(start) + 1)]
        return any(
            start in self._shorter[each] or not self._keys[each].isdisjoint(heads)
            for each in (self._keys if slices is None else slices)
            if each in self._keys
        )
