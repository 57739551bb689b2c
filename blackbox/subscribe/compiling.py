"""Compilations that run in this process: callbacks wait for them, so their lag says nothing then."""

from __future__ import annotations

from typing import Any, Final

from numba.core import event

_active: Final[list[None]] = []
"""One entry for each compilation that runs or waits for its turn. Appending and popping need no lock."""


class _Compilations(event.Listener):  # type: ignore[misc]  # numba has no types
    def on_start(self, _event: Any) -> None:
        _active.append(None)

    def on_end(self, _event: Any) -> None:
        if _active:
            _active.pop()


event.register("numba:compiler_lock", _Compilations())


def is_compiling() -> bool:
    """Return True while a thread of this process compiles something with numba, or loads it from a cache."""
    return bool(_active)
