"""Compilations running in this process: callbacks wait for them, so lag is not meaningful meanwhile."""

from __future__ import annotations

import time
from typing import Any, Final

from numba.core import event

COMPILE_S: Final = 1800.0
"""Longest compilation at the first start on a machine, before a timeout begins. A slow and busy one took over 300."""


class _Compilations(event.Listener):  # type: ignore[misc]  # numba has no types
    def __init__(self) -> None:
        self.active: list[float] = []
        """Start time of each compilation that runs or waits for its turn. Appending and popping need no lock."""
        self.seconds = 0.0

    def on_start(self, _event: Any) -> None:
        self.active.append(time.monotonic())

    def on_end(self, _event: Any) -> None:
        if self.active:
            began = self.active.pop()
            if not self.active:  # the earliest start is popped last
                self.seconds += time.monotonic() - began


_compilations: Final = _Compilations()
event.register("numba:compiler_lock", _compilations)


def is_compiling() -> bool:
    """Return True while a thread of this process compiles with numba or loads from its cache."""
    return bool(_compilations.active)


def compiled_seconds() -> float:
    """Return the seconds that this process has spent compiling or loading from a cache."""
    return _compilations.seconds


class StartLimit:
    """Limit for the time of a start, in seconds, to which up to COMPILE_S of compiling is added."""

    def __init__(self, limit_s: float) -> None:
        self._until, self._compiled_s = time.monotonic() + limit_s, compiled_seconds()

    def is_over(self) -> bool:
        """Return True if the start has taken longer."""
        more_s = COMPILE_S if is_compiling() else compiled_seconds() - self._compiled_s
        return time.monotonic() > self._until + more_s
