"""Count the messages that pass a tap unseen, by the numbers in blocks and heartbeats. Does no I/O."""

from __future__ import annotations

from collections.abc import Mapping

from blackbox.block.form.block import Block
from blackbox.block.position import End


class KeyCounts:
    """The messages of a slice's keys that a tap has passed, in one epoch. `missed`: those that it did not receive."""

    def __init__(self, keys: tuple[bytes, ...]) -> None:
        """`keys`: starts of the keys to count."""
        self.missed = 0
        self._keys = keys
        self._epoch = 0
        self._has_begun = False
        """True after the first control block, with the ends of all keys."""
        self._next: dict[bytes, int] = {}
        """Number of the next message of each key."""

    def take(self, block: Block) -> None:
        """Count up to the end of a data block, and the messages missing before it."""
        self._enter(block.epoch)
        self._advance(block.key, block.key_sequence, block.key_sequence + block.count)

    def settle(self, epoch: int, ends: Mapping[bytes, End]) -> None:
        """Count up to the ends of all keys in a control block. The first one is where the tap begins."""
        self._enter(epoch)
        for key, end in ends.items():
            if key.startswith(self._keys):
                self._advance(key, end.count, end.count)
        self._has_begun = True

    def _enter(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._epoch, self._next = epoch, {}

    def _advance(self, key: bytes, start: int, stop: int) -> None:
        expected = self._next.get(key, 0 if self._has_begun else start)
        self.missed += max(0, start - expected)
        self._next[key] = max(expected, stop)
