"""Keys whose messages may have been lost, and whether some messages may have one of them."""

from __future__ import annotations

from collections.abc import Iterable


class UnsureKeys:
    """Slices and keys whose messages may have been lost. The slice None stands for any, the key b"" for all of it."""

    def __init__(self) -> None:
        self._keys: dict[int | None, set[bytes]] = {}
        self._shorter: dict[int | None, set[bytes]] = {}
        """All that the keys begin with: starts that are shorter than a key."""

    def add(self, slice_id: int | None, key: bytes) -> None:
        """Add a key of a slice."""
        self._keys.setdefault(slice_id, set()).add(key)
        self._shorter.setdefault(slice_id, set()).update(key[:size] for size in range(len(key)))

    def clear(self, slice_id: int | None = None) -> None:
        """Forget the keys of a slice, or all."""
        for kept in (self._keys, self._shorter):
            if slice_id is None:
                kept.clear()
            else:
                kept.pop(slice_id, None)

    def may_lack(self, start: bytes, slices: Iterable[int | None] | None = None) -> bool:
        """Return whether messages whose keys start so may have been lost, in some of these slices, or in any."""
        if not self._keys:
            return False
        heads = [start[:size] for size in range(len(start) + 1)]
        return any(
            start in self._shorter[each] or not self._keys[each].isdisjoint(heads)
            for each in (self._keys if slices is None else slices)
            if each in self._keys
        )
