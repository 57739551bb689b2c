"""The journals of a simulated hub of a pair, as the machine writes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from blackbox.services.hub.pair.protocol import Entry, Part
from blackbox.services.hub.server.judge import Turn
from tests.simulation.pair_disk import Disk, SimBlock, SimEntries, check_epoch, entry_of

if TYPE_CHECKING:
    from tests.simulation.pair_world import PairWorld

_BLOCK_MESSAGES: Final = 2
_KEPT_DAYS: Final = 3


class KilledError(Exception):
    """The process ends here."""


class SimJournals:
    """`Journals` of a machine, on a disk. The process may end at each operation.

    Attributes: `epoch`; `ends`, the next sequence of each slice.
    """

    def __init__(self, world: PairWorld, disk: Disk) -> None:
        self._world, self._disk = world, disk
        self.killed_after = -1
        """Operations of the disk until a kill; -1: none."""
        self.epoch = 0
        self.ends: list[int] = []
        self._limit = 0

    def operate(self) -> None:
        """Count an operation of the disk; the process may end before it."""
        if self.killed_after == 0:
            raise KilledError
        self.killed_after -= self.killed_after > 0

    def begin_epoch(self, epoch: int) -> None:
        disk = self._disk
        self.operate()
        check_epoch(disk, epoch)
        if not disk.has_lost_power or disk.boot_epoch != epoch:
            disk.has_lost_power, disk.boot_epoch = False, epoch
        self.epoch = epoch
        self.ends = [disk.reached(slice_id, epoch) for slice_id in range(len(disk.slices))]
        disk.open(epoch)

    def entry_of(self, turn: Turn) -> Entry:
        following = list(self.ends)
        cut: dict[int, list[list[tuple[bytes, bytes | None]]]] = {}
        for columns, topics, rows, _ in turn.fresh:
            messages: dict[int, list[tuple[bytes, bytes | None]]] = {}
            for row in rows.tolist():
                topic = topics[columns.index[row]]
                payload = columns.data[columns.starts[row] : columns.stops[row]].tobytes()
                value = payload if columns.has_value(row) else None
                messages.setdefault(self._world.feed.slice_of(topic), []).append((topic, value))
            for slice_id, mine in messages.items():
                size = len(mine) if columns.is_one else _BLOCK_MESSAGES
                cut.setdefault(slice_id, []).extend(mine[at : at + size] for at in range(0, len(mine), size))
        parts: dict[int, list[tuple[bytes, list[SimBlock]]]] = {}
        for slice_id, note in turn.notes.items():
            blocks = list[SimBlock]()
            for each in cut.get(slice_id, []):
                blocks.append(SimBlock(self.epoch, blocks[-1].end if blocks else following[slice_id], tuple(each)))
            parts[slice_id] = [(note, blocks)]
        return entry_of(turn.number, parts)

    def blocks_of(self, entry: Entry) -> list[list[Any]]:
        return [list(part.blocks) for part in entry.parts]

    def following(self, slice_id: int) -> int:
        return self.ends[slice_id]

    def append(self, part: Part, blocks: Sequence[Any]) -> None:
        self.operate()
        self._delete()
        self._disk.append(part.slice_id, part.note)
        for block in blocks:
            self.operate()
            assert block.epoch == self.epoch, "a block of another epoch"
            self._disk.append(part.slice_id, block)
            self.ends[part.slice_id] = block.end
            self._world.model.published(part.slice_id, block)

    def sync(self) -> None:
        for slice_id in range(len(self._disk.slices)):
            self.operate()
            self._disk.sync(slice_id)

    def day(self) -> Path:
        return Path(f"{self._disk.day():06}")

    def delete_before(self, day: Path) -> None:
        self._limit = int(day.name)
        self._delete()

    def _delete(self) -> None:
        if self._world.deletes:
            self._disk.delete_before(min(self._limit, self._disk.today - _KEPT_DAYS))

    def entries(self, first: int) -> SimEntries:
        return SimEntries(self._disk, first)
