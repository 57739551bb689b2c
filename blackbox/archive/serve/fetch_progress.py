"""Keep what is still wanted of archives, whichever of them brought the rest.

Of one key an archive is asked to go on behind all that has come. Of many keys nobody could say so in a request: each
archive goes on where it was itself, and what others have brought is left out here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

import msgspec

from blackbox.archive.serve.connection import Fetched
from blackbox.archive.serve.protocol import AskBlocks, Cursor, Gone, Range
from blackbox.block.position import Position
from blackbox.subscribe.repair import Later, Missing, Since

NO_END: Final = 1 << 62
"""In place of the number behind the last one of a run: no archive tells it."""
RunEnds = Mapping[int, Mapping[bytes, int]]
"""By run and key the number behind the last message that its publisher has told of."""


class Rows:
    """Which rows of the blocks that come are wanted and new, also when another archive goes on."""

    def __init__(
        self,
        ask: AskBlocks,
        *,
        following: Mapping[bytes, Position] | None = None,
        prefixes: Collection[bytes] = (b"",),
    ) -> None:
        """`following`: what comes next. `prefixes`: what keys begin with that are wanted."""
        self._prefixes = tuple(prefixes)
        self.ask = ask
        self._next = dict(following or {})
        self._cursors: dict[str, Cursor] = {}
        self._skipped: dict[bytes, Position] = {}
        self._told: set[Gone] = set()
        if ask.key is not None and ask.start is not None:
            self._next[ask.key] = ask.start

    def begin(self, endpoint: str) -> AskBlocks:
        """Return what to ask an archive; from then on what has come until now is skipped."""
        self._skipped = dict(self._next)
        key = self.ask.key
        if key is None:
            return msgspec.structs.replace(self.ask, cursor=self._cursors.get(endpoint))
        if key not in self._next:
            return self.ask
        return msgspec.structs.replace(self.ask, start=self._next[key], start_ns=None)

    def begin_at(self, endpoint: str, start: Position) -> AskBlocks:
        """As `begin`; of one key from a position on, whatever has come behind that."""
        if self.ask.key is None:
            return self.begin(endpoint)
        return msgspec.structs.replace(self.ask, start=start, start_ns=None)

    def wants(self, key: bytes) -> bool:
        """Whether a key is wanted; without keys all is."""
        return self.ask.key is not None or key.startswith(self._prefixes)

    def wants_end(self, end: tuple[int, bytes, int]) -> bool:
        """Whether the end of a run is of a key that is wanted."""
        return self.wants(end[1])

    def is_over(self, _epoch: int) -> bool:
        """Return False: what follows is wanted whatever run has begun."""
        return False

    def note(self, endpoint: str, cursor: Cursor) -> None:
        """Note how far an archive has read, all of which was taken."""
        self._cursors[endpoint] = cursor

    def forget(self, endpoint: str) -> None:
        """Have an archive begin anew: it does not know its cursor."""
        self._cursors.pop(endpoint, None)

    def take(self, found: Fetched | Gone) -> Fetched | Gone | None:
        """Return what is new of it; None: nothing."""
        if isinstance(found, Gone):
            if found in self._told:
                return None
            self._told.add(found)
            return found
        block = found.block
        if not self.wants(block.key):
            return None
        first, stop, at = found.first_row, block.count, self._skipped.get(block.key)
        if at is not None and block.epoch < at.epoch:
            return None
        if at is not None and block.epoch == at.epoch:
            first = max(first, block.row_from(at.sequence))
        if (end := self.ask.stop) is not None and block.epoch == end.epoch:
            stop = block.row_from(end.sequence)
        if first >= stop:
            return None
        following = Position(block.epoch, block.number_of(stop - 1) + 1)
        self._next[block.key] = max(following, self._next.get(block.key, following))
        return Fetched(block, found.ts_recv, first, stop)

    def lacking(self) -> list[Gone]:
        """Return nothing to ask other archives for: what is gone was told in its place."""
        return []


class RowsOfRanges:
    """What is left of ranges, whichever archive brought the rest."""

    def __init__(self, slice_id: int, ranges: list[Range]) -> None:
        self._slice_id = slice_id
        self.left = ranges
        self.may_come = False
        """Whether an archive may still have more of it: it has not answered, or not recorded it yet."""
        self._why: dict[tuple[bytes, int], str] = {}

    def begin(self, _endpoint: str) -> AskBlocks:
        """Return what to ask the next archive."""
        return AskBlocks(slice_id=self._slice_id, ranges=self.left)

    def is_over(self, epoch: int) -> bool:
        """Whether nothing that is left is to be recorded any more, once the run `epoch` has begun."""
        return bool(self.left) and all(each.epoch < epoch for each in self.left)

    def note(self, endpoint: str, cursor: Cursor) -> None:
        """Do nothing: what is left says how far it is."""

    def forget(self, endpoint: str) -> None:
        """Do nothing."""

    def take(self, found: Fetched | Gone) -> Fetched | None:
        """Return what is wanted of it; None: nothing."""
        if isinstance(found, Gone):
            self._why[found.key, found.epoch] = found.why
            return None
        block = found.block
        low, high = block.number_of(found.first_row), block.number_of(-1) + 1
        left, rows = list[Range](), list[int]()
        for each in self.left:
            first, stop = max(each.first, low), min(each.stop, high)
            if (each.key, each.epoch) != (block.key, block.epoch) or first >= stop:
                left.append(each)
                continue
            rows += block.row_from(first), block.row_from(stop)
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


class Seen:
    """What archives have brought of a slice from a beginning on, and what they lack before what is found next."""

    def __init__(self, since: Since, has_keys: bool) -> None:
        self.has_keys, self._reads_late = has_keys, has_keys and since.done_ns > 0
        self._is_end_told = False
        self._asks_ends = since.asks_ends or not has_keys
        self.epoch = since.epoch
        self.next_sequences = dict(since.next_sequences)
        """The next number of each key, in that run."""
        self._is_open = since.epoch == 0 or since.start_ns != 0
        """Whether keys begin in this run where archives bring them: it begins at a time."""
        self._asked_before = 0
        """Without keys: before which run others are asked for all they have, the end of the one seen last with it."""

    def without(self, endpoint: str) -> str:
        """Return which archive need not be asked for what is missing in its answer: none, where it was not all read."""
        return "" if self._reads_late else endpoint

    def runs_before(self, found: Fetched | Gone | Later) -> tuple[int, ...]:
        """Return before which runs others may have more: where it is of a later one than what was seen.

        With keys first of the run that was seen last, then of those between.
        """
        runs = self._over(found)
        if runs is None:
            return ()
        if self.has_keys:
            return (self.epoch + 1, runs[1])
        self._asked_before = runs[1]
        return (runs[1],)

    def untold(self, found: Fetched | Gone | Later) -> tuple[int, int] | None:
        """Return of which runs archives are to be asked how far they had come, first and stop; None: they tell it.

        Without keys they do.
        """
        return self._over(found) if self.has_keys else None

    def untold_at_end(self, has_ended: bool) -> tuple[int, int] | None:
        """As `untold`, where all archives have ended and brought nothing more; once, until they bring more."""
        if not has_ended or self._is_end_told or not self.has_keys or self.epoch == 0:
            return None
        self._is_end_told = True
        return self.epoch, NO_END

    def _over(self, found: Fetched | Gone | Later) -> tuple[int, int] | None:
        """Return the runs that are over, from the one seen last to before the one that was found; None: none is."""
        epoch = found.block.epoch if isinstance(found, Fetched) else found.epoch
        return (self.epoch, epoch) if 0 < self.epoch < epoch else None

    def is_wanted(self, found: Fetched | Gone | Later) -> bool:
        """Whether it is of a run that is not over."""
        return not isinstance(found, Fetched) or found.block.epoch >= self.epoch

    def lacking(self, found: Fetched | Gone | Later, told: RunEnds) -> list[list[Missing]]:
        """Return what an archive lacks before what was found, run by run; that then counts as seen.

        That is what it says is gone, numbers of a key that were left out, and the end of the run before: an archive
        tells what it knows of that, and others may know more. `told`: how far runs had come that are over.
        """
        if isinstance(found, Gone):
            return [self._lacking_of_gone(found)]
        if isinstance(found, Later):
            return [*self._ends_before(found.epoch, told)] if self.epoch else []
        ends = [*self._ends_before(found.block.epoch, told)]
        block, key, epoch = found.block, found.block.key, found.block.epoch
        lacks, self._is_end_told = list[Missing](), False
        first = block.number_of(found.first_row)
        begin = self.next_sequences.get(key, first if self._is_open else 0)
        if self.has_keys and begin < first:  # without keys the archive says so
            lacks.append(Missing(key, epoch, begin, first))
        self.next_sequences[key] = block.number_of(found.stop_row - 1) + 1
        return [*ends, lacks]

    def lacking_at_end(self, told: RunEnds) -> list[list[Missing]]:
        """Return what no archive has brought of the run that was seen last, and of later ones, once all have ended."""
        last = max(told, default=self.epoch)
        lacks = [*self._ends_before(last, told), self._end_of(last, told)]
        self.next_sequences |= {each.key: each.stop for each in lacks[-1]}
        return lacks

    def _lacking_of_gone(self, gone: Gone) -> list[Missing]:
        if gone.epoch == 0 or gone.first < 0:
            return []
        lacks, stop = list[Missing](), gone.first + gone.count
        if not self.has_keys and 0 < self.epoch <= gone.epoch:
            lacks = [each for ends in self._ends_before(gone.epoch, {}) for each in ends]
            self.next_sequences[gone.key] = max(stop, self.next_sequences.get(gone.key, 0))
        return [*lacks, Missing(gone.key, gone.epoch, gone.first, stop)]

    def _ends_before(self, epoch: int, told: RunEnds) -> Iterator[list[Missing]]:
        """Yield the ends of the runs from the one seen last to before `epoch`, which then counts as seen."""
        for run in (self.epoch, *sorted(each for each in told if each > self.epoch)):
            if run >= epoch:
                return
            following = {} if epoch == self._asked_before or not self._asks_ends else self.next_sequences
            yield [Missing(each, run, sequence, NO_END) for each, sequence in following.items()]
            yield self._end_of(run, told)
            self._is_open &= self.epoch == 0
            self.epoch, self.next_sequences = epoch, {} if self.has_keys else {b"": 0}

    def _end_of(self, run: int, told: RunEnds) -> list[Missing]:
        """Return what has not come of a run as far as is told; in the first one nobody may know where keys begin."""
        return [
            Missing(key, run, at, stop)
            for key, stop in told.get(run, {}).items()
            if (at := self.next_sequences.get(key, stop if self._is_open else 0)) < stop
        ]


class RowsOfRuns:
    """What an archive has of the run that was seen last, and of those before `stop`, and has not come from others."""

    def __init__(self, rows: Rows, seen: Seen, stop: int) -> None:
        self._rows, self._epoch, self._stop = rows, seen.epoch, stop
        self._has_keys = seen.has_keys
        self._following = dict(seen.next_sequences)
        self._is_past = False

    def begin(self, endpoint: str) -> AskBlocks:
        """Return what to ask an archive."""
        return self._rows.begin_at(endpoint, Position(self._epoch, self._following.get(b"", 0)))

    def take(self, found: Fetched | Gone) -> Fetched | Gone | None:
        """Return what is new of it; None: nothing, or it is of another run."""
        if isinstance(found, Gone):
            # With keys numbers that are left out show in the blocks.
            return found if not self._has_keys and self._epoch <= found.epoch < self._stop else None
        block = found.block
        self._is_past |= block.epoch >= self._stop
        if not self._rows.wants(block.key):
            return None
        if self._epoch < block.epoch < self._stop:
            self._epoch, self._following = block.epoch, {}
        first = max(found.first_row, block.row_from(self._following.get(block.key, 0)))
        if block.epoch != self._epoch or first >= block.count:
            return None
        self._following[block.key] = block.number_of(-1) + 1
        return Fetched(block, found.ts_recv, first, block.count)

    def is_over(self, epoch: int) -> bool:
        """Whether a later run has begun there."""
        return self._is_past or epoch >= self._stop

    def note(self, endpoint: str, cursor: Cursor) -> None:
        """Note how far an archive has read, unless a later run is in that."""
        if not self._is_past:
            self._rows.note(endpoint, cursor)

    def forget(self, endpoint: str) -> None:
        """Have an archive begin anew: it does not know its cursor."""
        self._rows.forget(endpoint)
