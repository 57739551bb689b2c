"""A consistent checkpoint: all callbacks pause between two messages, and each slice reports its position."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from blackbox.block.position import Position
from blackbox.errors import SubscriberError

_TICK_S: Final = 0.0005
"""Seconds between two checks that a worker has delivered everything."""
_LOOK_S: Final = 0.05
"""Seconds between two checks for the end without a notification."""


class Checkpoint:
    """Slice threads arrive once their workers have delivered everything, and stay until `release`.

    Any thread may wait for them.
    """

    def __init__(self, slices: Iterable[int]) -> None:
        self._changed = threading.Condition()
        self._missing = set(slices)
        self._positions: dict[int, Position | None] = {}
        self._is_released = False

    def hold(self, slice_id: int, is_idle: Callable[[], bool], position: Callable[[], Position | None]) -> None:
        """Called in the slice thread: wait until its callbacks are done, report its position, stay until `release`.

        `is_idle` raises SubscriberError at the end; no position is reported then.
        """
        with self._changed:
            while not self._is_released and not is_idle():
                self._changed.wait(_TICK_S)
            self.note(slice_id, position())
            while not self._is_released:
                is_idle()
                self._changed.wait(_LOOK_S)

    def note(self, slice_id: int, position: Position | None) -> None:
        """Report the position of a slice."""
        with self._changed:
            self._positions[slice_id] = position
            self._missing.discard(slice_id)
            self._changed.notify_all()

    def wait(self, timeout: float, look: Callable[[set[int]], None]) -> dict[int, Position]:
        """Wait until all slices have arrived; return their positions. `look` is called with the missing slices.

        Raises TimeoutError naming the missing slices, SubscriberError if a slice has no exact position.
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
                    f"slices {unknown} had no position yet: their publishers have sent nothing, part of an "
                    "image is missing, new callbacks are not confirmed, or the subscriber ended before a "
                    "heartbeat had shown that nothing was missing"
                )
            return {slice_id: each for slice_id, each in sorted(self._positions.items()) if each is not None}

    def release(self) -> None:
        """Let all slices continue."""
        with self._changed:
            self._is_released = True
            self._changed.notify_all()
