"""Keep what is still wanted of archives, whichever of them brought the rest."""

from __future__ import annotations

import msgspec
import numpy

from blackbox.archive.serve.connection import Fetched
from blackbox.archive.serve.protocol import AskBlocks, Gone, Range
from blackbox.block.position import Position


class Rows:
    """Which rows of the blocks that come are wanted and new, also when another archive goes on."""

    def __init__(self, ask: AskBlocks, *, tells_later: bool = False) -> None:
        """`tells_later`: the caller is told when there are no more blocks for now."""
        self._ask, self.tells_later = ask, tells_later
        self._next: dict[bytes, Position] = {}
        self._skipped: dict[bytes, Position] = {}
        self._told: set[Gone] = set()
        if ask.key is not None and ask.start is not None:
            self._next[ask.key] = ask.start

    def begin(self) -> AskBlocks:
        """Return what to ask the next archive; from then on what has come until now is skipped."""
        self._skipped = dict(self._next)
        key = self._ask.key
        if key is None or key not in self._next:
            return self._ask
        return msgspec.structs.replace(self._ask, start=self._next[key], start_ns=None)

    def take(self, found: Fetched | Gone) -> Fetched | Gone | None:
        """Return what is new of it; None: nothing."""
        if isinstance(found, Gone):
            if found in self._told:
                return None
            self._told.add(found)
            return found
        block, numbers = found.block, found.block.sequences
        first, stop, at = found.first_row, block.count, self._skipped.get(block.key)
        if at is not None and block.epoch < at.epoch:
            return None
        if at is not None and block.epoch == at.epoch:
            first = max(first, int(numpy.searchsorted(numbers, at.sequence)))
        if (end := self._ask.stop) is not None and block.epoch == end.epoch:
            stop = int(numpy.searchsorted(numbers, end.sequence))
        if first >= stop:
            return None
        following = Position(block.epoch, int(numbers[stop - 1]) + 1)
        self._next[block.key] = max(following, self._next.get(block.key, following))
        return Fetched(block, found.ts_recv, first, stop)

    def lacking(self) -> list[Gone]:
        """Return nothing to ask other archives for: what is gone was told in its place."""
        return []


class RowsOfRanges:
    """What is left of ranges, whichever archive brought the rest."""

    tells_later = False

    def __init__(self, slice_id: int, ranges: list[Range]) -> None:
        self._slice_id = slice_id
        self.left = ranges
        self._why: dict[tuple[bytes, int], str] = {}

    def begin(self) -> AskBlocks:
        """Return what to ask the next archive."""
        return AskBlocks(slice_id=self._slice_id, ranges=self.left)

    def take(self, found: Fetched | Gone) -> Fetched | None:
        """Return what is wanted of it; None: nothing."""
        if isinstance(found, Gone):
            self._why[found.key, found.epoch] = found.why
            return None
        block, numbers = found.block, found.block.sequences
        low, high = int(numbers[found.first_row]), int(numbers[-1]) + 1
        left, rows = [], []
        for each in self.left:
            first, stop = max(each.first, low), min(each.stop, high)
            if (each.key, each.epoch) != (block.key, block.epoch) or first >= stop:
                left.append(each)
                continue
            rows += numpy.searchsorted(numbers, (first, stop)).tolist()
            rests = ((each.first, first), (stop, each.stop))
            left += [Range(each.key, each.epoch, *rest) for rest in rests if rest[0] < rest[1]]
        self.left = left
        return Fetched(block, found.ts_recv, min(rows), max(rows)) if rows else None

    def lacking(self) -> list[Gone]:
        """Return what an archive that has told all it has did not bring."""
        return [
            Gone(each.epoch, each.first, each.stop - each.first, self._why.get((each.key, each.epoch), ""), each.key)
            for each in self.left
        ]
