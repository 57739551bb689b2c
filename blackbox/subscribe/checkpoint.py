"""A consistent cut: between two messages no callback of any slice runs, and each slice says how far it is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from blackbox.block.position import Position
from blackbox.errors import SubscriberError

_TICK_S: Final = 0.0005
"""How soon it is seen that a worker has delivered what it was sent."""
_LOOK_S: Final = 0.05
"""How soon that all is over, where nobody says so."""


class Checkpoint:
    """Slice threads come to it, each once its workers have delivered all that they were sent, and stay until release.

    Any thread may wait for them.
    """

    def __init__(self, slices: Iterable[int]) -> None:
        self._changed = threading.Condition()
        self._missing = set(slices)
        self._positions: dict[int, Position | None] = {}
        self._is_released = False

    def hold(self, slice_id: int, is_idle: Callable[[], bool], position: Callable[[], Position | None]) -> None:
        """Come to it in the slice thread: wait until its callbacks are done, say where it is, stay until release.

        `is_idle` raises SubscriberError when it is over: then nobody is told where it is.
        """
        with self._changed:
            while not self._is_released and not is_idle():
                self._changed.wait(_TICK_S)
            self.note(slice_id, position())
            while not self._is_released:
                is_idle()
                self._changed.wait(_LOOK_S)

    def note(self, slice_id: int, position: Position | None) -> None:
        """Note where a slice is that stays there."""
        with self._changed:
            self._positions[slice_id] = position
            self._missing.discard(slice_id)
            self._changed.notify_all()

    def wait(self, timeout: float, look: Callable[[set[int]], None]) -> dict[int, Position]:
        """Wait until all slices have come; return where they are. `look` is called now and then, with who is missing.

        Raises TimeoutError naming the slices that have not come; SubscriberError when a slice knows no exact position.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            while self._missing:
                if time.monotonic() >= deadline:
                    raise TimeoutError(
                        f"callbacks of slices {sorted(self._missing)} had not returned in {timeout} s, or no heartbeat "
                        "had shown that nothing was missing"
                    )
                self._changed.wait(_LOOK_S)
                look(set(self._missing))
            unknown = sorted(slice_id for slice_id, position in self._positions.items() if position is None)
            if unknown:
                raise SubscriberError(
                    f"slices {unknown} had no position yet: nothing has come from their publishers, not all of an "
                    "image, they have not confirmed what new callbacks want, or the subscriber ended before a "
                    "heartbeat had shown that nothing was missing"
                )
            return {slice_id: each for slice_id, each in sorted(self._positions.items()) if each is not None}

    def release(self) -> None:
        """Let all go on."""
        with self._changed:
            self._is_released = True
            self._changed.notify_all()
