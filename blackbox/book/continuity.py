"""Check that batches which no subscriber or replay delivers follow each other."""

from __future__ import annotations

from typing import NamedTuple

from blackbox.block.batch.batch import Batch
from blackbox.block.position import is_restart


class Break(NamedTuple):
    """How a batch does not directly follow the earlier ones of its slice."""

    is_new_epoch: bool
    is_restart: bool
    """True if messages of any key may be missing."""
    is_gap: bool
    """True if messages of its key are missing."""


class Continuity:
    """Positions of the last batches."""

    def __init__(self) -> None:
        self._epochs: dict[int, int] = {}
        """Epoch of each slice."""
        self._ends: dict[tuple[int, int, bytes], int] = {}
        """Ends of the last messages by slice, epoch and key."""

    def follow(self, batch: Batch, start: int, stop: int) -> Break | None:
        """Compare the messages `start` to `stop` - 1 with those before them, or with the start of the epoch.

        Return None if they directly follow them.
        """
        block = batch.block
        before = self._epochs.get(block.slice_id, block.epoch)
        self._epochs[block.slice_id] = block.epoch
        stream = block.slice_id, block.epoch, block.key
        first, end = int(batch.sequence[start]), int(batch.sequence[stop - 1]) + 1
        previous = block.previous if first == block.sequence else first
        is_gap = previous != self._ends.get(stream, 0) or end - first != stop - start
        self._ends[stream] = end
        if before == block.epoch and not is_gap:
            return None
        return Break(before != block.epoch, is_restart(before, block.epoch), is_gap)

    def clear(self) -> None:
        """Forget all batches."""
        self._epochs.clear()
        self._ends.clear()
